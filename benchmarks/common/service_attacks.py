"""A hostile peer's attacks on services, directory, repair and discovery. Every attack is one method that acts once on
one victim; the named ones repeat until cancelled.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgpack
import msgspec
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

from swarm.errors import PeerUnreachable, TransportError
from swarm.extras.learner.snapshots.messages import CHUNKS_PROTOCOL, ChunksRequest, StatusRequest
from swarm.extras.learner.snapshots.plan import LinkLimits
from swarm.net.hivemind.daemon import Daemon
from swarm.net.hivemind.dht import key_of
from swarm.net.hivemind.dht_entries import PARTS
from swarm.net.records.envelope import MAX_CHUNK_BYTES, encode_request
from swarm.net.records.identity import Identity
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL, GiveRequest, HaveRequest
from swarm.net.records.stores import RECORD_ID_BYTES, Held, record_id
from swarm.net.records.wire import seal, seal_peer_record
from swarm.net.services.requests import ASK_PROTOCOL, HEARTBEAT_PROTOCOL, MANIFEST_PROTOCOL, PEERS_PROTOCOL
from swarm.types import (
    MAX_MULTIADDRS,
    Completion,
    Heartbeat,
    PeerRecord,
    PolicyId,
    ProceduralRef,
    RolloutGroup,
    Sampling,
    VersionSpan,
)
from tests.attacks.own_feed import OwnFeed

IDLE_STREAMS = 60
"""Streams held open at each victim, over all its services."""
EXTENSION = 0x40
"""hivemind's code for a tuple, which its decoder opens recursively."""
NESTED = 200
REPEATED_KEYS = 20_000
NOISE_RECORDS = 64
NOISE_BYTES = 2_000
FAKE_PEERS = 16
FAKE_LIFE_S = 240.0
TIMEOUT_S = 5.0
PEER_ATTACKS = {
    "hold_streams": 0.1,
    "ask_often": 0.05,
    "ask_nonsense": 0.5,
    "store_nested": 2.0,
    "store_fakes": 2.0,
    "find_repeated": 5.0,
}
"""Attacks on any node, with the seconds between repetitions."""
LEARNER_ATTACKS = {
    "hold_streams": 0.5,
    "hold_snapshots": 1.0,
    "boast": 1.0,
    "limit_senselessly": 1.0,
    "beat_falsely": 1.0,
    "mean_nothing": 2.0,
}
"""The same, on a learner."""


