"""Finding runs: what a bootstrap lists, and joining by name."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from nodes.commands import runs as command
from nodes.commands.runs import Listed, resolve, show_runs
from swarm.errors import ConfigError, PeerUnreachable
from swarm.net.records.identity import Identity
from swarm.net.services.runs import FoundRun
from tests.net.records import make_manifest

from .processes import LOOPBACK, address_of, swarm, until

AT = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooWP5ouDibjPHvQiKroDu4RXC5q3gb2Kw1YcptCVXJHoih2"
ELSEWHERE = "/ip4/203.0.113.8/tcp/4001/p2p/12D3KooWPZoXzZNukHHgHJSLBDJxTaSGhPhmPAoxPiKgtyYhinBp"


def listed(name: str, address: str = ELSEWHERE) -> Listed:
    founder = Identity.generate()
    return Listed(FoundRun(replace(make_manifest(founder, name), created_at=1.0), address, 2, ("tiny",)), address, AT)


def test_a_name_is_resolved_to_an_address_and_a_run_id(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = listed("sums")
    monkeypatch.setattr(command, "look", lambda entries: ([listed("other"), sums], {}))
    run_id = sums.run.manifest.run_id
    fields = [("network.bootstrap", ELSEWHERE), ("network.run_id", run_id)]
    assert resolve(f"sums@{AT}") == resolve(f"{run_id}@{AT}") == fields


def test_a_name_that_several_founders_use_is_refused_with_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [listed("sums"), listed("sums")]
    monkeypatch.setattr(command, "look", lambda entries: (both, {}))
    with pytest.raises(ConfigError, match="several runs are called 'sums'") as error:
        resolve(f"sums@{AT}")
    for each in both:
        assert each.run.manifest.founder in str(error.value)
        assert resolve(f"{each.run.manifest.run_id}@{AT}")[1] == ("network.run_id", each.run.manifest.run_id)


def test_a_run_that_is_not_open_and_a_bootstrap_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "look", lambda entries: ([listed("sums")], {}))
    with pytest.raises(ConfigError, match="no run 'x' is open at .*; open are: sums"):
        resolve(f"x@{AT}")
    monkeypatch.setattr(command, "look", lambda entries: ([], {AT: "connection refused"}))
    with pytest.raises(PeerUnreachable, match="connection refused"):
        resolve(f"sums@{AT}")


@pytest.mark.parametrize("several", [False, True])
def test_the_list_ends_with_what_joins_one_of_them(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [listed("sums"), replace(listed("words"), at=ELSEWHERE) if several else listed("words")]
    monkeypatch.setattr(command, "look", lambda entries: (runs, {}))
    printed = io.StringIO()
    assert show_runs([AT], False, Console(file=printed, width=80, markup=False)) == 0
    lines = printed.getvalue().splitlines()
    if several:
        assert lines[-2:] == [
            f"to join one of sums: swarm join NAME@{AT}",
            f"to join one of words: swarm join NAME@{ELSEWHERE}",
        ]
    else:
        assert lines[-1] == f"to join one: swarm join NAME@{AT}"


def _runs(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nodes.cli", "runs", *arguments],
        capture_output=True,
        text=True,
        env={
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "COLUMNS": "80",
        },
    )


def test_without_a_bootstrap_it_says_where_they_are_listed(tmp_path: Path) -> None:
    told = _runs(home=tmp_path)
    assert told.returncode == 2
    assert f"put addresses into {tmp_path}/.config/swarm/bootstraps" in told.stderr, told.stderr


@pytest.mark.slow
@pytest.mark.network
def test_a_run_that_asks_for_it_is_found_at_another_bootstrap_and_joined_by_name(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    with swarm(first, "bootstrap", "--run-name=alpha", "--out", str(first), *LOOPBACK) as keeper:
        at = address_of(keeper)
        with swarm(
            second, "bootstrap", "--run-name=beta", "--out", str(second), *LOOPBACK, f"--network.list_at={at}"
        ) as other:
            until(lambda: "lists this run" in other.text(), other, "a line about the list")
            (tmp_path / ".config" / "swarm").mkdir(parents=True)
            (tmp_path / ".config" / "swarm" / "bootstraps").write_text(f"# mine\n{at}\n")
            found = json.loads(_runs("--json", home=tmp_path).stdout)
            assert [each["run_id"].rpartition("-")[0] for each in found] == ["alpha", "beta"]
            assert [each["address"].rpartition("/p2p/")[2] for each in found] == [
                each.rpartition("/p2p/")[2] for each in (at, address_of(other))
            ]
            assert found[1]["founder"] == address_of(other).rpartition("/p2p/")[2]
            shown = _runs(at, home=tmp_path).stdout
            assert "beta" in shown and found[1]["founder"][-8:] in shown
            site = ["site", str(tmp_path / "www"), at, address_of(other)]
            made = subprocess.run([sys.executable, "-m", "nodes.cli", *site], capture_output=True, text=True)
            assert made.returncode == 0, made.stderr
            pages = {each["name"]: each for each in json.loads((tmp_path / "www" / "swarm.json").read_text())["runs"]}
            assert pages["alpha"]["join"] == f"swarm join {at}" and pages["alpha"]["leaders"] == []
            assert pages["beta"]["join"] == f"swarm join {address_of(other)}", "what was asked counts, not the list"
            command = ["join", f"beta@{at}", "--out", str(third), "--rounds=1", "--evaluation.num_questions=0"]
            with swarm(third, *command, *LOOPBACK) as peer:
                assert peer.wait() == 0, peer.text()
                assert found[1]["run_id"] in peer.text()
