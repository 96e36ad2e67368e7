"""Records and nodes for the network's tests."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from swarm.net.config import NetworkSettings
from swarm.net.records.envelope import read_record
from swarm.net.records.identity import Identity
from swarm.net.records.wire import (
    Limits,
    SealedManifest,
    check_age,
    check_seal,
    make_run_id,
    open_group,
    seal,
    seal_manifest,
)
from swarm.protocols import Transport
from swarm.types import (
    Arrival,
    Completion,
    PolicyId,
    ProceduralRef,
    RolloutGroup,
    RunManifest,
    Sampling,
    VerifiedGroup,
)

T = TypeVar("T")


class Drained(Protocol):
    """A transport, or the inbox of one."""

    def drain(self) -> list[Arrival]: ...


IDENTITIES: dict[str, Identity] = {}
"""By peer id: those made here."""
PIECE_CHARS = 65_536
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


def make_manifest(founder: Identity, name: str = "demo") -> RunManifest:
    return RunManifest(make_run_id(name, founder.peer_id), founder.peer_id, 1.0, (), 4, 1, 1, 1_000_000, 1_000)


def sealed_manifest(founder: Identity, name: str = "demo") -> SealedManifest:
    manifest = make_manifest(founder, name)
    return SealedManifest(seal_manifest(founder, manifest), manifest)


def make_group(run_id: str = "", peer_id: str = "", sequence: int = 0) -> RolloutGroup:
    return RolloutGroup(
        run_id=run_id,
        peer_id=peer_id,
        sequence=sequence,
        created_at=1_000.0,
        policy=PolicyId("tiny", "abc", 3),
        sampling=Sampling(),
        question=ProceduralRef("gcd", "reasoning_gym==0.1.25", "d", 1, 2, "q"),
        completions=(Completion("four", "stop", (1, 2), (-0.5, -0.25)), Completion("five", "length")),
        rewards=(1.0, 0.0),
    )


def opened(record: bytes, run_id: str, limits: Limits | None = None, *, now: float | None = None) -> VerifiedGroup:
    """A group as its receivers have it, every check passed. Raises `Refusal`."""
    limits = limits or Limits()
    group = open_group(check_seal(read_record(record, limits.max_record_bytes), run_id), limits)
    check_age(group.group, limits, now=now)
    return group


def of_version(record: bytes, version: int) -> bytes:
    """The record as one of another major version of the protocol."""
    return msgspec.msgpack.encode(replace(read_record(record, len(record)).envelope, schema_version=version))


def drained(node: Drained) -> list[bytes]:
    """The records among what has arrived."""
    return [arrival.record for arrival in node.drain() if isinstance(arrival, VerifiedGroup)]


def make_identity(folder: Path, name: str) -> Identity:
    identity = Identity.load_or_create(folder / f"{name}.key")
    IDENTITIES[identity.peer_id] = identity
    return identity


def signed(node: Transport, text: bytes) -> bytes:
    """A record that a node may publish and others hand on, for tests to which it does not matter what is inside.

    The node's identity must come from `make_identity`.
    """
    run = node.manifest()
    assert run is not None
    letters = base64.b64encode(text).decode()
    pieces = tuple(Completion(letters[i : i + PIECE_CHARS], "stop") for i in range(0, len(letters), PIECE_CHARS))
    group = replace(make_group(run.run_id, node.peer_id), completions=pieces, rewards=(0.0,) * len(pieces))
    return seal(IDENTITIES[node.peer_id], run.run_id, "group", group)


def fast_settings(bootstrap: tuple[str, ...] = (), listen: tuple[str, ...] = LOOPBACK) -> NetworkSettings:
    return NetworkSettings(
        bootstrap=bootstrap,
        listen=listen,
        nat_port_map=False,
        max_record_bytes=64 * 2**20,
        retry_s=0.5,
        announce_every_s=2.0,
        repair_every_s=1.0,
    )


def until(probe: Callable[[], T], what: str, timeout_s: float = 120.0) -> T:
    """The first true value of `probe`; fails the test when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := probe()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
    return value


def exchange(sender: Transport, receiver: Transport, text: bytes) -> None:
    """Publish once; the record must arrive."""
    record = signed(sender, text)
    sender.publish(record)
    until(lambda: record in drained(receiver), f"{text!r} arrives")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
