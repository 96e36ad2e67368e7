"""Evaluation suites of a node that trains: when they are due, and where they are asked.

    evaluation.beside: false    round ─▶ suite: slice, receive, slice, receive, ... ─▶ next round     same engine
    evaluation.beside: true     round ─▶ next round ─▶ next round ─▶ ...
                                  └─▶ thread "evaluation": suite, with the weights of that round      separate process

Training waits for the first kind; groups that arrive meanwhile are still regraded. The second kind shares the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from swarm.config import NodeConfig
from swarm.environments.config import TaskConfig, VerificationSettings
from swarm.environments.sources.dataset import RowsTask
from swarm.environments.tools.custom import with_custom_tools
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import ConfigError, TaskError
from swarm.protocols import RolloutEngine, StreamingEngine, TaskVerifier
from swarm.suites.asking import SuiteRun
from swarm.suites.config import Suite, suite_in_run
from swarm.telemetry.records import NoteEvent, SuiteEvent

if TYPE_CHECKING:  # with torch, which an evaluation of an endpoint does without
    from swarm.policy.loading import Policy


def suites_of(config: NodeConfig, policy: Policy | None) -> dict[str, Suite]:
    """The suites of a configuration by name; without a `policy` an endpoint is asked. Raises `ConfigError`."""
    sampling = config.generation.sampling()
    settings = config.evaluation.suites
    suites = {name: suite_in_run(name, each, config.tasks, sampling) for name, each in settings.items()}
    for name, suite in suites.items():
        if policy is not None and suite.sampling.max_new_tokens >= policy.max_positions:
            raise ConfigError(
                f"evaluation.suites.{name}.sampling.max_new_tokens must be less than the {policy.max_positions} "
                f"positions of {policy.name}, got {suite.sampling.max_new_tokens}: that leaves no room for a question"
            )
    return suites


def open_verifier(tasks: Sequence[TaskConfig], settings: VerificationSettings) -> TaskVerifier:
    """A verifier of a suite's tasks; a run's own verifier must not know them, or others' groups on them would count.

    Raises `TaskError` for tasks that cannot be set up.
    """
    # As for a run's tasks: what a founder may have chosen is read without this user's token.
    lenient = all(task.public if isinstance(task, RowsTask) else task.is_replayable for task in tasks)
    pool = VerificationPool(tasks, settings, lenient)
    try:
        if left_out := pool.wait_until_ready():
            raise TaskError("; ".join(left_out.values()))
        return with_custom_tools(pool, tasks)
    except TaskError:
        pool.close()
        raise


@contextmanager
def suite_run(suite: Suite, engine: RolloutEngine, config: NodeConfig) -> Iterator[SuiteRun]:
    """An evaluation of a suite, with a separate verifier until the block ends. Raises `TaskError`."""
    with closing(open_verifier(suite.tasks, config.verification)) as verifier:
        yield SuiteRun(suite, engine, verifier, config.evaluation.stream, config.generation.max_batch_sequences)


class NodeSuites:
    """Asks a node's suites and writes their events."""

    def __init__(
        self,
        config: NodeConfig,
        policy: Policy,
        write: Callable[[SuiteEvent | NoteEvent], None],
        cancelled: Callable[[], bool],
        between: Callable[[], None],
    ) -> None:
        """`write` takes events from any thread; `between` is called between slices while training waits.

        Raises `ConfigError`.
        """
        if config.evaluation.beside and policy.ranks.size > 1:
            raise ConfigError(f"evaluation.beside must be false with {policy.ranks.size} processes for one policy")
        self._suites = suites_of(config, policy)
        self._config = config
        self._policy = policy
        self._write = write
        self._cancelled = cancelled
        self._between = between
        self._thread = ThreadPoolExecutor(1, "evaluation") if self._suites and config.evaluation.beside else None
        self._engine: StreamingEngine | None = None
        """The engine of the evaluation beside training that was begun last."""
        self._beside: Future[None] | None = None
        """That evaluation, until its result is collected."""
        self._begun = 0
        """Its round."""

    def before_the_first_round(self, engine: RolloutEngine) -> None:
        """Ask every suite. Raises what engine and verifier raise."""
        self._ask_or_begin(engine, 0, list(self._suites.values()))

    def after_round(self, engine: RolloutEngine, round: int, last: bool) -> None:
        """Ask the suites that are due; after the last round those of `after_the_last` are.

        Raises what engine and verifier raise, also of a finished evaluation beside training.
        """
        if self._beside is not None and self._beside.done():
            self._collect()
        due = [suite for suite in self._suites.values() if suite.every_rounds and round % suite.every_rounds == 0]
        if due and not last:
            self._ask_or_begin(engine, round, due)

    def after_the_last(self, engine: RolloutEngine, round: int) -> None:
        """Wait for an evaluation beside training, then ask every suite. Raises what engine and verifier raise."""
        self._collect()
        self._ask(engine, round, self._suites.values(), lambda: None)  # others' groups have no use any more

    def close(self) -> None:
        """End an evaluation beside training, whose suite is then lost."""
        if self._engine is not None:
            self._engine.close()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def _ask_or_begin(self, engine: RolloutEngine, round: int, suites: Sequence[Suite]) -> None:
        if self._thread is None:
            self._ask(engine, round, suites, self._between)
        elif self._beside is not None:
            names = ", ".join(suite.name for suite in suites)
            text = f"not evaluated after round {round}: {names}; the evaluation of round {self._begun} is not finished"
            self._note(text, "warning")
        elif suites:
            # Made here, in the thread that trains: it copies the weights as they are now.
            from swarm.engines.process.engine import ProcessEngine

            self._engine = ProcessEngine(self._policy, self._config.policy, self._config.generation, self._cancelled)
            self._begun = round
            self._beside = self._thread.submit(self._ask_beside, self._engine, round, suites)

    def _ask_beside(self, engine: StreamingEngine, round: int, suites: Sequence[Suite]) -> None:
        with closing(engine):
            self._ask(engine, round, suites, lambda: None)

    def _collect(self) -> None:
        """Wait for the evaluation beside training, if there is one, and raise what it raised."""
        if self._beside is not None:
            beside, self._beside = self._beside, None
            beside.result()

    def _ask(self, engine: RolloutEngine, round: int, suites: Iterable[Suite], between: Callable[[], None]) -> None:
        for suite in suites:
            began = time.monotonic()
            with suite_run(suite, engine, self._config) as run:
                self._note(f"asking suite {suite.name}: {run.num_questions:,} questions, {suite.k} completions each")
                while not run.done:
                    run.step()
                    between()
            self._write(
                SuiteEvent(
                    time=time.time(),
                    round=round,
                    suite=suite.name,
                    k=suite.k,
                    scores=run.scores(),
                    tasks=run.scores_by_task(),
                    seconds=time.monotonic() - began,
                )
            )

    def _note(self, text: str, level: str = "info") -> None:
        self._write(NoteEvent(time=time.time(), text=text, level=level))
