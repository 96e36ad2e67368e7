"""The mix of every round: asks the policy, draws, and remembers what the policy needs. Every policy has the same draw.

rounds so far, candidates ──▶ policy ──▶ I, J, weights ──▶ draw: fair parts, screen ──▶ update ──▶ record
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from numbers import Integral
from statistics import fmean
from typing import Literal, Protocol, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from swarm.errors import ConfigError
from swarm.kinds import custom_code
from swarm.received.authors import AuthorOf, authors_of, fair_part, itself
from swarm.sanitize import clean
from swarm.sapo.mixing.base import MAX_ROUNDS, Candidate, Decision, History, MixRound, MixState
from swarm.sapo.mixing.policies import MixSettings
from swarm.types import GradedGroup, ReceivedGroup, RolloutGroup

T = TypeVar("T")
Screen = Callable[[Sequence[ReceivedGroup]], Sequence[GradedGroup | None]]
"""Returns the part of each group to learn from; None for none of it."""
MAX_DRAWS = 4
"""Draws per update; each after the first replaces refused groups."""


class Mix(Struct, frozen=True):
    """The groups of one update, and the shortfalls; ledger and pool are settled by it after the update."""

    local: tuple[GradedGroup, ...]
    external: tuple[GradedGroup, ...]
    drawn: tuple[ReceivedGroup, ...]
    """Those whose parts `external` are, in its order."""
    refused: tuple[ReceivedGroup, ...]
    """Groups that the screen refused: drawn ones, and those that a policy had scored."""
    external_wanted: int
    """J, less what the watch over drawdowns takes from it."""
    local_shortfall: int
    external_shortfall: int
    filled: int
    """Local groups beyond I that replace missing external ones."""
    decision: Decision
    """The policy's."""


def _unscreened(drawn: Sequence[ReceivedGroup]) -> list[GradedGroup | None]:
    return [received.graded for received in drawn]


def mix(
    local: Sequence[GradedGroup],
    candidates: Sequence[Candidate],
    decision: Decision,
    rng: np.random.Generator,
    *,
    fill: Literal["none", "local"] = "none",
    share: float = 1.0,
    author_of: AuthorOf = itself,
    screen: Screen = _unscreened,
) -> Mix:
    """Sample I of the local groups, uniformly, and J of the candidates, by weight; both without replacement.

    No author exceeds its fair part of J: J divided by the available authors, rounded up. Groups that `screen` refuses
    are replaced from other authors. All input groups have signal. `share` scales J.
    """
    external_wanted = int(share * decision.external)
    draw = _Draw(candidates, decision.weights, external_wanted, author_of, rng)
    for _ in range(MAX_DRAWS):
        if not (drawn := draw.more()):
            break
        draw.settle(drawn, screen([candidate.received for candidate in drawn]))
    external_shortfall = decision.external - len(draw.chosen)
    wanted = decision.local + (external_shortfall if fill == "local" else 0)
    chosen_local = _sample(local, wanted, rng)
    return Mix(
        local=tuple(chosen_local),
        external=tuple(group for _, group in draw.chosen),
        drawn=tuple(candidate.received for candidate, _ in draw.chosen),
        refused=tuple(draw.refused),
        external_wanted=external_wanted,
        local_shortfall=max(0, decision.local - len(chosen_local)),
        external_shortfall=external_shortfall,
        filled=max(0, len(chosen_local) - decision.local),
        decision=decision,
    )


def some(candidates: Sequence[Candidate], count: int, author_of: AuthorOf, rng: np.random.Generator) -> list[Candidate]:
    """At most `count` random candidates, from each author at most its fair part."""
    return _Draw(candidates, None, count, author_of, rng).more()


def authors(candidates: Sequence[Candidate], author_of: AuthorOf) -> dict[str, str]:
    """The author that each sender counts as."""
    return authors_of((candidate.sender for candidate in candidates), author_of)


