"""Environments of the verifiers library (its API v1) in which one agent talks.

The policy replaces the agent's program and model: its seat offers environments what they use of verifiers' `Agent` and
`Interaction`. An episode is one conversation.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from swarm.distribution import how_to_install
from swarm.environments.code import code_digest, load
from swarm.environments.config import FileRows, StoredRows
from swarm.environments.digests import content_digest, digest, draw
from swarm.environments.randomness import OwnRandomness
from swarm.errors import TaskError
from swarm.extras.verifiers.task import VerifiersTask
from swarm.types import Observation, Terminal, Text

if find_spec("verifiers") is None:
    raise TaskError(f"verifiers is not installed: {how_to_install('verifiers')}")

from verifiers import __version__
from verifiers.v1.agent import Segment
from verifiers.v1.configs.agent import AgentConfig, agent_config_fields
from verifiers.v1.env import Env
from verifiers.v1.episode import EnvInfo, Episode
from verifiers.v1.graph import MessageNode
from verifiers.v1.session import call_hook, hook_boundary
from verifiers.v1.state import state_cls
from verifiers.v1.task import Task
from verifiers.v1.taskset import Taskset
from verifiers.v1.trace import AgentInfo, Trace, TraceTask, VersionInfo
from verifiers.v1.types import AssistantMessage, SystemMessage, TextContentPart, UserMessage, content_text
from verifiers.v1.utils.decorators import discover_decorated, invoke
from verifiers.v1.utils.loaders import load_environment, resolve_env_config, taskset_class

_SEEDS = 2**32
_TALK_ONLY = frozenset({"bash", "null"})
"""Programs of an agent that talk, and with `bash` have a shell: here, the policy only talks."""


class VerifiersEpisode:
    """Implements `Environment`: the library's own code asks, and scores the conversation when it is over.

    The return is the weighted sum of its rewards, cut to [0, 1].
    """

    def __init__(self, env: Any, tasks: list[Any]) -> None:
        """Call `reset` first."""
        self._env = env
        self._tasks = tasks
        self._randomness = OwnRandomness(0)

    def reset(self, seed: int, index: int) -> Observation:
        """Begin with a drawn row. See `Environment`."""
        self._randomness = OwnRandomness(draw(_SEEDS, "verifiers", seed, index))
        self._loop = Coroutines()
        self._seat = Seat(self._loop)
        row = self._tasks[draw(len(self._tasks), "row", seed, index)]
        self._play = self._loop.create_task(self._played(row))
        answer = self._until_asked()
        if isinstance(answer, Terminal):
            raise TaskError("the environment ended the episode before it asked anything")
        return answer

    def step(self, action: str) -> Observation | Terminal:
        """Reply. See `Environment`."""
        self._seat.answer(action)
        return self._until_asked()

    def _until_asked(self) -> Observation | Terminal:
        with self._randomness:
            return self._loop.run_until_complete(self._next())

    async def _next(self) -> Observation | Terminal:
        await asyncio.wait((self._play, self._seat.asked), return_when=asyncio.FIRST_COMPLETED)
        if self._play.done():
            return Terminal(self._play.result())
        return (Text(self._seat.asked.result()),)

    async def _played(self, task: Any) -> float:
        seat = self._seat
        agents = _Agents(next(iter(agent_config_fields(self._env.config))), seat)
        await self._env.setup(agents)
        await self._env.run(task, agents)
        if seat.conversation is None:
            raise TaskError("the environment had no conversation")
        trace = seat.conversation.trace
        info = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        await self._env.finalize(task, Episode(env=EnvInfo(id=self._env.config.env_id), task=info, traces=[trace]))
        reward = float(trace.reward)
        return min(1.0, max(0.0, reward)) if math.isfinite(reward) else 0.0


class _Agents:
    """An environment's agents by name: the one."""

    def __init__(self, name: str, seat: Seat) -> None:
        setattr(self, name, seat)


