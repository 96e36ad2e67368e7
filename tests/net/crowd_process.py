"""Bare daemons, one at each address given, that see others come; prints their multiaddrs, then waits to be ended."""

from __future__ import annotations

import asyncio
import json
import sys

from swarm.net.hivemind.daemon import Daemon, quiet_hivemind


async def main(addresses: list[str]) -> None:
    quiet_hivemind()
    places = [f"/ip4/{address}/udp/4001/quic-v1" for address in addresses]
    daemons = [await Daemon.start(listen=[place]) for place in places]
    multiaddrs = [f"{place}/p2p/{daemon.peer_id}" for place, daemon in zip(places, daemons, strict=True)]
    print(json.dumps(multiaddrs), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
