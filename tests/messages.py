"""The messages of this project's errors, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from swarm import errors

ROOT = Path(__file__).parent.parent
KINDS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.SwarmError) and value is not errors.Refusal
}
"""`Refusal` has the reasons of docs/reasons.md."""


class Message(NamedTuple):
    """One place where an error is made."""

    kind: str
    file: str
    text: str
    """What varies is `…`."""


def messages() -> Iterator[Message]:
    """Every error that the code makes with a text of its own."""
    for part in ("swarm", "nodes"):
        for path in sorted((ROOT / part).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                    yield Message(node.func.id, str(path.relative_to(ROOT)), _text(node.args[0]) if node.args else "")


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"
