"""Conversations in a policy's tokens: by its chat template, or as plain text where there is none.

A chat template renders whole conversations, and tokenizing what it renders may split an earlier turn into other tokens
than were sampled. So of an episode only what follows a turn is taken from the template, once; a turn's own tokens stay
as they are.

A template is a program of whoever made the model. One process with little memory and time renders those of all policies
of a node: `template_process.py`. It starts with the first template, and again after one that ended it.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import JsonValue
from transformers import PreTrainedTokenizerBase

from swarm.errors import PolicyError
from swarm.lru import LruDict
from swarm.policy import template_process
from swarm.policy.calling import (
    FORMS,
    PROBE_ARGUMENT,
    PROBE_NAME,
    CallFormat,
    Calling,
    Form,
    Style,
    form_of,
    style_of,
)
from swarm.policy.media.features import Kind, joined
from swarm.policy.thinking import Marks, Thinking, find_marks
from swarm.sanitize import clean
from swarm.types import (
    Message,
    Observation,
    Shown,
    Text,
    ToolResult,
    Tools,
    as_text,
    in_words,
    observation_text,
    shown,
)
from swarm.types.calls import Call
from swarm.types.media import Audio, Image

if TYPE_CHECKING:
    from swarm.policy.media.processor import Reader

SYSTEM, QUESTION, ANSWER, OBSERVATION = "SYSTEMMARK", "QUESTIONMARK", "ANSWERMARK", "OBSERVATIONMARK"
"""They stand for texts while a template is read."""
DATE = datetime(2024, 7, 26)
"""Today for chat templates that write the date into the system prompt, on every node and for ever: what was sampled
before midnight, or in another time zone, is read again at the update and in audits. Llama 3's own template takes this
day where it has no clock."""
CLOCK = "strftime_now"
"""The name by which templates ask for it."""
DIRECTIVES = ("-d", "-m", "-I", "-H", *"aAbBcdDeFhHIjmMpSTuUwWxXyYZ")
"""Parts of a date that a template can ask for, by what follows `%`."""
MOST_RESULTS = 256
"""Sequences of tools between whose results the template's tokens are kept."""
WITHOUT_TEMPLATE = "\n"
"""Before and after an observation, and around media, where there is no template."""


class TemplateUse(NamedTuple):
    """How a policy uses its chat template."""

    arguments: Mapping[str, JsonValue] = {}
    """Values for the template's own variables."""
    marks: Marks | None = None
    """Around a thought; None: those that the template writes."""
    calls: CallFormat = "auto"
    """The setting `policy.tool_calls`."""


AS_IT_IS = TemplateUse()


