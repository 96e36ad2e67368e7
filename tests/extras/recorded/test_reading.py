"""Files of demonstrations: which layouts are read, and what a bad or hostile row costs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from swarm.errors import ConfigError
from swarm.extras.recorded import reading
from swarm.extras.recorded.reading import Found, read
from swarm.telemetry.samples import MAX_QUESTION_CHARS, SampledCompletion, SampleRecord, Turn, encode
from swarm.training.imitation import Demonstration
from swarm.types import Message

ASKED = {"role": "user", "content": "2 + 3?"}
SAID = {"role": "assistant", "content": "5"}
PLAIN = Demonstration("2 + 3?", "5")


def found(tmp_path: Path, *rows: object) -> Found:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows))
    return read(path, 0.99)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2 + 3?", "completion": "5"},
        {"prompt": [ASKED], "completion": [SAID]},
        {"messages": [ASKED, SAID]},
        {"prompt": "2 + 3?", "chosen": "5", "rejected": "6"},
        {"prompt": [ASKED], "chosen": [SAID], "rejected": [{"role": "assistant", "content": "6"}]},
        {"prompt": "2 + 3?", "messages": [ASKED, SAID]},
        {"prompt": "2 + 3?", "chosen": [ASKED, SAID], "rejected": [ASKED, {"role": "assistant", "content": "6"}]},
        {"chosen": [ASKED, SAID], "rejected": [ASKED, {"role": "assistant", "content": "6"}]},
    ],
)
def test_layouts_of_trl_and_verl_are_read(row: dict[str, object], tmp_path: Path) -> None:
    assert list(found(tmp_path, row).demonstrations) == [PLAIN]
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    assert list(read(tmp_path / "rows.parquet", 0.99).demonstrations) == [PLAIN]


def test_each_answer_of_a_conversation_is_a_demonstration_after_what_was_said_before_it(tmp_path: Path) -> None:
    rules = {"role": "system", "content": "Be brief."}
    row = {"messages": [rules, ASKED, SAID, {**ASKED, "content": "Sure?"}, SAID]}
    first, second = found(tmp_path, row).demonstrations
    before = (Message("system", "Be brief."), Message("user", "2 + 3?"))
    assert first == Demonstration(before, "5")
    assert second == Demonstration((*before, Message("assistant", "5"), Message("user", "Sure?")), "5")


def test_a_row_is_learned_from_as_a_whole_or_passed_over(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None}
    both = found(tmp_path, {"messages": [ASKED, SAID, ASKED, call]}, {"messages": [ASKED, SAID]})
    assert list(both.demonstrations) == [PLAIN] and len(both.passed_over) == 1


def said(text: str, reward: float | None, finish_reason: str = "stop", *turns: Turn) -> SampledCompletion:
    return SampledCompletion((*turns, Turn("policy", text, len(text))), reward, None, finish_reason)


def sample(*completions: SampledCompletion, question: str = "2 + 3?") -> bytes:
    head = (0.0, 1, "used_local", "", "sums", question, "me", True, "tiny", 0)
    return encode(SampleRecord(*head, completions, len(completions))).rstrip()  # type: ignore[arg-type]


def test_of_samples_right_completions_are_taken_that_were_kept_whole(tmp_path: Path) -> None:
    thought = Turn("thought", "easy", 4)
    line = sample(
        said("5", 1.0),
        said("6", 0.0),
        said("7", None),
        said("cut", 1.0, "length"),
        SampledCompletion((Turn("policy", "sho", 9),), 1.0, None, "stop"),
        said("five", 1.0, "stop", thought),
        said("5", 1.0, "stop", Turn("policy", "a", 1), Turn("environment", "b", 1)),
    )
    assert [each.completion for each in found(tmp_path, line).demonstrations] == ["5", "<think>easy</think>five"]
    (tmp_path / "rows.jsonl").rename(tmp_path / "samples.jsonl")
    (tmp_path / "samples.older.jsonl").write_bytes(sample(said("9", 1.0)))
    assert [each.completion for each in read(tmp_path, 0.99).demonstrations] == ["9", "5", "<think>easy</think>five"]
    with pytest.raises(ConfigError, match="a whole question"):
        found(tmp_path, sample(said("5", 1.0), question="x" * MAX_QUESTION_CHARS))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "must have columns"),
        ({"prompt": "2 + 3?"}, "must have completion, chosen or messages"),
        ({"prompt": "2 + 3?", "completion": 5}, "the completion must be a text"),
        ({"prompt": "2 + 3?", "completion": " "}, "the completion must be a text"),
        ({"prompt": [ASKED], "completion": [SAID, SAID]}, "one message of the assistant"),
        ({"prompt": [ASKED, SAID], "completion": "5"}, "must end with a message of the user"),
        ({"chosen": "2 + 3? 5"}, "there must be a list of messages"),
        ({"messages": [ASKED]}, "no message is the assistant's"),
        ({"messages": [SAID]}, "1 to"),
        ({"messages": [ASKED, {"role": "tool", "content": "?"}, SAID]}, "role must be"),
        ({"completions": 3}, "no sample"),
    ],
)
def test_a_row_that_is_none_is_passed_over_and_named_from_1(row: object, why: str, tmp_path: Path) -> None:
    read_rows = found(tmp_path, {"prompt": "2 + 3?", "completion": "5"}, row)
    assert list(read_rows.demonstrations) == [PLAIN] and read_rows.num_rows == 2
    assert len(read_rows.passed_over) == 1 and read_rows.passed_over[0].startswith("row 2: ")
    assert why in read_rows.passed_over[0]


def test_a_line_without_end_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 100)
    rows = found(tmp_path, b"x" * 1_050, {"prompt": "2 + 3?", "completion": "5"})
    assert list(rows.demonstrations) == [PLAIN] and "longer than 100 bytes" in rows.passed_over[0]


def test_a_file_that_is_missing_or_has_none_is_one_clear_error(tmp_path: Path) -> None:
    for path in (tmp_path / "no.jsonl", tmp_path, tmp_path / "no.parquet"):
        with pytest.raises(ConfigError, match="demonstrations.path: cannot read"):
            read(path, 0.99)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="cannot read"):
        read(tmp_path / "bad.parquet", 0.99)
    with pytest.raises(ConfigError, match="there is no demonstration in .*: no completion reaches demonstrations"):
        found(tmp_path, sample(said("6", 0.0)))
