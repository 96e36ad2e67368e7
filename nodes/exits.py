"""Exit codes of the `swarm` command."""

from __future__ import annotations

DONE = 0
FAILED = 1
USAGE = 2
"""Usage or configuration error."""
NETWORK = 3
"""The network is permanently lost."""
INTERRUPTED = 130
