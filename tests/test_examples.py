"""Every configuration in examples/ is valid, and a node makes two rounds on it.

A random model takes the published one's place, and rows of the same columns the data on the hub.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import typer
import yaml
from transformers import Qwen3ForCausalLM
from typer.testing import CliRunner

from nodes.cli import app
from nodes.cli.options import check_known, rewrite
from nodes.roles import suites
from nodes.simulation.in_memory import Member, MemoryRun, Turns, take_turns
from swarm.config import LoadedConfig, load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import ConfigError
from swarm.policy.tiny import tiny_config, tiny_tokenizer
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE

EXAMPLES = Path(__file__).parent.parent / "examples"
CONFIGS = sorted(EXAMPLES.glob("*.yaml"), key=lambda path: path.name)
FOR_OTHERS = {"kubernetes.yaml"}
"""Not a configuration of a node."""
ROUNDS = 2
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
SUM = "What is {0} + {0}?"
ROWS: dict[str, dict[str, object]] = {
    "openai/gsm8k": {"question": SUM, "answer": "{0} and {0}\n#### {1}"},
    "sums.jsonl": {"question": SUM, "answer": "{1}"},
    "DigitalLearningGmbH/MATH-lighteval": {
        "problem": SUM,
        "level": "Level {2}",
        "solution": "It is $\\boxed{{{1}}}$.",
        "type": "Algebra",
    },
    "HuggingFaceH4/MATH-500": {"problem": SUM, "solution": "...", "answer": "{1}", "subject": "Algebra", "level": "2"},
    "open-r1/DAPO-Math-17k-Processed": {"prompt": SUM, "solution": "{1}", "data_source": "math_dapo"},
    "math-ai/aime24": {"id": "{0}", "problem": SUM, "solution": "\\boxed{{{1}}}"},
    "math-ai/aime25": {"problem": SUM, "answer": "{1}", "id": "{0}"},
    "google-research-datasets/mbpp": {
        "text": "Write a function to add {0}.",
        "test_list": ["assert add(1) == {3}", "assert add(0) == {0}"],
    },
    "hiyouga/geometry3k": {"images": ["pixel.png"], "problem": "<image>" + SUM, "answer": "{1}"},
}
"""By the repository, what a row consists of, with {0} for its number, {1} for twice that and {2} for a level."""


def _row(shape: dict[str, object], number: int) -> dict[str, object]:
    def filled(value: object) -> object:
        if isinstance(value, list):
            return [filled(each) for each in value]
        return str(value).format(number, 2 * number, number % 5 + 1, number + 1)

    return {name: filled(value) for name, value in shape.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model in a directory, with room for long questions."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    config = tiny_config()
    config.max_position_embeddings = 4_096
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 40 rows for each of `ROWS`."""
    folder = tmp_path_factory.mktemp("data")
    for name, shape in ROWS.items():
        of_one = folder / name.replace("/", "_").removesuffix(".jsonl")
        of_one.mkdir()
        if "images" in shape:
            (of_one / "pixel.png").write_bytes(base64.b64decode(PIXEL))
        lines = [json.dumps(_row(shape, number)) for number in range(40)]
        for split in ("train", "test"):
            (of_one / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def _here(task: dict[str, object], data: Path) -> dict[str, object]:
    """A task of the file, on rows and code of this machine."""
    task = {**task, "rewards": [each for each in task.get("rewards", ()) if each["kind"] != "judge"]}  # type: ignore[attr-defined]
    if not task["rewards"]:
        del task["rewards"]
    if task.get("path") in ROWS:
        task["path"] = str(data / str(task["path"]).replace("/", "_").removesuffix(".jsonl"))
        task.pop("subset", None)
    return task


def _small(file: Path, data: Path, model: Path, out: Path) -> LoadedConfig:
    """The configuration of a file, as a node of this test can run it."""
    values = yaml.safe_load(file.read_text())
    if "tasks" in values:
        values["tasks"] = [_here(task, data) for task in values["tasks"]]
    for suite in values.setdefault("evaluation", {}).get("suites", {}).values():
        suite |= {"questions": 2, "k": 1}
        suite["tasks"] = [_here(task, data) if isinstance(task, dict) else task for task in suite.get("tasks", ())]
    sees = any("images" in task for task in values.get("tasks", ()))
    policy = values.setdefault("policy", {"model": "tiny"})
    if policy["model"] == "smollm2" or "/" in policy["model"]:
        policy["model"] = "tiny-sees" if sees else str(model)
    policy.pop("chat_template_kwargs", None)
    values.get("generation", {}).pop("max_thinking_tokens", None)
    values["evaluation"]["num_questions"] = 0
    fields = {
        "out": out,
        "rounds": ROUNDS,
        "generation.questions_per_round": 2,
        "generation.group_size": 2,
        "generation.max_new_tokens": 4,
        "mix.local": 2,
        "mix.external": 0,
    }
    return load_config(None, values, {}, [(name, str(value)) for name, value in fields.items()])


def _needs(file: Path) -> str | None:
    """A library that a file needs and that is not here."""
    needed = {"verifiers.yaml": "verifiers", "textarena.yaml": "textarena", "holdem.yaml": "pokerkit"}
    name = needed.get(file.name)
    return name if name and importlib.util.find_spec(name) is None else None


@pytest.mark.parametrize("file", [each for each in CONFIGS if each.name not in FOR_OTHERS], ids=lambda path: path.stem)
def test_every_example_is_valid_and_makes_two_rounds(
    file: Path, data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    checked = CliRunner().invoke(app, ["config", "check", str(file)])
    assert checked.exit_code == 0, checked.output
    if missing := _needs(file):
        pytest.skip(f"{missing} is not installed: only checked")
    # Workers of suites would be a process each, which takes seconds.
    monkeypatch.setattr(suites, "open_verifier", lambda tasks, settings: InlineVerifier(tasks))
    config = _small(file, data, model, tmp_path / "out").config
    clock = Turns()
    take_turns([MemoryRun([Member(config)], lambda: False, clock)], clock, lambda: False)
    history = PeerHistory.read(config.out / METRICS_FILE)
    assert sorted(history.rounds) == [1, ROUNDS]
    assert history.rounds[ROUNDS].groups["generated"] == 2 * ROUNDS
    assert set(history.suites) == set(config.evaluation.suites)


def _is_a_command(words: Sequence[str]) -> None:
    """Whether `swarm` knows this command, its options and its fields. Raises `ConfigError`."""
    arguments, fields = rewrite(list(words))
    load_config(command_line=[(path, text) for path, text in fields if path != "network.bootstrap"])
    check_known(typer.main.get_command(app), arguments)


def test_the_slurm_script_is_bash_and_its_commands_are_commands() -> None:
    file = EXAMPLES / "slurm.sh"
    assert subprocess.run(["bash", "-n", file], capture_output=True).returncode == 0
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    commands = [line[line.index("swarm ") :].rstrip("&' ") for line in lines if "swarm " in line]
    assert [shlex.split(command)[1] for command in commands] == ["bootstrap", "join"]
    for command in commands:
        _is_a_command(shlex.split(command)[1:])


def test_the_kubernetes_objects_are_whole_and_their_commands_are_commands() -> None:
    objects = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
    assert [each["kind"] for each in objects] == ["Service", "StatefulSet", "StatefulSet"]
    for each in objects[1:]:
        assert each["apiVersion"] == "apps/v1"
        spec, pod = each["spec"], each["spec"]["template"]
        assert spec["selector"]["matchLabels"] == pod["metadata"]["labels"]
        (container,) = pod["spec"]["containers"]
        claimed = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        volumes = claimed | {volume["name"] for volume in pod["spec"].get("volumes", ())}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        _is_a_command(container["args"])
        if "livenessProbe" in container:
            _is_a_command(container["livenessProbe"]["exec"]["command"][1:])
            assert container["livenessProbe"]["timeoutSeconds"] >= 20, "a busy machine starts Python slowly"


def test_wrong_commands_would_be_noticed() -> None:
    with pytest.raises(ConfigError, match="no option"):
        _is_a_command(["join", "--modell", "tiny"])
