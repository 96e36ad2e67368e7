"""`swarm peers`: the peers of a run, what they send, and how useful it was; and visits to a run."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nodes.boot.visits import visiting, visitor_settings
from swarm.errors import ConfigError, PeerUnreachable
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.addresses.dial import unreachable
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.roster import PeerRow, Roster, encode_roster, read_roster, receivers
from swarm.net.trust.credit import Credit, credits
from swarm.reasons import sentence
from swarm.sanitize import clean
from swarm.telemetry.intervals import accuracy
from swarm.telemetry.nodes import CLAIMS, CREDIT
from swarm.types import MemberSummary, PeerRecord

Row = TypeVar("Row")
Claimed = TypeVar("Claimed", PeerRow, PeerRecord)
REFRESH_EVERY_S = 2.0
STALE_AFTER_S = 60.0
VISIT_TIMEOUT_S = 25.0
SETTLE_S = 2.0
"""A peer's DHT may answer later than its manifest request, and its neighbours later still."""
MAX_CELL_CHARS = 40
GAP = 2
CREDIT_TITLE = "credit"
MOSTLY = "mostly"
"""Title of the column with the most frequent drop reason of a peer's groups."""


class Column(Struct, Generic[Row], frozen=True):
    """One column."""

    title: str
    cell: Callable[[Row], str]
    rank: int = 0
    """In narrow terminals, columns with the highest rank are dropped first; 0 always stays."""
    number: bool = False
    squeeze_to: int = 1_000
    """Minimum width in characters."""


class Listing(Struct, frozen=True):
    """A member's information about the other peers."""

    time: float
    run_id: str
    peers: tuple[PeerRecord, ...]
    credit: dict[str, Credit] = {}
    """Credit by peer id."""


def show_peers(target: str, is_address: bool, as_json: bool, watch: bool, console: Console) -> None:
    """Print the peers known to a node's directory or to a member of a run; `watch` refreshes until Ctrl-C.

    Raises `ConfigError` when the directory has no list, `PeerUnreachable` when the member does not answer.
    """
    if watch and (as_json or not console.is_terminal):
        raise ConfigError("--watch needs a terminal; omit it for JSON output, or without a terminal")
    with asking(target) if is_address else contextlib.nullcontext(lambda: read_roster(Path(target))) as ask:
        if as_json:
            print(json.dumps(json.loads(_encoded(ask())), indent=1))
        elif watch:
            _watch(ask, console)
        else:
            console.print(render(ask(), console.width, time.time()))


