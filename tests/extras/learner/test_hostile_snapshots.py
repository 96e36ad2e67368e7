"""Strangers among those whom a live learner hands its snapshots to: its steps go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec
import pytest

from swarm.errors import PeerUnreachable, TransportError
from swarm.extras.learner.snapshots.messages import CHUNKS_PROTOCOL, DIRECT_PROTOCOL
from swarm.net.records.envelope import encode_request
from swarm.net.services.requests import ANNOUNCE_PROTOCOL, ASK_PROTOCOL
from tests.attacks.stranger import Stranger
from tests.nodes.processes import Swarm, address_of, until

pytestmark = [pytest.mark.slow, pytest.mark.network]

NUM_STRANGERS = 3
STEPS = 5
LEARNER = ("--learner.max_staleness=2", "--learner.rollouts_per_step=16", "--evaluation.num_questions=0")
FAR = 2**62


class Besieged(NamedTuple):
    """A learner, and strangers that got their places before its worker did."""

    learner: Swarm
    peer_id: str
    worker: Swarm
    strangers: list[Stranger]


@pytest.fixture(scope="module")
def besieged(
    tmp_path_factory: pytest.TempPathFactory, victims: Callable[..., Swarm], strangers: Callable[..., Stranger]
) -> Besieged:
    folder = tmp_path_factory.mktemp("besieged")
    learner = victims(folder / "learner", "learn", *LEARNER)
    address = address_of(learner)
    there = [strangers(f"place-{number}") for number in range(NUM_STRANGERS)]
    for stranger in there:
        (peer_id,) = stranger.connect(address)
        stranger.run(stranger.daemon.answer(CHUNKS_PROTOCOL, _feeds_nobody))
        stranger.follow(stranger.manifest(peer_id).run_id)
        _besiege(stranger, peer_id)
    worker = victims(folder / "worker", "work", address, "--follow.questions=64")
    return Besieged(learner, peer_id, worker, there)


def _feeds_nobody(remote: str, request: bytes) -> Iterator[None]:
    while True:
        yield None


def _besiege(stranger: Stranger, learner: str) -> None:
    """Hold a place for a version that will never be, and ask for one as somebody who could feed everybody."""
    want = encode_request(msgspec.msgpack.encode((FAR, "whole", 0)))
    boast = msgspec.msgpack.encode((-1, (1e12, 1e12)))

    async def hold() -> None:
        while True:
            with suppress(TransportError, OSError, TimeoutError):
                reader, writer = await stranger.daemon.open_stream(learner, CHUNKS_PROTOCOL)
                writer.write(want)
                async with asyncio.timeout(4.0):
                    await reader.read(1)
                writer.close()
            await asyncio.sleep(0.2)

    async def ask() -> None:
        while True:
            with suppress(PeerUnreachable):
                await stranger.daemon.call(learner, ASK_PROTOCOL, boast, 5.0)
            await asyncio.sleep(1.0)

    stranger.begin(hold())
    stranger.begin(ask())


def test_strangers_that_hold_places_and_feed_nobody_stop_no_learner(besieged: Besieged) -> None:
    until(lambda: besieged.learner.round() >= STEPS, besieged.learner, f"{STEPS} steps")


@pytest.mark.parametrize(
    "question",
    [
        (-1, (1e-320, 1e6)),
        (-1, (1e6, 1e-320)),
        (-1, (float("nan"), None)),
        (-1, (None, float("inf"))),
        (-1, (0.0, -1.0)),
        (-(2**63), None),
        (2**64 - 1, (1e300, 1e300)),
    ],
)
def test_numbers_without_sense_are_refused(besieged: Besieged, question: object) -> None:
    """The first ended the learner: 21 bytes."""
    with pytest.raises(PeerUnreachable, match="the handler failed: ValidationError"):
        besieged.strangers[0].request(besieged.peer_id, ASK_PROTOCOL, msgspec.msgpack.encode(question))


def test_junk_for_every_handler_of_snapshots_ends_nothing(besieged: Besieged) -> None:
    for protocol in (ASK_PROTOCOL, ANNOUNCE_PROTOCOL, CHUNKS_PROTOCOL, DIRECT_PROTOCOL):
        for junk in (b"", b"\xc1", b"\x91" * 50_000, b"\xdf\xff\xff\xff\xff", b"\x93\x00\xa5whole\xcf" + b"\xff" * 8):
            with pytest.raises(PeerUnreachable, match="the handler failed"):
                besieged.strangers[1].request(besieged.peer_id, protocol, junk)
    before = besieged.learner.round()
    until(lambda: besieged.learner.round() >= before + 3, besieged.learner, "further steps")
    assert besieged.worker.process.poll() is None
