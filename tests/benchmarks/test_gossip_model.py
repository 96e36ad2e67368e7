"""The gossip model: what must hold in any network, and what is known by hand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scale.__main__ import main
from benchmarks.scale.offers import RECORD_BYTES, Sharing, node, settled_rate
from benchmarks.scale.parameters import FREE, SEGMENT_BYTES, Costs, Gossip, Line, Load, Network, slow_start_rounds
from benchmarks.scale.simulation import Outcome, simulate
from benchmarks.scale.traffic import USABLE, discovery, gossiping, largest_rate, repair_bytes_per_s
from swarm.net.config import NetworkSettings
from swarm.net.membership.dialling import ENOUGH_PEERS

PUSH_ONLY = Gossip(degree_lazy=0, gossip_factor=0.0, repair_every_s=0.0)
"""No second chance: a message that the mesh loses stays lost."""
INSTANT = Network(20, delay_s=0.0, delay_sigma=0.0, uplink_bits_per_s=1e15)
LOAD = Load(4_096, 5.0, 5)


def run(network: Network = INSTANT, load: Load = LOAD, gossip: Gossip = PUSH_ONLY, costs: Costs = FREE) -> Outcome:
    return simulate(network, load, gossip, costs, seed=3)


def everybody(num_nodes: int) -> Gossip:
    """A mesh of everybody with everybody."""
    return replace(PUSH_ONLY, degree=num_nodes - 1, degree_low=num_nodes - 1, degree_high=num_nodes)


@settings(max_examples=15)
@given(
    num_nodes=st.integers(2, 25),
    dials=st.integers(1, 12),
    degree=st.integers(1, 6),
    loss=st.sampled_from([0.0, 0.3]),
    churn=st.sampled_from([0.0, 2.0]),
    uplink=st.sampled_from([1e5, 1e8]),
    seed=st.integers(0, 1_000),
)
def test_whatever_the_network_nothing_is_delivered_twice_or_before_it_was_sent(
    num_nodes: int, dials: int, degree: int, loss: float, churn: float, uplink: float, seed: int
) -> None:
    network = Network(num_nodes, dials, loss=loss, churn_per_min=churn, uplink_bits_per_s=uplink)
    gossip = Gossip(degree=degree, degree_low=degree, degree_high=2 * degree)
    outcome = simulate(network, LOAD, gossip, FREE, seed=seed)
    deliveries = len(outcome.latencies_s)
    assert outcome.num_groups == LOAD.num_groups
    assert outcome.delivered <= outcome.due
    assert deliveries <= outcome.num_groups * (len(outcome.copies_sent) - 1)
    assert deliveries <= sum(outcome.copies_received) <= sum(outcome.copies_sent)
    assert len(outcome.hops) == deliveries
    assert all(1 <= hops < len(outcome.copies_sent) for hops in outcome.hops)
    assert all(latency > 0 for latency in outcome.latencies_s)
    assert max(outcome.mesh_degrees) <= max(gossip.degree_high, 2 * degree)
    assert outcome.latencies_s == sorted(outcome.latencies_s)


def test_the_same_seed_gives_the_same_run() -> None:
    network = Network(30, loss=0.1, churn_per_min=1.0)
    first, second, other = (simulate(network, LOAD, Gossip(), FREE, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_in_a_mesh_of_all_every_message_takes_one_hop_and_everybody_forwards_it() -> None:
    outcome = run(replace(INSTANT, delay_s=0.05), gossip=everybody(20))
    assert set(outcome.hops) == {1}
    assert outcome.latencies_s == pytest.approx([0.05] * 5 * 19, rel=1e-3)
    # Each of the 19 receivers sends to the 18 that are neither itself nor the publisher, beside the publisher's 19.
    assert sum(outcome.copies_sent) == 5 * (19 + 19 * 18)


def test_two_nodes_see_delay_and_serialisation_and_nothing_else() -> None:
    network = Network(2, delay_s=0.1, delay_sigma=0.0, uplink_bits_per_s=1e6)
    outcome = run(network, Load(10_000, 0.5, 2), everybody(2), replace(FREE, first_s=Line(0.5, 0.0)))
    (first, second) = outcome.latencies_s
    on_the_wire_s = 8 * 10_000 * (1 + 1.5 * 52 / SEGMENT_BYTES) / 1e6
    assert first == second == pytest.approx(0.1 + on_the_wire_s + 0.5)
    assert outcome.copies_per_delivery == 1.0


def test_a_connected_mesh_delivers_all_and_each_link_of_it_carries_a_message_at_most_twice() -> None:
    outcome = run(replace(INSTANT, num_nodes=100), load=Load(4_096, 5.0, 10))
    assert outcome.fraction == 1.0
    nodes, links = 100, sum(outcome.mesh_degrees) / 2
    # Everybody sends to its mesh but for whom it has a message from: N - 1 copies fewer than both ways of every link.
    assert sum(outcome.copies_sent) <= 10 * (2 * links - (nodes - 1))
    assert outcome.copies_per_delivery == pytest.approx(mean(outcome.mesh_degrees) - 1, rel=0.2)


def test_more_mesh_means_more_duplicates_and_fewer_hops() -> None:
    runs = [
        run(
            replace(INSTANT, num_nodes=80, delay_s=0.05),
            gossip=replace(PUSH_ONLY, degree=degree, degree_low=degree, degree_high=2 * degree),
        )
        for degree in (3, 6, 12)
    ]
    copies, hops = [each.copies_per_delivery for each in runs], [mean(each.hops) for each in runs]
    assert copies == sorted(copies) and copies[0] < copies[-1] / 2
    assert hops == sorted(hops, reverse=True)


def test_what_the_mesh_loses_ids_and_repair_bring() -> None:
    lossy = replace(INSTANT, num_nodes=40, delay_s=0.05, loss=0.6)
    thin = replace(PUSH_ONLY, degree=3, degree_low=3, degree_high=6)
    alone = run(lossy, gossip=thin)
    told = run(lossy, gossip=replace(thin, degree_lazy=6))
    repaired = run(lossy, gossip=replace(thin, repair_every_s=5.0))
    assert alone.fraction < 0.95
    assert told.fraction > alone.fraction and told.pulled > 0 and told.repaired == 0
    assert repaired.fraction > 0.99 and repaired.repaired > 0 and repaired.pulled == 0


def test_a_slow_uplink_queues_then_drops() -> None:
    fast, slow = (
        run(Network(20, uplink_bits_per_s=uplink), Load(16_384, 100.0, 80), Gossip()) for uplink in (1e9, 2e5)
    )
    assert fast.queue_drops == 0 < slow.queue_drops
    assert mean(slow.latencies_s) > 10 * mean(fast.latencies_s)


def test_those_who_vanish_are_not_due_and_those_who_stay_get_everything() -> None:
    outcome = run(Network(60, churn_per_min=1.0), Load(4_096, 2.0, 20), Gossip())
    assert len(outcome.copies_sent) > 60
    assert outcome.due < 20 * 59
    assert outcome.fraction == 1.0


@pytest.mark.parametrize(
    ("num_bytes", "rounds"),
    [(1, 0), (10 * SEGMENT_BYTES, 0), (10 * SEGMENT_BYTES + 1, 1), (30 * SEGMENT_BYTES, 1), (70 * SEGMENT_BYTES, 2)],
)
def test_slow_start_doubles_its_window_each_round(num_bytes: int, rounds: int) -> None:
    assert slow_start_rounds(num_bytes) == rounds


def test_the_parameters_are_those_of_the_swarm() -> None:
    defaults = NetworkSettings()
    assert Network(1).dials == ENOUGH_PEERS
    assert (Gossip().repair_every_s, Gossip().announce_every_s) == (defaults.repair_every_s, defaults.announce_every_s)


def test_traffic_is_counted_in_bytes_on_the_link_and_grows_with_the_rate() -> None:
    load = Load(10_000, 5.0, 5)
    outcome = run(replace(INSTANT, delay_s=0.05), load, everybody(20))
    costs = replace(FREE, first_s=Line(0.001, 0.0), send_s=Line(0.0, 1e-7))
    sent = gossiping(outcome, load, costs)
    copy = 10_000 * (1 + 1.5 * 52 / SEGMENT_BYTES)
    assert sent.first == pytest.approx(5 * copy * 19 / 20)
    assert sent.total == pytest.approx(5 * copy * (19 + 19 * 18) / 20)
    assert sent.cpu == pytest.approx(5 * (0.001 * 19 / 20 + 0.001 * (19 + 19 * 18) / 20))
    assert sent.busiest >= sent.total
    rate = largest_rate(outcome, load, costs, 8e6)
    assert gossiping(outcome, replace(load, groups_per_s=rate), costs).busiest == pytest.approx(USABLE * 1e6)
    assert repair_bytes_per_s(Gossip(), costs, 10.0) == 2 * repair_bytes_per_s(Gossip(), costs, 5.0)
    assert repair_bytes_per_s(Gossip(), costs, 1e6) == repair_bytes_per_s(Gossip(), costs, 1e7), "the list is bounded"


def test_the_directory_grows_with_a_small_swarm_and_costs_the_same_in_a_large_one() -> None:
    hundred, two, many, more = (discovery(Gossip(), FREE, count) for count in (100, 200, 10_000, 1_000_000))
    assert two.reading == pytest.approx(2 * hundred.reading, rel=0.02)
    assert two.holding == pytest.approx(4 * hundred.holding, rel=0.02)
    assert two.exchange == more.exchange
    assert more.reading < many.reading / 50
    assert more.holding == pytest.approx(many.holding, rel=0.1)


@pytest.mark.parametrize(("num_nodes", "per_s"), [(30, 1.0), (300, 10.0), (3_000, 32.0), (100_000, 32.0)])
def test_nodes_settle_at_what_they_make_or_at_what_links_carry(num_nodes: int, per_s: float) -> None:
    assert settled_rate(num_nodes) == pytest.approx(per_s, rel=0.25)


def test_what_is_fetched_counts_once_and_what_is_offered_with_its_copies() -> None:
    outcome = run(replace(INSTANT, num_nodes=10), Load(RECORD_BYTES, 1.0, 5), everybody(10))
    few, many = (node(Sharing(count, 16_000, 1.0), outcome, Gossip(), FREE) for count in (10_000, 20_000))
    assert many.download == pytest.approx(few.download, rel=0.02) and many.checks == few.checks == 4 / 30
    assert many.author > 1.9 * few.author, "an author serves all who fetch its group"


@pytest.mark.network
def test_three_real_daemons_hear_each_message_and_its_copies_are_counted() -> None:
    from benchmarks.scale.measure import run_daemons

    real = asyncio.run(run_daemons(3, Load(4_096, 20.0, 20)))
    assert real.fraction == 1.0
    # The publisher's copy, and perhaps that of the other receiver.
    assert 0.9 < real.copies < 2.2
    assert len(real.latencies_s) == 40 and real.cpu > 0


def test_the_benchmark_prints_and_writes_its_rows_at_given_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FREE.write(tmp_path / "costs.json")
    assert Costs.read(tmp_path / "costs.json") == FREE
    arguments = ["--quick", "--only", "costs", "spread", "directory", "offers", "--costs", str(tmp_path / "costs.json")]
    assert main([*arguments, "--out", str(tmp_path / "scale.json")]) == 0
    report = json.loads((tmp_path / "scale.json").read_text())
    assert report["benchmark"] == "scale"
    fractions = [row["value"] for row in report["rows"] if row["what"].endswith("delivered fraction")]
    assert fractions == [1.0] * 6
    assert "each holder of the directory sends" in capsys.readouterr().out
    (growth,) = (row for row in report["rows"] if row["what"].endswith("10 Mbit/s: checks"))
    assert growth["value"] == 1.0