class Conversations:
    """Token ids of questions, and of what follows a turn."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: Collection[int],
        reader: Reader | None = None,
        use: TemplateUse = AS_IT_IS,
    ) -> None:
        """`stop_ids` end a turn; `reader` makes media of what is not text. The template is read when it is needed."""
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._reader = reader
        self._use = use
        self._known_results = LruDict[tuple[str, ...], tuple[list[list[int]], bool]](MOST_RESULTS)

    def prompt(self, messages: tuple[Message, ...]) -> list[int]:
        """Token ids of a question. System text that the template cannot take begins the user's first text."""
        tools = messages[-1].tools
        if tools is not None and self.calling is None:
            messages, tools = in_words(messages), None
        if self._tokenizer.chat_template:
            messages = messages if self._has_system_role else without_system(messages)
            return self._with_media(self._rendered(messages, tools), messages, is_whole=True)
        if self._reader is not None:
            text = "\n\n".join(self._inline(message.parts) for message in messages)
        else:
            text = as_text(messages)
        return self._with_media(f"{text}\n" if len(messages) > 1 else text, messages, is_whole=False)

    def observation(self, observation: Observation, after: Sequence[int]) -> list[int]:
        """Token ids of an observation between a turn with the ids `after` and the next one. Results of calls have the
        template's role for them.

        Text that spells a special token stays text: an environment may repeat text of untrusted peers. Raises
        `PolicyError` for a template without such conversations.
        """
        results = [part for part in observation if isinstance(part, Text | ToolResult) and part.tool]
        if self.calling is not None and results and len(results) == len(observation):
            return self._results(results, after)
        before, behind = self._around
        before = self._unended(before, after)
        if self._reader is None:
            return [*before, *self._said(observation_text(observation)), *behind]
        parts = [self._part(part) for part in self._reader.spread(shown(observation))]
        return joined([before, *parts, behind])

    def _unended(self, before: list[int], after: Sequence[int]) -> list[int]:
        """What comes between a turn and what follows it: if the turn has ended itself, without the template's end."""
        has_ended = after and after[-1] in self._stop_ids and before and before[0] in self._stop_ids
        return before[1:] if has_ended and before[0] in (after[-1], self.end) else before

    def _results(self, results: Sequence[Text | ToolResult], after: Sequence[int]) -> list[int]:
        """Token ids of results."""
        names = tuple(part.tool for part in results)
        if names not in self._known_results:
            self._known_results[names] = self._read_results(names)
        (before, *between), is_quoted = self._known_results[names]
        found = self._unended(before, after)
        for part, behind in zip(results, between, strict=True):
            text = json.dumps(part.text, ensure_ascii=False)[1:-1] if is_quoted else part.text
            found = [*found, *self._said_apart(text), *behind]
        return found

    def _said_apart(self, text: str) -> list[int]:
        """Token ids of a text in which no added token is spelled, special or not: it ends neither itself nor a turn."""
        ids = self._said(text)
        if not self._added_ids.intersection(ids):
            return ids
        lengths = {len(token) for token in self._added if len(token) > 1}
        begins = [at for at in range(len(text)) if any(text[at : at + length] in self._added for length in lengths)]
        cuts = [0, *(at + 1 for at in begins), len(text)]
        return [token for at, end in pairwise(cuts) for token in self._said(text[at:end])]

    @cached_property
    def _added(self) -> Mapping[str, int]:
        added: dict[str, int] = self._tokenizer.get_added_vocab()
        return added

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self._added.values())

    def _part(self, part: Text | Image | Audio) -> list[int]:
        assert self._reader is not None
        if isinstance(part, Text):
            return self._said(part.text)
        kind: Kind = "image" if isinstance(part, Image) else "audio"
        before, behind = self._around_media(kind)
        return joined([self._plain(before), self._reader.ids(part), self._plain(behind)])

    def _said(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _with_media(self, text: str, messages: Sequence[Message], is_whole: bool) -> list[int]:
        """Tokens of a text, with those of the messages' media in their slots; `is_whole`: with special tokens."""
        ids = list(self._tokenizer.encode(text, add_special_tokens=not is_whole))
        if self._reader is None:
            return ids
        parts = [part for message in messages for part in self._reader.spread(message.parts)]
        media = iter([self._reader.ids(part) for part in parts if not isinstance(part, Text)])
        marks = set(map(self._tokenizer.convert_tokens_to_ids, self._reader.tokens()))
        found: list[list[int]] = [[]]
        for token in ids:
            if token in marks:
                found += [next(media), []]
            else:
                found[-1].append(token)
        return joined(found)

    def _rendered(self, messages: Sequence[Message], tools: Tools | None = None) -> str:
        """The conversation by the template, up to the policy's turn."""
        turns = [{"role": each.role, "content": self._content(each)} for each in messages]
        return self._by_template(turns, _functions(tools) if tools is not None else None)

    def _content(self, message: Message) -> str | list[dict[str, str]]:
        """The content of a message in the template's format."""
        if self._takes_parts:
            return self._as_parts(message.parts)
        text = message.text if self._reader is None else self._inline(message.parts)
        return [{"type": "text", "text": text}] if self._takes_lists else text

    def check(self) -> None:
        """Render a question, if there is a template, and find the marks of thoughts.

        Raises `PolicyError` for a template that cannot, that leaves out the question, or that does not read one of its
        arguments.
        """
        if self._tokenizer.chat_template and QUESTION not in self._question:
            raise PolicyError("the model's chat template leaves out the question: repair it, or choose another model")
        for name in self._use.arguments:
            if not self._tokenizer.chat_template or not re.search(rf"\b{re.escape(name)}\b", self._template):
                raise PolicyError(
                    f"policy.chat_template_kwargs.{name}: the model's chat template reads no value of this name"
                )
        _ = self.thinking, self.calling

    @cached_property
    def calling(self) -> Calling | None:
        """How the policy calls tools; None if words explain it. Raises `PolicyError` for a setting that does not
        suit the template."""
        wanted = self._use.calls
        if wanted == "tags":
            return None
        found = self._probed() if self._takes_tools else None
        if found is None and wanted != "auto":
            raise PolicyError(
                f"policy.tool_calls is {wanted}, but the model's chat template does not render tools and a call of one "
                "in this way: set it to auto or tags, or give a template with policy.chat_template"
            )
        if found is None:
            return None
        return Calling(*found, self._plain, self._added_ids.__contains__)

    @property
    def _takes_tools(self) -> bool:
        """Whether the template may render tools, and calls of them."""
        return bool(self._tokenizer.chat_template) and all(name in self._template for name in ("tools", "tool_calls"))

    def _probed(self) -> tuple[Form, Style] | None:
        """The form in which the template renders a call; None for another one."""
        try:
            if PROBE_NAME not in self._by_template([{"role": "user", "content": self._worded(QUESTION)}], [PROBE]):
                return None
            text, at = self._with_calls([ANSWER])
        except PolicyError:
            return None
        call = Call(PROBE_NAME, json.dumps({PROBE_ARGUMENT: ANSWER}))
        for form in FORMS:
            if self._use.calls in ("auto", form.name) and (place := form.place(text, at)):
                segment = text[slice(*place)]
                if form_of(segment, form):
                    arguments = "".join(said for said, _ in form.arguments(call))
                    return form, style_of(segment, arguments, form, self._two_calls(arguments))
        return None

    def _two_calls(self, arguments: str) -> str:
        """Two calls of the probe as the template renders them; empty if it takes one alone."""
        try:
            text, _ = self._with_calls([ANSWER, ANSWER])
        except PolicyError:
            return ""
        return text if text.count(arguments) == 2 else ""

    def _with_calls(
        self, given: Sequence[str], results: Sequence[str] = (), names: Sequence[str] = ()
    ) -> tuple[str, int]:
        """A conversation in which the policy calls a tool with these texts, and where the last one is.

        `results` are what tools with these names answer. Raises `PolicyError`, also where a text is left out.
        """
        calls = [
            {
                "id": f"call{number:05}",
                "type": "function",
                "function": {"name": name, "arguments": {PROBE_ARGUMENT: text}},
            }
            for number, (text, name) in enumerate(zip_longest(given, names[: len(given)], fillvalue=PROBE_NAME))
        ]
        said: dict[str, object] = {"role": "assistant", "content": self._worded(""), "tool_calls": calls}
        answers: list[dict[str, object]] = [
            {"role": "tool", "name": name, "tool_call_id": f"call{number:05}", "content": self._worded(text)}
            for number, (name, text) in enumerate(zip(names, results, strict=True))
        ]
        if results and "tool_responses" in self._template:  # Gemma 4 has them in the message of the calls
            said["tool_responses"] = [
                {"name": name, "response": text} for name, text in zip(names, results, strict=True)
            ]
            answers = []
        text = self._by_template([{"role": "user", "content": self._worded(QUESTION)}, said, *answers], [PROBE])
        if given[-1] not in text:
            raise PolicyError("the chat template does not render a call of a tool")
        return text, text.rindex(given[-1])

    def _worded(self, text: str) -> str | list[dict[str, str]]:
        """A text as the template takes one."""
        return [{"type": "text", "text": text}] if self._takes_lists else text

    def _read_results(self, names: Sequence[str]) -> tuple[list[list[int]], bool]:
        """Tokens before, between and behind results of tools with these names, and whether the template writes results
        as JSON strings. Raises `PolicyError`."""
        assert self.calling is not None
        marks = [f'RESULT"{number}"MARK' for number in range(len(names))]
        try:
            text, at = self._with_calls([ANSWER] * len(names), marks, names)
        except PolicyError:  # Llama takes one call a turn
            text, at = self._with_calls([ANSWER], marks, names)
        is_quoted = marks[0] not in text
        marks = [json.dumps(mark)[1:-1] for mark in marks] if is_quoted else marks
        place = self.calling.form.place(text, at)
        rest = text[place[1] :] if place else ""
        found = []
        for mark in marks:
            before, here, rest = rest.partition(mark)
            if not here:
                raise PolicyError("the chat template does not render results of tools, each once and in their order")
            found.append(before)
        return [self._plain(part) for part in (*found, rest)], is_quoted

    @cached_property
    def end_of_calls(self) -> list[int]:
        """What ends a turn of the policy with calls: the template's token for it, if that stops generation."""
        (before, *_), _ = self._read_results((PROBE_NAME,))
        return before[:1] if before and before[0] in self._stop_ids else [self.end]

    @cached_property
    def thinking(self) -> Thinking | None:
        """How the policy marks its thoughts; None if it has no marks. Raises `PolicyError`."""
        template = self._tokenizer.chat_template
        marks = self._use.marks or (find_marks(self._template) if template else None)
        if marks is None:
            return None
        question = self._question if template else ""
        return Thinking(marks, question, self._plain, self._added_ids.__contains__)

    @cached_property
    def _question(self) -> str:
        return self._rendered([Message("user", QUESTION)])

    def _by_template(
        self, turns: Sequence[Mapping[str, object]], tools: list[Mapping[str, object]] | None = None
    ) -> str:
        """Raises `PolicyError` for whatever the template raises."""
        if type(self._tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
            return str(
                self._tokenizer.apply_chat_template(
                    turns, tools=tools, add_generation_prompt=True, tokenize=False, **self._use.arguments
                )
            )
        special = {name: str(token) for name, token in self._tokenizer.special_tokens_map.items()}
        return RENDERER.render(
            self._template,
            {**self._use.arguments, **special, "messages": list(turns), "add_generation_prompt": True, "tools": tools},
        )

    @cached_property
    def _template(self) -> str:
        """The tokenizer's template, in which it is always the same day."""
        try:
            template: str = self._tokenizer.get_chat_template()
        except ValueError as error:
            raise PolicyError(f"the tokenizer has no chat template that could be used: {clean(str(error))}") from error
        return always_the_same_day(template)

    def _as_parts(self, parts: Sequence[Shown]) -> list[dict[str, str]]:
        assert self._reader is not None
        return [
            {"type": "text", "text": self._reader.escaped(part.text)}
            if isinstance(part, Text)
            else {"type": "image" if isinstance(part, Image) else "audio"}
            for part in self._reader.spread(parts)
        ]

    def _inline(self, parts: Sequence[Shown]) -> str:
        assert self._reader is not None
        return WITHOUT_TEMPLATE.join(
            self._reader.escaped(part.text)
            if isinstance(part, Text)
            else self._reader.token("image" if isinstance(part, Image) else "audio")
            for part in self._reader.spread(parts)
        )

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template renders messages of parts."""
        if self._reader is None:
            return False
        kind, *_ = self._reader.kinds
        parts = [{"type": kind}, {"type": "text", "text": QUESTION}]
        try:
            text = self._by_template([{"role": "user", "content": parts}])
        except PolicyError:
            return False
        return text.count(self._reader.token(kind)) == 1 and text.count(QUESTION) == 1 and "{" not in text

    @cached_property
    def _takes_lists(self) -> bool:
        """Whether the template renders a text only as a list of parts, of which it is the only one."""
        return not self._shows_question(QUESTION) and self._shows_question([{"type": "text", "text": QUESTION}])

    def _shows_question(self, content: object) -> bool:
        try:
            return QUESTION in self._by_template([{"role": "user", "content": content}])
        except PolicyError:
            return False

    @cached_property
    def _has_system_role(self) -> bool:
        """Whether the template renders system text and the question; some refuse it, as Gemma's first, some leave it
        out, and some render the first message alone."""
        try:
            text = self._rendered([Message("system", SYSTEM), Message("user", QUESTION)])
            return SYSTEM in text and QUESTION in text
        except PolicyError:
            return False

    @cached_property
    def end(self) -> int:
        """The token that ends a turn: what the template puts behind an answer if that stops generation, else the
        tokenizer's end token, which chat models keep for the end of a text."""
        eos: int = self._tokenizer.eos_token_id
        if not self._tokenizer.chat_template:
            return eos
        try:
            before, _ = self._read_template()
        except PolicyError:  # answers of one turn need no episodes
            return eos
        first = self._plain(before.lstrip())[:1]
        return first[0] if first and first[0] in self._stop_ids else eos

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """Tokens before and behind the observation."""
        before, behind = self._read_template() if self._tokenizer.chat_template else (WITHOUT_TEMPLATE,) * 2
        return self._plain(before), self._plain(behind)

    def _read_template(self) -> tuple[str, str]:
        turns = [
            Message("user", QUESTION),
            Message("assistant", ANSWER),
            Message("user", OBSERVATION),
        ]
        try:
            text = self._rendered(turns)
        except PolicyError as error:
            raise PolicyError(f"the chat template refuses an episode of two turns: {error}") from error
        before, mark, behind = text.partition(ANSWER)[2].partition(OBSERVATION)
        if not mark:
            raise PolicyError("the chat template does not render an answer and what follows it, in this order")
        return before, behind

    def _around_media(self, kind: Kind) -> tuple[str, str]:
        """The template's text before and after a medium within a message."""
        assert self._reader is not None
        if not (self._tokenizer.chat_template and self._takes_parts):
            return WITHOUT_TEMPLATE, WITHOUT_TEMPLATE
        parts = [{"type": "text", "text": QUESTION}, {"type": kind}, {"type": "text", "text": OBSERVATION}]
        text = self._by_template([{"role": "user", "content": parts}])
        within = text.partition(QUESTION)[2].partition(OBSERVATION)[0]
        before, _, behind = within.partition(self._reader.token(kind))
        return before, behind


def _functions(tools: Tools) -> list[Mapping[str, object]]:
    """Tools in the format of templates."""
    return [_function(each.name, each.description, json.loads(each.parameters)) for each in tools.schemas]


def _function(name: str, description: str, parameters: Mapping[str, object]) -> Mapping[str, object]:
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


PROBE = _function(PROBE_NAME, "Probe.", {"type": "object", "properties": {PROBE_ARGUMENT: {"type": "string"}}})


def always_the_same_day(template: str) -> str:
    """The template with a clock that stands still.

    transformers gives templates a clock that cannot be replaced, but a template's own macro comes first.
    """
    if CLOCK not in template:
        return template
    parts = "".join(f"|replace('%{each}', '{DATE.strftime(f'%{each}')}')" for each in DIRECTIVES)
    return f"{{% macro {CLOCK}(format) %}}{{{{ format{parts} }}}}{{% endmacro %}}\n{template}"


def without_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The conversation with its system text, if any, before the user's first text."""
    if messages[0].role != "system":
        return messages
    system, first, *rest = messages
    if isinstance(first.content, str):
        return (Message(first.role, f"{system.text}\n\n{first.content}"), *rest)
    return (Message(first.role, (Text(f"{system.text}\n\n"), *first.content)), *rest)


SCRIPT = Path(template_process.__file__)
KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "PYTHONHOME")
"""Variables without which some installations of Python do not start."""
PATIENCE_S = 120.0
"""Wall-clock limit, for a machine that is busy with other things."""


class TemplateRenderer:
    """Any thread may call it. A forked child starts a separate process."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._here: ImmutableSandboxedEnvironment | None = None

    def stay(self) -> None:
        """Render in this process from now on: in one that is confined and can start no other."""
        self._here = template_process.environment()

    def render(self, template: str, values: Mapping[str, object]) -> str:
        """A template rendered with these values. Raises `PolicyError` for whatever it raises, and at the limits."""
        if self._here is not None:
            return _text(template_process.reply(self._here, {"template": template, "values": dict(values)}))
        request = json.dumps({"template": template, "values": dict(values)}).encode()
        with self._lock:
            answer = self._ask(len(request).to_bytes(template_process.LENGTH_BYTES, "big") + request)
        if answer is None:
            raise PolicyError(
                f"the model's chat template takes over {template_process.LIMIT_S:.0f} s of processor time, or over "
                f"{template_process.MAX_MEMORY_BYTES} bytes of memory: choose another model, or repair its template"
            )
        return _text(json.loads(answer))

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _ask(self, request: bytes) -> bytes | None:
        """None if the process ends before it answers."""
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.close()
            self._process, self._owner = _start(), os.getpid()
        assert self._process.stdin is not None and self._process.stdout is not None
        patience = threading.Timer(PATIENCE_S, self._process.kill)
        patience.daemon = True
        patience.start()
        try:
            with suppress(OSError):
                self._process.stdin.write(request)
                self._process.stdin.flush()
            length = int.from_bytes(self._process.stdout.read(template_process.LENGTH_BYTES), "big")
            answer = self._process.stdout.read(length)
        finally:
            patience.cancel()
        if answer and len(answer) == length:
            return answer
        self.close()
        return None


def _text(reply: Mapping[str, str]) -> str:
    if "text" not in reply:
        raise PolicyError(f"the model's chat template cannot be used: {clean(reply['error'])}")
    return reply["text"]


def _start() -> subprocess.Popen[bytes]:
    """Raises `PolicyError` when the system has no room for it."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUTF8": "1"},
            start_new_session=True,  # the terminal's Ctrl-C goes to the node
        )
    except OSError as error:
        raise PolicyError(f"the process for chat templates cannot be started: {error}") from error


RENDERER = TemplateRenderer()
"""The renderer of this process."""
atexit.register(RENDERER.close)
