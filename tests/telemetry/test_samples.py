"""Samples are bounded, survive a torn line, and are shown without what could harm a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from nodes.commands.watching import SampleFilter, show_samples
from swarm.errors import ConfigError
from swarm.reasons import Reason
from swarm.telemetry.samples import (
    MAX_COMPLETIONS,
    MAX_GROUP_CHARS,
    MAX_PICTURES,
    MAX_TURN_PICTURES,
    OLDER_FILE,
    SAMPLES_FILE,
    SampleLog,
    folded,
    read,
    why,
)
from swarm.telemetry.sinks import TelemetrySettings
from swarm.types import Completion, GradedGroup, Message, StepReward, Text, Turn
from swarm.types.media import Audio, Image
from swarm.types.thoughts import OPEN
from swarm.types.thumbnails import thumbnail
from tests.example_groups import graded, rollout_group

ME = "12D3me"


def _log(folder: Path, **settings: int) -> SampleLog:
    log = SampleLog(folder, TelemetrySettings(**settings), ME, clock=lambda: 5.0)
    log.begin(3)
    return log


def test_a_group_is_kept_with_its_turns_its_rewards_and_what_became_of_it(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.keep("used_local", graded(ME))
    log.keep("used_external", graded("12D3other", rewards=(1.0, 0.0)))
    log.keep(Reason.ZERO_ADVANTAGE, graded("12D3other", rewards=(0.0, 0.0)))
    log.keep(Reason.NOT_SAMPLED, graded(ME))
    log.keep(Reason.UPDATE_SKIPPED, graded(ME))
    log.keep(Reason.REPEATED, rollout_group("12D3other"))
    log.close()
    records = read(tmp_path)
    assert [(record.outcome, record.reason, record.own) for record in records] == [
        ("used_local", "", True),
        ("used_external", "", False),
        ("no_signal", "zero_advantage", False),
        ("unused", "not_sampled", True),
        ("unused", "update_skipped", True),
        ("refused", "repeated", False),
    ]
    own, other, *_, refused = records
    assert (own.time, own.round, own.task, own.question, own.sender) == (5.0, 3, "gcd", "question 0", ME)
    assert [turn.text for completion in own.completions for turn in completion.turns] == ["0", "1"]
    assert [(each.reward, each.claimed) for each in own.completions] == [(1.0, None), (0.0, None)]
    assert [(each.reward, each.claimed) for each in other.completions] == [(1.0, 0.0), (0.0, 0.0)], "it claimed zeros"
    assert refused.question is None and refused.completions[0].reward is None, "it was never graded"


def test_an_episode_is_kept_turn_by_turn_with_what_the_environment_said(tmp_path: Path) -> None:
    log, group = _log(tmp_path), graded(ME)
    said = Completion("12", "stop", (7, 8), (-1.0, -1.0), turns=(Turn(1, 1, "stop"), Turn(1, 1, "stop")))
    episode = replace(
        group,
        group=replace(group.group, completions=(said, *group.group.completions[1:])),
        observations=(((Text("higher"), StepReward(0.5)),), ()),
    )
    log.keep("used_local", episode)
    log.keep(Reason.REPEATED, episode.group)
    log.close()
    (first, second), (unread, _) = (record.completions for record in read(tmp_path))
    assert [(turn.role, turn.text) for turn in first.turns] == [
        ("policy", "1"),
        ("environment", "higher"),
        ("policy", "2"),
    ]
    assert [turn.role for turn in second.turns] == ["policy"]
    assert [turn.text for turn in unread.turns] == ["1", "2"], "nobody has replayed it"
    assert first.names_speakers and not second.names_speakers and unread.names_speakers


def test_a_thought_that_never_ended_is_shown_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, group = _log(tmp_path), graded(ME)
    thought = Completion(f"{OPEN}hmm, 1", "length")
    log.keep("used_local", replace(group, group=replace(group.group, completions=(thought,) * 2)))
    log.close()
    assert "thought: hmm, 1" in _shown(tmp_path, capsys)


def test_a_conversation_is_kept_as_its_text(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.keep("used_local", replace(graded(ME), prompt=(Message("system", "Be brief."), Message("user", "1 + 1?"))))
    log.close()
    assert [record.question for record in read(tmp_path)] == ["Be brief.\n\n1 + 1?"]


PICTURE = Image(2, 1, bytes(range(6)))


def test_pictures_are_kept_small_and_their_number_is_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = _log(tmp_path)
    asked = (Message("user", (Text("Which?"), *[PICTURE] * (MAX_PICTURES + 2), Audio(8_000, bytes(4)))),)
    log.keep("used_local", replace(graded(ME), prompt=asked))
    log.keep(Reason.REPEATED, rollout_group("12D3other"))
    log.close()
    (record, refused) = read(tmp_path)
    assert record.pictures == (thumbnail(PICTURE),) * MAX_PICTURES and refused.pictures == ()
    shown = _shown(tmp_path, capsys)
    assert shown.count("[image 2 x 1]") == MAX_PICTURES + 2 and "[audio 0.00 s]" in shown
    assert "iVBOR" not in shown, "what a terminal cannot show"


def test_pictures_of_an_episode_are_kept_with_the_turn_that_shows_them(tmp_path: Path) -> None:
    log, group = _log(tmp_path), graded(ME)
    said = Completion("12", "stop", (7, 8), (-1.0, -1.0), turns=(Turn(1, 1, "stop"), Turn(1, 1, "stop")))
    seen = ((Text("here"), *[PICTURE] * 99),)
    completions = (said,) * 8
    episode = replace(group, group=replace(group.group, completions=completions), observations=(seen,) * 8)
    log.keep("used_local", replace(episode, rewards=(1.0,) * 8))
    log.close()
    (record,) = read(tmp_path)
    pictures = [[len(turn.pictures) for turn in completion.turns] for completion in record.completions]
    assert pictures == [[0, MAX_TURN_PICTURES // 8, 0]] * 8


def test_a_round_keeps_so_many_of_each_fate_and_the_next_one_again(tmp_path: Path) -> None:
    log = _log(tmp_path, samples_per_outcome=2)
    for _ in range(9):
        log.keep(Reason.REPEATED, rollout_group())
        log.keep(Reason.COPIED, rollout_group())
    log.begin(4)
    log.keep(Reason.COPIED, rollout_group())
    log.close()
    assert [(record.round, record.reason) for record in read(tmp_path)] == [
        *[(3, "repeated"), (3, "copied")] * 2,
        (4, "copied"),
    ]


def test_long_texts_and_large_groups_are_cut_and_say_so(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.keep("used_external", rollout_group(texts=["x" * 100_000] * 40))
    log.close()
    (record,) = read(tmp_path)
    assert (len(record.completions), record.num_completions) == (MAX_COMPLETIONS, 40)
    turns = [completion.turns[0] for completion in record.completions]
    assert sum(len(turn.text) for turn in turns) == MAX_GROUP_CHARS
    assert {turn.num_chars for turn in turns} == {100_000}


def test_the_files_stay_within_their_bytes_and_keep_the_newest(tmp_path: Path) -> None:
    log = _log(tmp_path, samples_bytes=4_000)
    for number in range(1, 60):
        log.begin(number)
        log.keep("used_local", graded(ME))
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert all(size <= 2_000 for size in sizes) and len(sizes) <= 2
    log.close()
    rounds = [record.round for record in read(tmp_path)]
    assert rounds == list(range(rounds[0], 60)) and len(rounds) >= 4
    assert {path.name for path in tmp_path.iterdir()} == {SAMPLES_FILE, OLDER_FILE}


def test_none_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    log = _log(tmp_path, samples_bytes=0)
    log.keep("used_local", graded(ME))
    log.close()
    assert list(tmp_path.iterdir()) == [] and read(tmp_path) == []


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    first = _log(tmp_path)
    for _ in range(2):
        first.keep("used_local", graded(ME))
    first.close()
    path = tmp_path / SAMPLES_FILE
    path.write_bytes(path.read_bytes()[:-10])
    second = _log(tmp_path)
    second.begin(4)
    second.keep("used_local", graded(ME))
    second.close()
    assert [record.round for record in read(tmp_path)] == [3, 4]


def test_a_folder_that_cannot_be_written_costs_only_the_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = _log(tmp_path / "missing")
    log.keep("used_local", graded(ME))
    log.keep("used_local", graded(ME))
    assert [record.levelname for record in caplog.records] == ["ERROR"], "said once"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil [bold]x[/bold]\nsecond line\x9b\x7f"


def test_what_was_expected_and_found_is_shown_and_equal_answers_are_folded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    completions = tuple(Completion(text, "stop") for text in ("4", "it is 4", "4", "4"))
    group = replace(rollout_group(ME), completions=completions, rewards=(0.0,) * 4)
    log = _log(tmp_path)
    known = GradedGroup(group, "2 + 1?", (0.0, 0.0, 0.0, 0.0), expected="3", found=("4", "", "4", "4"))
    log.keep(Reason.ZERO_ADVANTAGE, known)
    log.close()
    shown = _shown(tmp_path, capsys)
    assert "  expected: 3\n  3 x reward 0, ended by stop; found 4, expected 3\n    4\n" in shown
    assert "  reward 0, ended by stop; no answer found in it\n    it is 4\n" in shown
    (sample,) = read(tmp_path)
    assert [(count, why(each.reward, sample.expected, each.found)) for each, count in folded(sample.completions)] == [
        (3, "found 4, expected 3"),
        (1, "no answer found in it"),
    ]


def _shown(folder: Path, capsys: pytest.CaptureFixture[str], as_json: bool = False, **wanted: object) -> str:
    show_samples(folder, SampleFilter(**wanted), as_json, Console(width=160))
    return capsys.readouterr().out


def test_what_strangers_say_cannot_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = _log(tmp_path)
    group = rollout_group("12D3\x1b[31mx", texts=(HOSTILE, "fine"))
    log.keep(Reason.REPEATED, group)
    log.close()
    text = _shown(tmp_path, capsys)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "[bold]x[/bold]" in text and "    second line" in text, "as it is, line by line"
    assert "refused: repeated" in text and "not graded, its sender says 0" in text
    machine = _shown(tmp_path, capsys, as_json=True)
    assert machine.isascii() and all(char.isprintable() or char == "\n" for char in machine)
    assert json.loads(machine)[0]["completions"][0]["turns"][0]["text"] == HOSTILE


def test_samples_are_chosen_by_task_sender_outcome_and_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = _log(tmp_path)
    for number in range(1, 7):
        log.begin(number)
        log.keep("used_local", graded(ME, number))
        log.keep(Reason.COPIED, rollout_group("12D3other", number))
    log.close()

    def rounds(**wanted: object) -> list[int]:
        return [each["round"] for each in json.loads(_shown(tmp_path, capsys, as_json=True, **wanted))]

    assert rounds(last=3, outcome="used_local") == [4, 5, 6]
    assert rounds(last=2, outcome="copied") == rounds(last=2, outcome="refused") == [5, 6]
    assert rounds(last=100, sender="other") == rounds(last=100, sender="12D3oth") == [1, 2, 3, 4, 5, 6]
    assert rounds(task="lcm") == [] and len(rounds(task="gcd")) == 10
    assert "none of the 12 samples kept matches" in _shown(tmp_path, capsys, task="lcm")
    assert "from this node" in _shown(tmp_path, capsys, outcome="used_local")


def test_a_directory_without_samples_is_told_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a node's directory"):
        show_samples(tmp_path, SampleFilter(), False, Console(quiet=True))
    (tmp_path / "peer-1").mkdir()
    log = _log(tmp_path / "peer-1")
    log.keep("used_local", graded(ME))
    log.close()
    with pytest.raises(ConfigError, match=f"choose one of {tmp_path / 'peer-1'}"):
        show_samples(tmp_path, SampleFilter(), False, Console(quiet=True))
