"""Groups that a hostile peer signs correctly, from knowing every answer."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from swarm.environments.config import TaskConfig
from swarm.environments.mixture import TaskMixture
from swarm.environments.sources.reasoning_gym import ReasoningGymSource
from swarm.environments.tiny import TINY_TASKS
from swarm.groups.building import with_grade
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.trust.exchange import Exchange
from swarm.types import (
    Completion,
    DatasetRef,
    Grade,
    GradedGroup,
    PolicyId,
    Question,
    RolloutGroup,
    Sampling,
)

GROUP_SIZE = 8
"""As in the attacked runs: larger groups are refused."""
GROUPS_PER_TURN = 8
"""Groups of a hostile peer in a round: as many as an honest one can share."""
HONEST = "<answer>{}</answer>"
MAX_GUESSES = 20
NUM_GUESSED = 500
"""Questions that wrong answers come from: a generator's first block, made once."""
REPEATED = 12
LONG_CHARS = 380
"""With question and answer nearly the embedded policy's 512 positions: longer ones are refused before they teach."""


def honest(answer: str, source: random.Random) -> str:
    """The format that rewards."""
    return HONEST.format(answer)


def gibberish(answer: str, source: random.Random) -> str:
    """The right answer behind random letters, others each time."""
    return "".join(source.choices(string.ascii_lowercase, k=12)) + HONEST.format(answer)


def repetition(answer: str, source: random.Random) -> str:
    """The right answer said again and again."""
    return HONEST.format(answer) * REPEATED


def very_long(answer: str, source: random.Random) -> str:
    """The right answer behind a long text that is the same each time."""
    filler = "so it goes on and on, "
    return (filler * (LONG_CHARS // len(filler) + 1))[:LONG_CHARS] + HONEST.format(answer)


@dataclass(frozen=True)
class Recipe:
    """What a hostile peer writes into a group."""

    right: Callable[[str, random.Random], str] = honest
    """The text of a right answer."""
    wrong: Callable[[str, random.Random], str] = honest
    """The text of a wrong one."""
    wants: Callable[[Question, str], bool] = lambda question, answer: True
    """Whether to answer a question, which has this answer; others are passed over."""
    num_right: int = GROUP_SIZE // 2
    claims: tuple[float, float] = (1.0, 0.0)
    """Rewards that it claims for the right ones, or what passes for them, and for the others."""


class Poison:
    """Groups by a recipe, question by question."""

    def __init__(
        self, recipe: Recipe, seed: int, tasks: Sequence[TaskConfig] = TINY_TASKS, decent: Recipe | None = None
    ) -> None:
        """Uses its own question stream; `decent` is the recipe of honest groups."""
        self._recipe = recipe
        self._decent = decent or Recipe()
        self._random = random.Random(seed)
        self._mixture = TaskMixture(tasks)
        self._stream = 10**6 + seed
        self._num_made = 0

    def next(self, created_at: float, honest: bool = False, **envelope: str) -> RolloutGroup:
        """The next group, or an honest one; `envelope`: its run and author."""
        recipe = self._decent if honest else self._recipe
        question, answer = self._question(recipe)
        texts = [recipe.right(answer, self._random) for _ in range(recipe.num_right)]
        wrong = [self._guess(question, answer) for _ in range(GROUP_SIZE - recipe.num_right)]
        texts += [recipe.wrong(guess, self._random) for guess in wrong]
        first, second = recipe.claims
        return RolloutGroup(
            run_id=envelope.get("run_id", ""),
            peer_id=envelope.get("peer_id", ""),
            sequence=self._num_made,
            created_at=created_at,
            policy=PolicyId("tiny", "", 0),
            sampling=Sampling(max_new_tokens=16),
            question=question.ref,
            completions=tuple(Completion(text, "stop") for text in texts),
            rewards=(first,) * (GROUP_SIZE // 2) + (second,) * (GROUP_SIZE // 2),
        )

    def graded(self, group: RolloutGroup) -> GradedGroup:
        """A group as any node grades it."""
        verdict = self._mixture.grade(group.question, [completion.text for completion in group.completions])
        assert isinstance(verdict, Grade), verdict
        return with_grade(group, verdict)

    def _question(self, recipe: Recipe) -> tuple[Question, str]:
        """The next question that the recipe wants, and its answer."""
        while True:
            self._num_made += 1
            question = self._mixture.question(self._stream, self._num_made)
            answer = self._solve(question)
            if recipe.wants(question, answer):
                return question, answer

    def _solve(self, question: Question) -> str:
        assert not isinstance(question.ref, DatasetRef)
        source = self._mixture.sources[question.ref.task]
        assert isinstance(source, ReasoningGymSource)
        return source.oracle(question.ref) or ""

    def _guess(self, question: Question, answer: str) -> str:
        """The answer to another question of the task, which is wrong here."""
        source = self._mixture.sources[question.ref.task]
        for _ in range(MAX_GUESSES):
            guess = self._solve(source.question(self._stream, self._random.randrange(NUM_GUESSED)))
            if guess != answer:
                return guess
        return f"{answer}0"


class HostilePeer:
    """A member of a run in memory that publishes by a recipe, as many groups a turn as an honest one can."""

    def __init__(self, recipe: Recipe, hub: MemoryHub, clock: Callable[[], float], seed: int) -> None:
        """Enters the run under an identity of its own."""
        self._poison = Poison(recipe, seed)
        self._clock = clock
        self._exchange = join(hub, Identity.generate(), clock)

    def __call__(self) -> None:
        """Publish one turn's groups."""
        for _ in range(GROUPS_PER_TURN):
            self._exchange.share(self._poison.next(self._clock()))


class Copyist:
    """A member of a run in memory that publishes others' groups as its own."""

    def __init__(self, hub: MemoryHub, clock: Callable[[], float], seed: int) -> None:
        """Enters the run under an identity of its own; the seed makes no difference."""
        self._clock = clock
        self._exchange = join(hub, Identity.generate(), clock)
        self._num_made = 0

    def __call__(self) -> None:
        """Publish what came since the last turn, up to one turn's groups."""
        groups, _ = self._exchange.receive()
        for each in groups[:GROUPS_PER_TURN]:
            self._num_made += 1
            self._exchange.share(replace(each.group, sequence=self._num_made, created_at=self._clock()))


def join(hub: MemoryHub, identity: Identity, clock: Callable[[], float]) -> Exchange:
    """The identity's exchange in the run of the hub's other members."""
    transport = MemoryTransport(hub, identity.peer_id, clock=clock)
    transport.start()
    return Exchange(transport, identity, clock=clock)
