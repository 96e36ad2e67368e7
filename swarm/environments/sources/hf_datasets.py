"""Tasks from the rows of a data set: from the Hugging Face hub or local files, read through `datasets`.

Data sets that a run's founder names are read only from public repositories of the hub. A repository is untrusted, too.
Its card may list data files by absolute path, by URL of any protocol, or in formats that unpickle: `datasets` would
open them on this machine. So this module first reads the card of the exact commit that it then loads, and checks the
library's list of files before any is opened. It does not use this user's access token: a founder could name a private
data set of a member.
"""

from __future__ import annotations

import logging
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import datasets
from datasets.arrow_reader import ArrowReader
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard, HfApi
from huggingface_hub.hf_api import DatasetInfo

from swarm.environments.code import code_digest
from swarm.environments.config import Failures, FileRows, StoredRows
from swarm.environments.conversion.counting import Conversion
from swarm.environments.conversion.rows import PLACE, UNREADABLE, read_by_rows, read_json
from swarm.environments.digests import (
    check_options,
    check_question,
    content_digest,
    digest,
    draw,
    question_hash,
    with_code,
)
from swarm.environments.scoring.finding import finder
from swarm.environments.sources.columns import Column, MalformedRow, MediaFiles, Row
from swarm.environments.sources.dataset import FORMATS, DatasetTask, RowsTask
from swarm.environments.sources.items import Item, ItemReader
from swarm.environments.sources.lru import NUM_WITH_MEDIA, LruCache
from swarm.environments.sources.row_weights import RowWeights
from swarm.environments.specs import LOCAL
from swarm.environments.task import load_reward
from swarm.errors import Refusal, TaskError
from swarm.files import at_home
from swarm.reasons import Reason
from swarm.types import HELD_OUT_STREAMS, DatasetRef, Prompt, Question, TaskRef, as_text, media_of
from swarm.types.media import media_digest

READERS = frozenset({"csv", "json", "parquet", "text"})
"""Packaged builders that yield plain values and execute nothing."""
MAX_DOWNLOAD_BYTES = 4 * 2**30
TIMEOUT_S = 30.0
CARD = "README.md"
CARD_BESIDE = ".huggingface.yaml"


