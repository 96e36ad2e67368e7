"""Two peers that take turns: one teaches, one learns, as their configurations say."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from nodes.boot.directory import IDENTITY_FILE
from nodes.simulation.configs import Member
from nodes.simulation.in_memory import MemoryRun, Turns, take_turns
from swarm.config import load_config
from swarm.net.records.identity import Identity
from swarm.telemetry.records import METRICS_FILE, NoteEvent, RoundEvent, decode
from swarm.training.checkpoint import STATE, TrainingState

T = TypeVar("T")
COMMON = {
    "policy": {"model": "tiny"},
    "evaluation": {"num_questions": 0},
    "generation": {"group_size": 4, "questions_per_round": 4},
    "mix": {"local": 2, "external": 2},
    "telemetry": {"worth_every_rounds": 1},
}


def _events(out: Path, kind: type[T]) -> list[T]:
    events = map(decode, (out / METRICS_FILE).read_bytes().splitlines())
    return [event for event in events if isinstance(event, kind)]


def test_a_peer_learns_from_another_that_teaches(tmp_path: Path) -> None:
    folders = home, lab = tmp_path / "home", tmp_path / "lab"
    lab.mkdir()
    identity = Identity.load_or_create(lab / IDENTITY_FILE)
    identity.close()
    own = (
        {"learn_from": [identity.peer_id], "distill": {"groups": 4, "untested": 1}},
        {"teach": {"passes_per_min": 1e6}},
    )
    members = [
        Member(
            load_config(None, {**COMMON, **each, "out": str(out), "name": out.name, "rounds": 4, "seed": seed}).config
        )
        for seed, (out, each) in enumerate(zip(folders, own, strict=True))
    ]
    turns = Turns()
    take_turns([MemoryRun(members, lambda: False, turns)], turns, lambda: False)
    notes = [[each.text for each in _events(out, NoteEvent)] for out in folders]
    assert f"learns from {identity.peer_id}: asks about 4 groups a round" in notes[0]
    assert "teaches every member that asks: 1e+06 forward passes a minute" in notes[1]
    student, teacher = (_events(out, RoundEvent) for out in folders)
    assert student[-1].counters["distill/answered"] > 0
    assert teacher[-1].counters["teach/texts"] == 4 * teacher[-1].counters["teach/taught"] > 0
    taught = [round for round in student if round.figures["distill/groups"] > 0]
    assert taught and all(round.figures["distill/left_out"] == 0 for round in taught)
    (checkpoint,) = (home / "checkpoints").glob("round-*4")
    saved = msgspec.msgpack.decode((checkpoint / STATE).read_bytes(), type=TrainingState)
    assert list(saved.teachers) == [identity.peer_id] and 0 <= saved.teachers[identity.peer_id].age <= 4
    # A round's own figures leave what teachers say out.
    assert all(round.groups["used_local"] <= 2 * round.round for round in student)
    assert all("distill/groups" not in round.figures for round in teacher)
