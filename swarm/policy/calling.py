"""A policy's calls of tools in its tokens: the form that its family was trained on, and the common one of texts
(`swarm/types/calls.py`).

    sampled   [TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "6 * 7"}}]
    text      <tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>

The form is found by what the chat template renders for a call, down to its white space; so others' calls are read as
this policy would have written them. What has no form of its own here stays with the `<tool>` tags of texts.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from pydantic import JsonValue

from swarm.policy.notation import Notation
from swarm.policy.thinking import Decode, Piece
from swarm.types import Tools
from swarm.types.calls import (
    CLOSE,
    MAX_CALL_CHARS,
    MAX_CALLS,
    OPEN,
    SHAPE,
    TAG_CLOSE,
    TAG_OPEN,
    TOO_LONG,
    BadCall,
    BadJson,
    Call,
    Spoken,
    TaggedCall,
    as_call,
    bare_calls,
    calls_of,
    common,
    marked,
    read_call,
    read_object,
    spoken,
)

CallFormat = Literal[
    "auto", "tags", "hermes", "llama", "mistral", "gemma", "function_gemma", "qwen3_coder", "glm", "json"
]
PROBE_NAME, PROBE_ARGUMENT = "probe_tool", "probe_argument"
"""They stand for a call while a template is read."""


Written = tuple[str, bool]
"""A text, and whether marks in it are marks: those that an argument spells are not."""


class Style(NamedTuple):
    """The texts around names and arguments of calls."""

    open: str
    middle: str
    close: str
    between: str


class Form(ABC):
    """How a family writes calls. Its texts show the tokens that mark them."""

    name: ClassVar[CallFormat]
    marks: ClassVar[tuple[str, ...]] = ()
    """Texts that may be tokens of their own."""
    style: ClassVar[Style]
    """Where the template does not show another."""

    @abstractmethod
    def read(self, text: str) -> list[Spoken]:
        """The parts of a turn. What counts as a call in every text may stay text."""

    @abstractmethod
    def place(self, text: str, at: int) -> tuple[int, int] | None:
        """Where the calls begin and end that surround a place in a rendered conversation; None where none do."""

    def is_own(self, text: str, style: Style) -> bool:
        """Whether others' text has its calls in this form and style already."""
        return False

    def arguments(self, call: Call) -> Iterator[Written]:
        """Arguments as the family writes them."""
        yield call.arguments, False

    def takes(self, call: Call) -> bool:
        """Whether it can write the call."""
        return re.fullmatch(r"[\w.-]+", call.name) is not None

    def bad(self, call: BadCall) -> tuple[str, str]:
        """The marks before and behind what is no call."""
        return self.style.open if self.marks else "", ""


class Hermes(Form):
    """Qwen2.5, Qwen3, Hermes: objects between tags, which are the common marks."""

    name = "hermes"
    marks = (OPEN, CLOSE)
    style = Style(f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CLOSE}", f'}}\n{CLOSE}\n{OPEN}\n{{"name": "')

    def read(self, text: str) -> list[Spoken]:
        """See `Form`: all of it stays as it is, even white space."""
        return marked(text, OPEN, CLOSE)

    def is_own(self, text: str, style: Style) -> bool:
        """See `Form`."""
        return OPEN in text and text.count(OPEN) == text.count(style.open.partition("{")[0])

    def place(self, text: str, at: int) -> tuple[int, int] | None:
        """See `Form`."""
        return _between(text, at, OPEN, CLOSE)

    def bad(self, call: BadCall) -> tuple[str, str]:
        """See `Form`."""
        return OPEN, CLOSE if call.closed else ""


class Bare(Form):
    """Turns that are nothing but objects."""

    name: ClassVar[CallFormat] = "json"
    style = Style('{"name": "', '", "arguments": ', "}", '}\n{"name": "')

    def read(self, text: str) -> list[Spoken]:
        """See `Form`: such a turn counts as calls in every text."""
        return [text]

    def is_own(self, text: str, style: Style) -> bool:
        """See `Form`."""
        return style.middle in text and bare_calls(text) is not None

    def place(self, text: str, at: int) -> tuple[int, int] | None:
        """See `Form`."""
        return _outermost(text, at)


