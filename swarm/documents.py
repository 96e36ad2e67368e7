"""The documents of docs/, which travel with the package, and their sections."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from swarm.errors import ConfigError

DOCS = Path(__file__).parent / "docs"


def found(name: str) -> str:
    """The file name of the document that a person means: by its name, or by what one of them alone contains.

    Raises `ConfigError`, which names those that may be meant.
    """
    wanted = name.lower().removesuffix(".md")
    known = {each.lower().removesuffix(".md"): each for each in names()}
    if wanted in known:
        return known[wanted]
    begin = [each for each in known if each.startswith(wanted)]
    within = begin or [each for each in known if wanted in each]
    if len(within) == 1:
        return known[within[0]]
    near = within or difflib.get_close_matches(wanted, known, n=3)
    meant = f", did you mean {' or '.join(near)}" if near else ""
    raise ConfigError(f"there is no document {name!r}{meant}; `swarm docs` lists them all")


def title(name: str) -> str:
    """The first heading of a document."""
    return next((line[2:] for line in text(name).splitlines() if line.startswith("# ")), name)


def names() -> list[str]:
    """Paths of all documents within docs/, such as `tasks.md` and `extras/media.md`."""
    return sorted(path.relative_to(DOCS).as_posix() for part in ("*.md", "extras/*.md") for path in DOCS.glob(part))


def section(name: str, heading: str) -> str:
    """The part of a document below the heading with this anchor; the whole document without one.

    Raises `ConfigError` when it is not there.
    """
    lines = text(name).splitlines()
    if not heading:
        return "\n".join(lines)
    levels = dict(_headings(lines))
    start = next((number for number in levels if anchor(lines[number]) == heading), None)
    if start is None:
        known = ", ".join(anchor(lines[number]) for number in levels)
        raise ConfigError(f"{name} has no section {heading!r}; it has {known}")
    end = next((number for number, level in levels.items() if number > start and level <= levels[start]), len(lines))
    return "\n".join(lines[start:end])


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).replace(" ", "-")


def _headings(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Line number and level of each heading, outside of code blocks."""
    code = False
    for number, line in enumerate(lines):
        code ^= line.startswith("```")
        if not code and (found := re.match(r"(#+) ", line)):
            yield number, len(found[1])


def text(name: str) -> str:
    """A document's markdown."""
    return (DOCS / name).read_text(encoding="utf-8")
