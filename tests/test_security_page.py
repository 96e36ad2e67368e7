"""Every line of the security page that something holds names a test, and there is one of that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "security.md"
NAMED = sorted(set(re.findall(r"`(test_\w+)`", PAGE.read_text())))
DEFINED = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}


@pytest.mark.parametrize("name", NAMED)
def test_the_named_test_is_there(name: str) -> None:
    assert name in DEFINED


def test_what_is_said_to_hold_is_shown() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    attacks = [row for row in rows if len(row) == 4 and row[0].strip() not in ("who", "---")]
    assert len(attacks) > 40
    for who, tries, holds, test in attacks:
        assert "`test_" in test or holds.strip().startswith("believed"), f"{who.strip()} {tries.strip()}"
