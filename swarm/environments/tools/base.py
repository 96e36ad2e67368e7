"""Tools: what they are, how a policy calls them, and questions whose answer may be worked out with some.

A turn with calls (`swarm/types/calls.py`) is answered with their results. Any other turn is the answer, and is scored
as without tools.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace
from pydantic import JsonValue

from swarm.environments.digests import digest
from swarm.environments.tools.schema import Schema, only_text, problem_with, text_argument, with_texts
from swarm.errors import Refusal
from swarm.kinds import Kinds
from swarm.protocols import Episode, TaskSource
from swarm.reasons import Reason
from swarm.types import (
    Observation,
    PendingCall,
    Question,
    TaskRef,
    Terminal,
    Text,
    Tools,
    ToolSchema,
    with_tools,
)
from swarm.types.calls import (
    MAX_CALL_CHARS,
    TAG_CLOSE,
    TAG_OPEN,
    TOO_LONG,
    AnyCall,
    BadCall,
    Call,
    TaggedCall,
    calls_in,
    read_call,
    read_object,
)

TRUSTED_TOOL = "trusted"
"""A tool that this node lacks, and peers have that it trusts."""
UNKNOWN = "unknown"
"""Stands for the tool of a call that names none."""
MAX_ERROR_CHARS = 300
REQUEST = (
    f'You may call tools before you answer: a message with {TAG_OPEN}{{"name": ..., "arguments": {{...}}}}{TAG_CLOSE} '
    "is answered with the result. The tools, each with the schema of its arguments:"
)


class Tool(ABC):
    """A pure function of text, in every process and on every machine: receivers call it again."""

    request: ClassVar[str]
    """Says how to call it alone, for policies without calls of their own; follows the question."""
    description: ClassVar[str] = ""
    """What it does, for policies with calls of their own; empty: `request`."""
    parameters: ClassVar[Schema] = text_argument("What is called with.", "call")
    """JSON schema of its arguments."""
    version: str
    """Names all that the results depend on."""

    @abstractmethod
    def run(self, call: str) -> str:
        """The result of a call of at most `MAX_CALL_CHARS`, or what is wrong with it.

        `call` is the only argument if that is a text, otherwise all of them as a JSON object, which fits the schema. It
        may be an untrusted peer's: this process must never evaluate it.
        """

    def answer(self, call: str, name: str) -> Text | PendingCall:
        """What the policy observes after a call of the tool, which a task calls `name`."""
        return Text(self.run(call), name)

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

    def answer(self, call: str, name: str) -> PendingCall:
        """The open call."""
        return PendingCall(call, name)


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


class OfferedTool:
    """A tool as a task offers it."""

    def __init__(self, tool: Tool, name: str, description: str = "", parameters: Schema | None = None) -> None:
        """`parameters` is a checked schema; None: the tool's."""
        self.tool = tool
        self.name = name
        self.schema = tool.parameters if parameters is None else parameters
        self.text_of = only_text(self.schema)
        """The only argument if that is a text; empty otherwise."""
        self.described = ToolSchema(
            name, description or tool.description or tool.request, json.dumps(dict(self.schema), ensure_ascii=False)
        )

    @property
    def version(self) -> tuple[str, ...]:
        """All that decides how it is described and what it answers."""
        return self.name, self.tool.version, self.described.description, self.described.parameters

    def answer(self, arguments: dict[str, JsonValue]) -> Text | PendingCall:
        """What the policy observes after a call with these arguments."""
        arguments = with_texts(arguments, self.schema)
        if problem := problem_with(arguments, self.schema):
            return _error(problem, self.name)
        if self.text_of and self.text_of in arguments:
            return self.tool.answer(str(arguments[self.text_of]), self.name)
        return self.tool.answer(json.dumps(arguments, ensure_ascii=False), self.name)


