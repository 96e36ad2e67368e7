"""Whether an address that a person has written is one at which a node can listen, or be reached."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address

MAX_PORT = 2**16 - 1
_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_UPON = frozenset({"ws", "wss", "tls", "quic", "quic-v1", "webtransport"})
"""What may follow a port."""


def address_problem(address: str, least_port: int = 0) -> str | None:
    """What is wrong with a multiaddr without a peer id; None if nothing is."""
    like = "must look like /ip4/HOST/tcp/PORT"
    parts = address.split("/")
    start, kind, host, transport, port, *further = parts if len(parts) >= 5 else [""] * 5
    if start or transport not in ("tcp", "udp") or not port.isascii() or not port.isdecimal():
        return like
    if "p2p" in further:
        return f"{like}, without /p2p/PEER_ID, which is added"
    if not least_port <= int(port[:6]) <= MAX_PORT:
        return f"{like} with a port from {least_port} to {MAX_PORT}"
    if not set(further) <= _UPON:
        return like
    try:
        if kind == "ip4":
            IPv4Address(host)
        elif kind == "ip6":
            IPv6Address(host)
        elif kind not in ("dns", "dns4", "dns6") or _NAME.fullmatch(host) is None:
            return like
    except ValueError as error:
        return f"{like}: {error}"
    return None
