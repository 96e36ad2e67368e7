"""`swarm evaluate`: measures a policy on held-out questions."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from nodes import exits
from nodes.boot.directory import CHECKPOINTS
from nodes.console import literal_console, say
from nodes.roles.suites import suite_run, suites_of
from nodes.stop import StopRequest
from swarm.config import LoadedConfig, NodeConfig, Values, load_config
from swarm.environments.sources.dataset import is_hub_id
from swarm.environments.tools.custom import with_custom_tools
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import CheckpointError, ConfigError, Interrupted
from swarm.evaluation import Evaluation, evaluate as run_evaluation
from swarm.kinds import extra
from swarm.policy.config import BEHIND_ENDPOINT, MADE_HERE, check_model_path, prompt_of
from swarm.protocols import StreamingEngine
from swarm.sanitize import clean
from swarm.suites.config import Suite
from swarm.telemetry.intervals import wilson_interval
from swarm.telemetry.records import SuiteScores
from swarm.types import Sampling

EVERY_SUITE = "all"
NUM_QUESTIONS = 900
"""Held-out questions of the mixture, by default."""
PATIENCE_S = 60.0
"""For an endpoint that is gone or busy."""
FILTERS = ("top_p", "top_k", "min_p")
SAMPLING = ("temperature", *FILTERS, "max_new_tokens")


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at `path`, or the newest complete one in a peer's directory. Raises `CheckpointError`."""
    from swarm.training.checkpoint import MODEL, CheckpointStore, verify

    if (path / MODEL).is_dir():
        verify(path)
        return path
    for root in (path, path / CHECKPOINTS):
        if newest := CheckpointStore(root).newest():
            return newest
    raise CheckpointError(f"{path} is not a checkpoint and contains none")


class Asked(Struct, frozen=True):
    """What to evaluate, as the command line says."""

    model: str
    """A checkpoint, a node's directory, a model directory, `tiny` or the like, or a hub id."""
    file: Path | None
    """Configuration; None: the checkpoint's."""
    overrides: Sequence[tuple[str, str]]
    suites: tuple[str, ...] = ()
    """Without any: accuracy on the mixture of the run's tasks."""
    questions: int | None = None
    """Held-out questions of the mixture, or at most of each task of a suite."""


class SuiteResult(Struct, frozen=True):
    """A suite in the output with `--json`."""

    k: int
    complete: bool
    """Whether all questions were asked; otherwise the figures are of those that were."""
    scores: SuiteScores
    tasks: dict[str, SuiteScores]
    seconds: float


def evaluate(asked: Asked, as_json: bool, console: Console) -> int:
    """Print accuracies, or the figures of suites, and return the exit code.

    Ctrl-C prints what is known of the suites so far. Raises `CheckpointError`, `ConfigError`, `TaskError` and what
    loading a policy and generating raise.
    """
    from swarm.engines.choice import choose_engine, open_engine
    from swarm.policy.loading import load_policy

    source = _find(asked.model)
    loaded, remarks = _configured(asked, source)
    config = loaded.config
    _check_names(asked.suites, config)
    remarks += _suites_asked(loaded, asked.suites) if asked.suites else _how_asked(loaded)
    check_model_path(config.policy)
    stop = StopRequest()
    policy = load_policy(config.policy, source.weights)
    chosen = _chosen(asked, suites_of(config, policy))
    choice = choose_engine(config.generation, policy)
    engine = open_engine(choice, policy, config.policy, config.generation, stop)
    if not as_json:
        _say(console, str(choice), *remarks, f"system prompt: {policy.system_prompt or 'none'}")
    return _ask(asked, str(source.weights or asked.model), chosen, engine, config, stop, as_json, console)


def evaluate_endpoint(asked: Asked, as_json: bool, console: Console) -> int:
    """Like `evaluate`, for the model behind an endpoint: nothing is loaded here.

    Raises `EndpointError` when it cannot be asked, or is gone for long, besides what `evaluate` raises.
    """
    fields = [("policy.model", BEHIND_ENDPOINT), *asked.overrides]
    loaded = load_config(asked.file, None, os.environ, fields)
    config = loaded.config
    _check_names(asked.suites, config)
    prompt = prompt_of(config.policy)
    stop = StopRequest()
    notes = literal_console(stderr=True)
    engine = extra("give.engine").EndpointEngine(
        config.endpoint,
        system_prompt=prompt,
        patience_s=PATIENCE_S,
        cancelled=stop,
        note=lambda text, level: say(notes, text),
    )
    reported = clean(engine.probe())
    if not as_json:
        remarks = () if asked.suites else _how_asked(loaded)
        _say(console, f"endpoint: {reported} at {config.endpoint.url}", *remarks, f"system prompt: {prompt or 'none'}")
    return _ask(asked, reported, _chosen(asked, suites_of(config, None)), engine, config, stop, as_json, console)


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        say(console, line)


