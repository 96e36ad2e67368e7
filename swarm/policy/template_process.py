"""Renders chat templates: a script for `turns.py` only, which imports nothing of this project.

A template is a program: whoever made the model wrote it. Jinja's sandbox keeps it from Python's objects, but not from
loops and texts without end; so it runs in this process, which has little memory and little time for each request.

The environment is that of transformers (its module chat_template_utils), without a clock.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment

LIMIT_S = 2.0
"""Processor time for one conversation."""
MAX_MEMORY_BYTES = 2**30
MAX_RENDERED_CHARS = 2**24
MAX_ERROR_CHARS = 300
MAX_OPEN_FILES = 16
LENGTH_BYTES = 4


class Generation(jinja2.ext.Extension):
    """`{% generation %}`, which marks a turn of the policy, renders what is in it."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Parse it to a block that is called."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller: jinja2.runtime.Macro) -> str:
        """Its content."""
        return str(caller())


class Namespace(jinja2.utils.Namespace):
    """A namespace without attributes that lead into Python."""

    def __init__(*args: Any, **values: Any) -> None:
        """A template may name a value `self`."""
        self, *rest = args
        attributes = dict(*rest, **values)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        """Set a value."""
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")


class Dictionaries:
    """`dict`, without the class."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        """A new dictionary."""
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """See `dict`."""
        return dict.fromkeys(*args)


def _refuse(message: object) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def _to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def environment() -> ImmutableSandboxedEnvironment:
    """The environment of chat templates."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals |= {"raise_exception": _refuse, "dict": Dictionaries(), "namespace": Namespace}
    return made


def reply(templates: ImmutableSandboxedEnvironment, request: dict[str, Any]) -> dict[str, str]:
    """The text, or why there is none."""
    try:
        template = templates.from_string(request["template"])
        text = template.render({"tools": None, "documents": None, **request["values"]})
    except Exception as error:  # whatever a template makes Python raise
        return {"error": f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]}
    if len(text) > MAX_RENDERED_CHARS:
        return {"error": f"it makes {len(text)} characters, more than {MAX_RENDERED_CHARS}"}
    return {"text": text}


def main() -> None:
    """Answer requests until the other side ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_OPEN_FILES, MAX_OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    templates = environment()
    while length := sys.stdin.buffer.read(LENGTH_BYTES):
        request = json.loads(sys.stdin.buffer.read(int.from_bytes(length, "big")))
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)  # which ends this process
        answer = json.dumps(reply(templates, request)).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
