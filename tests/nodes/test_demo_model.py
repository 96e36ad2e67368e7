"""A demo with a real model: refused beforehand where it does not fit, configured for it where it does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from msgspec import structs
from typer.testing import CliRunner

from nodes.cli import app
from nodes.commands import demo as demo_module
from nodes.commands.demo import DemoOptions, _checked, _values, _write_config
from nodes.simulation import configs as demo_model
from nodes.simulation.children import without_fields
from swarm.errors import ConfigError
from swarm.policy.loading import Policy
from swarm.preflight import check
from swarm.preflight.check import Memory
from swarm.preflight.need import GIB


def test_peers_that_do_not_fit_are_refused_before_anything_starts(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.save(tmp_path / "model")
    monkeypatch.setattr(check, "memory_of", lambda device: Memory("cpu", 3 * GIB, 8 * GIB))
    monkeypatch.setattr(demo_module, "_start", lambda *_: pytest.fail("started"))
    out = tmp_path / "out"
    arguments = ["demo", "--model", str(tmp_path / "model"), "--peers", "4", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert "5 nodes with" in str(result.exception) and "there is room for 2 nodes" in str(result.exception)
    assert not out.exists()


def test_a_real_model_gets_its_tasks_and_its_share_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "num_cores", lambda: 12)
    options = _options(tmp_path, policy="smollm2")
    config = _checked(options, _values(options))
    assert [task.name for task in config.tasks] == ["sums", "gcd"]
    assert config.policy.threads == 12 // 5 and config.policy.system_prompt == ""
    assert config.generation.questions_per_round == config.mix.local + config.mix.external == 4
    assert config.update.learning_rate == 1e-5
    monkeypatch.setattr(demo_model, "num_cores", lambda: 2)
    assert _checked(options, _values(options)).policy.threads == 1


def test_the_embedded_policys_demo_is_what_it_was(tmp_path: Path) -> None:
    options = _options(tmp_path)
    assert set(_values(options)) == {
        "run_name",
        "rounds",
        "policy",
        "mix",
        "checkpoint",
        "evaluation",
        "network",
        "telemetry",
    }
    assert demo_model.num_rounds(None) == demo_model.num_rounds("tiny") == 200


def test_a_policy_that_sees_is_asked_about_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[DemoOptions] = []
    monkeypatch.setattr("nodes.commands.demo.demo", lambda options, _: started.append(options) or 0)
    for start in ("sees", "dense", "sparse"):
        CliRunner().invoke(app, ["demo", "--start", start])
    assert [options.model for options in started] == ["tiny-sees", "tiny", "tiny-sparse"]
    options = structs.replace(started[0], out=tmp_path / "out")
    config = _checked(options, _values(options))
    assert [task.kind for task in config.tasks] == ["shapes"] and config.update.learning_rate == 3e-4
    assert config.policy.system_prompt is None


def test_fields_of_the_environment_count_below_options_and_not_again_in_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_MIX__LOCAL", "6")
    monkeypatch.setenv("SWARM_MIX__EXTERNAL", "2")
    monkeypatch.setenv("SWARM_UPDATE__LEARNING_RATE", "0.5")
    started: list[DemoOptions] = []
    monkeypatch.setattr("nodes.commands.demo.demo", lambda options, _: started.append(options) or 0)
    for arguments in ([], ["--local", "3"]):
        CliRunner().invoke(app, ["demo", *arguments])
    assert [(options.local, options.external) for options in started] == [(6, 2), (3, 2)]
    options = structs.replace(started[1], out=tmp_path / "out")
    config = _checked(options, _values(options))
    assert (config.mix.local, config.mix.external, config.update.learning_rate) == (3, 2, 0.5)
    _write_config(options, _values(options))
    control = yaml.safe_load((tmp_path / "out" / "alone.yaml").read_text())
    assert control["mix"] == {"local": 5, "external": 0}
    assert not [name for name in without_fields(os.environ) if name.startswith("SWARM_")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "smollm2", "--start", "dense"), "--start chooses between embedded policies"),
        (("--model", f".{os.sep}nowhere"), "there is no directory"),
        (("--local", "0", "--external", "0"), "mix (from command line): local + external must be at least 1"),
    ],
)
def test_wrong_use_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert isinstance(result.exception, ConfigError) and message in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def _options(out: Path, policy: str | None = None) -> DemoOptions:
    return DemoOptions(
        peers=4, rounds=3, local=2, external=2, seed=0, out=out / "out", live=False, transport="hivemind", policy=policy
    )
