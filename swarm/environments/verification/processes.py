"""The pool's worker processes: what they start with, and the data sets that must be on disk before they grade.

A first process with network access downloads and converts data sets one after another, then ends. A data set that ends
it, by a crash or by time, is skipped, and another process continues with the rest. Workers that grade come after it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from swarm.children import Channel, Child, python_path
from swarm.environments.config import TASK_LIST, DataSettings, StoredRows, TaskConfig, VerificationSettings
from swarm.environments.conversion.limits import UNFINISHED, Limits
from swarm.environments.rewards import names_of
from swarm.environments.sandbox.directories import (
    WorkerDirectories,
    caches,
    download_environment,
    environment,
    token_file,
)
from swarm.environments.sources.dataset import RowsTask
from swarm.environments.verification.messages import (
    MAX_TEXT_REPLY_BYTES,
    Draw,
    DrawSeveral,
    GradeGroup,
    Prepare,
    Prepared,
    Reply,
    Setup,
    encode,
    max_reply_bytes,
)
from swarm.machine import available_bytes

WORKER = "swarm.environments.verification.worker"
START_LIMIT_S = 900.0
"""Long, because a first start may download and convert data sets."""
EXTRACTED_TO = ("HF_DATASETS_DOWNLOADED_DATASETS_PATH", "HF_DATASETS_EXTRACTED_DATASETS_PATH")
"""Variables with the folders for files that `datasets` extracts from archives without a telling name."""
_ALL_ROWS = 2**62


class Job:
    """One request and the receiver of its outcome."""

    def __init__(self, request: Draw | DrawSeveral | GradeGroup, finish: Callable[[Reply], None], own: bool) -> None:
        """`own`: for this node itself, not a foreign group."""
        self.request = request
        # encode in the caller's thread, so that an encoding error is raised there
        self.message = encode(request)
        self.what = f"a group of {request.ref.task}" if isinstance(request, GradeGroup) else str(request)
        self.finish = finish
        self.own = own
        self.queued_at = time.monotonic()


class WorkerProcess:
    """One process, its channel and its current job."""

    def __init__(
        self,
        request: Prepare | Setup,
        directory: Path,
        environment: dict[str, str],
        max_reply_bytes: int = MAX_TEXT_REPLY_BYTES,
    ) -> None:
        """Start it in `directory`, which is empty and removed with it. Raises `OSError`."""
        self.request = request
        self._directory = directory
        self._child = Child(WORKER, environment, directory=directory)
        self.channel = Channel(self._child.socket, max_reply_bytes)
        self.ready = False
        self.job: Job | None = None
        self.began = time.monotonic()
        """Start of its last job."""
        self.deadline = self.began + START_LIMIT_S
        self.channel.send(encode(request))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def give(self, job: Job, time_limit_s: float) -> None:
        """Send it a job."""
        self.job = job
        self.began = time.monotonic()
        self.deadline = self.began + time_limit_s
        self.channel.send(job.message)

    def proceed(self, deadline: float) -> None:
        """Let it prepare the next data set."""
        self.deadline = deadline
        self.channel.send(b"")

    @property
    def asked(self) -> Prepare | Setup | Draw | DrawSeveral | GradeGroup | None:
        """The request that it must answer."""
        if not self.ready:
            return self.request
        return self.job.request if self.job is not None else None

    def kill(self) -> str:
        """Kill the process; returns how it ended, with the end of its standard error."""
        ending = self._child.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
        return f"worker {ending}"


class Preparation:
    """The data sets of a pool."""

    def __init__(self, configs: Sequence[TaskConfig], settings: DataSettings, foreign: bool) -> None:
        """`foreign`: they are those of a run's founder."""
        self.wanted = [config for config in configs if config.has_rows]
        """Tasks whose data sets are still to be put on the disk."""
        self.stored: dict[str, StoredRows] = {}
        """Rows, by task."""
        self.unprepared: dict[str, str] = {}
        """Why the other tasks have no rows."""
        self._settings = settings
        self._foreign = foreign
        self._answers = False
        """Whether the process has started on the data sets."""
        self._forgiven = ""
        """Task whose data set has ended a process once, perhaps by chance."""
        self._written = 0
        """Bytes written by earlier processes."""
        self._written_now = 0
        self._unfinished: Path | None = None
        self._began: float | None = None

    def begin(self) -> Limits:
        """Limits of the next process: configured ones for a founder's data sets, the machine's for own ones."""
        self._answers = False
        self._began = self._began or time.monotonic()
        self._written, self._written_now = self._written + self._written_now, 0
        free, settings = shutil.disk_usage(caches()[1]).free, self._settings
        if not self._foreign:
            return Limits(_ALL_ROWS, free, free, max(available_bytes(), settings.memory_bytes))
        left = min(free, max(0, settings.run_bytes - self._written))
        return Limits(settings.rows, settings.bytes, left, settings.memory_bytes, settings.growth)

    def deadline(self) -> float:
        """Deadline of the data set in progress: a founder's share one time limit, own ones have one each."""
        began = self._began if self._foreign and self._began is not None else time.monotonic()
        return began + START_LIMIT_S

    def accept(self, prepared: Prepared) -> bool:
        """Note the reply of the process; False if it names files outside the cache."""
        files = [Path(part.path) for rows in prepared.stored.values() for part in rows.files]
        unfinished = Path(prepared.unfinished) if prepared.unfinished else None
        if not all(map(_is_in_cache, files)) or not (unfinished is None or _is_in_cache(unfinished)):
            return False
        self._answers, self._written_now = True, max(self._written_now, prepared.written)
        self.stored |= prepared.stored
        self._leave_out(prepared.unprepared)
        self._unfinished = unfinished
        return True

    def give_up(self, reason: str, late: bool) -> bool:
        """Skip the data set that has ended the process, the second time or if it was `late`.

        A founder's data sets share one time limit: if it is over, the rest are skipped as well. Returns False if the
        process never started on a data set.
        """
        self._sweep()
        if not (self._answers and self.wanted):
            return False
        if late or self.wanted[0].name == self._forgiven:
            lost = self.wanted if late and self._foreign else self.wanted[:1]
            why = "its data set cannot be converted here: it takes too much memory or time, or its files are broken"
            self._leave_out({config.name: f"task {config.name!r}: {why}; {reason}" for config in lost})
        else:
            self._forgiven = self.wanted[0].name
        return True

    def _sweep(self) -> None:
        """Remove the remains of the last conversion."""
        if self._unfinished is not None and self._unfinished.suffix == UNFINISHED:
            shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished = None

    def _leave_out(self, unprepared: dict[str, str]) -> None:
        self._sweep()
        self.unprepared |= unprepared
        done: Collection[str] = self.stored.keys() | self.unprepared.keys()
        self.wanted = [config for config in self.wanted if config.name not in done]


