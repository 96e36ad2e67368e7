"""A loss and an advantage of the user's own, by import path: settings, training, and figures in every sink."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from swarm.algorithms.losses import LossBatch
from swarm.config import load_config
from swarm.errors import ConfigError
from swarm.figures import finite
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import RoundEvent
from swarm.telemetry.sinks import MetricsWriter, TelemetrySettings, scalars
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup, UpdateReport
from tests.example_groups import rollout_group
from tests.extras.trackers.test_trackers import port_of, scrape

EXAMPLES = Path(__file__).parents[2] / "examples"
CHOICE = [("update.objective", "own_loss:Topr"), ("update.advantage", "own_loss:against_the_best")]
CAPPED = "topr/capped_ratio"


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def _settings(**settings: str) -> UpdateSettings:
    chosen = [(f"update.loss.{name}", value) for name, value in settings.items()]
    return load_config(command_line=[*CHOICE, *chosen]).config.update


def _update(policy: Policy, settings: UpdateSettings) -> UpdateReport:
    texts = ("19", "a longer answer that is wrong")
    completions = tuple(Completion(text, "stop") for text in texts)
    group = GradedGroup(rollout_group(completions=completions, rewards=(1.0, 0.0)), "Calculate 12 + 7.", (1.0, 0.0))
    return PolicyUpdater(policy, settings, MixSettings(external_negative_weight=1.0), 1.0).update([], [group])


def test_its_settings_are_validated_and_shown() -> None:
    settings = _settings(weight_cap="0.5")
    assert settings.model_dump()["loss"] == {"weight_cap": 0.5}
    with pytest.raises(
        ConfigError, match=r"update\.loss\.weight_cap \(from command line\): must be more than 0, got '-1'"
    ):
        _settings(weight_cap="-1")
    with pytest.raises(ConfigError, match=r"update\.loss \(from command line\): .* has no clip_low, only weight_cap"):
        _settings(clip_low="0.1")


@pytest.mark.parametrize(
    ("field", "path", "message"),
    [
        ("objective", "grop", "must be one of grpo, dapo"),
        ("objective", "no_such_module:Loss", "name a file: file.py:Name"),
        ("objective", "own_loss:Missing", "own_loss has no Missing"),
        ("objective", "own_loss:against_the_best", "must be a subclass of swarm.algorithms.losses.Loss"),
        ("advantage", "best", "must be one of grpo, dr_grpo, rloo"),
        ("advantage", "own_loss:__doc__", "must be a function"),
    ],
)
def test_what_cannot_be_found_is_named(field: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"update.{field}") as caught:
        load_config(command_line=[(f"update.{field}", path)])
    assert message in str(caught.value)


def test_it_is_the_equation_it_says() -> None:
    new = torch.tensor([[-1.0, -2.0], [-1.0, -2.0]], requires_grad=True)
    old = torch.tensor([[-2.0, -2.0], [-2.0, -1.0]])
    loss = _settings(weight_cap="0.9").loss
    output = loss(LossBatch(new, old, torch.tensor([1.0, -2.0]), torch.ones(2, 2)))
    output.loss.backward()
    weights = torch.tensor([[1.0, 1.0], [0.9, math.exp(-1)]])
    torch.testing.assert_close(new.grad, -weights * torch.tensor([[1.0], [-2.0]]) / 4)
    assert output.figures[CAPPED].value == 0.25


def test_it_trains_and_its_figures_are_in_every_sink(policy: Policy, tmp_path: Path) -> None:
    report = _update(policy, _settings())
    assert not report.skipped and CAPPED in report.figures
    assert report.figures["loss"] != 0
    event = RoundEvent(round=1, reward=0.5, groups=Ledger().snapshot(), figures=finite(report.figures))
    assert scalars(event)[CAPPED] == report.figures[CAPPED], "what Weights & Biases gets"
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0, tensorboard=True)) as writer:
        writer.write(event)
        assert scrape(port_of(writer))["swarm_figure", CAPPED] == report.figures[CAPPED]
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["figures"][CAPPED] == report.figures[CAPPED]
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert CAPPED in board.Tags()["scalars"]


def test_the_example_is_short() -> None:
    assert len((EXAMPLES / "own_loss.py").read_text().splitlines()) < 40
