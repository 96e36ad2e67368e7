"""What a node measured about others' groups, as people see it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from swarm.telemetry.benefit.verdict import Verdict, by_estimate, missing, standing_of
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.live import LiveView, plain_line
from swarm.telemetry.records import RoundEvent, decode, encode
from swarm.types import Estimate, SwarmWorth

from . import synthetic
from .test_live import NOW, rendered

HELPS = SwarmWorth(
    60, Estimate(1.52, 1.21, 1.9), Estimate(1.63, 1.2, 2.14), {"12D3KooWpeer2": Estimate(0.1, -0.2, 0.4)}
)
HURTS = SwarmWorth(60, Estimate(0.5, 0.3, 0.7), Estimate(-0.2, -0.4, 0.1))
UNCLEAR = SwarmWorth(60, Estimate(1.0, 0.8, 1.2), Estimate(1.0, 0.7, 1.3))
OPEN = SwarmWorth(20, help=Estimate(1.4, 0.7, 2.2))
UNKNOWN = SwarmWorth(3, compared=2, rounds_left=42)


def _histories(folder: Path, *found: SwarmWorth | None) -> list[PeerHistory]:
    """One node with each of these at its last round."""
    histories = []
    for number, worth in enumerate(found, 1):
        events = synthetic.peer_events(number, 20, 20, end=None)
        last = events[-2]
        assert isinstance(last, RoundEvent)
        events[-2] = replace(last, worth=worth)
        histories.append(PeerHistory.read(synthetic.write(folder / f"peer-{number}", events)))
    return histories


def _told(folder: Path, *found: SwarmWorth | None) -> Verdict:
    return by_estimate(_histories(folder, *found))


def test_the_verdict_follows_the_intervals_of_both_clocks(tmp_path: Path) -> None:
    unknown = _told(tmp_path / "1", HELPS)
    assert unknown.line == "Mixed: per round ×1.5 (1.2 to 1.9), in the same time not known yet"
    helps = _told(tmp_path / "2", replace(HELPS, time_alone=0.9))
    assert helps.line == "The swarm helps: per round ×1.5 (1.2 to 1.9), in the same time ×1.4 (1.1 to 1.7)"
    assert helps.why == (
        "More per round, more in the same time. A group of others is worth 1.6 (1.2 to 2.1) of its own."
    )
    slower = _told(tmp_path / "3", replace(HELPS, time_alone=0.5))
    assert (slower.standing, slower.in_time) == ("mixed", "×0.8 (0.6 to 0.9)")
    assert slower.why.startswith("More per round; in the same time, an estimate that low says nothing.")
    assert _told(tmp_path / "4", HURTS).standing == "hurts"
    assert _told(tmp_path / "5", UNCLEAR).line.startswith("No clear difference: per round ×1.0")
    costly = _told(tmp_path / "7", replace(UNCLEAR, time_alone=0.5))
    assert (costly.standing, costly.in_time) == ("open", "×0.5 (0.4 to 0.6)")
    assert costly.line.startswith("Not clear, as estimates are mostly too low: per round ×1.0 (0.8 to 1.2)")
    assert _told(tmp_path / "8", replace(HURTS, time_alone=0.5)).standing == "hurts"
    assert _told(tmp_path / "6", OPEN).line.startswith("Not clear yet: per round ×1.4 (0.7 to 2.2)")


CLOCK_VALUES = [Estimate(0.8, 0.6, 0.9), Estimate(1.0, 0.8, 1.2), Estimate(1.5, 1.2, 1.9)]


@pytest.mark.parametrize("per_round", CLOCK_VALUES)
@pytest.mark.parametrize("clock", CLOCK_VALUES)
@pytest.mark.parametrize("processor", [None, *CLOCK_VALUES])
def test_green_needs_every_clock(per_round: Estimate, clock: Estimate, processor: Estimate | None) -> None:
    clocks = [clock] if processor is None else [clock, processor]
    standing = standing_of(per_round, clocks)
    assert (standing == "helps") == (per_round.high >= 1 and all(each.low > 1 for each in clocks))
    if any(each.high < 1 for each in clocks):
        assert standing in ("mixed", "hurts")


def test_what_is_not_known_says_when_it_will_be_and_how_far_the_node_came(tmp_path: Path) -> None:
    assert missing(UNKNOWN) == "known in about 42 more rounds if they go on like this"
    assert missing(UNKNOWN, 10.0) == "known in about 42 more rounds (7 min) if they go on like this"
    assert missing(SwarmWorth(3)) == "0 of 16 measured rounds with own and others' groups"
    assert "do not agree yet" in missing(SwarmWorth(128, compared=123))
    told = _told(tmp_path, UNKNOWN)
    assert told.line.startswith("Not known yet whether the swarm helps: known in about 42 more rounds")
    assert "→" in told.why and "of the groups trained on came from others" in told.why


def test_a_node_that_received_nothing_is_told_its_own_progress(tmp_path: Path) -> None:
    history = PeerHistory.read(synthetic.write(tmp_path, synthetic.peer_events(1, 120, 120, alone=True)))
    told = by_estimate([history])
    assert told.standing == "open"
    assert told.line.startswith("Reward 0.1") and told.line.endswith("in 120 rounds.")


def test_a_metrics_file_keeps_it() -> None:
    event = RoundEvent(round=1, reward=0.5, groups=synthetic.Ledger().snapshot(), worth=HELPS)
    assert decode(encode(event)) == event


def test_the_live_view_answers_in_one_line(tmp_path: Path) -> None:
    alone = _histories(tmp_path / "one", HELPS)
    assert by_estimate(alone).line in rendered(LiveView(alone, clock=lambda: NOW), 140)
    assert by_estimate(alone).line in plain_line(alone[0])
    several = _histories(tmp_path / "three", HELPS, None, UNKNOWN)
    lines = rendered(LiveView(several, clock=lambda: NOW), 140)
    assert "Mixed: per round ×1.5, in the same time not known yet" in lines
    assert any(line.startswith("peer-1: Mixed: per round ×1.5 (1.2 to 1.9)") for line in lines)
    assert "not known" not in plain_line(several[1])
