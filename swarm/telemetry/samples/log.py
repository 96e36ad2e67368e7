"""Writes `samples.jsonl`: some groups of each round for each outcome, within a number of bytes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from swarm.files import open_private
from swarm.reasons import Fate, Reason
from swarm.telemetry.config import TelemetrySettings
from swarm.telemetry.samples.records import (
    OLDER_FILE,
    SAMPLES_FILE,
    Outcome,
    SampledCompletion,
    SampleRecord,
    Turn,
    encode,
)
from swarm.types import Completion, GradedGroup, Observation, RolloutGroup, as_text, dialogue, media_of
from swarm.types.media import Media
from swarm.types.thumbnails import thumbnails

logger = logging.getLogger(__name__)

MAX_QUESTION_CHARS = 4_000
MAX_COMPLETIONS = 16
MAX_GROUP_CHARS = 32_000
"""Of all completions of a group together; each gets the same share."""
MAX_PICTURES = 4
"""Of a question, and of a turn."""
MAX_TURN_PICTURES = 16
"""Of all completions of a group together; each gets the same share."""


class SampleLog:
    """Appends records; when a file has half of the bytes allowed, it replaces the older one.

    A sample is for people: where it cannot be written, that is logged once, and the node goes on. Main thread only.
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
        """What comes now belongs to this round."""
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
    """What was said in turns; without a grade it is not known what the environment said."""
    said = dialogue(completion, observations)
    seen = iter(observations)
    turns = []
    for role, text in said:
        parts = [part for part in next(seen) if isinstance(part, Media)] if role == "environment" else []
        pictures = thumbnails(parts, min(max_pictures, MAX_PICTURES))
        max_pictures -= len(pictures)
        turns.append(Turn(role, text[: max_chars // len(said)], len(text), pictures))
    return tuple(turns)
