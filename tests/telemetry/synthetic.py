"""Made-up but consistent metrics files: every ledger balances, rewards rise, some peers stumble."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import (
    METRICS_FILE,
    CheckpointEvent,
    EndEvent,
    EvaluationEvent,
    Event,
    NoteEvent,
    RoundEvent,
    StartEvent,
    SuiteEvent,
    SuiteScores,
    encode,
)
from swarm.types import Estimate

EPOCH = 1_780_000_000.0
LOCAL = EXTERNAL = 4
TASKS = ("gcd", "lcm", "products")


def peer_events(
    index: int = 1,
    num_rounds: int = 50,
    target: int | None = 50,
    num_peers: int = 4,
    end: str | None = "done",
    alone: bool = False,
    seed: int = 0,
) -> list[Event]:
    """Events of one undisturbed process."""
    rng = np.random.default_rng([seed, index])
    ledger = Ledger()
    time = EPOCH
    events: list[Event] = [
        StartEvent(
            time=time,
            peer_id=f"12D3KooWpeer{index}",
            run_id="demo-abc",
            name=f"peer-{index}",
            rounds=target,
            config={"mix": {"local": LOCAL, "external": EXTERNAL}},
            versions={"swarm": "0.1.0"},
        ),
        evaluation(time + 1, 0, 0.11 + 0.01 * index),
    ]
    pool = pending = tokens = 0
    for number in range(1, num_rounds + 1):
        time += 0.5
        reward = float(np.clip(0.1 + 0.2 * (1 - math.exp(-number / 60)) + rng.normal(0, 0.03), 0, 1))
        ledger.generated(8)
        signal = int(rng.integers(2, 9))
        ledger.local("zero_advantage", 8 - signal)
        used = min(LOCAL, signal)
        ledger.local("not_sampled", signal - used)
        ledger.used_local(used)
        arrived = 0 if alone else int(rng.integers(0, 3 * num_peers))
        if not alone:
            ledger.shared(8)
        ledger.received(arrived)
        graded, pending = pending, arrived
        zero = int(rng.binomial(graded, 0.4))
        ledger.dropped("zero_advantage", zero)
        refused = int(rng.binomial(graded - zero, 0.05))
        ledger.dropped("unknown_task", refused)
        pool += graded - zero - refused
        external = min(EXTERNAL, pool)
        pool -= external
        ledger.used_external(external)
        stale = int(rng.binomial(pool, 0.2))
        ledger.dropped("stale", stale)
        pool -= stale
        assert ledger.unaccounted(pool, pending) == 0
        tokens += 900
        events.append(
            RoundEvent(
                time=time,
                round=number,
                wall_s=0.5 * number,
                reward=reward,
                groups=ledger.snapshot(),
                local_shortfall=LOCAL - used,
                external_shortfall=EXTERNAL - external,
                pool=pool,
                pending=pending,
                peers=0 if alone else num_peers - 1,
                alone_since=EPOCH + 2 if alone else None,
                tokens_generated=tokens,
                tokens_per_s=1800.0,
                figures={"loss": 0.01, "grad_norm": 0.4, "gepo/outside_clip_ratio": 0.02},
                timings={"generate": 0.2, "grade": 0.05, "mix": 0.001, "update": 0.2},
            )
        )
        if number % 20 == 0:
            events.append(CheckpointEvent(time=time, round=number, path=f"checkpoints/{number}"))
    if end is not None:
        if end == "done":
            events.append(evaluation(time + 1, num_rounds, 0.25 + 0.01 * index))
        events.append(EndEvent(time=time + 1, round=num_rounds, reason=end))  # type: ignore[arg-type]
    return events


def suite(time: float, number: int, value: float, name: str = "arithmetic") -> SuiteEvent:
    """A suite of two tasks, with k = 4."""
    figures = {name: Estimate(value, value - 0.05, value + 0.05) for name in ("avg@4", "pass@1", "pass@4")}
    whole, part = SuiteScores(60, figures), SuiteScores(30, figures)
    return SuiteEvent(time=time, round=number, suite=name, k=4, scores=whole, tasks={"gcd": part, "lcm": part})


def evaluation(time: float, number: int, accuracy: float) -> EvaluationEvent:
    asked = 40
    correct = round(asked * accuracy)
    return EvaluationEvent(
        time=time,
        round=number,
        accuracy=correct / asked,
        num_questions=asked * len(TASKS),
        tasks=dict.fromkeys(TASKS, (correct, asked)),
    )


def killed_and_resumed(index: int = 1, num_rounds: int = 50, checkpoint: int = 20, lost: int = 30) -> list[Event]:
    """A process killed after `lost` rounds, and one that goes on from `checkpoint`."""
    events = peer_events(index, num_rounds, num_rounds)
    start = events[0]
    assert isinstance(start, StartEvent)
    first = [event for event in events if not isinstance(event, RoundEvent | EndEvent) or event.round <= lost]
    first = [event for event in first if not isinstance(event, EvaluationEvent | EndEvent) or event.round == 0]
    first = [event for event in first if not isinstance(event, CheckpointEvent) or event.round <= lost]
    again = StartEvent(
        time=start.time + 100,
        peer_id=start.peer_id,
        run_id=start.run_id,
        name=start.name,
        rounds=start.rounds,
        resumed_from=checkpoint,
    )
    rest: list[Event] = [again, NoteEvent(time=again.time, text="resumed after SIGKILL", level="warning")]
    rest += [event for event in events if not isinstance(event, NoteEvent | StartEvent) and event.round > checkpoint]
    return first + rest


def write(folder: Path, events: list[Event], torn: bytes = b"") -> Path:
    """The events as a node's metrics file, with a torn last line where wanted."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / METRICS_FILE
    path.write_bytes(b"".join(encode(event) for event in events) + torn)
    return path


def swarm(folder: Path, num_peers: int = 4, num_rounds: int = 50) -> list[Path]:
    """One file per peer."""
    return [
        write(folder / f"peer-{index}", peer_events(index, num_rounds, num_rounds, num_peers))
        for index in range(1, num_peers + 1)
    ]