def verifiers_episodes(config: VerifiersTask, stored: StoredRows | None) -> Callable[[], VerifiersEpisode]:
    """Makes a task's episodes, on stored rows if there are any. Raises `TaskError` for what cannot be played here."""
    env = _environment(config)
    tasks = _load(config, env.taskset) if stored is None else _read(env.taskset, stored)
    where = f"task {config.name!r}: {config.target}"
    if reason := _why_not(env, tasks[0]):
        raise TaskError(f"{where} {reason}; only environments in which one agent talks can be replayed by others")
    try:
        VerifiersEpisode(env, tasks).reset(0, 0)
    except Exception as error:  # the user's own code, which may need what is not here
        raise TaskError(f"{where} cannot be played here: {type(error).__name__}: {error}") from error
    return lambda: VerifiersEpisode(env, tasks)


def code_name(target: str) -> str:
    """Names the library and the code of the environment, and their versions. Raises `TaskError`."""
    return f"verifiers=={version('verifiers')} {code_digest(target)}"


def store(config: VerifiersTask, folder: Path) -> StoredRows:
    """Write a task's rows to a file in the folder; the environment may download them. Raises `TaskError`."""
    tasks = _load(config, _environment(config).taskset)
    content = "".join(task.data.model_dump_json() + "\n" for task in tasks)
    path = folder / f"verifiers-{digest(code_name(config.target), config.settings, config.rows)}.jsonl"
    path.write_text(content)
    return StoredRows((FileRows(str(path), 0, len(tasks)),), content_digest([path]))


def _environment(config: VerifiersTask) -> Any:
    """The library's environment around the user's taskset, as the package that holds both combines them."""
    taskset = load(config.target)
    where = f"task {config.name!r}: {config.target}"
    if not (isinstance(taskset, type) and issubclass(taskset, Taskset)):
        raise TaskError(f"{where} must be a taskset of verifiers, got {taskset!r}")
    package = taskset.__module__.partition(".")[0]
    try:
        if taskset_class(package) is not taskset:
            raise TaskError(f"{where}: the package {package} offers another taskset")
        return load_environment(resolve_env_config({"taskset": {**config.settings, "id": package}}))
    except TaskError:
        raise
    except Exception as error:  # the user's own code, and what the library says of the settings
        raise TaskError(f"{where}: {type(error).__name__}: {error}") from error


def _load(config: VerifiersTask, taskset: Iterable[Any]) -> list[Any]:
    try:
        tasks = list(islice(taskset, config.rows))
    except Exception as error:  # the user's own code
        raise TaskError(f"task {config.name!r}: {config.target}: {type(error).__name__}: {error}") from error
    if not tasks:
        raise TaskError(f"task {config.name!r}: {config.target} has no rows")
    return tasks


def _read(taskset: Any, stored: StoredRows) -> list[Any]:
    kind = type(taskset).task_type()
    lines = Path(stored.files[0].path).read_text().splitlines()
    return [kind(kind.data_type().model_validate_json(line), taskset.config.task) for line in lines]


def _why_not(env: Any, task: Any) -> str:
    """What makes episodes depend on more than the policy's turns; empty if nothing does."""
    agents = agent_config_fields(env.config)
    if len(agents) != 1:
        return f"has {len(agents)} agents"
    (agent,) = agents.values()
    if env._agent_harness(agent).id not in _TALK_ONLY:
        return "brings a program for its agent"
    if task.NEEDS_CONTAINER or any(map(_needs_runtime, (task.setup, task.finalize, *task.hooks("reward")))):
        return "runs programs"
    if task.toolsets(task.config) or env.taskset.toolsets(env.taskset.config):
        return "has tools in processes of their own"
    if task.config.judges:
        return "asks a judge"
    if discover_decorated(task, "intercept") or any(
        hook_boundary(stop, allow_trace=True) is not Trace for stop in task.hooks("stop")
    ):
        return "changes requests to the model"
    if type(env).start is not Env.start:
        return "starts services"
    return ""


def _needs_runtime(hook: Callable[..., Any]) -> bool:
    if getattr(hook, "__func__", hook) in (Task.setup, Task.finalize):
        return False
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


