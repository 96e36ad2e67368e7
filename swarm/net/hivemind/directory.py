"""The run's peer directory, run by a separate process; see `directory_process`.

The process is a second client of the node's daemon. If it dies, the daemon forgets its handlers only: connections,
feeds and requests continue, and a new process replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from swarm.children import Child, inherited, python_path, receive, send
from swarm.errors import DirectoryError, DirectoryLost, Refusal
from swarm.net.records.wire import open_peer_record
from swarm.types import PeerRecord

MAX_MESSAGE_BYTES = 4 * 2**20
MAX_RECORDS = 1_024


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """First message: the daemon to attach to, and the run of the directory."""

    control: str
    """Path of the daemon's control socket."""
    run_id: str
    keeps: bool
    """Whether to store others' records."""


class AddPeers(msgspec.Struct, frozen=True, tag="add_peers"):
    """Add peers to the DHT: all connected members of the run."""

    peer_ids: tuple[str, ...]
    first: bool


class Announce(msgspec.Struct, frozen=True, tag="announce"):
    """Store the node's own record on other nodes."""

    peer_id: str
    sealed: bytes
    expires_at: float


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Ask other nodes for records, in one part or in all parts."""

    everything: bool


Request = Setup | AddPeers | Announce | Read


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process is attached to the daemon."""


class PeersAdded(msgspec.Struct, frozen=True, tag="peers_added"):
    """The peers that are part of the DHT."""

    peer_ids: tuple[str, ...]


class Announced(msgspec.Struct, frozen=True, tag="announced"):
    """Whether some node accepted the record."""

    taken: bool


class Found(msgspec.Struct, frozen=True, tag="found"):
    """Records as their peers signed them."""

    records: tuple[bytes, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request failed; the process continues."""

    error: str


Reply = Ready | PeersAdded | Announced | Found | Failed

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder[Request](Request).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode


T = TypeVar("T", Ready, PeersAdded, Announced, Found)

ANSWER_TIMEOUT_S = 30.0
WORKER = "swarm.net.hivemind.directory_process"


class Directory:
    """A running process and the socket to it; create it with `running`."""

    def __init__(self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Wrap a process that has just started; use `running` instead."""
        self._child = child
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncGenerator[Directory]:
        """Start a process and stop it afterwards; call `open` before use. Raises `DirectoryLost`."""
        try:
            child = Child(WORKER, {**inherited("base"), **python_path()})
        except OSError as error:
            raise DirectoryLost(f"the directory process cannot be started: {error}") from error
        try:
            # Inside the try block, because the wait may be cancelled.
            reader, writer = await asyncio.open_connection(sock=child.socket)
            with closing(writer):
                yield cls(child, reader, writer)
        finally:
            child.kill()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    async def open(self, control: Path, run_id: str, *, keeps: bool) -> None:
        """Attach to the daemon with this control socket; store others' records if `keeps`.

        This method and all below raise `DirectoryLost` if the process is gone or unusable, and `DirectoryError` if it
        could not do what was asked.
        """
        await self._ask(Setup(str(control), run_id, keeps), Ready)

    async def add_peers(self, peer_ids: Collection[str], *, first: bool) -> frozenset[str]:
        """Add all connected members to the DHT; returns those that answered. See `PeerDirectory.add_peers`."""
        met = await self._ask(AddPeers(tuple(peer_ids), first), PeersAdded)
        return frozenset(met.peer_ids) & frozenset(peer_ids)

    async def announce(self, peer_id: str, sealed: bytes, expires_at: float) -> bool:
        """Store this node's signed record; whether some node accepted it."""
        return (await self._ask(Announce(peer_id, sealed, expires_at), Announced)).taken

    async def read(self, run_id: str, now: float, *, everything: bool) -> list[tuple[PeerRecord, bytes]]:
        """Valid records in one random part or in all parts, decoded and as signed."""
        records = []
        for sealed in (await self._ask(Read(everything), Found)).records:
            # Verified again here: strangers' bytes may have compromised the process that decoded them.
            with suppress(Refusal):
                records.append((open_peer_record(sealed, run_id, now=now), sealed))
            await asyncio.sleep(0)
        return records

    async def _ask(self, request: Request, reply_type: type[T]) -> T:
        reply = await self._exchange(request)
        if isinstance(reply, Failed):
            raise DirectoryError(reply.error)
        if not isinstance(reply, reply_type):
            raise DirectoryLost(f"it answered {type(request).__name__} with {type(reply).__name__}")
        return reply

    async def _exchange(self, request: Request) -> Reply:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await send(self._writer, encode(request))
                reply: Reply = decode_reply(await receive(self._reader, MAX_MESSAGE_BYTES))
                return reply
        except TimeoutError as error:
            raise DirectoryLost(f"it did not answer within {ANSWER_TIMEOUT_S:g} s") from error
        except (EOFError, OSError) as error:
            raise DirectoryLost(f"it {await asyncio.to_thread(self._child.ending)}") from error
        except (ValueError, msgspec.MsgspecError) as error:
            raise DirectoryLost(f"its answer cannot be decoded: {error}") from error
