"""A hostile peer's records: five kinds that must never be trained on, and one with false rewards.

Every variant is one method. A hostile group has `hostile VARIANT` as its model name, so that a benchmark can trace its
fate.
"""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import zstandard
from msgspec.structs import replace

from benchmarks.common.arithmetic import GROUP_SIZE, SLOW_TASK, answer, solve
from swarm.environments.mixture import TaskMixture
from swarm.net.records.envelope import MAX_CHUNK_BYTES, Body, Envelope, SealedRecord, read_record, wrap
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Announcement, Limits, seal, seal_announcement
from swarm.types import SCHEMA_VERSION, Completion, PolicyId, ProceduralRef, Prompt, Question, RolloutGroup, Sampling

KINDS = ("forged", "replayed", "oversize", "malformed", "wrong")
"""Kinds that must never be trained on."""
NOBODY_HOLDS = frozenset({"forged", "replayed", "oversize", "malformed"})
"""Kinds of which no honest node hands on every variant: a follower leaves the feed that has such a record."""
LYING = "lying"
"""Right and wrong answers under false rewards: may be trained on, with the receiver's rewards."""
LABEL = "hostile "
BOMB_BYTES = 16 * 2**20
WIDE_COMPLETIONS = 121
"""Elements of a payload of eight times the largest record."""
KEPT = 512
SMALL = 200
"""Characters of a completion."""


@dataclass
class Attacker:
    """The sender: an identity and its records so far."""

    identity: Identity
    sequence: int = 0

    def next(self) -> int:
        """A new sequence number."""
        self.sequence += 1
        return self.sequence


