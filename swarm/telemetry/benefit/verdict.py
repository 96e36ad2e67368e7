"""The verdict on "does the swarm help?", the same in the terminal, the report and the page.

Two clocks decide: a node may learn more per round and less in the same time, because a round with others takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from swarm.sanitize import clean
from swarm.telemetry.alerts import duration
from swarm.telemetry.benefit.control import Benefit, InSeconds, benefit, is_enough
from swarm.telemetry.history import FIRST_ROUNDS, PeerHistory, mean, reward_window
from swarm.types import Estimate, SwarmWorth
from swarm.types.runs import NEEDED_ROUNDS

Standing = Literal["helps", "mixed", "hurts", "open"]
"""`mixed`: more per round, but not clearly more in the same time."""

CLEAR_WIDTH = 1.0
"""An interval around 1 that is wider leaves the answer open."""
UNKNOWN = "Not known yet whether the swarm helps"
WORDS: dict[Standing, str] = {
    "helps": "The swarm helps",
    "mixed": "Mixed",
    "hurts": "The swarm does not help",
    "open": "No clear difference",
}
BY_CONTROL = (
    "Rewards of the nodes over those of the control, a node that learns the same questions alone. 95% intervals over "
    "nodes and tasks."
)
BY_ESTIMATE = (
    "Progress of the updates over that of updates on the node's own groups alone: its own estimate over its last "
    "rounds, from the gradients, with 95% intervals."
)
BY_PROGRESS = "Mean rewards of the first and the last rounds."
TOO_LOW = "Not clear, as estimates are mostly too low"
MAX_DEMO_CHARS = 40
NOT_KNOWN = "not known yet"
HOW_LONG = (
    f"A node estimates it from {NEEDED_ROUNDS} measured rounds with own groups and others' on; it measures every other "
    "round."
)


def missing(worth: SwarmWorth, seconds_per_round: float | None = None) -> str:
    """When an estimate will be known, or what it takes."""
    if worth.rounds_left is not None:
        took = "" if seconds_per_round is None else f" ({duration(worth.rounds_left * seconds_per_round)})"
        rounds = f"{worth.rounds_left:,} more round{'s' * (worth.rounds_left != 1)}"
        return f"known in about {rounds}{took} if they go on like this"
    if worth.compared < NEEDED_ROUNDS:
        return f"{worth.compared} of {NEEDED_ROUNDS} measured rounds with own and others' groups"
    return (
        "its own groups do not agree yet on a direction to learn in; more questions per round "
        "(generation.questions_per_round) tell sooner, and where the reward hardly changes it stays open"
    )


def ratio(value: float) -> str:
    """`×1.4`."""
    return f"×{value:.1f}"


def with_interval(found: Estimate | None) -> str:
    """A ratio with its 95% interval."""
    return NOT_KNOWN if found is None else f"×{in_own_groups(found)}"


def in_own_groups(found: Estimate) -> str:
    """Worth of a group of others with its 95% interval."""
    return f"{found.value:z.1f} ({found.low:z.1f} to {found.high:z.1f})"


class Verdict(Struct, frozen=True):
    """One answer with both clocks."""

    standing: Standing
    word: str
    """The answer in a few words."""
    why: str
    """The meaning, in a line."""
    how: str
    """The method."""
    per_round: str = ""
    """Ratio per round with its interval; empty where there is none."""
    in_time: str = ""
    """Ratio in the same time."""
    in_processor_time: str = ""
    """Ratio for the same processor time, where that decides."""

    @property
    def line(self) -> str:
        """The answer in one line of a terminal, the important words first."""
        if not self.per_round:
            return self.word
        processor = f", for the same processor time {self.in_processor_time}" if self.in_processor_time else ""
        return f"{self.word}: per round {self.per_round}, in the same time {self.in_time}{processor}"

    @property
    def words(self) -> str:
        """The whole answer."""
        return f"{self.line.removesuffix('.')}. {self.why}".strip()


def verdict(nodes: Sequence[PeerHistory]) -> Verdict:
    """The verdict by the control of each demo if there is one, else by the nodes' own estimates, else by progress."""
    return by_controls(nodes) or by_estimate([node for node in nodes if not node.control])


