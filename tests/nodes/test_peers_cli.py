"""`swarm peers`: of a directory, and of a real run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from nodes.cli import app
from nodes.commands import peers as command
from nodes.commands.peers import duration, render, show_peers, size, standing
from swarm.errors import ConfigError, PeerUnreachable
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.member import Profile
from swarm.net.roster import PeerRow, Roster, decode_roster, encode_roster, read_roster, write_roster
from swarm.net.services.diagnosis import serve_diagnosis
from swarm.net.trust.credit import Credit
from swarm.reasons import Reason
from swarm.types import MemberSummary
from tests.net.records import fast_settings, make_identity, sealed_manifest, until

NOW = 1_000_000.0
ROSTER = Roster(
    NOW,
    "demo-1234",
    "12D3KooWself",
    (
        PeerRow("12D3KooWidle0001", connected=True, last_seen=NOW - 3),
        PeerRow(
            "12D3KooWbusy0002",
            "Qwen/Qwen2.5-0.5B-Instruct",
            ("gcd", "lcm"),
            "peer",
            "0.1.0",
            True,
            50,
            40,
            {"expired": 1, "zero_advantage": 9},
            3_400_000,
            NOW - 130,
            0.9,
            name="anna",
        ),
        PeerRow("12D3KooWevil0003", "\x1b[2J[red]x", received=9, dropped={"forged": 9}, quarantined_until=NOW + 300),
    ),
)


def drawn(width: int, now: float = NOW, roster: Roster = ROSTER) -> str:
    console = Console(width=width, file=None, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(render(roster, width, now))
    return capture.get()


def test_a_roster_travels_and_its_schema_is_the_agreed_one(tmp_path: Path) -> None:
    assert decode_roster(encode_roster(ROSTER)) == ROSTER
    plain = json.loads(encode_roster(ROSTER))
    assert set(plain) == {"time", "run_id", "self", "peers"}
    assert set(plain["peers"][0]) == {
        *("peer_id", "model", "tasks", "role", "version", "connected", "received", "used", "dropped", "bytes"),
        *("last_seen", "reputation", "quarantined_until", "name", "summary", "credit", "expires_at"),
    }
    write_roster(tmp_path, ROSTER)
    assert read_roster(tmp_path) == ROSTER
    assert [entry.name for entry in tmp_path.iterdir()] == ["peers.json"]


@given(st.binary(max_size=200))
def test_any_other_bytes_are_a_typed_error(encoded: bytes) -> None:
    with pytest.raises(ConfigError, match="roster"):
        decode_roster(encoded)


def test_the_most_useful_come_first_with_what_became_of_their_groups() -> None:
    lines = drawn(165).splitlines()
    assert lines[0] == "demo-1234: 3 peers, 2 connected"
    assert [line.split()[0] for line in lines[2:5]] == ["..busy0002", "..evil0003", "..idle0001"]
    busy = " ".join(lines[2].split())
    assert (
        "..busy0002 anna connected peer Qwen/Qwen2.5-0.5B-Instruct 40 50 10 zero_advantage 3.4 MB 0.90 2 min ago "
        "0.1.0 gcd, lcm" in busy
    )
    assert "quarantined 5 min" in lines[3] and "forged" in lines[3]
    assert lines[5:] == [
        "forged: This version of swarm does not know this reason.",
        f"zero_advantage: {Reason.ZERO_ADVANTAGE.sentence}",
    ]


@pytest.mark.parametrize("width", [18, 24, 30, 42, 60, 80, 95, 120, 140, 155, 200])
def test_it_fits_into_any_terminal_and_never_loses_peer_and_use(width: int) -> None:
    text = drawn(width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "busy0002" in text and " 40" in text, text
    assert not any(line.rstrip().endswith("…") for line in text.splitlines() if width >= 30)
    assert ("zero_advantage" in text) == (width >= 120)
    assert ("gcd, lcm" in text) == (width >= 155)


def test_strangers_words_do_nothing_to_a_terminal() -> None:
    assert "\x1b" not in drawn(200)


def test_what_members_say_of_themselves_is_marked_as_claims() -> None:
    assert "*" not in drawn(200)
    told = MemberSummary(rounds=40, given=30, used=20, correct=90, asked=100)
    peers = (ROSTER.peers[0], replace(ROSTER.peers[1], summary=told))
    text = drawn(200, roster=replace(ROSTER, peers=peers))
    assert "accuracy*" in text and "0.90 (0.83-0.94)" in text
    assert "*: What others say of themselves is their own claim: nobody checks it." in text
    assert "*" not in drawn(40, roster=replace(ROSTER, peers=peers)), "no column, no note"


def test_credit_is_shown_as_what_members_measured() -> None:
    assert "credit" not in drawn(200)
    peers = (ROSTER.peers[0], replace(ROSTER.peers[1], credit=Credit(0.625, 9)))
    text = drawn(200, roster=replace(ROSTER, peers=peers))
    assert "0.62 (9)" in text and "how many independent members measured it" in text


def test_an_old_roster_is_not_taken_for_a_running_node() -> None:
    assert "not running" not in drawn(160, NOW + 30)
    assert "as of 10 min ago: the node is not running" in drawn(160, NOW + 600)


def test_figures_for_people() -> None:
    assert [duration(s) for s in (-1, 0, 119, 121, 7_200, 200_000)] == ["0 s", "0 s", "119 s", "2 min", "2 h", "2 d"]
    assert [size(n) for n in (0, 999, 1_500, 2_000_000, 3 * 10**9)] == ["0 B", "999 B", "1.5 kB", "2.0 MB", "3.0 GB"]
    assert standing(PeerRow("x", quarantined_until=NOW - 1), NOW) == "away", "quarantines end"


def test_a_directory_as_json_and_as_a_table(tmp_path: Path) -> None:
    write_roster(tmp_path, ROSTER)
    result = CliRunner().invoke(app, ["peers", str(tmp_path), "--json"], obj=[])
    assert [row["used"] for row in json.loads(result.output)["peers"]] == [40, 0, 0]
    assert "..busy0002" in CliRunner().invoke(app, ["peers", str(tmp_path)], obj=[]).output


def test_what_cannot_be_shown_is_a_clear_error(tmp_path: Path) -> None:
    console = Console(width=80)
    with pytest.raises(ConfigError, match="there is no .*peers.json"):
        show_peers(str(tmp_path), False, False, False, console)
    (tmp_path / "peers.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"peers\.json: not a valid roster"):
        show_peers(str(tmp_path), False, False, False, console)
    with pytest.raises(ConfigError, match="--watch needs a terminal"):
        show_peers(str(tmp_path), False, True, True, console)
    nobody = f"/ip4/127.0.0.1/tcp/1/p2p/{make_identity(tmp_path, 'nobody').peer_id}"
    with pytest.raises(PeerUnreachable, match="connection refused"):
        show_peers(nobody, True, False, False, console)
    with pytest.raises(ConfigError, match="no valid peer id"):
        show_peers("/ip4/127.0.0.1/tcp/1/p2p/nonsense", True, False, False, console)


def test_watching_shows_what_changes_until_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_roster(tmp_path, ROSTER)
    console = Console(width=100, force_terminal=True, record=True)
    pauses = iter((1, 2))

    def pause(seconds: float) -> None:
        if next(pauses) == 2:
            raise KeyboardInterrupt
        write_roster(tmp_path, Roster(time.time(), "demo-5678", "me"))

    monkeypatch.setattr(command.time, "sleep", pause)
    with console.capture() as capture:
        show_peers(str(tmp_path), False, False, True, console)
    assert "demo-1234: 3 peers" in capture.get() and "demo-5678: 0 peers" in capture.get()


@pytest.mark.network
def test_a_member_tells_who_is_in_its_run_and_the_visitor_stays_unseen(tmp_path: Path) -> None:
    founder, joiner = make_identity(tmp_path, "founder"), make_identity(tmp_path, "joiner")
    first = HivemindTransport(fast_settings(), founder, sealed_manifest(founder), Profile(role="bootstrap"))
    second: HivemindTransport | None = None
    try:
        serve_diagnosis(first)
        first.start()
        profile = Profile("some/model", ("gcd",), version="9.9")
        second = HivemindTransport(fast_settings(first.multiaddrs()), joiner, profile=profile)
        second.start()
        until(first.peers, "the founder reads the joiner's record")
        result = CliRunner().invoke(app, ["peers", first.multiaddrs()[0], "--json"], obj=[])
        listing = json.loads(result.output)
        assert listing["run_id"] == first.status().run_id
        rows = {row["peer_id"]: row for row in listing["peers"]}
        assert set(rows) == {founder.peer_id, joiner.peer_id}
        assert rows[founder.peer_id]["role"] == "bootstrap"
        assert (rows[joiner.peer_id]["model"], rows[joiner.peer_id]["version"]) == ("some/model", "9.9")
        assert {record.peer_id for record in first.peers()} == {joiner.peer_id}, "the visitor announces nothing"
        text = CliRunner().invoke(app, ["peers", first.multiaddrs()[0]], obj=[]).output
        assert "2 peers in the directory" in text and "some/model" in text
    finally:
        for node in (second, first):
            if node is not None:
                node.close()
        founder.close()
        joiner.close()