class ServiceAttacks:
    """One identity's attacks on the victims that its daemon is connected to."""

    def __init__(
        self,
        daemon: Daemon,
        feed: OwnFeed,
        identity: Identity,
        run_id: str,
        victims: frozenset[str],
        done: Counter[str],
    ) -> None:
        """Does nothing before `run`; `done` counts how often each attack reached a victim."""
        self._done = done
        self._daemon = daemon
        self._feed = feed
        self._identity = identity
        self._run_id = run_id
        self._victims = victims
        self._random = random.Random(0)
        self._idle: dict[str, deque[asyncio.StreamWriter]] = {victim: deque() for victim in victims}
        self._noise = self._signed_noise()
        self._fakes = [self._fake_peer() for _ in range(FAKE_PEERS)]

    async def run(self, every_s: Mapping[str, float]) -> None:
        """Repeat the named attacks at their intervals until cancelled."""
        await self._bait()
        self._dht = await DHTProtocol.create(self._daemon.p2p, DHTID.generate(), 20, 5, 5, TIMEOUT_S, client_mode=True)
        async with asyncio.TaskGroup() as assaults:
            for name, pause_s in every_s.items():
                for victim in self._victims:
                    assaults.create_task(self._repeat(name, victim, pause_s))

    async def _repeat(self, name: str, victim: str, every_s: float) -> None:
        assault: Callable[[str], Awaitable[None]] = getattr(self, name)
        while True:
            # A victim's response does not matter.
            with suppress(Exception):
                await assault(victim)
                self._done[name] += 1
            await asyncio.sleep(every_s * self._random.uniform(0.5, 1.5))

    async def _bait(self) -> None:
        """Answer requests for peers and for missed records."""
        held = [Held(record_id(record), len(record), 10.0) for record in self._noise]
        gifts = b"".join(record_id(record) + len(record).to_bytes(4, "big") + record for record in self._noise)
        answers = {
            PEERS_PROTOCOL: msgspec.msgpack.encode(self._fakes),
            HAVE_PROTOCOL: msgspec.msgpack.encode(held),
            GIVE_PROTOCOL: gifts,
        }
        for protocol, answer in answers.items():
            await self._daemon.answer(protocol, lambda remote, request, answer=answer: iter([answer]))  # type: ignore[misc]

    async def hold_streams(self, victim: str) -> None:
        """Open a stream and send nothing, or half a header."""
        idle = self._idle[victim]
        protocol = self._random.choice([MANIFEST_PROTOCOL, PEERS_PROTOCOL, HEARTBEAT_PROTOCOL, HAVE_PROTOCOL])
        _, writer = await self._daemon.open_stream(victim, protocol)
        writer.write(self._random.choice([b"", b"\0\0", b"\0\x0f\0\0"]))
        idle.append(writer)
        if len(idle) > IDLE_STREAMS:
            idle.popleft().close()

    async def ask_often(self, victim: str) -> None:
        """Request all records that the victim holds."""
        await self._ask(victim, HAVE_PROTOCOL, msgspec.msgpack.encode(HaveRequest(1e9)))

    async def ask_nonsense(self, victim: str) -> None:
        """Send bytes that are not a request, or an absurd one."""
        request = self._random.choice(
            [
                self._random.randbytes(100),
                b"\x91" * 50_000,
                b"\x91\xcb" + struct.pack(">d", float("nan")),
                msgspec.msgpack.encode(HaveRequest(-1e308)),
                msgspec.msgpack.encode(GiveRequest((bytes(RECORD_ID_BYTES),) * 50_000)),
            ]
        )
        await self._ask(victim, self._random.choice([HAVE_PROTOCOL, GIVE_PROTOCOL, PEERS_PROTOCOL]), request)

    async def store_nested(self, victim: str) -> None:
        """Nested extensions, as a value under one of the run's keys."""
        value = b"\xc0"
        for _ in range(NESTED):
            value = msgpack.packb(msgpack.ExtType(EXTENSION, b"\x91" + value))
        await self._store(victim, value, msgpack.packb("x"), time.time() + 60)

    async def store_fakes(self, victim: str) -> None:
        """A fake peer with its own identity, at addresses where nobody listens."""
        sealed = self._random.choice(self._fakes)
        await self._store(victim, msgpack.packb(sealed), msgpack.packb("fake"), time.time() + FAKE_LIFE_S)

    async def find_repeated(self, victim: str) -> None:
        """One key thousands of times."""
        key = DHTID.generate(source=key_of(self._run_id, 1)).to_bytes()
        request = dht_pb2.FindRequest(keys=[key] * REPEATED_KEYS)
        await self._dht.get_stub(PeerID.from_base58(victim)).rpc_find(request, timeout=TIMEOUT_S)

    async def hold_snapshots(self, victim: str) -> None:
        """Occupy an upload place of a snapshot, for a version that will never exist."""
        await self._ask(victim, CHUNKS_PROTOCOL, msgspec.msgpack.encode(ChunksRequest(2**62, "whole", 0)))

    async def boast(self, victim: str) -> None:
        """Request a place in the plan with many children, and serve nobody."""
        await self._ask(victim, ASK_PROTOCOL, msgspec.msgpack.encode(StatusRequest(-1, LinkLimits(1e12, 1e12))))

    async def limit_senselessly(self, victim: str) -> None:
        """Absurd link limits."""
        up = self._random.choice([1e-320, 1e308, float("nan"), -1.0])
        await self._ask(victim, ASK_PROTOCOL, msgspec.msgpack.encode(StatusRequest(-1, LinkLimits(up, 1e6))))

    async def beat_falsely(self, victim: str) -> None:
        """Absurd figures of a worker."""
        figure = self._random.choice([1e308, -1e308, float("nan"), float("inf")])
        beat = Heartbeat(figure, 2**62, self._random.choice([-(2**62), 2**62]), figure, figure)
        await self._ask(victim, HEARTBEAT_PROTOCOL, msgspec.msgpack.encode(beat))

    async def mean_nothing(self, victim: str) -> None:
        """A group with finite log-probabilities and an infinite sum."""
        completion = Completion("<answer>1</answer>", "stop", (1, 2), (-1e308, -1e308), (VersionSpan(0, 2),))
        group = RolloutGroup(
            run_id=self._run_id,
            peer_id=self._identity.peer_id,
            sequence=time.time_ns() // 1_000_000,
            created_at=time.time(),
            policy=PolicyId("tiny", "", 0),
            sampling=Sampling(),
            question=ProceduralRef("gcd", "none", "", 0, 0, ""),
            completions=(completion,) * 8,
            rewards=(0.0, 1.0) * 4,
        )
        await self._feed.take_part(self._run_id)
        self._feed.publish(seal(self._identity, self._run_id, "group", group))

    async def _store(self, victim: str, value: bytes, subkey: bytes, expires_at: float) -> None:
        key = DHTID.generate(source=key_of(self._run_id, self._random.randrange(PARTS))).to_bytes()
        request = dht_pb2.StoreRequest(
            keys=[key], subkeys=[subkey], values=[value], expiration_time=[expires_at], in_cache=[False]
        )
        await self._dht.get_stub(PeerID.from_base58(victim)).rpc_store(request, timeout=TIMEOUT_S)

    async def _ask(self, victim: str, protocol: str, request: bytes) -> None:
        with suppress(PeerUnreachable, TransportError):
            reader, writer = await self._daemon.open_stream(victim, protocol)
            try:
                writer.write(encode_request(request))
                async with asyncio.timeout(TIMEOUT_S):
                    await reader.read(MAX_CHUNK_BYTES)
            finally:
                writer.close()

    def _signed_noise(self) -> list[bytes]:
        """Empty records by unknown identities."""
        return [
            seal(Identity.generate(), self._run_id, "group", self._random.randbytes(NOISE_BYTES))  # type: ignore[arg-type]
            for _ in range(NOISE_RECORDS)
        ]

    def _fake_peer(self) -> bytes:
        identity = Identity.generate()
        addresses = tuple(
            f"/ip4/127.0.0.1/tcp/{self._random.randrange(1, 1_000)}/p2p/{identity.peer_id}"
            for _ in range(MAX_MULTIADDRS)
        )
        record = PeerRecord(self._run_id, identity.peer_id, addresses, "", (), "peer", "", time.time() + FAKE_LIFE_S)
        return seal_peer_record(identity, record)
