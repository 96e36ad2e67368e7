"""What documents and docstrings name is there."""

from __future__ import annotations

import ast
import re
from inspect import cleandoc
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parent.parent
CODE = ("swarm", "nodes", "benchmarks", "tests", "examples")
MODULES = {str(path.relative_to(ROOT)) for part in CODE for path in (ROOT / part).rglob("*.py")}
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))

WORDS = (
    "told",
    "anew",
    "of its own",
    "of their own",
    "one's own",
    "by its word",
    "goes on from",
    "strangers?",
    "pictures?",
)
"""Not the field's words: say notified, again, separate or custom, self-reported, resumes, untrusted peer, image."""
GENERATED = {"configuration.md", "reasons.md", "sizing.md", "families.md"}
"""Documents that consist of texts from the code; its own word list decides about them."""
NOT_THE_FIELDS = re.compile(r"^(Of|As|By) |\b(told|anew|one's own|by its word)\b")
"""Fragments without a head, and words, that no docstring has."""
NOT_PROSE = re.compile(r"^```.*?^```$|^    .*?$|`[^`\n]*`|\]\([^)\n]*\)|</?picture>", re.DOTALL | re.MULTILINE)
"""Code, output, links and markup."""


def _heading(line: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_that_a_document_names_is_there(document: Path) -> None:
    named = re.findall(r"`([\w/]+\.py)`", document.read_text())
    assert [name for name in named if not any(f"/{module}".endswith(f"/{name}") for module in MODULES)] == []


@pytest.mark.parametrize("part", CODE[:3])
def test_every_module_that_code_names_is_there(part: str) -> None:
    for path in (ROOT / part).rglob("*.py"):
        for name in re.findall(r"`([\w/]+\.py)`", path.read_text()):
            assert any(f"/{module}".endswith(f"/{name}") for module in MODULES), f"{path.relative_to(ROOT)}: {name}"


@pytest.mark.parametrize("document", [*DOCUMENTS, *RESULTS], ids=lambda path: path.name)
def test_every_link_within_the_repository_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = document.parent / file if file else document
        assert path.exists(), f"{document.name}: {target}"
        if anchor:
            headings = {_heading(line) for line in path.read_text().splitlines() if line.startswith("#")}
            assert anchor in headings, f"{document.name}: {target}"


@pytest.mark.parametrize(
    "document", [each for each in [*DOCUMENTS, *RESULTS] if each.name not in GENERATED], ids=lambda path: path.name
)
def test_documents_have_the_field_s_words(document: Path) -> None:
    prose = NOT_PROSE.sub("", document.read_text())
    found = re.findall(rf"[^.\n]*\b(?:{'|'.join(WORDS)})\b[^.\n]*", prose, re.IGNORECASE)
    assert found == []


@pytest.mark.parametrize("part", ["swarm", "nodes"])
def test_docstrings_have_the_field_s_words(part: str) -> None:
    for path in (ROOT / part).rglob("*.py"):
        texts = [node.value.value for node in ast.walk(ast.parse(path.read_text())) if _is_text(node)]
        found = [text for text in texts if NOT_THE_FIELDS.search(NOT_PROSE.sub("", cleandoc(text)))]
        assert found == [], path.relative_to(ROOT)


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    """A docstring, of an attribute too."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_no_merge_was_left_half_done() -> None:
    texts = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".js", ".css", ""}
    folders = [ROOT / part for part in (*CODE, "docs", ".ci")]
    for path in (*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))):
        if path.is_file() and path.suffix in texts:
            text = path.read_text(errors="replace")
            assert not any(f"\n{mark * 7} " in text for mark in "<>"), path


def test_the_site_has_every_document() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / ".ci" / "mkdocs.yml").read_text(), re.MULTILINE))
    documents = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    results = {path.relative_to(ROOT) for path in RESULTS}
    assert named == {path.as_posix() for path in documents | results} | {"index.md"}
