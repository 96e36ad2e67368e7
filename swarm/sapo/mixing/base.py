"""The base class of mixing policies, with their input and output."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import ClassVar

from msgspec import Struct

from swarm.figures import means_by_task
from swarm.settings import Settings
from swarm.types import GradedGroup, ReceivedGroup

MAX_ROUNDS = 256
"""Rounds that a history holds."""


class Candidate(Struct, frozen=True):
    """A received group that the next update may use, or one that this node may fetch and grade for later ones."""

    received: ReceivedGroup
    age_s: float = 0.0
    """Seconds since it arrived."""
    worth: float | None = None
    """The measured worth of its sender's groups, in own groups; None while unknown."""
    advantages: tuple[float, ...] | None = None
    """[G] advantages, for a policy that needs them."""
    surprisal: float | None = None
    """Mean negative log-probability of its rewarded completions under this node's policy, nats per token; None when it
    was not scored."""
    part: float = 1.0
    """Part of its completions that an update computes: those that count, equal ones once."""

    @property
    def content_id(self) -> str:
        """Names the group."""
        return self.received.content_id

    @property
    def uses(self) -> int:
        """Updates that it has taken part in."""
        return self.received.uses

    @property
    def is_graded(self) -> bool:
        """Whether this node has graded the group; before that, its rewards are its author's claims."""
        return isinstance(self.received.content, GradedGroup)

    @property
    def graded(self) -> GradedGroup:
        """The group with this node's rewards. Raises `TypeError` for one that is not graded."""
        return self.received.graded

    @property
    def sender(self) -> str:
        """Peer id of the author."""
        return self.received.peer_id

    @property
    def task(self) -> str:
        """Name of the question's task."""
        return self.received.task

    @property
    def rewards(self) -> tuple[float, ...]:
        """[G] by this node; before it grades the group, as its author claims."""
        return self.received.rewards

    @property
    def success(self) -> float:
        """Mean reward of the completions."""
        return fmean(self.rewards)


class MixRound(Struct, frozen=True):
    """A round as a mixing policy knows it."""

    round: int
    """1-based."""
    reward: float | None
    """Mean reward of this node's own completions; None when there were none."""
    num_informative: int
    """Own groups with signal."""
    num_uninformative: int
    """Own groups without."""
    tasks: dict[str, tuple[float, int]] = {}
    """(sum of rewards, completions) of own groups by task."""
    num_local: int = 0
    """Own groups in the update."""
    num_external: int = 0
    """External groups in the update."""
    external_part: float = 1.0
    """Mean part of an external group's completions that the update computed: those that count, equal ones once."""
    senders: dict[str, int] = {}
    """External groups in the update by sender."""
    num_questions: int = 0
    """Questions asked; 0 if not known."""
    num_candidates: int = 0
    """Others' groups that the update could have used."""
    seconds: dict[str, float] = {}
    """Seconds of the round's `asking`, `receiving`, `mix`, `update`; empty where updates hide generation's time."""
    local_part: float = 1.0
    """The same of own groups."""


class MixState(Struct):
    """What a checkpoint keeps of the mix."""

    policy: str
    """Name of the policy that wrote `state`."""
    rounds: list[MixRound]
    state: dict[str, float]
    num_questions: int | None = None
    """Questions of the next round, if the policy chose them."""


class History(Struct, frozen=True):
    """The rounds so far, and the configured I and J."""

    local: int
    """`mix.local`."""
    external: int
    """`mix.external`."""
    rounds: tuple[MixRound, ...]
    """At most `MAX_ROUNDS`, oldest first. The last is the current round: its update is still to come."""
    state: Mapping[str, float] = {}
    """The state in this policy's last decision; empty before the first."""
    num_questions: int = 0
    """Questions a round as configured; 0 where a policy cannot change them."""
    num_steps: int = 1
    """Most optimizer steps of an update."""

    @property
    def total(self) -> int:
        """I + J."""
        return self.local + self.external

    def rewards(self, num_rounds: int) -> list[float]:
        """Mean rewards of the last rounds, those without own completions left out."""
        return [each.reward for each in self.rounds[-num_rounds:] if each.reward is not None]

    def without_signal(self, num_rounds: int) -> float | None:
        """Fraction of own groups without signal in the last rounds; None when there were none."""
        last = self.rounds[-num_rounds:]
        without = sum(each.num_uninformative for each in last)
        groups = without + sum(each.num_informative for each in last)
        return without / groups if groups else None

    def success(self, num_rounds: int) -> dict[str, float]:
        """Mean reward of own completions in the last rounds, by task."""
        return means_by_task(each.tasks for each in self.rounds[-num_rounds:])


class Decision(Struct, frozen=True):
    """What the next update should consist of."""

    local: int
    """I: local groups."""
    external: int
    """J: external groups."""
    weights: Sequence[float] | None = None
    """One for each candidate, in their order: the draw's probabilities are in proportion, 0 is never drawn. None: all
    alike."""
    reason: str = ""
    """A few words for people."""
    state: Mapping[str, float] = {}
    """What the policy wants to find in the next round's history, also after a restart."""
    num_questions: int | None = None
    """Questions of the next round; None: as configured."""


class MixPolicy(Settings):
    """A mixing policy with its settings: `mix.settings` holds the fields of the subclass.

    It is a function of history and candidates. What it must remember beyond them is in `Decision.state`.
    """

    needs_advantages: ClassVar[bool] = False
    """Whether `Candidate.advantages` is required."""

    def num_scored(self, external: int) -> int:
        """How many random candidates to score for `Candidate.surprisal`, given the configured J.

        Each costs a part of a forward pass. The screen reuses the scores of those that are drawn.
        """
        return 0

    @abstractmethod
    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """The mix of the next update."""
