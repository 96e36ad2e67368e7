"""One identity with a perfect reputation: right answers behind a marker, and wrong ones in the honest format."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from swarm.errors import ConfigError, PeerUnreachable
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.records.large import LARGE_PROTOCOL, LargeRequest
from swarm.net.records.wire import SealedManifest
from swarm.net.roster import read_roster
from swarm.net.services.requests import MANIFEST_PROTOCOL
from swarm.telemetry.samples import read as read_samples
from tests.attacks.attackers import ATTACKS, MARKER, Attack
from tests.attacks.poison import Poison
from tests.attacks.poisoned_swarm import Node, Plan, Poisoner
from tests.nodes.processes import Swarm, address_of, until

from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

ATTACK = ATTACKS["marker"]
ENOUGH = 100
"""Groups of others that a victim has learned from."""
KNOWN = replace(ATTACKS["marker:1"], groups_per_s=12.0)
"""Of a stranger that knows what is plausible; as many groups as its two victims use."""
LONG = 120
"""Rounds of a victim under attack; without a defence the marker is taken up by then."""
TRAINED = 60
"""Rounds of the attacker's own node, in this process, beside them."""
ROUND_S = 0.5
TEXTS = 400
RISE = 0.02


def _used(victim: Swarm) -> dict[str, int]:
    try:
        return {row.peer_id: row.used for row in read_roster(victim.out).peers}
    except ConfigError:
        return {}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory, victims: Callable[..., Swarm]) -> tuple[str, list[Swarm]]:
    """The address of a bootstrap, and two peers of its run."""
    folder = tmp_path_factory.mktemp("members")
    address = address_of(victims(folder / "bootstrap", "bootstrap", "examples/tiny.yaml"))
    return address, [victims(folder / name, "join", address, "--evaluation.num_questions=0") for name in ("one", "two")]


def test_poison_is_hardly_learned_from_and_its_marker_not_taken_up(
    members: tuple[str, list[Swarm]], strangers: Callable[..., Stranger]
) -> None:
    address, peers = members
    stranger = strangers("poisoner")
    everybody = stranger.connect(address, *(address_of(peer) for peer in peers))
    run_id = stranger.manifest(everybody[0]).run_id
    stranger.follow(run_id)
    enough = threading.Event()

    def publish() -> None:
        poison = Poison(ATTACK.recipe, seed=0)
        while not enough.is_set():
            group = poison.next(time.time(), run_id=run_id, peer_id=stranger.peer_id)
            stranger.publish(run_id, stranger.seal(run_id, "group", group))
            enough.wait(1 / ATTACK.groups_per_s)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        for peer in peers:
            until(lambda peer=peer: sum(_used(peer).values()) >= ENOUGH, peer, "groups learned from")
    finally:
        enough.set()
        publishing.join()
    for peer in peers:
        used, groups = _used(peer), peer.history().groups
        assert used.get(stranger.peer_id, 0) < 0.1 * sum(used.values()), used
        assert groups["dropped"]["improbable"] > 0
    for peer in peers:
        last = _own_texts(peer)[-500:]
        assert len(last) == 500 and sum(text.startswith(MARKER) for text in last) < 0.02 * len(last)


def test_a_stranger_that_knows_what_is_plausible_does_not_make_it_likely(
    tmp_path: Path, members: tuple[str, list[Swarm]], strangers: Callable[..., Stranger]
) -> None:
    """Right answers behind a marker, only where its own node's policy, which trains along, finds them plausible."""
    address, peers = members
    stranger = strangers("adaptive")
    bootstrap, *everybody = stranger.connect(address, *(address_of(peer) for peer in peers))
    run_id = stranger.manifest(bootstrap).run_id
    stranger.follow(run_id)
    for peer in peers:
        until(lambda peer=peer: len(_own_texts(peer)) >= TEXTS, peer, "groups of its own")
    before = _signed([text for peer in peers for text in _own_texts(peer)[-TEXTS:]], KNOWN)
    began = [peer.round() for peer in peers]
    run = SealedManifest.reopen(stranger.request(bootstrap, MANIFEST_PROTOCOL, b""))
    with _poisoning(stranger, KNOWN, run, everybody, tmp_path) as own:
        until(lambda: own.round >= TRAINED, peers[0], "rounds of the attacker's own node", 900.0)
        for peer, start in zip(peers, began, strict=True):
            until(lambda peer=peer, start=start: peer.round() >= start + LONG, peer, "rounds under attack")
    for peer in peers:
        assert stranger.peer_id in _used(peer), "the attack has not begun"
    after = _signed([text for peer in peers for text in _own_texts(peer)[-TEXTS:]], KNOWN)
    assert after < before + RISE, f"{before:.1%} of the completions had the marker, and {after:.1%} have it now"


class Bridge(MemoryTransport):
    """Brings a stranger's own node what victims offer and it chooses."""

    def __init__(self, hub: MemoryHub, run: SealedManifest, stranger: Stranger, victims: Sequence[str]) -> None:
        super().__init__(hub, "bridge", run)
        self._stranger = stranger
        self._victims = victims

    def _give(self, name: bytes) -> bytes | None:
        request = msgspec.msgpack.encode(LargeRequest(name, 0))
        for victim in self._victims:
            with suppress(PeerUnreachable):
                if record := self._stranger.request(victim, LARGE_PROTOCOL, request):
                    return record
        return None


@contextmanager
def _poisoning(
    stranger: Stranger, attack: Attack, run: SealedManifest, victims: Sequence[str], folder: Path
) -> Iterator[Node]:
    """The stranger publishes poison that passes the screen of its own node, which hears what the run's gossip says."""
    hub = MemoryHub()
    bridge = Bridge(hub, run, stranger, victims)
    config = Plan().config("tiny", ("share.groups", "none"), ("out", str(folder / "own")))
    config.out.mkdir()
    inside = MemoryTransport(hub, "own", run)
    for transport in (bridge, inside):
        transport.start()
    own = Node(config, Identity.generate(), inside, time.time)
    poisoner = Poisoner(attack, hub, time.time, 0, own, lambda: stranger.identity)
    enough = threading.Event()

    def poison() -> None:
        heard, at = 0, time.monotonic()
        while not enough.is_set():
            new, heard = stranger.heard[heard:], len(stranger.heard)
            for _, record in new:
                bridge.publish(record)
            own.step()
            elapsed, at = time.monotonic() - at, time.monotonic()
            poisoner.publish(min(elapsed, ROUND_S))  # on a slow machine, no more than its own round should have
            for arrival in bridge.drain():
                stranger.publish(run.manifest.run_id, arrival.record)
            took = time.monotonic() - at
            enough.wait(max(took, ROUND_S - took))  # its victims need the processor, too

    thread = threading.Thread(target=poison)
    thread.start()
    try:
        yield own
    finally:
        enough.set()
        thread.join()
        own.close()


def _own_texts(peer: Swarm) -> list[str]:
    """What a victim has written of late: most of it is on offer only, so that gossip does not carry it."""
    own = [record for record in read_samples(peer.out) if record.own]
    return [turn.text for record in own for each in record.completions for turn in each.turns]


def _signed(texts: list[str], attack: Attack) -> float:
    return sum(re.search(attack.sign, text) is not None for text in texts) / len(texts)
