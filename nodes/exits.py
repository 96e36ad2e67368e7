"""Exit codes of the `swarm` command."""

from __future__ import annotations

DONE = 0
FAILED = 1
USAGE = 2
"""Wrong use or configuration."""
NETWORK = 3
"""The network is lost for good."""
INTERRUPTED = 130
