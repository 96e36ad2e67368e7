"""What the preflight computes is what a GPU allocates; and what is too large for it is made smaller, not a crash."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.common.report import Report, row
from swarm.config import NodeConfig
from swarm.policy.adapters import Adapters
from swarm.policy.config import FrozenDtype, LoraSettings
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import release_unused
from swarm.policy.tiny import tiny_tokenizer
from swarm.preflight.duties import PEER
from swarm.preflight.model import measure
from swarm.preflight.need import Node
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.forward import is_compiled
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup
from tests.example_groups import rollout_group

pytestmark = pytest.mark.gpu

SHAPE = Qwen2Config(
    hidden_size=1_024,
    intermediate_size=2_816,
    num_hidden_layers=16,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=65_536,
    tie_word_embeddings=True,
    pad_token_id=0,
    eos_token_id=1,
)
"""A third of a billion weights: large against what CUDA itself takes, small against any GPU."""
ROWS, COMPLETION = 8, 1_000


def _group() -> GradedGroup:
    logprobs = (-1.0,) * COMPLETION
    ids = [tuple(5 + (row + k) % 90 for k in range(COMPLETION)) for row in range(ROWS)]  # equal ones share a pass
    completions = tuple(Completion("x", "length", each, logprobs) for each in ids)
    rewards = tuple(float(k % 2) for k in range(ROWS))
    return GradedGroup(rollout_group(completions=completions, rewards=rewards), "Calculate 12 + 7.", rewards)


def _config(lora: LoraSettings, tokens: int, checkpointed: bool) -> NodeConfig:
    return NodeConfig.model_validate(
        {
            "policy": {"model": "some/model", "dtype": "bfloat16", "lora": lora.model_dump()},
            "generation": {"engine": "transformers", "max_new_tokens": COMPLETION},
            "update": {"micro_batch_tokens": tokens, "gradient_checkpointing": checkpointed},
        }
    )


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(("rank", "frozen"), [(0, "compute"), (16, "compute"), (16, "nf4")])
def test_the_peak_of_an_update_is_what_the_preflight_says(
    device: torch.device, figures: Report, rank: int, frozen: FrozenDtype, checkpointed: bool
) -> None:
    if rank:
        pytest.importorskip("peft", reason="needs the extra lora")
    lora, tokens = LoraSettings(rank=rank, frozen_dtype=frozen), 4 * COMPLETION
    before = torch.cuda.memory_allocated(device)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(SHAPE).to(torch.bfloat16 if rank else torch.float32)
    adapters = Adapters(model, lora) if rank else None
    policy = Policy("some/model", model.to(device), tiny_tokenizer(), None, torch.bfloat16, adapters)
    config = _config(lora, tokens, checkpointed)
    updater, passes = PolicyUpdater(policy, config.update, MixSettings(), 1.0), []
    model.register_forward_pre_hook(lambda m, args, given: passes.append(given["input_ids"].numel()), with_kwargs=True)
    updater.update([_group()], [])  # makes the optimizer's states
    torch.cuda.reset_peak_memory_stats(device)
    updater.update([_group()], [])
    measured = torch.cuda.max_memory_allocated(device) - before
    compiled = is_compiled(config.update.compile, policy)
    size = measure(SHAPE, lora, lambda _: torch.bfloat16, compiled=lambda _: compiled, checkpointed=checkpointed)
    node = Node(config, size, PEER, "transformers", "cuda", torch.cuda.mem_get_info(device)[1])
    names = {"weights", "optimizer", "gradients", "activations", "a matrix of few bits, computed"}
    computed = sum(part.num_bytes for part in node.with_passes(max(passes), 1).parts if part.name in names)
    what = f"peak of an update: {'all weights' if not rank else f'rank {rank}, {frozen}'}"
    what += ", checkpointed" if checkpointed else ""
    figures.add([row(what, [measured / 2**20], "MiB", baseline=[computed / 2**20])])
    assert computed == pytest.approx(measured, rel=0.05)


def test_passes_that_do_not_fit_become_smaller(device: torch.device) -> None:
    """Half of what one long pass would take is left."""
    torch.manual_seed(0)
    policy = Policy("some/model", Qwen2ForCausalLM(SHAPE).to(device), tiny_tokenizer(), None, torch.bfloat16)
    settings = UpdateSettings(micro_batch_tokens=ROWS * COMPLETION * 2, gradient_checkpointing=False)
    updater = PolicyUpdater(policy, settings, MixSettings(), 1.0)
    size = measure(SHAPE, LoraSettings(), lambda _: torch.bfloat16)
    assert size.passes is not None
    free, _ = torch.cuda.mem_get_info(device)
    room = 12 * size.trained + size.passes.kept.at(ROWS * COMPLETION // 2)
    hog = torch.empty(max(0, free - room), dtype=torch.uint8, device=device)
    assert not updater.update([_group()], []).skipped
    assert updater._runner._budget.tokens < ROWS * COMPLETION * 2
    del hog


def test_layers_are_checkpointed_when_memory_runs_out(device: torch.device) -> None:
    """And not before: half of what a pass keeps without is left."""
    torch.manual_seed(0)
    policy = Policy("some/model", Qwen2ForCausalLM(SHAPE).to(device), tiny_tokenizer(), None, torch.bfloat16)
    updater = PolicyUpdater(policy, UpdateSettings(), MixSettings(), 1.0)
    updater.update([_group()], [])
    assert not updater._runner._layers.checkpointed, "memory was free"
    size = measure(SHAPE, LoraSettings(), lambda _: torch.bfloat16)
    assert size.passes is not None
    release_unused()
    free, _ = torch.cuda.mem_get_info(device)
    room = 4 * size.trained + size.passes.kept.at(ROWS * COMPLETION // 2)
    hog = torch.empty(max(0, free - room), dtype=torch.uint8, device=device)
    assert not updater.update([_group()], []).skipped
    assert updater._runner._layers.checkpointed
    del hog
