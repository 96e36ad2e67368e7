"""Settings of a node's tasks: a weighted mixture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, get_args

from pydantic import Field, JsonValue, TypeAdapter, model_validator

from swarm.environments.answering import (
    TRUSTED_TOOL,
    MatchRule,
    QuestionSettings,
    RewardSettings,
    Template,
)
from swarm.environments.decoding.settings import MediaSettings
from swarm.environments.episodes.config import (
    HoldemTask,
    KuhnTask,
    MazeTask,
    NumberGuessingTask,
    TextArenaTask,
    VerifiersTask,
)
from swarm.environments.fields import (
    MAX_HUB_ID_CHARS,
    MAX_HUB_NAME_CHARS,
    Target,
    TaskName,
    Weight,
    is_hub_id,
    is_hub_name,
)
from swarm.environments.generated.config import ClipTask, DigitsTask, ShapesTask, TonesTask
from swarm.environments.rewards import JudgeReward, RewardedTask, RewardPart
from swarm.settings import Settings
from swarm.types.media import Modality

MAX_PATTERN_CHARS = 1_024
MAX_CHOICES = 26
"""Of one question: the letters."""
Each = Annotated[tuple[Template, ...], Field(min_length=2, max_length=MAX_CHOICES)]
"""Something for each choice."""


class ReasoningGymTask(QuestionSettings):
    """A data set of the ReasoningGYM library."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    name: TaskName
    """Name in this run; also the library's name of the data set, e.g. `gcd`, unless `dataset` is set."""
    dataset: str | None = None
    """The library's name of the data set if it differs from `name`, so that a run can use `gcd` at two difficulties;
    `swarm tasks` lists the names."""
    weight: Weight = 1.0
    options: dict[str, JsonValue] = {}
    """Fields of the data set's own configuration, e.g. `max_value: 40`, except `seed` and `size`."""
    reward: RewardSettings = RewardSettings()

    @property
    def finds_as(self) -> tuple[str | None, ...]:
        """As above; `tags` is this kind's default."""
        return () if self.find == "tags" else super().finds_as


class DatasetTask(QuestionSettings, MediaSettings):
    """A Hugging Face data set: hub id or local files with prompt and answer columns."""

    kind: Literal["dataset"]
    name: TaskName
    """Name in this run; peers agree on it through the manifest."""
    weight: Weight = 1.0
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
    answer: Template = "answer"
    """As `prompt`; of a list such as `answers.text` any item is right."""
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
    """A function of one's own instead of `match`, `reward(question, completion, reference) -> float` in [0, 1]:
    `mypackage.mymodule:reward`, `rewards.py:reward`, or the name under which a package offers it."""
    reward: RewardSettings = RewardSettings(threshold=None)

    @property
    def _compares(self) -> bool:
        return self.scorer is None

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

    @model_validator(mode="after")
    def _a_public_one_names_nothing_but_a_repository(self) -> DatasetTask:
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


class PythonTask(QuestionSettings):
    """A task of one's own: a subclass of `swarm.environments.task.Task`. Every member needs the same code."""

    kind: Literal["python"]
    name: TaskName
    """Name in this run; peers agree on it through the manifest."""
    target: Target
    """`mypackage.mymodule:Name`, `path/to/file.py:Name`, or the name under which an installed package offers it: that
    of an entry point of the group `swarm.environments`."""
    weight: Weight = 1.0
    options: dict[str, JsonValue] = {}
    """Values for the fields of the class."""
    modalities: tuple[Modality, ...] = Field((), max_length=3)
    """What its questions have besides text: `image`, `audio` and `video`. A question with anything else is refused, so
    that it is known from the settings alone which policies can read the task."""
    reward: RewardSettings = RewardSettings(threshold=None)


