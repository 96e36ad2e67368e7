"""What fits, what is refused, and that the settings which are said to fit do."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from msgspec import structs

from swarm.config import NodeConfig
from swarm.errors import ConfigError
from swarm.policy.config import LoraSettings
from swarm.policy.loading import Policy
from swarm.preflight import check
from swarm.preflight.check import ROUNDED_BASE, Memory, Preflight, check_nodes, check_start, judge, with_settings
from swarm.preflight.duties import PEER, Duties
from swarm.preflight.model import ModelSize, measure
from swarm.preflight.need import GIB, VLLM_BYTES, Need, Node, Part
from tests.engines.models import make

LEARNER, WORKER = Duties(asks=False, spot_checks=True), Duties(trains=False)
CONFIG = NodeConfig.model_validate(
    {
        "policy": {"model": "some/model", "dtype": "bfloat16"},
        "generation": {"engine": "transformers", "max_new_tokens": 100},
        "update": {"micro_batch_tokens": 4_096, "gradient_checkpointing": False},
        "evaluation": {"num_questions": 0},
    }
)


def _judge(free: float, config: NodeConfig = CONFIG, duties: Duties = PEER, device: str = "cuda") -> Preflight:
    return judge(_size, config, duties, Memory(device, round(free), round(free)))


@cache
def _size(lora: LoraSettings) -> ModelSize:
    return measure(make("llama").model.config, lora, lambda _: torch.bfloat16)


def _with(**changes: object) -> NodeConfig:
    return with_settings(CONFIG, tuple((name.replace("__", "."), value) for name, value in changes.items()))  # type: ignore[misc]


def test_update_and_generation_take_turns() -> None:
    need = Need((Part("weights", 4), Part("gradients", 3, "update"), Part("cache", 5, "generation")))
    assert need.total == 9
    assert str(structs.replace(need, lacking="x")).endswith(
        "; in turn gradients 0.0 GiB or cache 0.0 GiB; not included: x"
    )


def test_verdicts_change_where_the_sums_say() -> None:
    plenty = _judge(10 * GIB)
    need, least = plenty.need.total, plenty.least.total
    assert plenty.verdict == "fits" and not plenty.fix and least < need
    assert _judge(need).verdict == "fits"
    assert _judge(need - 1).verdict == "smaller"
    assert _judge(least).verdict == "smaller"
    assert _judge(least - 1).verdict == "too large"


def test_what_is_said_to_fit_fits() -> None:
    plenty = _judge(10 * GIB)
    free = round(0.2 * plenty.least.total + 0.8 * plenty.need.total)
    found = _judge(free)
    assert found.fix.startswith("what fits: --update.gradient_checkpointing true (")
    assert {path for way in found.ways for path, _ in way.changes} >= {"update.micro_batch_tokens"}
    for way in found.ways:
        assert way.need.total <= free
        assert _judge(free, with_settings(CONFIG, way.changes)).verdict == "fits"


def test_fewer_sequences_at_a_time_are_no_obstacle() -> None:
    config = _with(generation__questions_per_round=4_000, generation__max_batch_sequences=32_000)
    enough = _judge(10 * GIB).need.total
    assert _judge(10 * GIB, config).need.total > enough
    assert _judge(enough, config).verdict == "fits"


def test_parts_follow_the_settings() -> None:
    def parts(config: NodeConfig, duties: Duties = PEER, device: str = "cuda") -> dict[str, int]:
        return {part.name: part.num_bytes for part in _judge(10 * GIB, config, duties, device).need.parts}

    plain = parts(CONFIG)
    assert plain["optimizer"] == 2 * plain["weights"] == 2 * plain["gradients"]
    assert parts(_with(update__reference_kl=0.1))["reference"] == plain["weights"]
    checkpointed = parts(_with(update__gradient_checkpointing=True))["activations"]
    assert parts(_with(update__gradient_checkpointing=None))["activations"] == checkpointed < plain["activations"]
    assert "optimizer" not in parts(_with(update__optimizer="adamw_offloaded")), "in the CPU's memory"
    assert parts(_with(update__optimizer="adamw_offloaded"), device="cpu")["optimizer"] == plain["optimizer"]
    assert parts(_with(update__optimizer="adamw_8bit"))["optimizer"] == plain["optimizer"] // 4
    assert plain["rounded weights"] == _size(CONFIG.policy.lora).copied_bytes < plain["weights"] // 2, "matrices alone"
    assert parts(_with(generation__max_staleness=1))["copy for generation"] > plain["weights"]
    assert parts(CONFIG, LEARNER)["copy for spot checks"] == plain["weights"]
    assert "snapshots" not in parts(CONFIG, LEARNER, "cpu"), "they are files"
    assert not {"optimizer", "gradients", "activations"} & set(parts(CONFIG, WORKER))
    vllm = _with(generation__engine="vllm")
    assert parts(vllm)["vLLM"] == round(0.45 * 10 * GIB) and "KV cache" not in parts(vllm)
    assert "weights" not in parts(vllm, WORKER), "only vLLM has them on the GPU"
    assert parts(vllm, PEER, "cpu")["vLLM"] < 3 * GIB
    assert "weights" in parts(vllm, LEARNER) and "vLLM" not in parts(vllm, LEARNER)


def test_an_opponent_is_counted_in_each_process_that_grades(tmp_path: Path) -> None:
    make("llama").model.config.save_pretrained(tmp_path)
    task = {"kind": "kuhn_poker", "opponents": ["model"], "model": {"path": str(tmp_path)}}
    for place in ({"tasks": [task]}, {"evaluation": {"suites": {"earlier": {"questions": 2, "tasks": [task]}}}}):
        config = CONFIG.model_validate({**CONFIG.model_dump(mode="json"), "verification": {"workers": 2}, **place})
        on_cpu, on_gpu = (
            {part.name: part.num_bytes for part in _judge(10 * GIB, config, device=device).need.parts}
            for device in ("cpu", "cuda")
        )
        assert on_cpu["opponents"] == 2 * 4 * _size(config.policy.lora).parameters and "opponents" not in on_gpu


def test_several_processes_share_what_they_train() -> None:
    memory = Memory("cuda", 10 * GIB, 10 * GIB)
    alone, shared = (judge(_size, CONFIG, PEER, memory, count).need for count in (1, 4))
    assert 3.9 < alone.parts[1].num_bytes / shared.parts[1].num_bytes < 4.1
    assert {part.name: part.when for part in shared.parts}["whole weights"] == "generation"


def test_vllm_needs_its_weights_within_its_share() -> None:
    found = _judge(2 * GIB, _with(generation__engine="vllm"), WORKER)
    assert found.verdict == "too large" and "gpu_memory_fraction 0.45 gives it 0.9 GiB" in found.seen
    found = _judge(4.5 * GIB, _with(generation__engine="vllm", generation__vllm__gpu_memory_fraction=0.3), WORKER)
    assert found.fix.startswith("what fits: --generation.vllm.gpu_memory_fraction 0.8")


def test_vllm_on_another_gpu_takes_nothing_here() -> None:
    config = _with(generation__engine="vllm", update__gradient_checkpointing=True)
    memory = Memory("cuda", 3 * GIB, 3 * GIB, other_gpus=1)
    here = judge(_size, config, PEER, memory)
    assert here.verdict == "too large" and "generation.vllm.gpus '[1]'" in here.fix
    on_gpu_1 = _with(policy__device="cuda:1", generation__engine="vllm", update__gradient_checkpointing=True)
    assert "generation.vllm.gpus '[0]'" in judge(_size, on_gpu_1, PEER, memory).fix
    moved = with_settings(config, (("generation.vllm.gpus", (1,)),))
    found = judge(_size, moved, PEER, memory)
    assert found.verdict == "fits" and "vLLM" not in {part.name for part in found.need.parts}
    assert "gpus" not in judge(_size, config, PEER, structs.replace(memory, other_gpus=0)).fix


def test_gpus_share_what_vllm_needs_of_each() -> None:
    def least(*gpus: int) -> int:
        settings = with_settings(CONFIG, (("generation.engine", "vllm"), ("generation.vllm.gpus", gpus)))
        return Node(settings, _size(LoraSettings()), WORKER, "vllm", "cuda", 10 * GIB).vllm_least

    assert 2 * (least(0, 1) - VLLM_BYTES) == pytest.approx(least(0) - VLLM_BYTES, abs=1)


def test_a_rounded_base_is_proposed_with_adapters_only() -> None:
    config = _with(generation__engine="transformers", policy__lora__rank=4)
    need = _judge(10 * GIB, config).need.total
    proposed = [way.changes for way in _judge(need - 1, config).ways]
    assert any(ROUNDED_BASE in changes for changes in proposed)
    alone = [way.changes for way in _judge(_judge(10 * GIB).need.total - 1).ways if ROUNDED_BASE in way.changes]
    assert all(("policy.lora.rank", 16) in changes for changes in alone)


@pytest.fixture
def directory(policy: Policy, tmp_path: Path) -> Path:
    policy.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("duties", [PEER, LEARNER, WORKER])
def test_a_start_is_refused_only_where_nothing_fits(
    directory: Path, monkeypatch: pytest.MonkeyPatch, duties: Duties
) -> None:
    config = _with(policy__model=str(directory), policy__device="cpu")
    found = check.preflight(config, duties, Memory("cpu", 10 * GIB, 10 * GIB))
    need, least = found.need.total, found.least.total
    free, swap = need, 0
    monkeypatch.setattr(check, "memory_of", lambda device: Memory(device.type, free, 10 * GIB, swap))
    assert check_start(config, duties) == ""
    free = least - 1
    with pytest.raises(ConfigError, match=r"needs about .* GiB, at least .* are free: (weights|process).*"):
        check_start(config, duties)
    swap = 1
    assert "passes will be shorter than configured" in check_start(config, duties)


def test_the_embedded_policy_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "preflight", lambda *_, **__: pytest.fail("asked"))
    assert check_start(NodeConfig(), PEER) == ""


def test_a_model_that_cannot_be_read_is_left_to_the_loader(tmp_path: Path) -> None:
    assert check_start(_with(policy__model=str(tmp_path / "nowhere"), policy__device="cpu"), PEER) == ""


def test_nodes_of_one_machine_fit_exactly_or_not_at_all(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _with(policy__model=str(directory), policy__device="cpu")
    one = check.preflight(config, PEER, Memory("cpu", 10 * GIB, 10 * GIB)).need.total
    free = 3 * one
    monkeypatch.setattr(check, "memory_of", lambda device: Memory(device.type, free, 10 * GIB))
    check_nodes(config, 3)
    free = 3 * one - 1
    with pytest.raises(ConfigError, match=r"3 nodes with .*GiB each: weights.*there is room for 2 nodes"):
        check_nodes(config, 3)


def test_nodes_in_one_process_share_it_and_the_memory_of_a_turn(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _with(policy__model=str(directory), policy__device="cpu")
    need = check.preflight(config, PEER, Memory("cpu", 10 * GIB, 10 * GIB)).need
    held = need.during("always") - GIB
    free = 2 * (GIB + 3 * held + need.total - need.during("always"))
    monkeypatch.setattr(check, "memory_of", lambda device: Memory(device.type, free, 10 * GIB))
    check_nodes(config, 3, in_turn=True, num_swarms=2)
    free -= 1
    with pytest.raises(ConfigError, match="2 swarms of 3 nodes .*choose fewer --peers .* or fewer --jobs or a smaller"):
        check_nodes(config, 3, in_turn=True, num_swarms=2)


def test_this_machines_memory_is_found() -> None:
    found = check.memory_of(torch.device("cpu"))
    assert found.device == "cpu" and 0 < found.free <= found.total and found.swap >= 0