class WorkerStarter:
    """Starts the workers of a pool."""

    def __init__(
        self, configs: Sequence[TaskConfig], settings: VerificationSettings, lenient: bool, files: Collection[str]
    ) -> None:
        """See `VerificationPool`."""
        self._configs = tuple(configs) if lenient else tuple(config.from_anywhere() for config in configs)
        self.rewards = {config.name: names_of(config.rewards) for config in self._configs}
        """Names of each task's rewards."""
        self.shows = {config.name: config.media for config in self._configs}
        """Modalities of each task besides text."""
        self._lenient = lenient
        self._files = frozenset(files)
        self._directories = WorkerDirectories()
        self.preparation = Preparation(self._configs, settings.data, foreign=lenient)
        self._setup = Setup(
            configs=TASK_LIST.dump_json(self._configs),
            time_limit_s=settings.time_limit_s,
            memory_limit_bytes=settings.memory_limit_bytes,
            tasks_bytes=settings.tasks_bytes,
            elsewhere=str(self._directories.lock),
            lenient=lenient,
            folders=self._folders(),
        )

    def preparer(self) -> WorkerProcess | None:
        """A process that downloads and converts data sets; None where no task needs it. Raises `OSError`."""
        wanted = self.preparation.wanted
        if not wanted:
            return None
        own = {config.name for config in self._own()}
        files = [each.path for each in wanted if isinstance(each, RowsTask) and each.name in own and each.is_on_disk]
        for cache in caches():
            cache.mkdir(parents=True, exist_ok=True)
        # a founder chooses the data sets, but must not use this user's token
        readable = (*files, *(() if self._lenient else (str(token_file()),)))
        request = Prepare(
            configs=TASK_LIST.dump_json(tuple(wanted)),
            readable=readable,
            writable=tuple(map(str, caches())),
            network=len(files) < len(wanted),
            limits=self.preparation.begin(),
        )
        directory = self._directories.new()
        variables = download_environment(directory, not self._lenient) | python_path()
        if self._lenient:
            variables |= dict.fromkeys(EXTRACTED_TO, str(directory / "extracted"))  # removed with the process
        return WorkerProcess(request, directory, variables)

    def _own(self) -> list[TaskConfig]:
        """Tasks whose local files this node's user named."""
        return [config for config in self._configs if not self._lenient or config.name in self._files]

    def _folders(self) -> tuple[str, ...]:
        """Folders that the user's own tasks read; not those that hold far more than a data set or a model."""
        far_more = {Path.home(), Path("/")}
        folders = {folder for config in self._own() for folder in config.folders}
        return tuple(sorted(map(str, folders - far_more)))

    def grader(self) -> WorkerProcess:
        """A process that draws and grades. Raises `OSError`."""
        directory = self._directories.new()
        variables = environment(directory) | python_path()
        preparation = self.preparation
        setup = msgspec.structs.replace(self._setup, stored=preparation.stored, unprepared=preparation.unprepared)
        return WorkerProcess(setup, directory, variables, max_reply_bytes(self.shows))

    def close(self) -> None:
        """Remove the workers' directories."""
        self._directories.close()


def _is_in_cache(path: Path) -> bool:
    cache = caches()[1]
    inside = path.is_relative_to(cache) and ".." not in path.parts
    return inside and path.resolve().is_relative_to(cache.resolve())