class Llama(Bare):
    """Llama 3: such objects with `parameters`, which may follow a token."""

    name: ClassVar[CallFormat] = "llama"
    marks = ("<|python_tag|>",)
    style = Style('{"name": "', '", "parameters": ', "}", '}; {"name": "')

    def read(self, text: str) -> list[Spoken]:
        """See `Form`."""
        before, mark, said = text.partition(self.marks[0])
        return [*([before] if before else []), *calls_of(said)] if mark else [text]

    def bad(self, call: BadCall) -> tuple[str, str]:
        """See `Form`."""
        return self.marks[0], ""


class Mistral(Form):
    """A list of objects behind a token; newer models write name and arguments behind tokens."""

    name = "mistral"
    marks = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    style = Style('[TOOL_CALLS][{"name": "', '", "arguments": ', "}]", '}, {"name": "')

    def read(self, text: str) -> list[Spoken]:
        """See `Form`."""
        before, *rest = text.split(self.marks[0], MAX_CALLS + 1)
        parts: list[Spoken] = [before] if before else []
        for said in rest:
            name, mark, arguments = said.partition(self.marks[2])
            if mark:
                parts.append(_checked(name.partition(self.marks[1])[0].strip(), arguments.strip(), said))
            else:
                parts += calls_of(said)
        return parts

    def place(self, text: str, at: int) -> tuple[int, int] | None:
        """See `Form`."""
        start = text.rfind(self.marks[0], 0, at)
        within = _outermost(text, at)
        return (start, within[1]) if within and 0 <= start < within[0] else None

    def bad(self, call: BadCall) -> tuple[str, str]:
        """See `Form`."""
        return self.marks[0], ""


class Gemma(Form):
    """Gemma 4: a name and, in braces, arguments in a notation like JSON with a token for quotes."""

    name: ClassVar[CallFormat] = "gemma"
    marks = ("<|tool_call>", "<tool_call|>", '<|"|>')
    style = Style("<|tool_call>call:", "{", "}<tool_call|>", "}<tool_call|><|tool_call>call:")
    _call = re.compile(r"\s*call:([\w.-]{1,64})\s*(\{.*\})\s*", re.DOTALL)

    def read(self, text: str) -> list[Spoken]:
        """See `Form`."""
        return marked(text, self.marks[0], self.marks[1], self._read)

    def _read(self, said: str) -> Call | BadCall:
        if len(said) > MAX_CALL_CHARS:
            return BadCall(TOO_LONG, said)
        found = self._call.fullmatch(said)
        if found is None:
            return BadCall(SHAPE, said)
        try:
            arguments = Notation(found[2], self.marks[2]).value()
        except BadJson as error:
            return BadCall(str(error), said)
        return _checked(found[1], arguments, said)

    def place(self, text: str, at: int) -> tuple[int, int] | None:
        """See `Form`."""
        return _between(text, at, self.marks[0], self.marks[1])

    def arguments(self, call: Call) -> Iterator[Written]:
        """See `Form`."""
        yield from _listed(self._member(name, value) for name, value in sorted(read_object(call.arguments).items()))

    def _member(self, name: str, value: JsonValue) -> Iterator[Written]:
        yield f"{name}:", False
        yield from self._written(value)

    def _written(self, value: JsonValue) -> Iterator[Written]:
        if isinstance(value, str):
            yield self.marks[2], True
            yield value, False
            yield self.marks[2], True
        elif isinstance(value, dict):
            yield "{", False
            yield from _listed(self._member(name, item) for name, item in sorted(value.items()))
            yield "}", False
        elif isinstance(value, list):
            yield "[", False
            yield from _listed(map(self._written, value))
            yield "]", False
        else:
            yield json.dumps(value), False

    def bad(self, call: BadCall) -> tuple[str, str]:
        """See `Form`."""
        return self.marks[0], self.marks[1] if call.closed else ""


