"""The node's end of its judge's process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Protocol

import msgspec

from swarm.environments.judge import JudgeSettings
from swarm.errors import EngineCrashed
from swarm.extras.judging.messages import MAX_REPLY_BYTES, Query, Reply, Setup, decode_reply, encode
from swarm.inherited import inherited, python_path
from swarm.policy.config import is_on_hub

WORKER = "swarm.extras.judging.worker"


class Asked(Protocol):
    """A process that a judge is asked through."""

    connection: Connection
    """Readable when `receive` has something."""

    def send(self, queries: Sequence[Query]) -> None:
        """Ask. Raises `EngineCrashed`."""
        ...

    def receive(self) -> Reply:
        """The next reply. Raises `EngineCrashed`."""
        ...

    def kill(self) -> None:
        """End the process."""
        ...


class JudgeProcess:
    """One process; its first reply is `Ready` or `Broken`, then there is one to each list of queries."""

    def __init__(self, settings: JudgeSettings) -> None:
        """Start it. Raises `OSError`."""
        self.connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**_environment(settings), **python_path()},
                process_group=0,  # the terminal's Ctrl-C goes to the node, which then ends this process
            )
        with suppress(ConnectionError):  # the next `receive` detects a dead child
            self.connection.send_bytes(encode(Setup(settings.model_dump_json().encode())))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, queries: Sequence[Query]) -> None:
        """Ask. Raises `EngineCrashed`."""
        try:
            self.connection.send_bytes(encode(tuple(queries)))
        except ConnectionError as error:
            raise EngineCrashed("the judge's process has ended") from error

    def receive(self) -> Reply:
        """The next reply. Raises `EngineCrashed`, also for one that no intact process sends."""
        try:
            reply: Reply = decode_reply(self.connection.recv_bytes(MAX_REPLY_BYTES))
        except (EOFError, OSError, msgspec.DecodeError) as error:
            raise EngineCrashed("the judge's process has ended, or sent what it must not") from error
        return reply

    def kill(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self.connection.close()


def _environment(settings: JudgeSettings) -> dict[str, str]:
    """What an endpoint's client needs, with its key alone of all secrets; or what a model needs."""
    if settings.endpoint is not None:
        return inherited("base", "home", "hub", names=(settings.api_key_env,) if settings.api_key_env else ())
    tokens = ("tokens",) if settings.model and is_on_hub(settings.model) else ()
    return inherited("base", "home", "compute", "hub", *tokens)
