"""The directory process: `python -m swarm.net.hivemind.directory_process FD`, for `directory.py` only.

It runs hivemind's DHT, which decodes all strangers' bytes. A failure costs only this process, which the node restarts.
The process ends when its socket closes. If it hangs, an alarm ends it, so it outlives a killed node by no more than
that.
"""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import signal
import socket
import sys

from swarm.children import receive, send
from swarm.net.hivemind import light_import
from swarm.net.hivemind.dht import BoundedP2P, PeerDirectory
from swarm.net.hivemind.directory import (
    MAX_MESSAGE_BYTES,
    MAX_RECORDS,
    AddPeers,
    Announce,
    Announced,
    Failed,
    Found,
    PeersAdded,
    Read,
    Ready,
    Reply,
    Request,
    Setup,
    decode_request,
    encode,
)

with light_import.without_the_rest():
    from hivemind.utils.logging import use_hivemind_log_handler
    from hivemind.utils.multiaddr import Multiaddr

MEMORY_LIMIT_BYTES = 256 * 2**20
"""Limit of the data segment; normal use is a tenth of it, a flood of requests takes two tenths."""
MAX_ERROR_BYTES = 2**16
"""Limit of its standard error, the only file that it writes."""
ALARM_S = 20.0
REQUEST_TIMEOUT_S = 20.0


async def serve(connection: socket.socket) -> None:
    """Answer requests until the other end or the daemon closes its connection."""
    alive = asyncio.create_task(_stay_alive())
    reader, writer = await asyncio.open_connection(sock=connection)
    setup = decode_request(await receive(reader, MAX_MESSAGE_BYTES))
    assert isinstance(setup, Setup)
    p2p = await BoundedP2P.replicate(Multiaddr(f"/unix{setup.control}"))
    directory = await PeerDirectory.create(p2p, setup.run_id, keeps=setup.keeps)
    await send(writer, encode(Ready()))
    ends = {asyncio.create_task(p2p.wait_closed()), asyncio.create_task(_answer_all(directory, reader, writer))}
    ended, _ = await asyncio.wait({alive, *ends}, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()


async def _answer_all(directory: PeerDirectory, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        request = decode_request(await receive(reader, MAX_MESSAGE_BYTES))
        await send(writer, encode(await _answer(directory, request)))


async def _answer(directory: PeerDirectory, request: Request) -> Reply:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await _handle(directory, request)
    except Exception as error:
        # hivemind's DHT may raise anything for its peers' answers.
        return Failed(repr(error)[:200])


async def _handle(directory: PeerDirectory, request: Request) -> Reply:
    match request:
        case AddPeers(peer_ids, first):
            directory.set_members(peer_ids)
            return PeersAdded(tuple(await directory.add_peers(peer_ids, first=first)))
        case Announce(peer_id, sealed, expires_at):
            return Announced(await directory.announce(peer_id, sealed, expires_at))
        case Read(everything):
            records = [sealed for _, sealed in await directory.read(everything=everything)]
            return Found(tuple(random.sample(records, min(len(records), MAX_RECORDS))))
        case Setup():
            raise AssertionError("a directory is set up once")


async def _stay_alive() -> None:
    while True:
        signal.setitimer(signal.ITIMER_REAL, ALARM_S)
        await asyncio.sleep(ALARM_S / 10)


def main() -> None:
    """Run the directory for the node at the other end of the file descriptor given as the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, ALARM_S)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_ERROR_BYTES, MAX_ERROR_BYTES))
    use_hivemind_log_handler("nowhere")
    logging.disable()
    try:
        asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main()
