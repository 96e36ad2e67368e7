"""The table of model families is that of the installed transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from nodes.commands.families import VARIANTS, Verdict, examine, families

TABLE = Path(__file__).parent.parent.parent / "benchmarks" / "results" / "families.md"
SOME = ("llama", "gpt_neo", "mamba", *VARIANTS)
"""Of each kind: both modes of generation, refusals before and by the probe, windows."""


def _table() -> dict[str, Verdict]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in lines[2:]]
    return {family: Verdict(*verdict) for family, *verdict in rows}


@pytest.fixture(autouse=True)
def _same_transformers() -> None:
    made_with = TABLE.read_text().split("installed transformers, here ")[1].split(",")[0]
    if made_with != transformers.__version__:
        pytest.skip(
            f"benchmarks/results/families.md is of transformers {made_with}, this is {transformers.__version__}"
        )


def test_the_table_has_every_family() -> None:
    assert list(_table()) == families(), "run: swarm families > benchmarks/results/families.md"


@pytest.mark.parametrize("family", SOME)
def test_a_family_is_served_as_the_table_says(family: str) -> None:
    assert examine(family)[:2] == _table()[family][:2], "run: swarm families > benchmarks/results/families.md"
