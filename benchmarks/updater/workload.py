"""The workload of the update benchmark, written once and read by both sides: `python -m benchmarks.updater.workload
SPEC`.

A folder gets `model/`, random weights and a tokenizer in Hugging Face format, and `batch.msgpack`: graded groups whose
completions are random tokens with the model's log-probabilities.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.common.children import emit
from swarm.types import Completion, GradedGroup, PolicyId, ProceduralRef, RolloutGroup, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GROUP_SIZE = 8
MODEL, BATCH = "model", "batch.msgpack"


@dataclass(frozen=True)
class Workload:
    """A model and a batch; the first argument, as JSON."""

    model: str
    """A name in `MODELS`."""
    sequences: int = 64
    median: int = 96
    longest: int = 512
    """Tokens of a completion, log-normal from quantile to quantile; all alike when equal to the median."""
    prompts: tuple[int, int] = (24, 64)
    """Fewest and most words of a prompt."""
    device: str = "cpu"

    def as_argument(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion; repeated beyond 64, so that a larger batch differs only in size."""
        count = min(64, self.sequences)
        quantiles = [statistics.NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)]
        stretch = self.longest / self.median
        once = [round(self.median * stretch ** (quantile / quantiles[-1])) for quantile in quantiles]
        random.Random(0).shuffle(once)
        return [once[index % count] for index in range(self.sequences)]


def embedded() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """0.13 M parameters, the embedded tokenizer; positions for the longest completion after its prompt."""
    from transformers import Qwen3ForCausalLM

    from swarm.policy.tiny import tiny_config, tiny_tokenizer

    config = tiny_config()
    config.max_position_embeddings = 1024
    return Qwen3ForCausalLM(config), tiny_tokenizer()


def small() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """25 M parameters, half of them in a vocabulary of 32 000."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=32_000,
        hidden_size=384,
        num_hidden_layers=7,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=64,
        intermediate_size=1024,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config), _words(config.vocab_size)


def qwen() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The shape of Qwen2.5-0.5B: 494 M parameters, a vocabulary of 151 936."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        intermediate_size=4864,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config), _words(config.vocab_size)


MODELS = {"0.13 M": embedded, "25 M": small, "0.5 B": qwen}


def read_batch(folder: Path) -> list[GradedGroup]:
    """The written groups."""
    return msgspec.msgpack.decode((folder / BATCH).read_bytes(), type=list[GradedGroup])


def write(workload: Workload, folder: Path) -> float:
    """Make model and batch, deterministic for a workload; returns an update's floating-point operations."""
    import torch

    torch.manual_seed(0)
    model, tokenizer = MODELS[workload.model]()
    model.save_pretrained(folder / MODEL)
    tokenizer.save_pretrained(folder / MODEL)
    model = model.to(workload.device).eval()
    draw = random.Random(1)
    vocabulary = len(tokenizer)
    groups, flops = [], 0.0
    lengths = workload.lengths
    for index in range(workload.sequences // GROUP_SIZE):
        prompt = _prompt(tokenizer, draw, draw.randint(*workload.prompts))
        rows = [
            [draw.randrange(2, vocabulary) for _ in range(length)]
            for length in lengths[index * GROUP_SIZE : (index + 1) * GROUP_SIZE]
        ]
        start = tokenizer.encode(prompt)
        logprobs = [_logprobs(model, start, row) for row in rows]
        right = draw.randint(1, GROUP_SIZE - 1)
        flops += sum(_flops(model, len(start), len(row)) for row in rows)
        groups.append(_group(index, prompt, rows, logprobs, [float(k < right) for k in range(GROUP_SIZE)]))
    (folder / BATCH).write_bytes(msgspec.msgpack.encode(groups))
    return flops


def _flops(model: PreTrainedModel, prompt: int, completion: int) -> float:
    """FLOPs of forward and backward of one sequence: head on the completion only, causal attention, no
    recomputation."""
    config = model.config
    head = config.vocab_size * config.hidden_size
    body = model.num_parameters() - head  # the embedding is the head
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    tokens = prompt + completion
    attention = config.num_hidden_layers * width * tokens**2
    return float(6 * (body * tokens + head * completion + attention))


def _words(size: int) -> PreTrainedTokenizerBase:
    """A tokenizer with one token per word, so that no vocabulary is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", *(f"w{index}" for index in range(size - 2))]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def _prompt(tokenizer: PreTrainedTokenizerBase, draw: random.Random, words: int) -> str:
    if len(tokenizer) < 1000:  # one token per character
        return "".join(draw.choices("0123456789abcdef", k=words))
    return " ".join(f"w{draw.randrange(len(tokenizer) - 2)}" for _ in range(words))


def _logprobs(model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int]) -> tuple[float, ...]:
    """The log-probabilities that an engine would report."""
    import torch

    with torch.no_grad():
        ids = torch.tensor([[*prompt, *completion]], device=model.device)
        logits = model(input_ids=ids, logits_to_keep=len(completion) + 1, use_cache=False).logits[0, :-1].float()
        chosen = logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])
    return tuple(chosen[:, 0].tolist())


def _group(
    index: int, prompt: str, rows: list[list[int]], logprobs: list[tuple[float, ...]], rewards: list[float]
) -> GradedGroup:
    group = RolloutGroup(
        run_id="",
        peer_id="",
        sequence=index,
        created_at=0.0,
        policy=PolicyId("benchmark", "benchmark", 0),
        sampling=Sampling(),
        question=ProceduralRef("benchmark", "benchmark", "benchmark", 0, index, "benchmark"),
        completions=tuple(
            Completion("", "stop", tuple(row), values) for row, values in zip(rows, logprobs, strict=True)
        ),
        rewards=tuple(rewards),
    )
    return GradedGroup(group, prompt, tuple(rewards))


if __name__ == "__main__":
    emit("written", flops=write(Workload(**json.loads(sys.argv[1])), Path(sys.argv[2])))
