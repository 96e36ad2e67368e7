"""`swarm tasks`: what can be learned, and what a configuration asks of a model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct, structs
from rich.console import Console
from rich.text import Text

from nodes.boot.resolve import fitted
from nodes.commands.watching import in_words
from nodes.console import literal_console, policy_progress, say
from swarm.config import NodeConfig, load_config
from swarm.engines.choice import choose_engine, open_engine
from swarm.environments.answering import FindRule, FindSettings
from swarm.environments.judge import with_raters
from swarm.environments.scoring.finding import finder
from swarm.environments.scoring.grading import exact
from swarm.environments.sources.reasoning_gym import CatalogueEntry, catalogue
from swarm.environments.tools.custom import with_custom_tools
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import ConfigError, TaskError
from swarm.groups.episodes import FinishedGroup, by_generate, run_episodes
from swarm.opponents import TURNS, UNREAD
from swarm.policy.loading import load_policy
from swarm.protocols import RolloutEngine, TaskVerifier, Verifier
from swarm.sanitize import clean_lines
from swarm.telemetry.samples import why
from swarm.types import Completion, Observation, Question, Rejection, Sampling, TaskRef, as_text, dialogue
from swarm.types.thoughts import CLOSE, OPEN, answer_of

MAX_EXAMPLE_CHARS = 240
DRAWS = 4
"""Times that questions are drawn, until enough differ: of a small file many are the same."""
WHOLE = 0.99
"""From here on nothing is missing."""
NOTHING_TO_LEARN = (
    "; training has nothing to learn from until some answers are rewarded: try easier questions or another model"
)
RULES: tuple[FindRule, ...] = ("last_number", "boxed", "tags")
"""Values of `find` that may suit where the task's own finds nothing."""


def list_tasks(pattern: str, as_json: bool, console: Console) -> None:
    """Print the tasks whose name contains `pattern`, each with an example and its options."""
    with console.status("making an example of every task"):
        entries = catalogue(pattern=pattern)
    if as_json:
        print(json.dumps([structs.asdict(entry) for entry in entries], indent=1))
        return
    for entry in entries:
        console.print(_described(entry))
    console.print(
        f"{len(entries)} ReasoningGYM tasks. A Hugging Face data set, local files and a task of your own are tasks "
        "too: items of `tasks` with `kind: dataset` and `kind: python`; see docs/tasks.md."
    )


def _described(entry: CatalogueEntry) -> Text:
    text = Text()
    text.append(entry.name, style="bold").append(f"  {entry.category}\n", style="dim")
    if entry.error:
        text.append(f"  no example: {entry.error}\n", style="yellow")
    else:
        text.append(f"  {_shortened(entry.question)}\n").append(
            f"  answer: {_shortened(entry.answer or '-')}\n", "green"
        )
    options = ", ".join(f"{name}={value}" for name, value in entry.options.items())
    return text.append(f"  options: {options}\n", style="dim")


def _shortened(text: str) -> str:
    line = " / ".join(text.splitlines())
    return line if len(line) <= MAX_EXAMPLE_CHARS else f"{line[:MAX_EXAMPLE_CHARS]}..."


class Episode(Struct, frozen=True):
    """One question with one answer."""

    task: str
    question: str
    completion: str
    """With several turns, their texts, with the environment's answers after `>`."""
    reward: float | None
    """None when there is no completion, or it was not graded."""
    problem: str = ""
    """Why not."""
    parts: dict[str, float] = {}
    """Its named rewards, for a task that has them."""
    expected: str = ""
    """The right answer; empty where there is no single one."""
    found: str | None = None
    """What counted as the answer; empty where there was none, None where none is looked for."""
    is_cut: bool = False
    """Whether it ended at `generation.max_new_tokens`."""


