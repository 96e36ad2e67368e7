"""Data sets as tasks: their settings. `hf_datasets.py` reads the rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from swarm.environments.answering import MatchRule, QuestionSettings, RewardSettings, Template
from swarm.environments.config import Context, StoredRows, Target
from swarm.environments.decoding.files import MediaSettings, decoders
from swarm.files import at_home
from swarm.protocols import TaskSource
from swarm.sanitize import is_name
from swarm.types.media import Modality

if TYPE_CHECKING:
    from swarm.environments.conversion.counting import Conversion

MAX_HUB_ID_CHARS = 96
MAX_HUB_NAME_CHARS = 128
MAX_PATTERN_CHARS = 1_024
MAX_CHOICES = 26
"""Choices of one question: the letters."""
Each = Annotated[tuple[Template, ...], Field(min_length=2, max_length=MAX_CHOICES)]
"""Something for each choice."""

FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".txt": "text"}
"""Suffixes of the local files a `DatasetTask` reads, and the `datasets` builder for each."""


class RowsTask(QuestionSettings):
    """A kind of task whose questions are the rows of a Hugging Face data set or of local files."""

    has_rows = True

    path: str
    """Hub id, or a local file or folder (json, jsonl, csv, parquet, text)."""
    public: bool = False
    """Read only a public repository of the hub, `OWNER/NAME`: no local files, no access token, no URLs that the
    repository names. Data sets of a run's manifest are always read this way."""
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    """Hub revision; pin it, so that all peers see the same rows."""
    prompt: Template = "{question}"
    """Column, or a template with columns in braces. A column may be a path such as `extra_info.question` or
    `messages[0].content`; one with a list of messages, each with `role` and `content`, is asked as a conversation."""
    row_weight: str | None = None
    """Column of numbers: rows for training are drawn in proportion to it, those of 0 never. Default: all alike."""

    def import_libraries(self) -> None:
        """See `TaskSettings`."""
        import swarm.environments.sources.hf_datasets  # noqa: F401

        super().import_libraries()

    def store(self, folder: Path, conversion: Conversion) -> StoredRows:
        """See `TaskSettings`."""
        from swarm.environments.sources.hf_datasets import store

        return store(self, conversion)

    @property
    def reads_as(self) -> tuple[str | None | Mapping[str, JsonValue], ...]:
        """What distinguishes its questions, answers and rewards from those of other settings, for digests."""
        return (self.subset, self.split, self.prompt, *self.finds_as, *self.grades_as, *self.combines_as)

    @property
    def is_on_disk(self) -> bool:
        """Whether it reads local files rather than the hub."""
        if self.public:
            return False
        if looks_local(self.path):
            return True
        with suppress(OSError, ValueError):  # a text too long for a path is not one, nor one with NUL
            return Path(self.path).exists()
        return False

    def from_anywhere(self) -> Self:
        """See `TaskSettings`."""
        here = {"path": str(at_home(self.path).absolute())} if self.is_on_disk else {}
        return super().from_anywhere().model_copy(update=here)

    @model_validator(mode="after")
    def _a_public_one_names_nothing_but_a_repository(self) -> Self:
        if not self.public:
            return self
        if not is_hub_id(self.path):
            raise ValueError(f"path must be OWNER/NAME of a data set on the hub, got {self.path[:MAX_HUB_ID_CHARS]!r}")
        for field, value in (("subset", self.subset), ("revision", self.revision)):
            if value is not None and not is_hub_name(value):
                raise ValueError(f"{field} must be a name on the hub, got {value[:MAX_HUB_NAME_CHARS]!r}")
        if re.fullmatch(r"[\w.+:%\[\]-]{1,128}", self.split, re.ASCII) is None:
            raise ValueError(f"split must be like train or train[:10%], got {self.split[:MAX_HUB_NAME_CHARS]!r}")
        return self