class _Draw:
    """Candidates in random order, from each author at most its fair part of `count`."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        weights: Sequence[float] | None,
        count: int,
        author_of: AuthorOf,
        rng: np.random.Generator,
    ) -> None:
        self.chosen: list[tuple[Candidate, GradedGroup]] = []
        """Each with the part of it to learn from."""
        self.refused: list[ReceivedGroup] = []
        self._count = count
        self._left = [candidates[i] for i in in_random_order(len(candidates), weights, rng)]
        self._keys = authors(candidates, author_of)

    def more(self) -> list[Candidate]:
        """Draw candidates for the free slots."""
        if len(self.chosen) == self._count:
            return []
        chosen = [candidate for candidate, _ in self.chosen]
        num_authors = len({self._author(candidate) for candidate in [*self._left, *chosen]})
        fair = fair_part(self._count, num_authors)
        taken = Counter(self._author(candidate) for candidate in chosen)
        drawn: list[Candidate] = []
        left: list[Candidate] = []
        for candidate in self._left:
            author = self._author(candidate)
            if len(self.chosen) + len(drawn) < self._count and taken[author] < fair:
                taken[author] += 1
                drawn.append(candidate)
            else:
                left.append(candidate)
        self._left = left
        return drawn

    def settle(self, drawn: Sequence[Candidate], screened: Sequence[GradedGroup | None]) -> None:
        """Keep the accepted groups; an author with a refused group is not drawn again."""
        out = set()
        for candidate, kept in zip(drawn, screened, strict=True):
            if kept is None:
                self.refused.append(candidate.received)
                out.add(candidate.sender)
            else:
                self.chosen.append((candidate, kept))
        self._left = [candidate for candidate in self._left if candidate.sender not in out]

    def _author(self, candidate: Candidate) -> str:
        return self._keys[candidate.sender]


def in_random_order(count: int, weights: Sequence[float] | None, rng: np.random.Generator) -> list[int]:
    """The numbers 0 to `count` - 1 in random order, without those of weight 0; weights are finite and not negative.

    Each next one is drawn from those left in proportion to its weight. Source: arXiv:1903.06059 (Gumbel
    top-k).
    """
    if weights is None:
        return [int(i) for i in rng.permutation(count)]
    known = np.asarray(weights, dtype=float)
    positive = np.flatnonzero(known)
    keys = np.log(known[positive]) + rng.gumbel(size=len(positive))
    return [int(i) for i in positive[np.argsort(-keys, kind="stable")]]


def _sample(items: Sequence[T], count: int, rng: np.random.Generator) -> list[T]:
    if len(items) <= count:
        return list(items)
    return [items[i] for i in rng.choice(len(items), size=count, replace=False)]


MAX_REASON_CHARS = 160
WANTED_ROUNDS = 8
"""The largest J of these rounds is what the next ones may want."""
MAX_STATE = 1_024
"""Numbers in a policy's state."""
LOCAL, EXTERNAL, WEIGHTS_ESS = "mix/local", "mix/external", "mix/weights_ess"
"""Figures of a decision: I, J, and the effective number of candidates as a fraction of them."""
CREDITED = "mix/credited_ratio"
"""Mean factor of the token advantages of the external groups: what own groups bear out of what others push."""


class Wishes(Struct, frozen=True):
    """What the next updates want of others' groups."""

    num_external: int
    """J, at most."""
    num_choice: int
    """Further graded groups that the policy wants to choose from."""
    weights: Sequence[float] | None
    """Weights of the candidates; see `Decision`."""


