"""Whether a node could decide here on what its daemon sends."""

from __future__ import annotations

import asyncio
import os
from functools import cache

from swarm.net.hivemind.daemon.gate import Gate


@cache
def impossible() -> str:
    """Why not; empty if it can."""

    async def run() -> str:
        gate = Gate(datagrams=False, maps_ports=False)
        gate.spawn(["true"], os.environ).wait()
        gate.stop()
        return gate.problem

    return asyncio.run(run())
