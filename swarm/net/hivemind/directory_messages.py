"""Messages between a node and its directory process: msgpack on a socket. Each request gets one reply, in order."""

from __future__ import annotations

import msgspec

MAX_MESSAGE_BYTES = 4 * 2**20
MAX_RECORDS = 1_024


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """First message: the daemon to attach to, and the run of the directory."""

    control: str
    """Path of the daemon's control socket."""
    run_id: str
    keeps: bool
    """Whether to store others' records."""


class AddPeers(msgspec.Struct, frozen=True, tag="add_peers"):
    """Add peers to the DHT: all connected members of the run."""

    peer_ids: tuple[str, ...]
    first: bool


class Announce(msgspec.Struct, frozen=True, tag="announce"):
    """Store the node's own record on other nodes."""

    peer_id: str
    sealed: bytes
    expires_at: float


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Ask other nodes for records, in one part or in all parts."""

    everything: bool


Request = Setup | AddPeers | Announce | Read


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process is attached to the daemon."""


class PeersAdded(msgspec.Struct, frozen=True, tag="peers_added"):
    """The peers that are part of the DHT."""

    peer_ids: tuple[str, ...]


class Announced(msgspec.Struct, frozen=True, tag="announced"):
    """Whether some node accepted the record."""

    taken: bool


class Found(msgspec.Struct, frozen=True, tag="found"):
    """Records as their peers signed them."""

    records: tuple[bytes, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request failed; the process continues."""

    error: str


Reply = Ready | PeersAdded | Announced | Found | Failed

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder[Request](Request).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode
