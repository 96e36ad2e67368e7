"""The part of JSON Schema with which tools describe their arguments: checked when a tool is set up, and for each call.

A schema may be of a run's founder and arguments are of a policy: neither has references or patterns, so that a check
takes time in proportion to both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

from pydantic import JsonValue

from swarm.types.calls import MAX_CALL_DEPTH

Schema = Mapping[str, JsonValue]

MAX_SCHEMA_CHARS = 8_192
"""Most characters of a schema as JSON."""
MAX_PROBLEMS = 3
"""In one message."""
MAX_SHOWN_CHARS = 60
ANNOTATIONS = frozenset(("description", "title", "default", "examples"))
"""Keywords that describe and check nothing."""

_Check = Callable[[JsonValue], bool]
TYPES: Mapping[str, _Check] = MappingProxyType(
    {
        "string": lambda value: isinstance(value, str),
        "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
        "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
        "boolean": lambda value: isinstance(value, bool),
        "object": lambda value: isinstance(value, dict),
        "array": lambda value: isinstance(value, list),
        "null": lambda value: value is None,
    }
)
_NUMBERS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
KEYWORDS = ANNOTATIONS | {"type", "enum", "properties", "required", "additionalProperties", "items", *_NUMBERS}


def text_argument(description: str, name: str) -> Schema:
    """The schema of a tool with one argument, a text."""
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": description}},
        "required": [name],
    }


def only_text(schema: Schema) -> str:
    """The name of a schema's only argument if that is a text; empty otherwise."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(properties) != 1:
        return ""
    ((name, value),) = properties.items()
    return name if isinstance(value, dict) and value.get("type") == "string" else ""


def check_schema(schema: Schema) -> None:
    """Raises `ValueError` for one that is none of an object's, or has what is not understood here."""
    if len(json.dumps(dict(schema))) > MAX_SCHEMA_CHARS:
        raise ValueError(f"a schema must have at most {MAX_SCHEMA_CHARS} characters as JSON")
    if schema.get("type") != "object":
        raise ValueError(f"the schema of arguments must be of the type object, got {schema.get('type')!r:.100}")
    _check(schema, "parameters", MAX_CALL_DEPTH)


def _check(schema: JsonValue | Schema, where: str, depth: int) -> None:
    if not isinstance(schema, Mapping):
        raise ValueError(f"{where} must be a schema, got {schema!r:.100}")
    if depth == 0:
        raise ValueError(f"a schema must be nested at most {MAX_CALL_DEPTH} deep")
    if unknown := sorted(schema.keys() - KEYWORDS):
        raise ValueError(f"{where}: {unknown[0]!r:.100} is not understood; there are {', '.join(sorted(KEYWORDS))}")
    kinds = _types(schema)
    if not kinds or not set(kinds) <= TYPES.keys():
        raise ValueError(f"{where}: type must be one of {', '.join(TYPES)}, got {schema.get('type')!r:.100}")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise ValueError(f"{where}: properties must be schemas by name")
    if not isinstance(required, list) or not all(isinstance(each, str) and each in properties for each in required):
        raise ValueError(f"{where}: required must list names of properties")
    if not isinstance(schema.get("additionalProperties", False), bool):
        raise ValueError(f"{where}: additionalProperties must be true or false")
    if not isinstance(schema.get("enum", []), list):
        raise ValueError(f"{where}: enum must be a list")
    for name in _NUMBERS:
        if not TYPES["number"](schema.get(name, 0)):
            raise ValueError(f"{where}: {name} must be a number")
    for name, value in properties.items():
        _check(value, f"{where}.{name}"[:200], depth - 1)
    if "items" in schema:
        _check(schema["items"], f"{where}[]"[:200], depth - 1)


def with_texts(arguments: dict[str, JsonValue], schema: Schema) -> dict[str, JsonValue]:
    """Arguments with the JSON of a value where only a text can be meant: some models write both alike."""
    properties = schema.get("properties")
    parts = properties if isinstance(properties, dict) else {}
    return {name: _as_wanted(value, parts.get(name)) for name, value in arguments.items()}


def _as_wanted(value: JsonValue, part: JsonValue) -> JsonValue:
    if not isinstance(part, dict):
        return value
    kinds = _types(part)
    is_text = value is not None and "string" in kinds and not any(TYPES[kind](value) for kind in kinds)
    return json.dumps(value, ensure_ascii=False) if is_text else value


def problem_with(arguments: JsonValue, schema: Schema) -> str | None:
    """What is wrong with arguments, in words and briefly; None if nothing is."""
    found = list(islice(_problems(arguments, schema, ""), MAX_PROBLEMS))
    return "; ".join(found) if found else None


def _problems(value: JsonValue, schema: Schema, where: str) -> Iterator[str]:
    name = where or "the arguments"
    kinds = _types(schema)
    if not any(TYPES[kind](value) for kind in kinds):
        yield f"{name} must be of type {' or '.join(kinds)}, got {_shown(value)}"
        return
    choices = schema.get("enum")
    if isinstance(choices, list) and not any(_same(value, choice) for choice in choices):
        yield f"{name} must be one of {_shown(choices)}, got {_shown(value)}"
    yield from _out_of_range(value, schema, name)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        required = schema.get("required", [])
        assert isinstance(required, list)
        yield from (f"{_within(where, str(each))} is missing" for each in required if each not in value)
        for key, item in value.items():
            if isinstance(part := properties.get(key), dict):
                yield from _problems(item, part, _within(where, key))
            elif not schema.get("additionalProperties", False):
                yield f"there is no argument {_within(where, key)}"
    if isinstance(value, list) and isinstance(part := schema.get("items"), dict):
        for index, item in enumerate(value):
            yield from _problems(item, part, f"{where}[{index}]")


def _out_of_range(value: JsonValue, schema: Schema, name: str) -> Iterator[str]:
    if isinstance(value, str):
        size, least, most = len(value), schema.get("minLength"), schema.get("maxLength")
        what = "characters"
    elif isinstance(value, list):
        size, least, most = len(value), schema.get("minItems"), schema.get("maxItems")
        what = "items"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        least, most = schema.get("minimum"), schema.get("maximum")
        if isinstance(least, int | float) and value < least:
            yield f"{name} must be at least {least}, got {_shown(value)}"
        if isinstance(most, int | float) and value > most:
            yield f"{name} must be at most {most}, got {_shown(value)}"
        return
    else:
        return
    if isinstance(least, int | float) and size < least:
        yield f"{name} must have at least {least} {what}, got {size}"
    if isinstance(most, int | float) and size > most:
        yield f"{name} must have at most {most} {what}, got {size}"


def _types(schema: Schema) -> Sequence[str]:
    kinds = schema.get("type")
    return [str(each) for each in kinds] if isinstance(kinds, list) else [str(kinds)]


def _same(one: JsonValue, other: JsonValue) -> bool:
    return type(one) is type(other) and one == other


def _within(where: str, key: str) -> str:
    return f"{where}.{key}"[-MAX_SHOWN_CHARS:] if where else key[:MAX_SHOWN_CHARS]


def _shown(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
