"""The list behind `swarm tasks`."""

from __future__ import annotations

import msgspec
import pytest
from reasoning_gym.factory import DATASETS

from swarm.environments.sources.reasoning_gym import catalogue


@pytest.mark.slow
def test_every_dataset_is_listed_with_an_example() -> None:
    entries = catalogue()
    assert [entry.name for entry in entries] == sorted(set(DATASETS) - {"composite"})
    assert [entry for entry in entries if entry.error] == []
    for entry in entries:
        assert entry.category and entry.question and entry.question.count("\n") < 3
        assert not {"seed", "size"} & set(entry.options)
    gcd = next(entry for entry in entries if entry.name == "gcd")
    assert gcd.category == "arithmetic"
    assert gcd.options["max_value"] == "1000"
    assert msgspec.json.decode(msgspec.json.encode(entries))[0]["name"] == entries[0].name


def test_broken_and_slow_datasets_do_not_break_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, index: int) -> dict[str, object]:
        raise IndexError("no words left")

    def hang(self: object, index: int) -> dict[str, object]:
        while True:
            pass

    monkeypatch.setattr(DATASETS["gcd"][0], "__getitem__", fail)
    monkeypatch.setattr(DATASETS["lcm"][0], "__getitem__", hang)
    kept = {name: DATASETS[name] for name in ("gcd", "lcm", "products")}
    monkeypatch.setattr("swarm.environments.sources.library.DATASETS", kept)
    gcd, lcm, products = catalogue(time_limit_s=2.0)
    assert "no words left" in gcd.error and "2.0 s" in lcm.error and not products.error
    assert products.question and gcd.options
