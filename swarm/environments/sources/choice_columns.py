"""Reads the choices of a data set's multiple-choice questions, and which of them is right."""

from __future__ import annotations

from collections.abc import Collection
from string import ascii_uppercase

from swarm.environments.config import MAX_CHOICES, DatasetTask
from swarm.environments.scoring.grading import Choices, position
from swarm.environments.sources.columns import Column, MalformedRow, Row, Template, as_plain

_LETTERS = tuple(ascii_uppercase)
_NUMBERS = tuple(map(str, range(MAX_CHOICES)))


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
