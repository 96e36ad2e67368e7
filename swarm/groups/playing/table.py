"""The episodes that are not over: what the engine is to say next, and what the environments have answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future

from swarm.groups.episodes import Played, joined
from swarm.protocols import Verifier
from swarm.reasons import Reason
from swarm.types import (
    Actions,
    Answers,
    Completion,
    Grade,
    NextTurn,
    Observation,
    Past,
    Question,
    Rejection,
    Step,
)


class Table:
    """The episodes of some questions, between engine and verifier: the `Turns` of an engine's call."""

    def __init__(self, verifier: Verifier, num_completions: int) -> None:
        """No questions yet; each has G episodes."""
        self._verifier = verifier
        self._num_completions = num_completions
        self._episodes: dict[int, tuple[_Game, int]] = {}
        """Those of games that are not over, by name: the game and the place in it."""
        self._continuing: set[int] = set()
        self._ready: list[NextTurn] = []
        self._replays: dict[int, Future[Grade | Rejection]] = {}
        self._over: deque[tuple[int, Played | Rejection]] = deque()

    @property
    def num_episodes(self) -> int:
        """Those that are not over. See `Turns`."""
        return len(self._episodes)

    @property
    def num_awaited(self) -> int:
        """Episodes whose environment has not answered yet, as far as `take` has seen."""
        return len(self._replays)

    @property
    def continuing(self) -> Collection[int]:
        """Episodes that may take another turn after the one taken last. See `Turns`."""
        return self._continuing

    def add(self, index: int, question: Question, first: int) -> None:
        """Play a question, which is called `index`; its episode k is called `first` + k. All first turns are ready."""
        game = _Game(index, question, self._num_completions)
        for place in range(self._num_completions):
            self._episodes[first + place] = game, place
            self._make_ready(NextTurn(first + place, 1, question.prompt))

    def drop(self, indices: Collection[int]) -> None:
        """Play these questions no longer, and say nothing of them."""
        for game in {game.index: game for game, _ in self._episodes.values() if game.index in indices}.values():
            self._remove(game)

    def ask_again(self, turns: Iterable[NextTurn]) -> None:
        """Turns that were taken and will not be answered are ready again, before all others."""
        others, self._ready = self._ready, []
        for turn in turns:
            if turn.episode in self._episodes:
                self._make_ready(turn)
        self._ready += others

    def take(self, wait: bool) -> list[NextTurn]:
        """The turns that are ready. See `Turns`."""
        self._settle()
        while wait and not self._ready and self._replays:
            futures.wait(self._replays.values(), return_when=futures.FIRST_COMPLETED)
            self._settle()
        ready, self._ready = self._ready, []
        for turn in ready:
            game, _ = self._episodes[turn.episode]
            if turn.number == game.question.max_turns:
                self._continuing.discard(turn.episode)
        return ready

    def all_that_follow(self) -> list[NextTurn]:
        """All turns that follow those that were answered, in the same order whoever finishes first."""
        futures.wait(self._replays.values())
        return sorted(self.take(wait=False), key=lambda turn: turn.episode)

    def answer(self, name: int, answers: Answers) -> None:
        """Add an episode's next turn, and have it replayed unless it is the last."""
        if name not in self._episodes:  # its game has ended without it
            return
        game, place = self._episodes[name]
        if isinstance(answers, Rejection):
            self._end(game, answers)
            return
        game.turns[place].append(answers[0])
        if game.refusal is None and len(game.turns[place]) < game.question.max_turns:
            self._replays[name] = self._verifier.replay(game.question.ref, game.actions(place))
        else:
            self._end_episode(name)

    def over(self) -> Iterator[tuple[int, Played | Rejection]]:
        """The games that have ended since the last call, by index of their question; none is lost with the iterator."""
        while self._over:
            yield self._over.popleft()

    def _make_ready(self, turn: NextTurn) -> None:
        self._continuing.add(turn.episode)
        self._ready.append(turn)

    def _settle(self) -> None:
        """Read the replays that are complete."""
        for name, replay in tuple(self._replays.items()):
            if replay.done():
                del self._replays[name]
                if name in self._episodes:
                    self._replayed(name, replay)

    def _replayed(self, name: int, replay: Future[Grade | Rejection]) -> None:
        game, place = self._episodes[name]
        verdict = replay.result()
        if isinstance(verdict, Rejection):
            self._refuse(game, replay)
        elif len(shown := verdict.observed(0)) == len(game.turns[place]) and game.refusal is None:
            game.shown[place] = shown
            self._ready.append(NextTurn(name, len(shown) + 1, game.past(place)))
            return
        self._end_episode(name)

    def _refuse(self, game: _Game, refusal: Future[Grade | Rejection]) -> None:
        """No episode of a game goes on; turns that the engine has begun are waited for."""
        game.refusal = refusal
        stopped = [turn.episode for turn in self._ready if self._episodes[turn.episode][0] is game]
        self._ready = [turn for turn in self._ready if turn.episode not in stopped]
        for name in stopped:
            self._end_episode(name)

    def _end_episode(self, name: int) -> None:
        game, place = self._episodes[name]
        self._continuing.discard(name)
        game.open.discard(place)
        if not game.open:
            self._end(game, game.played(self._verifier))

    def _end(self, game: _Game, outcome: Played | Rejection) -> None:
        self._over.append((game.index, outcome))
        self._remove(game)

    def _remove(self, game: _Game) -> None:
        names = {name for name, (other, _) in self._episodes.items() if other is game}
        self._ready = [turn for turn in self._ready if turn.episode not in names]
        self._continuing -= names
        for name in names:
            del self._episodes[name]