class DatasetTask(RowsTask, MediaSettings):
    """A Hugging Face data set: hub id or local files with prompt and answer columns."""

    code_field = "scorer"

    kind: Literal["dataset"]
    answer: Template = "answer"
    """Column or template, like `prompt`; any item of a list such as `answers.text` is right."""
    answer_pattern: str | None = Field(None, max_length=MAX_PATTERN_CHARS)
    """Regular expression; its last match in the answer column (group 1 if there is one) is the reference answer."""
    choices: Template | Each | None = None
    """For multiple choice: a column with a list, such as `choices.text`, or a list of columns. The question lists them
    with letters; the right one's letter or text is a right answer."""
    choice_labels: Template | Each | None = None
    """How `answer` names a choice: a column with a list of labels, such as `choices.label`, or these labels. Default:
    the letter from A, the number from 0, the text, or as one of the columns in `choices`."""
    shuffle: int | None = Field(None, ge=0, lt=2**32)
    """Seed of each row's order of choices; default: as in the data set."""
    match: MatchRule = "exact"
    """Compare text, numbers, or mathematics in \\\\boxed{}."""
    scorer: Target | None = None
    """A custom function instead of `match`, `reward(question, completion, reference) -> float` in [0, 1]:
    `mypackage.mymodule:reward`, `rewards.py:reward`, or the name under which a package offers it."""
    reward: RewardSettings = RewardSettings(threshold=None)

    def source(self, context: Context) -> TaskSource:
        """See `QuestionSettings`."""
        from swarm.environments.sources.hf_datasets import DatasetSource

        return DatasetSource(self, counts=context.counts, stored=context.stored)

    def import_libraries(self) -> None:
        """See `TaskSettings`."""
        super().import_libraries()
        decoders(self.name, self)

    @property
    def reads_as(self) -> tuple[str | None | Mapping[str, JsonValue], ...]:
        """See `RowsTask`."""
        rules = (*self.finds_as, *self.offers_as, *self.grades_as, *self.combines_as, *self.shows_as)
        return (self.subset, self.split, self.prompt, *rules)

    @property
    def media(self) -> frozenset[Modality]:
        """What a question may have besides text."""
        return frozenset(self.media_columns) | frozenset(self.inline)

    @property
    def scored_by_code(self) -> bool:
        """See `FindSettings`."""
        return self.scorer is not None

    @property
    def match_rule(self) -> MatchRule:
        """See `FindSettings`."""
        return self.match

    @property
    def folders(self) -> frozenset[Path]:
        """See `TaskSettings`."""
        return frozenset() if self.folder is None else frozenset({self.folder})

    @property
    def folder(self) -> Path | None:
        """The local folder whose files its rows may name; None without such rows."""
        if not (self.media and self.is_on_disk):
            return None
        place = at_home(self.path).absolute()
        return place if place.is_dir() else place.parent

    @property
    def offers_as(self) -> tuple[Mapping[str, JsonValue], ...]:
        """What decides the list of choices, for digests; empty without them."""
        if self.choices is None:
            return ()
        choices = self.choices if isinstance(self.choices, str) else list[JsonValue](self.choices)
        return ({"choices": choices, "shuffle": self.shuffle},)

    @model_validator(mode="after")
    def _the_right_choice_has_no_fixed_letter(self) -> DatasetTask:
        if self.choices is None and (self.choice_labels is not None or self.shuffle is not None):
            raise ValueError("choice_labels and shuffle need `choices`")
        if self.choices is not None and (self.answer_pattern is not None or self.scorer is not None):
            raise ValueError("answer_pattern and scorer do not go with `choices`: `answer` must name the right one")
        if isinstance(self.choices, tuple) and self.answer in self.choices and self.shuffle is None:
            raise ValueError(f"choices with the right one always at {self.answer!r} need `shuffle`, a seed")
        return self


def is_hub_id(path: str) -> bool:
    """Whether a path is `OWNER/NAME` by the hub's rules, and thus not a file, a URL or a packaged builder's name."""
    word = r"\w(?:[\w.-]*\w)?"
    plain = len(path) <= MAX_HUB_ID_CHARS and re.fullmatch(f"{word}/{word}", path, re.ASCII) is not None
    return plain and "--" not in path and ".." not in path and not path.endswith((".git", ".py"))


def is_hub_name(text: str) -> bool:
    """Whether a text is a name inside a repository on the hub, and thus not a file elsewhere."""
    return is_name(text, MAX_HUB_NAME_CHARS) and ".." not in text and not text.startswith(("/", "~"))


def looks_local(path: str) -> bool:
    """Whether a path can only be one of local files. Does not look at the disk."""
    parts = Path(path)
    return path.startswith(("/", ".", "~", "\\")) or len(parts.parts) > 2 or parts.suffix.lower() in FORMATS