class FunctionGemma(Gemma):
    """FunctionGemma: the same with other marks."""

    name: ClassVar[CallFormat] = "function_gemma"
    marks = ("<start_function_call>", "<end_function_call>", "<escape>")
    style = Style(
        "<start_function_call>call:", "{", "}<end_function_call>", "}<end_function_call><start_function_call>call:"
    )


class Elements(Form):
    """Forms that write each argument as an element. A text is written bare, so that one which is JSON is read as that:
    a tool that takes a text gets it as a text again."""

    _call: ClassVar[re.Pattern[str]]
    _argument: ClassVar[re.Pattern[str]]
    _around: ClassVar[tuple[str, str, str]]
    """Before an argument's name, between name and value, and behind the value."""

    def read(self, text: str) -> list[Spoken]:
        """See `Form`."""
        return marked(text, OPEN, CLOSE, self._read)

    def _read(self, said: str) -> Call | BadCall:
        if len(said) > MAX_CALL_CHARS:
            return BadCall(TOO_LONG, said)
        found = self._call.fullmatch(said)
        if found is None:
            return read_call(said)  # some models write JSON, too
        members, at = list[str](), 0
        while argument := self._argument.match(found[2], at):
            members.append(f"{json.dumps(argument[1], ensure_ascii=False)}: {_as_json(argument[2])}")
            at = argument.end()
        if found[2][at:].strip():
            return BadCall(SHAPE, said)
        return _checked(found[1], "{" + ", ".join(members) + "}", said)

    def place(self, text: str, at: int) -> tuple[int, int] | None:
        """See `Form`."""
        return _between(text, at, OPEN, CLOSE)

    def arguments(self, call: Call) -> Iterator[Written]:
        """See `Form`."""
        before, between, behind = self._around
        for name, value in read_object(call.arguments).items():
            yield before, True
            yield name, False
            yield between, True
            yield value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), False
            yield behind, True

    def takes(self, call: Call) -> bool:
        """See `Form`: a text within must end neither a value nor the call."""
        end = self._around[2].strip()
        given = read_object(call.arguments)
        values = (value if isinstance(value, str) else json.dumps(value) for value in given.values())
        is_whole = not any(mark in value for value in values for mark in (end, CLOSE))
        return super().takes(call) and is_whole and all(re.fullmatch(r"[^<>\n]+", name) for name in given)

    def bad(self, call: BadCall) -> tuple[str, str]:
        """See `Form`."""
        return OPEN, CLOSE if call.closed else ""