class Coroutines(asyncio.BaseEventLoop):
    """Runs coroutines in an order that depends on them alone.

    Its time stands still while anything can run; then it jumps to the next timer. Waiting for anything else raises
    `RuntimeError`. Whatever is pending when it is dropped is dropped with it, silently.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self  # of the parts of a selector, the base class needs `select` alone
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        """Seconds that were waited for."""
        return self._now

    def select(self, timeout: float | None) -> list[object]:
        """Let so much time pass."""
        if timeout is None:
            raise RuntimeError("an environment waits for something that is not here, such as a network or a process")
        self._now += timeout
        return []

    def _process_events(self, events: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """No other thread wakes this loop up."""

    def __del__(self) -> None:
        """Close without a warning."""
        self.close()


NAME = "agent"


class Seat:
    """Asks what the environment says, and waits for the reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` runs the environment."""
        self._loop = loop
        self.conversation: Conversation | None = None
        self.trainable = True
        self.asked: asyncio.Future[str] = loop.create_future()
        """What the policy is to answer, once there is something."""
        self._reply: asyncio.Future[str] = loop.create_future()

    async def run(self, task: Any, **options: object) -> Any:
        """Put a task's prompt; returns the trace with its rewards. `options` are for programs, and there are none."""
        async with self.interaction(task) as conversation:
            await conversation.turn()
        return conversation.trace

    def interaction(self, task: Any, **options: object) -> Conversation:
        """A conversation in which the environment is the user. Raises `RuntimeError` for a second one."""
        if self.conversation is not None:
            raise RuntimeError("an environment must have one conversation per episode")
        self.conversation = Conversation(self, task)
        return self.conversation

    async def ask(self, text: str) -> str:
        """The policy's reply."""
        self.asked.set_result(text)
        return await self._reply

    def answer(self, reply: str) -> None:
        """Give the reply to what was asked."""
        replied = self._reply
        self.asked, self._reply = self._loop.create_future(), self._loop.create_future()
        replied.set_result(reply)


class Conversation:
    """What environments use of verifiers' `Interaction`."""

    def __init__(self, seat: Seat, task: Any) -> None:
        """Enter it before the first turn."""
        self._seat = seat
        self._task = task
        self._over = False
        self.trace = Trace(
            verifiers=VersionInfo(version=__version__),
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=AgentInfo(config=AgentConfig(), name=NAME),
        )

    async def __aenter__(self) -> Conversation:
        """Set the task up."""
        await invoke(self._task.setup, {"trace": self.trace, "runtime": None})
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Score the conversation unless it failed, or was dropped."""
        if kind is not None:
            return
        self.trace.stop("user_closed")
        await invoke(self._task.finalize, {"trace": self.trace, "runtime": None})
        await self._task.score(self.trace)
        self.trace.ok = True

    async def turn(self, message: Any = None) -> Any:
        """Say something, or without a message put the task's prompt; returns the policy's part, or that it has none."""
        prompted = not self.trace.nodes and self._task.data.prompt is not None
        if prompted != (message is None):
            raise ValueError("the task's prompt, and only that, is put by the first turn, without a message")
        if self._over or await self._stops():
            self._over = True
            return Segment(messages=[], terminated=True)
        said = _messages(self._task.data.prompt if prompted else message)
        if not self.trace.nodes and self._task.data.system_prompt:
            said = [SystemMessage(content=self._task.data.system_prompt), *said]
        for each in said:
            self._add(each)
        reply = AssistantMessage(content=await self._seat.ask(_text(said)))
        self._add(reply, sampled=True)
        return Segment(messages=[reply])

    async def _stops(self) -> bool:
        for stop in self._task.hooks("stop"):
            if await call_hook(stop, {Trace: self.trace}):
                self.trace.stop(stop.__name__)
                return True
        return False

    def _add(self, message: Any, sampled: bool = False) -> None:
        nodes = self.trace.nodes
        nodes.append(MessageNode(parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled))


def _messages(said: Any) -> list[Any]:
    """A text, or verifiers' messages, as messages."""
    if isinstance(said, str):
        return [UserMessage(content=said)]
    return [UserMessage.model_validate(each) if isinstance(each, dict) else each for each in said]


def _text(messages: Sequence[Any]) -> str:
    """Messages as one text. Raises `ValueError` for what is not the user's text."""
    for message in messages:
        parts = [] if isinstance(message.content, str) else message.content
        if not isinstance(message, SystemMessage | UserMessage) or not all(
            isinstance(part, TextContentPart) for part in parts
        ):
            raise ValueError(
                f"an environment may only say text, as the user, got {message.role}: {message.content!r:.100}"
            )
    return "\n\n".join(content_text(message.content) for message in messages)