TaskConfig = Annotated[
    ReasoningGymTask
    | DatasetTask
    | PythonTask
    | NumberGuessingTask
    | KuhnTask
    | HoldemTask
    | TextArenaTask
    | VerifiersTask
    | ShapesTask
    | DigitsTask
    | MazeTask
    | TonesTask
    | ClipTask,
    Field(discriminator="kind"),
]

TASKS: Mapping[str, type[Settings]] = MappingProxyType(
    {get_args(each.model_fields["kind"].annotation)[0]: each for each in get_args(get_args(TaskConfig)[0])}
)
"""By kind."""

CODE_FIELDS: Mapping[str, str] = MappingProxyType({"dataset": "scorer", "python": "target", "verifiers": "target"})
"""The field that names code of one's own, by kind of task."""


def rewards_of(config: Settings) -> tuple[RewardPart, ...]:
    """A task's named rewards; empty where the task alone decides."""
    return config.rewards if isinstance(config, RewardedTask) else ()


def judge_of(config: Settings) -> JudgeReward | None:
    """The judge among a task's rewards; None without one."""
    return next((part for part in rewards_of(config) if isinstance(part, JudgeReward)), None)


def code_of(config: Settings) -> str | None:
    """The code of one's own that a task runs, if any."""
    match config:
        case PythonTask() | VerifiersTask():
            return config.target
        case DatasetTask():
            return config.scorer
    return None


def own_tool_tasks(configs: Iterable[TaskConfig]) -> frozenset[str]:
    """Names of the tasks whose episodes nobody else could replay: those with own tools."""
    return frozenset(config.name for config in configs if isinstance(config, QuestionSettings) and config.own_tool)


def is_asked(config: Settings) -> bool:
    """Whether this node can ask a task's questions, and not only learn from the episodes of those whom it trusts."""
    return not (isinstance(config, QuestionSettings) and config.tool == TRUSTED_TOOL)


TASK_LIST: TypeAdapter[tuple[TaskConfig, ...]] = TypeAdapter(tuple[TaskConfig, ...])
"""Reads and writes a list of tasks as JSON."""


class DataSettings(Settings):
    """What data sets that a run's founder names may take here, copies of its files included; one that takes more is
    left out. Your own are limited by free disk and memory alone."""

    rows: int = Field(50_000_000, ge=1)
    """Rows of one of them, in all splits."""
    bytes: int = Field(8 * 2**30, ge=2**20)
    """Bytes on the disk for one of them once converted, and of its largest file."""
    growth: int = Field(64, ge=1)
    """Bytes on the disk for each byte of its files, beside 64 MiB: a file of 446 bytes can hold 4 GB of rows."""
    run_bytes: int = Field(16 * 2**30, ge=2**20)
    """Bytes that are written at a start for all of them together, downloads included."""
    memory_bytes: int = Field(4 * 2**30, ge=2**29)
    """Memory for converting one, beside what the libraries take; for small files less: 512 MiB, and 8 times their
    size."""


class VerificationSettings(Settings):
    """Settings of the processes that make questions and grade completions."""

    workers: int = Field(1, ge=1, le=64)
    """Worker processes. An additional one serves only own questions while these wait too long for other peers'
    groups."""
    time_limit_s: float = Field(10.0, gt=0)
    """Time limit per group; beyond it the worker is killed and the group counted as `verifier_timeout`."""
    memory_limit_bytes: int = Field(4 * 2**30, ge=2**31)
    """Memory limit of one worker. A completion that makes a scorer exceed it gets reward 0, or its group is counted as
    `verifier_crash`. Memory-mapped rows of data sets are not counted."""
    tasks_bytes: int = Field(2**29, ge=2**26)
    """Memory of one worker for a run's tasks together: those beyond it are left out, and what a worker keeps of earlier
    questions is dropped. Tasks of your own are set up in any case. Only on Linux."""
    data: DataSettings = DataSettings()
    queue_groups: int = Field(256, ge=1)
    """Most received groups that wait for grading; beyond it the oldest group of the sender with the most is dropped."""
