"""The documents that travel with the package: every alert leads to its section, in a browser and in a terminal."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import pytest
from rich.console import Console

from nodes.commands.reference import show_document
from swarm.documents import DOCS, anchor, names, section
from swarm.errors import ConfigError
from swarm.extras.page.server import as_html
from swarm.telemetry import alerts as module

ROOT = Path(__file__).parent.parent.parent.parent
PAGES = sorted(set(re.findall(r'"([a-z-]+\.md(?:#[\w-]+)?)",\n', Path(module.__file__).read_text())))


class Seen(HTMLParser):
    """Ids, links and forbidden things of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.attributes |= given.keys()
        self.ids |= {given["id"] or ""} if "id" in given else set()
        if tag == "a":
            self.links.append(given["href"] or "")


def _seen(name: str) -> Seen:
    page = as_html(name)
    assert page is not None
    seen = Seen()
    seen.feed(page.decode())
    return seen


def test_the_package_has_all_documents() -> None:
    assert names() == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    assert DOCS.parent == ROOT / "swarm"


@pytest.mark.parametrize("where", PAGES)
def test_an_alert_is_one_click_from_its_section(where: str) -> None:
    assert len(PAGES) >= 7
    name, _, heading = where.partition("#")
    assert not heading or heading in _seen(name).ids
    assert len(section(name, heading)) > 100


@pytest.mark.parametrize("name", names())
def test_a_document_is_harmless_and_its_links_lead_somewhere(name: str) -> None:
    seen = _seen(name)
    assert not seen.tags & {"script", "img", "iframe", "style"}
    assert not {each for each in seen.attributes if each.startswith("on") or each == "style"}
    for link in seen.links:
        file, _, heading = urljoin(f"/docs/{name}", link).removeprefix("/docs/").partition("#")
        if not link.startswith("https://") and link != "/":
            assert file in names(), link
            assert heading == "" or heading in _seen(file).ids, link


def test_a_section_ends_where_the_next_begins() -> None:
    text = section("operate.md", "is-the-swarm-helping-me")
    assert text.startswith("## Is the swarm helping me?") and "### What receiving costs" in text
    assert "## Behind NAT" not in text
    assert anchor("## What's `new`?") == "whats-new"


def test_a_terminal_shows_a_section_and_says_what_there_is() -> None:
    output = io.StringIO()
    show_document("docs/operate.md#logs", Console(file=output, width=80))
    assert "swarm logs" in output.getvalue() and "Diagnosis" not in output.getvalue()
    show_document(None, Console(file=output, width=80))
    assert "extras/page" in output.getvalue() and "The page of a node" in output.getvalue()
    for where in ("nothing", "../pyproject.toml", "operate#nothing"):
        with pytest.raises(ConfigError, match="there is no document|has no section 'nothing'; it has"):
            show_document(where, Console(file=output))
