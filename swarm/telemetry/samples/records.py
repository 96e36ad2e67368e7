"""The lines of `samples.jsonl`: one group each. Readers ignore unknown fields, as those of later versions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from swarm.types import Speaker

SAMPLES_FILE = "samples.jsonl"
OLDER_FILE = "samples.older.jsonl"
"""The half before, replaced when the newer one is full."""

Outcome = Literal["used_local", "used_external", "no_signal", "unused", "refused"]
"""`used_local`, `used_external`: trained on; `no_signal`: the same reward for all completions; `unused`: an own group
with signal, not trained on; `refused`: a received group, not trained on. For the last two, `reason` says why."""


class Turn(Struct, frozen=True):
    """What one side said."""

    role: Speaker
    text: str
    """Cut to a number of characters."""
    num_chars: int
    """Characters before the cut."""
    pictures: tuple[bytes, ...] = ()
    """Small PNGs of the first pictures and clips that the text names."""


class SampledCompletion(Struct, frozen=True):
    """One completion of a group."""

    turns: tuple[Turn, ...]
    reward: float | None
    """This node's; None when it did not grade the group."""
    claimed: float | None
    """The sender's, of a received group."""
    finish_reason: str
    parts: dict[str, float] = {}
    """This node's named rewards, for a task that has them."""
    found: str | None = None
    """The beginning of what counted as the answer; empty where there was none, None where none was looked for."""


class SampleRecord(Struct, frozen=True):
    """One group, and what became of it."""

    time: float
    """Unix seconds at which this was decided."""
    round: int
    """The round, or a learner's step, in which it was: from 1."""
    outcome: Outcome
    reason: str
    """A key of `swarm/reasons.py`; empty for groups trained on."""
    task: str
    question: str | None
    """As this node asks it, cut; None when it did not make it again."""
    sender: str
    """Peer id of the author."""
    own: bool
    """Whether this node is the author."""
    policy: str
    """Name of the model that sampled the group, as the author says."""
    version: int
    """Its version."""
    completions: tuple[SampledCompletion, ...]
    """The first of them."""
    num_completions: int
    pictures: tuple[bytes, ...] = ()
    """Small PNGs of the first pictures and clips that the question names."""
    expected: str = ""
    """The beginning of the right answer; empty where there is no single one, or it is not known."""


def why(reward: float | None, expected: str, found: str | None) -> str:
    """Why an answer has its reward, in a few words; empty where nothing is known about it."""
    if reward is None or found is None:
        return ""
    if not found:
        return "no answer found in it"
    return f"found {found}" if not expected or reward > 0 else f"found {found}, expected {expected}"


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[SampleRecord] = msgspec.json.Decoder(SampleRecord)


def folded(completions: Sequence[SampledCompletion]) -> list[tuple[SampledCompletion, int]]:
    """Each different completion once, with how often it was given, the most frequent first."""
    counts: dict[bytes, tuple[SampledCompletion, int]] = {}
    for each in completions:
        same = msgspec.json.encode(each)
        counts[same] = (each, counts[same][1] + 1 if same in counts else 1)
    return sorted(counts.values(), key=lambda item: -item[1])


def encode(record: SampleRecord) -> bytes:
    """The record as one line, newline included."""
    return _encoder.encode(record) + b"\n"


def read(folder: Path, last_bytes: int | None = None) -> list[SampleRecord]:
    """The samples that a node has kept, oldest first; torn lines are left out. Empty where there are none.

    With `last_bytes` only those in the end of the newer file.
    """
    found = []
    for name in (OLDER_FILE, SAMPLES_FILE) if last_bytes is None else (SAMPLES_FILE,):
        try:
            with (folder / name).open("rb") as file:
                if last_bytes is not None:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            continue
        for line in lines:
            try:
                found.append(_decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
    return found
