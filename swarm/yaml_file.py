"""A YAML file of fields, and the line of each, so that errors name lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from pydantic import JsonValue

from swarm.errors import ConfigError

UNREADABLE = (yaml.YAMLError, ValueError, LookupError, RecursionError)
"""What reading YAML raises. Errors of Python come through the library: for February 31, `!!int x`, deep nesting."""


MAX_NESTING = 256
"""Lists and mappings in brackets, one within the other; the library takes time with the square of their number."""


class _Loader(yaml.SafeLoader):
    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803 - the library's name
        if self.flow_level >= MAX_NESTING:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass)


class YamlFile:
    """The values of a file and where they are."""

    def __init__(self, file: Path) -> None:
        """Raises `ConfigError` when it cannot be read, is not a mapping, or gives a field twice."""
        try:
            self._root, values = read(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read configuration {file}: {error.strerror}") from error
        except UNREADABLE as error:
            raise ConfigError(f"configuration {file} is not valid YAML: {_in_words(error)}") from error
        if not isinstance(values, dict | None):
            raise ConfigError(f"configuration {file} must be a mapping of fields, got {type(values).__name__}")
        check(self._root, values, f"configuration {file}")
        self.path = file
        self.values: dict[str, JsonValue] = values or {}

    def line(self, path: Sequence[str | int]) -> int | None:
        """The line of a field, or of the nearest one around it; parts that are not in the file are passed over."""
        return self._find(path)[1]

    def text(self, path: Sequence[str | int]) -> str | None:
        """A value as it is written there without quotes; None if it is not such a value."""
        node, _ = self._find(path)
        return str(node.value) if isinstance(node, yaml.ScalarNode) and node.style is None else None

    def _find(self, path: Sequence[str | int]) -> tuple[yaml.Node | None, int | None]:
        """What is at a path, and its line, as above."""
        node, line = self._root, None
        for part in path:
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == str(part):
                        node, line = value, key.start_mark.line + 1
                        break
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
        return node, line


def read(text: str) -> tuple[yaml.Node | None, JsonValue]:
    """What YAML says, and where; raises one of `UNREADABLE`."""
    return yaml.compose(text, _Loader), yaml.load(text, _Loader)


def check(root: yaml.Node | None, values: JsonValue, subject: str) -> None:
    """Raises `ConfigError` for YAML that can be read, and would be misunderstood; `subject` says whose it is."""
    if _holds_itself(values):
        raise ConfigError(f"{subject} is not valid YAML: an alias makes a value part of itself")
    for line, key in _doubled(root):
        raise ConfigError(f"{subject}, line {line}: {key} is given twice; only the last would count")


def _doubled(root: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """Line and name of each key that its mapping has already; each node once, however often aliases name it."""
    waiting, visited = [root], {id(None)}
    while waiting:
        node = waiting.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    yield key.start_mark.line + 1, key.value
                seen.add(str(key.value))
                waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _holds_itself(root: object) -> bool:
    """Whether an alias makes a value part of itself."""
    within: set[int] = set()
    done: set[int] = set()
    waiting: list[tuple[object, bool]] = [(root, False)]
    while waiting:
        value, left = waiting.pop()
        if left:
            within.discard(id(value))
            done.add(id(value))
        elif id(value) in within:
            return True
        elif isinstance(value, dict | list) and id(value) not in done:
            within.add(id(value))
            waiting.append((value, True))
            waiting += [(each, False) for each in (value.values() if isinstance(value, dict) else value)]
    return False


def _in_words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its lists or mappings are nested too deep"
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
