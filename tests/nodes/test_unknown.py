"""What is said about commands, options, targets and names that there are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from nodes.cli import app
from nodes.cli.options import OTHER_COMMANDS, check_known, no_target
from swarm.config import NodeConfig, load_config
from swarm.errors import ConfigError
from swarm.settings import field_paths
from swarm.suggestions import NAMES_ELSEWHERE

PEER = "12D3KooWP9RZLWYuszakU4fyxta4PDyafN8nUVSAH1sgimKUpB9a"
COMMAND = typer.main.get_command(app)


def _refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as refused:
        check_known(COMMAND, arguments)
    return str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("joi", "`swarm join`"),
        ("status", "`swarm top`"),
        ("version", "`swarm --version`"),
        ("config chek", "`swarm config check`"),
        ("join --learning-rate 1", "--update.learning_rate"),
        ("join --lr=1", "--update.learning_rate"),
        ("learn --num-generations 8", "--generation.group_size"),
        ("tasks try a.yaml --temperature 0", "--generation.temperature"),
        ("join --learning-rat 1", "--update.learning_rate"),
        ("join --round 3", "--rounds"),
        ("demo --loca 3", "--local"),
    ],
)
def test_a_command_or_an_option_that_there_is_not_leads_to_the_one_that_there_is(arguments: str, meant: str) -> None:
    assert meant in _refused(*arguments.split())


def test_an_option_of_no_field_is_not_one_of_a_command_without_fields() -> None:
    assert "update.learning_rate" not in _refused("demo", "--learning-rate", "1")


@pytest.mark.parametrize(
    "arguments", ["join --rounds 3 --no-live", "bench network --anything", "--version", "", "config"]
)
def test_what_there_is_passes(arguments: str) -> None:
    check_known(COMMAND, arguments.split())


def test_commands_of_other_programs_are_none_of_ours_and_lead_to_ours() -> None:
    ours = COMMAND.commands  # type: ignore[attr-defined]
    assert not OTHER_COMMANDS.keys() & ours.keys()
    for answer in OTHER_COMMANDS.values():
        named = [part.split() for part in answer.split("`")[1::2] if part.startswith("swarm ")]
        assert all(words[1] in ours or words[1].startswith("--") for words in named), answer


def test_names_of_other_trainers_stand_for_fields_that_there_are() -> None:
    fields = {*field_paths(NodeConfig), "update.loss.clip_low", "update.loss.clip_high", "update.loss.dual_clip"}
    assert set(NAMES_ELSEWHERE.values()) <= fields


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("192.0.2.2:41541", "/ip4/192.0.2.2/tcp/41541/p2p/ID"),
        ("[::1]:4001", "/ip6/::1/tcp/4001/p2p/ID"),
        ("example.org:4001", "/dns/example.org/tcp/4001/p2p/ID"),
        (PEER, f"/p2p/{PEER}"),
        (f"ip4/192.0.2.2/tcp/4001/p2p/{PEER}", "one begins with /ip4/"),
        ("https://example.org", "an address of the web"),
        ("foo", "neither a file nor an address"),
        ("smollm2", "--model smollm2"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "--model Qwen/Qwen2.5-0.5B-Instruct"),
        ("foo.yaml", "`swarm init foo.yaml`"),
        (".", "--out ."),
    ],
)
def test_a_target_that_is_neither_file_nor_address_says_what_it_lacks(target: str, said: str) -> None:
    assert said in no_target(target)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: tiny\n", "did you mean policy.model or judge.model or endpoint.model?"),
        ("learning_rate: 1e-5\n", "did you mean update.learning_rate or demonstrations.learning_rate?"),
        ("policy: {learning_rate: 1e-5}\n", "did you mean update.learning_rate or demonstrations.learning_rate?"),
        ("mix: {locl: 3}\n", "did you mean mix.local?"),
        ("beta: 0.1\n", "did you mean update.reference_kl?"),
        ("mix.local: 3\n", "in a file it is written mix: {local: ...}"),
        ("policy.model: tiny\n", "in a file it is written policy: {model: ...}"),
        ("tasks: [{name: a, kind: datasett}]\n", "did you mean dataset?"),
        ("tasks: [{name: gcd}]\n", "a task needs a `kind`, one of reasoning_gym, dataset"),
        ("mix: {local: six}\n", "must be a whole number, got 'six'"),
        ("update: {learning_rate: 1e5}\n", "must be at most 1"),
        ("update: {objective: grppo}\n", "did you mean grpo?"),
    ],
)
def test_a_field_or_a_value_that_there_is_not_leads_to_the_one_that_there_is(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(file)
    assert said in str(refused.value)


OWN = """
from swarm.algorithms.losses import Grpo
from swarm.sapo.mixing import MixPolicy, Decision

class Mine(Grpo):
    weight: float = 2.0

class Half(MixPolicy):
    def __call__(self, history, candidates):
        return Decision(1, 1)

def centred(rewards):
    return rewards - rewards.mean(dim=-1, keepdim=True)
"""


def test_losses_advantages_and_mixes_are_named_by_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    fields = {"update.objective": "Mine", "update.advantage": "centred", "mix.policy": "Half"}
    given = [(path, f"{tmp_path}/own.py:{name}") for path, name in fields.items()]
    config = load_config(command_line=[*given, ("update.loss.weight", "3")]).config
    assert config.update.loss.model_dump()["weight"] == 3
    assert type(config.mix.settings).__name__ == "Half"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (OWN, "Min", "has no Min; did you mean Mine?"),
        ("import nowhere\n", "Mine", "ModuleNotFoundError"),
        ("def broken(:\n", "Mine", "SyntaxError"),
        ("1 / 0\n", "Mine", "ZeroDivisionError"),
    ],
)
def test_a_file_of_ones_own_that_cannot_be_used_is_a_sentence(tmp_path: Path, text: str, name: str, said: str) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(command_line=[("update.objective", f"{tmp_path}/own.py:{name}")])
    assert said in str(refused.value)


def test_a_module_beside_which_its_file_lies_is_to_be_named_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_of_this_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="name the file: own_of_this_test.py:Mine"):
        load_config(command_line=[("update.objective", "own_of_this_test:Mine")])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("work", "a worker needs the address of its learner"),
        ("plan --rollouts 3", "--train-s SECONDS"),
        ("samples --outcome used_extern", "did you mean used_external"),
        ("docs tasts", "did you mean tasks"),
        ("init new.yaml --run-name a --model my_run!", "neither a directory nor a hub id"),
        ("stop nowhere", "there is no directory nowhere"),
        ("peers 192.0.2.2:4001", "/ip4/192.0.2.2/tcp/4001/p2p/ID"),
        ("top 192.0.2.2:4001", "/ip4/192.0.2.2/tcp/4001/p2p/ID"),
    ],
)
def test_what_a_command_cannot_do_without_is_one_line(
    run_here: Callable[..., tuple[int | str | None, str]], arguments: str, said: str
) -> None:
    code, errors = run_here(*arguments.split())
    assert code == 2
    assert said in errors
    assert errors.count("\n") == 1
