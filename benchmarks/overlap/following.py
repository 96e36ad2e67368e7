"""Learning from workers that change weights between two tokens, between two batches, or synchronously: real processes.

Completions are long-tailed: a working of about 50 tokens that is sometimes repeated, up to eight times.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import yaml

from benchmarks.common import halving
from benchmarks.common.children import ChildFailed, until
from benchmarks.common.report import Row, row
from benchmarks.common.running import Result, scratch
from nodes.boot.directory import ADDRESS_FILE
from nodes.simulation.cell import CpuShares, missing
from nodes.simulation.children import Child, stop_all
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.verification.inline import InlineVerifier
from swarm.figures import LAG_MAX
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, RoundEvent

TASK = ReasoningGymTask(name="count_bits", options={"min_n": 2**9, "max_n": 2**10 - 1})
WARM_START = halving.WarmStart(steps=500, forgotten=0.1, again=0.55)
NUM_WORKERS = 2
GROUP_SIZE = 8
ROWS = 64
"""Sequences that a worker decodes at once."""
ROLLOUTS = 128
"""R."""
MAX_STALENESS = 2
"""S."""
MAX_NEW_TOKENS = 400
LEARNER_CORES, WORKER_CORES = 0.6, 0.7
"""Two cores in total, divided by the capacity rule: the workers sample about as fast as the learner trains."""
WITHOUT_SIGNAL = 0.15
"""Fraction of groups that a stop-and-wait worker expects to be dropped, and samples in addition."""
RUN_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Arm:
    """When a worker installs new weights, and how much it samples in between."""

    name: str
    questions: int
    """Drawn at once."""
    swap_in_flight: bool = False
    publish_every: int | None = None
    worker: str = "nodes.cli"
    """Module that runs as `swarm work`."""


IN_FLIGHT = Arm("in flight", questions=64, swap_in_flight=True)
BETWEEN_BATCHES = Arm("between two batches", questions=ROWS // GROUP_SIZE)
STOP_AND_WAIT = Arm(
    # S + 1 steps use the samples of one version, so that the last of them has staleness S.
    "stop and wait",
    questions=ceil((MAX_STALENESS + 1) * ROLLOUTS / GROUP_SIZE / NUM_WORKERS / (1 - WITHOUT_SIGNAL)),
    publish_every=MAX_STALENESS + 1,
    worker="benchmarks.overlap.waiting",
)


class Following:
    """One learner and two workers, each the ordinary command, until the learner has made its steps."""

    def __init__(self, folder: Path, model: Path, arm: Arm, steps: int) -> None:
        """Write their configuration into the existing `folder`."""
        self._folder = folder
        self._arm = arm
        self._steps = steps
        self._config = folder / "overlap.yaml"
        values = {
            "run_name": "overlap",
            "policy": {"model": str(model), "threads": 1, "system_prompt": ""},
            "tasks": [TASK.model_dump(mode="json")],
            "generation": {
                "max_new_tokens": MAX_NEW_TOKENS,
                "group_size": GROUP_SIZE,
                "max_batch_sequences": ROWS,
            },
            "update": {"learning_rate": 1e-4},
            "learner": {
                "rollouts_per_step": ROLLOUTS,
                "max_staleness": MAX_STALENESS,
                "publish_every": arm.publish_every,
                "act_after_s": 1e6,
            },
            "follow": {"questions": arm.questions, "swap_in_flight": arm.swap_in_flight},
            "evaluation": {"num_questions": 0},
            "checkpoint": {"every_rounds": 1_000_000},
            "network": {"listen": ["/ip4/127.0.0.1/tcp/0"], "nat_port_map": False, "announce_every_s": 5.0},
        }
        self._config.write_text(yaml.safe_dump(values))

    def run(self, shares: CpuShares | None) -> list[RoundEvent]:
        """The learner's steps, with CPU shares per process, or None for unlimited ones.

        Raises `ChildFailed` when they take too long.
        """
        home = self._folder / "learner"
        common = ["--no-report", "--no-live"]
        arguments = ["learn", str(self._config), "--rounds", str(self._steps), "--out", str(home), *common]
        learner = Child("learner", arguments, home)
        children = [learner]
        try:
            learner.start()
            _limit(learner, LEARNER_CORES, shares)
            _until((home / ADDRESS_FILE).exists, learner, "an address")
            address = (home / ADDRESS_FILE).read_text().split()[0]
            for number in range(1, NUM_WORKERS + 1):
                out = self._folder / f"worker-{number}"
                arguments = ["work", str(self._config), "--bootstrap", address, "--seed", str(number)]
                children.append(Child(out.name, [*arguments, "--out", str(out), *common], out, self._arm.worker))
                children[-1].start()
                _limit(children[-1], WORKER_CORES, shares)
            _until(lambda: not learner.running, learner, "the last step")
        finally:
            stop_all(children)
        if learner.exit_code != 0:
            raise ChildFailed(f"the learner exited with {learner.exit_code}: {learner.last_words()}")
        return PeerHistory.read(home / METRICS_FILE).series()


def _until(condition: Callable[[], bool], child: Child, what: str) -> None:
    until(lambda: condition() or not child.running, RUN_TIMEOUT_S)
    if not condition():
        raise ChildFailed(f"no {what} of {child.name}: {child.last_words()}")


def _limit(child: Child, cores: float, shares: CpuShares | None) -> None:
    if shares is not None and child.pid is not None:
        shares.limit(child.pid, cores)


class Cells:
    """The measurements of each arm, one figure per repeat."""

    def __init__(self, folder: Path, model: Path, steps: int, limited: bool) -> None:
        """`limited`: every process has its own share of the processor."""
        self.rates: dict[Arm, list[float]] = {}
        """Trained samples per second."""
        self.oldest: dict[Arm, list[float]] = {}
        """Versions."""
        self._folder = folder
        self._model = model
        self._steps = steps
        self._limited = limited

    def measure(self, arm: Arm) -> None:
        """Add one run."""
        following = Following(Path(tempfile.mkdtemp(dir=self._folder)), self._model, arm, self._steps)
        with closing(CpuShares()) if self._limited else nullcontext() as shares:
            late = following.run(shares)[self._steps // 4 - 1 :]
        updates = [event.figures for event in late[1:]]
        rate = sum(figures.get("train/num_sequences") or 0 for figures in updates) / (late[-1].wall_s - late[0].wall_s)
        self.rates.setdefault(arm, []).append(rate)
        self.oldest.setdefault(arm, []).append(float(max(figures.get(LAG_MAX) or 0 for figures in updates)))

    def rows(self, where: str, target: float | None) -> list[Row]:
        """Rows of all arms; `target` is for the first against the second."""
        first, *others = self.rates
        ratios = {other: [a / b for a, b in zip(self.rates[first], self.rates[other], strict=True)] for other in others}
        return [
            *(row(f"{where}: learned from, {arm.name}", self.rates[arm], "samples/s") for arm in self.rates),
            *(
                row(f"{where}: {first.name} / {arm.name}", ratio, "x", target=target if arm == STOP_AND_WAIT else None)
                for arm, ratio in ratios.items()
            ),
            *(row(f"{where}: oldest token, {arm.name}", self.oldest[arm], "versions") for arm in self.oldest),
        ]


def inflight(quick: bool) -> Result:
    """Trained samples per second with in-flight weights, against the other two ways."""
    steps, repeats = (12, 1) if quick else (24, 3)
    problem = missing()
    with scratch() as folder:
        model = Path(folder) / "model"
        halving.warm_start(WARM_START, InlineVerifier([TASK]), model)
        own, shared = (Cells(Path(folder), model, steps, limited) for limited in (True, False))
        for _ in range(repeats):
            for arm in () if problem else (IN_FLIGHT, STOP_AND_WAIT, BETWEEN_BATCHES):
                own.measure(arm)
            for arm in (IN_FLIGHT, STOP_AND_WAIT):
                shared.measure(arm)
    rows = [] if problem else own.rows("own shares of the processor", 1.5)
    return [*rows, *shared.rows("shared processor", None)], [
        f"One learner, {NUM_WORKERS} workers, a process each, on this machine; long-tailed completions of at most "
        f"{MAX_NEW_TOKENS} tokens; {ROLLOUTS} rollouts per step, {ROWS} at a time per worker; S {MAX_STALENESS} for "
        f"all.",
        "Stop and wait: workers sample the rollouts of S + 1 steps, send them, and wait for the version after those "
        "steps. "
        "Between two batches: they never wait, but install new weights only after a batch.",
        problem
        or f"Own shares: {LEARNER_CORES:g} cores for the learner, {WORKER_CORES:g} for each worker, like own machines. "
        "On a shared processor, busy processes take the idle ones' time, so that not waiting gains nothing.",
    ]
