"""Groups: as they are shared, offered, and graded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from swarm.reasons import Reason
from swarm.types.bounds import (
    ANSWER,
    ELEMENT_BYTES,
    MAX_COMPLETIONS,
    Count,
    LogProb,
    Name,
    Positive,
    RecordId,
    Reward,
    Seconds,
    complete,
)
from swarm.types.completions import Completion, Sampling
from swarm.types.questions import Observation, Prompt, TaskRef, earned


class PolicyId(Struct, frozen=True):
    """The policy that sampled a group."""

    model: Name
    tokenizer_hash: Name
    version: Count
    """Number of updates applied when the group was sampled."""


class RolloutGroup(Struct, frozen=True):
    """One question with all G completions, as its sender signs it: an advantage needs every reward of its group."""

    run_id: Name
    """Empty until the group is shared."""
    peer_id: Name
    sequence: Count
    """Increases with every group that a peer publishes, also across restarts: starts at the milliseconds since 1970,
    then one more for each group."""
    created_at: Seconds
    """Unix seconds on the sender's clock."""
    policy: PolicyId
    sampling: Sampling
    question: TaskRef
    completions: Annotated[tuple[Completion, ...], Meta(max_length=MAX_COMPLETIONS)]
    """[G]"""
    rewards: Annotated[tuple[Reward, ...], Meta(max_length=MAX_COMPLETIONS)]
    """[G] the sender's rewards: telemetry only, a receiver never trains on them."""
    log_expectation: LogProb | None = None
    """GEPO's log of the sampler's expectation over all G completions, at most 0; None when unknown."""

    @property
    def oldest_version(self) -> int:
        """The policy version of the group's oldest token: it determines the group's staleness."""
        return min(self._versions(), default=self.policy.version)

    @property
    def newest_version(self) -> int:
        """The policy version of the group's newest token."""
        return max(self._versions(), default=self.policy.version)

    def _versions(self) -> list[int]:
        return [span.version for completion in self.completions for span in completion.versions]

    @property
    def num_chars(self) -> int:
        """Characters of all texts."""
        return sum(len(text) for completion in self.completions for text in (completion.text, *completion.told))

    @property
    def num_elements(self) -> int:
        """Token ids, log-probabilities, version spans and turns of all completions."""
        return sum(len(c.token_ids) + len(c.logprobs) + len(c.versions) + len(c.turns) for c in self.completions)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory; one wide character widens its whole text."""
        texts = (text for c in self.completions for text in (c.text, *c.told))
        return sum(map(getsizeof, texts)) + ELEMENT_BYTES * self.num_elements


class VerifiedGroup(Struct, frozen=True):
    """A group from the network, signed by its author and found whole: made once, on arrival, and not opened again."""

    content_id: str
    """Digest of the group as its author encoded it: the same for all who receive it, whatever they know of it."""
    group: RolloutGroup
    record: bytes
    """The record that arrived, with its signature: what is handed on."""
    heard_at: float = 0.0
    """Unix seconds at which it arrived."""

    @property
    def memory_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.record) + self.group.memory_bytes


class Offer(Struct, frozen=True, array_like=True):
    """What an author says of a group that others may fetch, in at most 160 bytes besides the commitment."""

    record_id: RecordId
    """Digest of the sealed record, by which it is fetched."""
    content_id: RecordId
    """Digest of the group, by which it is known."""
    num_bytes: Positive
    """Length of the sealed record."""
    task: Annotated[str, Meta(max_length=64)]
    num_completions: Annotated[int, Meta(ge=1, le=MAX_COMPLETIONS)]
    mean_reward: Reward
    reward_std: Annotated[float, Meta(ge=0, le=1e9)]
    """Population standard deviation. Both are claims, like `RolloutGroup.rewards`."""
    policy: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """Digest of the group's `PolicyId`."""
    life_s: Annotated[int, Meta(ge=1, le=3_600)]
    """Seconds for which the author keeps the record, from the offer on."""
    commitment: Annotated[bytes, Meta(max_length=4 * (1 + MAX_COMPLETIONS))] = b""
    """To the group's completions (`commitments.py`); empty of an author that knows none."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """[G] rewards of this mean and, for an even G, of this deviation."""
        apart = self.reward_std, -self.reward_std
        paired = self.num_completions // 2 * 2
        return tuple(self.mean_reward + (apart[k % 2] if k < paired else 0.0) for k in range(self.num_completions))


class OfferedGroup(Struct, frozen=True):
    """A group that can be fetched."""

    peer_id: str
    """Its author."""
    offer: Offer


class OfferedGroups(Struct, frozen=True):
    """Offers from the network, signed by their author."""

    peer_id: str
    offers: tuple[Offer, ...]
    per_s: float = 0.0
    """Offers that the author makes each second at present, as it says; 0 if it does not say."""
    heard_at: float = 0.0
    """Unix seconds at which they arrived."""


class Commitment(Struct, frozen=True):
    """An author's word that it has these completions: with an offer, or by sending the group."""

    peer_id: str
    content: bytes
    """Tag and digests (`commitments.py`)."""
    heard_at: float
    """Unix seconds at which it arrived here."""


class RefusedRecord(Struct, frozen=True):
    """A record that was refused on arrival, for whoever counts refusals. What was in it is not kept."""

    reason: Reason
    detail: str
    peer_id: str | None
    """Whom a good signature holds responsible."""


Arrival = VerifiedGroup | OfferedGroups | RefusedRecord
"""What a transport makes of a record."""


