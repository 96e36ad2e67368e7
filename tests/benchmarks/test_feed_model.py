"""The model of feeds: what must hold in any network, and what is known by hand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given, settings, strategies as st

from benchmarks.scale.__main__ import main
from benchmarks.scale.offers import RECORD_BYTES, Sharing, node, settled_rate
from benchmarks.scale.parameters import FREE, SEGMENT_BYTES, Costs, Line, Load, Network, Rules, slow_start_rounds
from benchmarks.scale.simulation import Outcome, simulate
from benchmarks.scale.traffic import USABLE, discovery, feeding, largest_rate, repair_bytes_per_s
from swarm.net.config import NetworkSettings
from swarm.net.membership.dialling import ENOUGH_PEERS
from swarm.net.records.feed import FOLLOWED_AT_ONCE, OTHERS_BYTES, OWN_BYTES

FEEDS_ONLY = Rules(repair_every_s=0.0)
"""No second chance: a record that feeds do not bring stays lost."""
INSTANT = Network(20, delay_s=0.0, delay_sigma=0.0, uplink_bits_per_s=1e15)
SMALL, LARGER = Load(OTHERS_BYTES, 5.0, 5), Load(OWN_BYTES + 1, 5.0, 5)
ALL = FOLLOWED_AT_ONCE + 1
"""Nodes of which each follows all others."""
PACKETS = 1 + 1.5 * 52 / SEGMENT_BYTES


def run(network: Network = INSTANT, load: Load = SMALL, rules: Rules = FEEDS_ONLY, costs: Costs = FREE) -> Outcome:
    return simulate(network, load, rules, costs, seed=3)


@settings(max_examples=15)
@given(
    num_nodes=st.integers(2, 25),
    dials=st.integers(1, 12),
    size=st.sampled_from([OTHERS_BYTES, OWN_BYTES, 4 * OWN_BYTES]),
    churn=st.sampled_from([0.0, 2.0]),
    uplink=st.sampled_from([1e5, 1e8]),
    seed=st.integers(0, 1_000),
)
def test_whatever_the_network_nothing_is_delivered_twice_or_before_it_was_sent(
    num_nodes: int, dials: int, size: int, churn: float, uplink: float, seed: int
) -> None:
    network = Network(num_nodes, dials, churn_per_min=churn, uplink_bits_per_s=uplink)
    outcome = simulate(network, Load(size, 5.0, 5), Rules(), FREE, seed=seed)
    deliveries = len(outcome.latencies_s)
    assert outcome.num_groups == 5
    assert outcome.delivered <= outcome.due
    assert deliveries <= outcome.num_groups * (len(outcome.bytes_sent) - 1)
    assert deliveries <= outcome.received <= outcome.pushed + outcome.given
    assert len(outcome.hops) == deliveries
    assert all(1 <= hops < len(outcome.bytes_sent) for hops in outcome.hops)
    assert all(latency > 0 for latency in outcome.latencies_s)
    # Nodes that vanished unnoticed keep their places as followers.
    assert churn or sum(outcome.followers) <= FOLLOWED_AT_ONCE * num_nodes
    assert outcome.latencies_s == sorted(outcome.latencies_s)


def test_the_same_seed_gives_the_same_run() -> None:
    network = Network(30, churn_per_min=1.0)
    first, second, other = (simulate(network, LARGER, Rules(), FREE, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_where_each_follows_all_a_small_record_takes_one_hop_and_everybody_hands_it_on() -> None:
    outcome = run(replace(INSTANT, num_nodes=ALL, delay_s=0.05))
    assert set(outcome.hops) == {1}
    assert outcome.latencies_s == pytest.approx([0.05] * 5 * (ALL - 1), rel=1e-3)
    # Each of the others gives it to all but itself and the author, who gives it to all.
    assert outcome.pushed == 5 * ((ALL - 1) + (ALL - 1) * (ALL - 2))
    assert outcome.named == outcome.given == 0 and outcome.received == outcome.pushed


def test_a_larger_record_is_named_by_all_and_fetched_once() -> None:
    outcome = run(replace(INSTANT, num_nodes=ALL, delay_s=0.05), LARGER)
    assert outcome.latencies_s == pytest.approx([0.25] * 5 * (ALL - 1), rel=1e-3), (
        "named, asked for, given in two windows"
    )
    assert outcome.given == outcome.received == 5 * (ALL - 1) and outcome.pushed == 0
    # Each of the others names it to all but itself and the author, who names it to all.
    assert outcome.named == 5 * ((ALL - 1) + (ALL - 1) * (ALL - 2))


def test_two_nodes_see_delay_and_serialisation_and_nothing_else() -> None:
    network = Network(2, delay_s=0.1, delay_sigma=0.0, uplink_bits_per_s=1e6)
    costs = replace(FREE, pushed=replace(FREE.pushed, nodes_s=Line(0.5, 0.0)))
    outcome = run(network, Load(10_000, 0.2, 2), FEEDS_ONLY, costs)
    (first, second) = outcome.latencies_s
    assert first == second == pytest.approx(0.1 + 8 * 10_000 * PACKETS / 1e6 + 0.5)
    assert outcome.copies_per_delivery == 1.0


def test_in_a_larger_swarm_each_node_hears_of_a_record_from_eight_and_receives_it_once() -> None:
    outcome = run(Network(150), replace(LARGER, num_groups=10))
    assert outcome.fraction == 1.0
    assert outcome.copies_per_delivery == pytest.approx(1.0, abs=0.02)
    assert 0.85 * FOLLOWED_AT_ONCE < outcome.names_per_delivery <= FOLLOWED_AT_ONCE
    assert mean(outcome.followers) == pytest.approx(FOLLOWED_AT_ONCE, rel=0.05)


def test_a_slow_uplink_queues_and_nothing_is_lost() -> None:
    fast, slow = (run(Network(20, uplink_bits_per_s=uplink), Load(16_384, 20.0, 40)) for uplink in (1e9, 2e6))
    assert fast.fraction == slow.fraction == 1.0
    assert mean(slow.latencies_s) > 3 * mean(fast.latencies_s)


def test_those_who_vanish_are_not_due_and_those_who_stay_get_everything() -> None:
    outcome = run(Network(60, churn_per_min=0.3), Load(4_096, 2.0, 20), Rules())
    assert len(outcome.bytes_sent) > 60
    assert outcome.due < 20 * 59
    assert outcome.fraction == 1.0


def test_groups_of_newcomers_whom_nobody_follows_yet_are_lost_unless_they_wait() -> None:
    network, load = Network(150, churn_per_min=0.2), Load(16_384, 1.0, 40, by_comers=True)
    lost, found = (run(network, load, Rules(proven=150, waits=waits)) for waits in (False, True))
    assert lost.unheard > 0 and found.unheard > 0
    assert lost.fraction < 0.97 and found.fraction > 0.995


@pytest.mark.parametrize(
    ("num_bytes", "rounds"),
    [(1, 0), (10 * SEGMENT_BYTES, 0), (10 * SEGMENT_BYTES + 1, 1), (30 * SEGMENT_BYTES, 1), (70 * SEGMENT_BYTES, 2)],
)
def test_slow_start_doubles_its_window_each_round(num_bytes: int, rounds: int) -> None:
    assert slow_start_rounds(num_bytes) == rounds


def test_the_parameters_are_those_of_the_swarm() -> None:
    defaults = NetworkSettings()
    assert Network(1).dials == ENOUGH_PEERS
    assert (Rules().repair_every_s, Rules().announce_every_s) == (defaults.repair_every_s, defaults.announce_every_s)


def test_traffic_is_counted_in_bytes_on_the_link_and_grows_with_the_rate() -> None:
    load = Load(OTHERS_BYTES, 5.0, 5)
    outcome = run(replace(INSTANT, num_nodes=ALL, delay_s=0.05), load)
    costs = replace(FREE, pushed=replace(FREE.pushed, reader_s=Line(0.001, 0.0), nodes_s=Line(0.002, 0.0)))
    sent = feeding(outcome, load, costs)
    copy, others = OTHERS_BYTES * PACKETS, ALL - 1
    assert sent.first == pytest.approx(5 * copy * others / ALL)
    assert sent.total == pytest.approx(5 * copy * (others + others * (ALL - 2)) / ALL)
    # What a node has already it reads, and takes in no more.
    assert sent.cpu == pytest.approx(5 * (0.003 * others + 0.001 * others * (ALL - 2)) / ALL)
    assert sent.busiest >= sent.total and outcome.bytes_sent[0] > 0
    rate = largest_rate(outcome, load, costs, 8e6)
    assert feeding(outcome, replace(load, groups_per_s=rate), costs).busiest == pytest.approx(USABLE * 1e6)
    assert repair_bytes_per_s(Rules(), costs, 10.0) == 2 * repair_bytes_per_s(Rules(), costs, 5.0)
    assert repair_bytes_per_s(Rules(), costs, 1e6) == repair_bytes_per_s(Rules(), costs, 1e7), "the list is bounded"


def test_the_directory_grows_with_a_small_swarm_and_costs_the_same_in_a_large_one() -> None:
    hundred, two, many, more = (discovery(Rules(), FREE, count) for count in (100, 200, 10_000, 1_000_000))
    assert two.reading == pytest.approx(2 * hundred.reading, rel=0.02)
    assert two.holding == pytest.approx(4 * hundred.holding, rel=0.02)
    assert two.exchange == more.exchange
    assert more.reading < many.reading / 50
    assert more.holding == pytest.approx(many.holding, rel=0.1)


@pytest.mark.parametrize(("num_nodes", "per_s"), [(30, 1.0), (300, 10.0), (3_000, 32.0), (100_000, 32.0)])
def test_nodes_settle_at_what_they_make_or_at_what_links_carry(num_nodes: int, per_s: float) -> None:
    assert settled_rate(num_nodes) == pytest.approx(per_s, rel=0.25)


def test_what_is_fetched_counts_once_and_what_is_offered_in_each_feed() -> None:
    outcome = run(replace(INSTANT, num_nodes=10), Load(RECORD_BYTES, 1.0, 5))
    few, many = (node(Sharing(count, 16_000, 1.0), outcome, Rules(), FREE) for count in (10_000, 20_000))
    assert many.download == pytest.approx(few.download, rel=0.02) and many.checks == few.checks == 4 / 30
    assert many.author > 1.9 * few.author, "an author serves all who fetch its group"


@pytest.mark.network
def test_three_real_daemons_get_each_group_and_what_they_read_is_counted() -> None:
    from benchmarks.scale.measure import run_daemons

    real = asyncio.run(run_daemons(3, Load(4_096, 20.0, 20)))
    assert real.fraction == 1.0
    # The author gives it to both; each of them names it to the other, unless it knows that the author does.
    assert 4_000 < real.received_bytes < 7_000 and 0.0 <= real.duplicates < 1.0
    assert len(real.latencies_s) == 40
    assert -0.01 < real.cpu < 1.0, "cores, beyond what idle daemons took, which differs from time to time"


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
