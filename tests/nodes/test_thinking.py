"""A newcomer's walk with a model that thinks: alone and with others, thinking on and off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from nodes.boot.resolve import described, fitted
from nodes.cli import main
from nodes.commands.doctor import diagnose
from nodes.commands.exported import exported_values, write_trained
from swarm.config import NodeConfig, load_config
from swarm.errors import ConfigError
from swarm.policy.config import PolicySettings
from swarm.policy.loading import load_policy
from swarm.policy.published import thinks
from swarm.policy.thinking import Prompted
from tests.nodes.processes import LOOPBACK, address_of, swarm, until
from tests.thinking_models import write_qwen3

OFF = "--policy.chat_template_kwargs.enable_thinking=false"
OF_TERMS = {
    *("unknown_task", "other_task", "options_differ", "question_mismatch", "episode_mismatch", "limits", "malformed"),
    *("too_long", "wrong_tokens", "hidden_tokens", "other_policy", "other_sampling", "held_out", "verifier_crash"),
}
"""Reasons to drop a group that honest members must not meet, however they think."""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("second", [[], [OFF]], ids=["both think", "one does not"])
def test_nodes_that_think_and_nodes_that_do_not_learn_from_each_other(tmp_path: Path, second: list[str]) -> None:
    model = write_qwen3(tmp_path / "model", "qwen3 opened")
    everything = {  # untrained policies have no signal: all groups go around
        "policy": {"model": str(model), "threads": 1},
        "share": {"groups": "all"},
        "pool": {"min_reward_std": None},
        "mix": {"local": 2, "external": 2},
        "generation": {"max_new_tokens": 32, "max_thinking_tokens": 12, "group_size": 4},
    }
    run, own = tmp_path / "run.yaml", tmp_path / "own.yaml"
    run.write_text(yaml.safe_dump({"tasks": [{"kind": "reasoning_gym", "name": "gcd"}], **everything}))
    own.write_text(yaml.safe_dump(everything))
    quick = [*LOOPBACK, "--evaluation.num_questions=0", "--checkpoint.every_rounds=50"]
    with ExitStack() as stack:

        def started(name: str, *arguments: str):
            return stack.enter_context(
                swarm(tmp_path / name, "join", *arguments, "--out", str(tmp_path / name), *quick)
            )

        first = started("first", str(run))
        other = started("other", str(own), "--bootstrap", address_of(first), *second)
        for node in (first, other):
            until(lambda node=node: node.history().groups["used_external"] >= 3, node, "groups of the other")
            assert not OF_TERMS & node.history().groups["dropped"].keys()
        assert first.stop() == 130 and other.stop() == 130
    samples = (tmp_path / "first" / "samples.jsonl").read_text()
    assert '"role":"thought"' in samples and '"role":"policy"' in samples


def test_a_model_that_thinks_gets_longer_completions_unless_they_are_set(tmp_path: Path) -> None:
    model = str(write_qwen3(tmp_path / "model"))
    loaded, lines = fitted(load_config(command_line=[("policy.model", model)]))
    assert loaded.config.generation.max_new_tokens == 512, "half of the model's positions"
    assert loaded.origins["generation.max_new_tokens"] == "default for a model that thinks"
    assert lines[0].startswith("model thinks before it answers: completions have up to 512 tokens")
    assert "policy.chat_template_kwargs.enable_thinking" in lines[0]
    assert loaded.config.generation.temperature == 1.0, "what its publisher suggests is not taken"
    assert lines[1].startswith(
        "the publisher of model suggests temperature 0.6, top_p 0.95, top_k 20; nothing of it is"
    )
    chosen = [("policy.model", model), ("generation.max_new_tokens", "64"), ("generation.temperature", "0.9")]
    loaded, lines = fitted(load_config(command_line=chosen))
    assert loaded.config.generation.max_new_tokens == 64 and "suggests top_p 0.95" in lines[1]


def test_what_fits_a_model_that_thinks_is_shown_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `swarm config show`, and by `swarm doctor`, which counts the longer completions."""
    model = str(write_qwen3(tmp_path / "model"))
    monkeypatch.setattr("sys.argv", ["swarm", "config", "show", f"--policy.model={model}"])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code in (0, None)
    assert "generation.max_new_tokens 512 default for a model that thinks" in shown
    assert "model thinks before it answers: completions have up to 512 tokens" in shown
    loaded = load_config(command_line=[("policy.model", model), ("policy.device", "cpu")])
    _, lines = described(loaded)
    said = [finding for finding in diagnose(loaded) if finding.check == "model"]
    assert [finding.seen for finding in said] == lines and lines[0].startswith("model thinks before it answers")
    nowhere, lines = described(load_config(command_line=[("policy.model", str(tmp_path / "nowhere"))]))
    assert lines[0].startswith("defaults that depend on the model are not shown: ")


