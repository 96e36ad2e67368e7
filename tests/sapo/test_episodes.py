"""Episodes shared by nodes: a receiver replays them, and learns nothing from any that was changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from swarm.environments.verification.inline import InlineVerifier
from swarm.groups.episodes import digest
from swarm.protocols import GroupExchange
from swarm.sapo.round import SapoNode, ShareSettings
from swarm.types import Completion, EpisodeRef, Past, Question, RolloutGroup, Text
from tests.environments.test_episodes import hidden
from tests.groups.test_episodes import GAME, Halving, with_turns
from tests.sapo.test_round import FakeUpdater, Swarm


class Altering:
    """A sender's exchange that changes what is shared before it is signed."""

    def __init__(self, inner: GroupExchange, alter: Callable[[RolloutGroup], RolloutGroup]) -> None:
        self._inner = inner
        self._alter = alter

    def share_all(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        return self._inner.share_all([self._alter(group) for group in groups])


class OneHalves(Halving):
    """The first completion of a group halves, the others guess the same number again and again."""

    def _next(self, past: Past) -> int:
        first = past.steps[0].token_ids[0]
        return super()._next(past) if first == 1 else first


class TwoOrSix(InlineVerifier):
    """Draws episodes whose number is 2 or 6: only who halves from 1 finds them in three turns, not in two."""

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        drawn = super().draw(seed, 10 * start, 10 * count)
        chosen = [question for question in drawn if hidden(GAME, seed, question.ref.index) in (2, 6)]
        assert len(chosen) >= count
        return chosen[:count]


def player(swarm: Swarm, seed: int, updater: FakeUpdater, **parts: object) -> SapoNode:
    return swarm.node(seed, engine=OneHalves(), verifier=TwoOrSix([GAME]), updater=updater, **parts)


def of_episodes(change: Callable[[Completion], Completion]) -> Callable[[RolloutGroup], RolloutGroup]:
    """Change the completions of several turns."""
    return lambda group: replace(group, completions=tuple(change(c) if c.turns else c for c in group.completions))


def another_seed(group: RolloutGroup) -> RolloutGroup:
    assert isinstance(group.question, EpisodeRef)
    seed = next(seed for seed in itertools.count(1_000) if hidden(GAME, seed, group.question.index) == 1)
    return replace(group, question=replace(group.question, seed=seed))


@pytest.mark.parametrize("token_ids", [False, True])
def test_a_receiver_trains_on_its_own_observations_and_returns(token_ids: bool) -> None:
    swarm, updater = Swarm(), FakeUpdater()
    sender = player(swarm, 1, FakeUpdater(), share=ShareSettings(token_ids=token_ids))
    receiver = player(swarm, 2, updater)
    sender.run_round()
    report = receiver.run_round()
    assert receiver.ledger.snapshot()["used_external"] == len(report.mix.external) == 2
    for graded in updater.batches[0][1]:
        assert graded.prompt == "Guess my number from 1 to 7."
        for index, completion in enumerate(graded.group.completions):
            observed = graded.observed(index)
            assert len(observed) == len(completion.by_turn()) - 1
            assert all(shown in ((Text("higher"),), (Text("lower"),)) for shown in observed)
            assert bool(completion.token_ids) == token_ids
            assert sum(turn.num_tokens for turn in completion.turns) in (0, len(completion.token_ids))


CHANGES: dict[str, Callable[[RolloutGroup], RolloutGroup]] = {
    "fewer turns": of_episodes(lambda c: with_turns(c, range(len(c.turns) - 1))),
    "more turns": of_episodes(lambda c: with_turns(c, [*range(len(c.turns)), 0])),
    "another order": of_episodes(lambda c: with_turns(c, range(len(c.turns))[::-1])),
    "other observations": of_episodes(lambda c: replace(c, observed=digest(((Text("?"),),) * (len(c.turns) - 1)))),
    "another seed": another_seed,
}


@pytest.mark.parametrize("what", CHANGES)
def test_nothing_is_trained_of_an_episode_that_was_changed(what: str) -> None:
    swarm, updater = Swarm(), FakeUpdater()
    sender, receiver = player(swarm, 1, FakeUpdater()), player(swarm, 2, updater)
    sender._own._exchange = Altering(sender._own._exchange, CHANGES[what])
    sender.run_round()
    receiver.run_round()
    counts = receiver.ledger.snapshot()
    assert counts["received"] == sender.ledger.snapshot()["shared"] > 0
    assert counts["dropped"] == {"episode_mismatch": counts["received"]}
    assert updater.batches[0][1] == [] and counts["used_external"] == 0
