"""Questions made from a seed and an index: their references, and which of them are held out.

Questions are held out by stream and by content, so that no other seed leads to them.

Every tenth of all texts that a task can make is for evaluation, by its digest; every tenth content of questions with
images, audio or video, since many have the same text. The request for the answer's form does not count: a suite that
asks for another form asks questions of the same tenth. Streams of either kind pass over questions of the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec.structs import replace

from swarm.environments.answering import QuestionSettings, RewardSettings
from swarm.environments.digests import check_options, check_question, draw, question_hash
from swarm.environments.scoring.finding import finder
from swarm.environments.sources.lru import LruCache
from swarm.errors import Refusal, TaskError
from swarm.reasons import Reason
from swarm.types import (
    HELD_OUT_STREAMS,
    EpisodeRef,
    ProceduralRef,
    Prompt,
    Question,
    Shown,
    TaskRef,
    Text,
    media_of,
)
from swarm.types.media import media_digest

HELD_OUT_EVERY = 10
MAX_ATTEMPTS = 64
"""A stream that finds no question of its kind, because there are too few, asks what it has."""
FIRST_SUBSTITUTE = 2**40
"""Indices from here on are for substitutes; no run asks so many questions."""
NUM_FOUND = 4096
"""Questions of which a source remembers what they are made of: an evaluation asks the same ones every time, and its
stream passes over nine of ten."""


def referenced(task: str, library: str, options_digest: str, seed: int, index: int, prompt: Prompt) -> Question:
    """A generated question with its reference; `library` made it, with options of that digest."""
    media = media_digest(media_of(prompt))
    return Question(ProceduralRef(task, library, options_digest, seed, index, question_hash(prompt), media), prompt)


def regenerate(make: Callable[[int, int], Question], ref: ProceduralRef | EpisodeRef, difference: str) -> Question:
    """What `make` makes of the reference's seed and index.

    Raises `Refusal`: `question_mismatch` if `make` raised `TaskError`, or its text is another one, as `difference`
    says; `media_mismatch`.
    """
    try:
        question = make(ref.seed, ref.index)
    except TaskError as error:
        raise Refusal(Reason.QUESTION_MISMATCH, str(error)) from error
    check_question(ref, question.ref, difference)
    return question


def last_text(prompt: Prompt) -> str:
    """The text that a question ends with; empty if its last message has only images, audio and video."""
    if isinstance(prompt, str):
        return prompt
    return next((part.text for part in reversed(prompt[-1].parts) if isinstance(part, Text)), "")


def with_last_text(prompt: Prompt, change: Callable[[str], str]) -> Prompt:
    """A prompt whose last text is changed, or added where its last message has none."""
    changed = change(last_text(prompt))
    if isinstance(prompt, str):
        return changed
    *before, last = prompt
    if isinstance(last.content, str):
        return (*before, replace(last, content=changed))
    return (*before, replace(last, content=_changed(last.content, changed)))


def _changed(parts: tuple[Shown, ...], text: str) -> tuple[Shown, ...]:
    places = [place for place, part in enumerate(parts) if isinstance(part, Text)]
    if not places:
        return (*parts, Text(text)) if text else parts
    return (*parts[: places[-1]], Text(text), *parts[places[-1] + 1 :])


class HeldApart:
    """Streams whose questions are all of one kind."""

    def __init__(self, make: Callable[[int, int], Question], bare: Callable[[int, int], Prompt]) -> None:
        """`make` makes the question at an index of a stream, of either kind, and always the same; `bare` is what it
        asks, without the request for the answer's form."""
        self._make = make
        self._bare = bare
        self._found: LruCache[tuple[int, int], int] = LruCache(NUM_FOUND)

    def question(self, seed: int, index: int) -> Question:
        """The question at an index of a stream, or a substitute in the same stream for one of the other kind.

        Raises what `make` raises.
        """
        return self._make(seed, self._place(seed, index))

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether the stream or the content of a question that has been recalled is held out. See `TaskSource`."""
        if not isinstance(ref, ProceduralRef):
            return False
        if ref.seed >= HELD_OUT_STREAMS:
            return True
        for_evaluation = self._is_for_evaluation(ref.seed, ref.index, ref.media)
        return for_evaluation and not self._has_no_other(ref.seed, ref.index)

    def _is_for_evaluation(self, seed: int, index: int, media: str) -> bool:
        """Whether what a question asks and shows is for evaluation; `media` is as in its reference."""
        shown = (media,) if media else ()
        return draw(HELD_OUT_EVERY, "held out", question_hash(self._bare(seed, index)), *shown) == 0

    def _is_of_its_stream(self, seed: int, index: int) -> bool:
        media = self._make(seed, index).ref.media
        return self._is_for_evaluation(seed, index, media) == (seed >= HELD_OUT_STREAMS)

    def _has_no_other(self, seed: int, index: int) -> bool:
        """Whether a stream asks a question of the other kind, because it finds none of its own."""
        try:
            return index < FIRST_SUBSTITUTE and self._place(seed, index) == index
        except TaskError:
            return False

    def _place(self, seed: int, index: int) -> int:
        """The index that the question at an index of a stream is made of."""
        found = self._found.get((seed, index))
        if found is None:
            substitutes = FIRST_SUBSTITUTE + index * MAX_ATTEMPTS
            places = (index, *range(substitutes, substitutes + MAX_ATTEMPTS - 1))
            found = next((place for place in places if self._is_of_its_stream(seed, place)), index)
            self._found.put((seed, index), found)
        return found


class ProceduralSource(ABC):
    """Base of a `TaskSource`, and of `Answered`, whose questions are made from a seed and an index, without end."""

    def __init__(self, config: QuestionSettings, reward: RewardSettings, library: str, options_digest: str) -> None:
        """`library` makes the questions, with options of that digest. Raises `TaskError`."""
        self.name = config.name
        self._asked = config.asked
        self._find = finder(config)
        self._reward = reward
        self._library = library
        self._options_digest = options_digest
        self._apart = HeldApart(self._at, self._bare)

    @property
    def num_held_out(self) -> int | None:
        """None: questions are made without end."""
        return None

    def question(self, seed: int, index: int) -> Question:
        """Question `index` of the stream `seed`. Raises `TaskError` when it cannot be made."""
        return self._apart.question(seed, index)

    def recall(self, ref: TaskRef) -> Question:
        """Make the question behind a reference again.

        Raises `Refusal`: `unknown_task`, `options_differ`, or `question_mismatch` or `media_mismatch` when another
        question is made here. Other versions of the library are fine if the question is the same.
        """
        if not isinstance(ref, ProceduralRef) or ref.task != self.name:
            raise Refusal(Reason.UNKNOWN_TASK, f"{ref.task!r} as asked is not the task {self.name!r}")
        check_options(ref, self._options_digest)
        other = f" by {ref.library}, here {self._library}" if ref.library != self._library else ""
        return regenerate(self._at, ref, f"{ref.task} {ref.index} of {ref.seed}{other}")

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether its stream or its content is held out. See `TaskSource`."""
        return self._apart.is_held_out(ref)

    def score(self, ref: TaskRef, completion: str) -> float:
        """Reward of one completion: the score of its answer, then the task's reward rule."""
        self.recall(ref)
        assert isinstance(ref, ProceduralRef)
        answer = self._find(completion)
        return self._reward.reward(0.0 if answer is None else self._score(answer, ref.seed, ref.index))

    def solution(self, ref: TaskRef) -> str:
        """The right answer. See `Answered`."""
        assert isinstance(ref, ProceduralRef)
        return self._solution(ref.seed, ref.index)

    def found(self, ref: TaskRef, completion: str) -> str | None:
        """What counts as the answer. See `Answered`."""
        return self._find(completion)

    def _at(self, seed: int, index: int) -> Question:
        """The question made of a seed and an index, whether it is held out or not."""
        prompt = with_last_text(self._bare(seed, index), self._asked)
        return referenced(self.name, self._library, self._options_digest, seed, index, prompt)

    @abstractmethod
    def _bare(self, seed: int, index: int) -> Prompt:
        """What is shown and asked, without the request for the answer's form."""

    @abstractmethod
    def _solution(self, seed: int, index: int) -> str:
        """The right answer."""

    @abstractmethod
    def _score(self, answer: str, seed: int, index: int) -> float:
        """How right an answer is, in [0, 1]."""
