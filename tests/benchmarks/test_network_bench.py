"""The network benchmark: its definition of delivery, its report, and a quick run of two rows on real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.common.groups import chars_for, make_group
from benchmarks.common.report import cells, percentile, row
from benchmarks.network.attacks import KINDS, LYING
from benchmarks.network.delivery import BACKFILL_WINDOW_S, Life, NodeLog, deliveries, fraction, is_due, latency_ms
from benchmarks.network.flood import flood
from benchmarks.network.plan import Plan
from nodes.commands.bench import BENCHMARKS, bench
from swarm.errors import ConfigError
from swarm.net.records.identity import Identity
from swarm.net.records.wire import seal
from tests.nodes.processes import is_daemon

COMMAND = [sys.executable, "-m", "benchmarks.network", "--quick", "--no-baseline"]
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("lives", "due"),
    [
        ([Life(0.0)], True),
        ([Life(0.0, 9.0)], False),
        ([Life(0.0, 11.0)], False),
        ([Life(0.0, 12.5)], True),
        ([Life(0.0, 10.5), Life(15.0)], True),
        ([Life(10.0 + BACKFILL_WINDOW_S)], True),
        ([Life(10.1 + BACKFILL_WINDOW_S)], False),
        ([], False),
    ],
    ids=["live", "killed before", "killed at once", "killed later", "restarted", "late", "too late", "never"],
)
def test_a_node_is_due_a_group_published_at_10_when_live_then_or_soon_after(lives: list[Life], due: bool) -> None:
    assert is_due(10.0, lives) is due


def test_the_delivered_fraction_counts_pairs_and_leaves_out_what_died_with_its_publisher() -> None:
    alice = NodeLog("alice", [Life(0.0, 20.0), Life(25.0)], published={1: 10.0, 2: 19.5})
    bob = NodeLog("bob", [Life(0.0)], got={("alice", 1): 10.5})
    late = NodeLog("late", [Life(15.0)])
    pairs = list(deliveries([alice, bob, late]))
    assert [(pair.key, pair.receiver) for pair in pairs] == [(("alice", 1), "bob"), (("alice", 1), "late")]
    assert fraction(pairs) == 0.5
    assert fraction(list(deliveries([alice, bob, late], window_s=0.0))) == 1.0, "the late one was not there yet"
    assert latency_ms(pairs, 50) == pytest.approx(500.0)
    assert fraction([]) is None


def test_a_row_is_the_median_of_its_repeats_and_compares_with_target_and_baseline() -> None:
    found = row("what", [3.0, None, 1.0, 2.0], "ms", baseline=[4.0], target=2.5, better="lower")
    assert (found.value, found.spread, found.n, found.ratio, found.met) == (2.0, (1.0, 3.0), 3, 0.5, True)
    missing = row("what", [], "ms", target=1.0)
    assert (missing.value, missing.met) == (None, False), "a target that could not be measured is not met"
    assert row("what", [1.0], "ms").met is None
    assert cells(missing)[1] == "none"
    assert percentile([1.0, 2.0, 3.0], 99) == 3.0


def test_groups_have_the_size_asked_for() -> None:
    identity = Identity.generate()
    for size in (4_096, 16_384, 1_000_000):
        record = seal(identity, "benchmark-" + 20 * "0", "group", make_group(1, chars_for(size)))
        assert 0.96 * size < len(record) <= size


def test_swarm_bench_names_what_there_is_and_says_where_benchmarks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="there is .*network"):
        bench("nothing", [])
    assert {"network", "soak"} < set(BENCHMARKS) and "common" not in BENCHMARKS
    monkeypatch.setattr("nodes.commands.bench.FOLDER", tmp_path / "not there")
    with pytest.raises(ConfigError, match="clone"):
        bench("network", [])


@pytest.mark.slow
@pytest.mark.network
def test_a_quick_run_prints_a_table_and_writes_the_json_shape(tmp_path: Path) -> None:
    out = tmp_path / "network.json"
    command = [sys.executable, "-m", "nodes.cli", "bench", "network", *COMMAND[3:], "--out", str(out)]
    done = subprocess.run([*command, "--only", "delivered", "largest"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "delivered fraction" in done.stdout and "[2/2] largest" in done.stdout
    report = json.loads(out.read_text())
    assert set(report) == {"benchmark", "rows", "command", "versions", "machine"}
    for entry in report["rows"]:
        assert set(entry) == {"what", "value", "unit", "baseline", "ratio", "target", "met", "spread", "n"}
        assert entry["value"] is not None
    rows = {entry["what"]: entry["value"] for entry in report["rows"]}
    live = next(value for what, value in rows.items() if "only to nodes live" in what)
    assert live > 0.9, "gossip reaches who is there"
    assert str(ROOT) not in out.read_text()


@pytest.mark.slow
@pytest.mark.network
def test_a_small_flood_is_accounted_for(tmp_path: Path) -> None:
    plan = Plan(quick=True, repeats=1, peer_python=None, folder=tmp_path)
    with plan.fleet("learner", 2) as fleet, plan.processes() as processes:
        fleet.start()
        assert fleet.settle()
        outcome = flood(fleet, processes, each=20, lying=5, per_s=100.0, calm_s=2.0)
    assert outcome.sent == {**dict.fromkeys(KINDS, 20), LYING: 5}
    assert (outcome.num_entered, outcome.false_rewards, outcome.trained_twice) == (0, 0, 0)
    assert (outcome.crashes, outcome.unaccounted) == (0, 0)
    assert outcome.honest is not None and outcome.honest > 0.9
    assert outcome.memory.peak > 100e6
    assert "question_mismatch" in outcome.fates(), "what a feed may contain was heard"
    assert all(status["counters"]["bad_gift"] >= 1 for status in outcome.statuses), "and then what it may not"  # type: ignore[index, call-overload]


@pytest.mark.slow
@pytest.mark.network
def test_an_interrupt_ends_every_node() -> None:
    process = subprocess.Popen([*COMMAND, "--only", "delivered"], cwd=ROOT, stdout=subprocess.DEVNULL)
    parent = psutil.Process(process.pid)
    deadline = time.monotonic() + 300
    while not any(map(is_daemon, parent.children(recursive=True))):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    nodes = parent.children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    assert not psutil.wait_procs(nodes, timeout=300)[1]