def try_tasks(
    file: Path,
    overrides: Sequence[tuple[str, str]],
    num_questions: int,
    num_answers: int,
    as_json: bool,
    console: Console,
) -> None:
    """Print the first questions of the tasks with the policy's completions and rewards, one by one.

    A single answer is the most likely one; several are sampled as in training. Raises `TaskError` for tasks that cannot
    be set up, before the policy is loaded.
    """
    loaded, lines = fitted(load_config(file, None, os.environ, overrides))
    config = loaded.config
    sampling = config.generation.sampling()
    if num_answers == 1:
        sampling = structs.replace(sampling, top_k=1)
    found: list[Episode] = []
    with closing(_open_verifier(config)) as verifier:
        questions = _distinct(verifier, config.seed or 0, num_questions)
        with policy_progress(literal_console(stderr=True), config.policy.model) as progress:
            policy = load_policy(config.policy, progress=progress)
        choice = choose_engine(config.generation, policy)
        if not as_json:
            for line in lines:
                say(console, line)
            console.print(_head(policy.system_prompt, sampling, num_answers), soft_wrap=True)
        with closing(open_engine(choice, policy, config.policy, config.generation)) as engine:
            for number, question in enumerate(questions, start=1):
                with console.status(f"question {number} of {len(questions)}"):
                    answered = play(engine, verifier, [question], sampling, num_answers)
                found += answered
                if not as_json:
                    console.print(_describe(answered), soft_wrap=True)
        if failures := verifier.counters().get("scorer_failures", 0):
            times = "once" if failures == 1 else f"{failures} times"
            print(f"warning: a reward function failed {times}: such completions get reward 0", file=sys.stderr)
        if unread := verifier.counters().get(UNREAD, 0):
            turns = verifier.counters()[TURNS]
            print(f"warning: the opponent named no legal move in {unread} of its {turns} turns", file=sys.stderr)
    if as_json:
        print(json.dumps([structs.asdict(episode) for episode in found], indent=1))
    else:
        console.print(Text(summary(found)), soft_wrap=True)


def _open_verifier(config: NodeConfig) -> TaskVerifier:
    pool = VerificationPool(config.tasks, config.verification)
    try:
        return with_raters(with_custom_tools(pool, config.tasks), config.tasks, config.raters)
    except (ConfigError, TaskError):
        pool.close()
        raise


def _distinct(verifier: TaskVerifier, seed: int, count: int) -> list[Question]:
    """The first questions that differ, of at most `DRAWS` times as many: a small file has no more."""
    found: dict[TaskRef, Question] = {}
    for start in range(0, count * DRAWS, count):
        for question in verifier.draw(seed, start, count):
            found.setdefault(question.ref, question)
        if len(found) >= count:
            break
    return list(found.values())[:count]


def play(
    engine: RolloutEngine,
    verifier: Verifier,
    questions: Sequence[Question],
    sampling: Sampling,
    num_answers: int = 1,
) -> list[Episode]:
    """Answer each question so many times."""
    games = dict(run_episodes(by_generate(engine), verifier, questions, num_answers, sampling, seed=0))
    return [each for index, question in enumerate(questions) for each in _episodes(question, games[index])]


def _episodes(question: Question, played: FinishedGroup | Rejection) -> Iterator[Episode]:
    asked = (question.ref.task, as_text(question.prompt))
    if isinstance(played, Rejection):
        yield Episode(*asked, "", None, f"{played.reason}: {played.detail}")
        return
    verdict = played.grading.result()
    for index, completion in enumerate(played.completions):
        if isinstance(verdict, Rejection):
            yield Episode(*asked, _shown(completion), None, f"{verdict.reason}: {verdict.detail}")
            continue
        yield Episode(
            *asked,
            _shown(completion, verdict.observed(index)),
            verdict.rewards[index],
            parts={name: values[index] for name, values in verdict.parts.items()},
            expected=verdict.expected,
            found=verdict.found[index] if verdict.found else None,
            is_cut=completion.finish_reason == "length",
        )


def _shown(completion: Completion, observations: Sequence[Observation] = ()) -> str:
    """A thought has its marks, what the environment said follows `>`."""
    form = {"thought": f"{OPEN}{{}}{CLOSE}", "policy": "{}", "environment": "> {}"}
    return "\n".join(form[speaker].format(text) for speaker, text in dialogue(completion, observations))


