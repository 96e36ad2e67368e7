"""Tokens per second of episodes with several turns, against about as many tokens of single turns.

There are two ways to count as many: `single turns`, a completion for each turn of an episode, with lengths from the
same distribution and hardly anything to attend to; and `one long turn`, a completion for each episode, as long as all
its turns, which attends to nearly as much. Both read their prompts in the time that is measured, once for all
completions of a prompt. All contenders sample at most 64 sequences at a time, of twice as many episodes: of only 64,
the last few would take a large part of the time. The environment answers at once: its time is not the engine's. `in
rounds` is an engine that keeps nothing between two calls: all episodes take a turn in one call, and their pasts are
read again.

At 25 M parameters, where a token takes as long as 20 of the embedded policy's, only what the target compares is
measured, and all lengths are nearly half.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.common.report import Row, row
from benchmarks.engine.generation import Outcome, Vllm, Workload, random_policy, timed
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.environments.episodes.number_guessing import NumberGuessingTask
from swarm.environments.verification.inline import InlineVerifier
from swarm.groups.episodes import FinishedGroup, Stream, by_generate, run_episodes
from swarm.policy.loading import Policy
from swarm.protocols import RolloutEngine
from swarm.types import Actions, EpisodeRef, Grade, Question, Rejection, Sampling, TaskRef, Text

TARGET = 0.8
CONCURRENT = 64
"""Sequences at a time."""


@dataclass(frozen=True)
class Episodes:
    """The episodes, and the single turns of like lengths."""

    turns: Workload
    num_turns: int = 6
    observation_tokens: int = 10

    @property
    def singles(self) -> Workload:
        """As many completions as the episodes have turns."""
        turns = self.turns
        return Workload(
            turns.num_prompts * self.num_turns,
            turns.num_completions,
            turns.prompt_tokens,
            turns.mean_tokens,
            turns.max_new_tokens,
            turns.static_rows,
        )

    @property
    def most_tokens(self) -> int:
        """Of all sequences at a time."""
        return self.turns.static_rows * 1_024

    def questions(self) -> list[Question]:
        """The starts of the episodes."""
        refs = [EpisodeRef("task", "environment", "", 0, index, "") for index in range(self.turns.num_prompts)]
        return [Question(ref, text, self.num_turns) for ref, text in zip(refs, self.turns.prompts(), strict=True)]


FULL = Episodes(Workload(16, 8, (16, 64), 48, 96, 2 * CONCURRENT))
SHORT = Episodes(Workload(16, 8, (9, 36), 27, 54, 2 * CONCURRENT), observation_tokens=5)
LOADS = {"0.13 M": FULL, "25 M": SHORT}
QUICK = Episodes(Workload(2, 4, (8, 16), 32, 40, 2 * CONCURRENT), num_turns=3, observation_tokens=8)


Way = Callable[[RolloutEngine, Episodes, Policy, Workload, int], list[int]]
"""(engine, episodes, policy, load of a turn, seed) -> lengths of turns"""


class Answering(InlineVerifier):
    """Answers every turn at once with so many letters; no episode ends before its last turn."""

    def __init__(self, episodes: Episodes) -> None:
        """It has a task, and replays nothing of it."""
        super().__init__((NumberGuessingTask(),))
        self._most = episodes.num_turns - 1
        self._answer = (Text("".join(random.Random(1).choices("abcdefgh", k=episodes.observation_tokens))),)

    def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        """The grade, at once."""
        turns = [1 if isinstance(actions, str) else len(actions) for actions in texts]
        verdict: Future[Grade | Rejection] = Future()
        observations = tuple((self._answer,) * min(number, self._most) for number in turns)
        verdict.set_result(Grade("", (0.0,) * len(texts), observations=observations))
        return verdict


def turns(size: str, quick: bool, repeats: int) -> tuple[list[Row], list[str]]:
    """The rows of one size of `LOADS`, with notes."""
    episodes, policy = QUICK if quick else LOADS[size], _policy(size)
    settings = GenerationSettings(max_batch_sequences=CONCURRENT, max_batch_tokens=episodes.most_tokens)
    ways = WAYS if episodes is not SHORT else COMPARED

    def run(way: Way, seed: int) -> Outcome:
        return timed(partial(way, TransformersEngine(policy, settings), episodes), policy, episodes.turns, seed)

    return _measured(f"{size} parameters", episodes, ways, run, repeats)


def turns_by_vllm(python: Path, quick: bool, repeats: int) -> tuple[list[Row], list[str]]:
    """What the target compares, by vLLM; the time is that of both processes."""
    # A smaller vocabulary: a request names at most 64 stop tokens.
    episodes, policy = QUICK if quick else SHORT, _policy("22 M")
    theirs = Vllm(policy, python, CONCURRENT, episodes.most_tokens)

    def run(way: Way, seed: int) -> Outcome:
        return timed(partial(way, theirs.engine(policy), episodes), policy, episodes.turns, seed, theirs.process_time)

    try:
        run(_single_turns, repeats)  # its first batch allocates memory
        return _measured("22 M parameters, vllm", episodes, COMPARED, run, repeats)
    finally:
        theirs.close()


def _policy(size: str) -> Policy:
    policy = random_policy(size)
    policy.model.config.max_position_embeddings = 1_024  # no episode may end early
    policy.stop_ids = frozenset()  # nor may a long turn: only the workload's stop tokens end a turn
    return policy


def _measured(
    title: str, episodes: Episodes, ways: Mapping[str, Way], run: Callable[[Way, int], Outcome], repeats: int
) -> tuple[list[Row], list[str]]:
    outcomes: dict[str, list[Outcome]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name, way in ways.items():
            outcomes[name].append(run(way, repeat))
    speeds = {name: [outcome.tokens_per_s for outcome in runs] for name, runs in outcomes.items()}
    rows = [row(f"{title}: {name}", values, "tokens/s") for name, values in speeds.items()]
    for name, base in product(("episodes", "episodes in rounds"), ("single turns", "one long turn")):
        if name in speeds and base in speeds:
            ratios = [value / other for value, other in zip(speeds[name], speeds[base], strict=True)]
            target = TARGET if name == "episodes" else None
            rows.append(row(f"{title}: {name} against {base}", ratios, "x", target=target))
    return rows, [_describe(title, episodes, {name: sum(runs[0].lengths) for name, runs in outcomes.items()})]


def _describe(title: str, episodes: Episodes, tokens: Mapping[str, int]) -> str:
    load = episodes.turns
    sampled = ", ".join(f"{number} {name}" for name, number in tokens.items())
    return (
        f"{title}, episodes: {load.num_prompts} questions of {load.prompt_tokens[0]} to {load.prompt_tokens[1]} "
        f"tokens, {load.num_completions} episodes of each, {episodes.num_turns} turns of at most "
        f"{load.max_new_tokens} tokens that end at random, {load.mean_tokens} on average without the limit; "
        f"observations of {episodes.observation_tokens + 2} tokens. At most {CONCURRENT} sequences at a time. "
        f"Tokens sampled by the first runs: {sampled}."
    )


def _sampling(load: Workload, policy: Policy) -> Sampling:
    return Sampling(max_new_tokens=load.max_new_tokens, stop_tokens=tuple(load.stop_tokens(policy)))


def _single_turns(engine: RolloutEngine, episodes: Episodes, policy: Policy, load: Workload, seed: int) -> list[int]:
    singles = episodes.singles
    answers = engine.generate(singles.prompts(), singles.num_completions, _sampling(load, policy), seed)
    return [len(each.token_ids) for group in answers if not isinstance(group, Rejection) for each in group]


def _long_turns(engine: RolloutEngine, episodes: Episodes, policy: Policy, load: Workload, seed: int) -> list[int]:
    tokens = load.mean_tokens * episodes.num_turns * 13 // 16  # the mean with the limit of a turn
    answers = engine.generate(load.prompts(), load.num_completions, Sampling(max_new_tokens=tokens), seed)
    return [len(each.token_ids) for group in answers if not isinstance(group, Rejection) for each in group]


def _episodes(engine: RolloutEngine, episodes: Episodes, policy: Policy, load: Workload, seed: int) -> list[int]:
    return _played(engine.stream, episodes, policy, load, seed)


def _in_rounds(engine: RolloutEngine, episodes: Episodes, policy: Policy, load: Workload, seed: int) -> list[int]:
    return _played(by_generate(engine), episodes, policy, load, seed)


def _played(stream: Stream, episodes: Episodes, policy: Policy, load: Workload, seed: int) -> list[int]:
    sampling, questions = _sampling(load, policy), episodes.questions()
    games = run_episodes(stream, Answering(episodes), questions, load.num_completions, sampling, seed)
    completions = [each for _, played in games if isinstance(played, FinishedGroup) for each in played.completions]
    return [turn.num_tokens for completion in completions for turn in completion.turns]


COMPARED: dict[str, Way] = {"single turns": _single_turns, "episodes": _episodes}
WAYS: dict[str, Way] = {**COMPARED, "one long turn": _long_turns, "episodes in rounds": _in_rounds}