class _Game:
    """The G episodes of one question."""

    def __init__(self, index: int, question: Question, num_completions: int) -> None:
        """Nothing is said yet. `index` is that of the question."""
        self.index = index
        self.question = question
        self.turns: list[list[Completion]] = [[] for _ in range(num_completions)]
        self.shown: list[tuple[Observation, ...]] = [()] * num_completions
        """What the turns after the first were told."""
        self.open = set(range(num_completions))
        """The episodes that are not over."""
        self.refusal: Future[Grade | Rejection] | None = None
        """The verifier's, for one of the episodes."""

    def past(self, place: int) -> Past:
        """What an episode's next turn continues."""
        pairs = zip(self.turns[place], self.shown[place], strict=True)
        return Past(self.question.prompt, tuple(Step(turn.token_ids, shown) for turn, shown in pairs))

    def actions(self, place: int) -> Actions:
        """What the environment is told."""
        turns = self.turns[place]
        return turns[0].text if len(turns) == 1 else tuple(turn.text for turn in turns)

    def played(self, verifier: Verifier) -> Played:
        """The episodes as they are, replayed together: for their grade, and because observations must be the same
        each time."""
        completions = tuple(joined(turns, shown) for turns, shown in zip(self.turns, self.shown, strict=True))
        if self.refusal is not None:
            return Played(completions, self.refusal)
        grading = verifier.begin(self.question.ref, [self.actions(place) for place in range(len(self.turns))])
        return Played(completions, _checked(grading, self.shown))


def _checked(grading: Future[Grade | Rejection], shown: Sequence[Sequence[Observation]]) -> Future[Grade | Rejection]:
    """A grade whose observations begin with those that were `shown` to the policy, or a refusal."""
    checked: Future[Grade | Rejection] = Future()

    def check(graded: Future[Grade | Rejection]) -> None:
        if (error := graded.exception()) is not None:
            checked.set_exception(error)
            return
        verdict = graded.result()
        if isinstance(verdict, Grade) and any(
            verdict.observed(place)[: len(before)] != before for place, before in enumerate(shown)
        ):
            verdict = Rejection(Reason.EPISODE_MISMATCH, "the environment answers the same turns differently each time")
        checked.set_result(verdict)

    grading.add_done_callback(check)
    return checked
