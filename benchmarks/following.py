"""Learning from workers with weights that enter between two tokens, and only between two batches: real processes."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from benchmarks import halving
from benchmarks.children import ChildFailed
from benchmarks.report import Row, row
from benchmarks.running import Result
from nodes.children import Child, stop_all
from nodes.run import ADDRESS_FILE
from swarm.tasks.inline import InlineVerifier
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, RoundEvent

GROUP_SIZE = 8
IN_FLIGHT_ROWS = 64
BUDGET = 2
RUN_TIMEOUT_S = 900.0


class Following:
    """One learner and two workers, each the command that people run, until the learner has made its steps."""

    def __init__(self, folder: Path, model: Path, budget: int, in_flight: bool, questions: int, steps: int) -> None:
        """Write their configuration. Without `in_flight` a worker takes new weights only between two batches."""
        self._folder = folder
        self._steps = steps
        self._config = folder / "overlap.yaml"
        folder.mkdir(parents=True)
        values = {
            "run_name": "overlap",
            "policy": {"model": str(model), "threads": 1},
            "tasks": [halving.TASK.model_dump(mode="json")],
            "generation": {"max_new_tokens": 96, "group_size": GROUP_SIZE, "max_batch_sequences": IN_FLIGHT_ROWS},
            "update": {"learning_rate": 1e-4},
            "learner": {"rollouts_per_step": IN_FLIGHT_ROWS, "max_staleness": budget, "act_after_s": 1e6},
            "follow": {"questions": questions, "swap_in_flight": in_flight},
            "evaluation": {"num_questions": 0},
            "checkpoint": {"every_rounds": 1_000_000},
            "network": {"listen": ["/ip4/127.0.0.1/tcp/0"], "nat_port_map": False, "announce_every_s": 5.0},
        }
        self._config.write_text(yaml.safe_dump(values))

    def run(self) -> list[RoundEvent]:
        """The learner's steps. Raises `ChildFailed` when they are not made in time."""
        home = self._folder / "learner"
        common = ["--no-report", "--no-live"]
        arguments = ["learn", str(self._config), "--rounds", str(self._steps), "--out", str(home), *common]
        learner = Child("learner", arguments, home)
        children = [learner]
        try:
            learner.start()
            _until((home / ADDRESS_FILE).exists, learner, "an address")
            address = (home / ADDRESS_FILE).read_text().split()[0]
            for number in (1, 2):
                out = self._folder / f"worker-{number}"
                arguments = ["work", str(self._config), "--bootstrap", address, "--seed", str(number)]
                children.append(Child(out.name, [*arguments, "--out", str(out), *common], out))
                children[-1].start()
            _until(lambda: not learner.running, learner, "the last step")
        finally:
            stop_all(children)
        if learner.exit_code != 0:
            raise ChildFailed(f"the learner exited with {learner.exit_code}: {learner.last_words()}")
        return PeerHistory.read(home / METRICS_FILE).series()


def _until(condition: Callable[[], bool], child: Child, what: str) -> None:
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline or not (child.running or condition()):
            raise ChildFailed(f"no {what} of {child.name}: {child.last_words()}")
        time.sleep(0.1)


def inflight(quick: bool) -> Result:
    """Samples learned from a second with weights that enter between two tokens, and only between two batches."""
    steps, repeats, warm_steps = (6, 1, 100) if quick else (12, 3, 300)
    arms = {
        "in flight": (BUDGET, True, 64),
        "between batches": (BUDGET, False, IN_FLIGHT_ROWS // GROUP_SIZE),
        "in turns, S 0": (0, False, IN_FLIGHT_ROWS // GROUP_SIZE // 2),
    }
    rates: dict[str, list[float | None]] = {name: [] for name in arms}
    oldest: dict[str, list[float | None]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        halving.warm_start(halving.WarmStart(steps=warm_steps), InlineVerifier([halving.TASK]), model)
        for repeat, (name, (budget, in_flight, questions)) in itertools.product(range(repeats), arms.items()):
            home = Path(folder) / f"{name}-{repeat}".replace(" ", "-")
            events = Following(home, model, budget, in_flight, questions, steps).run()
            late = events[steps // 3 :]
            samples = sum(event.update.num_sequences for event in late[1:] if event.update)
            rates[name].append(samples / (late[-1].wall_s - late[0].wall_s))
            oldest[name].append(float(max(event.update.max_lag or 0 for event in late if event.update)))
    return [
        row("learned from, weights in flight", rates["in flight"], "samples/s", baseline=rates["between batches"]),
        row("learned from, weights between batches", rates["between batches"], "samples/s"),
        row("learned from, sampling and learning in turns", rates["in turns, S 0"], "samples/s"),
        _ratio("in flight / between batches", rates["in flight"], rates["between batches"], 1.5),
        _ratio("in flight / in turns", rates["in flight"], rates["in turns, S 0"], None),
        *(row(f"oldest token, {name}", values, "versions") for name, values in oldest.items()),
    ], [
        f"One learner, two workers, three processes on this machine; completions of up to 96 tokens; S {BUDGET} where "
        f"nothing else is said; {IN_FLIGHT_ROWS} rollouts a step, as many rows a worker. In turns: S 0, so that a "
        "worker waits for every update."
    ]


def _ratio(what: str, ours: Sequence[float | None], theirs: Sequence[float | None], target: float | None) -> Row:
    return row(what, [a / b for a, b in zip(ours, theirs, strict=True) if a and b], "x", target=target)
