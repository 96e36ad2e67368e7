"""Data set tasks on local files, written here."""

from __future__ import annotations

import csv
import json
import zipfile
from datetime import datetime
from pathlib import Path

import datasets
import msgspec
import pyarrow
import pyarrow.parquet
import pytest

from swarm.environments.answering import RewardSettings
from swarm.environments.sources.columns import MalformedRow
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.hf_datasets import DatasetSource, _is_plain, _row, store
from swarm.errors import Refusal, TaskError
from swarm.types import HELD_OUT_STREAMS, DatasetRef, Message, ProceduralRef

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
        ({"prompt": "{query}"}, "no column 'query'; the columns are question, answer, n"),
        ({"answer": "solution"}, "no column 'solution'; the columns are question, answer, n"),
        ({"prompt": "{question.__class__}"}, "'question.__class__': there is no '__class__' in Value"),
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
    (tmp_path / "nothing.jsonl").write_text("")
    messages = {"rows.xlsx": "cannot read .xlsx", "torn.jsonl": "torn.jsonl", "empty.csv": "no data"}
    for name, message in {**messages, "nothing.jsonl": "the file is empty"}.items():
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


def test_a_row_too_long_to_be_asked_is_passed_over(tmp_path: Path) -> None:
    good = [{"question": f"good {n}", "answer": "#### 1"} for n in range(9)]
    source = DatasetSource(task(write(tmp_path, ".jsonl", [*good, {"question": "x" * 2**20, "answer": "#### 1"}])))
    assert len(DatasetSource(task(tmp_path / "rows.jsonl", ask="")).question(HELD_OUT_STREAMS, 0).prompt) == 2**20
    long = DatasetSource(task(tmp_path / "rows.jsonl", ask="One more."))
    with pytest.raises(TaskError, match="a question of 1048586 characters, more than 1048576"):
        long.question(HELD_OUT_STREAMS, 0)
    (tmp_path / "rows.jsonl").write_text((tmp_path / "rows.jsonl").read_text().replace("good 3", "x" * (2**20 + 1)))
    source = DatasetSource(task(tmp_path / "rows.jsonl"))
    assert {source.question(1, index).prompt for index in range(200)} == {f"good {n}" for n in range(9) if n != 3}
    assert source.counts["malformed_rows"] > 0


def test_an_evaluation_passes_over_any_number_of_malformed_rows_side_by_side(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"question": f"{n}?", "answer": f"#### {n}" if n < 1000 else "none"} for n in range(2000)
    ]
    source = DatasetSource(task(write(tmp_path, ".jsonl", rows)))
    asked = {source.question(HELD_OUT_STREAMS + 5, index).ref.row for index in range(200)}  # type: ignore[union-attr]
    assert asked <= set(range(9, 1000, 10)) and len(asked) == 100


def test_a_match_that_fails_is_a_wrong_answer_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DatasetSource(task(write(tmp_path, ".jsonl")))
    ref = source.question(1, 1).ref
    monkeypatch.setattr("swarm.environments.sources.items.matches", lambda *texts: 1 / 0)
    assert source.score(ref, "<answer>1</answer>") == 0.0 and source.counts["scorer_failures"] == 1


def answers(path: Path, **changes: object) -> list[tuple[str, ...] | None]:
    """The right answers of each row of a file; None for a malformed one."""
    source = DatasetSource(task(path, answer_pattern=None, match="exact", **changes))
    found: list[tuple[str, ...] | None] = []
    for row in range(len(source._rows)):
        try:
            found.append(source._item(row).references)
        except MalformedRow:
            found.append(None)
    return found


CELLS = ["12", "", "7.50", "007", "1e3", "None", "NA", "true", "12345678901234567890123", "2020-01-01"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("cells", [CELLS, *([cell, ""] for cell in CELLS if cell)], ids=len)
def test_a_cell_is_the_text_that_is_written(suffix: str, cells: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, suffix, [{"question": f"{n}?", "answer": cell} for n, cell in enumerate(cells)])
    assert answers(path) == [(cell,) if cell else None for cell in cells]
    assert answers(tmp_path) == answers(path), "of a folder, too"


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([12, 2.5], ["12", "2.5"]),
        ([12, None, -7], ["12", None, "-7"]),
        (["2020-01-01", "2021-12-31"], ["2020-01-01", "2021-12-31"]),
        ([True, False], ["True", "False"]),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_numbers_and_dates_of_a_column_are_texts_as_they_are_written(
    values: list[object], texts: list[str | None], suffix: str, tmp_path: Path
) -> None:
    path = write(tmp_path, suffix, [{"question": f"{n}?", "answer": value} for n, value in enumerate(values)])
    assert answers(path) == [None if text is None else (text,) for text in texts]


def test_a_time_whose_form_the_reader_does_not_keep_is_malformed(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"question": "When?", "answer": text} for text in ("2020-01-01 10:30", "2020-01-02")
    ]
    for suffix in (".jsonl", ".json", ".csv"):
        assert answers(write(tmp_path, suffix, rows)) == [("2020-01-01 10:30",), ("2020-01-02",)]
    times = [{"question": "When?", "answer": datetime(2020, 1, day, hour)} for day, hour in ((1, 10), (2, 0))]
    assert answers(write(tmp_path, ".parquet", times)) == [None, ("2020-01-02",)]


