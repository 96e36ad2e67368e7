"""Rows that are drawn in proportion to a column."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from swarm.environments.config import Failures
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.hf_datasets import DatasetSource
from swarm.environments.sources.row_weights import RowWeights
from swarm.errors import TaskError
from swarm.types import HELD_OUT_STREAMS

DRAWS = 2_000


def source(path: Path, weights: list[object], counts: Failures | None = None) -> DatasetSource:
    rows = [{"question": f"{k}?", "answer": str(k), "w": weight} for k, weight in enumerate(weights)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = DatasetTask(kind="dataset", name="sums", path=str(path), ask="", row_weight="w")
    return DatasetSource(task, counts=counts)


def asked(made: DatasetSource, seed: int = 1) -> Counter[str]:
    return Counter(str(made.question(seed, index).prompt) for index in range(DRAWS))


def test_rows_are_drawn_in_proportion_and_those_of_0_never(tmp_path: Path) -> None:
    found = asked(source(tmp_path / "rows.jsonl", [0, 1, 3, 0, 4]))
    assert found.keys() == {"1?", "2?", "4?"}
    for name, share in (("1?", 1 / 8), ("2?", 3 / 8), ("4?", 1 / 2)):
        assert found[name] / DRAWS == pytest.approx(share, abs=0.05)


def test_held_out_rows_are_not_trained_on_whatever_their_weight(tmp_path: Path) -> None:
    made = source(tmp_path / "rows.jsonl", [*[1] * 9, 1000, *[1] * 10])
    assert not asked(made).keys() & {"9?", "19?"}
    held_out = {str(made.question(HELD_OUT_STREAMS, index).prompt) for index in range(2)}
    assert held_out == {"9?", "19?"}


def test_a_weight_that_is_none_counts_as_0_and_its_row_is_named_from_1(tmp_path: Path) -> None:
    counts = Failures()
    found = asked(source(tmp_path / "rows.jsonl", [1, "much", None, -1, "2"], counts))
    assert found.keys() == {"0?", "4?"} and counts["malformed_rows"] == 3
    texts = list(counts.take_texts().values())
    assert texts[0] == "task 'sums': row 2: its weight must be a number of at least 0, got 'much'"


def test_a_column_that_is_missing_or_all_0_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="sum above 0"):
        source(tmp_path / "rows.jsonl", [0, 0])
    task = DatasetTask(kind="dataset", name="sums", path=str(tmp_path / "rows.jsonl"), row_weight="v")
    with pytest.raises(TaskError, match="no column 'v'"):
        DatasetSource(task)


def test_no_place_leads_to_a_row_of_weight_0() -> None:
    weights = RowWeights([0, 0.1, 0, 0.7, 0], lambda row: False, lambda row, why: None)
    assert weights.row(0.0) == 1 and weights.row(1 - 2**-53) == 3
