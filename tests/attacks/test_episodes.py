"""Altered episodes, sent by a stranger to a live node beside another's honest ones: none of them is trained on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from swarm.config import load_config
from swarm.environments.config import TaskConfig
from swarm.environments.episodes.number_guessing import NumberGuessingTask
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.verification.inline import InlineVerifier
from swarm.groups.episodes import digest, joined
from swarm.telemetry.samples import read
from swarm.types import (
    HELD_OUT_STREAMS,
    Completion,
    EpisodeRef,
    Grade,
    Observation,
    PolicyId,
    RolloutGroup,
    Sampling,
    Text,
)
from tests.environments.test_episodes import hidden
from tests.groups.test_episodes import with_turns
from tests.net.records import until
from tests.nodes.processes import Swarm, address_of

from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "number-guessing.yaml"
(GAME,) = load_config(EXAMPLE).config.tasks
assert isinstance(GAME, NumberGuessingTask) and (GAME.highest, GAME.max_turns) == (3, 2)
WITH_TOOL = ReasoningGymTask(name="gcd", tool="calculator", max_turns=2, ask="")
NUM_HONEST = 8
Change = Callable[[RolloutGroup], RolloutGroup]


class Player:
    """Plays episodes of two turns, as a peer with this name would share them."""

    def __init__(self, peer_id: str, run_id: str, stream: int, first: int = 1) -> None:
        """Episodes of one stream; its groups are numbered from `first` on."""
        self._peer_id = peer_id
        self._run_id = run_id
        tasks: list[TaskConfig] = [GAME, WITH_TOOL]
        self._verifier = InlineVerifier(tasks)
        self._stream = stream
        self._sequence = count(first)

    def group(self, change: Change = lambda group: group) -> RolloutGroup:
        """One episode that finds the number and one that does not; then changed."""
        sequence = next(self._sequence)
        (question,) = self._verifier.draw(self._stream, sequence, 1, GAME.name)
        assert isinstance(question.ref, EpisodeRef)
        first, second = wrong_guesses(question.ref)
        guesses = ((first, second), (first, hidden(GAME, self._stream, sequence)))
        group = RolloutGroup(
            run_id=self._run_id,
            peer_id=self._peer_id,
            sequence=sequence,
            created_at=time.time(),
            policy=PolicyId("tiny", "", 0),
            sampling=Sampling(),
            question=question.ref,
            completions=tuple(self._episode(question.ref, *each) for each in guesses),
            rewards=(0.0, 1.0),
        )
        return change(group)

    def with_tool(self, output: str) -> RolloutGroup:
        """A group whose episodes called a calculator, which is said to have answered with `output`."""
        group = self.group()
        (question,) = self._verifier.draw(self._stream, group.sequence, 1, WITH_TOOL.name)
        turns = [Completion("<tool>2 * 3</tool>", "stop"), Completion("<answer>6</answer>", "stop")]
        return replace(group, question=question.ref, completions=(joined(turns, ((Text(output, "calculator"),),)),) * 2)

    def _episode(self, ref: EpisodeRef, *guesses: int) -> Completion:
        (grade,) = self._verifier.grade([(ref, [tuple(map(str, guesses))])])
        assert isinstance(grade, Grade)
        return said(guesses, grade.observed(0)[: len(guesses) - 1])


def _fields(*tasks: TaskConfig) -> list[dict[str, object]]:
    return [task.model_dump(mode="json") for task in tasks]


def said(guesses: tuple[int, ...], observations: tuple[Observation, ...]) -> Completion:
    return joined([Completion(str(guess), "stop") for guess in guesses], observations)


def wrong_guesses(ref: EpisodeRef) -> list[int]:
    number = hidden(GAME, ref.seed, ref.index)
    return [guess for guess in range(1, GAME.highest + 1) if guess != number]


def each(change: Callable[[Completion], Completion]) -> Change:
    """Change every episode of a group."""
    return lambda group: replace(group, completions=tuple(map(change, group.completions)))


def another_seed(group: RolloutGroup) -> RolloutGroup:
    """The start of an episode whose number is the first guess of these."""
    assert isinstance(group.question, EpisodeRef)
    first, index = wrong_guesses(group.question)[0], group.question.index
    seed = next(seed for seed in count(1_000) if hidden(GAME, seed, index) == first)
    return replace(group, question=replace(group.question, seed=seed))


def another_answer(group: RolloutGroup) -> RolloutGroup:
    """As if the environment had not answered its first, right guess with the end, and the policy had gone on."""
    assert isinstance(group.question, EpisodeRef)
    number, other = hidden(GAME, group.question.seed, group.question.index), wrong_guesses(group.question)[0]
    told = ((Text("higher" if number < other else "lower"),),)
    return replace(group, completions=(said((number, other), told), group.completions[1]))


CHANGES: dict[str, Change] = {
    "an observation": each(lambda c: replace(c, observed=digest(((Text("equal"),),)))),
    "no observation": each(lambda c: replace(c, observed="")),
    "what the environment answered, and the turns after it": another_answer,
    "the seed": another_seed,
    "the order of turns": each(lambda c: with_turns(c, (1, 0))),
    "fewer turns": each(lambda c: with_turns(c, (0,))),
    "more turns": each(lambda c: with_turns(c, (0, 1, 1))),
}


def test_altered_episodes_are_refused_with_their_reason_and_honest_ones_are_trained_on(
    tmp_path: Path, victims: Callable[..., Swarm], strangers: Callable[..., Stranger]
) -> None:
    keep_all = ("--telemetry.samples_per_outcome=1000", "--plausibility.slack_nats=1000")
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({**yaml.safe_load(EXAMPLE.read_text()), "tasks": _fields(GAME, WITH_TOOL)}))
    peer = victims(tmp_path / "peer", "join", str(config), "--evaluation.num_questions=0", *keep_all)
    liar, friend = strangers("liar"), strangers("friend")
    address = address_of(peer)
    for stranger in (liar, friend):
        (victim,) = stranger.connect(address)
        run_id = stranger.manifest(victim).run_id
        stranger.follow(run_id)
    for stranger in (liar, friend):
        until(lambda stranger=stranger: any(sender == victim for sender, _ in stranger.heard), "gossip of the peer")

    lies = Player(liar.peer_id, run_id, stream=1)
    sent = [(liar, lies.group(change)) for change in CHANGES.values()]
    sent += [(liar, lies.with_tool("7")), (liar, lies.with_tool("6"))]
    cheat = Player(liar.peer_id, run_id, stream=HELD_OUT_STREAMS, first=len(sent) + 1)
    sent.append((liar, cheat.group()))
    honest = Player(friend.peer_id, run_id, stream=2)
    sent += [(friend, honest.group()) for _ in range(NUM_HONEST)]
    for stranger, group in sent:
        stranger.publish(run_id, stranger.seal(run_id, "group", group))

    # The calculator's true output is accepted: all that this group lacks is a difference in reward.
    expected = Counter(episode_mismatch=len(CHANGES) + 1, zero_advantage=1, held_out=1)

    def settled() -> bool:
        """Whether an update has used one of the friend's groups, and all of the liar's have been graded."""
        if (latest := peer.history().latest) is None or not latest.groups["used_external"]:
            return False
        return sum(latest.groups["dropped"].get(reason, 0) for reason in expected) >= expected.total()

    until(settled, "a verdict on all of them")
    samples = read(peer.out)
    assert Counter(sample.reason for sample in samples if sample.sender == liar.peer_id) == expected
    assert {sample.sender for sample in samples if sample.outcome == "used_external"} == {friend.peer_id}
    assert {sample.outcome for sample in samples if sample.sender == friend.peer_id} == {"used_external"}
    assert peer.history().latest.groups["used_external"] <= NUM_HONEST
    assert peer.process.poll() is None
