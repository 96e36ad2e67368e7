"""Games of TextArena for two, against scripted speakers and a language model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("textarena") is None:
    pytest.skip("TextArena is not installed: make install-textarena", allow_module_level=True)

from swarm.environments.config import VerificationSettings
from swarm.environments.mixture import TaskMixture
from swarm.environments.specs import to_specs
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError
from swarm.extras.textarena.games import TextArenaGame, textarena_games
from swarm.extras.textarena.task import TextArenaTask
from swarm.types import Grade, Observation, Terminal, observation_text
from tests.following_model import save_following

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ' ' + m.content + ' ' }}{% endfor %}{% if add_generation_prompt %}GO{% endif %}"
)


class Scripted:
    """Says these moves in turn, in each game, and keeps what it was shown."""

    def __init__(self, *moves: str) -> None:
        self._moves = moves
        self.shown: list[str] = []
        self.num_unread = 0

    def new(self) -> Scripted:
        self.shown, self._left, self.num_unread = [], iter(self._moves), 0
        return self

    def __call__(self, shown: Observation, seed: int, /) -> str:
        self.shown.append(observation_text(shown))
        return next(self._left, "")

    def unread(self) -> None:
        self.num_unread += 1


def against(opponent: Scripted) -> TextArenaGame:
    return TextArenaGame("TicTacToe-v0", {}, opponent.new)


def seated(game: TextArenaGame, seat: int) -> Observation:
    """A game in which the policy has this seat."""
    for index in range(20):
        start = game.reset(0, index)
        if game._seat == seat:
            return start
    raise AssertionError("both seats must occur")


def played(game: TextArenaGame, moves: Sequence[str]) -> float:
    for move in moves[:-1]:
        assert not isinstance(game.step(move), Terminal)
    end = game.step(moves[-1])
    assert isinstance(end, Terminal)
    return end.reward


@pytest.mark.parametrize(
    ("theirs", "seat", "own", "reward"),
    [
        (("[3]", "[4]"), 0, ("0", "[1]", "I take [2]"), 1.0),
        (("[0]", "[1]", "[2]"), 1, ("[3]", "[4]"), 0.0),
        (("[1]", "[3]", "[5]", "[6]"), 0, ("[0]", "[2]", "[4]", "[7]", "[8]"), 1.0),
        (("[1]", "[4]", "[3]", "[8]"), 0, ("[0]", "[2]", "[7]", "[5]", "[6]"), 0.5),
        (("[9]", "what?"), 0, ("[0]",), 1.0),
        (("[4]",), 0, ("[0]", "[0]", "[0]"), 0.0),
    ],
)
def test_the_end_of_a_game_for_two(theirs: Sequence[str], seat: int, own: Sequence[str], reward: float) -> None:
    opponent = Scripted(*theirs)
    game = against(opponent)
    seated(game, seat)
    assert played(game, own) == reward
    assert opponent.num_unread == 2 * ("what?" in theirs), "a second attempt is allowed"


def test_each_is_asked_what_the_other_would_be_in_its_seat() -> None:
    opponent = Scripted("[4]", "[8]")
    game = against(opponent)
    start = observation_text(seated(game, 1))
    assert "You are Player 0 in Tic Tac Toe" in opponent.shown[0] and "You are Player 1 in Tic Tac Toe" in start
    assert "Player 0: [4]" in start and "Player 0 placed their symbol (O) in cell 4" in start
    shown = game.step("[0]")
    assert not isinstance(shown, Terminal)
    assert "Player 1: [0]" in opponent.shown[1] and "Player 0: [8]" in observation_text(shown)
    assert "Player 1: [0]" not in observation_text(shown) and "Player 0: [4]" not in observation_text(shown)


def test_where_the_opponents_first_moves_end_the_game_the_policy_begins() -> None:
    game = against(Scripted())
    for index in range(8):
        assert "You are Player 0" in observation_text(game.reset(1, index))
        assert game.step("[0]") == Terminal(1.0), "the other names no move"


def test_a_model_plays_in_a_confined_worker_as_here(tmp_path: Path) -> None:
    save_following(tmp_path, {"GO": "4", "4": "[EOS]", "[UNK]": "[EOS]"}, chat_template=TEMPLATE)
    task = TextArenaTask.model_validate({"name": "three", "game": "TicTacToe-v0", "model": {"path": str(tmp_path)}})
    assert to_specs([task]) == (), "no manifest names it"
    here, pool = TaskMixture((task.from_anywhere(),)), VerificationPool((task,), VerificationSettings())
    played = [("[0]",), ("[4]", "[4]")]  # it says 4 whenever it is asked, from the second time on an invalid move
    try:
        question = here.question(3, 0)
        assert "You are Player 1" in question.prompt and pool.draw(3, 0, 1, "three") == [question]
        (there,), found = pool.grade([(question.ref, played)]), here.grade(question.ref, played)
        assert isinstance(there, Grade) and isinstance(found, Grade)
        assert (there.rewards, there.observations) == (found.rewards, found.observations)
        assert there.rewards == (1.0, 0.0)
    finally:
        pool.close()


def test_games_that_are_not_for_two_are_refused() -> None:
    for name, reason in (
        ("TowerOfHanoi-v0", "cannot be played by two players"),
        ("ThreePlayerTicTacToe-v0", "two players"),
    ):
        with pytest.raises(TaskError, match=reason) as caught:
            textarena_games("three", name, {}, Scripted().new)
        assert len(str(caught.value).splitlines()) == 1
