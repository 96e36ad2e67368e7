"""`swarm docs`: the documents that travel with the package, a section at a time."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from nodes.commands.reference import show_document
from swarm.documents import DOCS, anchor, names, section
from swarm.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent


def test_the_package_has_all_documents() -> None:
    assert names() == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    assert DOCS.parent == ROOT / "swarm"


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
