"""Directories of nodes as a page finds them: made up, with every figure, and with what strangers may say."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import structs

from swarm.net.roster import PeerRow, Roster, write_roster
from swarm.telemetry.records import (
    EvaluationEvent,
    Event,
    MixDecision,
    NoteEvent,
    RoundEvent,
    StartEvent,
)
from swarm.telemetry.samples import SAMPLES_FILE, SampledCompletion, SampleRecord, Turn, encode
from swarm.types import Estimate, MemberSummary, SwarmWorth
from swarm.types.media import Image
from swarm.types.thumbnails import thumbnail
from tests.telemetry.synthetic import TASKS, peer_events, write

DEADLINE_S = 120.0
SCRIPT = "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
BIDI = "\u202eevil\u2066\ufeff\x1b[31m\x07"
LONG = "n" * 100_000
HOSTILE = (SCRIPT, BIDI, LONG, "javascript:window.attacked=1", "`${window.attacked=1}`", "</script>&quot;'\"")


def events(index: int, num_rounds: int, shift_s: float, alone: bool = False, name: str | None = None) -> list[Event]:
    """A process's events that ended `shift_s` after those of `peer_events`, with all figures."""
    found: list[Event] = []
    counters = {"network/published_bytes": 0, "network/received_bytes": 0}
    for event in peer_events(index, num_rounds, None, 4, None, alone, seed=7):
        event = structs.replace(event, time=event.time + shift_s)
        if isinstance(event, StartEvent) and name is not None:
            event = structs.replace(event, name=name)
        if isinstance(event, RoundEvent):
            counters = {key: value + 4_000 + 300 * index for key, value in counters.items()}
            event = structs.replace(event, counters=counters, alone_since=None, **_figures(event.round, index, alone))
        found.append(event)
    return found


def _figures(number: int, index: int, alone: bool) -> dict[str, object]:
    rng = np.random.default_rng([number, index])
    noise = float(rng.normal(0, 0.02))
    reward = max(0.0, 0.3 * (1 - math.exp(-number / 80)) + noise)
    own = max(0, min(4, int(4 * reward + 1)))
    return {
        "reward": reward,
        "figures": {
            "entropy": 0.4 * math.exp(-number / 400) + 0.1 + noise / 5,
            "grad_norm": 0.5 + noise,
            "sampling/behaviour_kl": 0.002 + abs(noise) / 100,
            "completions/mean_length": 12 - number / 100 + noise,
            "completions/clipped_ratio": 0.02,
            "sampling/lag_mean": 0.5,
            "sampling/lag_max": 1.0 + number % 2,
            "frac_reward_zero_std": max(0.0, 0.9 - reward * 2),
        },
        "tasks": {task: (8 * reward * (0.5 + place / 2), 8) for place, task in enumerate(TASKS)},
        "mix": MixDecision("auto", own, 4, f"{own} of 8 own groups have signal"),
        "worth": None if alone else SwarmWorth(
            number,
            Estimate(1.5, 1.2, 1.9),
            Estimate(1.6, 1.2, 2.1),
            {f"12D3KooWpeer{each}": Estimate(1.0 + each / 4, 0.8, 2.2) for each in range(1, 5) if each != index},
            time_alone=0.6,
        ),
    }  # fmt: skip


def roster(index: int, now: float, others: Sequence[PeerRow]) -> Roster:
    return Roster(time=now, run_id="demo-abc", self_id=f"12D3KooWpeer{index}", peers=tuple(others))


