"""Single-agent adapter for environments of verifiers: the policy replaces the agent's program and model.

It offers environments what they use of verifiers' `Agent` and `Interaction`. An episode is one conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from verifiers import __version__
from verifiers.v1.agent import Segment
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.graph import MessageNode
from verifiers.v1.session import call_hook
from verifiers.v1.state import state_cls
from verifiers.v1.trace import AgentInfo, Trace, TraceTask, VersionInfo
from verifiers.v1.types import AssistantMessage, SystemMessage, TextContentPart, UserMessage, content_text
from verifiers.v1.utils.decorators import invoke

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
