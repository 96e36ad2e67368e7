"""Credit: members, signatures, statements, estimator and aggregation are real; only gradients are simulated.

An author's groups have a gradient that points along each receiver's wanted direction as far as their quality says, with
noise many times as long, so that a receiver knows little of one group.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import pytest
from msgspec.structs import replace

from swarm.errors import Refusal
from swarm.net.records.identity import Identity
from swarm.net.records.wire import MAX_PEER_RECORD_BYTES, open_peer_record, seal_peer_record
from swarm.net.trust.credit import Credit, Receiver, credits, statement
from swarm.sapo.worth import WorthEstimator
from swarm.types import MAX_MEASURED, MEASURED_BYTES, Estimate, PeerRecord
from tests.sapo.test_worth import Planted

RUN, NOW = "run-0123456789abcdef0123", 1_000_000.0
MEMBERS, COLLUDERS = 40, 12
LOCAL, EXTERNAL, ROUNDS = 4, 4, 250
NUMBERS, NOISE = 32, 3.0
TOP = 10


@dataclass
class Simulated:
    """A swarm after its rounds."""

    ids: list[str]
    keys: list[Identity]
    quality: np.ndarray
    """[members]: of each member's groups, in a receiver's own groups; the colluders come last."""
    measured: dict[str, dict[str, Estimate]]
    """By honest receiver, what its own estimator says."""


def measure(rng: np.random.Generator, me: int, ids: Sequence[str], quality: np.ndarray) -> dict[str, Estimate]:
    """What the real estimator of member `me` says after its rounds."""
    estimator = WorthEstimator(Planted(), 1, LOCAL + EXTERNAL)
    direction = np.zeros(NUMBERS)
    direction[0] = 1.0
    others = [place for place in range(len(ids)) if place != me]
    taste = quality + rng.normal(0, 0.1, len(ids))  # the same groups teach receivers differently
    for _ in range(ROUNDS):
        senders = rng.choice(others, EXTERNAL)
        along = np.concatenate([np.ones(LOCAL), taste[senders]])
        sketches = along[:, None] * direction + NOISE / np.sqrt(NUMBERS) * rng.normal(size=(len(along), NUMBERS))
        estimator.add(sketches.astype(np.float32), [ids[sender] for sender in senders], LOCAL)
    return estimator.measured()


@pytest.fixture(scope="module")
def swarm() -> Simulated:
    rng = np.random.default_rng(0)
    keys = [Identity.generate() for _ in range(MEMBERS)]
    ids = [key.peer_id for key in keys]
    quality = np.concatenate([rng.uniform(0.0, 1.5, MEMBERS - COLLUDERS), rng.uniform(0.0, 0.3, COLLUDERS)])
    measured = {ids[me]: measure(rng, me, ids, quality) for me in range(MEMBERS - COLLUDERS)}
    return Simulated(ids, keys, quality, measured)


def left_out(quality: np.ndarray) -> np.ndarray:
    """What a swarm's updates lose without each member: progress along the wanted direction over the gradient's root
    mean square, with all members' groups, minus that without its own."""

    def progress(members: np.ndarray) -> float:
        total = 0.0
        for me in members:
            others = quality[members[members != me]]
            size = LOCAL + EXTERNAL
            mean = (LOCAL + EXTERNAL * others.mean()) / size
            square = mean**2 + (NOISE**2 + EXTERNAL / size * others.var()) / size
            total += mean / np.sqrt(square)
        return total / len(members)

    everybody = np.arange(len(quality))
    whole = progress(everybody)
    return np.array([whole - progress(everybody[everybody != member]) for member in everybody])


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Rank correlation; equal values have their mean rank."""

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.array([(values < each).sum() + ((values == each).sum() - 1) / 2 for each in values])

    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def published(swarm: Simulated, lies: Mapping[str, Mapping[str, float]], hosts: Sequence[str]) -> list[Receiver]:
    """Statements as they arrive, in signed entries."""
    receivers = []
    for key, host in zip(swarm.keys, hosts, strict=True):
        told = swarm.measured.get(key.peer_id) or {
            name: Estimate(value, value, value) for name, value in lies.get(key.peer_id, {}).items()
        }
        where = (f"/ip4/{host}/tcp/4001/p2p/{key.peer_id}",)
        record = PeerRecord(RUN, key.peer_id, where, "tiny", (), "peer", "1", NOW + 60, measured=statement(told))
        sealed = seal_peer_record(key, record)
        assert len(sealed) <= MAX_PEER_RECORD_BYTES
        read = open_peer_record(sealed, RUN, now=NOW)
        receivers.append(Receiver(read.peer_id, read.measured, read.multiaddrs))
    return receivers


def apart(num: int) -> list[str]:
    return [f"8.{place}.0.1" for place in range(num)]


def values(swarm: Simulated, found: Mapping[str, Credit]) -> np.ndarray:
    return np.array([found[name].value if name in found else 0.0 for name in swarm.ids])


def lies_of(swarm: Simulated, attack: str) -> dict[str, dict[str, float]]:
    colluders, honest = swarm.ids[-COLLUDERS:], swarm.ids[:-COLLUDERS]
    best = sorted(honest, key=lambda name: -swarm.quality[swarm.ids.index(name)])[:TOP]
    if attack == "praise":  # each other, and nobody else
        return {name: dict.fromkeys(colluders, 4.0) for name in colluders}
    if attack == "slander":  # and say that the others are worth nothing
        return {name: dict.fromkeys(colluders, 4.0) | dict.fromkeys(honest, 0.0) for name in colluders}
    if attack == "aimed":  # at the best, so that they fall behind
        return {name: dict.fromkeys(colluders, 1.2) | dict.fromkeys(best, 0.0) for name in colluders}
    # Nobody praises whoever praises it, and all are honest about the others.
    told = {name: [each[name].value for each in swarm.measured.values() if name in each] for name in honest}
    others = {name: median(known) for name, known in told.items() if known}
    later = {name: [*colluders[place + 1 :], *colluders[:place]][:6] for place, name in enumerate(colluders)}
    return {name: dict.fromkeys(later[name], 4.0) | others for name in colluders}


@pytest.mark.parametrize("attack", ["praise", "slander", "aimed", "in turn"])
@pytest.mark.parametrize("unmeasured", [False, True])
def test_colluders_are_not_among_the_best_and_ranks_are_those_of_the_true_worth(
    swarm: Simulated, attack: str, unmeasured: bool
) -> None:
    colluders = set(swarm.ids[-COLLUDERS:])
    seen = swarm
    if unmeasured:  # they share nothing, so that nobody can contradict them
        kept = {
            name: {each: worth for each, worth in told.items() if each not in colluders}
            for name, told in swarm.measured.items()
        }
        seen = Simulated(swarm.ids, swarm.keys, swarm.quality, kept)
    found = credits(published(seen, lies_of(swarm, attack), apart(MEMBERS)), swarm.ids)
    known = values(swarm, found)
    best = {swarm.ids[place] for place in np.argsort(-known)[:TOP]}
    assert not best & colluders
    assert spearman(known, left_out(swarm.quality)) >= 0.8


def test_without_an_attack_ranks_are_those_of_the_true_worth(swarm: Simulated) -> None:
    found = credits(published(swarm, {}, apart(MEMBERS)), swarm.ids)
    assert spearman(values(swarm, found), left_out(swarm.quality)) >= 0.9
    assert median(each.members for each in found.values()) > 0.8 * (MEMBERS - COLLUDERS)


def test_a_young_swarm_knows_nothing_rather_than_what_colluders_say(swarm: Simulated) -> None:
    few = {
        name: {each: worth for place, (each, worth) in enumerate(told.items()) if (place + row) % 2}
        for row, (name, told) in enumerate(swarm.measured.items())
    }
    seen = Simulated(swarm.ids, swarm.keys, swarm.quality, few)
    for attack in ("praise", "slander", "aimed", "in turn"):
        found = values(swarm, credits(published(seen, lies_of(swarm, attack), apart(MEMBERS)), swarm.ids))
        best = {swarm.ids[place] for place in np.argsort(-found)[:TOP] if found[place] > 0}
        assert not best & set(swarm.ids[-COLLUDERS:]), attack


def test_a_crowd_at_one_address_is_one_receiver(swarm: Simulated) -> None:
    receivers = published(swarm, {}, apart(MEMBERS))
    honest = credits(receivers, swarm.ids)
    target = swarm.ids[0]
    crowd = [Receiver(f"crowd-{place}", said({target: 4.0}), (f"/ip4/9.9.9.{place}/tcp/1",)) for place in range(200)]
    moved = credits([*receivers, *crowd], swarm.ids)
    assert abs(moved[target].value - honest[target].value) < 0.1
    assert moved[target].members <= honest[target].members + 1


def test_a_crowd_that_nobody_has_seen_take_part_is_one_receiver(swarm: Simulated) -> None:
    receivers = published(swarm, {}, apart(MEMBERS))
    honest = credits(receivers, swarm.ids)
    target = swarm.ids[0]
    crowd = [
        Receiver(f"crowd-{place}", said({target: 4.0}), (f"/ip4/20.{place}.1.1/tcp/1",), is_known=False)
        for place in range(200)
    ]
    moved = credits([*receivers, *crowd], [*swarm.ids, *(each.peer_id for each in crowd)])
    assert abs(moved[target].value - honest[target].value) < 0.1
    assert not {each.peer_id for each in crowd} & moved.keys()


def said(worth: Mapping[str, float]) -> bytes:
    return statement({name: Estimate(value, value, value) for name, value in worth.items()})


def receiver(name: str, worth: Mapping[str, float], *addresses: str) -> Receiver:
    return Receiver(name, said(worth), addresses or (f"/ip4/8.{sum(name.encode())}.0.1/tcp/1",))


def test_nobody_speaks_for_itself_or_for_those_at_its_address() -> None:
    alone = receiver("a", {"a": 4.0, "b": 4.0}, "/ip4/8.8.8.1/tcp/1")
    alike = receiver("b", {"a": 4.0, "b": 4.0}, "/ip4/8.8.8.2/tcp/1")
    assert credits([alone, alike], ["a", "b"]) == {}
    others = [receiver(name, {"a": 0.5, "b": 1.0}) for name in "cde"]
    found = credits([alone, alike, *others], ["a", "b"])
    assert {name: (each.value, each.members) for name, each in found.items()} == {"a": (0.5, 3), "b": (1.0, 3)}


@pytest.mark.parametrize(
    ("address", "other", "alike"),
    [
        ("/ip4/8.8.8.1/tcp/1", "/ip4/8.8.8.200/udp/2", True),
        ("/ip4/8.8.8.1/tcp/1", "/ip4/8.8.9.1/tcp/1", False),
        ("/ip6/2600:1:2:3::1/tcp/1", "/ip6/2600:1:2:4::1/tcp/1", True),
        ("/ip4/192.168.1.5/tcp/1", "/ip4/192.168.1.5/tcp/2", True),
        ("/ip4/192.168.1.5/tcp/1", "/ip4/192.168.1.6/tcp/1", False),
        ("/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2", False),  # a demo
        ("/dns4/a.example/tcp/1", "/dns4/a.example/tcp/2", True),
        ("/ip4/8.8.8.1/tcp/1/p2p/x/p2p-circuit", "/ip4/8.8.8.1/tcp/1/p2p/x/p2p-circuit", False),  # a relay's
        ("/ip4/not-one/tcp/1", "/ip4/8.8.8.1/tcp/1", False),
        ("", "/", False),
    ],
)
def test_which_addresses_are_alike(address: str, other: str, alike: bool) -> None:
    pair = [receiver("b", {"a": 1.0}, address), receiver("c", {"a": 1.0}, other)]
    found = credits([*pair, receiver("d", {"a": 1.0})], ["a"])
    assert found["a"].members == (2 if alike else 3)


def test_members_that_this_node_does_not_know_count_once_others_vouch_for_them() -> None:
    known = [receiver(name, {"x": 1.0, "z": 0.5}) for name in "abc"]
    stranger = Receiver("x", said({"z": 4.0}), ("/ip4/9.1.1.1/tcp/1",), is_known=False)
    assert credits([*known, stranger], ["x", "z"])["z"].members == 4
    nobody = Receiver("y", said({"z": 4.0}), ("/ip4/9.1.1.1/tcp/1",), is_known=False)
    also = Receiver("w", said({"z": 4.0}), ("/ip4/9.2.1.1/tcp/1",), is_known=False)
    assert credits([*known, nobody, also], ["x", "z"])["z"].members == 4, "both are one"


def test_this_node_believes_itself() -> None:
    own = Receiver("me", said({"a": 0.5}), is_own=True)
    assert credits([own], ["a"])["a"].value == 0.5
    assert credits([Receiver("me", b"", is_own=True)], ["a"]) == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, -5.0])
def test_no_number_leaves_the_scale(value: float) -> None:
    measured = said({"a": value})
    assert len(measured) == MEASURED_BYTES
    found = credits([Receiver("me", measured, is_own=True)], ["a"])
    assert 0.0 <= found["a"].value <= 255 / 64


def test_statements_of_any_bytes_are_harmless_and_bounded() -> None:
    rng = np.random.default_rng(1)
    names = [f"member-{place}" for place in range(1_024)]
    told = said({name: 1.0 for name in names[:200]})
    assert len(told) == MAX_MEASURED * MEASURED_BYTES
    noisy = [Receiver(name, rng.bytes(int(rng.integers(0, 600))), (f"/ip4/{name}",)) for name in names]
    twice = Receiver("me", said({"member-0": 0.5}) + said({"member-0": 4.0}), is_own=True)
    assert credits([twice], names)["member-0"].value == 0.5, "the first counts"
    began = time.thread_time()
    credits([*noisy, *(Receiver(name, told) for name in names)], names)
    assert time.thread_time() - began < 5.0


def test_forged_replayed_and_oversized_statements_are_refused() -> None:
    alice, eve = Identity.generate(), Identity.generate()
    record = PeerRecord(RUN, alice.peer_id, (), "tiny", (), "peer", "1", NOW + 60, measured=said({"a": 1.0}))
    sealed = seal_peer_record(alice, record)
    assert open_peer_record(sealed, RUN, now=NOW).measured == record.measured
    huge = replace(record, measured=bytes(MAX_MEASURED * MEASURED_BYTES + 1))
    for bytes_, now, reason in (
        (seal_peer_record(eve, record), NOW, "wrong_peer"),
        (seal_peer_record(alice, huge), NOW, "limits"),
        (sealed, NOW + 61, "clock"),
        (seal_peer_record(alice, replace(record, expires_at=NOW + 86_400)), NOW, "clock"),
        (seal_peer_record(alice, replace(record, run_id="run-of-others")), NOW, "wrong_run"),
    ):
        with pytest.raises(Refusal) as refusal:
            open_peer_record(bytes_, RUN, now=now)
        assert refusal.value.reason == reason
