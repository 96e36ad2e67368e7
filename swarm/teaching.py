"""Settings and saved state of distillation over text; `swarm/extras/distill` is what they set."""

from __future__ import annotations

from msgspec import Struct
from pydantic import Field

from swarm.settings import Settings


class TeachSettings(Settings):
    """What `swarm join` spends on students: members that ask for this policy's opinion of their own answers."""

    passes_per_min: float = Field(0, ge=0)
    """Forward passes for all students together, one for each started 4,096 characters of an answer, at most 64 or this
    many at once; 0: it does not teach."""
    students: tuple[str, ...] = ()
    """Peer ids of those that may ask; default: every member."""
    seconds_per_round: float = Field(10.0, gt=0)
    """Time between two rounds after which what still waits is left for the next pause."""


class DistillSettings(Settings):
    """How `swarm join` learns from the teachers that `learn_from` names: the log-probabilities that they give to its
    own answers are one more advantage of the answers' tokens."""

    weight: float = Field(1.0, gt=0)
    """Advantage of a token for each nat by which the teacher finds its span likelier; GRPO's advantages are about 1."""
    imitate: float = Field(0.0, ge=0)
    """Advantage that each token of a teacher's shared answers has beside that of its reward, faded by `half_life` and
    multiplied by the trust in the teacher: the gradient of the forward divergence KL(teacher || student)."""
    bound: float = Field(2.0, gt=0)
    """Nats beyond which a difference counts as this much: the most that a false claim can do to a token."""
    half_life: float | None = Field(None, gt=0)
    """Updates after which `weight` is half; below 1% of it no teacher is asked any more. Default: it stays."""
    untested: float = Field(0.0, ge=0, le=1)
    """Part of the weight that a teacher has until it is judged, which takes six groups with signal, however long they
    take; at 0 such groups alone are asked about until then. 1 for a teacher of your own, where rewards are rare."""
    groups: int = Field(8, ge=1)
    """Own groups a round that teachers are asked about, chosen at random."""
    max_staleness: int = Field(8, ge=0)
    """Updates since a group was sampled beyond which a teacher's answer comes too late."""
    timeout_s: float = Field(300.0, gt=0)
    """How long an answer may take; meanwhile training continues."""
    ask_twice: float = Field(0.1, ge=0, le=1)
    """Fraction of questions that are asked a second time: a teacher whose answers differ three times is asked no
    more."""


class TeacherState(Struct, frozen=True):
    """What a student has found out about a teacher."""

    agreement: list[float]
    """With the rewards of its newest groups, in [-1, 1], the oldest first."""
    age: int
    """Rounds since the last of them."""
    contradictions: int = 0
    is_dropped: bool = False
