"""What a member's groups are worth to others, from their signed statements: for people, never used to weigh training.

    receiver: measured worth of authors' groups ──▶ `measured` in its directory entry, signed, valid for minutes
    anybody:  entries of receivers ──▶ unlike ones, trimmed mean ──▶ credit of each author

Volume earns nothing: a statement is about one group, whoever gave how many. Votes are hard to farm:

address     receivers at one public /24 or /48, or at one private address, count as one: their median
about own   nobody's statement counts about itself, or about those alike
silence     counts as a worth of 0, up to `QUORUM` of the receivers; nothing is known of those whom fewer than half
            measured, nor of anybody before the median receiver has measured most members
extremes    `TRIM` of the weight at either end is left out, so that a minority moves nothing
newcomers   receivers that this node has not seen take part, and those that receivers measured to be worth nothing,
            together weigh as one; an unknown one counts when half of the others measured that it is worth something

It withstands 30% of the receivers. Addresses are claims: who lists others' escapes the first rule, not the rest. A
statement is of `MAX_MEASURED` authors, so that nothing is known in swarms with many more members.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from ipaddress import ip_address, ip_network
from statistics import median

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from swarm.net.addresses.dial import may_be_public
from swarm.types import MAX_MEASURED, MEASURED_BYTES, Estimate

Array = npt.NDArray[np.float64]

STEPS = 64
"""Steps in a worth of 1, in a statement's last byte: the most that can be stated is 255 / 64, the least 0."""
QUORUM, TRIM = 0.8, 0.4
"""30% of the receivers are 37.5% of the quorum, less than what is trimmed."""
LEAST_PART = 0.5
COVERAGE = 0.8
"""Where honest receivers, 70% of all, measured fewer, those that lie in unison would be the majority."""
CIRCUIT = "/p2p-circuit"


class Receiver(Struct, frozen=True):
    """A member that trains, so that it may state what others' groups are worth."""

    peer_id: str
    measured: bytes
    """Empty from one that is silent."""
    addresses: tuple[str, ...] = ()
    """Multiaddrs, the best first."""
    is_known: bool = True
    """Whether this node has seen it take part; others begin as newcomers."""
    is_own: bool = False
    """Whether it is this node, which believes itself."""


class Credit(Struct, frozen=True):
    """What one group of a member is worth to the others."""

    value: float
    """In own groups of theirs."""
    members: int
    """So many unlike members measured it, all newcomers being one."""


def statement(worth: Mapping[str, Estimate]) -> bytes:
    """The worth of authors' groups, for an entry: of the best known authors, if there are too many."""
    best = sorted(worth, key=lambda peer_id: worth[peer_id].high - worth[peer_id].low)[:MAX_MEASURED]
    return b"".join(_author(peer_id) + bytes([_steps(worth[peer_id].value)]) for peer_id in best)


def credits(receivers: Sequence[Receiver], members: Collection[str]) -> dict[str, Credit]:
    """The credit of each of these members that enough receivers have measured."""
    names = sorted(members)
    places = {_author(name): place for place, name in enumerate(names)}
    groups: dict[str, list[Receiver]] = {}
    for each in receivers:
        groups.setdefault(_likeness(each), []).append(each)
    if not groups or not names:
        return {}
    stated, values, counts = _votes(list(groups.values()), places)
    own = np.array([any(each.is_own for each in group) for group in groups.values()])
    known = own | np.array([any(each.is_known for each in group) for group in groups.values()])
    at = [[places[name] for each in group if (name := _author(each.peer_id)) in places] for group in groups.values()]
    # Without own experience, all are believed at first.
    weights = _weights(known if known.any() else ~known)
    order = np.argsort(values, axis=0)
    means, part = _means(weights, stated, counts, values, order, quorum=0.0)
    judged = np.where(part >= LEAST_PART, means > 0, np.nan)
    verdicts = np.array([np.fmax.reduce(judged[own_at], initial=np.nan) for own_at in at])
    weights = _weights(own | (np.where(np.isnan(verdicts), weights == 1, verdicts) > 0))
    means, part = _means(weights, stated, counts, values, order, QUORUM)
    wide = part >= LEAST_PART
    if not wide.any() or _middle((stated | ~counts)[:, wide].mean(axis=1), weights) < COVERAGE:
        return {}
    full = weights == 1
    num = stated[full].sum(axis=0) + stated[~full].any(axis=0)
    return {name: Credit(float(means[place]), int(num[place])) for place, name in enumerate(names) if wide[place]}


