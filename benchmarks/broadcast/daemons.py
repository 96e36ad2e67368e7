"""The rate of the network daemons alone over unlimited links: bytes through one stream of two daemons, unprocessed.

    python -m benchmarks.broadcast.daemons serve NUM_BYTES
    python -m benchmarks.broadcast.daemons fetch MULTIADDR NUM_BYTES

commands  go (of a client)
events    ready (address) of the server and, without it, of each client, fetched (seconds) of each client
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

from benchmarks.common.children import commands, emit
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.daemon import Daemon, quiet_hivemind
from swarm.net.records.envelope import MAX_CHUNK_BYTES

PROTOCOL = "/benchmark/bytes/1"
PROCESSORS = NetworkSettings().daemon_processors
SILENCE_S = 60.0


async def serve(num_bytes: int) -> None:
    """Serve every client until told to quit."""
    daemon = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",), processors=PROCESSORS)
    content = bytes(MAX_CHUNK_BYTES)

    def give(remote: str, request: bytes) -> Iterator[bytes]:
        for _ in range(num_bytes // MAX_CHUNK_BYTES):
            yield content

    try:
        await daemon.answer(PROTOCOL, give)
        emit("ready", address=f"{(await daemon.addresses())[0]}/p2p/{daemon.peer_id}")
        await asyncio.to_thread(commands().get)
    finally:
        await daemon.stop()


async def fetch(multiaddr: str, num_bytes: int) -> None:
    """Receive everything when told to."""
    daemon = await Daemon.start(listen=(), processors=PROCESSORS)
    try:
        address, _, server = multiaddr.rpartition("/p2p/")
        await daemon.connect(server, [address])
        emit("ready")
        await asyncio.to_thread(commands().get)
        began = time.perf_counter()
        received = 0
        async for chunk in daemon.stream(server, PROTOCOL, b"", SILENCE_S, num_bytes):
            received += len(chunk)
        assert received == num_bytes
        emit("fetched", seconds=time.perf_counter() - began)
    finally:
        await daemon.stop()


if __name__ == "__main__":
    quiet_hivemind()
    if sys.argv[1] == "serve":
        asyncio.run(serve(int(sys.argv[2])))
    else:
        asyncio.run(fetch(sys.argv[2], int(sys.argv[3])))
