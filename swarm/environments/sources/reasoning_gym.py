"""Tasks of the ReasoningGYM library: questions made from a seed, scored by the library's own verifiers.

The library is imported when a task is built.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import random
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from typing import Literal, Protocol

from msgspec import Struct
from pydantic import JsonValue

from swarm.environments.answering import QuestionSettings, RewardSettings
from swarm.environments.config import Context, Failures, TaskName
from swarm.environments.digests import digest, draw
from swarm.environments.scoring.answer_guard import REACH, admitted, is_safe_option
from swarm.environments.scoring.scorers import OWN_SCORERS, SCORED_OTHERWISE, Entry
from swarm.environments.sources.lru import LruCache
from swarm.environments.sources.procedural import ProceduralSource
from swarm.errors import TaskError
from swarm.protocols import TaskSource
from swarm.types import ProceduralRef, Question, TaskRef

logger = logging.getLogger(__name__)

LIBRARY = f"reasoning_gym=={version('reasoning_gym')}"

ITEMS_PER_DATASET = 500
"""Items per instance of a data set: some instances hold a fixed number, and 500 is the library's default."""

SETUP_LIMIT_S = 60.0
"""A data set whose setup takes longer with the given options is refused."""

MAX_QUESTION = 2**17
"""Most characters of a question; ten times the longest with default options."""

OWN_OPTIONS = frozenset({"seed", "size"})
"""Options that the question stream sets."""


class ReasoningGymTask(QuestionSettings):
    """A data set of the ReasoningGYM library."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    name: TaskName
    """Name in this run; also the library's name of the data set, e.g. `gcd`, unless `dataset` is set."""
    dataset: str | None = None
    """The library's name of the data set if it differs from `name`, so that a run can use `gcd` at two difficulties;
    `swarm tasks` lists the names."""
    options: dict[str, JsonValue] = {}
    """Fields of the data set's own configuration, e.g. `max_value: 40`, except `seed` and `size`."""
    reward: RewardSettings = RewardSettings()

    @property
    def finds_as(self) -> tuple[str | None, ...]:
        """See `FindSettings`; `tags` is this kind's default."""
        return () if self.find == "tags" else super().finds_as

    def source(self, context: Context) -> TaskSource:
        """See `QuestionSettings`."""
        return ReasoningGymSource(self, counts=context.counts)

    def import_libraries(self) -> None:
        """See `TaskSettings`."""
        from swarm.environments.sources.library import load

        super().import_libraries()
        load(self.dataset or self.name)


class LibraryDataset(Protocol):
    """The part of the library's `ProceduralDataset` in use."""

    @property
    def category(self) -> str:
        """The library's folder that contains it."""

    def __getitem__(self, index: int) -> Entry:
        """Item `index`, made from seed + index."""

    def score_answer(self, answer: str | None, entry: Entry) -> float:
        """Score of an answer; should be in [0, 1]."""


def dataset_options(dataset: str) -> dict[str, object]:
    """Options of a library data set with their defaults, without those that the stream sets.

    Raises `TaskError` for an unknown name.
    """
    from swarm.environments.sources.library import DATASETS, load

    load(dataset)
    if dataset not in DATASETS:
        raise TaskError(f"ReasoningGYM has no data set {dataset!r}; `swarm tasks` lists all {len(DATASETS)}")
    options: dict[str, object] = {}
    for field in dataclasses.fields(DATASETS[dataset][1]):
        if field.name not in OWN_OPTIONS:
            factory = field.default_factory
            options[field.name] = field.default if factory is dataclasses.MISSING else factory()
    return options


def make_dataset(dataset: str, seed: int, options: Mapping[str, JsonValue]) -> LibraryDataset:
    """An instance of a library data set; the same arguments give the same items in every process."""
    from swarm.environments.sources.library import create_dataset

    with _SeededGlobalRandom(seed):
        made: LibraryDataset = create_dataset(dataset, seed=seed, size=ITEMS_PER_DATASET, **options)
    return made


