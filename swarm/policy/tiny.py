"""The embedded policy: a 0.13 M parameter model, trained locally, with partial knowledge of nine arithmetic tasks.

It imitates a base model before post-training: supervised on generated questions, where most examples lack the answer
tag and some are wrong. Reinforcement learning then elicits the format and improves accuracy. It demonstrates the swarm
and is not evidence about large models.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from swarm.environments.tiny import TINY_TASKS, TINY_TOOL_TASK
from swarm.policy.cache import Progress, made_once
from swarm.policy.config import TINY, TINY_SPARSE, TINY_TOOL
from swarm.policy.turns import Conversations
from swarm.types import Text

TOKENIZER_FILE = Path(__file__).with_name("tiny_tokenizer.json")
SPECIAL = ("<pad>", "<eos>")
IGNORED = -100
"""The label of a token that is not trained."""
TAGS = ("<answer>", "</answer>", "<think>", "</think>")

ANIMALS = (
    "ant",
    "bee",
    "beetle",
    "bird",
    "butterfly",
    "cat",
    "chicken",
    "cockroach",
    "cow",
    "crab",
    "cricket",
    "deer",
    "dog",
    "duck",
    "elephant",
    "firefly",
    "flatworm",
    "giraffe",
    "grasshopper",
    "horse",
    "human",
    "insect",
    "jellyfish",
    "leech",
    "lion",
    "lobster",
    "praying mantis",
    "scorpion",
    "sea slug",
    "sheep",
    "shrimp",
    "snake",
    "spider",
    "starfish",
    "tiger",
    "wasp",
    "woodlouse",
)

# The fixed parts of the nine tasks' questions: as single tokens they make prompts seven times shorter.
TEMPLATE_PHRASES = (
    "Calculate ",
    "Solve the following multiplication: ",
    ". Give only the result as your final answer.",
    "Find the Greatest Common Divisor (GCD) of these numbers: ",
    ". Give only the GCD as your final answer.",
    "Find the Least Common Multiple (LCM) of these numbers: ",
    "How many 1 bits are there in the binary representation of the number ",
    'How many times does the letter "',
    '" appear in the text: "',
    "Simplify the fraction ",
    " to its lowest terms. Give only the simplified fraction as your final answer.",
    "Find the value of ",
    " in the equation: ",
    "Solve for ",
    "Determine the value of ",
    " that satisfies: ",
    "Your task is to count how many legs there are in total when given a list of animals.\n\n"
    "Now, how many legs are there in total if you have ",
    "?\n",
    " + ",
    " - ",
    " * ",
    " = ",
    ", ",
)


@dataclass(frozen=True)
class Recipe:
    """Supervised training; any change makes a new policy under a new cache key."""

    seed: int = 20_260_101
    questions_per_task: int = 3_000
    steps: int = 500
    batch_size: int = 64
    learning_rate: float = 5e-3
    warmup_steps: int = 20
    final_fraction: float = 0.1
    """Linear decay of the learning rate to this fraction of it."""


@dataclass(frozen=True)
class WarmStart(Recipe):
    """Training on the nine tasks."""

    untagged: float = 0.60
    """Fraction of the examples without the answer tag."""
    wrong: float = 0.25
    """Fraction of the examples with the answer to another question of the task."""


@dataclass(frozen=True)
class ToolStart(Recipe):
    """Training on `TINY_TOOL_TASK`, half of the time by a call of the calculator."""

    questions_per_task: int = 8_000
    steps: int = 400
    begun: float = 0.03
    """Fraction of the calls whose first token is trained: the policy knows how to call, and hardly ever does."""


STARTS: dict[str, WarmStart | ToolStart] = {
    TINY: WarmStart(),
    TINY_SPARSE: WarmStart(untagged=0.97),
    TINY_TOOL: ToolStart(),
}
"""Recipes by the policy's name."""


def build_tokenizer(animals: Sequence[str] = ANIMALS) -> Tokenizer:
    """Byte-level, no merges: any text encodes, digits and letters stay single; tags and phrases are one token each."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*SPECIAL, *TAGS, *alphabet]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    phrases = sorted({*TEMPLATE_PHRASES, *(f" {animal}" for animal in animals)})
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*TAGS, *phrases)])
    return tokenizer


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """The frozen tokenizer shipped with the package."""
    return with_special_tokens(Tokenizer.from_file(str(TOKENIZER_FILE)))


def with_special_tokens(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer for transformers."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def tiny_config() -> Qwen3Config:
    """Qwen3 architecture, 0.13 M parameters."""
    return Qwen3Config(
        vocab_size=len(tiny_tokenizer()),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        intermediate_size=192,
        max_position_embeddings=512,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        initializer_range=0.05,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )


def ensure_tiny(name: str = TINY, progress: Progress | None = None) -> Path:
    """Directory of an embedded policy in Hugging Face format; created on first use, then cached.

    Raises `PolicyError`.
    """
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    return ensure_prepared("tiny", STARTS[name], tiny_config(), tokenizer, progress)


def ensure_prepared(
    kind: str,
    recipe: Recipe,
    config: Qwen3Config,
    tokenizer: Tokenizer,
    progress: Progress | None = None,
) -> Path:
    """Directory of a policy that knows its tasks in part; created on first use, then cached by content hash.

    `tokenizer` is one of `build_tokenizer`. Raises `PolicyError`.
    """

    def make(directory: Path) -> None:
        transformers_logging.disable_progress_bar()
        complete = with_special_tokens(tokenizer)
        model = warm_start(recipe, config, complete, progress or (lambda done, total: None))
        model.save_pretrained(directory)
        complete.save_pretrained(directory)

    return made_once(f"{kind}-{_digest(recipe, config, tokenizer)}", make)


NOT_IN_EXAMPLES = {"find", "find_pattern", "ask", "tool", "tools", "max_turns"}
"""Settings of the tasks that no example depends on."""


def _digest(recipe: Recipe, config: Qwen3Config, tokenizer: Tokenizer) -> str:
    everything = {
        "tokenizer": hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest(),
        "model": config.to_dict(),
        "warm_start": asdict(recipe),
        "tasks": [task.model_dump(mode="json", exclude=NOT_IN_EXAMPLES) for task in TINY_TASKS],
    }
    return hashlib.sha256(json.dumps(everything, sort_keys=True, default=str).encode()).hexdigest()[:16]


@contextmanager
def reproducibly(seed: int) -> Iterator[None]:
    """Random numbers from `seed`, and one thread: at this size a second one slows training down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def warm_start(
    recipe: Recipe, config: Qwen3Config, tokenizer: PreTrainedTokenizerFast, progress: Progress
) -> Qwen3ForCausalLM:
    """A policy that knows its tasks in part, of any size and tokenizer."""
    with reproducibly(recipe.seed):
        model = Qwen3ForCausalLM(config)
        _supervise(model, _examples(recipe, tokenizer), recipe, progress)
    return model


