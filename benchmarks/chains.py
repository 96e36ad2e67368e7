"""A task with long answers, and a policy that half-knows it: sums of many terms, worked out one term at a time.

Each step can go wrong, and the answer is right only when no step did, so a completion of 80 tokens has one reward and
many places where it was decided. The policy learns from workings with mistakes in them; reinforcement learning can take
them out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config, tiny_tokenizer
from swarm.tasks.config import ReasoningGymTask
from swarm.tasks.inline import InlineVerifier

TASK = ReasoningGymTask(
    name="basic_arithmetic",
    options={
        "min_terms": 10,
        "max_terms": 10,
        "min_digits": 1,
        "max_digits": 1,
        "operators": ["+", "-"],
        "allow_parentheses": False,
        "allow_negation": False,
    },
)
NUM_EXAMPLES = 6_000
TRAINING_STREAM = 2**40
"""Question stream of the examples; no cell of a benchmark asks them."""


@dataclass(frozen=True)
class WarmStart:
    """How the policy is made."""

    steps: int = 1_600
    batch_size: int = 32
    learning_rate: float = 5e-3
    warmup_steps: int = 20
    final_fraction: float = 0.1
    """Linear decay of the learning rate to this part of it."""
    mistakes: float = 0.03
    """Part of the steps of a working that are off by one."""
    seed: int = 1


def working(question: str, mistakes: float, rng: random.Random) -> str:
    """A working of `Calculate 3 + 4 - 2.`: `3 + 4 = 7, 7 - 2 = 5<answer>5</answer>`, wrong steps carried on."""
    first, *rest = question.removeprefix("Calculate ").removesuffix(".").split(" ")
    total = int(first)
    steps = []
    for operator, term in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(term) if operator == "+" else total - int(term)
        if rng.random() < mistakes:
            result += rng.choice((-1, 1))
        steps.append(f"{total} {operator} {term} = {result}")
        total = result
    return f"{', '.join(steps)}<answer>{total}</answer>"


def warm_start(recipe: WarmStart, verifier: InlineVerifier, directory: Path) -> None:
    """Make the policy and write it to `directory`, in Hugging Face format."""
    tokenizer = tiny_tokenizer()
    rng = random.Random(recipe.seed)
    examples = []
    for question in verifier.draw(TRAINING_STREAM, 0, NUM_EXAMPLES):
        prompt = tokenizer.encode(question.prompt)
        answer = tokenizer.encode(working(question.prompt, recipe.mistakes, rng))
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
    """The policy in `directory`, untrained since."""
    model = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return Policy("chains", model, tiny_tokenizer(), system_prompt=None)


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
