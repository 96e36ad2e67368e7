"""What a data set's row asks, and which answers to it are right."""

from __future__ import annotations

import re
from collections.abc import Collection
from string import ascii_uppercase

from msgspec import Struct

from swarm.environments.answering import MAX_PROMPT_CHARS, MatchRule
from swarm.environments.scoring.grading import Choices, matches, position
from swarm.environments.sources.columns import Column, MalformedRow, MediaColumns, MediaFiles, Row, Template, as_plain
from swarm.environments.sources.dataset import MAX_CHOICES, DatasetTask
from swarm.environments.sources.procedural import last_text, with_last_text
from swarm.types import Prompt, as_text, media_of

MAX_REFERENCES = 256
"""Right answers of one question."""


_LETTERS = tuple(ascii_uppercase)
_NUMBERS = tuple(map(str, range(MAX_CHOICES)))


class Item(Struct, frozen=True):
    """A question with what is needed to grade its answers."""

    prompt: Prompt
    references: tuple[str, ...] = ()
    """Any of them is right; empty with choices."""
    choices: Choices | None = None

    def is_right(self, answer: str, rule: MatchRule) -> bool:
        """Whether an answer is one of the references under the rule, or names the right choice."""
        question = as_text(self.prompt)
        if self.choices is not None:
            return self.choices.are_answered_by(answer, rule, question)
        return any(matches(rule, answer, reference, question) for reference in self.references)


class ItemReader:
    """Makes items of a task's rows."""

    def __init__(self, config: DatasetTask, columns: Collection[str], files: MediaFiles | None = None) -> None:
        """`columns` are the data set's; `files` those that its rows may name.

        Raises `ValueError` for an unknown column or an invalid pattern, `TaskError` for a missing library.
        """
        self._config = config
        self._media = MediaColumns(config, columns, files) if config.media else None
        self._prompt = Template(config.prompt, columns)
        self._answer = Template(config.answer, columns)
        self._choices = ChoiceColumns(config, columns) if config.choices is not None else None
        media = self._media.columns if self._media is not None else []
        self.columns = [*self._prompt.columns, *(self._choices or self._answer).columns, *media]
        """All columns in use."""
        self.with_media = {column.name for column in (*media, *(self._prompt.columns if config.inline else ()))}
        """Columns that may hold images, audio and video."""
        try:
            self._answer_pattern = re.compile(config.answer_pattern) if config.answer_pattern else None
        except re.error as error:
            raise ValueError(f"answer_pattern {config.answer_pattern!r}: {error}") from error

    def read(self, values: Row, row: int) -> Item:
        """The item of row number `row`. Raises `MalformedRow`."""
        prompt = self._asked_in(values)
        if not (last_text(prompt).strip() or media_of(prompt)):
            raise MalformedRow("empty prompt")
        if self._choices is None:
            return Item(self._asked(prompt), self._references(values))
        choices = self._choices.read(values, row)
        return Item(self._asked(prompt, choices.listed()), choices=choices)

    def _asked_in(self, values: Row) -> Prompt:
        if self._media is None:
            return self._prompt.prompt(values)
        return self._media.prompt(self._prompt.value(values), values)

    def _references(self, values: Row) -> tuple[str, ...]:
        answers, pattern = self._answer.texts(values), self._answer_pattern
        if len(answers) > MAX_REFERENCES:
            raise MalformedRow(f"there must be at most {MAX_REFERENCES} answers, got {len(answers)}")
        found = answers if pattern is None else [_last_match(pattern, answer) for answer in answers]
        references = tuple(text.strip() for text in found if text.strip())
        if not references:
            missing = f"answer_pattern {pattern.pattern!r} is not" if pattern else "there is no text"
            raise MalformedRow(f"{missing} in {', '.join(answers)[:80]!r}")
        return references

    def _asked(self, prompt: Prompt, *choices: str) -> Prompt:
        """The prompt, its last text followed by the choices and the request for the answer's form."""
        asked = with_last_text(prompt, lambda text: self._config.asked("\n".join((text, *choices))))
        if (num_chars := len(as_text(asked))) > MAX_PROMPT_CHARS:
            raise MalformedRow(f"a question of {num_chars} characters, more than {MAX_PROMPT_CHARS}")
        return asked


def _last_match(pattern: re.Pattern[str], answer: str) -> str:
    """Its group 1 if there is one; empty without a match."""
    found = list(pattern.finditer(answer))
    return ((found[-1][1] if pattern.groups else found[-1][0]) or "") if found else ""


class ChoiceColumns:
    """The columns that a task with `choices` names."""

    def __init__(self, config: DatasetTask, columns: Collection[str]) -> None:
        """Raises `ValueError` for an unknown column."""
        each = config.choices if isinstance(config.choices, tuple) else ()
        self._each = [Template(template, columns) for template in each]
        self._list = Column(config.choices, columns) if isinstance(config.choices, str) else None
        labels = config.choice_labels
        self._labels = Column(labels, columns) if isinstance(labels, str) else None
        self._named = labels if isinstance(labels, tuple) else None
        self._right = each.index(config.answer) if config.answer in each else None
        self._answer = Template(config.answer, columns)
        self._shuffle = config.shuffle

    @property
    def columns(self) -> list[Column]:
        """All columns in use."""
        alone = [column for column in (self._list, self._labels) if column is not None]
        return [*alone, *(column for template in (*self._each, self._answer) for column in template.columns)]

    def read(self, row: Row, number: int) -> Choices:
        """The choices of row `number`. Raises `MalformedRow` if it is not clear which is right."""
        if self._list is not None:
            texts = _texts(self._list, row)
        else:
            texts = tuple(as_plain(template.value(row), "a choice") for template in self._each)
        if not 2 <= len(texts) <= MAX_CHOICES or not all(text.strip() for text in texts):
            raise MalformedRow(f"there must be 2 to {MAX_CHOICES} choices with text, got {len(texts)}")
        right = self._right if self._right is not None else self._position(row, texts)
        if right is None or right >= len(texts):
            raise MalformedRow("the answer does not name one of the choices; choice_labels says what it may name")
        choices = Choices(texts, right)
        return choices if self._shuffle is None else choices.shuffled(self._shuffle, number)

    def _position(self, row: Row, texts: tuple[str, ...]) -> int | None:
        value = self._answer.value(row)
        answer = as_plain(value, "the answer")
        labels = self._named if self._labels is None else _texts(self._labels, row)
        if labels is not None:
            return position(answer, labels)
        letters, numbers = _LETTERS[: len(texts)], _NUMBERS[: len(texts)]
        # a number counts from 0, whatever the texts are
        return position(answer, numbers) if isinstance(value, int) else position(answer, letters, numbers, texts)


def _texts(column: Column, row: Row) -> tuple[str, ...]:
    values = column.value(row)
    if not isinstance(values, list):
        raise MalformedRow(f"{column.path!r} must be a list")
    return tuple(as_plain(value, column.path) for value in values)
