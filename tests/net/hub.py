"""A whole transport whose network is function calls: all nodes of a hub live on one loop, connected to all others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.membership.member import Member
from swarm.net.membership.session import MemberSession
from swarm.net.membership.transport import MemberTransport
from swarm.net.records.envelope import (
    LOOK_AGAIN_S,
    MAX_REPLY_BYTES,
    NOT_YET_S,
    encode_answer,
    encode_request,
    read_answer,
)
from swarm.net.runtime import AsyncioRuntime, until
from swarm.types import RunManifest

T = TypeVar("T")


class DirectHub:
    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="direct-hub", daemon=True)
        self._thread.start()

    def do(self, step: Awaitable[Any], timeout_s: float) -> Any:
        async def done() -> Any:
            return await step

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(timeout_s + 5.0)

    def close(self) -> None:
        """Ends the sessions before the loop, even those that have not begun."""
        self.do(_end_tasks(), 0.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def connected(self, own: Member) -> dict[str, Member]:
        me, banned = own.identity.peer_id, own.peers.banned
        present = {name: other for name, other in self.members.items() if name not in {me, *banned}}
        return {name: other for name, other in present.items() if me not in other.peers.banned}


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class DirectNetwork:
    uses_relays = dials_claims = False

    def __init__(self, hub: DirectHub, member: Member) -> None:
        self._hub = hub
        self._member = member

    def can_dial(self, address: str) -> bool:
        return True

    async def connect(self, peer_id: str, addresses: Sequence[str]) -> None:
        raise PeerUnreachable(f"{peer_id} is not on this hub")

    async def call(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        chunks = self.stream(peer_id, protocol, payload, timeout_s, MAX_REPLY_BYTES)
        return b"".join([chunk async for chunk in chunks])

    async def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        asked = self._hub.connected(self._member).get(peer_id)
        if asked is None or protocol not in asked.answering.handlers:
            raise PeerUnreachable(f"no peer {peer_id} answers {protocol} on this hub")
        frames, unread = encode_answer(asked.answering.handle(protocol, self._member.identity.peer_id, payload)), b""

        async def read(count: int) -> bytes:
            nonlocal unread
            async with asyncio.timeout(timeout_s):
                while len(unread) < count:
                    frame = next(frames)
                    if not isinstance(frame, bytes):
                        await until(frame, AsyncioRuntime(), LOOK_AGAIN_S)
                        continue
                    await asyncio.sleep(asked.answering.pace(len(frame)) if frame else NOT_YET_S)
                    unread += frame
            block, unread = unread[:count], unread[count:]
            return block

        try:
            encode_request(payload)
            async for chunk in read_answer(read, max_bytes):
                yield chunk
        except (TimeoutError, LookupError, ValueError) as error:
            raise PeerUnreachable(f"{peer_id} did not answer within {timeout_s:g} s: {error}") from error


class DirectSession(MemberSession):
    def __init__(self, member: Member, hub: DirectHub) -> None:
        super().__init__(member, DirectNetwork(hub, member), AsyncioRuntime())
        self._hub = hub

    async def run(self) -> None:
        async with asyncio.TaskGroup() as loops:
            later = [partial(self._in_run, loop) for loop in self._loops_in_run()]
            for loop in (self._observe, self._join, *later):
                loops.create_task(self._supervise(loop))

    async def serve(self) -> None:
        """The network calls the handlers themselves."""

    async def _reach(self, peer_id: str, timeout_s: float) -> float:
        return timeout_s

    async def _observe(self) -> None:
        peers = self._member.peers
        while True:
            for _ in peers.connected & peers.banned:
                self._member.counters.add("banned_connections")
            before = peers.in_run
            if self._update_peers(frozenset(self._hub.connected(self._member))):
                self._changed(before)
            self.wake()
            await self._runtime.sleep(0.02)


class DirectTransport(MemberTransport):
    def __init__(self, hub: DirectHub, *node: Any) -> None:
        super().__init__(*node)
        self._hub = hub
        self._member.own.locate(("/memory",))

    @staticmethod
    def fetch_manifest(
        peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None
    ) -> tuple[RunManifest, bytes]:
        raise NotImplementedError

    def start(self) -> None:
        self._session = DirectSession(self._member, self._hub)
        self._hub.members[self.peer_id] = self._member
        self._running = self._begin(self._session.run)

    def close(self) -> None:
        if self._hub.members.pop(self.peer_id, None):
            self._session = None
            self._running.cancel()

    def _require_running(self) -> None:
        if self._session is None:
            raise TransportError("the transport must be started before use, and not used after close")

    def _prepare(self) -> None:
        raise NotImplementedError

    _live = _stop = _prepare

    def _soon(self, action: Callable[[], object]) -> bool:
        self._hub.loop.call_soon_threadsafe(action)
        return True

    def _begin(self, step: Callable[[], Awaitable[T]]) -> Future[T]:
        async def stepped() -> T:
            return await step()

        return asyncio.run_coroutine_threadsafe(stepped(), self._hub.loop)
