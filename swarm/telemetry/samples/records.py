"""The lines of `samples.jsonl`: one group each. Readers ignore unknown fields, as those of later versions."""

from __future__ import annotations

import os
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


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[SampleRecord] = msgspec.json.Decoder(SampleRecord)


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
