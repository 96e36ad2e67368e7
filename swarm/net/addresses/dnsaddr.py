"""`/dnsaddr/NAME`: multiaddrs in the DNS of a domain, one TXT record `dnsaddr=MULTIADDR` each.

The records are those of `_dnsaddr.NAME`; they may refer to further `/dnsaddr/` names. An entry that ends in
`/p2p/PEER_ID` selects that peer only.

Source: the dnsaddr protocol of the multiaddr specification.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from swarm.errors import ConfigError, PeerUnreachable
from swarm.net.addresses.dial import split_multiaddr

logger = logging.getLogger(__name__)

DNSADDR = "/dnsaddr/"
TIMEOUT_S = 5.0
MAX_LOOK_UPS = 16
"""Per entry, including the names that its records refer to."""
MAX_NAME_CHARS = 253


def check_name(entry: str) -> None:
    """Raises `ConfigError` unless `entry` is `/dnsaddr/NAME` or `/dnsaddr/NAME/p2p/PEER_ID`."""
    name, peer_id = _parts(entry)
    if not 0 < len(name) <= MAX_NAME_CHARS or any(not 0 < len(label) < 64 for label in name.split(".")) or "/" in name:
        raise ConfigError(f"a name to look up must look like /dnsaddr/NAME or /dnsaddr/NAME/p2p/PEER_ID, got {entry!r}")
    if peer_id is not None:
        split_multiaddr(entry)


def look_up(entry: str) -> tuple[str, ...]:
    """The multiaddrs of a `/dnsaddr/` entry, each ending in `/p2p/PEER_ID`. May take seconds.

    Raises `PeerUnreachable`, with a one-line message, if the look-up fails or yields no peer.
    """
    _, peer_id = _parts(entry)
    found: list[str] = []
    problems: list[str] = []
    waiting, asked = [entry], {entry}
    while waiting:
        try:
            named = list(_named(_parts(waiting.pop(0))[0]))
        except PeerUnreachable as problem:
            problems.append(str(problem))
            continue
        found += (address for address in named if not address.startswith(DNSADDR))
        further = [address for address in named if address.startswith(DNSADDR) and address not in asked]
        further = further[: MAX_LOOK_UPS - len(asked)]
        waiting += further
        asked |= set(further)
    wanted = [address for address in found if peer_id is None or address.endswith(f"/p2p/{peer_id}")]
    if not wanted:
        raise PeerUnreachable(
            "; ".join(problems) or "its TXT records contain no multiaddr" + (" of this peer" if peer_id else "")
        )
    return tuple(dict.fromkeys(wanted))


def _named(name: str) -> Iterator[str]:
    for text in _texts(f"_dnsaddr.{name}"):
        kind, _, address = text.partition("=")
        if kind != "dnsaddr":
            continue
        try:
            check_name(address) if address.startswith(DNSADDR) else split_multiaddr(address)
        except ConfigError as error:
            logger.debug("ignored a TXT record of %s: %s", name, error)
            continue
        yield address


def _texts(name: str) -> list[str]:
    # Imported lazily: only users of DNS names need it.
    import dns.exception
    import dns.resolver

    try:
        # A new resolver each time: the machine may have moved to another network.
        answer = dns.resolver.Resolver().resolve(name, "TXT", lifetime=TIMEOUT_S, search=False)
    except dns.resolver.NXDOMAIN as error:
        raise PeerUnreachable(f"{name} does not exist") from error
    except dns.resolver.NoAnswer as error:
        raise PeerUnreachable(f"{name} has no TXT records") from error
    except dns.exception.Timeout as error:
        raise PeerUnreachable(f"no DNS server answered for {name} within {TIMEOUT_S:g} s") from error
    except (dns.exception.DNSException, OSError) as error:
        raise PeerUnreachable(f"{name} cannot be looked up: {' '.join(str(error).split())}") from error
    return [b"".join(record.strings).decode(errors="replace") for record in answer]


def _parts(entry: str) -> tuple[str, str | None]:
    """Name and peer id of an entry."""
    name, separator, peer_id = entry.removeprefix(DNSADDR).partition("/p2p/")
    return name, peer_id if separator else None