class Attacks:
    """Records by kind, its variants in turn."""

    def __init__(self, run_id: str, limits: Limits, mixture: TaskMixture, seed: int = 0) -> None:
        """Attack a run whose questions `mixture` makes."""
        self._run_id = run_id
        self._limits = limits
        self._mixture = mixture
        # All questions of a task have the same digest.
        self._slow_digest = _procedural(mixture.sources[SLOW_TASK].question(0, 0)).options_digest
        self._random = random.Random(seed)
        self._honest: list[bytes] = []
        self._own: deque[tuple[RolloutGroup, bytes]] = deque(maxlen=KEPT)
        self._bombs = _bombs(self._random)
        self._turns = {kind: itertools.cycle(variants) for kind, variants in self._variants().items()}
        self.num_heard = 0
        self.made: Counter[str] = Counter()
        """Records made, by `kind/variant`."""

    def _variants(self) -> Mapping[str, Sequence[Callable[[Attacker], bytes]]]:
        return {
            "forged": (self._name_of_another, self._altered, self._unsigned, self._of_another_inside),
            "replayed": (
                self._again,
                self._again_in_other_bytes,
                self._own_again,
                self._own_again_in_other_bytes,
                self._own_sequence_again,
                self._answers_of_another,
            ),
            "oversize": (
                self._long_record,
                self._bomb,
                self._bomb_of_unstated_size,
                self._bomb_of_false_size,
                self._many_completions,
                self._wide_completions,
                self._long_completion,
                self._many_tokens,
                self._announced_too_large,
                self._announced_in_vain,
            ),
            "malformed": (
                self._noise,
                self._cut,
                self._one_bit,
                self._other_message,
                self._wrong_types,
                self._payload_of_noise,
                self._payload_of_wrong_types,
                self._deep,
                self._deep_surplus,
                self._other_kind_of_question,
                self._endless,
                self._bad_numbers,
                self._bad_logprobs,
                self._other_kind,
                self._other_schema,
            ),
            "wrong": (
                self._wrong,
                self._wrong_by_nobody,
                self._tokens_that_say_more,
                self._other_question,
                self._other_options,
                self._unknown_task,
                self._slow,
            ),
            LYING: (self._lying,),
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """All there are."""
        return tuple(self._turns)

    def hear(self, record: bytes) -> None:
        """Remember an honest record; newer ones replace some older ones."""
        self.num_heard += 1
        if len(self._honest) < KEPT:
            self._honest.append(record)
        else:
            self._honest[self._random.randrange(KEPT)] = record

    def make(self, kind: str, attacker: Attacker) -> bytes:
        """The next record of a kind. Raises `IndexError` before the first honest record."""
        variant = next(self._turns[kind])
        record = variant(attacker)
        self.made[f"{kind}/{variant.__name__.strip('_')}"] += 1
        return record

    # forged

    def _name_of_another(self, attacker: Attacker) -> bytes:
        """A group in an honest peer's name, signed by another."""
        victim = self._victim()
        group = self._group("name_of_another", attacker, peer_id=victim)
        return wrap(attacker.identity, msgspec.msgpack.encode(replace(self._body(group), peer_id=victim)))

    def _altered(self, attacker: Attacker) -> bytes:
        """An honest group with other answers under its own signature."""
        heard = self._heard()
        group = _unpacked(heard)
        altered = replace(
            group,
            policy=PolicyId(f"{LABEL}altered", "", 0),
            completions=tuple(replace(each, text=each.text[::-1]) for each in group.completions),
        )
        body = msgspec.msgpack.encode(replace(heard.body, payload=_packed(altered)))
        return msgspec.msgpack.encode(replace(heard.envelope, body=body))

    def _unsigned(self, attacker: Attacker) -> bytes:
        """A group of an existing peer with an invalid signature."""
        group = self._group("unsigned", attacker)
        return self._unsigned_around(msgspec.msgpack.encode(self._body(group)))

    def _of_another_inside(self, attacker: Attacker) -> bytes:
        """The sender's own envelope around a group that names an honest peer."""
        group = self._group("of_another_inside", attacker, peer_id=self._victim())
        return seal(attacker.identity, self._run_id, "group", group)

    # replayed

    def _again(self, attacker: Attacker) -> bytes:
        """An honest record, byte for byte."""
        return self._random.choice(self._honest)

    def _again_in_other_bytes(self, attacker: Attacker) -> bytes:
        """An honest record with reordered fields: the signature is valid, the bytes may be new."""
        fields = list(msgspec.structs.asdict(self._heard().envelope).items())
        self._random.shuffle(fields)
        return msgspec.msgpack.encode(dict(fields))

    def _own_again(self, attacker: Attacker) -> bytes:
        """The sender's own record, or one of its earlier identities, byte for byte."""
        return self._random.choice(self._own)[1] if self._own else self._lying(attacker)

    def _own_again_in_other_bytes(self, attacker: Attacker) -> bytes:
        """The sender's own group, signed again in a new body."""
        if not self._own or self._own[-1][0].peer_id != attacker.identity.peer_id:
            return self._lying(attacker)
        return self._around(_packed(self._own[-1][0]), attacker)

    def _own_sequence_again(self, attacker: Attacker) -> bytes:
        """A group with false rewards and a repeated sequence number: one of the two may be used."""
        if not self._own or self._own[-1][0].peer_id != attacker.identity.peer_id:
            return self._lying(attacker)
        again = replace(self._own[-1][0], created_at=time.time())
        return seal(attacker.identity, self._run_id, "group", again)

    def _answers_of_another(self, attacker: Attacker) -> bytes:
        """The question and the completions of an honest group under the sender's own name."""
        heard = _unpacked(self._heard())
        assert isinstance(heard.question, ProceduralRef)
        return self._group_record("answers_of_another", attacker, heard.question, heard.completions)

    # oversize

    def _long_record(self, attacker: Attacker) -> bytes:
        """More bytes than a record may have, but within gossip's limit."""
        size = self._limits.max_record_bytes + self._random.randrange(1, 1_000)
        return self._unsigned_around(self._random.randbytes(size))

    def _bomb(self, attacker: Attacker) -> bytes:
        """A few kilobytes with a true, huge decompressed size."""
        return self._around(self._bombs.true, attacker)

    def _bomb_of_unstated_size(self, attacker: Attacker) -> bytes:
        """A few kilobytes without a stated decompressed size."""
        return self._around(self._bombs.unstated, attacker)

    def _bomb_of_false_size(self, attacker: Attacker) -> bytes:
        """A few kilobytes with a false decompressed size of a thousand."""
        return self._around(self._bombs.false, attacker)

    def _many_completions(self, attacker: Attacker) -> bytes:
        count = self._limits.max_completions + 1
        return self._bounded("many_completions", attacker, (Completion("1", "stop"),) * count)

    def _wide_completions(self, attacker: Attacker) -> bytes:
        """Kilobytes of texts within the limit that take four bytes per character in memory."""
        text = "\N{FIRE}" + "1" * (self._limits.max_completion_chars - 1)
        return self._bounded("wide_completions", attacker, (Completion(text, "stop"),) * WIDE_COMPLETIONS)

    def _long_completion(self, attacker: Attacker) -> bytes:
        text = "1" * (self._limits.max_completion_chars + 1)
        return self._bounded("long_completion", attacker, (Completion(text, "stop"), Completion("1", "stop")))

    def _many_tokens(self, attacker: Attacker) -> bytes:
        ids = (1,) * (self._limits.max_completion_chars + 1)
        return self._bounded("many_tokens", attacker, (Completion("1", "stop", ids), Completion("2", "stop")))

    def _announced_too_large(self, attacker: Attacker) -> bytes:
        """The announcement of an oversized record."""
        return self._announced(attacker, self._limits.max_record_bytes + self._random.randrange(1, 2**30))

    def _announced_in_vain(self, attacker: Attacker) -> bytes:
        """The announcement of a record that nobody has."""
        return self._announced(attacker, self._limits.max_record_bytes)

    # malformed

    def _noise(self, attacker: Attacker) -> bytes:
        return self._random.randbytes(self._random.randrange(1, 2_000))

    def _cut(self, attacker: Attacker) -> bytes:
        record = self._random.choice(self._honest)
        return record[: self._random.randrange(1, len(record))]

    def _one_bit(self, attacker: Attacker) -> bytes:
        changed = bytearray(self._random.choice(self._honest))
        changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _other_message(self, attacker: Attacker) -> bytes:
        """Valid MessagePack that is not an envelope."""
        return msgspec.msgpack.encode({"rollouts": list(self._random.randbytes(300))})

    def _wrong_types(self, attacker: Attacker) -> bytes:
        """A body with one field of another type."""
        fields = msgspec.structs.asdict(self._heard().body)
        name = self._random.choice(list(fields))
        fields[name] = self._random.choice([None, -1, 2**63, 0.5, [], {}, "x", b"x", {"a": [None] * 9}])
        return self._unsigned_around(msgspec.msgpack.encode(fields))

    def _payload_of_noise(self, attacker: Attacker) -> bytes:
        """Valid signature, undecompressable payload."""
        return self._around(self._random.randbytes(500), attacker)

    def _payload_of_wrong_types(self, attacker: Attacker) -> bytes:
        """Valid signature, a group with one field of another type."""
        fields = msgspec.to_builtins(self._group("payload_of_wrong_types", attacker))
        required = RolloutGroup.__struct_fields__[: -len(RolloutGroup.__struct_defaults__)]
        # No mapping: one without known fields is a valid `Sampling`, whose fields all have defaults.
        fields[self._random.choice(required)] = self._random.choice([None, -0.5, "x" * 9, [[]], True])
        return self._around(zstandard.compress(msgspec.msgpack.encode(fields)), attacker)

    def _deep(self, attacker: Attacker) -> bytes:
        """Valid signature, deeply nested arrays."""
        depth = self._random.randrange(10_000, 60_000)
        return self._around(zstandard.compress(b"\x91" * depth + b"\xc0"), attacker)

    def _deep_surplus(self, attacker: Attacker) -> bytes:
        """Well signed, a group with a field that nobody knows: arrays in arrays in arrays."""
        fields = msgspec.to_builtins(self._group("deep_surplus", attacker))
        deep = msgspec.Raw(b"\x91" * self._random.randrange(10_000, 60_000) + b"\xc0")
        return self._around(zstandard.compress(msgspec.msgpack.encode({**fields, "surplus": deep})), attacker)

    def _other_kind_of_question(self, attacker: Attacker) -> bytes:
        """Well signed, a group as a later version may send it."""
        fields = msgspec.to_builtins(self._group("other_kind_of_question", attacker))
        fields["question"] = {"type": "riddle", "text": "?"}
        return self._around(zstandard.compress(msgspec.msgpack.encode(fields)), attacker)

    def _endless(self, attacker: Attacker) -> bytes:
        """Valid signature, an array with a claimed length of four billion."""
        return self._around(zstandard.compress(b"\xdd\xff\xff\xff\xff" + self._random.randbytes(50)), attacker)

    def _bad_numbers(self, attacker: Attacker) -> bytes:
        """Valid signature, with non-finite or negative values, or a wrong number of rewards."""
        group = self._group("bad_numbers", attacker)
        changed = self._random.choice(
            [
                replace(group, rewards=(float("nan"),) * GROUP_SIZE),
                replace(group, rewards=group.rewards[1:]),
                replace(group, created_at=float("inf")),
                replace(group, sequence=-1),
                replace(group, sampling=Sampling(temperature=float("nan"))),
                replace(group, completions=(), rewards=()),
            ]
        )
        return seal(attacker.identity, self._run_id, "group", changed)

    def _bad_logprobs(self, attacker: Attacker) -> bytes:
        """Valid signature, finite log-probabilities with an infinite sum."""
        answers = tuple(
            replace(each, token_ids=(1, 2), logprobs=(-1e308, -1e308)) for each in self._answers([1, 2, 3, 4])
        )
        return self._group_record("bad_logprobs", attacker, self._reference(), answers)

    def _other_kind(self, attacker: Attacker) -> bytes:
        body = replace(self._body(self._group("other_kind", attacker)), kind="x")
        return wrap(attacker.identity, msgspec.msgpack.encode(body))

    def _other_schema(self, attacker: Attacker) -> bytes:
        record = wrap(attacker.identity, msgspec.msgpack.encode(self._body(self._group("other_schema", attacker))))
        envelope = msgspec.msgpack.decode(record, type=Envelope)
        return msgspec.msgpack.encode(replace(envelope, schema_version=SCHEMA_VERSION + 1))

    # wrong

    def _wrong(self, attacker: Attacker) -> bytes:
        """Wrong answers, half of them with reward 1."""
        question = self._question()
        completions = self._answers([7] * GROUP_SIZE, wrong=question.prompt)
        return self._group_record("wrong", attacker, _procedural(question), completions)

    def _wrong_by_nobody(self, attacker: Attacker) -> bytes:
        """The same, signed with a one-time key: no such peer ever connects."""
        return self._wrong(Attacker(Identity.generate()))

    def _tokens_that_say_more(self, attacker: Attacker) -> bytes:
        """Wrong answers whose token ids and log-probabilities belong to other text."""
        question = self._question()
        completions = tuple(
            replace(each, token_ids=tuple(range(20)), logprobs=(-0.01,) * 20)
            for each in self._answers([7] * GROUP_SIZE, wrong=question.prompt)
        )
        return self._group_record("tokens_that_say_more", attacker, _procedural(question), completions)

    def _other_question(self, attacker: Attacker) -> bytes:
        """A question whose text does not match its reference."""
        ref = replace(self._reference(), question_hash=self._random.randbytes(16).hex())
        return self._group_record("other_question", attacker, ref)

    def _other_options(self, attacker: Attacker) -> bytes:
        return self._group_record("other_options", attacker, replace(self._reference(), options_digest="0" * 32))

    def _unknown_task(self, attacker: Attacker) -> bytes:
        return self._group_record("unknown_task", attacker, replace(self._reference(), task="alchemy"))

    def _slow(self, attacker: Attacker) -> bytes:
        """A question that is slow to make, far along the stream, with an arbitrary digest."""
        source = self._mixture.sources[SLOW_TASK]
        ref = ProceduralRef(
            task=source.name,
            library="hostile",
            options_digest=self._slow_digest,
            seed=2**62 - self._random.randrange(2**40),
            index=2**62 - self._random.randrange(2**40),
            question_hash=self._random.randbytes(16).hex(),
        )
        return self._group_record("slow", attacker, ref)

    def _lying(self, attacker: Attacker) -> bytes:
        """Half of the answers are right, with inverted rewards."""
        question = self._question()
        answers, rewards = self._half_right(question), (0.0, 0.0, 1.0, 1.0)
        group = self._group(LYING, attacker, question=_procedural(question), completions=answers, rewards=rewards)
        record = seal(attacker.identity, self._run_id, "group", group)
        self._own.append((group, record))
        return record

    # what they are made of

    def _group(
        self,
        variant: str,
        attacker: Attacker,
        *,
        peer_id: str = "",
        question: ProceduralRef | None = None,
        completions: tuple[Completion, ...] = (),
        rewards: tuple[float, ...] = (),
    ) -> RolloutGroup:
        drawn = self._question()
        answers = completions or self._half_right(drawn)
        return RolloutGroup(
            run_id=self._run_id,
            peer_id=peer_id or attacker.identity.peer_id,
            sequence=attacker.next(),
            created_at=time.time(),
            policy=PolicyId(f"{LABEL}{variant}", "hostile", 0),
            sampling=Sampling(),
            question=question or _procedural(drawn),
            completions=answers,
            rewards=rewards or tuple(float(index % 2) for index in range(len(answers))),
        )

    def _group_record(
        self,
        variant: str,
        attacker: Attacker,
        question: ProceduralRef,
        completions: tuple[Completion, ...] = (),
        rewards: tuple[float, ...] = (),
    ) -> bytes:
        group = self._group(variant, attacker, question=question, completions=completions, rewards=rewards)
        return seal(attacker.identity, self._run_id, "group", group)

    def _bounded(self, variant: str, attacker: Attacker, completions: tuple[Completion, ...]) -> bytes:
        return self._group_record(variant, attacker, self._reference(), completions)

    def _announced(self, attacker: Attacker, num_bytes: int) -> bytes:
        chunks = tuple(self._random.randbytes(16) for _ in range(min(16, -(-num_bytes // MAX_CHUNK_BYTES))))
        announcement = Announcement(
            self._run_id, attacker.identity.peer_id, self._random.randbytes(16), num_bytes, chunks
        )
        return seal_announcement(attacker.identity, announcement)

    def _question(self) -> Question:
        """A reproducible question that `solve` can answer."""
        while True:
            question = self._mixture.question(self._random.randrange(2**40), self._random.randrange(1_000))
            if solve(question.prompt) is not None:
                return question

    def _reference(self) -> ProceduralRef:
        return _procedural(self._question())

    def _half_right(self, question: Question) -> tuple[Completion, ...]:
        right = solve(question.prompt)
        assert right is not None
        return self._answers([right, right, right + 1, right + 2])

    def _answers(self, values: Sequence[int], *, wrong: Prompt = "") -> tuple[Completion, ...]:
        """Completions; with `wrong`, the values are offsets from the right answer."""
        offset = (solve(wrong) or 0) if wrong else 0
        return tuple(Completion(answer(offset + value, SMALL, self._random), "stop") for value in values)

    def _victim(self) -> str:
        return self._heard().body.peer_id

    def _heard(self) -> SealedRecord:
        record = self._random.choice(self._honest)
        return read_record(record, len(record))

    def _body(self, group: RolloutGroup) -> Body:
        return Body(self._run_id, group.peer_id, "group", _packed(group))

    def _unsigned_around(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode(Envelope(SCHEMA_VERSION, body, self._random.randbytes(64)))

    def _around(self, payload: bytes, attacker: Attacker) -> bytes:
        """A valid signature around any payload, with new bytes."""
        body = msgspec.structs.asdict(Body(self._run_id, attacker.identity.peer_id, "group", payload))
        return wrap(attacker.identity, msgspec.msgpack.encode(body | {"surplus": self._random.randbytes(8)}))


@dataclass(frozen=True)
class _Bombs:
    """Payloads of a few hundred bytes that decompress to many."""

    true: bytes
    unstated: bytes
    false: bytes


def _bombs(source: random.Random) -> _Bombs:
    content = source.randbytes(16) + bytes(BOMB_BYTES)
    true = zstandard.compress(content)
    stream = zstandard.ZstdCompressor().compressobj()
    unstated = stream.compress(content) + stream.flush()
    # Magic, descriptor (the size has 4 bytes, and comes after a window's), window, size.
    assert true[4] >> 5 == 0b100
    return _Bombs(true, unstated, true[:6] + struct.pack("<I", 1_000) + true[10:])


def _unpacked(heard: SealedRecord) -> RolloutGroup:
    return msgspec.msgpack.decode(zstandard.decompress(heard.body.payload), type=RolloutGroup)


def _packed(group: RolloutGroup) -> bytes:
    return zstandard.compress(msgspec.msgpack.encode(group))


def _procedural(question: Question) -> ProceduralRef:
    assert isinstance(question.ref, ProceduralRef)
    return question.ref