def by_controls(nodes: Sequence[PeerHistory]) -> Verdict | None:
    """Gains over the control of each demo; None without a control, or while nothing is known."""
    controls = [node for node in nodes if node.control]
    found = [(control, by_control(gain)) for control in controls if (gain := _gain(control, nodes)) is not None]
    if not found:
        return None
    if len(controls) == 1:
        return found[0][1]
    why = " ".join(f"{clean(control.demo.name, MAX_DEMO_CHARS)}: {verdict.words}" for control, verdict in found)
    alike = len({verdict.standing for _, verdict in found}) == 1
    first = found[0][1]
    return Verdict(first.standing if alike else "open", first.word if alike else "The demos differ", why, BY_CONTROL)


def _gain(control: PeerHistory, nodes: Sequence[PeerHistory]) -> Benefit | None:
    """None where one of the demo's nodes has forgotten its earlier rewards."""
    others = [node for node in nodes if not node.control and node.demo == control.demo]
    return None if any(node.has_forgotten for node in (control, *others)) else benefit(others, control)


def by_control(found: Benefit) -> Verdict:
    """Gain of the nodes over the control of their demo."""
    per_round = Estimate(found["cumulative_ratio"], found["low"], found["high"])
    clock, processor = found["in_time"], found["in_processor_time"]
    clocks = [_estimate(each) for each in (clock, processor) if each is not None]
    reached = (
        f"Reward of the last rounds: {found['together']:.2f} with others, {found['alone']:.2f} alone. "
        f"{found['rounds']} round{'s' * (found['rounds'] != 1)} took {found['seconds_together']:.0f} s with others and "
        f"{found['seconds_alone']:.0f} s alone."
    )
    if not is_enough(found):
        few = f"The lone node has earned too few rewards to rely on this: {found['alone_rewards']:.3g}."
        return Verdict("open", "Too early to say", f"{few} {reached}", BY_CONTROL, *_both(per_round, clock))
    standing = standing_of(per_round, clocks)
    shared = "" if processor is None else (
        " All nodes share this machine's processor; for the same processor time: "
        f"{with_interval(_estimate(processor))}."
    )  # fmt: skip
    why = f"{_compared(per_round, clocks[:1] if clock else [])} {reached}{shared}"
    decides = processor is not None and standing != standing_of(per_round, clocks[:1])
    in_processor_time = with_interval(clocks[-1]) if decides else ""
    word = _word(standing, per_round, clocks)
    return Verdict(standing, word, why, BY_CONTROL, *_both(per_round, clock), in_processor_time)


def by_estimate(nodes: Sequence[PeerHistory]) -> Verdict:
    """The nodes' own estimates; their progress where there are none."""
    learner = next((node for node in nodes if node.role == "learner"), None)
    if learner is not None:
        return _following(learner)
    measured = [(node.name, node.worth) for node in nodes if node.worth is not None]
    known = [(name, found) for name, found in measured if found.help is not None]
    if len(known) == 1 and len(nodes) == 1:
        return _of_one(known[0][1])
    if known:
        return _of_several(known, len(nodes))
    if measured and any(node.groups["received"] for node in nodes):
        pairs = [(found, node.seconds_per_round()) for node in nodes if (found := node.worth) is not None]
        needed = missing(*max(pairs, key=lambda pair: math.inf if pair[0].rounds_left is None else pair[0].rounds_left))
        return Verdict("open", f"{UNKNOWN}: {needed}", progress(nodes), HOW_LONG)
    return Verdict("open", progress(nodes) or UNKNOWN, "", BY_PROGRESS)


def standing_of(per_round: Estimate, clocks: Sequence[Estimate]) -> Standing:
    """Green needs every clock; an interval wholly below 1 by a clock never helps."""
    if any(each.high < 1 for each in clocks):
        return "mixed" if per_round.low > 1 else "hurts"
    if clocks and all(each.low > 1 for each in clocks) and per_round.high >= 1:
        return "helps"
    if per_round.low > 1:
        return "mixed"
    return "hurts" if per_round.high < 1 else "open"


