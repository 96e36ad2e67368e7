"""Policies made in a child of the process that wants them."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodes.simulation import children as policies
from nodes.simulation.children import find_source_in_child
from swarm.errors import PolicyError
from swarm.policy import loading
from swarm.policy.loading import find_source


def _no_progress(done: int, total: int) -> None:
    raise AssertionError(f"made again: {done} of {total}")


def test_a_child_finds_what_this_process_finds() -> None:
    assert find_source_in_child("tiny", _no_progress) == find_source("tiny")


def test_a_model_that_is_not_made_here_needs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "start_function", lambda *_: pytest.fail("started"))
    assert find_source_in_child("some/model", _no_progress) == "some/model"


def test_the_childs_error_is_raised_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(PolicyError, match="cannot be written: Not a directory; free disk space there"):
        find_source_in_child("tiny", _no_progress)


def test_progress_comes_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(model: str, progress: Callable[[int, int], None]) -> str:
        progress(1, 2)
        progress(2, 2)
        return f"/made/{model}"

    def here(function: Callable[..., None], model: str, answers: Connection) -> SimpleNamespace:
        function(model, answers)
        return SimpleNamespace(join=lambda: None)

    monkeypatch.setattr(loading, "find_source", make)
    monkeypatch.setattr(policies, "start_function", here)
    seen: list[tuple[int, int]] = []
    assert find_source_in_child("tiny", lambda done, total: seen.append((done, total))) == "/made/tiny"
    assert seen == [(1, 2), (2, 2)]


def test_a_child_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "start_function", lambda *_: SimpleNamespace(join=lambda: None))
    with pytest.raises(PolicyError, match="the process that makes tiny died"):
        find_source_in_child("tiny", _no_progress)
