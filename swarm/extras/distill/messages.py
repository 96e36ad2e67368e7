"""What a student asks and what a teacher answers.

    student   Ask: the question by reference, texts of completions, a nonce           at most 1 MiB, as every request
    teacher   signed Opinion: digest of the request, spans of each text               at most 2 MiB, as every answer
              nothing: not now

The question travels by reference: the teacher makes its text again. The signature covers the digest of the request with
its nonce, so that no answer fits another request. Log-probabilities are multiples of 1/64 nat, rounded after they are
summed up, so that errors do not add up over the spans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from swarm.errors import Refusal
from swarm.extras.distill.spans import Spans
from swarm.net.records.identity import Identity, verify
from swarm.reasons import Reason
from swarm.types import MAX_COMPLETIONS, TaskRef, complete
from swarm.types.bounds import Count, Name

T = TypeVar("T")
TEACH_PROTOCOL = "/swarm/teach/1"
MAX_TEXT_CHARS = 2**17
MAX_SPANS = 2**17
MAX_READ_CHARS = 2**16
"""Longest text that a student may ask about."""
CHARS_A_PASS = 4_096
STEPS_PER_NAT = 64
MAX_STEPS = STEPS_PER_NAT * 10_000
"""The bound that `LogProb` sets for a token."""
_SIGNED = b"swarm opinion 1\0"

Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
Delta = Annotated[int, Meta(ge=1, le=4 * MAX_TEXT_CHARS + 1)]
Steps = Annotated[int, Meta(ge=0, le=MAX_STEPS)]


class Ask(Struct, frozen=True, array_like=True):
    """A student's own completions of one question."""

    run_id: Name
    question: TaskRef
    texts: Annotated[tuple[tuple[Text, bool], ...], Meta(min_length=1, max_length=MAX_COMPLETIONS)]
    """[G] with whether the policy ended its turn itself."""
    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]

    @property
    def passes(self) -> int:
        """What it costs: a pass for each started `CHARS_A_PASS` characters of a text, with its end as one more."""
        return sum(1 + len(text) // CHARS_A_PASS for text, _ in self.texts)


class Said(Struct, frozen=True, array_like=True):
    """A text's spans."""

    deltas: Annotated[tuple[Delta, ...], Meta(max_length=MAX_SPANS)]
    """[N] bytes of each."""
    steps: Annotated[tuple[Steps, ...], Meta(max_length=MAX_SPANS)]
    """[N] -log-probability of each, in 1/64 nat."""


class Opinion(Struct, frozen=True, array_like=True):
    """A teacher's answer."""

    asked: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """SHA-256 of the request."""
    version: Count
    """Version of the teacher's policy, for whoever reads the answers."""
    said: Annotated[tuple[Said, ...], Meta(min_length=1, max_length=MAX_COMPLETIONS)]
    """[G]; without spans where the teacher cannot read the text."""


class _Sealed(Struct, frozen=True, array_like=True):
    opinion: bytes
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


_encode = msgspec.msgpack.Encoder().encode


def encode_ask(ask: Ask) -> bytes:
    """The request."""
    return _encode(ask)


def open_ask(request: bytes, run_id: str) -> Ask:
    """Raises `Refusal`."""
    ask = _decode(request, Ask)
    if ask.run_id != run_id:
        raise Refusal(Reason.WRONG_RUN, ask.run_id)
    return ask


def seal(identity: Identity, request: bytes, version: int, opinions: Sequence[Spans]) -> bytes:
    """The answer to a request: [G] spans of its texts."""
    opinion = _encode(Opinion(hashlib.sha256(request).digest(), version, tuple(map(_said, opinions))))
    return _encode(_Sealed(opinion, identity.sign(_SIGNED + opinion)))


def open_opinion(answer: bytes, request: bytes, texts: Sequence[tuple[str, bool]], peer_id: str) -> Opinion:
    """The teacher's answer about these texts. Raises `Refusal` for one of somebody else, of another request, or that
    speaks of more than was asked."""
    sealed = _decode(answer, _Sealed)
    if not verify(peer_id, _SIGNED + sealed.opinion, sealed.signature):
        raise Refusal(Reason.BAD_SIGNATURE, "an opinion that its teacher did not sign")
    opinion = _decode(sealed.opinion, Opinion)
    if opinion.asked != hashlib.sha256(request).digest():
        raise Refusal(Reason.REPLAYED, "an opinion about another request")
    whole = [len(text.encode()) + ended for text, ended in texts]
    if len(opinion.said) != len(whole) or any(
        len(each.deltas) != len(each.steps) or sum(each.deltas) > most
        for each, most in zip(opinion.said, whole, strict=False)
    ):
        raise Refusal(Reason.LIMITS, "an opinion about other texts than were asked for")
    return opinion


def spans_of(said: Said) -> Spans:
    """The spans as they were meant, up to rounding."""
    return Spans(list(accumulate(said.deltas)), [-steps / STEPS_PER_NAT for steps in said.steps])


def _said(opinion: Spans) -> Said:
    deltas, steps, end, total, rounded = [], [], 0, 0.0, 0
    for each, logprob in zip(opinion.ends, opinion.logprobs, strict=True):
        total -= logprob
        step = min(max(0, round(total * STEPS_PER_NAT) - rounded), MAX_STEPS)
        deltas.append(each - end)
        steps.append(step)
        end, rounded = each, rounded + step
    return Said(tuple(deltas), tuple(steps))


def _decode(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(Reason.MALFORMED, str(error)) from error


complete(globals())
