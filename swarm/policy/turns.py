"""What chat templates leave open: the tokens between two turns of the policy, and where system text goes.

Between two turns are the end of one, an observation, and the opening of the next.

A chat template renders whole conversations, and tokenizing what it renders may split an earlier turn into other tokens
than were sampled. So only what follows a turn is taken from the template, once; a turn's own tokens stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from swarm.errors import PolicyError
from swarm.types import Message

SYSTEM, QUESTION, ANSWER, OBSERVATION = "SYSTEMMARK", "QUESTIONMARK", "ANSWERMARK", "OBSERVATIONMARK"
"""They stand for texts while a template is read."""
WITHOUT_TEMPLATE = "\n"
"""Before and after an observation where there is no template."""


def has_system_role(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template renders system text; some refuse it, as Gemma's first, and some leave it out."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    try:
        return SYSTEM in str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except TemplateError:
        return False


def without_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The conversation with its system text, if any, before the user's first text."""
    if messages[0].role != "system":
        return messages
    system, first, *rest = messages
    return (Message(first.role, f"{system.content}\n\n{first.content}"), *rest)


class Between:
    """What a tokenizer's template puts between two turns of the policy."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_ids: Collection[int]) -> None:
        """`stop_ids` end a turn. The template is read when it is needed first."""
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids

    def ids(self, text: str, after: Sequence[int]) -> list[int]:
        """Tokens of an observation's `text` between a turn with the tokens `after` and the next one.

        Text that spells a special token stays text: an environment may repeat what a stranger said. Raises
        `PolicyError` for a template without such conversations.
        """
        before, behind = self._around
        if after and after[-1] in self._stop_ids and before and before[0] in self._stop_ids:
            before = before[1:]  # the turn has ended itself
        said = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return [*before, *said, *behind]

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """Tokens before and behind the observation."""
        before, behind = self._read_template() if self._tokenizer.chat_template else (WITHOUT_TEMPLATE,) * 2
        return self._plain(before), self._plain(behind)

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _read_template(self) -> tuple[str, str]:
        messages = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": ANSWER},
            {"role": "user", "content": OBSERVATION},
        ]
        try:
            text = str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except TemplateError as error:
            raise PolicyError(f"the chat template refuses an episode of two turns: {error}") from error
        before, mark, behind = text.partition(ANSWER)[2].partition(OBSERVATION)
        if not mark:
            raise PolicyError("the chat template does not render an answer and what follows it, in this order")
        return before, behind