class Toolbox:
    """The tools of a task."""

    def __init__(self, tools: Sequence[OfferedTool], asks: bool = True) -> None:
        """At least one, with different names. `asks`: whether words explain a call to a policy without calls of its
        own; otherwise the question does."""
        self._tools = {each.name: each for each in tools}
        self._only = tools[0] if len(tools) == 1 and tools[0].text_of else None
        self.described = Tools(
            tuple(each.described for each in tools),
            self._request() if asks else "",
            self._only.text_of if self._only is not None else "",
        )
        self.version = [part for each in tools for part in each.version]

    def answers(self, calls: Sequence[AnyCall]) -> Observation:
        """What the policy observes after a turn with calls: a result for each."""
        return tuple(map(self._answer, calls))

    def _answer(self, call: AnyCall) -> Text | PendingCall:
        match call:
            case BadCall(problem):
                return _error(problem, UNKNOWN)
            case TaggedCall(text) if len(text) > MAX_CALL_CHARS:
                return _error(TOO_LONG, UNKNOWN if self._only is None else self._only.name)
            case TaggedCall(text) if self._only is not None:
                return self._only.answer({self._only.text_of: text})
            case TaggedCall(text):
                return self._answer(read_call(text))
            case Call(name, arguments) if name in self._tools:
                return self._tools[name].answer(read_object(arguments))
        return _error(f"there is no such tool; there is {', '.join(self._tools)}", UNKNOWN)

    def _request(self) -> str:
        if self._only is not None:
            return self._only.tool.request
        tools = (each.described for each in self._tools.values())
        return "\n".join((REQUEST, *(f"{each.name}: {each.description} {each.parameters}" for each in tools)))


def _error(problem: str, name: str) -> Text:
    return Text(f"error: {problem}"[:MAX_ERROR_CHARS], name)


RULES = "2"
"""How calls are read and answered, whatever the tool: members of two numbers do not use each other's episodes."""


class ToolSource:
    """A source's questions with tools. Their references also name the tools, so that members use the same ones."""

    def __init__(self, source: TaskSource, tools: Toolbox, max_turns: int) -> None:
        """`max_turns` are the policy's, calls and answer together."""
        self.name = source.name
        self._source = source
        self._tools = tools
        self._max_turns = max_turns
        self._digest = digest("tools", RULES, *tools.version, max_turns)

    @property
    def num_held_out(self) -> int | None:
        """The source's."""
        return self._source.num_held_out

    def question(self, seed: int, index: int) -> Question:
        """The source's question, as the start of an episode. Raises `TaskError`."""
        return self._start(self._source.question(seed, index))

    def recall(self, ref: TaskRef) -> Question:
        """The start behind a reference.

        Raises `Refusal`: the source's, and `options_differ` for other tools, another version of one, or none.
        """
        return self._start(self._source.recall(self._without_tools(ref)))

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether the source's question is. See `TaskSource`."""
        return self._source.is_held_out(self._without_tools(ref))

    def begin(self, ref: TaskRef) -> Episode:
        """The episode behind a reference that `recall` accepts. Raises `Refusal`."""
        return _ToolUse(self._source, self._without_tools(ref), self._tools)

    def _start(self, question: Question) -> Question:
        ref = replace(question.ref, options_digest=f"{self._digest}+{question.ref.options_digest}")
        prompt = with_tools(question.prompt, self._tools.described)
        return replace(question, ref=ref, prompt=prompt, max_turns=self._max_turns)

    def _without_tools(self, ref: TaskRef) -> TaskRef:
        """The source's own reference."""
        theirs, plus, options = ref.options_digest.partition("+")
        if not plus or theirs != self._digest:
            used = theirs if plus else "none"
            raise Refusal(Reason.OPTIONS_DIFFER, f"{ref.task}: its tools are {used}, here {self._digest}")
        return replace(ref, options_digest=options)


class _ToolUse:
    """Implements `Episode`."""

    def __init__(self, source: TaskSource, ref: TaskRef, tools: Toolbox) -> None:
        self._source = source
        self._ref = ref
        self._tools = tools

    def step(self, action: str) -> Observation | Terminal:
        calls = calls_in(action)
        return self._tools.answers(calls) if calls else Terminal(self._source.score(self._ref, action))