class Appraiser(Protocol):
    """What this node's policy makes of received groups, within one round."""

    def advantages(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """[G] as an update computes them."""

    def surprisals(self, groups: Sequence[ReceivedGroup]) -> list[float | None]:
        """`Candidate.surprisal` of each; None for those that the screen refuses."""

    def screen(self, groups: Sequence[ReceivedGroup]) -> list[GradedGroup | None]:
        """The part of each group to learn from; None for none of it."""


class Mixer:
    """The mix by one policy."""

    def __init__(
        self, settings: MixSettings, num_questions: int = 0, num_steps: int = 1, has_penalty: bool = False
    ) -> None:
        """Start without rounds. `num_questions`: those of a round as configured, if a policy may change them;
        `num_steps`: most optimizer steps of an update; `has_penalty`: completions without an advantage have a gradient,
        too."""
        self.num_questions: int | None = None
        """Questions of the next round; None: as configured."""
        self._settings = settings
        self._usual = num_questions
        self._num_steps = num_steps
        self._computes_all = has_penalty or settings.external_negative_weight > 0
        self._rounds: deque[MixRound] = deque(maxlen=MAX_ROUNDS)
        self._state: dict[str, float] = {}
        self._wanted: deque[int] = deque([settings.external], maxlen=WANTED_ROUNDS)
        """J of the last rounds; at first as configured."""

    def wishes(self, candidates: Sequence[Candidate], appraiser: Appraiser) -> Wishes:
        """What the next updates want of these candidates, by the rounds so far.

        Ungraded candidates have the rewards that their authors claim. Raises `ConfigError` for a
        decision that cannot be used.
        """
        policy = self._settings.settings
        if not self._rounds:
            return self._wishes(max(self._wanted), None)
        candidates = self._valued(candidates, appraiser)
        # What the round that has begun fetches and grades is there for the one after it.
        *before, last = self._rounds
        history = self._history(*before, replace(last, round=last.round + 2))
        decision = self._decision(history, candidates)
        num_external = max(decision.external, *self._wanted)
        # A policy that goes by scores has none of ungraded groups.
        return self._wishes(num_external, None if policy.num_scored(num_external) else decision.weights)

    def _decision(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """What the policy decides. Raises `ConfigError` for what cannot be used, and where the user's own fails."""
        settings = self._settings
        with custom_code(f"mix.policy {settings.policy}"):
            decision = settings.settings(history, candidates)
        return _checked(decision, settings.policy, len(candidates))

    def _wishes(self, num_external: int, weights: Sequence[float] | None) -> Wishes:
        num_scored = self._settings.settings.num_scored(num_external)
        return Wishes(num_external, max(num_external, num_scored), weights)

    def _history(self, *rounds: MixRound) -> History:
        settings = self._settings
        return History(settings.local, settings.external, rounds, dict(self._state), self._usual, self._num_steps)

    def mix(
        self,
        this: MixRound,
        local: Sequence[GradedGroup],
        candidates: Sequence[Candidate],
        appraiser: Appraiser,
        rng: np.random.Generator,
        *,
        share: float = 1.0,
        author_of: AuthorOf = itself,
    ) -> Mix:
        """The mix of round `this`; nothing is remembered before `record`.

        Raises `ConfigError` for a decision that cannot be used.
        """
        settings = self._settings
        candidates, refused = self._appraised(candidates, appraiser, author_of, rng)
        history = self._history(*self._rounds, this)
        decision = self._decision(history, candidates)
        mixed = mix(
            local,
            candidates,
            decision,
            rng,
            fill=settings.fill,
            share=share,
            author_of=author_of,
            screen=appraiser.screen,
        )
        return replace(mixed, refused=(*refused, *mixed.refused))

    def record(self, this: MixRound, mixed: Mix) -> None:
        """Remember a finished round."""
        senders = Counter(graded.group.peer_id for graded in mixed.external)
        external = len(mixed.external)
        self._rounds.append(
            replace(
                this,
                num_local=len(mixed.local),
                num_external=external,
                external_part=_mean_part(mixed.external, self._computes_all),
                senders=dict(senders),
                num_candidates=sum(weight > 0 for weight in mixed.decision.weights or ()),
                local_part=_mean_part(mixed.local, True),
            )
        )
        self._state = dict(mixed.decision.state)
        self._wanted.append(mixed.decision.external)
        if self._usual:
            self.num_questions = mixed.decision.num_questions

    def dump(self) -> MixState:
        """Everything, for a checkpoint."""
        return MixState(self._settings.policy, list(self._rounds), dict(self._state), self.num_questions)

    def restore(self, saved: MixState) -> None:
        """Restore what `dump` returned; another policy keeps the rounds and starts without state."""
        self._rounds.extend(saved.rounds)
        if saved.policy == self._settings.policy:
            self._state = dict(saved.state)
            self.num_questions = saved.num_questions if self._usual else None

    def _valued(self, candidates: Sequence[Candidate], appraiser: Appraiser) -> Sequence[Candidate]:
        """The candidates with their advantages and parts, if the policy wants them."""
        if not self._settings.settings.needs_advantages:
            return candidates
        return [
            replace(
                each,
                advantages=appraiser.advantages(each.rewards),
                part=_part(each.rewards, self._computes_all, each.graded.group if each.is_graded else None),
            )
            for each in candidates
        ]

    def _appraised(
        self, candidates: Sequence[Candidate], appraiser: Appraiser, author_of: AuthorOf, rng: np.random.Generator
    ) -> tuple[Sequence[Candidate], list[ReceivedGroup]]:
        """The candidates with what the policy wants to know of them, and the groups that the screen refused meanwhile:
        in the pool they would only displace others."""
        policy = self._settings.settings
        refused: list[ReceivedGroup] = []
        candidates = self._valued(candidates, appraiser)
        if num_scored := policy.num_scored(self._settings.external):
            scored = some(candidates, num_scored, author_of, rng)
            surprisals = appraiser.surprisals([each.received for each in scored])
            known = dict(zip((each.content_id for each in scored), surprisals, strict=True))
            candidates = [
                replace(each, surprisal=known.get(each.content_id))
                for each in candidates
                if known.get(each.content_id, 0.0) is not None
            ]
            refused = [each.received for each in scored if known[each.content_id] is None]
        return candidates, refused


def _mean_part(groups: Sequence[GradedGroup], computes_all: bool) -> float:
    return fmean(_part(each.rewards, computes_all, each.group) for each in groups) if groups else 1.0


def _part(rewards: Sequence[float], computes_all: bool, group: RolloutGroup | None) -> float:
    """The part of a group's completions that an update computes: those above the mean, or all; equal ones once where
    the texts are known."""
    mean = fmean(rewards)
    counts = [computes_all or reward > mean for reward in rewards]
    if group is None:
        return fmean(counts)
    computed = {(each.text, each.turns, each.observed) for each in compress(group.completions, counts)}
    return len(computed) / len(rewards)


def mix_figures(mixed: Mix) -> dict[str, float]:
    """Figures of the decision, by conventional name."""
    decision = mixed.decision
    figures = {LOCAL: decision.local, EXTERNAL: decision.external, WEIGHTS_ESS: _effective_fraction(decision.weights)}
    factors = [value for graded in mixed.external for each in graded.factors for value in each]
    return figures | ({CREDITED: fmean(factors)} if factors else {})


def _effective_fraction(weights: Sequence[float] | None) -> float:
    """(sum of w)^2 / (n sum of w^2); 1 for equal weights and for none."""
    if weights is None or not any(weights):
        return 1.0
    scaled = np.asarray(weights) / max(weights)
    return float(scaled.sum() ** 2 / (len(scaled) * (scaled**2).sum()))


def _checked(decision: object, policy: str, num_candidates: int) -> Decision:
    """The decision in plain numbers and bounded. Raises `ConfigError`.

    Weights that are negative or not finite count as 0, and the reason says so: they may depend on what others sent, and
    must not end the run.
    """
    if not isinstance(decision, Decision):
        raise ConfigError(f"mix.policy {policy} must return a swarm.sapo.mixing.Decision, got {decision!r}")
    asks = 1 if decision.num_questions is None else decision.num_questions
    counts = (("local", decision.local, 0), ("external", decision.external, 0), ("num_questions", asks, 1))
    for name, count, least in counts:
        if not isinstance(count, Integral) or count < least:
            raise ConfigError(f"mix.policy {policy}: {name} must be a whole number of at least {least}, got {count!r}")
    weights, num_invalid = _usable(decision.weights, policy, num_candidates)
    notes = [decision.reason, f"{num_invalid} invalid weights count as 0" if num_invalid else ""]
    return Decision(
        local=int(decision.local),
        external=int(decision.external),
        weights=weights,
        reason=clean("; ".join(note for note in notes if note), MAX_REASON_CHARS),
        state=_usable_state(decision.state, policy),
        num_questions=None if decision.num_questions is None else int(decision.num_questions),
    )


def _usable(weights: Sequence[float] | None, policy: str, num_candidates: int) -> tuple[list[float] | None, int]:
    """The weights without invalid ones, and the number of these."""
    if weights is None:
        return None, 0
    try:
        known = np.asarray(weights, dtype=float)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"mix.policy {policy}: weights must be numbers: {error}") from error
    if known.shape != (num_candidates,):
        raise ConfigError(
            f"mix.policy {policy}: weights must be one number for each of {num_candidates} candidates, got the shape "
            f"{known.shape}"
        )
    valid = np.isfinite(known) & (known >= 0)
    return [float(weight) for weight in np.where(valid, known, 0.0)], int((~valid).sum())


def _usable_state(state: Mapping[str, float], policy: str) -> dict[str, float]:
    try:
        known = {str(name): float(value) for name, value in state.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"mix.policy {policy}: state must map names to numbers: {error}") from error
    if len(known) > MAX_STATE or not all(math.isfinite(value) for value in known.values()):
        raise ConfigError(f"mix.policy {policy}: state must be at most {MAX_STATE} finite numbers, got {len(known)}")
    return known
