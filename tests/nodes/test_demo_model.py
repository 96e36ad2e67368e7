"""A demo with a real model: refused beforehand where it does not fit, configured for it where it does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from nodes.cli import app
from nodes.commands import demo as demo_module
from nodes.commands.demo import DemoOptions, _checked, _values
from nodes.real_models import footprint as footprint_module
from nodes.real_models import settings as demo_model
from nodes.real_models.footprint import GIB, Footprint, check_fits, footprint
from swarm.config import NodeConfig
from swarm.errors import ConfigError
from swarm.policy.loading import Policy

ONE = Footprint(weights=4, optimizer=8, processes=1, generation=3, update=7)


def test_a_footprint_adds_up() -> None:
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=1000,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
        )
    config = NodeConfig.model_validate(
        {
            "generation": {"questions_per_round": 4, "group_size": 8, "max_new_tokens": 22},
            "evaluation": {"num_questions": 16},
            "update": {"micro_batch_tokens": 100},
        }
    )
    found = footprint(model, config, torch.device("cpu"))
    num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert (found.weights, found.optimizer) == (num_bytes, 2 * num_bytes)
    cached = 32 * (128 + 22) * 2 * 3 * 2 * 16  # rows, tokens, keys and values, layers, heads, width
    assert found.generation == 4 * (cached + 6 * 32 * 1000)
    assert found.update == num_bytes + 4 * 100 * 3 * (10 * 64 + 4 * 128)
    assert found.total == 3 * num_bytes + found.processes + max(found.generation, found.update)


@pytest.mark.parametrize(("nodes", "free", "fits"), [(5, 100, True), (5, 99, False), (1, 20, True), (1, 19, False)])
def test_nodes_fit_exactly_or_not_at_all(nodes: int, free: int, fits: bool) -> None:
    assert ONE.total == 20
    if fits:
        check_fits("m", ONE, nodes, free)
    else:
        with pytest.raises(ConfigError, match=f"{nodes} nodes with m need"):
            check_fits("m", ONE, nodes, free)


def test_the_refusal_has_the_figures_and_what_would_fit() -> None:
    one = Footprint(weights=GIB // 2, optimizer=GIB, processes=GIB, generation=GIB, update=3 * GIB // 2)
    with pytest.raises(ConfigError) as refused:
        check_fits("big", one, 9, 22 * GIB)
    for part in ("9 nodes with big", "36.0 GiB", "22.0 GiB of memory are free", "4.0 GiB each", "weights 0.5 GiB",
                 "optimizer 1.0 GiB", "room for 5 nodes"):  # fmt: skip
        assert part in str(refused.value)


def test_peers_that_do_not_fit_are_refused_before_anything_starts(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.save(tmp_path / "model")
    monkeypatch.setattr(footprint_module, "free_bytes", lambda device: 3 * GIB)
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
    assert set(_values(options)) == {"run_name", "rounds", "policy", "mix", "checkpoint", "evaluation", "network"}
    assert demo_model.num_rounds(None) == demo_model.num_rounds("tiny") == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "smollm2", "--start", "dense"), "--start chooses between two embedded policies"),
        (("--model", f".{os.sep}nowhere"), "there is no directory"),
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
