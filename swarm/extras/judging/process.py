"""The node's end of its judge's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from swarm.children import Channel, Child, Oversized, inherited, python_path
from swarm.environments.judge import JudgeSettings
from swarm.errors import EngineCrashed
from swarm.extras.judging.messages import MAX_REPLY_BYTES, Query, Reply, Setup, decode_reply, encode
from swarm.policy.config import is_on_hub

WORKER = "swarm.extras.judging.worker"


class Asked(Protocol):
    """A process that a judge is asked through."""

    channel: Channel
    """Readable when `receive` has something."""

    def send(self, queries: Sequence[Query]) -> None:
        """Ask; `receive` detects a dead process."""
        ...

    def receive(self) -> Reply | None:
        """The next reply; None while it is incomplete. Raises `EngineCrashed`."""
        ...

    def kill(self) -> None:
        """End the process."""
        ...


class JudgeProcess:
    """One process; its first reply is `Ready` or `Broken`, then there is one to each list of queries."""

    def __init__(self, settings: JudgeSettings) -> None:
        """Start it. Raises `OSError`."""
        self._child = Child(WORKER, {**_environment(settings), **python_path()})
        self.channel = Channel(self._child.socket, MAX_REPLY_BYTES)
        self.channel.send(encode(Setup(settings.model_dump_json().encode())))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def send(self, queries: Sequence[Query]) -> None:
        """Ask; `receive` detects a dead process."""
        self.channel.send(encode(tuple(queries)))

    def receive(self) -> Reply | None:
        """The next reply; None while it is incomplete.

        Raises `EngineCrashed`, also for a reply that no intact process sends.
        """
        try:
            message = self.channel.receive()
            return None if message is None else decode_reply(message)
        except (EOFError, OSError) as error:
            raise EngineCrashed(f"the judge's process {self._child.ending()}") from error
        except (Oversized, msgspec.DecodeError) as error:
            raise EngineCrashed("the judge's process sent what it must not") from error

    def kill(self) -> None:
        """End the process."""
        self._child.kill()


def _environment(settings: JudgeSettings) -> dict[str, str]:
    """What an endpoint's client needs, with its key alone of all secrets; or what a model needs."""
    if settings.endpoint is not None:
        return inherited("base", "home", "hub", names=(settings.api_key_env,) if settings.api_key_env else ())
    tokens = ("tokens",) if settings.model and is_on_hub(settings.model) else ()
    return inherited("base", "home", "compute", "hub", *tokens)
