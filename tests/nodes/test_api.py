"""`import swarm`: its names, a node in the caller's process, parts of the user's own, and histories as tables."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from itertools import cycle
from pathlib import Path

import pytest

import swarm
from nodes.roles import runtime
from swarm.algorithms.advantages import ADVANTAGES
from swarm.algorithms.losses import LOSSES
from swarm.errors import Interrupted
from swarm.net.in_memory import MemoryHub
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import METRICS_FILE, EvaluationEvent, NoteEvent, RoundEvent, encode
from swarm.types import GradedGroup, UpdateReport

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text()
SMALL: dict[str, object] = {
    "generation.questions_per_round": 4,
    "generation.group_size": 4,
    "evaluation.num_questions": 0,
    "network.listen": ["/ip4/127.0.0.1/tcp/0"],
    "network.nat_port_map": False,
    "network.retry_s": 0.5,
}


def _node(out: Path, bootstrap: str = "", **more: object) -> swarm.Node:
    fields = {**SMALL, "out": out, **{name.replace("__", "."): value for name, value in more.items()}}
    return swarm.Node(bootstrap or (), fields=fields, quiet=True)


def test_the_public_names_are_these_and_the_page_has_them() -> None:
    """A name that is renamed or removed here breaks what users have written: that needs a major version."""
    assert swarm.__all__ == [
        "ConfigError", "Loss", "MixPolicy", "Node", "NodeConfig", "PeerHistory", "RolloutEngine", "RoundEvent",
        "SwarmError", "Task", "Updater", "frame", "history", "records",
    ]  # fmt: skip
    assert set(swarm.__all__) <= set(dir(swarm))
    for name in swarm.__all__:
        assert getattr(swarm, name).__name__ == name
        assert re.search(rf"\b{name}\b", PAGE), name


def test_the_page_has_the_node_as_it_is() -> None:
    named = {name for line in PAGE.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)[`(]", line)}
    public = {name for name in vars(swarm.Node) if not name.startswith("_")} | {"history", "policy"}
    assert public <= named
    shown = re.search(r"`(Node\([^`]*\))`", PAGE)
    assert shown is not None
    parameters = [name for name in signature(swarm.Node).parameters]
    assert re.findall(r"(\w+)=", shown[1]) == parameters


def test_a_name_that_there_is_not_is_told() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Peer'"):
        swarm.Peer  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.network
@pytest.mark.parametrize(("objective", "advantage"), list(zip(LOSSES, cycle(ADVANTAGES), strict=False)))
def test_every_objective_and_advantage_trains_a_node(tmp_path: Path, objective: str, advantage: str) -> None:
    importance = "none" if objective == "gepo" else "token_mask"
    chosen = {"objective": objective, "advantage": advantage, "importance": importance, "importance_floor": 0.5}
    rewards = [
        {"kind": "answer"},
        {"kind": "format", "tags": ["answer"]},
        {"kind": "overlong", "max_chars": 40, "cache_chars": 40},
    ]
    task = {"kind": "reasoning_gym", "name": "gcd", "rewards": rewards}
    fields = {f"update__{name}": value for name, value in chosen.items()}
    with _node(tmp_path, tasks=[task], **fields) as node:
        events = node.run(2)
        assert node.policy.version == 2
    assert all(event.figures["grad_norm"] for event in events), "both updates had a gradient"


@pytest.mark.network
def test_a_node_trains_round_by_round_and_goes_on_as_the_same_peer(tmp_path: Path) -> None:
    seen: list[int] = []
    with _node(tmp_path) as node:
        first = node.run(2, on_round=lambda event: seen.append(event.round))
        assert [event.round for event in first] == seen == [1, 2]
        assert node.address.endswith(node.peer_id)
        with pytest.raises(swarm.SwarmError, match="is in use"):
            _node(tmp_path)
        peer_id = node.peer_id
    assert node.history.end is not None and node.history.end.reason == "interrupted"
    with _node(tmp_path) as again:
        assert again.peer_id == peer_id
        assert [event.round for event in again.run(1)] == [3]
        assert again.policy.version <= 3
        again.run(5, on_round=lambda event: again.stop())
    assert [row["round"] for row in swarm.records(tmp_path)] == [1, 2, 3, 4]
    table = swarm.frame(tmp_path)
    assert list(table["round"]) == [1, 2, 3, 4]
    assert list(table["reward/mean"]) == [event.reward for event in again.history.series()]


@pytest.mark.network
def test_ctrl_c_leaves_a_node_that_can_go_on(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with _node(tmp_path, rounds=3) as node:
        with pytest.raises(KeyboardInterrupt):
            node.run(on_round=lambda event: signal.raise_signal(signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) is before
        assert [event.round for event in node.run()] == [2, 3]
    assert node.history.end is not None and node.history.end.reason == "done"


class Doubled:
    """An updater that trains on every own group twice."""

    def __init__(self, own: swarm.Updater) -> None:
        self.own = own
        self.taken: list[int] = []
        self.fits, self.read, self.advantages = own.fits, own.read, own.advantages

    @property
    def version(self) -> int:
        return self.own.version

    @property
    def max_chars(self) -> int:
        return self.own.max_chars

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        self.taken.append(2 * len(local))
        return self.own.update([*local, *local], external)


class Counted:
    """An engine that counts the prompts it is asked."""

    def __init__(self, own: swarm.RolloutEngine) -> None:
        self.own = own
        self.asked = 0

    def generate(self, prompts, num_completions, sampling, seed):  # type: ignore[no-untyped-def]
        return [answers for _, answers in sorted(self.stream(prompts, num_completions, sampling, seed))]

    def stream(self, prompts, num_completions, sampling, seed, turns=None):  # type: ignore[no-untyped-def]
        self.asked += len(prompts)
        yield from self.own.stream(prompts, num_completions, sampling, seed, turns)


@pytest.mark.network
def test_an_engine_and_an_updater_of_ones_own_take_the_places_of_the_nodes(tmp_path: Path) -> None:
    engines: list[Counted] = []
    updaters: list[Doubled] = []

    def engine(policy: object, own: swarm.RolloutEngine) -> swarm.RolloutEngine:
        engines.append(Counted(own))
        return engines[0]

    def updater(policy: object, own: swarm.Updater) -> swarm.Updater:
        updaters.append(Doubled(own))
        return updaters[0]

    fields = {**SMALL, "out": tmp_path, "mix.policy": "auto"}
    with swarm.Node(fields=fields, engine=engine, updater=updater, quiet=True) as node:
        node.run(3)
        version = node.policy.version
    assert engines[0].asked == 3 * 4
    assert len(updaters[0].taken) == 3
    assert version == sum(taken > 0 for taken in updaters[0].taken)
    assert all(event.worth is None for event in node.history.series())
    with _node(tmp_path) as again:
        assert again.policy.version == version, "the checkpoint is complete"


def test_an_engine_of_ones_own_cannot_generate_ahead(tmp_path: Path) -> None:
    fields = {**SMALL, "out": tmp_path, "generation.max_staleness": 1}
    with pytest.raises(swarm.ConfigError, match="max_staleness must be 0 with an engine of your own, got 1"):
        swarm.Node(fields=fields, engine=lambda policy, own: own, quiet=True)


def test_wrong_fields_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(swarm.ConfigError, match="did you mean mix.local"):
        swarm.Node(fields={"mix.lokal": 3})
    with pytest.raises(swarm.ConfigError, match="must be a subclass of"):
        swarm.Node(fields={"mix.policy": MemoryHub})


def _round(number: int, reward: float | None) -> RoundEvent:
    return RoundEvent(round=number, reward=reward, groups=Ledger().snapshot())


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    lines = [
        EvaluationEvent(time=1.0, round=0, accuracy=0.25, num_questions=4, tasks={"sums": (1, 4)}),
        _round(1, 0.5),
        NoteEvent(time=2.0, text="something"),
        _round(2, None),
        _round(2, 0.75),
    ]
    (tmp_path / METRICS_FILE).write_bytes(b"".join(map(encode, lines)) + b'{"event": "round", "rou')
    yield tmp_path


def test_a_history_is_a_table_with_each_round_once(written: Path) -> None:
    rows = swarm.records(written)
    assert [(row["round"], row.get("reward/mean")) for row in rows] == [(0, None), (1, 0.5), (2, 0.75)]
    assert rows[0] == {"round": 0, "evaluate/accuracy": 0.25, "evaluate/sums": 0.25}
    assert {"time", "wall_s", "receive/groups", "update/external_groups"} <= rows[1].keys()
    table = swarm.frame(str(written))
    assert table["reward/mean"].isna().tolist() == [True, False, False]
    assert table["evaluate/accuracy"].isna().tolist() == [False, True, True]
    assert [moment.text for moment in swarm.history(written).moments] == ["something"]


@pytest.mark.parametrize("read", [swarm.history, swarm.records, swarm.frame])
def test_a_directory_without_a_history_is_told(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(swarm.ConfigError, match="there is no .*metrics.jsonl: a node writes it while it runs"):
        read(tmp_path)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["node.ipynb", "own_parts.ipynb"])
def test_a_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path, notebook: str) -> None:
    cells = json.loads((ROOT / "examples" / notebook).read_text())["cells"]
    cells_code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    # In a running event loop, as Jupyter runs them.
    code = f"import asyncio\nasync def run(): exec({cells_code!r}, globals())\nasyncio.run(run())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, found.stdout + found.stderr
    expected = {"node.ipynb": "goes on after round 10", "own_parts.ipynb": "groups were left out"}
    assert expected[notebook] in found.stdout


@pytest.mark.network
def test_time_between_two_calls_of_run_is_no_time_of_training(tmp_path: Path) -> None:
    spent_s = 0.0
    with _node(tmp_path) as node:
        for _ in range(2):
            began = time.monotonic()
            (event,) = node.run(1)
            spent_s += time.monotonic() - began
            time.sleep(3)
    assert 0 < event.wall_s <= spent_s


@pytest.mark.network
def test_an_interrupted_first_evaluation_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _node(tmp_path, evaluation__num_questions=4) as node:
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "evaluate", lambda *arguments: (node.stop(), _interrupt()))
            assert node.run(1) == []
        assert [event.round for event in node.run(1)] == [1]
    assert list(node.history.evaluations) == [0]
    assert node.history.restarts == 0


def _interrupt() -> None:
    raise Interrupted("asked")


@pytest.mark.network
def test_as_many_rounds_are_trained_as_asked_for_when_their_file_is_lost(tmp_path: Path) -> None:
    with _node(tmp_path) as node:
        node.run(1)
        (tmp_path / METRICS_FILE).unlink()
        assert node.run(2) == []
        assert node._peer.round == 3