class ReasoningGymSource(ProceduralSource):
    """Implements `TaskSource` for one data set of the library.

    A stream consists of blocks of 500 questions; a digest of (task, seed, block) seeds the instance of each block. The
    library makes item i from seed + i, so that using the stream's seed directly would give neighbouring seeds the same
    questions, shifted by one.
    """

    def __init__(
        self,
        config: ReasoningGymTask,
        *,
        counts: Failures | None = None,
        num_datasets: int = 16,
        num_entries: int = 512,
    ) -> None:
        """Check the configuration against the library.

        Raises `TaskError` for an unknown data set, an unknown option, or invalid values.
        """
        self.counts = Failures() if counts is None else counts
        """`scorer_failures`: completions whose scorer raised an error; they got reward 0."""
        self._config = config
        self._dataset_name = config.dataset or config.name
        changed = SCORED_OTHERWISE.get(self._dataset_name)
        scored = () if changed is None else ({"scored": changed},)
        rules = (*config.finds_as, *config.grades_as, *config.combines_as, *scored)
        self._datasets: LruCache[int, LibraryDataset] = LruCache(num_datasets)
        self._entries: LruCache[tuple[int, int], Entry] = LruCache(num_entries)
        super().__init__(config, config.reward, LIBRARY, digest(self._dataset_name, config.options, *rules))
        self._scorer = self._checked()

    def recall(self, ref: TaskRef) -> Question:
        """See `ProceduralSource`; with the reference as it was given."""
        return Question(ref, super().recall(ref).prompt)

    def _bare(self, seed: int, index: int) -> str:
        return str(self._entry(seed, index)["question"])

    def _solution(self, seed: int, index: int) -> str:
        answer = self._entry(seed, index)["answer"]
        return "" if answer is None else str(answer)

    def _score(self, answer: str, seed: int, index: int) -> float:
        score = self._scored(answer, seed, index)
        return min(1.0, max(0.0, score)) if math.isfinite(score) else 0.0

    def _scored(self, answer: str, seed: int, index: int) -> float:
        """What the library's scorer, or the one here in its place, says of an answer."""
        entry = self._entry(seed, index)
        seen = admitted(self._dataset_name, answer, self._solution(seed, index))
        if seen is None:
            return 0.0
        own = OWN_SCORERS.get(self._dataset_name)
        try:
            return own(seen, entry) if own is not None else float(self._scorer.score_answer(seen, _copy(entry)))
        except Exception as error:  # 105 scorers on untrusted text: any exception means a wrong answer
            self.counts["scorer_failures"] += 1
            logger.debug("scorer of %s raised %r", self.name, error)
            return 0.0

    def oracle(self, ref: TaskRef) -> str | None:
        """The library's own answer to the question behind a reference; None for the few data sets without one."""
        assert isinstance(ref, ProceduralRef)
        answer = self._entry(ref.seed, ref.index)["answer"]
        return None if answer is None else str(answer)

    def _entry(self, seed: int, index: int) -> Entry:
        cached = self._entries.get((seed, index))
        if cached is not None:
            return cached
        block, item = divmod(index, ITEMS_PER_DATASET)
        # seed + item must stay below 2^32: some data sets seed numpy with it
        dataset_seed = draw(2**32 - ITEMS_PER_DATASET, "reasoning_gym", self.name, seed, block)
        try:
            dataset = self._datasets.get(dataset_seed)
            if dataset is None:
                dataset = make_dataset(self._dataset_name, dataset_seed, self._config.options)
                self._datasets.put(dataset_seed, dataset)
            with _SeededGlobalRandom(dataset_seed + item):
                entry = dataset[item]
        except Exception as error:  # generators raise anything; the caller asks another question
            raise TaskError(
                f"task {self.name!r}: ReasoningGYM failed on question {index} of {seed}: {error!r}"
            ) from error
        if len(str(entry["question"])) > MAX_QUESTION:
            raise TaskError(f"task {self.name!r}: question {index} of {seed} is over {MAX_QUESTION} characters long")
        self._entries.put((seed, index), entry)
        return entry

    def _checked(self) -> LibraryDataset:
        """An instance with the configured options; any instance can score any entry."""
        name, options = self.name, self._config.options
        if self._dataset_name == "composite":
            raise TaskError(f"task {name!r}: list the parts of `composite` as tasks of the run, each with its weight")
        valid = dataset_options(self._dataset_name)
        for option, value in options.items():
            if option not in valid:
                raise TaskError(f"task {name!r} has no option {option!r}; its options are {', '.join(valid)}")
            if not is_safe_option(value):
                raise TaskError(f"task {name!r}: option {option!r} must be plain words or numbers, got {value!r}")
        if self._dataset_name not in REACH:
            raise TaskError(f"task {name!r}: ReasoningGYM's scorer of {self._dataset_name!r} has not been reviewed")
        try:
            with time_limit(SETUP_LIMIT_S):
                return make_dataset(self._dataset_name, 0, options)
        except Exception as error:  # each data set validates in its own way: assert, ValueError, TypeError, KeyError
            given = ", ".join(f"{option}={value!r}" for option, value in options.items())
            defaults = ", ".join(f"{option}={value!r}" for option, value in valid.items())
            reason = str(error) or repr(error)
            raise TaskError(f"task {name!r}: {reason}; got {given or 'no options'}; options are {defaults}") from error


