"""A task with long answers, and a policy that knows it partly: counting the 1 bits of a number by halving it.

A completion of about 77 tokens has one reward and about seven critical steps: the policy is trained on workings that
sometimes omit a bit, so that it can do each step but does not always do it. Reinforcement learning can improve this.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.verification.inline import InlineVerifier
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config, tiny_tokenizer
from swarm.types import as_text

TASK = ReasoningGymTask(name="count_bits", options={"min_n": 2**13, "max_n": 2**14 - 1})
NUM_EXAMPLES = 6_000
TRAINING_STREAM = 2**40
"""Question stream of the examples; no benchmark run asks them."""


MAX_WORKINGS = 8


@dataclass(frozen=True)
class WarmStart:
    """The recipe of the policy."""

    steps: int = 500
    batch_size: int = 32
    learning_rate: float = 5e-3
    warmup_steps: int = 20
    final_fraction: float = 0.1
    """Linear decay of the learning rate to this fraction of it."""
    forgotten: float = 0.15
    """Fraction of the 1 bits that are not counted."""
    again: float = 0.0
    """Probability of repeating the working after each one, up to `MAX_WORKINGS`: long-tailed lengths."""
    seed: int = 1


def working(number: int, recipe: WarmStart, rng: random.Random) -> str:
    """Of 13: `6 1, 3 1, 1 2, 0 3<answer>3</answer>`, the half and the bits so far; `; ` before a repetition."""
    workings: list[str] = []
    # With `again` 0 no random number is drawn, so that such examples do not change.
    while not workings or (recipe.again and len(workings) < MAX_WORKINGS and rng.random() < recipe.again):
        bits, rest = 0, number
        steps = []
        while rest:
            bits += rest % 2 and rng.random() >= recipe.forgotten
            rest //= 2
            steps.append(f"{rest} {bits}")
        workings.append(", ".join(steps))
    return f"{'; '.join(workings)}<answer>{bits}</answer>"


def warm_start(recipe: WarmStart, verifier: InlineVerifier, directory: Path) -> None:
    """Train the policy and write it to `directory`, in Hugging Face format."""
    tokenizer = tiny_tokenizer()
    rng = random.Random(recipe.seed)
    examples = []
    for question in verifier.draw(TRAINING_STREAM, 0, NUM_EXAMPLES):
        number = int(re.findall(r"\d+", as_text(question.prompt))[-1])
        prompt = tokenizer.encode(as_text(question.prompt))
        answer = tokenizer.encode(working(number, recipe, rng))
        examples.append((prompt, [*answer, tokenizer.eos_token_id]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = Qwen3ForCausalLM(tiny_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98))
    for step in range(recipe.steps):
        decay = 1 - (1 - recipe.final_fraction) * step / recipe.steps
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * min(1.0, (step + 1) / recipe.warmup_steps) * decay
        ids, labels = _batch(rng.sample(examples, recipe.batch_size))
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def load(directory: Path) -> Policy:
    """The policy in `directory`."""
    model = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return Policy("halving", model, tiny_tokenizer(), system_prompt=None)


def _batch(examples: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and labels [B, T]; labels are -100 on prompts and padding. Causal attention needs no mask."""
    width = max(len(prompt) + len(answer) for prompt, answer in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    labels = torch.full((len(examples), width), -100)
    for row, (prompt, answer) in enumerate(examples):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor([*prompt, *answer])
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels
