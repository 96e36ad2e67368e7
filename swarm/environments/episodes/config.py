"""Settings of tasks on environments, whose episodes have several turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from swarm.environments.episodes.poker.strategies import SITUATIONS, STRATEGIES
from swarm.environments.fields import MAX_TASK_NAME_CHARS, Target, TaskName, Weight, is_hub_id
from swarm.environments.rewards import RewardedTask
from swarm.environments.scoring.answer_guard import is_safe_option
from swarm.types import MAX_TURNS
from swarm.types.media import MAX_MEDIA_BYTES, Modality

GameName = Annotated[str, Field(max_length=MAX_TASK_NAME_CHARS, pattern=r"^[A-Za-z0-9][\w./-]*$")]


def _plain(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name, value in settings.items():
        if not (is_safe_option(value) or (isinstance(value, str) and is_hub_id(value))):
            raise ValueError(f"{name} must be plain words, numbers or OWNER/NAME on the hub, got {value!r:.200}")
    return settings


LibrarySettings = Annotated[dict[str, JsonValue], AfterValidator(_plain)]
"""What another library's code is given: neither code nor paths."""


class EnvironmentTask(RewardedTask):
    """What all tasks on environments have: episodes of several turns."""

    shows: ClassVar[frozenset[Modality]] = frozenset()
    """What its observations have besides text."""

    kind: str
    name: TaskName
    """Name in this run."""
    weight: Weight = 1.0
    max_turns: int = Field(8, ge=1, le=MAX_TURNS)
    """Turns of the policy after which an episode is over."""

    @property
    def options(self) -> dict[str, JsonValue]:
        """All that decides how an episode goes and is rewarded: members of a run must agree on it."""
        return self._dumped("kind", "name", "weight")

    def _dumped(self, *left_out: str) -> dict[str, JsonValue]:
        """The fields but these, and without rewards if there are none: digests are as before there could be any."""
        return self.model_dump(mode="json", exclude={*left_out, *(() if self.rewards else ("rewards",))})


class NumberGuessingTask(EnvironmentTask):
    """Guess a hidden number; each guess is answered with higher or lower. Reward 1 for finding it, else 0.

    With halving, three turns always suffice for seven numbers; without using the answers they suffice for three.
    """

    kind: Literal["number_guessing"] = "number_guessing"
    name: TaskName = "number_guessing"
    """Name in this run."""
    max_turns: int = Field(3, ge=1, le=MAX_TURNS)
    """Guesses."""
    highest: int = Field(7, ge=2, le=10**6)
    """The numbers are 1 to this."""
    progress: float = Field(0.0, ge=0, le=1)
    """Part of the return that guesses earn by leaving fewer numbers, in proportion to the logarithm; see
    `update.credit`."""


class MazeTask(EnvironmentTask):
    """Walk through a maze that is shown after each move. Reward 1 for reaching the goal, else 0."""

    shows = frozenset[Modality]({"image"})

    kind: Literal["maze"]
    name: TaskName = "maze"
    """Name in this run."""
    max_turns: int = Field(6, ge=1, le=MAX_TURNS)
    """Moves, those against walls included."""
    side: int = Field(4, ge=2, le=32)
    """Cells of a row, and rows."""
    cell: int = Field(8, ge=4, le=64)
    """Pixels of a cell's side; walls take one of them on each side."""
    farthest: int = Field(4, ge=1, le=MAX_TURNS)
    """Most moves from the start to the goal."""
    progress: float = Field(0.0, ge=0, le=1)
    """Part of the return that moves earn by coming nearer to the goal than ever before; see `update.credit`."""

    @model_validator(mode="after")
    def _the_goal_can_be_reached_and_shown(self) -> MazeTask:
        if self.farthest > self.max_turns:
            raise ValueError(f"max_turns must be at least farthest, {self.farthest}, got {self.max_turns}")
        if (num_bytes := self.max_turns * (self.side * self.cell) ** 2 * 3) > MAX_MEDIA_BYTES:
            raise ValueError(f"an episode's pictures have up to {num_bytes} bytes, more than {MAX_MEDIA_BYTES}")
        return self


class PokerTask(EnvironmentTask):
    """What both poker games have. A hand not over after `max_turns`, and an answer that fails, lose the whole stack."""

    style: Literal["words", "compact"] = "words"
    """`words`: sentences with rules and moves; `compact`: a few characters, for embedded policies, which write a move's
    number. In Kuhn poker the jack is then hand 1, the queen hand 2 and the king hand 3."""


Probability = Annotated[float, Field(ge=0, le=1)]


class KuhnTask(PokerTask):
    """Kuhn poker against scripted opponents. The reward is the chips won, from -2 to 2, scaled to [0, 1]. Needs the
    extra `poker`."""

    kind: Literal["kuhn_poker"]
    name: TaskName = "kuhn_poker"
    """Name in this run."""
    max_turns: int = Field(2, ge=2, le=MAX_TURNS)
    """A hand has at most two."""
    opponents: tuple[str, ...] = Field(("random", "caller", "tight", "aggressive", "nash"), min_length=1, max_length=16)
    """One of them plays each hand: `random`; `caller`, who never bets and never folds; `tight`, who only plays the
    king; `aggressive`, who always bets or calls; `nash`, an equilibrium; or a name in `strategies`."""
    strategies: dict[TaskName, dict[str, Probability]] = Field({}, max_length=16)
    """Further opponents by name, such as earlier selves of the policy: the probability of betting or calling in each of
    the twelve situations `J`, `Jc`, `Jb`, `Jcb`, `Q`, ...: a card, then what happened before, `c` for a check and `b`
    for a bet."""

    @property
    def chosen(self) -> dict[str, Mapping[str, float]]:
        """The strategies of `opponents`."""
        known = {**STRATEGIES, **self.strategies}
        return {name: known[name] for name in self.opponents}

    @model_validator(mode="after")
    def _every_opponent_has_a_whole_strategy(self) -> KuhnTask:
        for name, strategy in self.strategies.items():
            if name in STRATEGIES or set(strategy) != set(SITUATIONS):
                raise ValueError(
                    f"strategies.{name} must have another name than a scripted opponent, and the situations "
                    f"{', '.join(SITUATIONS)}"
                )
        if unknown := sorted(set(self.opponents) - STRATEGIES.keys() - self.strategies.keys()):
            raise ValueError(
                f"no such opponents: {', '.join(unknown)}; there are {', '.join([*STRATEGIES, *self.strategies])}"
            )
        return self


class HoldemTask(PokerTask):
    """Heads-up no-limit Texas hold'em against scripted opponents. The reward is the chips won, from minus to plus the
    stack, scaled to [0, 1]. Needs the extra `poker`."""

    kind: Literal["holdem"]
    name: TaskName = "holdem"
    """Name in this run."""
    max_turns: int = Field(16, ge=1, le=MAX_TURNS)
    """The policy's decisions in a hand."""
    opponents: tuple[Literal["random", "caller", "tight", "aggressive"], ...] = Field(
        ("random", "caller", "tight", "aggressive"), min_length=1, max_length=16
    )
    """One of them plays each hand: `random`; `caller`, who never raises and never folds; `tight`, who folds all but
    good hands and raises great ones; `aggressive`, who mostly raises by the pot and never folds."""
    stack: int = Field(40, ge=4, le=10_000)
    """Chips of each player; the blinds are 1 and 2."""


class TextArenaTask(EnvironmentTask):
    """A game of TextArena for one player; needs the extra `textarena`. Reward: the game's own, cut to [0, 1]."""

    kind: Literal["textarena"] = "textarena"
    max_turns: int = Field(16, ge=1, le=MAX_TURNS)
    """Moves, invalid ones included."""
    game: GameName
    """TextArena's name of the game, e.g. `TowerOfHanoi-v0`."""
    settings: LibrarySettings = {}
    """Arguments of the game's class, e.g. `num_disks: 4`."""


class VerifiersTask(EnvironmentTask):
    """An environment of the verifiers library in which one agent talks; needs the extra `verifiers`, and every member
    the same code. Reward: the weighted sum of the environment's, cut to [0, 1]."""

    kind: Literal["verifiers"]
    target: Target
    """The taskset of an installed package, e.g. `reverse_text.taskset:ReverseTextTaskset`."""
    settings: LibrarySettings = {}
    """Values for the fields of the taskset's configuration."""
    rows: int = Field(1_000, ge=1, le=100_000)
    """Most rows of the taskset; episodes begin with one of the first so many."""

    @property
    def options(self) -> dict[str, JsonValue]:
        """As above; the code is not named by its place, which differs between members."""
        return self._dumped("kind", "name", "weight", "target")
