"""The judge that is a local transformers model, with its own engine."""

from __future__ import annotations

from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Thread

import pytest

from swarm.environments.judge import JudgeSettings
from swarm.extras.judging.local import LocalJudge
from swarm.extras.judging.prompts import Broken, JudgeSheet, Query, Ratings, Ready, Reply, Setup, decode_reply, encode
from swarm.extras.judging.reward import JudgeReward
from swarm.extras.judging.worker import work
from tests.extras.judging.model import save_judge


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    save_judge(folder)
    return folder


def sheet(mode: str, *texts: str) -> JudgeSheet:
    part = JudgeReward.model_validate(
        {"kind": "judge", "model": "any", "rubric": "Be short.", "mode": mode, "max_new_tokens": 8}
    )
    return JudgeSheet(part, "Q?", texts)


def test_a_model_s_replies_become_numbers(model: Path) -> None:
    judge = LocalJudge(JudgeSettings(model=str(model), device="cpu", requests_at_once=2))
    points, pairs = sheet("points", "a", "b", "c [EOS]"), sheet("pairs", "a", "b")
    told = judge.answer([*points.queries, *pairs.queries])
    assert told.numbers == (7, 7, 7, None, None), "this judge replies to pairs with a score"
    assert told.unanswered == 0 and "did not end with its number" in told.error and told.tokens > 100
    assert "[EOS]" not in judge._plain(points.queries[2].prompt)


def test_a_prompt_that_is_too_long_is_no_number(model: Path) -> None:
    judge = LocalJudge(JudgeSettings(model=str(model), device="cpu"))
    told = judge.answer(sheet("points", "word " * 1_500, "a").queries)
    assert told.numbers == (None, 7) and "prompt_too_long" in told.error


def replies(settings: JudgeSettings, *queries: Query) -> list[Reply]:
    """What the judge's process sends, here from a thread."""
    here, there = Pipe()
    thread = Thread(target=lambda: pytest.raises(EOFError, work, there) if queries else work(there))
    thread.start()
    here.send_bytes(encode(Setup("judge", settings.model_dump_json().encode())))
    found = [decode_reply(here.recv_bytes())]
    if queries:
        here.send_bytes(encode(queries))
        found.append(decode_reply(here.recv_bytes()))
    here.close()
    thread.join()
    return found


def test_the_process_judges_with_the_model(model: Path) -> None:
    queries = sheet("points", "a", "b").queries
    ready, told = replies(JudgeSettings(model=str(model), device="cpu"), *queries)
    assert ready == Ready() and isinstance(told, Ratings) and told.numbers == (7, 7)


def test_the_process_says_why_it_cannot_judge(tmp_path: Path) -> None:
    (broken,) = replies(JudgeSettings(model=str(tmp_path / "none"), device="cpu"))
    assert isinstance(broken, Broken) and "none" in broken.error
