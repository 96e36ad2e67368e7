"""What every task has, the kinds of task by name, and the settings of verification.

A kind of task is one class: its fields are what users set, and its methods build the source of its questions. To add
one, extend `QuestionSettings`, `GeneratedTask` or `EnvironmentTask`, and name the class in `kind`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, Self

from msgspec import Struct, field
from pydantic import Field, JsonValue, TypeAdapter, model_validator

from swarm.environments.code import code_digest, resolved
from swarm.environments.rewards import RewardPart, check_rewards
from swarm.kinds import Kinds
from swarm.protocols import Source
from swarm.sanitize import NAME_CHARS
from swarm.settings import Settings
from swarm.types.media import Modality

if TYPE_CHECKING:
    from swarm.environments.conversion.counting import Conversion

MAX_TASK_NAME_CHARS = 64
MAX_WEIGHT = 1e6
MAX_TARGET_CHARS = 512
MAX_REWARDS = 8
MAX_SHOWN_ROWS = 4
"""Malformed rows of a task that are shown; further ones are counted."""
MAX_FAILURE_CHARS = 400

TaskName = Annotated[str, Field(max_length=MAX_TASK_NAME_CHARS, pattern=f"^[{NAME_CHARS}]+$")]
Weight = Annotated[float, Field(gt=0, le=MAX_WEIGHT)]
Target = Annotated[str, Field(max_length=MAX_TARGET_CHARS, pattern=r"^[^:]+(:[A-Za-z_]\w*)?$")]
"""Custom code, as in `swarm/environments/code.py`."""


class Failures(Counter[str]):
    """Counts by kind, and texts about the first failures, each with a distinct key."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, str] = {}
        self._shown: dict[tuple[str, str], set[int]] = {}

    def note(self, kind: str, task: str, text: str, row: int | None = None) -> None:
        """Count a failure of a task, and keep its text: the first of a kind, or of each of the first rows."""
        self[kind] += 1
        shown = self._shown.setdefault((kind, task), set())
        if len(shown) < (1 if row is None else MAX_SHOWN_ROWS) and (row or 0) not in shown:
            shown.add(row or 0)
            self._texts[f"{kind} {task} {row}"] = f"task {task!r}: {text}"[:MAX_FAILURE_CHARS]

    def take_texts(self) -> dict[str, str]:
        """The texts since the last call, by key."""
        taken, self._texts = self._texts, {}
        return taken


class FileRows(Struct, frozen=True):
    """Adjacent rows of one Arrow file."""

    path: str
    first: int
    count: int


class StoredRows(Struct, frozen=True):
    """All rows of a task's split, in order, on the disk after download and conversion."""

    files: tuple[FileRows, ...]
    revision: str
    """The `revision` of `DatasetRef`."""


class OwnTool(NamedTuple):
    """A custom tool: code that runs in the node's process without a sandbox."""

    target: str
    takes_arguments: bool
    """Whether it has several arguments, or one that is no text; otherwise it is called with a text."""


class Context(Struct, frozen=True):
    """What a task's source is built from, beside its settings."""

    counts: Failures = field(default_factory=Failures)
    """Receives the source's failures."""
    stored: StoredRows | None = None
    """Rows of a task with `has_rows`, if `store` wrote them."""