def progress(nodes: Sequence[PeerHistory]) -> str:
    """Rewards at first and now, and the fraction of groups from others; empty before a reward."""
    trained = [node for node in nodes if node.role != "worker"]
    first = mean(node.early_reward(_few(node)) for node in trained)
    last = mean(node.recent_reward(_few(node)) for node in trained)
    if first is None or last is None:
        return ""
    rounds = max(node.latest.round for node in trained if node.latest is not None)
    used = sum(node.groups["used_external"] for node in trained)
    total = used + sum(node.groups["used_local"] for node in trained)
    others = f"; {used / total:.0%} of the groups trained on came from others" if used else ""
    return f"Reward {first:.3f} → {last:.3f} in {rounds:,} round{'s' * (rounds != 1)}{others}."


def _few(node: PeerHistory) -> int:
    return min(FIRST_ROUNDS, reward_window(len(node.rounds)))


def _of_one(found: SwarmWorth) -> Verdict:
    assert found.help is not None
    clocks = [in_time] if (in_time := found.help_in_time) is not None else []
    standing, compared = standing_of(found.help, clocks), _compared(found.help, clocks)
    word = _word(standing, found.help, clocks)
    if found.help.high >= 1 and any(each.high < 1 for each in clocks):  # the gain a round is mostly too low
        compared = f"{_than(found.help).capitalize()} per round; in the same time, an estimate that low says nothing."
        standing, word = (standing, word) if standing == "mixed" else ("open", TOO_LOW)
    each = "" if found.each is None else f" A group of others is worth {in_own_groups(found.each)} of its own."
    return Verdict(
        standing,
        word,
        f"{compared}{each}",
        BY_ESTIMATE,
        with_interval(found.help),
        with_interval(in_time),
    )


def _of_several(known: Sequence[tuple[str, SwarmWorth]], num_nodes: int) -> Verdict:
    each = [_of_one(found) for _, found in known]
    standings = {one.standing for one in each}
    standing: Standing = standings.pop() if len(standings) == 1 else "open"
    word = each[0].word if len({one.word for one in each}) == 1 else "The nodes differ"
    why = "; ".join(f"{name}: {one.line}" for (name, _), one in zip(known, each, strict=True))
    unknown = num_nodes - len(known)
    more = f" Not known yet of {unknown} more." if unknown else ""
    return Verdict(
        standing,
        word,
        f"{why}.{more}",
        BY_ESTIMATE,
        _range([found.help for _, found in known]),
        _range([found.help_in_time for _, found in known]),
    )


def _following(learner: PeerHistory) -> Verdict:
    figures = learner.latest.learning if learner.latest is not None else None
    assert figures is not None  # its role says so
    waits = "" if figures.bubble is None else f"; the learner waits {figures.bubble:.0%} of its time"
    word = f"{figures.active} of {figures.workers} workers sample {figures.rate:.1f} completions per second{waits}"
    how = "A learner trains on its workers' groups only: there is nothing to compare with."
    return Verdict("open", word, progress([learner]), how)


def _estimate(found: InSeconds) -> Estimate:
    return Estimate(found["ratio"], found["low"], found["high"])


def _both(per_round: Estimate, clock: InSeconds | None) -> tuple[str, str]:
    return with_interval(per_round), with_interval(None if clock is None else _estimate(clock))


def _word(standing: Standing, per_round: Estimate, clocks: Sequence[Estimate]) -> str:
    wide = any(each.high - each.low >= CLEAR_WIDTH for each in (per_round, *clocks))
    return "Not clear yet" if standing == "open" and wide else WORDS[standing]


def _compared(per_round: Estimate, clocks: Sequence[Estimate]) -> str:
    """Both ratios in words, e.g. "More per round, less in the same time."."""
    found = f"{_than(per_round)} per round, "
    return (found + (f"{_than(clocks[0])} in the same time." if clocks else "not known in the same time.")).capitalize()


def _than(found: Estimate) -> str:
    if found.low > 1:
        return "more"
    if found.high < 1:
        return "less"
    return "about as much" if found.high - found.low < CLEAR_WIDTH else "not clear"


def _range(found: Sequence[Estimate | None]) -> str:
    values = [each.value for each in found if each is not None]
    if not values:
        return NOT_KNOWN
    low, high = ratio(min(values)), ratio(max(values))
    return low if low == high else f"{low} to {high}"
