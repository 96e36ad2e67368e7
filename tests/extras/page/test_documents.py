"""The documents that travel with the package: every alert leads to its section."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import pytest

from swarm.documents import names, section
from swarm.extras.page.server import as_html
from swarm.telemetry import alerts as module

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
