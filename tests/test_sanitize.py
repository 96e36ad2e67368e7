"""Whatever strangers write, showing it gives no escape sequence, hides nothing and raises nothing."""

from __future__ import annotations

import io
import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console

from nodes.commands.doctor import Finding, check_nat, check_reachable, line_of as finding_line
from nodes.commands.peers import Listing, render
from nodes.console import warn
from swarm.errors import Refusal
from swarm.net.roster import PeerRow, Roster
from swarm.net.services.diagnosis import DialBackReply
from swarm.sanitize import MAX_CLEAN_CHARS, CleanFormatter, clean, clean_lines, is_name
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.live import LiveView
from swarm.telemetry.records import EvaluationEvent, NoteEvent, StartEvent, encode
from swarm.types import PeerRecord

HOSTILE = (
    "\x1b]52;c;ZWNobw==\x07",
    "\x1b[2J\x9b31m",
    "[/nothing]",
    "[link=http://x]y[/link]",
    "\u202egnp.exe\u2066",
    "a\u200bb\u2028c\x85d",
    "\ud800",
    "</td><script>alert(1)</script>",
    "$\\frac{$",
    "x\r\nfake line",
)
words = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(), max_size=80))


def printed(*renderables: object) -> str:
    console = Console(width=120, height=40, file=io.StringIO(), force_terminal=False)
    for renderable in renderables:
        console.print(renderable)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def harmless(text: str) -> bool:
    return all(char.isprintable() for line in text.split("\n") for char in line)


@given(words)
def test_clean_text_is_one_short_printable_line(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable() and len(cleaned) <= MAX_CLEAN_CHARS
    assert clean(cleaned) == cleaned
    assert len(clean(text * 100, 40)) <= 40
    assert clean_lines(text).count("\n") == text.count("\n") and harmless(clean_lines(text))


@given(words)
def test_a_name_needs_no_cleaning(text: str) -> None:
    if is_name(text, 64):
        assert clean(text) == text and text.isascii() and not set(text) & set("[]<>&$\"'`\\")
    for hostile in HOSTILE:
        assert not is_name(hostile, 64)


@given(words)
def test_refusals_and_logs_are_clean(text: str) -> None:
    refusal = Refusal("limits", text)
    assert str(refusal).isprintable() and len(str(refusal)) <= MAX_CLEAN_CHARS + 10
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "a peer sent %s", (text,), None)
    assert harmless(CleanFormatter().format(record))


@given(words)
def test_tables_of_peers_and_findings_are_harmless(text: str) -> None:
    row = PeerRow(text, text, (text,), text, text, dropped={text: 1})
    record = PeerRecord("r", text, (text,), text, (text,), text, text, 1.0)
    reply = DialBackReply("refused", text, text)
    seen = DialBackReply("done", "", f"fe80::1%{text}", {1: False})
    findings = [check_reachable(reply, [1]), check_nat(seen, frozenset()), Finding("run", "fail", text, text)]
    output = printed(
        render(Roster(0.0, text, "me", (row,)), 120, 0.0),
        render(Listing(0.0, text, (record,)), 120, 0.0),
        *map(finding_line, findings),
    )
    assert harmless(output)


@given(words)
def test_warnings_are_harmless(text: str) -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=False)
    warn(console, f"going without {text}")
    assert isinstance(console.file, io.StringIO) and harmless(console.file.getvalue())


@settings(max_examples=15)
@given(words)
def test_the_live_view_is_harmless(text: str) -> None:
    note = text.encode(errors="replace").decode()  # a metrics file is UTF-8
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "metrics.jsonl"
        start = StartEvent(time=1.0, peer_id="p", config={"tasks": [note], note: note})
        asked = {note: (1, 2)}
        evaluations = [EvaluationEvent(time=1.0, round=n, accuracy=0.5, num_questions=2, tasks=asked) for n in (0, 1)]
        events = [start, *evaluations, NoteEvent(time=2.0, text=note, level="warning")]
        file.write_bytes(b"".join(map(encode, events)))
        history = PeerHistory.read(file)
    assert harmless(printed(LiveView([history], clock=lambda: 3.0)))


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_hostile_is_still_told_of(text: str) -> None:
    assert clean(f"before {text[:20]} after").startswith("before ") and clean(f"{text[:20]} after").endswith(" after")