def _ask(
    asked: Asked,
    weights: str,
    chosen: Sequence[Suite],
    engine: StreamingEngine,
    config: NodeConfig,
    stop: Callable[[], bool],
    as_json: bool,
    console: Console,
) -> int:
    """Ask suites or the mixture, and close the engine; the exit code."""
    try:
        if chosen:
            _evaluate_suites(asked.model, chosen, engine, config, stop, as_json, console)
        else:
            _evaluate_mixture(weights, asked.questions or NUM_QUESTIONS, engine, config, as_json, console)
    except Interrupted:
        return exits.INTERRUPTED
    finally:
        engine.close()
    return exits.INTERRUPTED if stop() else exits.DONE


def _configured(asked: Asked, source: _Source) -> tuple[LoadedConfig, list[str]]:
    """The configuration, and what to say of what is left out. Raises `ConfigError` and `TaskError`."""
    from nodes.boot.resolve import fitted
    from nodes.commands.exported import exported_values

    fields = [*source.fields, *asked.overrides]
    saved, remarks = None if asked.file else source.saved, list[str]()
    if source.weights is not None and source.saved is None:
        saved, remarks = exported_values(source.weights, load_config(asked.file, None, os.environ, fields))
    loaded, _ = fitted(load_config(asked.file, saved, os.environ, fields))
    return loaded, remarks


def _how_asked(loaded: LoadedConfig) -> Iterator[str]:
    """The tasks and the sampling, and whether they are those of the training."""
    sampling = loaded.config.generation.sampling()
    yield f"tasks{_whose(loaded, 'tasks')}: {', '.join(task.name for task in loaded.config.tasks)}"
    yield f"sampling{_whose(loaded, *(f'generation.{each}' for each in SAMPLING))}: {_figures(sampling)}"
    if suites := loaded.config.evaluation.suites:
        yield f"not asked: the suites {', '.join(suites)} (--suite NAME, or --suite all)"


def _suites_asked(loaded: LoadedConfig, names: Sequence[str]) -> Iterator[str]:
    """The same of suites."""
    suites = loaded.config.evaluation.suites
    for name in suites if EVERY_SUITE in names else names:
        suite, below = suites[name], f"evaluation.suites.{name}."
        tasks = [each if isinstance(each, str) else each.name for each in suite.tasks or loaded.config.tasks]
        whose = _whose(loaded, *(path for path in loaded.origins if path.startswith(below)))
        figures = _figures(suite.sampling.over(loaded.config.generation.sampling()))
        yield f"suite {name}{whose}: {', '.join(tasks)}; {suite.k} completions a question; {figures}"


def _whose(loaded: LoadedConfig, *paths: str) -> str:
    return " as trained" if all(loaded.origins.get(path) == "manifest" for path in paths) else ""


def _figures(sampling: Sampling) -> str:
    filters = [f"{each} {getattr(sampling, each):g}" for each in FILTERS if getattr(sampling, each) not in (0, 1)]
    return ", ".join(
        [f"temperature {sampling.temperature:g}", *filters, f"at most {sampling.max_new_tokens} new tokens"]
    )


def _check_names(names: Sequence[str], config: NodeConfig) -> None:
    """Before anything slow. Raises `ConfigError`."""
    known = config.evaluation.suites
    for name in names:
        if name not in known and not (name == EVERY_SUITE and known):
            has = f"it has {', '.join(known)}" if known else "it has none: give one under evaluation.suites"
            raise ConfigError(f"--suite {name}: the configuration has no such suite; {has}")


def _chosen(asked: Asked, suites: dict[str, Suite]) -> list[Suite]:
    names = suites if EVERY_SUITE in asked.suites and EVERY_SUITE not in suites else dict.fromkeys(asked.suites)
    return [_at_most(suites[name], asked.questions) for name in names]


def _at_most(suite: Suite, questions: int | None) -> Suite:
    given = [number for number in (suite.questions, questions) if number is not None]
    return msgspec.structs.replace(suite, questions=min(given, default=None))


def _evaluate_mixture(
    weights: str, num_questions: int, engine: StreamingEngine, config: NodeConfig, as_json: bool, console: Console
) -> None:
    pool = VerificationPool(config.tasks, config.verification)
    with contextlib.closing(pool), contextlib.closing(with_custom_tools(pool, config.tasks)) as verifier:
        sampling, stream = config.generation.sampling(), config.evaluation.stream
        with console.status(f"asking {num_questions} held-out questions"):
            result = run_evaluation(engine, verifier, sampling, num_questions, stream)
    if as_json:
        print(json.dumps({"weights": weights, **_as_dict(result)}, indent=1))
    else:
        console.print(_as_table(result))