def public_builder(path: str, subset: str | None, revision: str | None) -> datasets.DatasetBuilder:
    """A builder for the public repository `path`.

    Raises `TaskError` if it could read anything else, and whatever the library raises on untrusted input.
    """
    hub = HfApi(token=False)
    info = hub.dataset_info(path, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
    for problem in _card_problems(hub, path, info):
        raise TaskError(problem)
    # With its scheme the path cannot name a local folder or a packaged builder.
    builder = datasets.load_dataset_builder(f"hf://datasets/{path}", subset, revision=info.sha, token=False)
    for problem in _builder_problems(builder, path, info):
        raise TaskError(problem)
    return builder


def _card_problems(hub: HfApi, path: str, info: DatasetInfo) -> Iterator[str]:
    """Entries of the repository's card that point outside the repository."""
    files = {sibling.rfilename for sibling in info.siblings or ()}
    if info.private or info.gated:
        yield "it is not public"
    if CARD_BESIDE in files:
        yield f"it is described by {CARD_BESIDE}, which is not supported"
    if CARD not in files:
        return
    downloaded = hub.hf_hub_download(path, CARD, repo_type="dataset", revision=info.sha)
    for name, options in MetadataConfigs.from_dataset_card_data(DatasetCard.load(downloaded).data).items():
        for place in (*_places(options.get("data_files")), *_places(options.get("data_dir"))):
            if not _is_inside(place):
                yield f"its subset {name!r} has the path {place!r}, which is not in the repository"


def _of_json(text: object) -> object:
    try:
        return None if text is None else read_json(str(text))
    except (ValueError, RecursionError):
        return text


def _places(value: object) -> Iterator[str]:
    """Every text in a card's list of files."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _places(value.get("path"))
    elif isinstance(value, list):
        for item in value:
            yield from _places(item)


def _is_inside(place: str) -> bool:
    return not place.startswith(("/", "~")) and ".." not in place and ":" not in place and "\\" not in place


def _builder_problems(builder: datasets.DatasetBuilder, path: str, info: DatasetInfo) -> Iterator[str]:
    reader = type(builder).__module__.rpartition(".")[2]
    if reader not in READERS:
        yield f"its reader is {reader!r}, must be one of {', '.join(sorted(READERS))}"
    files = [file for split in (builder.config.data_files or {}).values() for file in split]
    root = f"hf://datasets/{path}@{info.sha}/"
    sizes = {f"{root}{sibling.rfilename}": sibling.size or 0 for sibling in info.siblings or ()}
    for file in files:
        if file not in sizes:
            yield f"its file {file!r} is not in the repository"
    num_bytes = sum(sizes.get(file, 0) for file in files)
    if not files or num_bytes > MAX_DOWNLOAD_BYTES:
        yield f"must have files of 1 to {MAX_DOWNLOAD_BYTES} bytes in total, got {num_bytes} in {len(files)} files"


logger = logging.getLogger(__name__)

Read = TypeVar("Read", bound="Asked", covariant=True)

_RESOLUTION = 2**53
_MAX_ATTEMPTS = 64
"""Malformed rows skipped for one question before the data set counts as unusable."""
HELD_OUT_EVERY = 10
EVALUATION_SPLITS = frozenset({"test", "validation", "valid", "val", "dev", "eval"})
"""Splits made for evaluation: all their rows are used for it."""
_PLAIN, _UNPLAIN = re.compile(r"[\w./ +@=,-]+", re.ASCII), re.compile(r"[^\w./ +@=,-]", re.ASCII)
"""Paths that mean themselves to the library, to which `*`, `?`, brackets, `::` and `://` mean something else."""
_LISTS = (datasets.List, datasets.LargeList)
_MEDIA = (datasets.Image, datasets.Audio, datasets.Video)


class Rows(Protocol):
    """The part of `datasets.Dataset` in use: rows are read one at a time from memory-mapped Arrow files."""

    column_names: list[str]
    features: Mapping[str, object]

    def __len__(self) -> int:
        """Rows."""

    def __getitem__(self, row: int) -> Row:
        """One row, by column."""

    def select_columns(self, column_names: list[str]) -> Rows:
        """The same rows with only these columns."""


class Asked(Protocol):
    """What is read of a row."""

    @property
    def prompt(self) -> Prompt:
        """The question."""
        ...


class Reader(Protocol[Read]):
    """Reads rows of one data set."""

    columns: list[Column]
    """All columns in use."""
    with_media: set[str]
    """Columns that may hold images, audio and video."""

    def read(self, values: Row, row: int) -> Read:
        """The item of row number `row`. Raises `MalformedRow`."""
        ...


class RowsSource(ABC, Generic[Read]):
    """Implements `TaskSource` for the rows of one split, but for what an answer is worth.

    A digest of (seed, index) selects the row, so that streams differ; a stream may repeat a question. Every tenth row
    is reserved for evaluation, which asks each of them once before it repeats one. A data set of fewer than ten rows
    reserves none; a split made for evaluation (test, validation, ...) is used for it as a whole.
    """

    def __init__(
        self,
        config: RowsTask,
        reader: Callable[[Collection[str]], Reader[Read]],
        *,
        keep: int = 0,
        counts: Failures | None = None,
        stored: StoredRows | None = None,
    ) -> None:
        """Open the data set; downloads and converts it the first time unless `store` did so.

        `reader` is made with the names of the columns and may raise `ValueError`; `keep` is the number of items that
        are kept. Raises `TaskError` for a missing data set, file, split or column, and names the existing ones.
        """
        self.name = config.name
        self.counts = Failures() if counts is None else counts
        """`malformed_rows`: times that a row was skipped because its prompt or answer was missing or unreadable."""
        self._path = config.path
        self._dataset = LOCAL if config.is_on_disk else config.path
        stored = stored or store(config)
        rows, self._revision = _read(stored), stored.revision
        try:
            self._items = reader([name for name in rows.column_names if name != UNREADABLE])
            for column in self._items.columns:
                _check(column, rows.features[column.name], config.public, column.name in self._items.with_media)
        except ValueError as error:
            raise TaskError(f"task {config.name!r}: {error}") from error
        used = {column.name for column in self._items.columns}
        self._rows = rows.select_columns(sorted(used | ({UNREADABLE} & set(rows.column_names))))
        self._encoded = {name for name in used if isinstance(rows.features[name], datasets.Json)}
        """Columns of JSON, as it is stored."""
        splits = {part.split("[")[0].strip() for part in config.split.split("+")}
        self._is_for_evaluation = splits <= EVALUATION_SPLITS
        self._kept: LruCache[int, Read] | None = LruCache(keep) if keep else None
        self._options_digest = digest(*config.reads_as)
        self._weights = self._weighted(config.row_weight, rows) if config.row_weight is not None else None

    @property
    def num_held_out(self) -> int:
        """Rows for evaluation."""
        return _num_held_out(len(self._rows), self._is_for_evaluation)

    def question(self, seed: int, index: int) -> Question:
        """Question `index` of the stream `seed`. Raises `TaskError` after 64 consecutive malformed rows."""
        for attempt in range(_MAX_ATTEMPTS):
            row = self._row(seed, index, attempt)
            try:
                prompt = self._item(row).prompt
            except MalformedRow as error:
                reason = f"row {row + 1}: {error}"
                self.counts.note("malformed_rows", self.name, f"{reason}; it is passed over", row)
                continue
            return Question(self._reference(row, prompt), prompt)
        raise TaskError(f"task {self.name!r}: {_MAX_ATTEMPTS} rows drawn from {self._path} were malformed; {reason}")

    def _row(self, seed: int, index: int, attempt: int) -> int:
        if self._weights is None or seed >= HELD_OUT_STREAMS:
            return _row(len(self._rows), seed, self.name, index, attempt, whole=self._is_for_evaluation)
        return self._weights.row(draw(_RESOLUTION, "weighted row", seed, self.name, index, attempt) / _RESOLUTION)

    def _weighted(self, column: str, rows: Any) -> RowWeights:
        """Raises `TaskError`."""
        if column not in rows.column_names:
            raise TaskError(f"task {self.name!r}: no column {column!r} (row_weight); there are {rows.column_names}")
        reserves = self.num_held_out < len(rows)
        values: Iterable[object] = (
            value for batch in rows.select_columns([column]).iter(1_024) for value in batch[column]
        )
        if isinstance(rows.features[column], datasets.Json):
            values = map(_of_json, values)
        try:
            return RowWeights(
                values,
                lambda row: reserves and row % HELD_OUT_EVERY == HELD_OUT_EVERY - 1,
                lambda row, why: self.counts.note("malformed_rows", self.name, f"row {row + 1}: {why}", row),
            )
        except ValueError as error:
            raise TaskError(f"task {self.name!r}: {error}") from error

    def _item(self, row: int) -> Read:
        """The item of a row. Raises `MalformedRow`."""
        if self._kept is None:
            return self._read(row)
        item = self._kept.get(row)
        if item is None:
            item = self._read(row)
            self._kept.put(row, item)
        return item

    def _read(self, row: int) -> Read:
        """What is stored may be no text, no date or no number to Python, in as many ways as there are formats."""
        try:
            values = {**self._rows[row]}
            if (reason := values.pop(UNREADABLE, None)) is not None:
                raise MalformedRow(str(reason))
            for name in self._encoded & values.keys():
                values[name] = None if values[name] is None else read_json(str(values[name]))
            return self._items.read(values, row)
        except (MalformedRow, MemoryError):
            raise
        except Exception as error:
            raise MalformedRow(f"it cannot be read: {type(error).__name__}: {error}") from error

    def _reference(self, row: int, prompt: Prompt) -> DatasetRef:
        return DatasetRef(
            task=self.name,
            dataset=self._dataset,
            revision=self._revision,
            options_digest=self._options_digest,
            row=row,
            question_hash=question_hash(prompt),
            media=media_digest(media_of(prompt)),
        )

    def recall(self, ref: TaskRef) -> Question:
        """The question behind a reference.

        Raises `Refusal`: `unknown_task`, `options_differ`, `other_task` when the scorer's code differs,
        `question_mismatch` when this node's row is missing, malformed or has another text, or `media_mismatch`. Other
        revisions or copies of the data are fine if text and media agree.
        """
        return Question(ref, self._recall(ref).prompt)

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether its row is reserved for evaluation. See `TaskSource`."""
        reserves = self.num_held_out < len(self._rows)
        return reserves and isinstance(ref, DatasetRef) and ref.row % HELD_OUT_EVERY == HELD_OUT_EVERY - 1

    @abstractmethod
    def score(self, ref: TaskRef, completion: str) -> float:
        """Reward of one completion. See `TaskSource`."""

    def _recall(self, ref: TaskRef) -> Read:
        if not isinstance(ref, DatasetRef) or ref.task != self.name:
            raise Refusal(Reason.UNKNOWN_TASK, f"{ref.task!r} as asked is not the data set task {self.name!r}")
        check_options(ref, self._options_digest)
        here = f"{ref.task} row {ref.row + 1} of {ref.dataset}@{ref.revision}, here {self._dataset}@{self._revision}"
        if not 0 <= ref.row < len(self._rows):
            raise Refusal(Reason.QUESTION_MISMATCH, f"{here} with {len(self._rows)} rows")
        try:
            item = self._item(ref.row)
        except MalformedRow as error:
            raise Refusal(Reason.QUESTION_MISMATCH, f"{here}: {error}") from error
        check_question(ref, self._reference(ref.row, item.prompt), here)
        return item


class DatasetSource(RowsSource[Item]):
    """Implements `TaskSource` for questions with references, which answers are compared with."""

    def __init__(
        self, config: DatasetTask, *, counts: Failures | None = None, stored: StoredRows | None = None
    ) -> None:
        """See `RowsSource`; `counts` also gets `scorer_failures`: completions whose scorer raised an error, which got
        reward 0."""
        self._config = config
        self._find = finder(config)
        super().__init__(config, self._reader, keep=NUM_WITH_MEDIA if config.media else 0, counts=counts, stored=stored)
        self._own_reward = load_reward(config.scorer, config.name, self.counts) if config.scorer else None
        if config.scorer:
            self._options_digest = with_code(self._options_digest, code_digest(config.scorer))

    def _reader(self, columns: Collection[str]) -> ItemReader:
        folder = self._config.folder
        return ItemReader(self._config, columns, MediaFiles(folder) if folder is not None else None)

    def score(self, ref: TaskRef, completion: str) -> float:
        """Reward of one completion: its answer, compared under the task's match rule or scored by the user's code."""
        item = self._recall(ref)
        answer = self._find(completion)
        return self._config.reward.reward(0.0 if answer is None else self._score(item, answer))

    def solution(self, ref: TaskRef) -> str:
        """The right answer. See `Answered`."""
        return " | ".join(self._recall(ref).references)

    def found(self, ref: TaskRef, completion: str) -> str | None:
        """What counts as the answer. See `Answered`."""
        return self._find(completion)

    def _score(self, item: Item, answer: str) -> float:
        if self._own_reward is None:
            return float(self._is_right(item, answer))
        question = as_text(item.prompt)
        return max(self._own_reward(question, answer, reference) for reference in item.references)

    def _is_right(self, item: Item, answer: str) -> bool:
        try:
            return item.is_right(answer, self._config.match)
        except Exception as error:  # on untrusted text: any exception means a wrong answer
            self.counts.note("scorer_failures", self.name, f"matching an answer raised {error!r}")
            return False


def _row(num_rows: int, seed: int, task: str, index: int, attempt: int = 0, *, whole: bool = False) -> int:
    """A row for training or, in a held-out stream, for evaluation: every tenth row is reserved for it.

    Both draw from all rows when there are too few, and when the `whole` split is for evaluation.
    """
    num_held_out = _num_held_out(num_rows, whole)
    everything = num_held_out == num_rows
    if seed >= HELD_OUT_STREAMS:
        chosen = _in_turn(num_held_out, seed, task, index, attempt)
        return chosen if everything else HELD_OUT_EVERY * chosen + HELD_OUT_EVERY - 1
    if everything:
        return draw(num_rows, "row", seed, task, index, attempt)
    chosen = draw(num_rows - num_held_out, "row", seed, task, index, attempt)
    return chosen + chosen // (HELD_OUT_EVERY - 1)


def _num_held_out(num_rows: int, whole: bool) -> int:
    """Rows for evaluation; all of them where none are reserved."""
    return num_rows if whole else num_rows // HELD_OUT_EVERY or num_rows


def _in_turn(count: int, seed: int, task: str, index: int, attempt: int) -> int:
    """A permutation of `count` rows that depends on the stream: each row once in `count` indices.

    Further attempts draw from all of them: neighbours of a malformed row are often malformed, too.
    """
    if attempt:
        return draw(count, "again", seed, task, index, attempt)
    step = 1 + draw(count, "step", seed, task)
    while math.gcd(step, count) > 1:
        step += 1
    return (draw(count, "first", seed, task) + step * index) % count


def store(config: RowsTask, conversion: Conversion | None = None) -> StoredRows:
    """Download and convert a data set if necessary; returns the location of the configured split's rows.

    Their revision is the hub's commit, or a digest of the local files. Raises `TaskError`, also at the limits of the
    `conversion`.
    """
    where = f"task {config.name!r}: {config.path}"
    local = config.is_on_disk
    try:
        if conversion is not None and local:
            conversion.expect(Path(config.path))
        builder = public_builder(config.path, config.subset, config.revision) if config.public else _builder(config)
        count = conversion.check_read if conversion is not None else None
        place = f"{builder.cache_dir}{PLACE}" if read_by_rows(builder, count) else builder.cache_dir
        if conversion is not None:
            conversion.watch(builder, place)
        builder.download_and_prepare(place)
        splits = list(builder.info.splits)
        wanted = [part.split("[")[0].strip() for part in config.split.split("+")]
        if not set(wanted) <= set(splits):
            raise TaskError(f"no split {config.split!r}; the splits are {', '.join(splits)}")
        reader = ArrowReader(place, builder.info)
        stored = reader.get_file_instructions(builder.dataset_name, config.split, builder.info.splits.values())
        if not stored:
            raise TaskError(f"there is no data in {config.split!r}")
        files = [file for split in wanted for file in builder.config.data_files[split]] if local else []
    except TaskError as error:
        raise TaskError(f"{where}: {error}") from error
    except Exception as error:  # many format readers and the hub's client, on untrusted input
        if conversion is not None and isinstance(error.__cause__ or error, MemoryError):
            raise TaskError(f"{where}: {conversion.out_of_memory()}") from error
        if isinstance(error.__cause__, TaskError):
            raise TaskError(f"{where}: {error.__cause__}") from error
        cause = f"; {error.__cause__}" if error.__cause__ is not None else ""
        raise TaskError(f"{where}: {type(error).__name__}: {error}{cause}") from error
    rows = tuple(FileRows(str(part["filename"]), int(part["skip"]), int(part["take"])) for part in stored)
    return StoredRows(rows, content_digest(map(Path, files)) if local else str(builder.hash))


def _read(stored: StoredRows) -> Rows:
    """The memory-mapped rows."""
    parts = [_open(part.path).select(range(part.first, part.first + part.count)) for part in stored.files]
    rows: Rows = datasets.concatenate_datasets(parts)
    return rows


def _open(path: str) -> datasets.Dataset:
    """The rows of an Arrow file, their images, audio and video as they are stored: `datasets` decodes none."""
    opened = datasets.Dataset.from_file(path)
    stored = datasets.Features({name: _undecoded(feature, whole=True) for name, feature in opened.features.items()})
    if stored == opened.features:
        return opened
    return datasets.Dataset.from_file(path, info=datasets.DatasetInfo(features=stored))


def _undecoded(feature: object, whole: bool = False) -> object:
    if isinstance(feature, _MEDIA):
        return type(feature)(decode=False)
    if isinstance(feature, datasets.Json) and whole:
        return datasets.Json(decode=False)  # the library would round large integers
    if isinstance(feature, datasets.List):
        return datasets.List(_undecoded(feature.feature), length=feature.length)
    if isinstance(feature, datasets.LargeList):
        return datasets.LargeList(_undecoded(feature.feature))
    if isinstance(feature, Mapping):
        return {name: _undecoded(each) for name, each in feature.items()}
    return feature


def _builder(config: RowsTask) -> datasets.DatasetBuilder:
    """The builder for this node's own data set: local files, or anything on the hub that its user may read."""
    if not config.is_on_disk:
        return datasets.load_dataset_builder(config.path, config.subset, revision=config.revision)
    path = at_home(config.path)
    if not path.exists():
        raise TaskError("no such file or folder")
    options = _of_file(path) if path.is_file() else {"path": str(_without_patterns(path)), "name": config.subset}
    return datasets.load_dataset_builder(**options)


def _of_file(path: Path) -> Mapping[str, object]:
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise TaskError(f"cannot read {path.suffix or 'a file without suffix'}; can read {', '.join(FORMATS)}")
    if path.stat().st_size == 0:
        raise TaskError("the file is empty")
    separator = {"sep": "\t"} if suffix == ".tsv" else {}
    return {"path": FORMATS[suffix], "data_files": str(_without_patterns(path)), **separator}


def _without_patterns(path: Path) -> Path:
    """A path to the same file or files that the library takes for no pattern, archive or URL: itself, or links."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if all(_PLAIN.fullmatch(str(file)) for file in (path, *files)):
        return path
    links = Path(datasets.config.HF_DATASETS_CACHE, "links", _digest_of(path.absolute()))
    wanted = {links / _plain(file.relative_to(path) if path.is_dir() else Path(file.name)): file for file in files}
    for link in links.rglob("*"):
        if link.is_symlink() and not (link in wanted and link.exists()):
            link.unlink()
    for link, file in wanted.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            link.symlink_to(file.absolute())
    return links if path.is_dir() else next(iter(wanted))


def _plain(name: Path) -> str:
    if _PLAIN.fullmatch(str(name)):
        return str(name)
    suffix = name.suffix.lower() if _PLAIN.fullmatch(f"x{name.suffix}") else ""
    return f"{_UNPLAIN.sub('_', str(name.with_suffix('')))}-{_digest_of(name)[:8]}{suffix}"


def _digest_of(path: Path) -> str:
    return digest(os.fsencode(path).hex())


def _check(column: Column, feature: object, public: bool, may_have_media: bool) -> None:
    """Raises `ValueError` for a path that leads nowhere in any row.

    In a `public` data set also for types that refer to files, such as images, in columns where the task has none.
    """
    if public and not _is_plain(feature, may_have_media):
        raise ValueError(f"column {column.name!r} must be of texts and numbers, got {type(feature).__name__}")
    for step in column.steps:
        while isinstance(step, str) and isinstance(feature, _LISTS):
            feature = feature.feature
        if isinstance(feature, datasets.Json):
            return
        if isinstance(feature, _LISTS):
            feature = feature.feature
        elif isinstance(feature, Mapping) and step in feature:
            feature = feature[step]
        elif isinstance(feature, _MEDIA) and step in ("bytes", "path"):
            return
        else:
            keys = f" with {', '.join(feature)}" if isinstance(feature, Mapping) else ""
            raise ValueError(f"{column.path!r}: there is no {step!r} in {type(feature).__name__}{keys}")


def _is_plain(feature: object, may_have_media: bool = False) -> bool:
    if isinstance(feature, _LISTS):
        return _is_plain(feature.feature, may_have_media)
    if isinstance(feature, Mapping):
        return all(_is_plain(each, may_have_media) for each in feature.values())
    return isinstance(feature, datasets.Value | datasets.ClassLabel) or (may_have_media and isinstance(feature, _MEDIA))
