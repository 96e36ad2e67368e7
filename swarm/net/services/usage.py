"""What became of an author's groups at another node: every node says it to the author alone, who asks now and then.

    author ── request ──▶ receiver: its account of the one who asks ──▶ received, used, not needed, refused, worth

The remote end of a connection is its identity, so that nobody can ask about others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from swarm.errors import PeerUnreachable
from swarm.protocols import RequestTransport
from swarm.reasons import Reason
from swarm.types import Count, Estimate, complete
from swarm.types.bounds import MAX_TOLD_TASKS, Fraction, Name

PROTOCOL = "/swarm/usage/1"
MAX_REPLY_BYTES = 2**16


class GroupUsage(Struct, frozen=True):
    """What one node did with another's groups, as it says."""

    received: Count = 0
    used: Count = 0
    """In at least one update."""
    not_needed: Count = 0
    """Made room for newer ones before an update took them."""
    refused: Count = 0
    """Failed any check: an author does not learn which one, which would teach a poisoner to pass."""
    worth: Estimate | None = None
    """Worth of one of them, in own groups of the node; None while unknown."""
    wants: Annotated[dict[Name, Fraction], Meta(max_length=MAX_TOLD_TASKS)] = {}
    """The learnability of each task's questions to the node: 1 where it is right half of the time, 0 where always or
    never. Everybody can compute it from the groups that the node shares."""

    @property
    def spare(self) -> int:
        """Groups that wait, or were not needed."""
        return max(0, self.received - self.used - self.refused)


def usage_by(
    received: int, used: int, dropped: Mapping[str, int], worth: Estimate | None, wants: Mapping[str, float]
) -> GroupUsage:
    """An author's account, for the author; `dropped` is by reason."""
    not_needed = dropped.get(Reason.NOT_NEEDED, 0)
    return GroupUsage(received, used, not_needed, sum(dropped.values()) - not_needed, worth, dict(wants))


def serve_usage(transport: RequestTransport, usage_of: Callable[[str], GroupUsage]) -> None:
    """Answer authors by `usage_of` their peer id, which is called on the network thread."""
    transport.serve(PROTOCOL, lambda remote, request: msgspec.msgpack.encode(usage_of(remote)))


def ask_usage(transport: RequestTransport, peer_id: str, timeout_s: float) -> GroupUsage:
    """What a peer did with this node's groups. Blocks. Raises `PeerUnreachable`, also for an answer of no use."""
    reply = transport.request(peer_id, PROTOCOL, b"", timeout_s)
    try:
        if len(reply) > MAX_REPLY_BYTES:
            raise msgspec.DecodeError(f"{len(reply)} bytes")
        usage = msgspec.msgpack.decode(reply, type=GroupUsage)
        if usage.worth is not None and not all(map(math.isfinite, astuple(usage.worth))):
            raise msgspec.DecodeError("a worth that is not finite")
        return usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerUnreachable(f"{peer_id} did not say what became of this node's groups: {error}") from None


complete(globals())
