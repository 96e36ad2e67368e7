"""Tones and rhythms to name, made of one wave that is a table of integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy
import numpy.typing
from pydantic import Field

from swarm.environments.config import TaskName
from swarm.environments.digests import Chance
from swarm.environments.sources.generated import GeneratedTask, Made
from swarm.types.media import Audio, Modality

TonesQuestion = Literal["highest", "beeps", "rhythm"]
Samples = numpy.typing.NDArray[numpy.int64]

HALF = 128
"""Entries for half a wave."""
LOUDNESS = 12_000
PHASE_BITS = 32
FADE = 64
"""Samples over which a tone grows and ends, so that it does not click."""
PITCHES = (262, 330, 392, 523, 659, 784, 1_047, 1_319)
"""In Hz: an arpeggio of C major."""
PLACES = ("first", "second", "third")
LONG = 3
"""Beats."""


def _half_wave() -> Samples:
    """Bhaskara's approximation of the sine, a quotient of integers that is at most 0.2% off."""
    steps = numpy.arange(HALF, dtype=numpy.int64)
    product = steps * (HALF - steps)
    wave: Samples = LOUDNESS * 16 * product // (5 * HALF * HALF - 4 * product)
    return wave


_WAVE = numpy.concatenate([_half_wave(), -_half_wave()])


class TonesTask(GeneratedTask):
    """Tones and rhythms to name."""

    shows = frozenset[Modality]({"audio"})

    kind: Literal["tones"]
    name: TaskName = "tones"
    """Name in this run."""
    questions: tuple[TonesQuestion, ...] = Field(("highest", "beeps", "rhythm"), min_length=1)
    """One of them is asked: which of three tones is the `highest`, how many `beeps` there are, or which `rhythm` it is,
    as a word such as `long-short-long`."""
    rate: int = Field(8_000, ge=4_000, le=48_000)
    """Samples a second."""
    beat_s: float = Field(0.1, ge=0.02, le=1.0)
    """Length of a short tone and of a pause; a long one has three times this length."""
    max_beeps: int = Field(5, ge=1, le=16)
    """Most beeps that are to be counted."""

    @property
    def beat(self) -> int:
        """Samples of a beat."""
        return int(self.rate * self.beat_s)

    def make(self, chance: Chance) -> Made:
        """A sound and a question about it."""
        match chance.one_of(self.questions, "question"):
            case "highest":
                return _highest(self, chance)
            case "beeps":
                return _beeps(self, chance)
            case "rhythm":
                return _rhythm(self, chance)


def _highest(task: TonesTask, chance: Chance) -> Made:
    pitches = chance.shuffled(PITCHES, "pitches")[: len(PLACES)]
    heard = _sound(task, [(pitch, LONG) for pitch in pitches])
    return Made((heard,), "Which tone is the highest: first, second or third?", PLACES[pitches.index(max(pitches))])


def _beeps(task: TonesTask, chance: Chance) -> Made:
    count = chance.number(1, task.max_beeps, "count")
    pitch = chance.one_of(PITCHES, "pitch")
    return Made((_sound(task, [(pitch, 1)] * count),), "How many beeps?", str(count))


def _rhythm(task: TonesTask, chance: Chance) -> Made:
    names = [chance.one_of(("short", "long"), "length", place) for place in range(len(PLACES))]
    pitch = chance.one_of(PITCHES, "pitch")
    heard = _sound(task, [(pitch, LONG if name == "long" else 1) for name in names])
    return Made((heard,), "Which rhythm? Answer like short-long-short.", "-".join(names))


def _sound(task: TonesTask, notes: Iterable[tuple[int, int]]) -> Audio:
    """Notes of a pitch and a number of beats, with a pause of one beat before, between and after them."""
    pause = numpy.zeros(task.beat, numpy.int64)
    pieces = [pause]
    for pitch, beats in notes:
        pieces += [_tone(pitch, beats * task.beat, task.rate), pause]
    return Audio(task.rate, numpy.concatenate(pieces).astype("<i2").tobytes())


def _tone(pitch: int, num_samples: int, rate: int) -> Samples:
    """[num_samples] of a wave whose phase is a whole number of 2^-32 periods."""
    times = numpy.arange(num_samples, dtype=numpy.int64)
    phases = times * (pitch * 2**PHASE_BITS // rate) % 2**PHASE_BITS
    fade = numpy.minimum(numpy.minimum(times, num_samples - 1 - times), FADE)
    tone: Samples = _WAVE[phases * len(_WAVE) // 2**PHASE_BITS] * fade // FADE
    return tone
