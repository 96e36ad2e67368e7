"""One bad row never ends anything: it is counted, shown with its number, and passed over."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from swarm.environments.config import VerificationSettings
from swarm.environments.sources.columns import MalformedRow
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.hf_datasets import DatasetSource
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError

GOOD = [{"question": f"What is {n}?", "answer": str(n)} for n in range(12)]


def task(path: Path, **changes: object) -> DatasetTask:
    settings: dict[str, object] = {"kind": "dataset", "name": "sums", "path": str(path), "match": "exact", "ask": ""}
    return DatasetTask(**{**settings, **changes})  # type: ignore[arg-type]


def read(path: Path, **changes: object) -> list[str]:
    """The answer of each row, or why it is malformed, after a colon."""
    source = DatasetSource(task(path, **changes))
    found = []
    for row in range(len(source._rows)):
        try:
            found.append("|".join(source._item(row).references))
        except MalformedRow as error:
            found.append(f": {error}")
    return found


def lines(path: Path, *bad: bytes) -> Path:
    """Good rows of JSON with bad lines after the third."""
    good = [json.dumps(row).encode() for row in GOOD]
    path.write_bytes(b"\n".join((*good[:3], *bad, *good[3:])))
    return path


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question": "Frau M\xfcller?", "answer": "1"}', "line 4: it has a byte that is not UTF-8: 0xFC"),
        (b'{"question": "What", "answ', "line 4: it is not valid JSON"),
        (b'{"question": "What?", "answer": "\\ud83d"}', "it has text that is not UTF-8"),
        (b'["question", "answer"]', "line 4: it is not a JSON object, but list"),
        (b"[" * 100_000, "line 4: it is not valid JSON"),
        (b'{"question": "What?", "answer": NaN}', "'answer' is nan, must be text or a number"),
        (b'{"question": "What?", "answer": -Infinity}', "'answer' is -inf, must be text or a number"),
        (b'{"question": "What?", "answer": {"a": 1}}', "'answer' is dict with a, must be text or a number"),
        (b'{"question": "What?", "answer": null}', "'answer' is NoneType"),
        (b'{"question": "What?"}', "'answer' is NoneType"),
        (b'{"question": [1, [2]], "answer": "1"}', "a message must have a role"),
    ],
)
@pytest.mark.parametrize("first", [False, True], ids=["within", "first"])
def test_a_line_of_json(line: bytes, reason: str, first: bool, tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", line)
    if first:
        path.write_bytes(line + b"\n" + b"\n".join(json.dumps(row).encode() for row in GOOD))
        reason = reason.replace("line 4", "line 1")
    found = read(path)
    bad = found.pop(0 if first else 3)
    assert found == [row["answer"] for row in GOOD] and bad.startswith(": ") and reason in bad


def test_a_list_of_json(tmp_path: Path) -> None:
    rows = [*GOOD[:3], 5, {"question": "?", "answer": 2**70}, *GOOD[3:]]
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=1))
    found = read(tmp_path / "rows.json")
    assert found[3] == ": it is not a JSON object, but int" and found[4] == str(2**70) and found[5:] == found[5:]
    (tmp_path / "torn.json").write_text(json.dumps(rows)[:-20])
    with pytest.raises(TaskError, match=r"torn\.json: it is not valid JSON: .* line 1 column"):
        read(tmp_path / "torn.json")


@pytest.mark.parametrize(
    "values",
    [
        [10**25 + n for n in range(5)],
        [2**63, 1, -(2**70), 2**64 - 1],
        [1, "two", 2**53 + 1, True],
        [1, "1"],
        [["a", 1], ["b"]],
    ],
    ids=["26 digits", "beyond 64 bits", "mixed", "text and number", "lists"],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_integers_stay_integers_and_columns_may_be_of_several_types(
    values: list[object], suffix: str, tmp_path: Path
) -> None:
    rows = [{"question": f"{n}?", "answer": value} for n, value in enumerate(values)]
    text = json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows))
    (tmp_path / f"rows{suffix}").write_text(text)
    wanted = ["|".join(map(str, value)) if isinstance(value, list) else str(value) for value in values]
    assert read(tmp_path / f"rows{suffix}") == wanted


def test_an_integer_of_five_thousand_digits(tmp_path: Path) -> None:
    digits = "1" * 5_000
    (tmp_path / "rows.jsonl").write_text(f'{{"question": "?", "answer": {digits}}}\n{{"question": "?", "answer": 1}}')
    assert read(tmp_path / "rows.jsonl") == [digits, "1"]


def test_large_integers_of_conversations_and_lists_in_others(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "What?"}]
    rows = [{"question": asked, "extra": {"answer": value}} for value in (2**80, 1)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read(tmp_path / "rows.jsonl", answer="extra.answer") == [str(2**80), "1"]


def test_right_and_wrong_answers_of_26_digits_differ(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{n}?", "answer": 10**25 + n}) for n in range(20)))
    for match in ("numeric", "exact"):
        source = DatasetSource(task(path, match=match, find="tags"))
        ref = source.question(0, 0).ref
        right = 10**25 + ref.row  # type: ignore[union-attr]
        assert source.score(ref, f"<answer>{right}</answer>") == 1, match
        assert source.score(ref, f"<answer>{right + 1}</answer>") == 0, match


def test_later_rows_may_have_other_keys_and_types(tmp_path: Path) -> None:
    rows: list[object] = [{"question": "q", "answer": 1, "meta": {"a": 1}} for _ in range(3_000)]
    rows += [{"question": "q", "answer": "x", "meta": {"b": [1]}, "more": 2.5}, {"question": "q", "answer": 2.5}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read(tmp_path / "rows.jsonl")[-3:] == ["1", "x", "2.5"]


def test_one_object_over_several_lines_is_still_read(tmp_path: Path) -> None:
    columns = {"question": ["a?", "b?"], "answer": [1, 2]}
    (tmp_path / "rows.json").write_text(json.dumps(columns, indent=1))
    assert len(read(tmp_path / "rows.json")) >= 1


def test_byte_order_marks(tmp_path: Path) -> None:
    text = "\n".join(map(json.dumps, GOOD))
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read(tmp_path / "rows.jsonl") == [row["answer"] for row in GOOD]
    for suffix in (".jsonl", ".csv", ".txt"):
        (tmp_path / f"wide{suffix}").write_bytes(text.encode("utf-16"))
        with pytest.raises(TaskError, match="in UTF-16; save it as UTF-8"):
            read(tmp_path / f"wide{suffix}", prompt="{text}" if suffix == ".txt" else "{question}")


CSV = b"question,answer\na?,1\n%s\nb?,2\nc?,3\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"Frau M\xfcller?,1", "it has a byte that is not UTF-8: 0xFC"),
        (b"1,000 + 2?,3", "cells, more than the 2 of the header"),
        (b"a?,b,c,d,e", "cells, more than the 2 of the header"),
        (b"alone", "'answer' is NoneType"),
        (b"?,", "'answer' is NoneType"),
    ],
)
@pytest.mark.parametrize("place", ["within", "first"])
def test_a_line_of_csv(line: bytes, reason: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = CSV % line if place == "within" else b"question,answer\n%s\na?,1\nb?,2\nc?,3\n" % line
    path.write_bytes(rows)
    found = read(path)
    bad = found.pop(1 if place == "within" else 0)
    assert found == ["1", "2", "3"] and reason in bad
    path.with_suffix(".tsv").write_bytes(rows.replace(b",", b"\t"))
    found = read(path.with_suffix(".tsv"))
    assert reason in found.pop(1 if place == "within" else 0) and found == ["1", "2", "3"]


def test_quotes_that_do_not_close(tmp_path: Path) -> None:
    text = 'question,answer\n"a\nb?",1\n"c?,2\nd?,3\n"e ""f"" g?","4"\nh "i" j?,5\n"k?,6\nl?,7\n'
    (tmp_path / "rows.csv").write_text(text)
    assert read(tmp_path / "rows.csv")[0] == "1"
    assert read(tmp_path / "rows.csv")[-3:] == ["5", ": line 8: it has a quote that does not close", "7"]
    (tmp_path / "long.csv").write_text('question,answer\na?,1\n"b?,2\n' + "c?,3\n" * 300_000)
    source = DatasetSource(task(tmp_path / "long.csv"))
    assert len(source._rows) == 300_002 and source._item(300_001).references == ("3",)


def test_many_rows_of_csv_before_one_with_too_many_cells(tmp_path: Path) -> None:
    rows = [f"{n}?,{n}" for n in range(25_000)]
    rows[20_000] = "a?,b,c"
    (tmp_path / "rows.csv").write_text("\n".join(("question,answer", *rows)))
    source = DatasetSource(task(tmp_path / "rows.csv"))
    assert len(source._rows) == 25_000
    assert [source._item(row).references for row in (0, 19_999, 20_001, 24_999)] == [
        ("0",),
        ("19999",),
        ("20001",),
        ("24999",),
    ]


def test_commas_at_the_end_of_all_lines_of_csv_are_no_cells(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer\na?,1,\nb?,2,\n")
    assert read(tmp_path / "rows.csv") == ["1", "2"]


def test_a_line_of_text(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes("7 + 7 ist 14\nFrau Müller 1\nneu 3".encode("latin-1"))
    found = read(tmp_path / "rows.txt", prompt="{text}", answer="text", answer_pattern=r"(\d+)$")
    assert found == ["14", ": it has a byte that is not UTF-8: 0xFC", "3"]


def parquet(path: Path, answers: pyarrow.Array) -> Path:
    asked = pyarrow.array([f"{n}?" for n in range(len(answers))])
    pyarrow.parquet.write_table(pyarrow.table({"question": asked, "answer": answers}), path)
    return path


def unchecked(kind: pyarrow.DataType, values: list[bytes]) -> pyarrow.Array:
    """Bytes as text, whatever they are."""
    return pyarrow.array(values, pyarrow.binary()).view(kind)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: unchecked(pyarrow.string(), [b"1", b"\xff", b"3"]), ["1", None, "3"]),
        (lambda: pyarrow.array([b"1", b"\xff", "ü".encode()]), ["1", None, "ü"]),
        (lambda: pyarrow.array([Decimal("3.00"), None, Decimal("-0.50")]), ["3.00", None, "-0.50"]),
        (lambda: pyarrow.array([1.5, float("nan"), float("inf")]), ["1.5", None, None]),
        (lambda: pyarrow.array([0, 4_000_000, 1], pyarrow.date32()), ["1970-01-01", None, "1970-01-02"]),
        (lambda: pyarrow.array([0, 4 * 10**14, 0], pyarrow.timestamp("ms")), ["1970-01-01", None, "1970-01-01"]),
        (lambda: pyarrow.array([2**63, 2**64 - 1, 1], pyarrow.uint64()), [str(2**63), str(2**64 - 1), "1"]),
        (lambda: pyarrow.array([date(2020, 1, 1), None, None]), ["2020-01-01", None, None]),
        (lambda: pyarrow.array([1, 2, 3], pyarrow.duration("s")), [None] * 3),
        (lambda: pyarrow.array([["a"], [], None]), ["a", None, None]),
    ],
)
def test_values_of_parquet(make: Callable[[], pyarrow.Array], wanted: list[str | None], tmp_path: Path) -> None:
    found = read(parquet(tmp_path / "rows.parquet", make()))
    assert [None if text.startswith(": ") else text for text in found] == wanted


@pytest.mark.parametrize(
    "name",
    ["sums [1].jsonl", "sums*.jsonl", "what?.jsonl", "{a,b}.jsonl", "it's \"so\".jsonl", "a::b.jsonl",
     "#1 & $HOME.jsonl",
     "-x.jsonl", "müller ✓.jsonl", "a\nb.jsonl", "~nobody.jsonl", "100%.jsonl", "back\\slash.jsonl", "[bold]x.jsonl"],
)  # fmt: skip
@pytest.mark.parametrize("within", [False, True], ids=["file", "folder"])
def test_names_of_files_are_no_patterns(
    name: str, within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / (name if within else ".")
    folder.mkdir(exist_ok=True)
    path = lines(folder / ("rows.jsonl" if within else name))
    assert read(folder if within else path) == [row["answer"] for row in GOOD]
    assert read(Path(name)) == [row["answer"] for row in GOOD], "by its relative name"


def test_a_node_passes_over_a_bad_row_and_shows_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "data [1]"
    folder.mkdir()
    path = lines(folder / "rows.jsonl", b'{"question": "M\xfcller?", "answer": "1"}')
    settings = VerificationSettings(time_limit_s=20.0)
    with caplog.at_level(logging.WARNING), closing(VerificationPool([task(path)], settings)) as pool:
        drawn = pool.draw(1, 0, 60)
        for start in range(60, 90):
            drawn += pool.draw(1, start, 1)
        assert len(drawn) == 90 and pool.counters()["malformed_rows"] > 0 and pool.counters()["crashes"] == 0
    told = [record.getMessage() for record in caplog.records]
    assert told == ["task 'sums': row 4: line 4: it has a byte that is not UTF-8: 0xFC; it is passed over"]


def test_the_first_error_of_a_reward_function_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = lines(tmp_path / "rows.jsonl")
    (tmp_path / "rewards.py").write_text("def reward(question, completion, reference):\n    return {}[completion]\n")
    own = task(path, scorer=f"{tmp_path}/rewards.py:reward")
    with caplog.at_level(logging.WARNING), closing(VerificationPool([own], VerificationSettings())) as pool:
        (question,) = pool.draw(1, 0, 1)
        pool.grade([(question.ref, ["a", "b"])])
        assert pool.counters()["scorer_failures"] == 2
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("task 'sums': its reward function raised KeyError('a'); such completions get reward 0")
