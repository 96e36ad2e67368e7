"""What a data set's row asks, and which answers to it are right."""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec import Struct

from swarm.environments.answering import MAX_PROMPT_CHARS, MatchRule
from swarm.environments.config import DatasetTask
from swarm.environments.scoring.grading import Choices, matches
from swarm.environments.sources.choice_columns import ChoiceColumns
from swarm.environments.sources.columns import MalformedRow, Row, Template
from swarm.environments.sources.last_text import last_text, with_last_text
from swarm.environments.sources.media_columns import MediaColumns
from swarm.environments.sources.media_files import MediaFiles
from swarm.types import Prompt, as_text, media_of

MAX_REFERENCES = 256
"""Right answers of one question."""


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
        """Those that may hold pictures, sounds and clips."""
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
