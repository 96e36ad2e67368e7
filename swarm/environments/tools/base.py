"""Tools: what they are, how a policy calls one, and questions whose answer may be worked out with one.

A turn with a `<tool>` pair is a call, and is answered with the tool's result. Any other turn is the answer, and is
scored as without a tool.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from msgspec.structs import replace

from swarm.environments.digests import digest
from swarm.errors import Refusal
from swarm.kinds import Kinds
from swarm.protocols import Episode, TaskSource
from swarm.reasons import Reason
from swarm.types import Observation, PendingCall, Question, TaskRef, Terminal, Text

OPEN, CLOSE = "<tool>", "</tool>"
MAX_CALL_CHARS = 8_192
TOO_LONG = f"error: a call must be at most {MAX_CALL_CHARS} characters"
TRUSTED_TOOL = "trusted"
"""A tool that this node lacks, and peers have that it trusts."""


class Tool(ABC):
    """A pure function of text, in every process and on every machine: receivers call it again."""

    request: ClassVar[str]
    """Follows a question with the tool, before the request for the answer's form."""
    version: str
    """Names all that the results depend on."""

    @abstractmethod
    def run(self, call: str) -> str:
        """The result of a call of at most `MAX_CALL_CHARS`, or what is wrong with it.

        The call may be an untrusted peer's text: this process must never evaluate it.
        """

    def answer(self, call: str) -> Text | PendingCall:
        """What the policy observes after a call."""
        return Text(self.run(call))

    @classmethod  # noqa: B027
    def import_libraries(cls) -> None:
        """Import what starts threads, before the sandbox is sealed. Raises as imports do."""


class PendingTool(Tool):
    """A tool that runs elsewhere, whose calls stay open here: a custom function of this node or of a trusted peer."""

    request = "You may use a tool before you answer: a message with <tool>...</tool> is answered with its result."
    version = "own"

    def run(self, call: str) -> str:
        """Never called."""
        raise NotImplementedError

    def answer(self, call: str) -> PendingCall:
        """The open call."""
        return PendingCall(call)


TOOLS: Kinds[type[Tool]] = Kinds(
    "tool",
    "swarm.tools",
    "swarm.environments.tools.base:Tool",
    {
        "calculator": "swarm.environments.tools.calculator:Calculator",
        "python": "swarm.extras.wasm.python:PythonTool",
        TRUSTED_TOOL: "swarm.environments.tools.base:PendingTool",
    },
)


def tool_class(name: str) -> type[Tool]:
    """The tool that a task names; `PendingTool` for a custom function. Raises `ValueError`."""
    return PendingTool if ":" in name else TOOLS.find(name)


def last_call(turn: str) -> str | None:
    """What is in the last closed `<tool>` pair of a turn; None without one."""
    end = turn.rfind(CLOSE)
    start = turn.rfind(OPEN, 0, end) if end >= 0 else -1
    return turn[start + len(OPEN) : end].strip() if start >= 0 else None


class ToolSource:
    """A source's questions with a tool. Their references also name the tool, so that members use the same one."""

    def __init__(self, source: TaskSource, tool: Tool, max_turns: int) -> None:
        """`max_turns` are the policy's, calls and answer together."""
        self.name = source.name
        self._source = source
        self._tool = tool
        self._max_turns = max_turns
        self._digest = digest("tool", tool.version, max_turns)

    @property
    def num_held_out(self) -> int | None:
        """The source's."""
        return self._source.num_held_out

    def question(self, seed: int, index: int) -> Question:
        """The source's question, as the start of an episode. Raises `TaskError`."""
        return self._start(self._source.question(seed, index))

    def recall(self, ref: TaskRef) -> Question:
        """The start behind a reference.

        Raises `Refusal`: the source's, and `options_differ` for another tool, another version of it, or none.
        """
        return self._start(self._source.recall(self._without_tool(ref)))

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether the source's question is. See `TaskSource`."""
        return self._source.is_held_out(self._without_tool(ref))

    def begin(self, ref: TaskRef) -> Episode:
        """The episode behind a reference that `recall` accepts. Raises `Refusal`."""
        return _ToolUse(self._source, self._without_tool(ref), self._tool)

    def _start(self, question: Question) -> Question:
        ref = replace(question.ref, options_digest=f"{self._digest}+{question.ref.options_digest}")
        return replace(question, ref=ref, max_turns=self._max_turns)

    def _without_tool(self, ref: TaskRef) -> TaskRef:
        """The source's own reference."""
        theirs, plus, options = ref.options_digest.partition("+")
        if not plus or theirs != self._digest:
            used = theirs if plus else "none"
            raise Refusal(Reason.OPTIONS_DIFFER, f"{ref.task}: its tool is {used}, here {self._digest}")
        return replace(ref, options_digest=options)


class _ToolUse:
    """Implements `Episode`."""

    def __init__(self, source: TaskSource, ref: TaskRef, tool: Tool) -> None:
        self._source = source
        self._ref = ref
        self._tool = tool

    def step(self, action: str) -> Observation | Terminal:
        call = last_call(action)
        if call is None:
            return Terminal(self._source.score(self._ref, action))
        if len(call) > MAX_CALL_CHARS:
            return (Text(TOO_LONG),)
        return (self._tool.answer(call),)
