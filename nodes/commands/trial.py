"""`swarm tasks try`: some episodes of a configuration's tasks, before a run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct, structs
from rich.console import Console
from rich.text import Text

from swarm.config import load_config
from swarm.engines.choice import choose_engine, open_engine
from swarm.environments.verification.pool import VerificationPool
from swarm.foreign import clean_lines
from swarm.policy.loading import load_policy
from swarm.protocols import RolloutEngine, Verifier
from swarm.types import Answers, Question, Rejection, Sampling, as_text


class Episode(Struct, frozen=True):
    """One question, answered once."""

    task: str
    question: str
    completion: str
    reward: float | None
    """None when there is no completion, or it was not graded."""
    problem: str = ""
    """Why not."""


def try_tasks(
    file: Path, overrides: Sequence[tuple[str, str]], num_questions: int, as_json: bool, console: Console
) -> None:
    """Print the first questions of the tasks with the policy's completions and rewards.

    Raises `TaskError` for tasks that cannot be set up, before the policy is loaded.
    """
    config = load_config(file, None, os.environ, overrides).config
    with closing(VerificationPool(config.tasks, config.verification)) as verifier:
        questions = verifier.draw(config.seed or 0, 0, num_questions)
        policy = load_policy(config.policy)
        choice = choose_engine(config.generation, policy)
        with (
            console.status(f"asking {num_questions} questions"),
            closing(open_engine(choice, policy, config.policy, config.generation)) as engine,
        ):
            episodes = play(engine, verifier, questions, config.generation.sampling())
    if as_json:
        print(json.dumps([structs.asdict(episode) for episode in episodes], indent=1))
        return
    for episode in episodes:
        console.print(_describe(episode), soft_wrap=True)


def play(engine: RolloutEngine, verifier: Verifier, questions: Sequence[Question], sampling: Sampling) -> list[Episode]:
    """Answer each question once."""
    answers = engine.generate([question.prompt for question in questions], 1, sampling, seed=0)
    return [_episode(verifier, question, answer) for question, answer in zip(questions, answers, strict=True)]


def _episode(verifier: Verifier, question: Question, answer: Answers) -> Episode:
    asked = (question.ref.task, as_text(question.prompt))
    if isinstance(answer, Rejection):
        return Episode(*asked, "", None, f"{answer.reason}: {answer.detail}")
    (verdict,) = verifier.grade([(question.ref, [answer[0].text])])
    if isinstance(verdict, Rejection):
        return Episode(*asked, answer[0].text, None, f"{verdict.reason}: {verdict.detail}")
    return Episode(*asked, answer[0].text, verdict.rewards[0])


def _describe(episode: Episode) -> Text:
    result = f"not graded: {episode.problem}" if episode.reward is None else f"reward {episode.reward:g}"
    text = Text().append(episode.task, style="bold").append(f"  {clean_lines(result)}\n", style="green")
    for title, content in (("question", episode.question), ("completion", episode.completion)):
        text.append(f"  {title}: ", style="dim").append(clean_lines(content).replace("\n", "\n    ")).append("\n")
    return text