def _watch(ask: Callable[[], Roster | Listing], console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live, contextlib.suppress(KeyboardInterrupt):
        while True:
            live.update(render(ask(), console.width, time.time()), refresh=True)
            time.sleep(REFRESH_EVERY_S)


def _encoded(seen: Roster | Listing) -> bytes:
    if isinstance(seen, Roster):
        return encode_roster(msgspec.structs.replace(seen, peers=by_usefulness(seen.peers)))
    return msgspec.json.encode(seen)


def by_usefulness(peers: Sequence[PeerRow]) -> tuple[PeerRow, ...]:
    """The most useful first."""
    return tuple(sorted(peers, key=lambda row: row.usefulness, reverse=True))


def render(seen: Roster | Listing, width: int, now: float) -> RenderableType:
    """A heading and a table of at most `width` columns."""
    if isinstance(seen, Roster):
        age_s = now - seen.time
        connected = sum(row.connected for row in seen.peers)
        heading = Text(f"{clean(seen.run_id or 'no run')}: {_peers(len(seen.peers))}, {connected} connected")
        if age_s > STALE_AFTER_S:
            heading.append(f"; as of {duration(age_s)} ago: the node is not running", "yellow")
        drawn = table(_roster_columns(now, seen.peers), by_usefulness(seen.peers), width)
        legend = _legend(seen.peers) if any(c.header == MOSTLY for c in drawn.columns) else ()
        return Group(heading, drawn, *legend, *_said(drawn))
    heading = Text(f"{clean(seen.run_id)}: {_peers(len(seen.peers))} in the directory")
    drawn = table(_listing_columns(now, seen.peers, seen.credit), seen.peers, width)
    return Group(heading, drawn, *_said(drawn))


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """The columns that fit."""
    shown = list(columns)
    cells = {
        column.title: [column.title, *(clean(column.cell(row), MAX_CELL_CHARS) for row in rows)] for column in columns
    }
    wanted = {title: max(map(cell_len, texts)) for title, texts in cells.items()}
    widths = fitting_widths(shown, wanted, width)
    while sum(widths) + GAP * (len(widths) - 1) > width and (least := max(shown, key=lambda column: column.rank)).rank:
        shown.remove(least)
        widths = fitting_widths(shown, wanted, width)
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column, column_width in zip(shown, widths, strict=True):
        justify: Literal["right", "left"] = "right" if column.number else "left"
        drawn.add_column(column.title, justify=justify, width=column_width, no_wrap=True, overflow="ellipsis")
    for number in range(len(rows)):
        drawn.add_row(*(Text(cells[column.title][1 + number]) for column in shown))
    return drawn


def fitting_widths(columns: Sequence[Column[Row]], wanted: Mapping[str, int], width: int) -> list[int]:
    """A width for each column; space beyond the minimum goes to the shortened columns, from the left."""
    widths = [min(wanted[column.title], column.squeeze_to) for column in columns]
    left = width - sum(widths) - GAP * (len(columns) - 1)
    for number, column in enumerate(columns):
        more = max(0, min(left, wanted[column.title] - widths[number]))
        widths[number] += more
        left -= more
    return widths


def _roster_columns(now: float, rows: Sequence[PeerRow]) -> list[Column[PeerRow]]:
    return [
        Column("peer", lambda row: short(row.peer_id)),
        Column("name", _name, 2, squeeze_to=12),
        Column("is", lambda row: standing(row, now), 3),
        Column("role", lambda row: row.role, 9),
        Column("model", lambda row: row.model, 7, squeeze_to=16),
        Column("used", lambda row: str(row.used), number=True),
        Column("received", lambda row: str(row.received), 1, number=True),
        Column("dropped", lambda row: str(sum(row.dropped.values())), 4, number=True),
        Column(MOSTLY, _main_reason, 6),
        Column("sent", lambda row: size(row.bytes), 8, number=True),
        *_credit(rows, lambda row: row.credit),
        Column("reputation", lambda row: f"{row.reputation:.2f}", 2, number=True),
        Column("seen", _seen(now), 5, number=True),
        *_claims(rows),
        Column("version", lambda row: row.version, 10),
        Column("tasks", lambda row: ", ".join(row.tasks), 11, squeeze_to=16),
    ]


def _name(row: PeerRow | PeerRecord) -> str:
    """What its user calls it, or the end of its id, which also a node without a name shows of itself."""
    return row.name or f"({row.peer_id[-4:]})"


def _credit(rows: Sequence[Claimed], credit: Callable[[Claimed], Credit | None]) -> list[Column[Claimed]]:
    """What others measured, if it is known of anybody."""
    if not any(map(credit, rows)):
        return []
    return [Column(CREDIT_TITLE, lambda row: _measured(credit(row)), 1, number=True)]


def _measured(credit: Credit | None) -> str:
    return "" if credit is None else f"{credit.value:.2f} ({credit.members})"


def _claims(rows: Sequence[Claimed]) -> list[Column[Claimed]]:
    """What members say of themselves, if any does."""
    if not any(row.summary for row in rows):
        return []
    return [
        Column("rounds*", _claimed(lambda claim: str(claim.rounds)), 2, number=True),
        Column("accuracy*", _claimed(_accuracy), 2, number=True),
        Column("gave*", _claimed(lambda claim: str(claim.given)), 4, number=True),
        Column("took*", _claimed(lambda claim: str(claim.used)), 4, number=True),
    ]


def _claimed(cell: Callable[[MemberSummary], str]) -> Callable[[Claimed], str]:
    return lambda row: "" if row.summary is None else cell(row.summary)


def _accuracy(claim: MemberSummary) -> str:
    if (known := accuracy(claim.correct, claim.asked)) is None:
        return "-"
    value, low, high = known
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def _said(drawn: Table) -> list[Text]:
    titles = [str(column.header) for column in drawn.columns]
    marked = any(title.endswith("*") for title in titles)
    notes = [CREDIT] * (CREDIT_TITLE in titles) + [f"*: {CLAIMS}"] * marked
    return [Text(note, "dim") for note in notes]


def _seen(now: float) -> Callable[[PeerRow], str]:
    return lambda row: "-" if row.last_seen is None else f"{duration(now - row.last_seen)} ago"


def _listing_columns(now: float, rows: Sequence[PeerRecord], credit: Mapping[str, Credit]) -> list[Column[PeerRecord]]:
    return [
        Column("peer", lambda record: short(record.peer_id)),
        Column("name", _name, 1, squeeze_to=12),
        Column("role", lambda record: record.role, 1),
        Column("model", lambda record: record.model, 2, squeeze_to=16),
        *_credit(rows, lambda record: credit.get(record.peer_id)),
        *_claims(rows),
        Column("version", lambda record: record.version, 3),
        Column("valid for", lambda record: duration(record.expires_at - now), 5, number=True),
        Column("address", lambda record: _address(record), 4, squeeze_to=24),
        Column("tasks", lambda record: ", ".join(record.tasks), 6, squeeze_to=16),
    ]


def _peers(number: int) -> str:
    return "1 peer" if number == 1 else f"{number} peers"


def standing(row: PeerRow, now: float) -> str:
    """A peer's standing with this node."""
    if row.quarantined_until is not None and row.quarantined_until > now:
        return f"quarantined {duration(row.quarantined_until - now)}"
    return "connected" if row.connected else "away"


def short(peer_id: str) -> str:
    """The end of a peer id; all have the same start."""
    return f"..{peer_id[-8:]}"


def duration(seconds: float) -> str:
    """Approximate duration, e.g. `4 s`, `12 min`, `3 h`, `2 d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size(num_bytes: int) -> str:
    """Approximate size, e.g. `512 B`, `12 kB`, `3.4 MB`."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= length:
            return f"{num_bytes / length:.1f} {unit}"
    return f"{num_bytes} B"


def _main_reason(row: PeerRow) -> str:
    return max(row.dropped, key=lambda reason: row.dropped[reason]) if row.dropped else ""


def _legend(peers: Iterable[PeerRow]) -> list[Text]:
    """The meaning of the reasons in that column."""
    shown = sorted({_main_reason(row) for row in peers if row.dropped})
    return [Text(f"{clean(reason, MAX_CELL_CHARS)}: {sentence(reason)}", "dim") for reason in shown]


def _address(record: PeerRecord) -> str:
    return record.multiaddrs[0].rpartition("/p2p/")[0] if record.multiaddrs else "none"


@contextlib.contextmanager
def asking(address: str) -> Iterator[Callable[[], Listing]]:
    """Yield a function that reads the directory of a member's run."""
    bootstraps = Bootstraps((address,))
    problems = bootstraps.look_up()
    addresses = bootstraps.multiaddrs()
    problems |= unreachable(addresses)
    if len(problems) >= len(addresses):
        reasons = "; ".join(f"{where}: {problem}" for where, problem in problems.items())
        raise PeerUnreachable(f"{reasons}; check the address, and that this node is up")
    with visiting(visitor_settings(addresses)) as transport:
        deadline = time.monotonic() + VISIT_TIMEOUT_S
        while transport.manifest() is None or not transport.peers():
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        else:
            time.sleep(SETTLE_S)
        yield lambda: _listing(transport, address)


def _listing(transport: HivemindTransport, address: str) -> Listing:
    manifest = transport.manifest()
    if manifest is None:
        status = transport.status()
        raise PeerUnreachable(f"{address} did not name its run: {status.split or status.detail}")
    now = time.time()
    alive = [record for record in transport.peers() if record.expires_at > now]
    credit = credits(receivers(alive, transport), [record.peer_id for record in alive])
    return Listing(now, manifest.run_id, tuple(sorted(alive, key=lambda record: (record.role, record.peer_id))), credit)
