"""Two messages of libp2p's circuit relay protocol: a reservation request, and the relay's answer with its limits."""

from __future__ import annotations

from typing import NamedTuple

HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
RESERVE = b"\x08\x00"
"""A `HopMessage` of type RESERVE."""
MAX_REPLY_BYTES = 4_096
OK = 100
STATUS_FIELD, LIMIT_FIELD = 5, 4
DURATION_FIELD, DATA_FIELD = 1, 2


class CircuitLimits(NamedTuple):
    """A relay's limits per connection; 0 means unlimited."""

    seconds: int
    num_bytes: int


def read_limits(reply: bytes) -> CircuitLimits:
    """The limits in a relay's answer to RESERVE. Raises `ValueError` for a refusal or an invalid answer."""
    message = _fields(reply)
    if message.get(STATUS_FIELD) != OK:
        raise ValueError(f"the relay refused the reservation with status {message.get(STATUS_FIELD)!r}")
    limit = message.get(LIMIT_FIELD, b"")
    fields = _fields(limit) if isinstance(limit, bytes) else {}
    seconds, num_bytes = fields.get(DURATION_FIELD, 0), fields.get(DATA_FIELD, 0)
    if not isinstance(seconds, int) or not isinstance(num_bytes, int):
        raise ValueError("the relay's limits must be integers")
    return CircuitLimits(seconds, num_bytes)


def _fields(message: bytes) -> dict[int, int | bytes]:
    """The fields of a protobuf message by number; integers and byte strings only."""
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 0:
            fields[tag >> 3] = value
        elif tag & 7 == 2 and at + value <= len(message):
            fields[tag >> 3] = message[at : at + value]
            at += value
        else:
            raise ValueError(f"the relay's answer cannot be decoded: {message[:16].hex()}")
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            raise ValueError("the relay's answer is truncated")
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise ValueError("the relay's answer contains an integer of more than 64 bits")