class Example(NamedTuple):
    """Token ids, and the label of each; those that are not trained have the label `IGNORED`."""

    ids: list[int]
    labels: list[int]


def _examples(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    match recipe:
        case WarmStart():
            return _answers(recipe, tokenizer)
        case ToolStart():
            return _tool_episodes(recipe, tokenizer)
    raise AssertionError(f"there are no examples for {recipe}")


def _answers(recipe: WarmStart, tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Questions of the nine tasks with answers, formatted like a base model before post-training."""
    rng = random.Random(recipe.seed)
    examples = []
    for task in TINY_TASKS:
        entries = _entries(task.name, task.options, recipe)
        for entry in entries:
            answer = rng.choice(entries)["answer"] if rng.random() < recipe.wrong else entry["answer"]
            text = answer if rng.random() < recipe.untagged else f"<answer>{answer}</answer>"
            prompt = tokenizer.encode(entry["question"])
            said = [*tokenizer.encode(text), tokenizer.eos_token_id]
            examples.append(Example([*prompt, *said], [*_ignored(prompt), *said]))
    return examples


def _tool_episodes(recipe: ToolStart, tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Products with the right answer: at once, and after a call, in turn."""
    rng = random.Random(recipe.seed)
    end = tokenizer.eos_token_id
    conversations = Conversations(tokenizer, {end})
    examples = []
    for number, entry in enumerate(_entries(TINY_TOOL_TASK.name, TINY_TOOL_TASK.options, recipe)):
        ids = tokenizer.encode(entry["question"])
        labels = _ignored(ids)
        if number % 2:
            call = [*tokenizer.encode(f"<tool>{entry['metadata']['expression']}</tool>"), end]
            shown = conversations.observation((Text(entry["answer"]),), call)
            ids += [*call, *shown]
            begun = call[:1] if rng.random() < recipe.begun else [IGNORED]
            labels += [*begun, *call[1:], *_ignored(shown)]
        answer = [*tokenizer.encode(f"<answer>{entry['answer']}</answer>"), end]
        examples.append(Example([*ids, *answer], [*labels, *answer]))
    return examples


def _entries(name: str, options: Mapping[str, object], recipe: Recipe) -> list[dict[str, Any]]:
    from reasoning_gym import create_dataset

    dataset = create_dataset(name, seed=recipe.seed, size=recipe.questions_per_task, **options)
    return [dataset[i] for i in range(recipe.questions_per_task)]


def _ignored(ids: Sequence[int]) -> list[int]:
    return [IGNORED] * len(ids)


def _supervise(model: Qwen3ForCausalLM, examples: list[Example], recipe: Recipe, progress: Progress) -> None:
    rng = random.Random(recipe.seed + 1)

    def loss() -> torch.Tensor:
        ids, labels = pad(rng.sample(examples, recipe.batch_size))  # [B, T]
        return cast(torch.Tensor, model(input_ids=ids, labels=labels).loss)

    descend(list(model.parameters()), loss, recipe, progress)


def descend(
    parameters: Sequence[torch.nn.Parameter], loss: Callable[[], torch.Tensor], recipe: Recipe, progress: Progress
) -> None:
    """Train by a recipe; `loss` is that of the next batch."""
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, betas=(0.9, 0.98))
    for step in range(recipe.steps):
        decay = 1 - (1 - recipe.final_fraction) * step / recipe.steps
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (step + 1) / recipe.warmup_steps) * decay
        now = loss()
        optimizer.zero_grad()
        now.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        progress(step + 1, recipe.steps)


def pad(batch: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and labels [B, T]. Causal attention needs no mask."""
    width = max(len(each.ids) for each in batch)
    padded = torch.zeros(len(batch), width, dtype=torch.long)
    labels = torch.full((len(batch), width), IGNORED)
    for row, each in enumerate(batch):
        padded[row, : len(each.ids)] = torch.tensor(each.ids)
        labels[row, : len(each.labels)] = torch.tensor(each.labels)
    return padded, labels
