"""Groups that nodes offer and others fetch, beside the same groups sent to everybody."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.network.fleet import Fleet, Member

WANTED = 0.25
"""Fraction of the groups on offer that a node fetches."""
LAST_S = 5.0
"""For what was wanted at the end to arrive."""


@dataclass(frozen=True)
class Sharing:
    """What some seconds of sharing did to a node, on average."""

    wanted: int
    """Groups that nodes asked for, of all nodes."""
    latencies_s: list[float]
    """From sharing to the verified group, of each that arrived."""
    received: float
    """Groups that arrived at a node each second."""
    read_bytes: float
    """Read by its daemon each second, through all sockets: what the node itself hands to it is counted, too."""


def share_for(fleet: Fleet, size_bytes: int, every_s: float, seconds: float) -> Sharing:
    """Let settled nodes share; they offer, or send, as they were told at the start."""
    fleet.publish(size_bytes, every_s)
    time.sleep(5.0)  # the first groups are sent in any case
    began, before, were = time.monotonic(), _read_bytes(fleet.members), _num_received(fleet)
    time.sleep(seconds)
    took = time.monotonic() - began
    read = _read_bytes(fleet.members) - before
    received = _num_received(fleet) - were
    fleet.quiet()
    time.sleep(LAST_S)
    wanted = len(_said(fleet, "wanted", "ids"))
    latencies = [float(str(latency)) for latency in _said(fleet, "fetched", "latencies_s")]
    num = len(fleet.members)
    return Sharing(wanted, latencies, received / num / took, read / num / took)


def _num_received(fleet: Fleet) -> int:
    return sum(int(str(member.child.ask("status")["received"])) for member in fleet.members)


def _read_bytes(members: Sequence[Member]) -> int:
    total = 0
    for member in members:
        for process in member.child.tree():
            if "p2pd" in process.name():
                total += int(process.io_counters().read_chars)
    return total


def _said(fleet: Fleet, event: str, name: str) -> list[object]:
    """What all nodes reported in lists of this name."""
    lists = [told[name] for member in fleet.members for told in member.child.said(event)]
    return [each for found in lists if isinstance(found, list) for each in found]
