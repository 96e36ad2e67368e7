from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from nodes.cli import app
from nodes.cli.options import split_fields
from nodes.commands.bench import BENCHMARKS
from swarm.algorithms.advantages import ADVANTAGES
from swarm.algorithms.importance import ImportanceName
from swarm.algorithms.losses import BEHAVIOUR_KL_ESTIMATORS, LOSSES, KlEstimatorName
from swarm.errors import ConfigError


def _run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nodes.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=cwd,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("join", "missing.yaml"), "there is no file missing.yaml; `swarm init missing.yaml` writes one"),
        (("demo", "--transport", "pigeon"), "--transport must be hivemind or memory, got 'pigeon'"),
    ],
)
def test_wrong_use_is_one_clear_line_and_starts_nothing(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = _run(*arguments, cwd=tmp_path)
    assert message in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("join", "--mix.local", "-1"), "mix.local (from command line): must be at least 0", 2),
        (("join", "--mix.locl", "3"), "did you mean mix.local?", 2),
        (("join", "--mix.local=0", "--mix.external=0"), "nothing would ever be trained on", 2),
        (("join", "--mix.local"), "--mix.local needs a value", 2),
        (("join", "--model", "./nowhere"), "there is no directory ./nowhere", 2),
        (("join", "--engine", "steam"), "generation.engine (from command line): must be", 2),
        (("bootstrap", "--generation.group_size", "1"), "generation.group_size", 2),
        (("demo", "--start", "hears"), "--start must be sparse, dense or sees, got 'hears'", 2),
        (("demo", "--mix.local", "3"), "does not accept", 2),
        (("demo", "--engine", "steam"), "generation.engine", 2),
        (("demo", "--local", "0", "--external", "0"), "nothing would ever be trained on", 2),
        (("join", "/ip4/127.0.0.1/tcp/1"), "/p2p/", 2),
        (("export", "nowhere", "there"), "nowhere is not a checkpoint and contains none", 1),
        (("evaluate", "nowhere"), "nowhere is not a checkpoint and contains none", 1),
        (("evaluate", "tiny", "--suite", "maths", "more"), "--suite maths: the configuration has no such suite", 2),
        (("demo", "--rounds", "abc"), "--rounds must be a whole number, got 'abc'; see swarm demo --help", 2),
        (("demo", "--peers=0"), "--peers must be at least 1, got '0'", 2),
        (("join", "--rounds", "-3"), "rounds (from command line): must be at least 1, got '-3'", 2),
        (("join", "a.yaml", "b"), "got unexpected extra argument(s) (b); see swarm join --help", 2),
        (("export", "nowhere"), "missing argument 'directory'; see swarm export --help", 2),
        (("samples", "nowhere"), "nowhere has no samples.jsonl: name a node's directory", 2),
    ],
)
def test_wrong_use_that_a_command_itself_finds_is_one_clear_line_too(
    tmp_path: Path, run_here: Callable[..., tuple[int, str]], arguments: tuple[str, ...], message: str, code: int
) -> None:
    ended, errors = run_here(*arguments)
    assert message in errors and len(errors.strip().splitlines()) == 1
    assert ended == code
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_another_demo_is_refused(tmp_path: Path, run_here: Callable[..., tuple[int, str]]) -> None:
    out = tmp_path / "demo"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    code, errors = run_here("demo", "--out", str(out))
    assert code == 2 and "choose another --out" in errors
    assert [p.name for p in out.iterdir()] == ["precious.txt"]


def test_config_show_tells_origins(tmp_path: Path, run_here: Callable[..., tuple[int, str]]) -> None:
    (tmp_path / "my.yaml").write_text("mix: {local: 2}\n")
    _, said = run_here("config", "show", "my.yaml", "--mix.external", "5", "--json", stream="out")
    rows = {row["field"]: (row["value"], row["origin"]) for row in json.loads(said)}
    assert rows["mix.local"] == ("2", "my.yaml")
    assert rows["mix.external"] == ("5", "command line")


def test_config_schema_is_a_json_schema(run_here: Callable[..., tuple[int, str]]) -> None:
    schema = json.loads(run_here("config", "schema", stream="out")[1])
    assert schema["properties"]["mix"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["rounds"]["description"] == "Stop after this many rounds; default: never."
    assert schema["$defs"]["MixSettings"]["properties"]["local"]["description"] == "I: local groups per update."


def test_tasks_are_listed_with_examples(tmp_path: Path) -> None:
    entries = json.loads(_run("tasks", "gcd", "--json", cwd=tmp_path).stdout)
    assert [entry["name"] for entry in entries] == ["gcd"]
    assert "Greatest Common Divisor" in entries[0]["question"]
    assert "max_value" in entries[0]["options"]


def test_objectives_are_listed_with_equation_and_paper(run_here: Callable[..., tuple[int, str]]) -> None:
    _, text = run_here("losses", stream="out")
    names = [*LOSSES, *ADVANTAGES, *get_args(ImportanceName), *BEHAVIOUR_KL_ESTIMATORS, *get_args(KlEstimatorName)]
    for name in names:
        assert f"\n{name}\n" in f"\n{text}"
    assert "update.loss.clip_high, 0.28 by default" in text
    assert text.count("Source:") == len(names) - 1, "all but the treatment `none`"


def test_fields_are_found_wherever_they_stand() -> None:
    rest, fields = split_fields(["join", "--mix.local", "3", "a.yaml", "--network.listen=/ip4/1.2.3.4/tcp/1", "--live"])
    assert rest == ["join", "a.yaml", "--live"]
    assert fields == [("mix.local", "3"), ("network.listen", "/ip4/1.2.3.4/tcp/1")]
    with pytest.raises(ConfigError, match="needs a value"):
        split_fields(["--mix.local"])


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_benchmarks_are_listed_with_what_they_measure(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()[2:]] == list(BENCHMARKS)
    assert all(len(line.split()) > 5 for line in result.output.splitlines()[2:])
