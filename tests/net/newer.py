"""A later minor version of this program, as far as the wire shows it: one more field, and one more kind of question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from benchmarks.common.arithmetic import GROUP_SIZE, TASKS, HalfRight
from swarm.environments.verification.inline import InlineVerifier
from swarm.net.in_memory import MemoryTransport, Read
from swarm.net.records import wire
from swarm.net.records.identity import Identity
from swarm.net.trust.exchange import Exchange
from swarm.protocols import Transport
from swarm.sapo.mixing import MixSettings
from swarm.sapo.round import SapoNode
from swarm.types import (
    Arrival,
    DatasetRef,
    Grade,
    ProceduralRef,
    Question,
    Rejection,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
)
from tests.sapo.nodes import make_node
from tests.sapo.pupil import Pupil

HINT = "think of the carry"


class RiddleRef(ProceduralRef, frozen=True, tag="riddle"):
    """A question of a kind that is not in `TaskRef` yet."""


class NewerGroup(RolloutGroup, frozen=True, kw_only=True):
    """A group with a field that `RolloutGroup` does not have yet."""

    question: ProceduralRef | DatasetRef | RiddleRef
    hint: str = ""


@contextmanager
def newer_wire() -> Iterator[None]:
    """Within this, groups are opened as the later version opens them."""
    known, wire.RolloutGroup = wire.RolloutGroup, NewerGroup  # type: ignore[attr-defined, misc]
    try:
        yield
    finally:
        wire.RolloutGroup = known  # type: ignore[attr-defined, misc]


class NewerMemoryTransport(MemoryTransport):
    """Opens what arrives as the later version does; the others in this process do not."""

    def _opened(self, read: Read, heard_at: float) -> Arrival:
        with newer_wire():
            return super()._opened(read, heard_at)


class NewerExchange(Exchange):
    """Sends the field."""

    def _seal(self, group: RolloutGroup, run_id: str) -> VerifiedGroup | None:
        with newer_wire():
            return super()._seal(NewerGroup(**msgspec.structs.asdict(group), hint=HINT), run_id)


class RiddleVerifier(InlineVerifier):
    """Asks every third question as one of the other kind."""

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        """As `Verifier`."""
        questions = super().draw(seed, start, count)
        return [_riddle(each) if k % 3 == 0 else each for k, each in enumerate(questions)]

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[str]]]) -> list[Grade | Rejection]:
        """As `Verifier`."""
        return super().grade([(_plain(ref), texts) for ref, texts in jobs])

    def submit(self, key: str, ref: TaskRef, texts: Sequence[str], sender: str = "") -> None:
        """As `Verifier`."""
        super().submit(key, _plain(ref), texts, sender)


def _riddle(question: Question) -> Question:
    ref = question.ref
    return Question(RiddleRef(**msgspec.structs.asdict(ref)), question.prompt)  # type: ignore[arg-type]


def _plain(ref: TaskRef) -> TaskRef:
    return ProceduralRef(**msgspec.structs.asdict(ref)) if isinstance(ref, RiddleRef) else ref


class Peer(Struct):
    """A node of either version, with all that a round needs but a model."""

    node: SapoNode
    pupil: Pupil
    exchange: Exchange

    def groups(self) -> list[RolloutGroup]:
        """Those of others that were learned from."""
        return [graded.group for graded in self.pupil.external]

    def learned(self) -> dict[str, set[type]]:
        """By author: the kinds of question of the groups learned from."""
        kinds: dict[str, set[type]] = {}
        for group in self.groups():
            kinds.setdefault(group.peer_id, set()).add(type(group.question))
        return kinds


def make_peer(transport: Transport, identity: Identity, newer: bool, seed: int) -> Peer:
    """A node on a transport that has started."""
    pupil = Pupil()
    exchange = NewerExchange(transport, identity) if newer else Exchange(transport, identity)
    node = make_node(
        identity.peer_id,
        seed=seed,
        questions=6,
        group_size=GROUP_SIZE,
        model="half right",
        mix=MixSettings(local=2, external=8),
        engine=HalfRight(100),
        verifier=RiddleVerifier(TASKS) if newer else InlineVerifier(TASKS),
        updater=pupil,
        exchange=exchange,
    )
    return Peer(node, pupil, exchange)
