"""Starts the pool's workers: first one that puts data sets on disk, if any is wanted, then those that grade."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from swarm.environments.code import resolved
from swarm.environments.config import (
    CODE_FIELDS,
    TASK_LIST,
    DatasetTask,
    TaskConfig,
    VerificationSettings,
    code_of,
    rewards_of,
)
from swarm.environments.episodes.config import VerifiersTask
from swarm.environments.modalities import modalities
from swarm.environments.sandbox.directories import (
    WorkerDirectories,
    caches,
    download_environment,
    environment,
    token_file,
)
from swarm.environments.scoring.combination import names_of
from swarm.environments.specs import is_on_disk, media_folder
from swarm.environments.verification.messages import Prepare, Prepared, Setup, max_reply_bytes
from swarm.environments.verification.process import WorkerProcess


class WorkerStarter:
    """What every worker of a pool starts with."""

    def __init__(
        self, configs: Sequence[TaskConfig], settings: VerificationSettings, lenient: bool, files: Collection[str]
    ) -> None:
        """See `VerificationPool`."""
        self._configs = tuple(configs) if lenient else tuple(_from_anywhere(config) for config in configs)
        self.rewards = {config.name: names_of(rewards_of(config)) for config in self._configs}
        """Names of each task's rewards."""
        self.shows = {config.name: modalities(config) for config in self._configs}
        """What each task has besides text."""
        self._lenient = lenient
        self._files = frozenset(files)
        self._directories = WorkerDirectories()
        self._python_path = os.pathsep.join(filter(None, sys.path))
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
        wanted = [config for config in self._configs if isinstance(config, DatasetTask | VerifiersTask)]
        if not wanted:
            return None
        files = [config.path for config in self._own() if isinstance(config, DatasetTask) and is_on_disk(config)]
        places = caches()
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        # a founder chooses the data sets, but must not use this user's token
        readable = (*files, *(() if self._lenient else (str(token_file()),)))
        request = Prepare(self._setup.configs, readable, tuple(map(str, places)), len(files) < len(wanted))
        room = self._directories.new()
        return WorkerProcess(request, room, download_environment(room, self._python_path, not self._lenient))

    def _own(self) -> list[TaskConfig]:
        """Tasks whose local files this node's user named."""
        return [config for config in self._configs if not self._lenient or config.name in self._files]

    def _folders(self) -> tuple[str, ...]:
        """Folders of data sets whose rows name files; not those that hold far more than a data set."""
        far_more = {Path.home(), Path("/")}
        folders = {folder for config in self._own() if (folder := media_folder(config)) is not None}
        return tuple(sorted(map(str, folders - far_more)))

    def accept(self, prepared: Prepared) -> bool:
        """Let graders read the prepared rows; False when a file of them lies outside the cache."""
        cache = caches()[1]
        files = [Path(part.path) for rows in prepared.stored.values() for part in rows.files]
        if not all(path.is_relative_to(cache) and ".." not in path.parts for path in files):
            return False
        self._setup = msgspec.structs.replace(self._setup, stored=prepared.stored, unprepared=prepared.unprepared)
        return True

    def grader(self) -> WorkerProcess:
        """A process that draws and grades. Raises `OSError`."""
        room = self._directories.new()
        told = environment(room, self._python_path)
        return WorkerProcess(self._setup, room, told, max_reply_bytes(self.shows))

    def close(self) -> None:
        """Remove the workers' directories."""
        self._directories.close()


def _from_anywhere(config: TaskConfig) -> TaskConfig:
    """The same task for a process in another directory."""
    here: dict[str, str] = {}
    if isinstance(config, DatasetTask) and is_on_disk(config):
        here["path"] = str(Path(config.path).expanduser().absolute())
    if (target := code_of(config)) is not None:
        here[CODE_FIELDS[config.kind]] = resolved(target)
    return config.model_copy(update=here)