@pytest.mark.parametrize("value", ["false", "False"])
def test_thinking_is_switched_off_on_the_command_line(tmp_path: Path, value: str) -> None:
    model = str(write_qwen3(tmp_path / "model"))
    fields = [("policy.model", model), ("policy.chat_template_kwargs.enable_thinking", value)]
    loaded, lines = fitted(load_config(command_line=fields))
    assert loaded.config.policy.chat_template_kwargs == {"enable_thinking": False}
    assert loaded.config.generation.max_new_tokens == 512 and "thinks" not in " ".join(lines)
    assert "generation.max_new_tokens" not in loaded.origins


def test_embedded_policies_have_nothing_to_say() -> None:
    loaded = load_config()
    assert fitted(loaded) == (loaded, [])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy.chat_template_kwargs.messages": "[]"}, "messages: the node itself sets it"),
        ({"policy.chat_template_kwargs.a-b": "1"}, "chat_template_kwargs"),
        ({"policy.thinking_marks": "[<a>]"}, "must be two different texts"),
        ({"generation.max_thinking_tokens": "-1"}, "must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(command_line=list(fields.items()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--generation.max_thinking_tokens=5"], "tiny has no tokens that mark a thought"),
        (["--policy.chat_template=nowhere.jinja"], "policy.chat_template: nowhere.jinja cannot be read"),
        (["--policy.chat_template_kwargs.enable_thinking=false"], "the model's chat template reads no value of this"),
    ],
)
def test_a_node_that_cannot_start_says_why_in_a_line(
    run_here: Callable[..., tuple[int | str | None, str]], arguments: list[str], message: str
) -> None:
    code, errors = run_here("join", "--out", "peer", "--evaluation.num_questions=0", *LOOPBACK, *arguments)
    assert code not in (0, None) and message in " ".join(errors.split()) and "Traceback" not in errors


def test_the_example_runs_on_a_model_of_its_kind(
    tmp_path: Path, run_here: Callable[..., tuple[int | str | None, str]]
) -> None:
    model = write_qwen3(tmp_path / "model", "qwen3 opened")
    small = ["--generation.max_new_tokens=40", "--generation.max_thinking_tokens=16", "--generation.group_size=2"]
    quick = ["--evaluation.num_questions=0", "--rounds=2", "--mix.local=1", "--generation.questions_per_round=1"]
    example = str(Path(__file__).parents[2] / "examples" / "qwen3-thinking.yaml")
    code, errors = run_here("join", example, f"--policy.model={model}", "--out", "peer", *small, *quick, *LOOPBACK)
    assert code == 0, errors
    sampled = (tmp_path / "peer" / "samples.jsonl").read_text()
    assert (
        '"role":"thought"' in sampled and "thoughts/forced_ratio" in (tmp_path / "peer" / "metrics.jsonl").read_text()
    )


def test_an_exported_policy_is_asked_as_it_was_trained(tmp_path: Path) -> None:
    model = write_qwen3(tmp_path / "model")
    off = PolicySettings(model=str(model), chat_template_kwargs={"enable_thinking": False})
    write_trained(model, None, NodeConfig(policy=off))
    assert load_policy(PolicySettings(model=str(model))).thinking.prompted is Prompted.OFF
    assert not thinks(PolicySettings(model=str(model)))
    on = PolicySettings(model=str(model), chat_template_kwargs={"enable_thinking": True})
    assert load_policy(on).thinking.prompted is Prompted.FREE and thinks(on)
    values, _ = exported_values(model, load_config())
    assert load_config(manifest=values).config.generation.max_thinking_tokens == 0
