"""What is written can be read, and what was torn is not mistaken for anything."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, strategies as st

from swarm.figures import finite
from swarm.telemetry.records import EndEvent, Event, NoteEvent, StartEvent, decode, encode

from . import synthetic

EVENTS: list[Event] = [*synthetic.killed_and_resumed(num_rounds=22, lost=21), NoteEvent(time=1.0, text="a\nb \u2028 ü")]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_round_trip_on_one_line(event: Event) -> None:
    line = encode(event)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode(line) == event


def test_the_lines_are_as_agreed() -> None:
    assert json.loads(encode(EndEvent(time=2.0, round=3, reason="done"))) == {
        "event": "end",
        "time": 2.0,
        "round": 3,
        "reason": "done",
    }
    round_line = json.loads(encode(synthetic.peer_events(num_rounds=1)[2]))
    assert round_line["event"] == "round" and round_line["round"] == 1
    assert {"generated", "shared", "received", "used_local", "used_external", "dropped"} <= round_line["groups"].keys()


@given(st.sampled_from(EVENTS), st.data())
def test_a_torn_line_is_no_event(event: Event, data: st.DataObject) -> None:
    line = encode(event).rstrip(b"\n")
    assert decode(line[: data.draw(st.integers(0, len(line) - 1))]) is None


@given(st.binary(max_size=60).map(lambda text: b'{"event":"note","time":1,"text":"' + text + b'"}') | st.binary())
def test_any_bytes_are_an_event_or_none(line: bytes) -> None:
    decode(line)


def test_newer_files_can_be_read() -> None:
    assert decode(b'{"event":"end","time":1,"round":2,"reason":"done","more":[1]}') == EndEvent(
        time=1, round=2, reason="done"
    )
    assert decode(b'{"event":"applause","time":1}') is None
    assert decode(b'{"event":"start","time":1,"peer_id":"p"}') == StartEvent(time=1, peer_id="p")


def test_figures_that_are_not_finite_become_unknown() -> None:
    assert finite({"loss": math.nan, "grad_norm": math.inf, "kl": 0.5}) == {"loss": None, "grad_norm": None, "kl": 0.5}
