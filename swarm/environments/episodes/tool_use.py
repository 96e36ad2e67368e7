"""Questions whose answer may be worked out with a tool: episodes made of any source's questions.

A turn with a `<tool>` pair is a call, and is answered with the tool's result. Any other turn is the answer, and is
scored as without a tool.
"""

from __future__ import annotations

from msgspec.structs import replace

from swarm.environments.digests import digest
from swarm.environments.tools.base import MAX_CALL_CHARS, TOO_LONG, Tool, last_call
from swarm.errors import Refusal
from swarm.protocols import Episode, TaskSource
from swarm.reasons import Reason
from swarm.types import End, Observation, OwnCall, Question, TaskRef, Text

OWN = "own"
"""In place of the version of a tool that this node alone has."""


class ToolSource:
    """A source's questions with a tool. Their references also name the tool, so that members use the same one."""

    def __init__(self, source: TaskSource, tool: Tool | None, max_turns: int) -> None:
        """`max_turns` are the policy's, calls and answer together. Without a tool here, calls are left to the node."""
        self.name = source.name
        self._source = source
        self._tool = tool
        self._max_turns = max_turns
        self._digest = digest("tool", tool.version if tool else OWN, max_turns)

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

    def __init__(self, source: TaskSource, ref: TaskRef, tool: Tool | None) -> None:
        self._source = source
        self._ref = ref
        self._tool = tool

    def step(self, action: str) -> Observation | End:
        call = last_call(action)
        if call is None:
            return End(self._source.score(self._ref, action))
        if len(call) > MAX_CALL_CHARS:
            return (Text(TOO_LONG),)
        return (Text(self._tool.run(call)) if self._tool is not None else OwnCall(call),)
