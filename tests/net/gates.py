"""Whether a node could decide here on what its daemon sends."""

from __future__ import annotations

import asyncio
import os
from functools import cache

from swarm.net.hivemind.gate import Gate


@cache
def impossible() -> str:
    """Why not; empty if it can."""

    async def run() -> str:
        gate = Gate(datagrams=False, maps_ports=False)
        # One that lasts: of a process that has ended, no memory can be read.
        process = gate.spawn(["sleep", "60"], os.environ)
        process.kill()
        process.wait()
        gate.stop()
        return gate.problem

    return asyncio.run(run())
