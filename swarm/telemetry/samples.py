"""Samples of groups with their fates, for people: `samples.jsonl` in a node's directory.

Readers ignore unknown fields. Training reads samples only where the user says so (`swarm/extras/recorded`).
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Literal

import msgspec
from msgspec import Struct

from swarm.files import open_private
from swarm.reasons import Fate, Reason
from swarm.telemetry.sinks import TelemetrySettings
from swarm.types import (
    Completion,
    GradedGroup,
    Observation,
    RolloutGroup,
    Speaker,
    TaskRef,
    as_text,
    dialogue,
    media_of,
)
from swarm.types.media import Media
from swarm.types.thumbnails import thumbnails

SAMPLES_FILE = "samples.jsonl"
OLDER_FILE = "samples.older.jsonl"
"""The half before, replaced when the newer one is full."""

Outcome = Literal["used_local", "used_external", "no_signal", "unused", "refused"]
"""`used_local`, `used_external`: trained on; `no_signal`: the same reward for all completions; `unused`: an own group
with signal, not trained on; `refused`: a received group, not trained on. For the last two, `reason` says why."""


class Turn(Struct, frozen=True):
    """One side's turn."""

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

    @property
    def names_speakers(self) -> bool:
        """Whether its turns are shown with their speakers: it is more, or less, than one answer. A thought that never
        ended is less."""
        return [turn.role for turn in self.turns] != ["policy"]


class SampleRecord(Struct, frozen=True):
    """One group and its fate."""

    time: float
    """Unix seconds at which this was decided."""
    round: int
    """The round, or a learner's step, in which it was: from 1."""
    outcome: Outcome
    reason: str
    """A key of `swarm/reasons.py`; empty for groups trained on."""
    task: str
    question: str | None
    """The question as this node asks it, cut; None when it did not regenerate it."""
    sender: str
    """Peer id of the author."""
    own: bool
    """True if this node is the author."""
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
    ref: TaskRef | None = None
    """From which every member makes the question again; None in files of earlier versions."""


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


logger = logging.getLogger(__name__)

MAX_QUESTION_CHARS = 4_000
MAX_COMPLETIONS = 16
MAX_GROUP_CHARS = 32_000
"""For all completions of a group together; each gets the same share."""
MAX_PICTURES = 4
"""For a question, and for a turn."""
MAX_TURN_PICTURES = 16
"""For all completions of a group together; each gets the same share."""


class SampleLog:
    """Appends records; when a file has half of the bytes allowed, it replaces the older one.

    A sample is for people: a failure to write is logged once, and the node continues. Main thread only.
    """

    def __init__(
        self,
        folder: Path,
        settings: TelemetrySettings,
        peer_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Samples of the node `peer_id`. The file is opened with the first sample."""
        self._path = folder / SAMPLES_FILE
        self._older = folder / OLDER_FILE
        self._max_file_bytes = settings.samples_bytes // 2
        self._per_outcome = settings.samples_per_outcome
        self._peer_id = peer_id
        self._clock = clock
        self._round = 0
        self._kept: Counter[Fate] = Counter()
        self._file: IO[bytes] | None = None
        self._broken = settings.samples_bytes == 0

    def begin(self, round: int) -> None:
        """Start a round: the next samples belong to it."""
        self._round = round
        self._kept.clear()

    def keep(self, fate: Fate, group: GradedGroup | RolloutGroup) -> None:
        """Keep the group, unless the round has enough with the same fate."""
        if self._broken or self._kept[fate] >= self._per_outcome:
            return
        self._kept[fate] += 1
        try:
            self._write(encode(self._record(fate, group)))
        except OSError as error:
            logger.error("no more samples are kept in %s: %s", self._path, error)
            self._broken = True
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: bytes) -> None:
        if len(line) > self._max_file_bytes:
            return
        file = self._opened()
        if file.tell() + len(line) > self._max_file_bytes:
            self.close()
            self._path.replace(self._older)
            file = self._opened()
        file.write(line)
        file.flush()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = open_private(self._path, "a+b")
            if self._file.tell() > 0:
                self._file.seek(-1, 2)
                if self._file.read(1) != b"\n":
                    self._file.write(b"\n")  # end the line that a killed process left incomplete
        return self._file

    def _record(self, fate: Fate, group: GradedGroup | RolloutGroup) -> SampleRecord:
        graded = group if isinstance(group, GradedGroup) else None
        source = group.group if isinstance(group, GradedGroup) else group
        own = source.peer_id == self._peer_id
        shown = source.completions[:MAX_COMPLETIONS]
        return SampleRecord(
            time=self._clock(),
            round=self._round,
            outcome=_outcome(fate, own),
            reason=str(fate) if isinstance(fate, Reason) else "",
            task=source.question.task,
            question=as_text(graded.prompt)[:MAX_QUESTION_CHARS] if graded else None,
            sender=source.peer_id,
            own=own,
            policy=source.policy.model,
            version=source.policy.version,
            completions=tuple(
                SampledCompletion(
                    turns=_turns(
                        completion,
                        graded.observed(k) if graded else (),
                        MAX_GROUP_CHARS // len(shown),
                        MAX_TURN_PICTURES // len(shown),
                    ),
                    reward=graded.rewards[k] if graded else None,
                    claimed=None if own or k >= len(source.rewards) else source.rewards[k],
                    finish_reason=completion.finish_reason,
                    parts={name: values[k] for name, values in graded.parts.items()} if graded else {},
                    found=graded.found[k] if graded and graded.found else None,
                )
                for k, completion in enumerate(shown)
            ),
            num_completions=len(source.completions),
            pictures=thumbnails(media_of(graded.prompt), MAX_PICTURES) if graded else (),
            expected=graded.expected if graded else "",
            ref=source.question,
        )


def _outcome(fate: Fate, own: bool) -> Outcome:
    if not isinstance(fate, Reason):
        return fate
    if fate == Reason.ZERO_ADVANTAGE:
        return "no_signal"
    return "unused" if own else "refused"


def _turns(
    completion: Completion, observations: Sequence[Observation], max_chars: int, max_pictures: int
) -> tuple[Turn, ...]:
    """The turns; without a grade those of the environment are unknown."""
    said = dialogue(completion, observations)
    seen = iter(observations)
    turns = []
    for role, text in said:
        parts = [part for part in next(seen) if isinstance(part, Media)] if role == "environment" else []
        pictures = thumbnails(parts, min(max_pictures, MAX_PICTURES))
        max_pictures -= len(pictures)
        turns.append(Turn(role, text[: max_chars // len(said)], len(text), pictures))
    return tuple(turns)
