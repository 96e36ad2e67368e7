"""Poker by hand: rules against references of its own, moves as strangers write them, and hands at the edge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from random import Random

import pytest
from pokerkit import Card
from pydantic import ValidationError

from swarm.environments.config import TaskConfig, VerificationSettings
from swarm.environments.mixture import TaskMixture
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.verification.inline import InlineVerifier
from swarm.environments.verification.pool import VerificationPool
from swarm.extras.poker.games import (
    PLAYERS,
    STACK,
    HeadsUp,
    Holdem,
    Kuhn,
    Menu,
    Move,
    chen_points,
    looks,
    reward,
)
from swarm.extras.poker.tasks import SITUATIONS, STRATEGIES, HoldemTask, KuhnTask
from swarm.types import Grade, Terminal, observation_text
from tests.extras.poker.exact import CARDS, best_response, first_players_value, value

CHIPS = 40
NASH_VALUE = -1 / 18
"""Chips a hand that the first player of Kuhn poker wins when both play best. Source: Kuhn 1950."""


def net_chips(reward: float, stack: float) -> float:
    """The inverse of `reward`, also of a mean of rewards."""
    return (2 * reward - 1) * stack


def play(game: HeadsUp, seed: int, index: int, says: Sequence[str] | Iterator[str]) -> tuple[list[str], float]:
    """What the policy saw, and the chips it won; it says one thing after the other."""
    seen, turns = [observation_text(game.reset(seed, index))], iter(says)
    while not isinstance(answer := game.step(next(turns)), Terminal):
        seen.append(observation_text(answer))
    return seen, round(net_chips(answer.reward, game.state.starting_stacks[0]), 6)


def pure(bets: str) -> dict[str, float]:
    """Who bets or calls in these situations and passes in all others."""
    return {situation: float(situation in bets.split()) for situation in SITUATIONS}


def deals() -> dict[tuple[int, str, str], int]:
    """An episode of stream 0 for each seat and cards (policy's, opponent's) of Kuhn poker."""
    game, found = Kuhn({"tight": STRATEGIES["tight"]}), {}
    for index in range(200):
        game.reset(0, index)
        ours, theirs = (game.state.hole_cards[player][0].rank.value for player in (game.seat, 1 - game.seat))
        found.setdefault((game.seat, ours, theirs), index)
    return found


def test_kuhn_poker_has_the_value_that_is_proven() -> None:
    """Payoffs are played out in the environment for all deals and pure strategies, and only then weighed."""
    episodes = deals()
    assert len(episodes) == 12
    nash, worth = STRATEGIES["nash"], {}
    for seat, best_seat in ((0, NASH_VALUE), (1, -NASH_VALUE)):
        for ours in CARDS:
            for says in product("12", repeat=2):  # without and with a bet before; or before and after a check
                total = 0.0
                for theirs in CARDS.replace(ours, ""):
                    situations = [theirs + before for before in (("c", "b") if seat == 0 else ("", "cb"))]
                    for bets in product((0, 1), repeat=2):
                        chosen = [each for each, bet in zip(situations, bets, strict=True) if bet]
                        chance = 1.0
                        for each, bet in zip(situations, bets, strict=True):
                            chance *= nash[each] if bet else 1 - nash[each]
                        game = Kuhn({"pure": pure(" ".join(chosen))})
                        total += chance * chips_of(game, episodes[seat, ours, theirs], says, seat)
                worth[seat, ours, says] = total / 6
        best = sum(max(worth[seat, ours, says] for says in product("12", repeat=2)) for ours in CARDS)
        assert best == pytest.approx(best_seat, abs=1e-12)


def chips_of(game: Kuhn, index: int, says: Sequence[str], seat: int) -> float:
    """Of a policy that says the first thing without a bet before it, as the second player, or in its first turn."""
    start = observation_text(game.reset(0, index))
    answer = game.step(says["They bet" in start] if seat else says[0])
    if not isinstance(answer, Terminal):
        answer = game.step(says[1])
    assert isinstance(answer, Terminal)
    return net_chips(answer.reward, STACK)


def test_the_solution_by_enumeration_agrees() -> None:
    nash = STRATEGIES["nash"]
    assert first_players_value(nash, nash) == pytest.approx(NASH_VALUE, abs=1e-12)
    assert best_response([nash]) == pytest.approx(0, abs=1e-12)
    assert all(value(nash, theirs) >= -1e-12 for theirs in STRATEGIES.values())


def test_opponents_of_kuhn_poker_play_their_strategy() -> None:
    game, counts = Kuhn({"nash": STRATEGIES["nash"]}), Counter[str]()
    for index in range(900):
        game.reset(1, index)
        if game.seat == 1:  # the opponent has opened
            card = game.state.hole_cards[0][0].rank.value
            counts[card + game.moves[0].kind] += 1
    assert counts["Kcheck"] == counts["Qbet"] == 0 and counts["Kbet"] and counts["Qcheck"]
    assert counts["Jbet"] / (counts["Jbet"] + counts["Jcheck"]) == pytest.approx(1 / 3, abs=0.12)


@pytest.mark.parametrize("compact", [False, True])
def test_a_hand_of_kuhn_poker_by_hand(compact: bool) -> None:
    game = Kuhn({"aggressive": STRATEGIES["aggressive"]}, compact)
    seen, chips = play(game, 0, deals()[0, "Q", "J"], ["check", "call"])
    assert chips == 2
    if compact:
        assert seen == ["hand 2.", "bet hand 2."]
    else:
        assert seen[0].endswith("You hold Q. Choose: 1 check, 2 bet 1.")
        assert seen[1] == "They bet 1. You hold Q. Choose: 1 fold, 2 call 1."


MENU = Menu({1: Move("fold"), 2: Move("call", 4), 3: Move("raise", 8), 5: Move("raise", 40)}, least=8, most=40)


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("1", Move("fold")),
        ("<answer>2</answer>", Move("call", 4)),
        ("I could fold, but I CALL.", Move("call", 4)),
        ("Raise to 12", Move("raise", 12)),
        ("raise 12!", Move("raise", 12)),
        ("bet 40", Move("raise", 40)),
        ("raise", Move("raise", 8)),
        ("all-in", Move("raise", 40)),
        ("call 7", Move("call", 4)),
        ("raise to 7", None),
        ("raise to 41", None),
        ("check", None),
        ("4", None),
        ("9", None),
        ("", None),
        ("1" * 5_000, None),
        ("raise to 99999999999999999999", None),
        ("\u0661", None),
        ("chec\u212a", None),
        ("__import__('os').system('1x')", Move("fold")),
        ("(" * 20_000 + "2" + ")" * 20_000, Move("call", 4)),
        ("raise to " * 20_000, Move("raise", 8)),
    ],
)
def test_moves_are_read_as_they_are_written(text: str, move: Move | None) -> None:
    assert MENU.read(text) == move


def test_what_is_no_legal_move_folds() -> None:
    kuhn, holdem = Kuhn({"caller": STRATEGIES["caller"]}), Holdem(["aggressive"], CHIPS)
    for said in ("", "no idea", "check" * 9, "raise to 1000", "\x00\ud800"):
        assert play(kuhn, 3, 1, [said])[1] == -1, "the ante"
        assert play(holdem, 3, 1, [said])[1] in (-1, -2), "a blind"
    seen, chips = play(holdem, 3, 1, ["call", "nonsense"])
    assert len(seen) == 2 and chips == holdem.state.stacks[holdem.seat] - CHIPS > -CHIPS


def best_of_seven(cards: Sequence[Card]) -> tuple[int, ...]:
    """The best five of seven cards, larger is better: category, then ranks by number and height."""
    return max(_category(five) for five in combinations(cards, 5))


def _category(five: Sequence[Card]) -> tuple[int, ...]:
    ranks = sorted(("23456789TJQKA".index(card.rank.value) for card in five), reverse=True)
    times = sorted(Counter(ranks).items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
    shape = tuple(number for _, number in times)
    if ranks == [12, 3, 2, 1, 0]:
        ranks, times = [3, 2, 1, 0, -1], [(3, 1), (2, 1), (1, 1), (0, 1), (-1, 1)]
    straight = len(shape) == 5 and ranks[0] - ranks[4] == 4
    flush = len({card.suit for card in five}) == 1
    named = {(4, 1): 7, (3, 2): 6, (3, 1, 1): 3, (2, 2, 1): 2, (2, 1, 1, 1): 1}
    category = 8 if straight and flush else 5 if flush else 4 if straight else named.get(shape, 0)
    return (max(category, named.get(shape, 0)), *(rank for rank, _ in times))


def test_showdowns_are_those_of_an_independent_evaluator() -> None:
    game, won = Holdem(["caller"], CHIPS), Counter[float]()
    for index in range(60):
        game.reset(5, index)
        cards = [list(game.state.hole_cards[player]) for player in (game.seat, 1 - game.seat)]
        while not isinstance(answer := game.step("2"), Terminal):
            pass
        board = list(game.state.get_board_cards(0))
        assert len(board) == 5 and len({repr(card) for card in [*cards[0], *cards[1], *board]}) == 9
        ours, theirs = (best_of_seven([*hole, *board]) for hole in cards)
        chips = round(net_chips(answer.reward, CHIPS), 6)
        assert chips == 2 * ((ours > theirs) - (ours < theirs))
        won[chips] += 1
    assert won.keys() == {-2, 0, 2}


def test_all_in_before_the_flop_deals_the_whole_board_and_pays_the_stack() -> None:
    game, won = Holdem(["caller"], CHIPS), set()
    for index in range(60):
        seen, chips = play(game, 6, index, ["all-in"])
        assert len(seen) == 1 and len(list(game.state.get_board_cards(0))) == 5
        won.add(chips)
    assert won >= {-CHIPS, CHIPS} and won <= {-CHIPS, 0, CHIPS}


def test_a_raise_that_covers_the_opponent_leaves_only_a_call() -> None:
    game = Holdem(["aggressive"], 8)
    for index in range(40):
        game.reset(8, index)
        while game.menu().most:
            if isinstance(game.step(f"raise to {game.menu().least}"), Terminal):
                break
        else:
            assert {move.kind for move in game.menu().numbered.values()} == {"fold", "call"}
            assert game.menu().read("all-in") == game.menu().numbered[2]
            return
    raise AssertionError("the opponent never put us all in")


def test_who_has_no_decision_is_dealt_another_hand() -> None:
    game = Holdem(["tight"], CHIPS)
    dealt_again = [game.chance.key[-1] for index in range(30) if game.reset(9, index)]
    assert max(dealt_again) > 0 and min(dealt_again) == 0


GAMES = {
    "kuhn": (Kuhn(STRATEGIES), 250),
    "compact kuhn": (Kuhn(STRATEGIES, True), 20),
    "holdem": (Holdem(list(PLAYERS), CHIPS), 400),
    "compact holdem": (Holdem(list(PLAYERS), 10_000, True), 40),
}
"""With the most characters of an observation."""


@pytest.mark.parametrize("name", GAMES)
def test_hands_are_functions_of_their_start_and_their_observations_short(name: str) -> None:
    game, most = GAMES[name]
    random, starts = Random(0), set()
    for index in range(60):
        says = [random.choice(["1", "2", "2", "3", "4", "5", "raise 9", "what?"]) for _ in range(99)]
        once, again = play(game, 7, index, says), play(game, 7, index, says)
        assert once == again
        assert max(map(len, once[0])) <= most
        starts.add((game.seat, game.opponent))
    assert {seat for seat, _ in starts} == {0, 1} and len({opponent for _, opponent in starts}) >= 4


def test_rewards_are_chips_in_the_unit_interval() -> None:
    assert [reward(chips, 2) for chips in (-2, -1, 0, 1, 2)] == [0, 0.25, 0.5, 0.75, 1]
    assert [net_chips(reward(chips, CHIPS), CHIPS) for chips in (-40, -3, 0, 7)] == pytest.approx([-40, -3, 0, 7])


@pytest.mark.parametrize(
    ("hole", "board", "expected"),
    [
        ("AsAd", "", 9), ("7c2d", "", 0), ("KsQs", "", 5),
        ("AsKd", "Ah2c3d", 6), ("KdAs", "2h2c3d", 2), ("2sKd", "2h2c3d", 8), ("3s9d", "Kh9c2d", 4),
        ("AsKs", "2s7s9s", 9), ("9c8d", "9dTc8h3s", 7), ("5c4d", "2d3h6sKcKd", 9), ("7c2d", "AsKdQh", 1),
    ],
)  # fmt: skip
def test_strength_is_a_rule_of_thumb(hole: str, board: str, expected: int) -> None:
    assert looks(list(Card.parse(hole)), list(Card.parse(board))) == expected


def test_chens_points_are_as_published() -> None:
    published = {"AsKs": 12, "TcTd": 10, "5h7h": 5.5, "AcKd": 10, "2c2d": 5, "JsTs": 9, "AdAh": 20}
    assert {hole: chen_points(list(Card.parse(hole))) for hole in published} == published


KUHN = KuhnTask(kind="kuhn_poker", opponents=("nash", "earlier"), strategies={"earlier": pure("K Kb Kc")})
HOLDEM = HoldemTask(kind="holdem")


@pytest.fixture(scope="module")
def pool() -> Iterator[VerificationPool]:
    made = VerificationPool((KUHN, HOLDEM), VerificationSettings())
    yield made
    made.close()


def test_another_process_replays_a_hand_to_the_letter(pool: VerificationPool) -> None:
    inline = InlineVerifier((KUHN, HOLDEM))
    for question in inline.draw(11, 0, 10):
        says = [("2",) * (turns + 1) if turns else "2" for turns in range(question.max_turns)]
        here, there = ([verifier.grade([(question.ref, [said])])[0] for said in says] for verifier in (inline, pool))
        for ours, theirs in zip(here, there, strict=True):
            assert type(ours) is type(theirs)
            if isinstance(ours, Grade) and isinstance(theirs, Grade):
                assert (ours.prompt, ours.rewards, ours.observations) == (
                    theirs.prompt, theirs.rewards, theirs.observations,
                )  # fmt: skip


def test_settings_travel_and_differ() -> None:
    tasks: tuple[TaskConfig, ...] = (KUHN, HOLDEM)
    assert from_specs(to_specs(tasks)) == tasks
    other = KUHN.model_copy(update={"strategies": {"earlier": pure("K Kb")}})
    refs = [TaskMixture([task]).question(1, 0).ref for task in (KUHN, other)]
    assert refs[0].options_digest != refs[1].options_digest, "members with another earlier self are told"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"opponents": ("nobody",)}, "no such opponents: nobody"),
        ({"opponents": ()}, "at least 1"),
        ({"strategies": {"nash": pure("")}}, "another name"),
        ({"strategies": {"half": {"J": 0.5}}}, "situations"),
        ({"strategies": {"sure": pure("") | {"J": 1.5}}}, "less than or equal to 1"),
    ],
)
def test_opponents_are_checked_before_a_run(change: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        KuhnTask.model_validate({"kind": "kuhn_poker", **change})


def test_every_pair_of_cards_is_dealt() -> None:
    assert {(ours, theirs) for _, ours, theirs in deals()} == set(permutations(CARDS, 2))