class TaskSettings(Settings):
    """A kind of task: settings that build the source of its questions."""

    code_field: ClassVar[str] = ""
    """The field that names custom code; empty for kinds that run none."""
    has_rows: ClassVar[bool] = False
    """Whether `store` must write its rows to the disk before it is built."""
    reads_whole: ClassVar[bool] = True
    """Whether it reads a whole completion by default, and asks for no tags."""

    kind: str
    name: TaskName
    """Name in this run; peers agree on it through the manifest."""
    weight: Weight = 1.0
    """Questions of the task in proportion to other tasks' weights."""
    rewards: tuple[RewardPart, ...] = Field((), max_length=MAX_REWARDS)
    """Named rewards, each in [0, 1], whose weighted mean is an episode's reward: of the kinds `answer`, `format`,
    `overlong`, `judge` and `http`. Default: the answer's alone."""

    @abstractmethod
    def build(self, context: Context) -> Source:
        """The source of the task's questions; imports the library that it needs. Raises `TaskError`."""

    def import_libraries(self) -> None:
        """Import what starts threads or writes compiled files, before the sandbox is sealed. Raises as imports do."""
        for part in self.rewards:
            part.import_libraries()

    def store(self, folder: Path, conversion: Conversion) -> StoredRows:
        """Write the rows of a task with `has_rows` to files, `folder` being for its own. Raises `TaskError`."""
        raise NotImplementedError

    @property
    def media(self) -> frozenset[Modality]:
        """What its questions and observations may have besides text."""
        return frozenset()

    @property
    def is_custom(self) -> bool:
        """Whether its kind is not one of swarm's own."""
        return not TASKS.is_built_in(self.kind)

    @property
    def label(self) -> str:
        """The kind's name in digests and references: a custom one's class name, since its location differs."""
        return type(self).__name__ if self.is_custom else self.kind

    @property
    def code(self) -> str | None:
        """The custom code that the task runs, as `swarm.environments.code.load` takes it; None without."""
        if self.is_custom:
            return TASKS.resolved(self.kind)
        return getattr(self, self.code_field) if self.code_field else None

    @property
    def library(self) -> str:
        """Foreign code that makes and scores questions, with its version; empty without. Raises `TaskError`."""
        return code_digest(self.code) if self.is_custom and self.code else ""

    @property
    def custom_tools(self) -> Mapping[str, OwnTool]:
        """The custom tools by name, whose results others cannot replay."""
        return {}

    @property
    def is_asked(self) -> bool:
        """Whether this node can ask its questions, and not only learn from the episodes of peers that it trusts."""
        return True

    @property
    def is_replayable(self) -> bool:
        """Whether strangers can replay its episodes; if not, no run lists it and no manifest names it."""
        return True

    @property
    def folders(self) -> frozenset[Path]:
        """Local folders and files that its source reads in its process."""
        return frozenset()

    def from_anywhere(self) -> Self:
        """The same task for a process in another directory. Raises `TaskError`."""
        if (target := self.code) is None:
            return self
        return self.model_copy(update={"kind" if self.is_custom else self.code_field: resolved(target)})

    @property
    def combines_as(self) -> tuple[Mapping[str, JsonValue], ...]:
        """What distinguishes the rewards from the default, for digests; empty for the default."""
        return ({"rewards": [part.in_digest for part in self.rewards]},) if self.rewards else ()

    @model_validator(mode="after")
    def _the_rewards_can_be_combined(self) -> TaskSettings:
        check_rewards(self.rewards)
        return self


TASKS: Kinds[type[TaskSettings]] = Kinds(
    "task",
    "swarm.tasks",
    "swarm.environments.config:TaskSettings",
    {
        "reasoning_gym": "swarm.environments.sources.reasoning_gym:ReasoningGymTask",
        "dataset": "swarm.environments.sources.dataset:DatasetTask",
        "python": "swarm.environments.task:PythonTask",
        "code": "swarm.extras.wasm.code.task:CodeTask",
        "number_guessing": "swarm.environments.episodes.number_guessing:NumberGuessingTask",
        "kuhn_poker": "swarm.extras.poker.tasks:KuhnTask",
        "holdem": "swarm.extras.poker.tasks:HoldemTask",
        "textarena": "swarm.extras.textarena.task:TextArenaTask",
        "verifiers": "swarm.extras.verifiers.task:VerifiersTask",
        "shapes": "swarm.extras.pictures.tasks:ShapesTask",
        "digits": "swarm.extras.pictures.tasks:DigitsTask",
        "maze": "swarm.extras.pictures.tasks:MazeTask",
        "tones": "swarm.extras.audio_video.tasks:TonesTask",
        "clip": "swarm.extras.audio_video.tasks:ClipTask",
    },
)
TaskConfig = Annotated[TaskSettings, TASKS]
"""A task of any kind."""
TASK_LIST: TypeAdapter[tuple[TaskConfig, ...]] = TypeAdapter(tuple[TaskConfig, ...])
"""Reads and writes a list of tasks as JSON."""


def reward_weights(configs: Iterable[TaskConfig]) -> dict[str, dict[str, float]]:
    """The weights of named rewards, by task and name."""
    return {config.name: {part.name: part.weight for part in config.rewards} for config in configs}


def custom_tool_tasks(configs: Iterable[TaskConfig]) -> frozenset[str]:
    """Names of the tasks with custom tools: no other node can replay their episodes."""
    return frozenset(config.name for config in configs if config.custom_tools)


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
