"""How a question is answered: where the answer is in a completion, what may be called before it, what it is worth."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from swarm.environments.config import MAX_TARGET_CHARS, Context, OwnTool, TaskSettings
from swarm.environments.rewards import MAX_RE2_CHARS, check_pattern
from swarm.environments.tools.base import TOOLS, TRUSTED_TOOL, OfferedTool, Toolbox, ToolSource, tool_class
from swarm.environments.tools.schema import check_schema, only_text
from swarm.protocols import Source, TaskSource
from swarm.settings import Settings
from swarm.types import MAX_TURNS
from swarm.types.calls import MAX_TOOL_NAME_CHARS

MAX_TEMPLATE_CHARS = 16_384
Template = Annotated[str, Field(max_length=MAX_TEMPLATE_CHARS)]
MAX_PROMPT_CHARS = 2**20
"""Characters of a question, of several in one reply, and of the observations of a group's episodes together."""

MatchRule = Literal["exact", "numeric", "boxed"]
READING_VERSION = 4
"""Version of the reading of answers, in digests: nodes with another one refuse each other's groups.
To be raised with every change of a right answer under `match`, or of `find: last_number`."""

FindRule = Literal["tags", "last_number", "boxed", "regex", "whole"]

REQUESTS: Mapping[FindRule, str] = MappingProxyType(
    {
        "tags": "",
        "last_number": "Think step by step if it helps, and end with the final number.",
        "boxed": "Think step by step if it helps, then put the final answer in \\boxed{}.",
        "whole": "Reply with the answer only.",
    }
)
"""What follows a question so that the answer can be found; the system prompt asks for tags."""

GRADING_RULES = {"answer", "answer_pattern", "choice_labels", "match", "reward"}
"""Fields that decide which answers are right, and what they are worth; `find` and `rewards` do so too."""


CUSTOM_TOOL = r"^[^:]+:[A-Za-z_]\w*$"
TOOL_SCHEMAS: list[JsonValue] = [
    {"enum": [*TOOLS], "type": "string"},
    {"maxLength": MAX_TARGET_CHARS, "pattern": CUSTOM_TOOL, "type": "string"},
    {"type": "null"},
]


ToolTarget = Annotated[str | None, Field(max_length=MAX_TARGET_CHARS, json_schema_extra={"anyOf": TOOL_SCHEMAS})]
ToolName = Annotated[str, Field(max_length=MAX_TOOL_NAME_CHARS, pattern=r"^([A-Za-z_][\w-]*)?$")]
CUSTOM_NAME = "tool"
"""The name of a custom tool that has none."""
MAX_TOOLS = 16
MAX_DESCRIPTION_CHARS = 1_024


class ToolSettings(Settings):
    """One of a task's tools. Its name alone, such as `calculator`, stands for all of them at their defaults."""

    tool: str = Field(max_length=MAX_TARGET_CHARS)
    """The same as the task's `tool`."""
    name: ToolName = ""
    """What the policy calls it. Default: the same as `tool`; for a custom function `tool`."""
    description: str = Field("", max_length=MAX_DESCRIPTION_CHARS)
    """Says what it does, to the policy. Default: the tool's."""
    parameters: dict[str, JsonValue] = {}
    """JSON schema of the arguments of a custom function, which it then gets by name: `type: object` with `properties`
    and `required`; of the keywords of JSON Schema also `items`, `enum`, `minimum`, `maximum`, `minLength`, `maxLength`,
    `minItems`, `maxItems`. A call that does not fit is answered with what is wrong. Default: one text."""

    @property
    def called(self) -> str:
        """Its name in calls."""
        return self.name or (CUSTOM_NAME if self.is_elsewhere else self.tool)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is a function of this node or of a trusted peer."""
        return ":" in self.tool or self.tool == TRUSTED_TOOL

    @property
    def own(self) -> OwnTool | None:
        """The code of a custom function; None for other tools."""
        has_text = not self.parameters or bool(only_text(self.parameters))
        return OwnTool(self.tool, not has_text) if ":" in self.tool else None

    def offered(self) -> OfferedTool:
        """The tool as the task offers it. Raises `TaskError` for one whose extra is missing."""
        return OfferedTool(tool_class(self.tool)(), self.called, self.description, self.parameters or None)

    @model_validator(mode="before")
    @classmethod
    def _by_name_alone(cls, given: object) -> object:
        return {"tool": given} if isinstance(given, str) else given

    @field_validator("tool")
    @classmethod
    def _exists(cls, tool: str) -> str:
        if re.fullmatch(CUSTOM_TOOL, tool) is None:
            TOOLS.find(tool)
        return tool

    @model_validator(mode="after")
    def _only_functions_need_a_schema(self) -> ToolSettings:
        if self.parameters and not self.is_elsewhere:
            raise ValueError(f"parameters: {self.tool} has its own; they are for custom functions")
        if self.parameters:
            check_schema(self.parameters)
        return self


class RewardSettings(Settings):
    """Converts a score in [0, 1] to a reward."""

    threshold: float | None = Field(0.99, ge=0.0, le=1.0)
    """Reward 1 at or above this score, else 0; `null` gives partial credit, the score itself."""

    def reward(self, score: float) -> float:
        """The reward, in [0, 1], for a score in [0, 1]."""
        if self.threshold is None:
            return score
        return 1.0 if score >= self.threshold else 0.0


class FindSettings(Settings):
    """Where the answer is in a completion, after the thought if there is one."""

    find: FindRule | None = None
    """`tags`: the last `<answer>` pair; `last_number`; `boxed`: the last `\\boxed{}`; `regex`: the last match of
    `find_pattern`; `whole`: the whole completion. Default: `tags`; in a data set without `find`, the last box counts if
    there are no tags, and with `match: numeric` else the last number. Custom code gets the whole completion."""
    find_pattern: str | None = Field(None, max_length=MAX_RE2_CHARS)
    """Regular expression for `find: regex`, in RE2's syntax; group 1 is the answer if there is one, else the match."""
    ask: Template | None = None
    """Sentence after each question that asks for the answer in this form. Default: one that fits `find`; required for
    `regex`; an empty text adds none."""

    @property
    def scored_by_code(self) -> bool:
        """Whether custom code scores completions: by default it reads all of them."""
        return False

    @property
    def match_rule(self) -> MatchRule | None:
        """The rule that compares answers with references, if any."""
        return None

    @property
    def finds_as(self) -> tuple[str | None, ...]:
        """What distinguishes the rule from the default, for digests; empty for the default."""
        version = (str(READING_VERSION),) if self.find == "last_number" else ()
        return () if self.find is None else (self.find, self.find_pattern, *version)

    def asked(self, question: str) -> str:
        """A question, followed by the request for the answer's form if there is one."""
        request = self._request()
        return f"{question}\n{request}" if request else question

    def _request(self) -> str:
        return self.ask if self.ask is not None else REQUESTS[self.find or "tags"]

    @model_validator(mode="after")
    def _a_pattern_belongs_to_regex(self) -> FindSettings:
        if (self.find == "regex") != (self.find_pattern is not None):
            raise ValueError(f"find: regex and find_pattern go together, got {self.find} and {self.find_pattern!r}")
        if self.find == "regex" and self.ask is None:
            raise ValueError("find: regex needs `ask`, the sentence that tells the model the form of the answer")
        return self

    @model_validator(mode="after")
    def _the_pattern_is_small(self) -> FindSettings:
        check_pattern("find_pattern", self.find_pattern or "")
        return self


