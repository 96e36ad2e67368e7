"""Files that a running node writes about its network for people: `OUT/peers.json` and `OUT/snapshot.json`.

The roster lists the peers in the run and how useful they were to this node; the other file says how far its newest
snapshot is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import accumulate
from pathlib import Path

import msgspec
from msgspec import Struct

from swarm.errors import ConfigError
from swarm.files import replace_file
from swarm.net.trust.accounts import PeerBook, PeerStats
from swarm.net.trust.credit import Credit, Receiver, credits
from swarm.protocols import RECORDED, Transport
from swarm.types import MemberSummary, PeerRecord

RECEIVING = "peer"
"""The role of those that learn from others, and may measure what it is worth."""
ROSTER_FILE = "peers.json"
MAX_ROSTER_BYTES = 16 * 2**20
MAX_ROW_CHARS = 1_024
"""Length of the names of a peer's tasks: peers choose them, and all rows together must stay below the limit."""
PROGRESS_FILE = "snapshot.json"
MAX_BYTES = 2**16


class PeerRow(Struct, frozen=True):
    """This node's view of one peer."""

    peer_id: str
    model: str = ""
    tasks: tuple[str, ...] = ()
    """The first of them, up to `MAX_ROW_CHARS`."""
    role: str = ""
    version: str = ""
    connected: bool = False
    received: int = 0
    """Groups received from it."""
    used: int = 0
    """Its groups that an update has used."""
    dropped: dict[str, int] = {}
    """Its groups that were not used, by reason."""
    bytes: int = 0
    """Sealed bytes received from it."""
    last_seen: float | None = None
    """Unix seconds of its last group or connection."""
    reputation: float = 1.0
    """In [0, 1]."""
    quarantined_until: float | None = None
    """Unix seconds until which its records are refused."""
    name: str = ""
    """Chosen by its user."""
    summary: MemberSummary | None = None
    """Self-reported progress."""
    credit: Credit | None = None
    """What others measured of its groups."""
    expires_at: float | None = None
    """Unix seconds until which its record is valid; None without one."""

    @property
    def usefulness(self) -> tuple[float, ...]:
        """Sort key of the rows: groups used, their fraction of those received, reputation."""
        return (self.used, self.used / max(self.received, 1), self.reputation, self.received, self.connected)


class Roster(Struct, frozen=True):
    """All peers that a node knows at one moment."""

    time: float
    """Unix seconds of writing."""
    run_id: str | None
    self_id: str = msgspec.field(name="self")
    """Peer id of the node that wrote it; `self` in the file."""
    peers: tuple[PeerRow, ...] = ()


def build_roster(transport: Transport, book: PeerBook, now: float, measured: bytes = b"") -> Roster:
    """All peers that are connected, or known from their own record or from a group; `measured` is this node's statement
    about them."""
    status = transport.status()
    records = {record.peer_id: record for record in transport.peers()}
    accounts = book.stats()
    connected = frozenset(status.connected)
    ids = sorted(records.keys() | accounts.keys() | connected)
    seen = {peer_id for peer_id, stats in accounts.items() if stats.used}
    alive = [each for each in records.values() if each.expires_at > now]
    own = Receiver(transport.peer_id, measured, is_own=True)
    credit = credits([*receivers(alive, transport, seen), own], ids)
    rows = (
        _row(peer_id, records.get(peer_id), accounts.get(peer_id), peer_id in connected, credit.get(peer_id), now)
        for peer_id in ids
    )
    return Roster(time=now, run_id=status.run_id, self_id=transport.peer_id, peers=tuple(rows))


def receivers(
    records: Iterable[PeerRecord], transport: Transport, seen: Collection[str] | None = None
) -> list[Receiver]:
    """Those of these members that learn from others; `seen` are those that took part here, None: all count as such."""
    return [
        Receiver(
            each.peer_id,
            each.measured,
            (*transport.observed(each.peer_id), *each.multiaddrs),  # what is seen counts more than what is said
            seen is None or each.peer_id in seen,
        )
        for each in records
        if each.role == RECEIVING
    ]


def _row(
    peer_id: str,
    record: PeerRecord | None,
    stats: PeerStats | None,
    connected: bool,
    credit: Credit | None,
    now: float,
) -> PeerRow:
    stats = stats or PeerStats()
    quarantined = stats.quarantined_until is not None and stats.quarantined_until > now
    return PeerRow(
        peer_id=peer_id,
        model=record.model if record else "",
        tasks=_first(record.tasks) if record else (),
        role=record.role if record else "",
        version=record.version if record else "",
        connected=connected,
        received=stats.received,
        used=stats.used,
        dropped=dict(stats.dropped),
        bytes=stats.num_bytes,
        last_seen=now if connected else stats.last_seen,
        reputation=stats.reputation,
        quarantined_until=stats.quarantined_until if quarantined else None,
        name=record.name if record else RECORDED if peer_id == RECORDED else "",
        summary=record.summary if record else None,
        credit=credit,
        expires_at=record.expires_at if record else None,
    )


def _first(tasks: tuple[str, ...]) -> tuple[str, ...]:
    num_chars = accumulate(map(len, tasks))
    return tuple(task for task, total in zip(tasks, num_chars, strict=True) if total <= MAX_ROW_CHARS)


def encode_roster(roster: Roster) -> bytes:
    """The roster as JSON."""
    return msgspec.json.encode(roster)


def decode_roster(encoded: bytes) -> Roster:
    """The inverse of `encode_roster`; unknown fields are ignored. Raises `ConfigError`."""
    try:
        return msgspec.json.decode(encoded, type=Roster)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a valid roster, as a node writes it to {ROSTER_FILE}: {error}") from error


def write_roster(out: Path, roster: Roster) -> None:
    """Replace `OUT/peers.json` atomically."""
    replace_file(out / ROSTER_FILE, encode_roster(roster))


def read_roster(out: Path) -> Roster:
    """The roster of the node in a directory. Raises `ConfigError` if there is none."""
    path = out / ROSTER_FILE
    try:
        with path.open("rb") as file:
            encoded = file.read(MAX_ROSTER_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no {path}: a node writes it while it runs; give the directory of one, or the multiaddr of any "
            "member of a run"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return decode_roster(encoded)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


class Progress(Struct, frozen=True):
    """Progress of the newest snapshot on this node."""

    version: int
    fraction: float
    source: str | None
    """The peer that it is fetched from."""
    feeds: tuple[str, ...]
    """The peers that it is sent to."""


def write_progress(out: Path, progress: Progress) -> None:
    """Replace the file of a node's directory. Raises `OSError`."""
    replace_file(out / PROGRESS_FILE, msgspec.json.encode(progress))


def read_progress(out: Path) -> Progress | None:
    """The file's content; None without one, or when it cannot be read."""
    try:
        with (out / PROGRESS_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=Progress)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
