"""The names of other trainers in the documents are those that the command line knows."""

from __future__ import annotations

import re
from pathlib import Path

from swarm.suggestions import NAMES_ELSEWHERE

PAGE = Path(__file__).parent.parent / "docs" / "faq.md"


def test_the_table_of_names_agrees_with_what_the_command_line_suggests() -> None:
    table = PAGE.read_text().partition("`GRPOConfig`")[2]
    listed = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            theirs, ours = (re.findall(r"`(\S+)`", cell) for cell in line.split("|")[1:3])
            listed |= dict(zip(theirs, ours * len(theirs) if len(ours) == 1 else ours, strict=False))
    known = {name: field for name, field in listed.items() if name in NAMES_ELSEWHERE}
    assert len(known) > 20
    assert {name: NAMES_ELSEWHERE[name] for name in known} == known