def _copy(entry: Entry) -> Entry:
    """A copy of an item, because a scorer writes into the metadata."""
    metadata = entry["metadata"]
    return {**entry, "metadata": dict(metadata) if isinstance(metadata, Mapping) else metadata}


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in a block that takes more processor time, which other programs do not lengthen; no effect
    outside the main thread, because only it has alarms."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(signum: int, frame: object) -> None:
        raise TimeoutError(f"took more than {seconds} s of processor time")

    previous = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


class _SeededGlobalRandom:
    """Seeds the global generator, which a few data sets use, and restores the process's state."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        self._state = random.getstate()
        random.seed(self._seed)

    def __exit__(self, *exc: object) -> None:
        random.setstate(self._state)


EXAMPLE_SEED = 42
NOT_TASKS = frozenset({"composite"})
"""Data sets composed of others; a run's own mixture replaces them."""


class CatalogueEntry(Struct, frozen=True):
    """One data set of the library."""

    name: str
    category: str
    """The library's folder that contains it, e.g. `arithmetic`; empty when it cannot be created."""
    question: str
    """First lines of an example."""
    answer: str | None
    """The library's answer to the example; None when it has none."""
    options: dict[str, str]
    """Names of the options and the `repr` of their defaults."""
    error: str = ""
    """Why there is no example."""


def catalogue(time_limit_s: float = 5.0, max_lines: int = 3, pattern: str = "") -> list[CatalogueEntry]:
    """Every data set whose name contains `pattern`, by name; one that fails or takes longer than the limit is listed
    with the reason.

    Must be called in the main thread: the limit is an alarm.
    """
    from swarm.environments.sources.library import DATASETS, load_all

    load_all()
    return [
        _entry(name, time_limit_s, max_lines) for name in sorted(DATASETS) if name not in NOT_TASKS and pattern in name
    ]


def _entry(name: str, time_limit_s: float, max_lines: int) -> CatalogueEntry:
    options = {option: repr(value) for option, value in dataset_options(name).items()}
    try:
        with time_limit(time_limit_s), redirect_stdout(io.StringIO()):  # some generators print
            dataset = make_dataset(name, EXAMPLE_SEED, {})
            item = dataset[0]
    except Exception as error:  # generators raise anything; one must not end the list
        return CatalogueEntry(name, "", "", None, options, repr(error))
    lines = [line for line in str(item["question"]).splitlines() if line.strip()]
    answer = None if item["answer"] is None else str(item["answer"])
    return CatalogueEntry(name, dataset.category, "\n".join(lines[:max_lines]), answer, options)
