"""`swarm evaluate` of suites: figures, what is refused, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from nodes import exits
from nodes.commands.evaluate import Asked, evaluate
from nodes.roles import suites
from swarm.engines import choice
from swarm.errors import CheckpointError, ConfigError, Interrupted
from swarm.policy import loading
from swarm.policy.loading import Policy
from tests.suites.doubles import Numbering, Rows

CONFIG = """
tasks:
  - {kind: dataset, name: a, path: a.jsonl}
  - {kind: dataset, name: b, path: b.jsonl}
generation: {max_batch_sequences: 4, max_new_tokens: 8}
evaluation:
  suites:
    both: {k: 2}
    one: {tasks: [a], k: 4, questions: 5}
"""


class Engine(Numbering):
    """Answers at once; after `stop_after` calls the user presses Ctrl-C."""

    stop_after: int | None = None

    def check(self, sampling: object) -> None:
        pass

    def close(self) -> None:
        pass

    def generate(self, *arguments: object) -> list:
        if len(self.calls) == self.stop_after:
            os.kill(os.getpid(), signal.SIGINT)
            raise Interrupted("generation was cancelled")
        return super().generate(*arguments)  # type: ignore[arg-type]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> Iterator[Engine]:
    """Answers in place of a model, on rows in place of files."""
    made = Engine()
    monkeypatch.setattr(loading, "load_policy", lambda settings, weights: policy)
    monkeypatch.setattr(choice, "open_engine", lambda *arguments: made)
    monkeypatch.setattr(suites, "open_verifier", lambda tasks, settings: Rows(a=6, b=3))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., Asked]:
    file = tmp_path / "suites.yaml"
    file.write_text(CONFIG)
    return lambda *suites, questions=None: Asked("tiny", file, (), suites, questions)


def test_suites_are_asked_and_told_by_task(
    engine: Engine, asked: Callable[..., Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(asked("both", "one"), True, Console()) == exits.DONE
    result = json.loads(capsys.readouterr().out)
    assert result["model"] == "tiny" and list(result["suites"]) == ["both", "one"]
    both, one = result["suites"].values()
    assert both["complete"] and (both["k"], one["k"]) == (2, 4)
    # Of a, rows 0, 2, 4 and 5 are graded, of b rows 0 and 2; completion j of row r is right if j < r.
    assert both["scores"]["figures"]["avg@2"]["value"] == pytest.approx(4 / 6)
    assert both["tasks"]["b"]["figures"]["avg@2"]["value"] == 0.5
    assert one["scores"]["num_questions"] == 3 and one["scores"]["num_ungraded"] == 1
    assert one["scores"]["figures"]["avg@4"]["value"] == pytest.approx((0 + 2 + 4) / 12)
    assert one["scores"]["figures"]["pass@2"]["value"] == pytest.approx((0 + 5 / 6 + 1) / 3)
    low, high = (one["scores"]["figures"]["pass@4"][side] for side in ("low", "high"))
    assert 0 < low < 2 / 3 < high < 1


def test_all_suites_with_fewer_questions(
    engine: Engine, asked: Callable[..., Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(asked("all", questions=1), False, Console(width=200)) == exits.DONE
    out = capsys.readouterr().out
    assert "suite both" in out and "suite one" in out and "pass@4" in out
    assert [prompts for prompts, *_ in engine.calls] == [("a 0",), ("b 0",), ("a 0",)]


def test_ctrl_c_prints_what_is_known_and_says_so(
    engine: Engine, asked: Callable[..., Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.stop_after = 1
    assert evaluate(asked("both", "one"), True, Console()) == exits.INTERRUPTED
    (result,) = json.loads(capsys.readouterr().out)["suites"].values()
    assert not result["complete"] and result["scores"]["num_questions"] == 2


def test_what_there_is_not_is_refused_before_anything_is_loaded(tmp_path: Path, asked: Callable[..., Asked]) -> None:
    with pytest.raises(ConfigError, match="--suite nobody: the configuration has no such suite; it has both, one"):
        evaluate(asked("nobody"), True, Console())
    with pytest.raises(ConfigError, match="--suite all: .* it has none"):
        evaluate(Asked("tiny", None, (), ("all",)), True, Console())
    with pytest.raises(CheckpointError, match="is not a checkpoint and contains none"):
        evaluate(Asked(str(tmp_path), None, ()), True, Console())