def _evaluate_suites(
    model: str,
    suites: Sequence[Suite],
    engine: StreamingEngine,
    config: NodeConfig,
    stop: Callable[[], bool],
    as_json: bool,
    console: Console,
) -> None:
    results: dict[str, SuiteResult] = {}
    for suite in suites:
        engine.check(suite.sampling)
        if not stop():
            results[suite.name] = _evaluate_suite(suite, engine, config, stop)
    if as_json:
        print(json.dumps({"model": model, "suites": msgspec.to_builtins(results)}, indent=1))
        return
    for name, result in results.items():
        console.print(_suite_table(name, result))
        for remark in _remarks(result):
            console.print(remark, style="yellow", highlight=False, soft_wrap=True)


def _evaluate_suite(suite: Suite, engine: StreamingEngine, config: NodeConfig, stop: Callable[[], bool]) -> SuiteResult:
    began = time.monotonic()
    with suite_run(suite, engine, config) as run:
        with _progress(suite.name, run.num_questions) as advance, contextlib.suppress(Interrupted):
            while not (run.done or stop()):
                run.step()
                advance(run.num_drawn)
        seconds = time.monotonic() - began
        return SuiteResult(suite.k, run.done, run.scores(), run.scores_by_task(), seconds)


@contextlib.contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where a terminal is; results alone go to standard output."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = literal_console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{name}: questions", total=total)
        yield lambda done: bar.update(task, completed=done)


class _Source(Struct, frozen=True):
    """Where a policy is, and what is known of its configuration."""

    weights: Path | None
    """None where the name of the model says it all."""
    saved: Values | None = None
    """The configuration that it was trained with."""
    fields: tuple[tuple[str, str], ...] = ()
    """Fields that follow from the name."""


def _find(model: str) -> _Source:
    """What a command line means by a model or run. Raises `CheckpointError`."""
    from swarm.training.checkpoint import CONFIG, MODEL

    path = Path(model)
    if not path.exists() and (model in MADE_HERE or is_hub_id(model)):
        return _Source(None, fields=(("policy.model", model),))
    if (path / "config.json").is_file() and not (path / MODEL).is_dir():
        return _Source(path, fields=(("policy.model", model),))
    checkpoint = find_checkpoint(path)
    return _Source(checkpoint / MODEL, json.loads((checkpoint / CONFIG).read_text()))


def _rows(result: Evaluation) -> list[tuple[str, int, int]]:
    rows = [(task, correct, asked) for task, (correct, asked) in result.tasks.items()]
    return [*rows, ("all", result.num_correct, result.num_questions)]


def _as_dict(result: Evaluation) -> dict[str, object]:
    return {
        task: {
            "correct": correct,
            "asked": asked,
            "accuracy": correct / asked,
            "interval": wilson_interval(correct, asked),
        }
        for task, correct, asked in _rows(result)
    }


def _as_table(result: Evaluation) -> Table:
    table = Table("task", "accuracy", "95% interval", "correct", "asked", box=None, pad_edge=False)
    for task, correct, asked in _rows(result):
        low, high = wilson_interval(correct, asked)
        accuracy = f"{correct / asked:.3f}" if asked else "-"
        table.add_row(task, accuracy, f"{low:.3f} - {high:.3f}", str(correct), str(asked))
    return table


def _suite_table(name: str, result: SuiteResult) -> Table:
    rows = [*result.tasks.items(), ("all", result.scores)] if len(result.tasks) > 1 else list(result.tasks.items())
    figures = list(result.scores.figures)
    table = Table(f"suite {name}", "questions", *figures, box=None, pad_edge=False)
    for task, scores in rows:
        found = [scores.figures.get(figure) for figure in figures]
        cells = [f"{each.value:.3f} ({each.low:.3f} - {each.high:.3f})" if each else "-" for each in found]
        table.add_row(task, str(scores.num_questions), *cells)
    return table


def _remarks(result: SuiteResult) -> Iterator[str]:
    """What someone who reads the figures should know."""
    scores = result.scores
    if not result.complete:
        yield "interrupted: the figures are of the questions asked until then"
    if scores.num_ungraded:
        yield f"{scores.num_ungraded} questions could not be graded and are left out"
    if scores.num_unanswered:
        yield f"{scores.num_unanswered} questions leave no room for an answer and count as wrong"
    completions = scores.num_questions * result.k
    if scores.num_cut_off > completions / 10:
        yield f"{scores.num_cut_off} of {completions} completions were cut off at max_new_tokens"
