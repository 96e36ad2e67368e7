from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from nodes.cli import split_fields
from swarm.algorithms.advantages import ADVANTAGES
from swarm.algorithms.losses import LOSSES
from swarm.algorithms.names import ImportanceName, KlEstimatorName
from swarm.errors import ConfigError


def _run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nodes.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("join", "missing.yaml"), "cannot read configuration missing.yaml"),
        (("join", "--mix.local", "-1"), "mix.local (from command line): Input should be greater than or equal to 0"),
        (("join", "--mix.locl", "3"), "did you mean mix.local?"),
        (("join", "--mix.local=0", "--mix.external=0"), "nothing would ever be trained on"),
        (("join", "--mix.local"), "--mix.local needs a value"),
        (("join", "--model", "./nowhere"), "there is no directory ./nowhere"),
        (("join", "--engine", "steam"), "generation.engine (from command line): Input should be"),
        (("demo", "--engine", "steam"), "generation.engine"),
        (("join", "/ip4/127.0.0.1/tcp/1"), "/p2p/"),
        (("bootstrap", "--generation.group_size", "1"), "generation.group_size"),
        (("demo", "--local", "0", "--external", "0"), "nothing would ever be trained on"),
        (("demo", "--transport", "pigeon"), "--transport must be hivemind or memory, got 'pigeon'"),
        (("demo", "--mix.local", "3"), "does not accept"),
        (("export", "nowhere", "there"), "nowhere is not a checkpoint and contains none"),
    ],
)
def test_wrong_use_is_one_clear_line_and_starts_nothing(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = _run(*arguments, cwd=tmp_path)
    assert message in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.returncode == (1 if arguments[0] == "export" else 2)
    assert list(tmp_path.iterdir()) == []


def test_config_show_tells_origins(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("mix: {local: 2}\n")
    result = _run("config", "show", "my.yaml", "--mix.external", "5", "--json", cwd=tmp_path)
    rows = {row["field"]: (row["value"], row["origin"]) for row in json.loads(result.stdout)}
    assert rows["mix.local"] == ("2", "my.yaml")
    assert rows["mix.external"] == ("5", "command line")


def test_config_schema_is_a_json_schema(tmp_path: Path) -> None:
    schema = json.loads(_run("config", "schema", cwd=tmp_path).stdout)
    assert schema["properties"]["mix"]
    assert schema["additionalProperties"] is False


def test_tasks_are_listed_with_examples(tmp_path: Path) -> None:
    entries = json.loads(_run("tasks", "gcd", "--json", cwd=tmp_path).stdout)
    assert [entry["name"] for entry in entries] == ["gcd"]
    assert "Greatest Common Divisor" in entries[0]["question"]
    assert "max_value" in entries[0]["options"]


def test_objectives_are_listed_with_equation_and_paper(tmp_path: Path) -> None:
    text = _run("losses", cwd=tmp_path).stdout
    names = [*LOSSES, *ADVANTAGES, *get_args(ImportanceName), *get_args(KlEstimatorName)]
    for name in names:
        assert f"\n{name}\n" in f"\n{text}"
    assert "update.loss.clip_high, 0.28 by default" in text
    assert text.count("Source:") == len(names), "all but the treatment `none`, and the divergence from the sampler"


def test_fields_are_found_wherever_they_stand() -> None:
    rest, fields = split_fields(["join", "--mix.local", "3", "a.yaml", "--network.listen=/ip4/1.2.3.4/tcp/1", "--live"])
    assert rest == ["join", "a.yaml", "--live"]
    assert fields == [("mix.local", "3"), ("network.listen", "/ip4/1.2.3.4/tcp/1")]
    with pytest.raises(ConfigError, match="needs a value"):
        split_fields(["--mix.local"])
