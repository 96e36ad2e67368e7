"""The `swarm` command, whose nodes rest after each round for as long as it took: `python -m tests.nodes.paced`.

Most tests of real nodes wait for something else than a round, and meanwhile the nodes would take all cores from them.
"""

from __future__ import annotations

import time

from nodes.boot.assemble import RunningNode
from nodes.cli import main

MOST_S = 1.0
step = RunningNode.step


def step_and_rest(running: RunningNode) -> None:
    """As `RunningNode.step`."""
    began = time.monotonic()
    step(running)
    time.sleep(min(MOST_S, time.monotonic() - began))


if __name__ == "__main__":
    RunningNode.step = step_and_rest  # type: ignore[method-assign]
    main()