class ReadTurn(NamedTuple):
    """One turn of a completion as a policy reads it."""

    ids: Sequence[int]
    """[T]"""
    logprobs: Sequence[float]
    """[T] under that policy; empty where they were not wanted."""


class GradedGroup(Struct, frozen=True):
    """A group with this node's own question text, observations and rewards: its sender's are never trained on."""

    group: RolloutGroup
    prompt: Prompt
    rewards: tuple[float, ...]
    """[G] from this node's verifier."""
    observations: tuple[tuple[Observation, ...], ...] = ()
    """[G] those between the turns of each completion, from this node's verifier; empty if all have a single turn."""
    parts: dict[str, tuple[float, ...]] = {}
    """[G] the named rewards whose weighted mean `rewards` is, for a task that has them."""
    factors: tuple[tuple[float, ...], ...] = ()
    """[G][T] of the tokens' advantages, in [0, 1]; empty: all 1."""
    expected: str = ""
    """See `Grade`."""
    found: tuple[str, ...] = ()
    """See `Grade`."""
    added: tuple[tuple[float, ...], ...] = ()
    """[G][T] added to the advantages of an own group's tokens, as by a teacher; empty: nothing."""
    imitated: float = 0.0
    """Added to the advantage of each token of another's group, whose text is a teacher's."""

    def observed(self, index: int) -> tuple[Observation, ...]:
        """The observations between the turns of completion `index`."""
        return self.observations[index] if self.observations else ()

    def turn_rewards(self, index: int) -> list[float]:
        """What each turn of completion `index` adds to its reward."""
        num_turns = len(self.group.completions[index].by_turn())
        before = [earned(shown) for shown in self.observed(index)[: num_turns - 1]]
        return [*before, self.rewards[index] - sum(before)]


class Grade(Struct, frozen=True):
    """A verifier's result for one group: all that comes back from the process that read the texts."""

    prompt: Prompt
    rewards: tuple[float, ...]
    """[G] for an episode that is not over what its turns have earned, mostly 0."""
    seconds: float = 0.0
    """Time to regenerate the question and score its completions."""
    observations: tuple[tuple[Observation, ...], ...] = ()
    """[G] what the environment answered to each turn except one that ended its episode; empty if all ended with their
    first turn."""
    held_out: bool = False
    """Whether the question is for evaluation: no node trains on it."""
    parts: dict[str, tuple[float, ...]] = {}
    """[G] as in `GradedGroup`."""
    expected: str = ""
    """For people: the beginning of the right answer; empty where a task has no single one."""
    found: tuple[str, ...] = ()
    """[G] for people: the beginning of what counted as the answer in each completion, empty where there was none; ()
    where answers are not looked for."""

    @property
    def answers(self) -> tuple[float, ...]:
        """[G] the rewards of the answers alone, for evaluations: without format, length and judge."""
        return self.parts.get(ANSWER, self.rewards)

    def observed(self, index: int) -> tuple[Observation, ...]:
        """The observations of episode `index`: as many as turns if it is not over, else one less."""
        return self.observations[index] if self.observations else ()


@dataclass(eq=False, slots=True)
class ReceivedGroup:
    """Another peer's group from its offer or arrival to the update that uses it: one record for its whole life."""

    content_id: str
    """Digest of the group as its author encoded it."""
    content: OfferedGroup | RolloutGroup | GradedGroup
    """On offer, as it came, or with this node's rewards."""
    account: str = ""
    """Charged for it: its author, or the newcomers."""
    num_bytes: int = 0
    """About what it takes in memory."""
    arrived_at: float = 0.0
    """Unix seconds; for a group on offer, when the offer was heard or the group was requested."""
    uses: int = 0
    """Updates that it has taken part in."""

    @property
    def is_here(self) -> bool:
        """Whether the group has arrived; otherwise it is on offer."""
        return not isinstance(self.content, OfferedGroup)

    @property
    def key(self) -> str:
        """Names a group by its content, and an offer also by who made it: anybody may offer another's content."""
        return self.content_id if self.is_here else f"{self.content_id}/{self.peer_id}"

    @property
    def group(self) -> RolloutGroup:
        """The group as it came. Raises `TypeError` for one on offer."""
        if isinstance(self.content, OfferedGroup):
            raise TypeError(f"group {self.content_id} is on offer: use `peer_id`, `task` and `rewards`")
        return self.content.group if isinstance(self.content, GradedGroup) else self.content

    @property
    def graded(self) -> GradedGroup:
        """The group with this node's rewards. Raises `TypeError` for one that is not graded."""
        if not isinstance(self.content, GradedGroup):
            raise TypeError(f"group {self.content_id} is not graded: use `peer_id`, `task` and `rewards`")
        return self.content

    @property
    def peer_id(self) -> str:
        """Its author."""
        return self.content.peer_id if isinstance(self.content, OfferedGroup) else self.group.peer_id

    @property
    def task(self) -> str:
        """Name of the question's task."""
        return self.content.offer.task if isinstance(self.content, OfferedGroup) else self.group.question.task

    @property
    def rewards(self) -> tuple[float, ...]:
        """[G] by this node's verifier; before grading as its author claims: for an offer, of the same mean and
        deviation."""
        return self.content.offer.rewards if isinstance(self.content, OfferedGroup) else self.content.rewards


class Rejection(Struct, frozen=True):
    """Why a question was not answered or a group was not graded."""

    reason: Reason
    detail: str = ""
    seconds: float = 0.0
    """See `Grade`."""


Answers = tuple[Completion, ...] | Rejection
"""An engine's result for one prompt: [G] completions, or why there are none."""


complete(globals())