@pytest.mark.parametrize(
    ("settings", "content"),
    [
        ("column_names: [question, answer]", "a?,007\nb?,2\n"),
        ("skiprows: 1", "# a remark\nquestion,answer\na?,007\nb?,2\n"),
        ("sep: ';'", "question;answer\na?;007\nb?;2\n"),
    ],
)
def test_the_data_card_of_a_folder_says_how_its_csv_files_are_read(settings: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(content)
    card = f"---\nconfigs:\n- config_name: default\n  data_files: rows.csv\n  {settings}\n---\n"
    (tmp_path / "README.md").write_text(card)
    assert answers(tmp_path) == [("007",), ("2",)]


def test_csv_files_in_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        archive.writestr("a.csv", "question,answer\na?,007\n")
        archive.writestr("b.csv", "question,answer\nb?,2\n")
    assert answers(tmp_path) == [("007",), ("2",)]


def test_choices_in_columns_of_a_csv_file_are_named_by_letter_number_or_text(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"question": "4 + 8?", "a": 10, "b": 12, "letter": "B", "number": 1, "text": 12},
        {"question": "7 + 8?", "a": 15, "b": 17, "letter": "A", "number": 0, "text": 15},
    ]
    path = write(tmp_path, ".csv", rows)
    for answer in ("letter", "number", "text"):
        settings = {"choices": ["a", "b"], "answer": answer, "answer_pattern": None, "match": "exact"}
        source = DatasetSource(task(path, **settings))
        assert {
            source.score(source.question(1, n).ref, f"<answer>{12 + 3 * row}</answer>")
            for n in range(20)
            for row in [source.question(1, n).ref.row]
        } == {1.0}  # type: ignore[union-attr]


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


@pytest.mark.parametrize(
    "changes",
    [
        {"match": "exact"},
        {"answer_pattern": r"(-?\d+)"},
        {"answer": "n", "answer_pattern": None},
        {"reward": RewardSettings(threshold=0.5)},
    ],
)
def test_members_must_agree_which_answers_are_right(changes: dict[str, object], tmp_path: Path) -> None:
    path = write(tmp_path, ".jsonl")
    ref = DatasetSource(task(path, **changes)).question(1, 1).ref
    with pytest.raises(Refusal, match="options_differ"):
        DatasetSource(task(path)).recall(ref)


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


NESTED: list[dict[str, object]] = [
    {
        "question": f"Who wrote book {n}?",
        "answers": {"text": [f"Author {n}", f"A. {n}"], "answer_start": [1, 2]},
        "tags": ["x"] * n,
    }
    for n in range(30)
]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_any_answer_of_a_list_is_right(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path, suffix, NESTED)
    source = DatasetSource(task(path, answer="answers.text", answer_pattern=None, match="exact"))
    ref = source.question(1, 1).ref
    assert isinstance(ref, DatasetRef)
    for answer, reward in ((f"author {ref.row}", 1.0), (f"A. {ref.row}", 1.0), ("Author", 0.0)):
        assert source.score(ref, f"<answer>{answer}</answer>") == reward
    first = DatasetSource(task(path, answer="answers.text[0]", answer_pattern=None, match="exact"))
    assert first.score(first.question(1, 1).ref, f"<answer>A. {ref.row}</answer>") == 0.0
    number = DatasetSource(task(path, answer="answers.text", answer_pattern=r"Author (\d+)"))
    assert number.score(number.question(1, 1).ref, f"{ref.row}") == 1.0, "items without the pattern are no answers"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer": "answers.txt"}, "there is no 'txt' in dict with text, answer_start"),
        ({"answer": "answers[0]"}, "there is no 0 in dict"),
        ({"answer": "question.text"}, "there is no 'text' in Value"),
        ({"choices": "tags.text", "answer": "question"}, "there is no 'text' in Value"),
    ],
)
def test_a_path_that_leads_nowhere_in_any_row_is_named_at_once(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError) as error:
        DatasetSource(task(write(tmp_path, ".jsonl", NESTED), answer_pattern=None, **changes))
    assert message in str(error.value)


