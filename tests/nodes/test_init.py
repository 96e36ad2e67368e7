"""`swarm init`: its questions, the file that it writes, what it sets to fit, and what it says about costs."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from nodes.cli import app
from nodes.commands import costs, costs as fit, init as command
from nodes.commands.init import Answers, Given, ask, ask_address, fields_of, in_yaml, recipes
from swarm.config import load_config, overlay
from swarm.errors import ConfigError
from swarm.net.records.identity import Identity
from swarm.preflight import check
from swarm.preflight.check import Memory, with_settings
from swarm.preflight.duties import PEER
from swarm.preflight.need import GIB
from tests.engines.models import make

ADDRESS = f"/ip4/192.0.2.1/tcp/4001/p2p/{Identity.generate().peer_id}"


def _console() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=160), text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory of which only the description is read."""
    folder = tmp_path_factory.mktemp("model")
    made = make("llama")
    made.model.config.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A terminal on which somebody types these lines."""
    lines: list[str] = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def typed(prompt: str = "") -> str:
        if not lines:
            raise EOFError
        return lines.pop(0)

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", typed)
    yield lines


def test_flags_alone_write_a_valid_file_with_a_comment_on_every_field(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "mine.yaml"
    arguments = ["--bootstrap", ADDRESS, "--model", str(model), "--name", "ada-1", "--port", "4001"]
    found = CliRunner().invoke(app, ["init", str(file), *arguments])
    assert found.exit_code == 0, found.output
    config = load_config(file).config
    assert config.network.bootstrap == (ADDRESS,) and config.network.listen == ("/ip4/0.0.0.0/tcp/4001",)
    assert (config.name, config.policy.model) == ("ada-1", str(model))
    checked = CliRunner().invoke(app, ["config", "check", str(file)])
    assert checked.exit_code == 0 and "is valid and sets 6 fields" in checked.output
    lines = [line.strip() for line in file.read_text().splitlines()[6:]]
    fields = [number for number, line in enumerate(lines) if line and not line.startswith("#") and line[-1] != ":"]
    assert len(fields) == 6 and all(lines[number - 1].startswith("# ") for number in fields)
    for word in (f"swarm join {file}", "memory", "bandwidth", "power", "GiB", "GB a day"):
        assert word in found.output


def test_a_run_of_ones_own_has_no_bootstrap(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "swarm.yaml"
    found = CliRunner().invoke(app, ["init", str(file), "--run-name", "home", "--model", str(model)])
    assert found.exit_code == 0, found.output
    config = load_config(file).config
    assert (config.run_name, config.network.bootstrap) == ("home", ())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no terminal to ask on: give --model MODEL, and --bootstrap ADDRESS or --run-name NAME"),
        (["--model", "tiny"], "there is no terminal to ask on"),
        (["--run-name", "home"], "there is no terminal to ask on"),
        (["--run-name", "home", "--bootstrap", ADDRESS, "--model", "tiny"], "leave it out with --bootstrap"),
        (["--run-name", "No Spaces", "--model", "tiny"], "run_name"),
        (["--bootstrap", "/ip4/192.0.2.1", "--model", "tiny"], "a peer's address must look like"),
        (["--run-name", "home", "--model", "/no/where"], "there is no directory /no/where"),
        (["--run-name", "home", "--model", "tiny", "--port", "70000"], "--port must be a number up to 65535"),
        (["--run-name", "home", "--model", "tiny", "--name", "\x1b[31m"], "--name must be"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_written(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    found = CliRunner().invoke(app, ["init", str(tmp_path / "swarm.yaml"), *arguments])
    assert isinstance(found.exception, ConfigError) and message in str(found.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "swarm.yaml"
    file.write_text("name: kept\n")
    with pytest.raises(ConfigError, match="exists already; name another file, or remove it"):
        command.init(file, Given(), _console()[0])
    assert file.read_text() == "name: kept\n"


def test_a_recipe_alone_is_enough_and_stays_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    found = CliRunner().invoke(app, ["init", str(file), "--recipe", "gsm8k"])
    assert found.exit_code == 0, found.output
    written, recipe = file.read_text(), recipes()["gsm8k"]
    assert load_config(file).config == load_config(recipe.file).config, "and nothing else is set"
    assert written.endswith(recipe.text.partition("run_name:")[2]), "with its comments"
    assert f"#   swarm bootstrap {file}  " in written and "examples/" not in written


def test_answers_stand_in_the_place_of_a_recipes_values(tmp_path: Path) -> None:
    answers = Answers((ADDRESS,), None, "tiny", "Ada", 4001, "gsm8k")
    changes = (("update.optimizer", "adamw_offloaded"), ("policy.lora.rank", 16))
    file = tmp_path / "mine.yaml"
    recipe = recipes()["gsm8k"]
    file.write_text(in_yaml(fields_of(answers, changes), "a machine", "2026-01-01", file, recipe))
    plain = load_config(recipe.file, command_line=[*answers.pairs, ("network.bootstrap", ADDRESS)]).config
    plain = plain.model_copy(update={"network": load_config(file).config.network})
    assert load_config(file).config == with_settings(plain, changes)
    assert load_config(file).config.network.listen == ("/ip4/0.0.0.0/tcp/4001",)
    assert "# update.optimizer: Set so that" in file.read_text() and "# 1,319 questions" in file.read_text()


def test_every_recipe_says_what_it_is_and_is_written_whole(tmp_path: Path) -> None:
    assert {"gsm8k", "math", "aime", "mbpp", "textarena", "kuhn-poker", "geometry"} <= recipes().keys()
    assert not {"kubernetes", "own-task", "code"} & recipes().keys(), "these need more than themselves"
    for name, recipe in recipes().items():
        assert 5 < len(recipe.title) <= 120, name
        answers = Answers((), None, recipe.model, "", 0, name)
        text = in_yaml(fields_of(answers, ()), "a machine", "2026-01-01", Path("mine.yaml"), recipe)
        kept = {"version": 1, "out": "runs/peer", "policy": {"model": recipe.model}}
        assert yaml.safe_load(text) == overlay(kept, recipe.values) and text.endswith("\n"), name
        command = "learn" if name in ("math", "aime") else "join"
        assert f"# Start the node:            swarm {command} mine.yaml" in text, name


def test_an_unknown_recipe_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--recipe must be one of aime, .*, got 'gsm8'; did you mean gsm8k\?"):
        ask(Given(recipe="gsm8"), _console()[0])


def test_on_a_terminal_a_run_of_ones_own_may_begin_with_a_recipe(answered: list[str]) -> None:
    answered += ["", "mth", "math", "", "", ""]
    console, printed = _console()
    assert ask(Given(), console) == Answers((), None, "Qwen/Qwen3-1.7B", "", 0, "math")
    assert "did you mean math?" in printed.getvalue()
    assert "MATH, levels 3 to 5, with Qwen3-1.7B" in printed.getvalue() and answered == []


def test_on_a_terminal_it_asks_four_questions_and_asks_again_after_a_mistake(answered: list[str]) -> None:
    answered += ["not an address", ADDRESS, "/no/where", "", "<b>Ada", "Ada", "port", "4001"]
    console, printed = _console()
    found = ask(Given(), console)
    assert found == Answers((ADDRESS,), None, "tiny", "Ada", 4001)
    for complaint in ("must be a multiaddr", "no directory /no/where", "--name must be", "--port must be"):
        assert complaint in printed.getvalue()
    assert answered == []


def test_a_peer_without_an_address_is_asked_for_one_until_it_is_one(answered: list[str]) -> None:
    answered += ["192.0.2.2:4001", ADDRESS]
    assert ask_address(Console(file=io.StringIO())) == (ADDRESS,)
    answered += [""]
    assert ask_address(Console(file=io.StringIO())) == (), "it founds a run"


def test_what_a_flag_says_is_not_asked(answered: list[str]) -> None:
    answered += ["", ""]
    found = ask(Given(run_name="home", model="tiny", recipe=""), _console()[0])
    assert found == Answers((), "home", "tiny", "", 0)


def test_the_end_of_the_input_writes_nothing(tmp_path: Path, answered: list[str]) -> None:
    with pytest.raises(ConfigError, match="nothing was written"):
        command.init(tmp_path / "swarm.yaml", Given(model="tiny"), _console()[0])
    assert list(tmp_path.iterdir()) == []


def test_on_a_small_machine_the_file_sets_what_fits(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's own settings are judged again: they must fit."""
    asked = load_config(command_line=[("policy.model", str(model))]).config
    plenty = check.preflight(asked, PEER, Memory("cpu", 100 * GIB, 100 * GIB))
    least = plenty.least.total
    whole = check.preflight(asked, PEER, Memory("cpu", least, least)).need.total  # whole passes, one at a time
    small = Memory("cpu", (whole + least) // 2, whole)
    monkeypatch.setattr(check, "memory_of", lambda device: small)
    monkeypatch.setattr(fit, "memory_of", lambda device: small)
    file = tmp_path / "swarm.yaml"
    console, printed = _console()
    command.init(file, Given(run_name="home", model=str(model)), console)
    written = load_config(file).config
    assert written != load_config(command_line=[("policy.model", str(model)), ("run_name", "home")]).config
    assert check.preflight(written, PEER, small).verdict == "fits"
    assert "# Set so that the node fits into this machine's memory." in file.read_text()
    assert "it would be" in printed.getvalue()

    nothing = Memory("cpu", GIB // 8, GIB)
    monkeypatch.setattr(check, "memory_of", lambda device: nothing)
    with pytest.raises(ConfigError, match="needs about"):
        command.init(tmp_path / "other.yaml", Given(run_name="home", model=str(model)), console)
    assert not (tmp_path / "other.yaml").exists()


@pytest.mark.parametrize(
    "changes",
    [
        (("update.gradient_checkpointing", True), ("policy.lora.rank", 16)),
        (("generation.vllm.gpu_memory_fraction", 0.35), ("generation.vllm.sleep", True), ("generation.engine", "vllm")),
        (("update.optimizer", "adamw_offloaded"), ("update.micro_batch_tokens", 2048)),
    ],
)
def test_every_way_to_fit_is_written_as_it_was_judged(tmp_path: Path, changes: check.Changes) -> None:
    answers = Answers((ADDRESS,), None, "some/model", "", 0)
    file = tmp_path / "swarm.yaml"
    file.write_text(in_yaml(fields_of(answers, changes), "a machine", "2026-01-01", file))
    plain = load_config(command_line=[*answers.pairs, ("network.bootstrap", ADDRESS)]).config
    assert load_config(file).config == with_settings(plain, changes)


def test_bandwidth_grows_with_the_groups_it_is_about() -> None:
    short = load_config(command_line=[("generation.max_new_tokens", "16")]).config
    long = load_config(command_line=[("generation.max_new_tokens", "512")]).config
    assert costs.bandwidth(short).startswith("at most about 0.6 GB a day in each direction for every 10,000 groups")
    assert costs.bandwidth(long).startswith("at most about 4.6 GB a day") and "17 kB" in costs.bandwidth(long)


def test_the_processors_limit_is_the_sum_of_its_packages(tmp_path: Path) -> None:
    assert costs.cpu_watts(tmp_path) is None
    for name, microwatts in (("intel-rapl:0", 65_000_000), ("intel-rapl:1", 65_000_000), ("intel-rapl:0:0", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "constraint_0_power_limit_uw").write_text(f"{microwatts}\n")
    assert costs.cpu_watts(tmp_path) == 130.0


def test_a_gpus_limit_is_what_its_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = --id=1 ] && echo 350.00\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert costs.gpu_watts(1) == 350.0
    assert costs.gpu_watts(0) is None