class Qwen3Coder(Elements):
    """Qwen3-Coder, Qwen3.5: elements named after function and parameter."""

    name = "qwen3_coder"
    marks = (OPEN, CLOSE)
    style = Style(
        f"{OPEN}\n<function=",
        ">\n",
        f"</function>\n{CLOSE}",
        f"</function>\n{CLOSE}\n{OPEN}\n<function=",
    )
    _call = re.compile(r"\s*<function=([\w.-]{1,64})>(.*)</function>\s*", re.DOTALL)
    _argument = re.compile(r"\s*<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
    _around = ("<parameter=", ">\n", "\n</parameter>\n")


class Glm(Elements):
    """GLM-4.5: pairs of elements, a name and a value."""

    name = "glm"
    marks = (OPEN, CLOSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    style = Style(OPEN, "\n", CLOSE, f"{CLOSE}\n{OPEN}")
    _call = re.compile(r"\s*([\w.-]{1,64})\s*((?:<arg_key>.*)?)", re.DOTALL)
    _argument = re.compile(r"\s*<arg_key>([^<>\n]+)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
    _around = ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")


class CompactGlm(Glm):
    """GLM-4.7: the same without line breaks."""

    style = Style(OPEN, "", CLOSE, f"{CLOSE}{OPEN}")
    _around = ("<arg_key>", "</arg_key><arg_value>", "</arg_value>")


FORMS: tuple[Form, ...] = (
    *(Mistral(), Gemma(), FunctionGemma()),
    *(Qwen3Coder(), Glm(), CompactGlm()),
    *(Hermes(), Llama(), Bare()),
)
"""In the order in which a template is compared with them."""


def form_of(segment: str, form: Form) -> bool:
    """Whether a form reads the call of the probe in what a template rendered for it."""
    calls = [part for part in form.read(segment) if not isinstance(part, str)] or bare_calls(segment) or []
    if isinstance(form, Llama) and '"parameters"' not in segment:
        return False
    call = calls[0] if len(calls) == 1 else None
    if not isinstance(call, Call) or call.name != PROBE_NAME or PROBE_ARGUMENT not in read_object(call.arguments):
        return False
    return not isinstance(form, Elements) or "".join(text for text, _ in form.arguments(call)) in segment


class Calling:
    """Converts between calls in one policy's tokens and texts with the common marks."""

    def __init__(
        self, form: Form, style: Style, encode: Callable[[str], list[int]], is_added: Callable[[int], bool]
    ) -> None:
        """`style` is the template's. `encode` and `is_added` as for `Thinking`."""
        self.form = form
        self._style = style
        tokens = {mark: ids for mark in form.marks if len(ids := encode(mark)) == 1 and is_added(ids[0])}
        self._tokens: Mapping[str, list[int]] = tokens
        self._shown = {ids[0]: mark for mark, ids in tokens.items()}
        self._marks = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")

    @property
    def tokens(self) -> frozenset[int]:
        """Those that mark calls, which the text of a turn shows."""
        return frozenset(self._shown)

    def shown(self, ids: Sequence[int], decode: Decode) -> str:
        """The text of tokens after a thought, with the marks of calls."""
        return "".join(self._decoded(ids, decode))

    def common(self, said: str) -> str:
        """What is shown after a thought, its calls with the common marks."""
        if isinstance(self.form, Hermes):
            return said
        parts = self.form.read(said)
        return said if all(isinstance(part, str) for part in parts) else common(parts)

    def _decoded(self, ids: Sequence[int], decode: Decode) -> Iterator[str]:
        begin = 0
        for at, token in enumerate(ids):
            if token in self._shown:
                yield decode(list(ids[begin:at])) if at > begin else ""
                yield self._shown[token]
                begin = at + 1
        if begin == 0 or begin < len(ids):
            yield decode(list(ids[begin:]))

    def pieces(self, text: str, tools: Tools) -> list[Piece]:
        """What follows a thought, to be tokenized: in a conversation with these tools."""
        if self.form.is_own(text, self._style):
            return self._cut(text)
        written: list[Written] = []
        parts = spoken(text)
        for at, part in enumerate(parts):
            match part:
                case str():
                    written.append((part, False))
                case BadCall(_, said):
                    before, behind = self.form.bad(part)
                    written += [(before, True), (said, False), (behind, True)]
                case _:
                    follows = at > 0 and not isinstance(parts[at - 1], str | BadCall)
                    precedes = at + 1 < len(parts) and not isinstance(parts[at + 1], str | BadCall)
                    written += self._written(as_read(part, tools), follows, precedes)
        return self._joined(written)

    def _written(self, call: Call | BadCall, follows: bool, precedes: bool) -> Iterator[Written]:
        """A call by the template's style, which `follows` or `precedes` another one."""
        if isinstance(call, BadCall) or not self.form.takes(call):
            yield call.said if isinstance(call, BadCall) else as_call(call.name, call.arguments), False
            return
        if not follows:
            yield self._style.open, True
        yield call.name, False
        yield self._style.middle, True
        yield from self.form.arguments(call)
        yield self._style.between if precedes else self._style.close, True

    def _joined(self, written: Sequence[Written]) -> list[Piece]:
        """Texts between marks as one, so that neighbours may share a token."""
        pieces: list[Piece] = [""]
        for text, has_marks in written:
            for piece in self._cut(text) if has_marks else [text]:
                if isinstance(piece, str) and isinstance(pieces[-1], str):
                    pieces[-1] += piece
                else:
                    pieces.append(piece)
        return [piece for piece in pieces if piece]

    def _cut(self, text: str) -> list[Piece]:
        """A text, and the tokens of the marks in it."""
        found: list[Piece] = []
        at = 0
        for mark in self._marks.finditer(text):
            found += [text[at : mark.start()], self._tokens[mark[0]]]
            at = mark.end()
        return [piece for piece in (*found, text[at:]) if piece]


def as_read(call: Call | TaggedCall, tools: Tools) -> Call | BadCall:
    """A call with the name and the arguments of one of the tools."""
    if isinstance(call, Call):
        return call
    if tools.text_of:
        return Call(tools.schemas[0].name, json.dumps({tools.text_of: call.text}, ensure_ascii=False))
    return read_call(call.text)


def in_tags(text: str, tools: Tools) -> str:
    """A text for a policy without calls of its own: its only call in the tags that its questions explain."""
    parts = spoken(text)
    calls = [part for part in parts if not isinstance(part, str)]
    if len(calls) != 1 or not isinstance(calls[0], Call):
        return text
    return "".join(part if isinstance(part, str) else _tagged(part, tools) for part in parts)


def _tagged(call: object, tools: Tools) -> str:
    assert isinstance(call, Call)
    said = as_call(call.name, call.arguments)
    if tools.text_of and call.name == tools.schemas[0].name:
        given = read_object(call.arguments)
        if given.keys() == {tools.text_of} and isinstance(given[tools.text_of], str):
            said = given[tools.text_of]
    return f"{TAG_OPEN}{said}{TAG_CLOSE}"


def style_of(segment: str, arguments: str, form: Form, several: str = "") -> Style:
    """The style of a rendered call of the probe, whose arguments are `arguments`; `several` are two of them."""
    name_at, arguments_at = segment.find(PROBE_NAME), segment.find(arguments)
    if not 0 <= name_at < arguments_at:
        return form.style
    middle = segment[name_at + len(PROBE_NAME) : arguments_at]
    close = segment[arguments_at + len(arguments) :]
    between = several.partition(arguments)[2].partition(PROBE_NAME)[0]
    return Style(segment[:name_at], middle, close, between or f"{close}\n{segment[:name_at]}")


def _listed(items: Iterable[Iterable[Written]]) -> Iterator[Written]:
    for number, item in enumerate(items):
        if number:
            yield ",", False
        yield from item


def _as_json(text: str) -> str:
    """What a bare value is as JSON: itself, if it is that as templates write it, or a word of Python; else a text."""
    text = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    try:
        (value,) = read_object(f'{{"value": {text}}}').values()
    except ValueError:
        value = text
    is_json = not isinstance(value, str) and json.dumps(value, ensure_ascii=False) == text
    return text if is_json else json.dumps(text, ensure_ascii=False)


def _checked(name: str, arguments: str, said: str) -> Call | BadCall:
    """A call of a name and a JSON object."""
    call = read_call(as_call(name, arguments or "{}"))
    return call if isinstance(call, Call) else BadCall(call.problem, said)


def _between(text: str, at: int, open: str, close: str) -> tuple[int, int] | None:
    start, end = text.rfind(open, 0, at), text.find(close, at)
    return (start, end + len(close)) if min(start, end) >= 0 else None


def _outermost(text: str, at: int) -> tuple[int, int] | None:
    """The largest JSON list or object around a place."""
    found = None
    for start in reversed([match.start() for match in re.finditer(r"[\[{]", text[:at])]):
        try:
            _, end = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            continue
        if end > at:
            found = start, end
    return found