def row(index: int, used: int, **other: object) -> PeerRow:
    """A peer as another knows it."""
    return structs.replace(
        PeerRow(
            peer_id=f"12D3KooWpeer{index}",
            model="tiny-sparse",
            tasks=TASKS,
            role="peer",
            version="0.1.0",
            connected=True,
            received=2 * used + 5,
            used=used,
            dropped={"zero_advantage": used // 2, "pool_full": 5},
            bytes=4_000 * used,
            reputation=0.9,
            name=f"peer-{index}",
            expires_at=2e10,
        ),
        **other,
    )


def swarm(folder: Path, now: float, num_nodes: int = 4, num_rounds: int = 200, control: bool = True) -> Path:
    """A demo's directory whose nodes have just finished a round."""
    for index in range(1, num_nodes + 1):
        home = folder / f"peer-{index}"
        write(home, ending_at(now, events(index, num_rounds, 0.0)))
        others = [row(other, 40 * other + index) for other in range(1, num_nodes + 1) if other != index]
        bootstrap = row(99, 0, received=0, role="bootstrap", name="", model="", dropped={}, bytes=0)
        write_roster(home, roster(index, now, [*others, bootstrap]))
        samples(home, now)
    if control:
        (folder / "alone.yaml").write_text("")
        own = ending_at(now, events(9, num_rounds, 0.0, alone=True, name="alone"))
        write(folder / "alone", [_worse(event) for event in own])
    return folder


def _worse(event: Event) -> Event:
    if not isinstance(event, RoundEvent):
        return event
    tasks = {task: (0.6 * rewards, count) for task, (rewards, count) in event.tasks.items()}
    return structs.replace(event, reward=0.6 * (event.reward or 0.0), tasks=tasks)


def ending_at(now: float, found: Sequence[Event]) -> list[Event]:
    """The same events, the last of which is a second ago."""
    shift_s = now - 1 - max(event.time for event in found)
    return [structs.replace(event, time=event.time + shift_s) for event in found]


def hostile(folder: Path, now: float) -> Path:
    """A node whose peers call themselves and say whatever might harm a browser."""
    home = folder / "peer-1"
    said = [NoteEvent(time=now, text=text, level="warning") for text in HOSTILE]
    tasks = EvaluationEvent(time=now, round=0, accuracy=0.5, num_questions=4, tasks=dict.fromkeys(HOSTILE, (1, 4)))
    own = [structs.replace(event, tasks=dict.fromkeys(HOSTILE, (1.0, 4)), mix=MixDecision(SCRIPT, 4, 4, SCRIPT))
           if isinstance(event, RoundEvent) else event for event in events(1, 30, 0.0, name=SCRIPT)]  # fmt: skip
    write(home, [*ending_at(now, own), tasks, *said])
    rows = [
        row(
            10 + place,
            10,
            name=text,
            model=text,
            role=text,
            version=text,
            dropped={text: 3},
            tasks=(text,),
            summary=MemberSummary(rounds=2**63 - 1, given=2**63 - 1, correct=2**63 - 1, asked=2**63 - 1),
        )
        for place, text in enumerate(HOSTILE)
    ]
    write_roster(home, roster(1, now, rows))
    samples(home, now, HOSTILE)
    return folder


def crowd(folder: Path, now: float, num_peers: int = 200) -> Path:
    """A node that knows many."""
    home = folder / "peer-1"
    write(home, ending_at(now, events(1, 300, 0.0)))
    rows = [
        row(100 + place, 400 // (place + 1), connected=place % 3 > 0,
            quarantined_until=now + 99 if place % 50 == 7 else None, name=f"member-{place}",
            summary=MemberSummary(2_000 - place, 4 * place, 3 * place, max(0, 200 - place), 256, 250))
        for place in range(num_peers)
    ]  # fmt: skip
    write_roster(home, roster(1, now, rows))
    samples(home, now)
    return folder


PICTURE = Image(32, 32, bytes([220, 40, 40]) * 32 * 32)


def samples(home: Path, now: float, hostile: Sequence[str] = ()) -> None:
    """Own samples and others', of all outcomes; every text in them is one of these, if there are any."""
    outcomes = ("used_local", "used_external", "no_signal", "unused", "refused")
    lines = []
    for place, outcome in enumerate(outcomes):
        for text in hostile or ("The gcd is 6, so <answer>6</answer>",):
            record = SampleRecord(
                time=now,
                round=30,
                outcome=outcome,
                reason="pool_full" if outcome == "refused" else "",
                task=text if hostile else "gcd",
                question=f"Find the greatest common divisor of 18 and 24. {text[:2_000]}",
                sender=f"12D3KooWpeer{1 if outcome in ('used_local', 'unused') else 2}",
                own=outcome in ("used_local", "unused"),
                policy=text[:60],
                version=place,
                completions=(
                    SampledCompletion((Turn("policy", text, len(text)),), 1.0, None, "stop", {text[:60]: 1.0}),
                    SampledCompletion((Turn("policy", "<answer>7</answer>", 18),), 0.0, 1.0, text[:60]),
                ),
                num_completions=8,
                pictures=(text.encode() if hostile else thumbnail(PICTURE),),
            )
            lines.append(encode(record))
    (home / SAMPLES_FILE).write_bytes(b"".join(lines))


def until(happened: Callable[[], object], what: str) -> None:
    """Wait for a condition, however slow the machine is."""
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.05)
