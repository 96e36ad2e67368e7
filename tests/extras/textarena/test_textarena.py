"""TextArena's games as environments: by hand, replayed, in a worker, and those that are refused."""

from __future__ import annotations

import random
from collections import Counter
from importlib.util import find_spec

import pytest
from msgspec.structs import replace
from pydantic import JsonValue, ValidationError

if find_spec("textarena") is None:
    pytest.skip("TextArena is not installed: make install-textarena", allow_module_level=True)

from swarm.environments.config import Context, VerificationSettings
from swarm.environments.episodes.source import EnvironmentSource
from swarm.environments.mixture import Replay, TaskMixture
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError
from swarm.extras.textarena.games import TextArenaGame
from swarm.extras.textarena.task import TextArenaTask
from swarm.types import EpisodeRef, Grade, Rejection, Terminal, observation_text

HANOI = TextArenaTask(name="hanoi", game="TowerOfHanoi-v0", settings={"num_disks": 2})
SOLUTION = ("[A B]", "A C", "so I move [B C]")
DRAWING = ("2048-v0-ultra-easy", "Mastermind-v0", "Blackjack-v0-long", "FrozenLake-v0-random")
"""Games that draw at the start or later."""
MOVES = ("[up]", "[1 2 3 4]", "[0 0]", "[hit]", "[left]", "[right]")


def played(game: str, index: int) -> Replay:
    """An episode in a process that has drawn anything before."""
    random.seed(random.SystemRandom().random())
    begun = TextArenaGame(game, {})
    start = begun.reset(5, index)
    result: list[object] = []
    for move in MOVES:
        result.append(answer := begun.step(move))
        random.random()
        if isinstance(answer, Terminal):
            return Replay((start, *result[:-1]), answer.reward)  # type: ignore[arg-type]
    return Replay((start, *result), 0.0)  # type: ignore[arg-type]


def test_tower_of_hanoi_by_hand() -> None:
    game = TextArenaGame("TowerOfHanoi-v0", {"num_disks": 2})
    assert "A: [2, 1]\nB: []\nC: []" in observation_text(game.reset(0, 0))
    shown = game.step("[A B]")
    assert not isinstance(shown, Terminal)
    assert "A: [2]\nB: [1]\nC: []" in observation_text(shown) and "Tower of Hanoi" not in observation_text(shown)
    assert not isinstance(game.step("A C"), Terminal)
    assert game.step("so I move [B C]") == Terminal(1.0)


def test_a_game_that_is_given_up_or_played_against_the_rules_is_worth_nothing() -> None:
    for moves in (("[C A]", "[C A]"), ("", "x" * 10_000)):
        game = TextArenaGame("TowerOfHanoi-v0", {})
        game.reset(0, 0)
        assert not isinstance(game.step(moves[0]), Terminal)
        assert game.step(moves[1]) == Terminal(0.0)
    bandit = TextArenaGame("Bandit-v0", {})  # whose reward is then -1
    bandit.reset(0, 0)
    bandit.step("none")
    assert bandit.step("none") == Terminal(0.0)


@pytest.mark.parametrize("game", DRAWING)
def test_seed_and_moves_decide_a_whole_episode(game: str) -> None:
    first = played(game, 0)
    assert played(game, 0) == first
    assert any(played(game, index) != first for index in range(1, 4))


def test_a_game_leaves_the_process_s_own_randomness_alone() -> None:
    random.seed(3)
    wanted = [random.random() for _ in range(4)]
    random.seed(3)
    game, drawn = TextArenaGame("2048-v0", {}), [random.random()]
    game.reset(0, 0)
    drawn.append(random.random())
    game.step("[up]")
    assert [*drawn, random.random(), random.random()] == wanted


def test_a_confined_worker_replays_what_was_played_here() -> None:
    tasks = (HANOI, TextArenaTask(name="mines", game="Minesweeper-v0-small"))
    here, pool = TaskMixture(tasks), VerificationPool(tasks, VerificationSettings())
    try:
        for task, moves in (("hanoi", SOLUTION), ("mines", ("[0 0]", "[4 4]"))):
            question = here.question(1, 2, task=task)
            assert pool.draw(1, 2, 1, task) == [question]
            (there,), found = (
                pool.grade([(question.ref, [moves, moves[:1]])]),
                here.grade(question.ref, [moves, moves[:1]]),
            )
            assert isinstance(there, Grade) and isinstance(found, Grade)
            assert (there.rewards, there.observations) == (found.rewards, found.observations)
            assert task == "mines" or there.rewards == (1.0, 0.0)
    finally:
        pool.close()


def test_members_need_the_same_version() -> None:
    def source(library: str) -> EnvironmentSource:
        return EnvironmentSource(HANOI, HANOI.environments(Context()), Counter(), library)

    ref = source("textarena==0.7.4").question(0, 0).ref
    mixture = TaskMixture([HANOI], make=lambda config, counts: source("textarena==0.7.5"))
    found = mixture.grade(ref, [SOLUTION])
    assert isinstance(found, Rejection) and found.reason == "other_task"
    assert isinstance(ref, EpisodeRef)
    other = replace(ref, options_digest="0" * 32)
    assert isinstance(found := mixture.grade(other, [SOLUTION]), Rejection) and found.reason == "options_differ"


@pytest.mark.parametrize(
    ("game", "reason"),
    [
        ("Wordle-v0", "without downloads, network and language models"),
        ("TicTacToe-v0", "The number of players has to be 2"),
        ("SpiteAndMalice-v0", "is for several players"),
        ("NoSuchGame-v0", "does not exist"),
    ],
)
def test_games_that_are_refused(game: str, reason: str) -> None:
    with pytest.raises(TaskError, match=reason) as caught:
        TaskMixture([TextArenaTask(name="game", game=game)])
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("value", ["/etc/passwd", "~/keys", "../up", "__import__", "a\\b", {"in": ["/etc"]}])
def test_settings_that_are_refused(value: JsonValue) -> None:
    with pytest.raises(ValidationError, match="num_disks must be plain words"):
        TextArenaTask(name="game", game="TowerOfHanoi-v0", settings={"num_disks": value})
    (spec,) = to_specs((HANOI,))
    with pytest.raises(TaskError, match="num_disks must be plain words"):
        from_specs((replace(spec, settings={**spec.settings, "settings": {"num_disks": value}}),))


def test_settings_that_the_game_does_not_have_are_told() -> None:
    with pytest.raises(TaskError, match="unexpected keyword argument 'nothing'"):
        TaskMixture([TextArenaTask(name="game", game="TowerOfHanoi-v0", settings={"nothing": 1})])


def test_the_manifest_carries_the_game() -> None:
    assert from_specs(to_specs((HANOI,))) == (HANOI,)
