"""Starts the pool's workers: first one that puts data sets on disk, if any is wanted, then those that grade."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from swarm.environments.config import TASK_LIST, TaskConfig, VerificationSettings
from swarm.environments.rewards import names_of
from swarm.environments.sandbox.directories import (
    WorkerDirectories,
    caches,
    download_environment,
    environment,
    token_file,
)
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.verification.messages import Prepare, Setup, max_reply_bytes
from swarm.environments.verification.preparation import Preparation
from swarm.environments.verification.process import WorkerProcess

EXTRACTED_TO = ("HF_DATASETS_DOWNLOADED_DATASETS_PATH", "HF_DATASETS_EXTRACTED_DATASETS_PATH")
"""Where `datasets` puts what it extracts from files that are compressed against their names."""


class WorkerStarter:
    """What every worker of a pool starts with."""

    def __init__(
        self, configs: Sequence[TaskConfig], settings: VerificationSettings, lenient: bool, files: Collection[str]
    ) -> None:
        """See `VerificationPool`."""
        self._configs = tuple(configs) if lenient else tuple(config.from_anywhere() for config in configs)
        self.rewards = {config.name: names_of(config.rewards) for config in self._configs}
        """Names of each task's rewards."""
        self.shows = {config.name: config.media for config in self._configs}
        """What each task has besides text."""
        self._lenient = lenient
        self._files = frozenset(files)
        self._directories = WorkerDirectories()
        self.preparation = Preparation(self._configs, settings.data, foreign=lenient)
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
        wanted = self.preparation.wanted
        if not wanted:
            return None
        own = {config.name for config in self._own()}
        files = [each.path for each in wanted if isinstance(each, DatasetTask) and each.name in own and each.is_on_disk]
        places = caches()
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        # a founder chooses the data sets, but must not use this user's token
        readable = (*files, *(() if self._lenient else (str(token_file()),)))
        request = Prepare(
            configs=TASK_LIST.dump_json(tuple(wanted)),
            readable=readable,
            writable=tuple(map(str, places)),
            network=len(files) < len(wanted),
            limits=self.preparation.begin(),
        )
        room = self._directories.new()
        told = download_environment(room, self._python_path, not self._lenient)
        if self._lenient:
            told |= dict.fromkeys(EXTRACTED_TO, str(room / "extracted"))  # removed with the process
        return WorkerProcess(request, room, told)

    def _own(self) -> list[TaskConfig]:
        """Tasks whose local files this node's user named."""
        return [config for config in self._configs if not self._lenient or config.name in self._files]

    def _folders(self) -> tuple[str, ...]:
        """Folders of data sets whose rows name files; not those that hold far more than a data set."""
        far_more = {Path.home(), Path("/")}
        folders = {folder for config in self._own() if (folder := config.folder) is not None}
        return tuple(sorted(map(str, folders - far_more)))

    def grader(self) -> WorkerProcess:
        """A process that draws and grades. Raises `OSError`."""
        room = self._directories.new()
        told = environment(room, self._python_path)
        preparation = self.preparation
        setup = msgspec.structs.replace(self._setup, stored=preparation.stored, unprepared=preparation.unprepared)
        return WorkerProcess(setup, room, told, max_reply_bytes(self.shows))

    def close(self) -> None:
        """Remove the workers' directories."""
        self._directories.close()
