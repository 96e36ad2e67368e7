"""The documents of docs/, which travel with the package: as pages for browsers, and a section at a time for terminals.

Browsers get no markup that is not markdown's, and no link but to other documents, to headings and to other sites.
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from swarm.errors import ConfigError

DOCS = Path(__file__).parent / "docs"
LINK = re.compile(r"(\.\./|extras/)?[a-zA-Z0-9-]+\.md(#[\w-]+)?|#[\w-]+|https://[^\s]+")
"""What a link in a document may lead to; other files are in the repository only."""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="/icon.svg">
<link rel="stylesheet" href="/page.css">
</head>
<body>
<nav class="note"><a href="/">The page</a> · {others}</nav>
<main class="document">
{body}
</main>
</body>
</html>
"""


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
    return next((line[2:] for line in _text(name).splitlines() if line.startswith("# ")), name)


def names() -> list[str]:
    """Paths of all documents within docs/, such as `tasks.md` and `extras/media.md`."""
    return sorted(path.relative_to(DOCS).as_posix() for part in ("*.md", "extras/*.md") for path in DOCS.glob(part))


@lru_cache(64)
def as_html(name: str) -> bytes | None:
    """A document as an HTML page; None when there is none of this name."""
    if name not in names():
        return None
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(_text(name))
    for heading, inline in zip(tokens, tokens[1:], strict=False):
        if heading.type == "heading_open":
            heading.attrSet("id", anchor(inline.content))
    for token in tokens:
        token.attrs.pop("style", None)  # which the page's policy forbids
        token.children = list(_without_files(token.children or []))
    body = reader.renderer.render(tokens, reader.options, {})
    title = next((inline.content for inline in tokens if inline.type == "inline"), name)
    others = " · ".join(f'<a href="/docs/{other}">{other.removesuffix(".md")}</a>' for other in names())
    return PAGE.format(title=html.escape(title), others=others, body=body).encode()


def section(name: str, heading: str) -> str:
    """The part of a document below the heading with this anchor; the whole document without one.

    Raises `ConfigError` when it is not there.
    """
    lines = _text(name).splitlines()
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


def _without_files(tokens: list[Token]) -> Iterator[Token]:
    """Text instead of pictures, and of links to what is in the repository only."""
    leads = True
    for token in tokens:
        if token.type == "link_open":
            leads = LINK.fullmatch(str(token.attrs.get("href", ""))) is not None
        if token.type == "image":
            yield Token("text", "", 0, content=token.content)
        elif leads or token.type not in ("link_open", "link_close"):
            yield token


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")
