"""A policy's thoughts in its tokens: the model's own marks, and the common ones of texts (`swarm/types/thoughts.py`).

    sampled   ...<|im_start|>assistant\\n<think>\\n │ 3 + 4 is 7.\\n</think>\\n\\n<answer>7</answer><|im_end|>
    text                          <think>\\n      │ 3 + 4 is 7.\\n</think>\\n\\n<answer>7</answer>

The marks are found in the chat template. It may write the opening one into the prompt, or a whole empty thought, where
thinking is off; so the same text is other tokens for policies that are asked in other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from swarm.errors import PolicyError
from swarm.types.thoughts import CLOSE, OPEN, parts_of


@dataclass(frozen=True)
class Marks:
    """Texts around a thought."""

    open: str
    close: str
    inserted: str = ""
    """What ends a thought from outside, the closing mark with what surrounds it; empty: the mark alone."""
    plain: str = ""
    """What begins an answer without a thought."""

    @property
    def end(self) -> str:
        """What the engine inserts."""
        return self.inserted or self.close


def xml_like(open: str, close: str) -> Marks:
    """Marks on lines of their own, with an empty line before the answer."""
    return Marks(open, close, f"\n{close}\n\n")


KNOWN = (
    xml_like(OPEN, CLOSE),  # Qwen3, DeepSeek-R1, GLM-4.5, MiniMax-M2, SmolLM3
    Marks("[THINK]", "[/THINK]"),  # Magistral
    Marks(  # gpt-oss
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        plain="<|channel|>final<|message|>",
    ),
    Marks("<|channel>thought\n", "<channel|>"),  # Gemma 4
    xml_like("<seed:think>", "</seed:think>"),  # Seed-OSS
    xml_like("◁think▷", "◁/think▷"),  # Kimi
)


def named_marks(pair: Sequence[str]) -> Marks | None:
    """The marks of the setting `policy.thinking_marks`; None for an empty one."""
    if not pair:
        return None
    open, close = pair
    return next((marks for marks in KNOWN if (marks.open, marks.close) == (open, close)), Marks(open, close))


def find_marks(template: str) -> Marks | None:
    """The marks that a chat template writes; None for one without."""
    return next((marks for marks in KNOWN if marks.open.strip() in template or marks.close in template), None)


class Prompted(Enum):
    """How a prompt ends."""

    FREE = "free"
    """Without a mark: the policy may begin a thought."""
    OPENED = "opened"
    """Within a thought."""
    OFF = "off"
    """After a thought without content."""


def prompted(marks: Marks, prompt: str) -> Prompted:
    """How a rendered prompt ends."""
    end = prompt.rstrip()
    if end.endswith(marks.open.rstrip()):
        return Prompted.OPENED
    return Prompted.OFF if end.endswith(marks.close.rstrip()) else Prompted.FREE


Decode = Callable[[list[int]], str]
Piece = str | list[int]
"""A part of a text that is still to be tokenized, or its tokens."""


class Thinking:
    """Converts between tokens of one policy and texts with the common marks."""

    def __init__(
        self, marks: Marks, prompt: str, encode: Callable[[str], list[int]], is_added: Callable[[int], bool]
    ) -> None:
        """`prompt` is a question as the template renders it. `encode` gives the tokens of a text, special ones
        included; `is_added` says of a token that text never joins it with its neighbours.

        Raises `PolicyError` for marks that are found in tokens only, and are none.
        """
        self.prompted = prompted(marks, prompt)
        self._is_opened = self.prompted is Prompted.OPENED
        self._lead = OPEN + prompt[len(prompt.rstrip()) :] if self._is_opened else ""
        """What a text has before the thought where the prompt has begun it, with the template's white space."""
        self._open, self._close, self.end = encode(marks.open), encode(marks.close), encode(marks.end)
        """`end` is what the engine inserts."""
        self._plain = encode(marks.plain) if marks.plain else []
        self.by_token = is_added(self._open[0]) and is_added(self._close[0])
        """Whether tokens mark the thought; otherwise its text does."""
        if not self.by_token and (marks.open, marks.close) != (OPEN, CLOSE):
            raise PolicyError(
                f"the marks of a thought, {marks.open!r} and {marks.close!r}, must begin with added tokens of the "
                f"tokenizer: only {OPEN} and {CLOSE} may be plain text"
            )

    def is_open(self, ids: Sequence[int]) -> bool:
        """Whether a turn that begins with these tokens is within its thought."""
        return self._is_thought(ids) and self._close[0] not in ids

    def spoken(self, ids: Sequence[int]) -> list[list[int]]:
        """The tokens between the marks of a turn: of an answer or a thought alone, or of both."""
        if not self._is_thought(ids):
            return [list(ids[len(self._plain) :] if self._plain and _starts(ids, self._plain) else ids)]
        begin = 0 if self._is_opened else len(self._open)
        at = _find(ids, self._close, begin)
        return [list(ids[begin:])] if at < 0 else [list(ids[begin:at]), list(ids[at + len(self._close) :])]

    def text(self, ids: Sequence[int], forced: int | None, decode: Decode, decode_answer: Decode) -> str:
        """A turn's text. `forced` as in `Completion`; `decode_answer` gives that of what follows the thought."""
        if forced is not None:
            thought = self.text(ids[:forced], None, decode, decode)
            return f"{thought}{CLOSE}{decode_answer(list(ids[forced:]))}"
        parts = self.spoken(ids)
        if not (self._is_opened or self._is_thought(ids)):
            return decode_answer(parts[0])
        return (self._lead or OPEN) + CLOSE.join((decode(parts[0]), *map(decode_answer, parts[1:])))

    def pieces(self, text: str, forced: bool) -> list[Piece]:
        """The tokens of a turn's text, in pieces; `forced`: without the end of its thought."""
        thought, answer = parts_of(text)
        if thought is None:
            return [self.end, text.lstrip("\n")] if self._is_opened else [self._plain, text]
        if self.prompted is Prompted.OFF and answer is not None:
            return [answer.lstrip("\n")]  # this policy is asked for answers alone
        thought = thought.removeprefix(self._lead[len(OPEN) :])
        begun: list[Piece] = [thought] if self._is_opened else [self._open, thought]
        if answer is None:
            return begun
        if not (self.by_token or forced):  # neighbours may share a token with the mark
            return [f"{thought}{CLOSE}{answer}" if self._is_opened else text]
        return [*begun, answer] if forced else [*begun, self._close, answer]

    def _is_thought(self, ids: Sequence[int]) -> bool:
        """Whether tokens mark a thought at the beginning of a turn."""
        return self.by_token and (self._is_opened or _starts(ids, self._open))


def _starts(ids: Sequence[int], wanted: list[int]) -> bool:
    return list(ids[: len(wanted)]) == wanted


def _find(ids: Sequence[int], wanted: list[int], start: int) -> int:
    """Where `wanted` begins in `ids`, from `start` on; -1 where it does not."""
    places = (
        at for at in range(start, len(ids)) if ids[at] == wanted[0] and _starts(ids[at : at + len(wanted)], wanted)
    )
    return next(places, -1)
