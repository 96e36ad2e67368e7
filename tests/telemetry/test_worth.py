"""What a node measured about others' groups, as people see it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from swarm.telemetry.history import PeerHistory
from swarm.telemetry.live import LiveView, plain_line
from swarm.telemetry.records import RoundEvent, decode, encode
from swarm.telemetry.report import page
from swarm.telemetry.summary import swarm_summary
from swarm.telemetry.worth import in_words, rewards_ratio
from swarm.types import Estimate, SwarmWorth

from . import synthetic
from .test_live import NOW, rendered

HELPS = SwarmWorth(
    60, Estimate(1.52, 1.21, 1.9), Estimate(1.63, 1.2, 2.14), {"12D3KooWpeer2": Estimate(0.1, -0.2, 0.4)}
)
HURTS = SwarmWorth(60, Estimate(0.5, 0.3, 0.7), Estimate(-0.2, -0.4, 0.1))
UNCLEAR = SwarmWorth(60, Estimate(1.0, 0.8, 1.2), Estimate(1.0, 0.7, 1.3))
OPEN = SwarmWorth(20, help=Estimate(1.4, 0.7, 2.2))
UNKNOWN = SwarmWorth(3, compared=2)


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


def test_words_follow_the_interval_not_the_value() -> None:
    assert in_words(HELPS) == (
        "the swarm helps you: 1.5 (1.2 to 1.9) times the progress alone; "
        "others' groups are worth 1.6 (1.2 to 2.1) of your own each"
    )
    assert in_words(replace(HELPS, time_alone=0.6)).startswith(
        "the swarm helps you: 1.5 (1.2 to 1.9) times the progress alone by round, 0.9 (0.7 to 1.1) by the clock; others"
    )
    assert "the swarm does not help you: 0.5 (0.3 to 0.7)" in in_words(HURTS)
    assert "the swarm makes no clear difference to you" in in_words(UNCLEAR)
    assert "whether the swarm helps you is not clear yet: 1.4 (0.7 to 2.2)" in in_words(OPEN)
    assert in_words(UNKNOWN).endswith("not known yet (3 rounds measured, 2 of them with own and others' groups)")


def test_a_metrics_file_keeps_it() -> None:
    event = RoundEvent(round=1, reward=0.5, groups=synthetic.Ledger().snapshot(), worth=HELPS)
    assert decode(encode(event)) == event


def test_the_live_view_answers_in_one_line(tmp_path: Path) -> None:
    alone = _histories(tmp_path / "one", HELPS)
    assert in_words(HELPS) in rendered(LiveView(alone, clock=lambda: NOW), 140)
    assert in_words(HELPS) in plain_line(alone[0])
    several = _histories(tmp_path / "three", HELPS, None, UNKNOWN)
    expected = "progress with others over progress alone: peer-1 1.5 (1.2 to 1.9), peer-3 not known yet"
    assert expected in rendered(LiveView(several, clock=lambda: NOW), 140)
    assert "not known" not in plain_line(several[1])


def test_the_report_answers_first_and_lists_senders_by_name(tmp_path: Path) -> None:
    alone = _histories(tmp_path / "one", HELPS)
    assert f"The{in_words(HELPS)[3:]}".replace("'", "&#x27;") in page(alone, swarm_summary(alone, {}, {}))
    several = _histories(tmp_path / "two", replace(HELPS, time_alone=0.5), HURTS)
    text = page(several, swarm_summary(several, {}, {}))
    assert "<td>1.5 (1.2 to 1.9)</td><td>0.8 (0.6 to 0.9)</td>" in text.replace(' class="text"', "")
    assert "peer-2 0.1 (-0.2 to 0.4)" in text
    nothing = _histories(tmp_path / "three", None)
    assert "for a peer" not in page(nothing, swarm_summary(nothing, {}, {}))


def test_the_same_progress_gains_more_where_rewards_start_at_nothing() -> None:
    """The exact ratio of two straight lines, one with 1.5 times the slope; a reward at the start dilutes it."""
    rounds = np.arange(1000.0)
    assert rewards_ratio(list(rounds), 1.5) == pytest.approx(1.5, rel=1e-3)
    start = 2_000.0
    exactly = (start + rounds).sum() / (start + rounds / 1.5).sum()
    assert rewards_ratio(list(start + rounds), 1.5) == pytest.approx(exactly)
    assert rewards_ratio(list(rounds**2), 1.5) == pytest.approx(1.5**2, rel=1e-3)


def test_the_rewards_ratio_is_on_the_side_of_1_where_help_is() -> None:
    falling = list(np.linspace(0.3, 0.1, 50))
    assert rewards_ratio(falling, 0.6) == 0.6
    assert rewards_ratio(falling, 1.4) == 1
    assert rewards_ratio(falling, -0.5) == 0
    with pytest.raises(ValueError, match="above 0"):
        rewards_ratio([0.0, 0.0], 1.2)
