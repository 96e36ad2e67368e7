"""Custom tools, whose calls no other node can replay with the same result: a search, a shell, a service.

They run in the node's process, as the user's code with the user's rights, and never in a worker. A worker leaves each
call as a `PendingCall` in its replay; here the call is made once and its result kept, so that later replays of the same
episode show the same. Others' episodes never call them: their results are self-reported, and count if this node trusts
the author (`swarm/received/intake.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock

from msgspec.structs import replace

from swarm.environments.code import load
from swarm.environments.config import TaskConfig
from swarm.environments.sources.lru import LruCache
from swarm.errors import TaskError
from swarm.protocols import TaskVerifier
from swarm.types import (
    MAX_RESULT_CHARS,
    Actions,
    Grade,
    Observation,
    PendingCall,
    Question,
    Rejection,
    TaskRef,
    ToolResult,
    by_turn,
)
from swarm.types.calls import read_object

logger = logging.getLogger(__name__)

CustomTool = Callable[[str], str]
"""The result of a call, which the policy wrote: a tool must be safe with any text."""
OwnTools = Mapping[str, Mapping[str, CustomTool]]
"""Tools by task and name."""
NUM_RESULTS = 4_096
NUM_THREADS = 8
"""Groups whose calls are made at a time."""

_Key = tuple[TaskRef, tuple[str, ...], int]
"""An episode up to a call: its start, the policy's turns, and which result of the last one it is."""


def with_custom_tools(verifier: TaskVerifier, configs: Iterable[TaskConfig]) -> TaskVerifier:
    """The verifier, which also calls this node's custom tools that the tasks name. Raises `TaskError`."""
    tools = {
        config.name: {name: _loaded(config.name, *named) for name, named in config.custom_tools.items()}
        for config in configs
        if config.custom_tools
    }
    return CustomTools(verifier, tools) if tools else verifier


def _loaded(task: str, target: str, takes_arguments: bool) -> CustomTool:
    found = load(target)
    if not callable(found):
        raise TaskError(f"task {task!r}: {target} must be a function (call) -> result, got {found!r}")
    return partial(_with_arguments, found) if takes_arguments else found


def _with_arguments(tool: Callable[..., str], call: str) -> str:
    """The result of a function of several arguments; `call` is their JSON object."""
    return tool(**read_object(call))


class CustomTools:
    """Implements `TaskVerifier` by another one."""

    def __init__(self, verifier: TaskVerifier, tools: OwnTools) -> None:
        """`verifier` leaves their calls open."""
        self._verifier = verifier
        self._tools = tools
        self._results: LruCache[_Key, str] = LruCache(NUM_RESULTS)
        self._lock = Lock()
        self._failures: Counter[str] = Counter(tool_failures=0)
        self._threads = ThreadPoolExecutor(NUM_THREADS, "tools")

    def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        """Grade an own group. See `Verifier`."""
        return self._completed(ref, texts, self._verifier.begin_grading(ref, texts))

    def replay(self, ref: TaskRef, actions: Actions) -> Future[Grade | Rejection]:
        """An own episode so far. See `Verifier`."""
        return self._completed(ref, [actions], self._verifier.replay(ref, actions))

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[Actions]]]) -> list[Grade | Rejection]:
        """Grade own groups and wait. See `Verifier`."""
        pending = [self.begin_grading(ref, texts) for ref, texts in jobs]
        return [verdict.result() for verdict in pending]

    def draw(self, seed: int, start: int, count: int, task: str = "") -> list[Question]:
        """See `TaskVerifier`."""
        return self._verifier.draw(seed, start, count, task)

    def num_held_out(self, task: str) -> int | None:
        """See `TaskVerifier`."""
        return self._verifier.num_held_out(task)

    def submit(self, key: str, ref: TaskRef, texts: Sequence[Actions], sender: str = "") -> None:
        """Queue another's group; its calls stay open. See `Verifier`."""
        self._verifier.submit(key, ref, texts, sender)

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        """See `Verifier`."""
        return self._verifier.collect()

    def counters(self) -> dict[str, int]:
        """See `Verifier`; `tool_failures`: calls for which a custom tool failed."""
        return {**self._verifier.counters(), **self._failures}

    def close(self) -> None:
        """Make no more calls, and close the other verifier."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._verifier.close()

    def _completed(
        self, ref: TaskRef, texts: Sequence[Actions], grading: Future[Grade | Rejection]
    ) -> Future[Grade | Rejection]:
        if ref.task not in self._tools:
            return grading
        return self._threads.submit(self._complete, ref, tuple(texts), grading)

    def _complete(
        self, ref: TaskRef, texts: tuple[Actions, ...], grading: Future[Grade | Rejection]
    ) -> Grade | Rejection:
        grade = grading.result()
        if isinstance(grade, Rejection):
            return grade
        shown = (self._shown(ref, actions, grade.observed(index)) for index, actions in enumerate(texts))
        return replace(grade, observations=tuple(shown) if grade.observations else ())

    def _shown(self, ref: TaskRef, actions: Actions, observations: tuple[Observation, ...]) -> tuple[Observation, ...]:
        turns = by_turn(actions)
        return tuple(
            tuple(
                ToolResult(self._result((ref, turns[: number + 1], place), part), part.tool)
                if isinstance(part, PendingCall)
                else part
                for place, part in enumerate(observation)
            )
            for number, observation in enumerate(observations)
        )

    def _result(self, key: _Key, call: PendingCall) -> str:
        with self._lock:
            kept = self._results.get(key)
        if kept is not None:
            return kept
        result = self._call(self._tools[key[0].task][call.tool], call.text)
        with self._lock:  # another thread may have made the same call meanwhile: the first result counts
            if (kept := self._results.get(key)) is None:
                self._results.put(key, result)
        return result if kept is None else kept

    def _call(self, tool: CustomTool, call: str) -> str:
        try:
            return str(tool(call))[:MAX_RESULT_CHARS]
        except Exception as error:  # the user's own code
            self._failures["tool_failures"] += 1
            logger.debug("a custom tool raised %r", error)
            return f"error: {type(error).__name__}: {error}"[:MAX_RESULT_CHARS]
