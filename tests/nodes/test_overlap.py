"""`swarm join` that generates beside its updates: stopped in the middle, gone on with, and refused where it cannot."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from nodes.roles import ranks as coordinator
from nodes.roles.ranks import PeerRanks
from swarm import machine
from swarm.config import NodeConfig
from swarm.engines.config import GenerationSettings
from swarm.errors import ConfigError
from swarm.policy.config import PolicySettings
from swarm.policy.ranks import Ranks
from tests.nodes.processes import LOOPBACK, command_of, gone, swarm, until

OPTIONS = [
    *LOOPBACK,
    "--no-report",
    "--evaluation.num_questions=8",
    "--mix.fill=local",
    "--generation.max_staleness=1",
]


@pytest.mark.slow
@pytest.mark.network
def test_a_node_stops_in_the_middle_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with swarm(tmp_path, "join", "--out", str(tmp_path), *OPTIONS) as first:
        until(lambda: first.round() >= 4, first, "four rounds")
        everything = first.tree()
        assert any("swarm.engines.process.worker" in command_of(process) for process in everything)
        assert first.stop(signal.SIGINT) == 130
        assert gone(everything)
        done = first.round()
    with swarm(tmp_path, "join", "--out", str(tmp_path), *OPTIONS, f"--rounds={done + 3}") as second:
        until(lambda: second.round() > done, second, "a further round")
        everything = second.tree()
        assert second.wait() == 0
        assert gone(everything)
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    assert [event["round"] for event in rounds] == list(range(1, done + 4))
    assert "wait" in rounds[-1]["timings"] and "generate" not in rounds[-1]["timings"]
    trained = [event["figures"]["sampling/lag_max"] for event in rounds if "sampling/lag_max" in event["figures"]]
    assert set(trained) <= {0, 1} and 1 in trained
    counts = rounds[-1]["groups"]
    assert counts["generated"] == counts["used_local"] + sum(counts["local"].values()) == 8 * (done + 3)


def test_several_processes_have_to_take_turns() -> None:
    ranks = Ranks()
    ranks.size = 2
    with pytest.raises(ConfigError, match="max_staleness must be 0 with 2 processes"):
        PeerRanks(NodeConfig(generation=GenerationSettings(max_staleness=1)), None, ranks, lambda: False)


class Told(Exception):
    """With the settings of an engine's process."""


@pytest.mark.parametrize(("staleness", "asked", "threads"), [(0, None, 4), (1, None, 2), (1, 3, 3)])
def test_trainer_and_engine_share_the_cores_where_both_compute(
    monkeypatch: pytest.MonkeyPatch, staleness: int, asked: int | None, threads: int
) -> None:
    """Of eight, two of which share their arithmetic."""
    told: list[PolicySettings] = []
    used: list[int] = []

    def start(policy: object, settings: PolicySettings, *others: object) -> None:
        told.append(settings)
        raise Told

    monkeypatch.setattr(machine, "num_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(coordinator, "ProcessEngine", start)
    config = NodeConfig(
        policy=PolicySettings(device="cpu", threads=asked), generation=GenerationSettings(max_staleness=staleness)
    )
    if staleness:
        with pytest.raises(Told):
            PeerRanks(config, None, Ranks(), lambda: False)
        assert told[0].threads == threads
    else:
        PeerRanks(config, None, Ranks(), lambda: False).close()
    assert used[-1] == threads
