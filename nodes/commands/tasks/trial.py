"""`swarm tasks try`: some episodes of a configuration's tasks, before a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct, structs
from rich.console import Console
from rich.text import Text

from nodes.commands.watching.samples import in_words
from swarm.config import NodeConfig, load_config
from swarm.engines.choice import choose_engine, open_engine
from swarm.environments.tools.own import with_own_tools
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import ConfigError, TaskError
from swarm.foreign import clean_lines
from swarm.groups import episodes
from swarm.groups.episodes import Played, by_generate
from swarm.judging.opening import with_judge
from swarm.policy.loading import load_policy
from swarm.protocols import RolloutEngine, TaskVerifier, Verifier
from swarm.types import Completion, Observation, Question, Rejection, Sampling, as_text, dialogue


class Episode(Struct, frozen=True):
    """One question, answered once."""

    task: str
    question: str
    completion: str
    """Of several turns, with what the environment answered after `>`."""
    reward: float | None
    """None when there is no completion, or it was not graded."""
    problem: str = ""
    """Why not."""
    parts: dict[str, float] = {}
    """Its named rewards, for a task that has them."""


def try_tasks(
    file: Path, overrides: Sequence[tuple[str, str]], num_questions: int, as_json: bool, console: Console
) -> None:
    """Print the first questions of the tasks with the policy's completions and rewards.

    Raises `TaskError` for tasks that cannot be set up, before the policy is loaded.
    """
    config = load_config(file, None, os.environ, overrides).config
    with closing(_open_verifier(config)) as verifier:
        questions = verifier.draw(config.seed or 0, 0, num_questions)
        policy = load_policy(config.policy)
        choice = choose_engine(config.generation, policy)
        with (
            console.status(f"asking {num_questions} questions"),
            closing(open_engine(choice, policy, config.policy, config.generation)) as engine,
        ):
            played = play(engine, verifier, questions, config.generation.sampling())
        if failures := verifier.counters().get("scorer_failures", 0):
            times = "once" if failures == 1 else f"{failures} times"
            print(f"warning: a reward function failed {times}: such completions get reward 0", file=sys.stderr)
    if as_json:
        print(json.dumps([structs.asdict(episode) for episode in played], indent=1))
        return
    for episode in played:
        console.print(_describe(episode), soft_wrap=True)


def _open_verifier(config: NodeConfig) -> TaskVerifier:
    pool = VerificationPool(config.tasks, config.verification)
    try:
        return with_judge(with_own_tools(pool, config.tasks), config.tasks, config.judge)
    except (ConfigError, TaskError):
        pool.close()
        raise


def play(engine: RolloutEngine, verifier: Verifier, questions: Sequence[Question], sampling: Sampling) -> list[Episode]:
    """Answer each question once."""
    games = dict(episodes.play(by_generate(engine), verifier, questions, 1, sampling, seed=0))
    return [_episode(question, games[index]) for index, question in enumerate(questions)]


def _episode(question: Question, played: Played | Rejection) -> Episode:
    asked = (question.ref.task, as_text(question.prompt))
    if isinstance(played, Rejection):
        return Episode(*asked, "", None, f"{played.reason}: {played.detail}")
    completion, verdict = played.completions[0], played.grading.result()
    if isinstance(verdict, Rejection):
        return Episode(*asked, _shown(completion), None, f"{verdict.reason}: {verdict.detail}")
    parts = {name: values[0] for name, values in verdict.parts.items()}
    return Episode(*asked, _shown(completion, verdict.observed(0)), verdict.rewards[0], parts=parts)


def _shown(completion: Completion, observations: Sequence[Observation] = ()) -> str:
    said = dialogue(completion, observations)
    return "\n".join(text if speaker == "policy" else f"> {text}" for speaker, text in said)


def _describe(episode: Episode) -> Text:
    graded = f"reward {episode.reward:g}{in_words(episode.parts)}" if episode.reward is not None else ""
    result = graded or f"not graded: {episode.problem}"
    text = Text().append(episode.task, style="bold").append(f"  {clean_lines(result)}\n", style="green")
    for title, content in (("question", episode.question), ("completion", episode.completion)):
        text.append(f"  {title}: ", style="dim").append(clean_lines(content).replace("\n", "\n    ")).append("\n")
    return text
