"""The effect of replaying expert choices: the difference between engine and trainer, and the cost."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.common.report import Row, row
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_tokenizer
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import GradedGroup, PolicyId, ProceduralRef, Rejection, RolloutGroup, Sampling

PROMPTS = [f"Calculate {7 * k} + {k}. Give only the result as your final answer." for k in range(8)]
SAMPLING = Sampling(max_new_tokens=32)
GROUP_SIZE = 8


@dataclass(frozen=True)
class Outcome:
    """Figures of one generation and one update on it."""

    mismatch: float
    generate_s: float
    """Processor time, as below."""
    update_s: float


def mixture(replay: bool, seed: int) -> Policy:
    """Four layers, 4 of 32 experts per token, random, in bfloat16."""
    torch.manual_seed(seed)
    tokenizer = tiny_tokenizer()
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        moe_intermediate_size=64,
        num_experts=32,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        max_position_embeddings=512,
        initializer_range=0.1,
        pad_token_id=0,
        eos_token_id=1,
    )
    return Policy("moe", Qwen3MoeForCausalLM(config), tokenizer, None, torch.bfloat16, routing_replay=replay)


def outcome(replay: bool, seed: int, num_completions: int) -> Outcome:
    """Generate and update once."""
    policy = mixture(replay, seed)
    engine = TransformersEngine(policy, GenerationSettings())
    updater = PolicyUpdater(policy, UpdateSettings(minibatches=1), MixSettings(), SAMPLING.temperature)
    began = time.process_time()
    answers = engine.generate(PROMPTS, num_completions, SAMPLING, seed)
    generated = time.process_time()
    rewards = tuple(float(k % 2) for k in range(num_completions))
    groups = [
        GradedGroup(
            RolloutGroup(
                run_id="",
                peer_id="",
                sequence=index,
                created_at=0.0,
                policy=PolicyId(policy.name, policy.tokenizer_hash, 0),
                sampling=SAMPLING,
                question=ProceduralRef("sum", "none", "", 0, index, ""),
                completions=completions,
                rewards=rewards,
            ),
            prompt,
            rewards,
        )
        for index, (prompt, completions) in enumerate(zip(PROMPTS, answers, strict=True))
        if not isinstance(completions, Rejection)
    ]
    report = updater.update(groups, [])
    return Outcome(
        report.figures["sampling/sampling_logp_difference/mean"], generated - began, time.process_time() - generated
    )


def routing(quick: bool, repeats: int) -> tuple[list[Row], list[str]]:
    """With replay against without, interleaved, with a new model per repeat."""
    runs: dict[bool, list[Outcome]] = {False: [], True: []}
    outcome(False, 0, 2)  # warm up: the first pass of a process is slower
    for seed in range(repeats):
        for replay, outcomes in runs.items():
            outcomes.append(outcome(replay, seed, 2 if quick else GROUP_SIZE))
    without, replayed = runs[False], runs[True]
    fewer = [1 - b.mismatch / a.mismatch for a, b in zip(without, replayed, strict=True)]
    return [
        row(
            "routing replay: mean |log-probability, engine - trainer|",
            [each.mismatch for each in replayed],
            "nats",
            baseline=[each.mismatch for each in without],
        ),
        row("routing replay: fraction of the mismatch removed", fewer, ""),
        row(
            "routing replay: generation",
            [each.generate_s for each in replayed],
            "s",
            baseline=[each.generate_s for each in without],
        ),
        row(
            "routing replay: update",
            [each.update_s for each in replayed],
            "s",
            baseline=[each.update_s for each in without],
        ),
    ], [
        "Routing replay: a random Qwen3-MoE model of 4 layers, 4 of 32 experts per token, in bfloat16; "
        f"{len(PROMPTS)} prompts x {GROUP_SIZE} completions of 32 tokens, one update on all of them; the baseline is "
        "without replay. Seconds are processor time."
    ]
