"""Data set tasks on local files, written here."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

from swarm.environments.config import DatasetTask
from swarm.environments.sources.hf_datasets import DatasetSource, _row, store
from swarm.errors import Refusal, TaskError
from swarm.types import HELD_OUT_STREAMS, DatasetRef, ProceduralRef

ROWS = [{"question": f"What is {n} + {n}?", "answer": f"adding gives #### {2 * n}", "n": n} for n in range(200)]


def write(folder: Path, suffix: str, rows: list[dict[str, object]] = ROWS) -> Path:
    path = folder / f"rows{suffix}"
    match suffix:
        case ".jsonl":
            path.write_text("\n".join(json.dumps(row) for row in rows))
        case ".json":
            path.write_text(json.dumps(rows))
        case ".csv" | ".tsv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), delimiter="," if suffix == ".csv" else "\t")
                writer.writeheader()
                writer.writerows(rows)
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def task(file: Path, **changes: object) -> DatasetTask:
    settings: dict[str, object] = {
        "kind": "dataset",
        "name": "sums",
        "path": str(file),
        "answer_pattern": r"#### (-?\d+)",
        "match": "numeric",
    }
    return DatasetTask(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_rows_of_a_file_are_asked_recalled_and_scored(suffix: str, tmp_path: Path) -> None:
    source = DatasetSource(task(write(tmp_path, suffix)))
    question = source.question(3, 7)
    assert isinstance(question.ref, DatasetRef)
    row = ROWS[question.ref.row]
    assert question.prompt == row["question"]
    assert question.ref.dataset == "local"
    assert source.recall(question.ref) == question
    assert source.score(question.ref, f"<answer>{2 * question.ref.row}</answer>") == 1.0
    assert source.score(question.ref, "<answer>-1</answer>") == 0.0


def test_text_files_give_a_line_a_row(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("alpha\nbeta\n\ngamma\n")
    source = DatasetSource(task(path, prompt="Repeat {text}", answer="text", answer_pattern=None, match="exact"))
    question = source.question(0, 0)
    assert question.prompt in {"Repeat alpha", "Repeat beta", "Repeat gamma"}
    assert source.score(question.ref, f"<answer>{question.prompt.split()[1]}</answer>") == 1.0


def test_a_folder_and_its_splits(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(ROWS[1]))
    (tmp_path / "test.jsonl").write_text(json.dumps(ROWS[2]))
    one = DatasetSource(task(tmp_path, split="test")).question(0, 0)
    assert one.prompt == ROWS[2]["question"]
    both = DatasetSource(task(tmp_path, split="train+test"))
    assert {both.question(0, index).prompt for index in range(20)} == {ROWS[1]["question"], ROWS[2]["question"]}
    with pytest.raises(TaskError, match="no split 'dev'; the splits are train, test"):
        DatasetSource(task(tmp_path, split="dev"))


def test_streams_differ_and_repeat_themselves(tmp_path: Path) -> None:
    source = DatasetSource(task(write(tmp_path, ".jsonl")))
    streams = [[source.question(seed, index).ref for index in range(30)] for seed in (1, 2, 1)]
    assert streams[0] == streams[2] != streams[1]


def test_the_same_rows_elsewhere_have_the_same_references(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = (DatasetSource(task(write(tmp_path / name, ".jsonl"))) for name in "ab")
    question = one.question(1, 1)
    assert other.question(1, 1) == question
    assert other.recall(question.ref) == question
    changed = write(tmp_path / "b", ".jsonl", [{**row, "answer": "#### 0"} for row in ROWS])
    assert DatasetSource(task(changed)).question(1, 1).ref.revision != question.ref.revision  # type: ignore[union-attr]


def test_templates_and_column_names(tmp_path: Path) -> None:
    path = write(tmp_path, ".jsonl")
    source = DatasetSource(
        task(path, prompt="Double {n}.\nUse \\boxed{}, {{braces}}.", answer="{n}{n}", answer_pattern=None)
    )
    question = source.question(1, 1)
    number = question.ref.row  # type: ignore[union-attr]
    assert question.prompt == f"Double {number}.\nUse \\boxed{{}}, {{braces}}."
    assert source.score(question.ref, f"{number}{number}") == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "{query}"}, "prompt: no column 'query'; the columns are question, answer, n"),
        ({"answer": "solution"}, "answer: 'solution' names no column; the columns are question, answer, n"),
        ({"prompt": "{question.__class__}"}, "no column 'question.__class__'"),
        ({"split": "test"}, "no split 'test'; the splits are train"),
        ({"answer_pattern": "("}, "answer_pattern"),
        ({"split": "train[:0]"}, "no data"),
        ({"path": "/nowhere/rows.jsonl"}, "no such file or folder"),
        ({"path": "nobody/nothing"}, "nobody/nothing"),
    ],
)
def test_unusable_configuration_is_named(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError) as error:
        DatasetSource(task(write(tmp_path, ".jsonl"), **changes))
    assert message in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_text("x")
    (tmp_path / "torn.jsonl").write_text('{"question": "a", "answ')
    (tmp_path / "empty.csv").write_text("question,answer\n")
    for name, message in (("rows.xlsx", "cannot read .xlsx"), ("torn.jsonl", "torn.jsonl"), ("empty.csv", "no data")):
        with pytest.raises(TaskError, match=message):
            DatasetSource(task(tmp_path / name))


def test_malformed_rows_are_passed_over_and_counted(tmp_path: Path) -> None:
    broken = [
        {"question": None, "answer": "#### 1"},
        {"question": "q", "answer": "no number"},
        {"question": " ", "answer": "#### 1"},
    ]
    path = write(tmp_path, ".jsonl", [{"question": "good", "answer": "#### 1"}, *broken])
    source = DatasetSource(task(path))
    assert {source.question(1, index).prompt for index in range(30)} == {"good"}
    assert source.counts["malformed_rows"] > 30
    ref = source.question(1, 1).ref
    for row in (1, 2, 3):
        with pytest.raises(Refusal, match="question_mismatch"):
            source.recall(msgspec.structs.replace(ref, row=row))
    useless = DatasetSource(task(write(tmp_path, ".jsonl", broken)))
    with pytest.raises(TaskError, match="64 rows drawn .* were malformed"):
        useless.question(1, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "other"}, "unknown_task"),
        ({"options_digest": ""}, "options_differ"),
        ({"row": 200}, "question_mismatch"),
        ({"row": -1}, "question_mismatch"),
        ({"question_hash": ""}, "question_mismatch"),
    ],
)
def test_tampered_references_are_refused_with_their_reason(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    source = DatasetSource(task(write(tmp_path, ".jsonl")))
    ref = msgspec.structs.replace(source.question(1, 1).ref, **changes)
    for use in (lambda: source.recall(ref), lambda: source.score(ref, "1")):
        with pytest.raises(Refusal) as refusal:
            use()
        assert refusal.value.reason == reason


def test_a_generated_reference_is_no_row(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="unknown_task"):
        DatasetSource(task(write(tmp_path, ".jsonl"))).recall(ProceduralRef("sums", "", "", 0, 0, ""))


@pytest.mark.parametrize("num_rows", [1, 9, 10, 25, 100])
def test_rows_for_evaluation_are_never_trained_on(num_rows: int) -> None:
    seen = {_row(num_rows, seed, "task", index) for seed in range(3) for index in range(40 * num_rows)}
    held_out = {_row(num_rows, HELD_OUT_STREAMS + 5, "task", index) for index in range(40 * num_rows)}
    assert seen | held_out == set(range(num_rows)), "every row has its use"
    if num_rows >= 10:
        assert held_out == set(range(9, num_rows, 10))
        assert not seen & held_out


def test_an_evaluation_asks_every_row_that_is_set_aside_once_before_one_again() -> None:
    for num_rows, seed in ((100, 1), (37, 2), (1_000, 3)):
        asked = [_row(num_rows, HELD_OUT_STREAMS + seed, "task", index) for index in range(2 * (num_rows // 10))]
        half = len(asked) // 2
        assert sorted(asked[:half]) == sorted(asked[half:]) == list(range(9, num_rows, 10))
    orders = {tuple(_row(100, HELD_OUT_STREAMS + seed, "task", index) for index in range(10)) for seed in range(20)}
    assert len(orders) > 10, "streams differ"


@pytest.mark.parametrize(("split", "whole"), [("test", True), ("validation[:50%]", True), ("train+test", False)])
def test_a_split_for_evaluation_is_evaluated_as_a_whole(split: str, whole: bool, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"question": f"{k}?", "answer": f"#### {k}"} for k in range(30)]
    stored = store(task(write(tmp_path, ".jsonl", rows)))
    source = DatasetSource(task(tmp_path / "rows.jsonl", split=split), stored=stored)
    asked = [source.question(HELD_OUT_STREAMS, index).ref.row for index in range(30)]
    assert sorted(asked) == list(range(30)) if whole else set(asked) == {9, 19, 29}
    assert source.num_held_out == (30 if whole else 3)


@pytest.mark.parametrize(("num_rows", "expected"), [(1, 1), (9, 9), (10, 1), (99, 9), (100, 10)])
def test_the_rows_held_out_are_counted(num_rows: int, expected: int, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"question": f"{k}?", "answer": f"#### {k}"} for k in range(num_rows)]
    source = DatasetSource(task(write(tmp_path, ".jsonl", rows)))
    assert source.num_held_out == expected
    asked = [source.question(HELD_OUT_STREAMS, index).ref.row for index in range(expected)]
    assert len(set(asked)) == expected
