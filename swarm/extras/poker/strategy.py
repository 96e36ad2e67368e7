"""`swarm tasks strategy`: a policy's strategy in Kuhn poker, as an opponent for a later run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import yaml

from swarm.config import load_config
from swarm.engines.choice import choose_engine, open_engine
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import ConfigError
from swarm.extras.poker.tasks import KuhnTask
from swarm.groups.episodes import FinishedGroup, by_generate, run_episodes
from swarm.policy.loading import load_policy
from swarm.protocols import RolloutEngine
from swarm.types import EpisodeRef, Sampling
from swarm.types.thoughts import answer_of


def print_strategy(file: Path, overrides: Sequence[tuple[str, str]], num_hands: int, name: str) -> None:
    """Print a policy's strategy as an item of `strategies`.

    Raises `ConfigError` unless the configuration has one task of Kuhn poker.
    """
    config = load_config(file, None, os.environ, overrides).config
    tasks = [task for task in config.tasks if isinstance(task, KuhnTask)]
    if len(tasks) != 1:
        raise ConfigError(f"{file} must have one task of the kind kuhn_poker, got {len(tasks)}")
    policy = load_policy(config.policy)
    choice = choose_engine(config.generation, policy)
    with closing(open_engine(choice, policy, config.policy, config.generation)) as engine:
        found = strategy(engine, tasks[0], config.generation.sampling(), num_hands)
    print(
        yaml.safe_dump({"strategies": {name: {key: round(value, 3) for key, value in found.items()}}}, sort_keys=False)
    )


def strategy(engine: RolloutEngine, task: KuhnTask, sampling: Sampling, num_hands: int) -> dict[str, float]:
    """A policy's strategy, from hands that it plays against the task's opponents."""
    from swarm.extras.poker.games import Kuhn, played_strategy

    verifier = InlineVerifier([task])
    questions = verifier.draw(0, 0, num_hands)
    hands = []
    for index, played in run_episodes(by_generate(engine), verifier, questions, 1, sampling, seed=0):
        ref = questions[index].ref
        if isinstance(played, FinishedGroup) and isinstance(ref, EpisodeRef):
            hands.append((ref.seed, ref.index, [answer_of(turn.text) for turn in played.completions[0].by_turn()]))
    return played_strategy(Kuhn(task.chosen, task.style == "compact"), hands)