class QuestionSettings(FindSettings, TaskSettings):
    """A kind of task whose questions are answered at once or after calls of a tool."""

    reads_whole: ClassVar[bool] = False

    tool: ToolTarget = None
    """What the policy may call before it answers: a `calculator`; `python`, which needs the extra `tools`; or a
    custom function, `mypackage.mymodule:search` or `search.py:search`, whose episodes are shared only by nodes
    in `trusted`; or `trusted`: such a function that only they have, so that this node asks no questions of the task and
    learns from theirs. A turn with a call in the form that the model was trained on, or with `<tool>...</tool>`, is
    answered with the result; any other turn is the answer."""
    tools: tuple[ToolSettings, ...] = Field((), max_length=MAX_TOOLS)
    """Several such tools in place of `tool`: their names, or their settings."""
    max_turns: int = Field(4, ge=2, le=MAX_TURNS)
    """With a tool: turns of the policy after which an episode is over, without a return."""

    @property
    def all_tools(self) -> tuple[ToolSettings, ...]:
        """The tools of `tool` or `tools`."""
        return (ToolSettings(tool=self.tool),) if self.tool is not None else self.tools

    @abstractmethod
    def source(self, context: Context) -> TaskSource:
        """The source of the questions, without the tool. Raises `TaskError`."""

    def build(self, context: Context) -> Source:
        """See `TaskSettings`."""
        source = self.source(context)
        if not (tools := [each.offered() for each in self.all_tools]):
            return source
        return ToolSource(source, Toolbox(tools, asks=self.ask is None), self.max_turns)

    def import_libraries(self) -> None:
        """See `TaskSettings`."""
        super().import_libraries()
        if self.find == "regex":
            import swarm.environments.scoring.patterns  # noqa: F401
        for each in self.all_tools:
            tool_class(each.tool).import_libraries()

    @property
    def grades_as(self) -> tuple[Mapping[str, JsonValue], ...]:
        """What distinguishes the rules for right answers from the default, for digests; empty for the default."""
        rules = self.model_dump(mode="json", include=GRADING_RULES, exclude_defaults=True)
        graded = ({"graded": rules},) if rules else ()
        compares = self.match_rule is not None and not self.scored_by_code
        return (*graded, {"reading": READING_VERSION}) if compares else graded

    @property
    def custom_tools(self) -> Mapping[str, OwnTool]:
        """See `TaskSettings`."""
        return {each.called: each.own for each in self.all_tools if each.own is not None}

    @property
    def is_asked(self) -> bool:
        """See `TaskSettings`."""
        return all(each.tool != TRUSTED_TOOL for each in self.all_tools)

    @field_validator("tool")
    @classmethod
    def _tool_exists(cls, tool: str | None) -> str | None:
        return None if tool is None else ToolSettings(tool=tool).tool

    @model_validator(mode="after")
    def _tools_have_names_of_their_own(self) -> QuestionSettings:
        if self.tool is not None and self.tools:
            raise ValueError("tool and tools exclude each other: list all of them in `tools`")
        names = [each.called for each in self.tools]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"tools: two are called {twice!r}: give one another `name`")
        return self