def _author(peer_id: str) -> bytes:
    """Its name in statements."""
    return blake2b(peer_id.encode(), digest_size=MEASURED_BYTES - 1).digest()


def _steps(worth: float) -> int:
    return round(min(255.0, max(0.0, STEPS * worth)))


def _read(measured: bytes) -> dict[bytes, float]:
    """Worth by author; of several about one author, the first."""
    whole = range(0, len(measured) - MEASURED_BYTES + 1, MEASURED_BYTES)
    pieces = [measured[start : start + MEASURED_BYTES] for start in whole]
    return {piece[:-1]: piece[-1] / STEPS for piece in reversed(pieces[:MAX_MEASURED])}


def _likeness(receiver: Receiver) -> str:
    """Receivers with the same are alike. One address decides: otherwise whoever lists others' would join them."""
    address = next((each for each in receiver.addresses if CIRCUIT not in each), "")
    parts = address.split("/")
    try:
        host = ip_address(parts[2])
    except (IndexError, ValueError):  # none, or a name
        return parts[2] if len(parts) > 2 else receiver.peer_id
    if host.is_loopback:  # all are on this machine, and nobody else is
        return receiver.peer_id
    if not may_be_public(address):
        return str(host)
    return str(ip_network(f"{host}/{24 if host.version == 4 else 48}", strict=False))


def _votes(
    groups: Sequence[Sequence[Receiver]], places: Mapping[bytes, int]
) -> tuple[npt.NDArray[np.bool_], Array, npt.NDArray[np.bool_]]:
    """[groups, members]: whether a group states a member's worth, which, and whether it may."""
    shape = (len(groups), len(places))
    stated, values, counts = np.zeros(shape, bool), np.zeros(shape), np.ones(shape, bool)
    for row, group in enumerate(groups):
        about: dict[int, list[float]] = {}
        for each in group:
            for author, worth in _read(each.measured).items():
                if author in places:
                    about.setdefault(places[author], []).append(worth)
        for each in group:
            if (name := _author(each.peer_id)) in places:
                about.pop(places[name], None)
                counts[row, places[name]] = False
        for place, worths in about.items():
            stated[row, place], values[row, place] = True, median(worths)
    return stated, values, counts


def _weights(full: npt.NDArray[np.bool_]) -> Array:
    """[groups]: all others together weigh as one."""
    return np.where(full, 1.0, 1.0 / max(1, int((~full).sum())))


def _middle(numbers: Array, weights: Array) -> float:
    """Weighted median."""
    order = np.argsort(numbers)
    after = np.cumsum(weights[order])
    return float(numbers[order][np.searchsorted(after, after[-1] / 2)])


def _means(
    weights: Array,
    stated: npt.NDArray[np.bool_],
    counts: npt.NDArray[np.bool_],
    values: Array,
    order: npt.NDArray[np.intp],
    quorum: float,
) -> tuple[Array, Array]:
    """Trimmed means [members], and the part of the receivers' weight that states them, of at least `quorum` of it."""
    each = np.take_along_axis(np.where(stated, weights[:, None], 0.0), order, axis=0)
    support = each.sum(axis=0)
    everybody = (weights[:, None] * counts).sum(axis=0)
    silent = np.maximum(0.0, quorum * everybody - support)
    after = silent + np.cumsum(each, axis=0)
    total = np.maximum(after[-1], np.finfo(float).tiny)
    low, high = TRIM * total, (1 - TRIM) * total
    kept = np.clip(np.minimum(after, high) - np.maximum(after - each, low), 0.0, None)
    means: Array = (kept * np.take_along_axis(values, order, axis=0)).sum(axis=0) / (high - low)
    return means, support / np.maximum(everybody, np.finfo(float).tiny)
