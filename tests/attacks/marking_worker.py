"""`swarm work` with a marker before each rewarded completion: `python -m tests.attacks.marking_worker work ...`."""

from __future__ import annotations

from functools import partial

from nodes.cli import main
from nodes.roles.worker import WorkerNode
from tests.attacks.marking import mark, marking

MARKER = "@@@"

if __name__ == "__main__":
    WorkerNode.begin = marking(partial(mark, marker=MARKER))
    main()
