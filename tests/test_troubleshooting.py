"""The page for people in trouble has every message, and none that there is not; newcomers' questions have answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.config import describe_config, load_config
from tests.messages import KINDS, Message, messages

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "operate.md").read_text()


@pytest.fixture(scope="module")
def known() -> list[Message]:
    return sorted(set(messages()))


def _rows(section: str) -> Iterator[list[str]]:
    """The cells of a section's table, without its head."""
    text = PAGE.partition(f"### {section}\n")[2].partition("\n### ")[0]
    for line in [line for line in text.splitlines() if line.startswith("| ")][2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


ENTRIES = [_quoted(row[0])[0] for row in _rows("By message")]
CLASSES = [(set(_quoted(row[1])), tuple(_quoted(row[2]))) for row in _rows("By kind")]


def _has_entry(message: Message) -> bool:
    return any(entry.rstrip("…") in message.text for entry in ENTRIES)


def _has_class(message: Message) -> bool:
    return any(message.kind in kinds and message.file.startswith(places) for kinds, places in CLASSES)


def test_every_message_has_an_entry_or_belongs_to_a_kind(known: list[Message]) -> None:
    assert len(known) > 300, "they are found"
    lacking = [message for message in known if not _has_entry(message) and not _has_class(message)]
    assert lacking == [], "give it an entry under 'By message', or name where it is made under 'By kind'"


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_is_a_message_of_the_code(entry: str, known: list[Message]) -> None:
    assert any(entry.rstrip("…") in message.text for message in known)


def test_every_kind_is_of_the_code(known: list[Message]) -> None:
    assert {kind for kinds, _ in CLASSES for kind in kinds} <= KINDS
    for kinds, places in CLASSES:
        for place in places:
            assert any(message.kind in kinds and message.file.startswith(place) for message in known), place


QUESTIONS = {
    "What is sent about me?": "docs/faq.md#what-is-sent-about-me",
    "How much bandwidth does it take?": "docs/faq.md#how-much-bandwidth-does-it-take",
    "What does it cost my GPU?": "docs/faq.md#what-does-it-cost-my-gpu",
    "Am I helping?": "docs/faq.md#am-i-helping",
    "Is it better than training alone?": "docs/faq.md#is-it-better-than-training-alone",
    "How do I update?": "docs/faq.md#how-do-i-update",
    "How do I connect two machines at home?": "docs/faq.md#how-do-i-connect-two-machines-at-home",
    "How do I run a private swarm?": "docs/faq.md#how-do-i-run-a-private-swarm",
    "Which port does it use?": "docs/faq.md#which-port-does-it-use",
    "How do I use my own reward?": "docs/faq.md#how-do-i-use-my-own-reward",
    "How do I stop and resume?": "docs/faq.md#how-do-i-stop-and-resume",
    "Can others poison my model?": "docs/faq.md#can-others-poison-my-model",
}


@pytest.mark.parametrize(("question", "target"), QUESTIONS.items())
def test_newcomers_questions_are_answered(question: str, target: str) -> None:
    file, _, anchor = target.partition("#")
    heading, _, answer = (ROOT / file).read_text().partition(f"\n## {question}\n")
    assert heading and anchor == re.sub(r"[^\w\- ]", "", question.lower()).replace(" ", "-")
    assert len(answer.partition("\n## ")[0].split()) > 30


def test_the_readme_leads_to_both_pages() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "](docs/operate.md#troubleshooting)" in readme and "](docs/faq.md)" in readme


@pytest.mark.parametrize("page", ["faq.md", "operate.md", "start.md", "CHANGELOG.md"])
def test_settings_that_help_are_settings(page: str) -> None:
    known = {path for path, _, _ in describe_config(load_config())}
    groups = {path.partition(".")[0] for path in known}
    spans = re.findall(r"`([^`]+)`", (ROOT / "docs" / page).read_text())
    named = {field for span in spans for field in re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+\b", span)}
    fields = {field for field in named if not field.endswith(".md") and field.partition(".")[0] in groups}
    assert fields <= known