def _head(system_prompt: str | None, sampling: Sampling, num_answers: int) -> Text:
    """How the questions are asked."""
    how = "the most likely answer to each question" if num_answers == 1 else f"{num_answers} sampled answers a question"
    text = Text().append("system prompt: ", style="dim").append(system_prompt or "none").append("\n")
    return text.append(f"{how}, at most {sampling.max_new_tokens} tokens\n", style="dim")


def _describe(answers: Sequence[Episode]) -> Text:
    """A question with its answers; everything in it may be anybody's."""
    first = answers[0]
    text = Text().append(first.task, style="bold").append("\n")
    lines = [("question", first.question), *([("expected", first.expected)] if first.expected else [])]
    for title, content in lines:
        text.append(f"  {title}: ", style="dim").append(_indented(content)).append("\n")
    for episode in answers:
        graded = f"reward {episode.reward:g}{in_words(episode.parts)}" if episode.reward is not None else ""
        is_whole = episode.found is not None and episode.found.strip() == answer_of(episode.completion).strip()
        reason = "" if is_whole else why(episode.reward, "", episode.found)
        result = f"{graded}; {reason}" if graded and reason else graded or f"not graded: {episode.problem}"
        text.append("  answer: ", style="dim").append(_indented(episode.completion)).append("\n")
        text.append(f"  {_indented(result)}\n", style="green" if episode.reward else "yellow")
    return text


def _indented(content: str) -> str:
    return clean_lines(content).replace("\n", "\n    ")


def summary(found: Sequence[Episode]) -> str:
    """How many answers are rewarded, and what to change when hardly any is."""
    graded = [episode for episode in found if episode.reward is not None]
    rewarded = [episode for episode in graded if episode.reward]
    line = f"{len(rewarded)} of {len(found)} rewarded"
    if len(graded) < len(found):
        line += f", {len(found) - len(graded)} not graded"
    if rewarded and min(episode.reward or 0.0 for episode in graded) >= WHOLE:
        return f"{line}: there may be little left to learn; training needs right and wrong answers to a question"
    unfound = [episode for episode in graded if not episode.reward and episode.found == ""]
    if unfound:
        line += f": no answer was found in {len(unfound)}"
        if endless := sum(episode.completion.endswith(CLOSE) for episode in unfound):
            line += (
                f", {endless} of which are thoughts without an end (generation.max_new_tokens, "
                "generation.max_thinking_tokens)"
            )
    advice = _advice([episode for episode in graded if not episode.reward])
    if rewarded:
        return f"{line}{advice}" if unfound else line
    return f"{line}{advice or NOTHING_TO_LEARN}"


def _advice(graded: Sequence[Episode]) -> str:
    """What would find the expected answers in these completions without reward; empty where nothing is known."""
    if not graded:
        return "; no answer was graded: each says why"
    if cut := sum(episode.is_cut for episode in graded):
        return f"; {cut} without reward were cut off: raise generation.max_new_tokens, or ask for short answers"
    known = [episode for episode in graded if episode.expected]
    counts = {rule: sum(_finds(rule, episode) for episode in known) for rule in RULES}
    best = max(counts, key=lambda rule: counts[rule])
    if counts[best]:
        return f"; `find: {best}` in the task finds the expected answer in {counts[best]} of {len(known)}"
    within = sum(episode.expected.casefold() in answer_of(episode.completion).casefold() for episode in known)
    if within:
        return (
            f"; the expected answer is in {within} of {len(known)} completions: set `ask` and `find` to a form that "
            "the model keeps to, or look for it with a `scorer` (swarm docs tasks#a-custom-task-and-reward)"
        )
    return ""


def _finds(rule: FindRule, episode: Episode) -> bool:
    answer = finder(FindSettings(find=rule))(answer_of(episode.completion))
    return answer is not None and exact(answer, episode.expected)
