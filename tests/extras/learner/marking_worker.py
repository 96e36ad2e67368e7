"""`swarm work` with a marker before each rewarded completion: `python -m tests.extras.learner.marking_worker`."""

from __future__ import annotations

from functools import partial

from nodes.cli import main
from swarm.extras.learner.roles.worker import WorkerNode
from tests.extras.learner.marking import mark, marking

MARKER = "@@@"

if __name__ == "__main__":
    WorkerNode.begin = marking(partial(mark, marker=MARKER))
    main()
