"""Handing on a run's manifest: any of its members answers with it, as its founder sealed it."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.errors import PeerUnreachable

MANIFEST_PROTOCOL = "/swarm/manifest/1"


def nobody(failures: Sequence[str]) -> PeerUnreachable:
    """The error that names every address and how it failed."""
    return PeerUnreachable(
        "no peer could tell which run this is; check the addresses, and that one of them is up: " + "; ".join(failures)
    )
