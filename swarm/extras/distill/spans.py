"""From a teacher's log-probabilities of spans of bytes to advantages of the student's tokens. Pure.

    text        b a n a n a s END        END counts as one more byte, if the policy ended its turn itself
    teacher     |ban|anas|END|           spans: cut where one of its tokens ends
    student     |b|an|ana|s|END|
    both        |b an|ana s|END|         cut where both have a cut: the finest spans that both can say something about

A span that both have is one action of the student: the product of its tokens' probabilities. The reverse divergence
KL(student || teacher) has, on the student's own samples, the gradient of -E[(T - S) log p], with the span's
log-probabilities T of the teacher and S of the student without gradient (k1 in the policy gradient, one span at a
time). So every token of a span gets the advantage T - S, truncated. What no common cut closes is left out.

Sources: on-policy distillation, arXiv:2306.13649 and thinkingmachines.ai/blog/on-policy-distillation; spans between
synchronisation points, arXiv:2606.09456, section 4; cuts by bytes instead of decoded strings, trl pull request 5885;
the advantage truncated, as in rllm and prime-rl.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

Decode = Callable[[list[int]], str]
"""See `Policy.decode`."""
Cuts = Sequence[int | None]
"""[T] bytes before the end of each token; None where a token ends within a character."""
REPLACED = "\ufffd"
"""What decoders write for a part of a character."""
MOST_PARTS = 16
"""Tokens without a cut among them, more than any character has bytes, beyond which ids spell nothing: a text of
replacement characters would take time by the square of its length."""


class Spans(NamedTuple):
    """A text's log-probability, in parts."""

    ends: Sequence[int]
    """[N] bytes before the end of each span, increasing."""
    logprobs: Sequence[float]
    """[N] in nats."""


def cuts(decode: Decode, ids: Sequence[int], text: str, ended: bool) -> Cuts:
    """Where the tokens `ids` cut `text`; empty when they do not spell it. `ended`: the last id ends the turn.

    Decodes each token after its neighbours: decoders treat a first token otherwise.
    """
    spelling = ids[: len(ids) - ended]
    found: list[int | None] = []
    chars = num_bytes = start = shown = 0
    for k in range(len(spelling)):
        before, after = decode(list(spelling[start:shown])), decode(list(spelling[start : k + 1]))
        piece = after[len(before) :]
        if not piece or piece.endswith(REPLACED):
            if k - shown >= MOST_PARTS:
                return []
            found.append(None)
            continue
        if not (after.startswith(before) and text.startswith(piece, chars)):
            return []
        chars, num_bytes = chars + len(piece), num_bytes + len(piece.encode())
        found.append(num_bytes)
        start, shown = shown, k + 1
    if chars != len(text) and (not found or found[-1] is not None):
        return []
    return [*found, len(text.encode()) + 1] if ended else found


def spans(cut: Cuts, logprobs: Sequence[float]) -> Spans:
    """The tokens' log-probabilities [T] by spans between the cuts [T]."""
    ends: list[int] = []
    values: list[float] = []
    total = 0.0
    for end, logprob in zip(cut, logprobs, strict=True):
        total += logprob
        if end is not None:
            ends.append(end)
            values.append(total)
            total = 0.0
    return Spans(ends, values)


def differences(cut: Cuts, logprobs: Sequence[float], teacher: Spans) -> list[float | None]:
    """[T] for each of the student's tokens T - S of its span, in nats; None for tokens that no common cut closes.

    `cut` and `logprobs` [T] are the student's.
    """
    said = dict(zip(teacher.ends, accumulate(teacher.logprobs), strict=True))
    found: list[float | None] = [None] * len(cut)
    first, before, own = 0, 0.0, 0.0
    for k, (end, logprob) in enumerate(zip(cut, logprobs, strict=True)):
        own += logprob
        if end is not None and end in said:
            found[first : k + 1] = [said[end] - before - own] * (k + 1 - first)
            first, before, own = k + 1, said[end], 0.0
    return found


def advantages(found: Sequence[float | None], weight: float, bound: float) -> tuple[float, ...]:
    """[T] weight x difference, the difference at most `bound` nats on either side; 0 where there is none."""
    return tuple(0.0 if each is None else weight * min(max(each, -bound), bound) for each in found)