def test_a_list_that_is_sometimes_empty_makes_malformed_rows(tmp_path: Path) -> None:
    source = DatasetSource(task(write(tmp_path, ".jsonl", NESTED), answer="tags", answer_pattern=None))
    assert {source.question(1, index).ref.row for index in range(200)} == set(range(30)) - {0, 9, 19, 29}
    assert source.counts["malformed_rows"] > 0


VERL: list[dict[str, object]] = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {n} + {n}? End with ####."}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
        "extra_info": {"index": n, "split": "train", "question": f"{n} + {n}?"},
    }
    for n in range(40)
]


def test_files_in_verl_s_layout(tmp_path: Path) -> None:
    layout = {"prompt": "prompt", "answer": "reward_model.ground_truth", "answer_pattern": None}
    rule = {"find": "regex", "find_pattern": r"#### (-?[\d,]+)", "ask": ""}
    path = write(tmp_path, ".parquet", VERL)
    source = DatasetSource(task(path, **layout, **rule))
    question = source.question(2, 2)
    row = question.ref.row  # type: ignore[union-attr]
    assert question.prompt == f"What is {row} + {row}? End with ####.", "one message of the user is a question"
    assert source.score(question.ref, f"so #### {2 * row}") == 1.0
    assert source.score(question.ref, f"so {2 * row}") == 0.0
    short = DatasetSource(task(path, **{**layout, "prompt": "{data_source}: {extra_info.question}"}))
    assert short.question(2, 2).prompt == f"openai/gsm8k: {row} + {row}?"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_conversation_is_asked_as_one_and_its_last_message_asks_for_the_form(suffix: str, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "What is 1 + 1?"},
                {"role": "assistant", "content": "2"},
                {"role": "user", "content": f"And {n} + {n}?"},
            ],
            "answer": 2 * n,
        }
        for n in range(12)
    ]
    asked = task(write(tmp_path, suffix, rows), prompt="messages", answer_pattern=None, find="whole")
    source = DatasetSource(asked)
    question = source.question(1, 1)
    row = question.ref.row  # type: ignore[union-attr]
    assert question.prompt == (
        Message("system", "Be brief."),
        Message("user", "What is 1 + 1?"),
        Message("assistant", "2"),
        Message("user", f"And {row} + {row}?\nReply with the answer only."),
    )
    assert source.recall(question.ref) == question and source.score(question.ref, str(2 * row)) == 1.0
    altered = [
        dict(row, messages=[*row["messages"][:2], {"role": "assistant", "content": "3"}, row["messages"][3]])  # type: ignore[index, misc]
        for row in rows
    ]
    other = DatasetSource(asked.model_copy(update={"path": str(write(tmp_path, suffix, altered))}))
    with pytest.raises(Refusal, match="question_mismatch"):
        other.recall(question.ref)


def test_choices_are_listed_shuffled_by_row_and_graded_by_letter_or_text(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"question": f"{n} + 1?", "options": [str(n + 1), str(n), str(n + 2), str(n + 3)], "right": "A"}
        for n in range(1, 60)
    ]
    path = write(tmp_path, ".jsonl", rows)
    settings = {"choices": "options", "answer": "right", "answer_pattern": None, "match": "exact"}
    source = DatasetSource(task(path, shuffle=5, **settings))
    letters = set()
    for index in range(40):
        question = source.question(1, index)
        assert isinstance(question.prompt, str)
        asked, *listed = question.prompt.split("\n")
        right = str(int(asked.split()[0]) + 1)
        letter = next(line[0] for line in listed if line[3:] == right)
        letters.add(letter)
        for answer, reward in ((letter, 1.0), (right, 1.0), (f"({letter}) {right}", 1.0), ("E", 0.0)):
            assert source.score(question.ref, f"<answer>{answer}</answer>") == reward
    assert letters == set("ABCD")
    ordered = DatasetSource(task(path, **settings))
    assert ordered.score(ordered.question(1, 1).ref, "<answer>A</answer>") == 1.0
    with pytest.raises(Refusal, match="options_differ"):
        ordered.recall(source.question(1, 1).ref)


def test_a_public_data_set_may_be_nested_but_hold_no_files() -> None:
    plain = datasets.Features(
        {"a": {"b": datasets.List(datasets.Value("string"))}, "c": datasets.ClassLabel(num_classes=2)}
    )
    assert all(_is_plain(feature) for feature in plain.values())
    for hidden in (datasets.Image(), {"b": datasets.Image()}, datasets.List({"b": datasets.Audio()})):
        assert not _is_plain(datasets.Features({"a": hidden})["a"])
