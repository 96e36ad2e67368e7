"""The workload of the engine benchmark, and its contenders: ours, transformers' two loops, and vLLM.

Completions end at random stop tokens: the models are random, so that all tokens are about equally likely and lengths
are geometric. A few completions are six times as long as the mean, as in real rollouts.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from benchmarks.common.children import ROOT, Child
from swarm.engines.config import GenerationSettings, VllmSettings
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.engine import TransformersEngine
from swarm.extras.vllm.arguments import CPU_BLOCK
from swarm.extras.vllm.engine import VllmEngine
from swarm.extras.vllm.service import VllmService
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config, tiny_tokenizer
from swarm.protocols import RolloutEngine
from swarm.types import NextTurn, Rejection, Sampling

PAGE_TOKENS = 32
"""Page size of transformers' continuous batching: its default of 256 would waste most of the budget."""
PASS_TOKENS = 512
"""Tokens of one of its forward passes."""
PATIENCE_S = 3_600.0


@dataclass(frozen=True)
class Workload:
    """P prompts, G completions each, and the KV cache budget in tokens."""

    num_prompts: int = 32
    num_completions: int = 8
    prompt_tokens: tuple[int, int] = (16, 64)
    """Shortest and longest."""
    mean_tokens: int = 48
    max_new_tokens: int = 320
    static_rows: int = 64
    """Sequences of maximum length that fit the budget: the size of a static batch."""

    @property
    def budget_tokens(self) -> int:
        """The token budget in tokens."""
        return self.static_rows * (self.prompt_tokens[1] + self.max_new_tokens)

    def prompts(self) -> list[str]:
        """Prompts of letters, one token each."""
        draw = random.Random(0)
        return ["".join(draw.choices("abcdefgh", k=draw.randint(*self.prompt_tokens))) for _ in range(self.num_prompts)]

    def stop_tokens(self, policy: Policy) -> list[str]:
        """Enough stop tokens to end a completion of uniform tokens after `mean_tokens` on average."""
        vocabulary = policy.model.config.vocab_size
        count = max(1, vocabulary // self.mean_tokens - len(policy.stop_ids))
        return list(policy.tokenizer.convert_ids_to_tokens(range(6, 6 + count)))

    def stop_ids(self, policy: Policy) -> set[int]:
        """Their ids and the policy's own."""
        return {*policy.stop_ids, *policy.tokenizer.convert_tokens_to_ids(self.stop_tokens(policy))}


@dataclass(frozen=True)
class Outcome:
    """The result of one run of the workload."""

    lengths: list[int]
    """Tokens of each completion, in no particular order."""
    seconds: float
    """CPU time of all threads."""

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens per second."""
        return sum(self.lengths) / self.seconds


Contender = Callable[[Policy, Workload, int], list[int]]
"""(policy, workload, seed) -> lengths"""


_HIDDEN = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1_152,
}
SHAPES = {
    "22 M": {"vocab_size": 1_536, **_HIDDEN},
    "25 M": {"vocab_size": 8_192, **_HIDDEN},
    "135 M": {  # SmolLM2's
        "vocab_size": 49_152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1_536,
    },
}


def random_policy(name: str) -> Policy:
    """`0.13 M`, the embedded policy's architecture, or a size of `SHAPES` in parameters; random weights."""
    config = tiny_config()
    if name in SHAPES:
        config = Qwen3Config(
            **SHAPES[name],
            head_dim=64,
            max_position_embeddings=1_024,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
        )
    torch.manual_seed(0)
    return Policy(name, Qwen3ForCausalLM(config), tiny_tokenizer(), system_prompt=None)


def timed(
    contender: Contender,
    policy: Policy,
    workload: Workload,
    seed: int,
    clock: Callable[[], float] = time.process_time,
) -> Outcome:
    """One run, in CPU time, so that other load on the machine does not count."""
    began = clock()
    lengths = contender(policy, workload, seed)
    return Outcome(lengths, clock() - began)


def ours(policy: Policy, workload: Workload, seed: int) -> list[int]:
    """The engine of this project."""
    settings = GenerationSettings(
        max_batch_tokens=workload.budget_tokens,
        max_batch_sequences=workload.num_prompts * workload.num_completions,
    )
    return _lengths(TransformersEngine(policy, settings), policy, workload, seed)


class Vllm:
    """vLLM in its own process, as a node would use it; a `Contender`."""

    def __init__(self, policy: Policy, python: Path, num_sequences: int, num_tokens: int) -> None:
        """Start it before any run, with room for so many sequences, and tokens of all of them."""
        self._settings = GenerationSettings(
            max_batch_sequences=num_sequences,
            vllm=VllmSettings(
                python=python,
                cpu_cache_bytes=_cache_bytes(policy, num_tokens),
                start_timeout_s=PATIENCE_S,
                silence_timeout_s=PATIENCE_S,
            ),
        )
        self._service = VllmService(policy, self._settings)
        self._service.running(lambda: False)

    def engine(self, policy: Policy) -> VllmEngine:
        """An engine of the policy that it has."""
        return VllmEngine(policy, self._settings, self._service)

    def __call__(self, policy: Policy, workload: Workload, seed: int) -> list[int]:
        """The whole workload."""
        return _lengths(self.engine(policy), policy, workload, seed)

    def by_turns(self, policy: Policy, workload: Workload, seed: int) -> list[int]:
        """The same with every completion asked for on its own, as a turn of an episode."""
        answers = self.engine(policy).stream([], 0, _sampling(policy, workload), seed, _FirstTurns(workload))
        return [len(c.token_ids) for _, group in answers if not isinstance(group, Rejection) for c in group]

    def process_time(self) -> float:
        """CPU time of this process and of vLLM's."""
        theirs = psutil.Process(self._service.pid).cpu_times()
        return time.process_time() + theirs.user + theirs.system

    def close(self) -> None:
        """End it."""
        self._service.close()


class VllmAlone:
    """vLLM without this project, in a process of its own; a `Contender` for one policy and workload."""

    def __init__(
        self, policy: Policy, python: Path, workload: Workload, folder: Path, memory: Mapping[str, object] = {}
    ) -> None:
        """Start it. The model goes to `folder`; `memory` are its arguments for a GPU, else it has the workload's budget
        on the CPU.
        """
        policy.save(folder)
        on_cpu = {
            "kv_cache_memory_bytes": _cache_bytes(policy, workload.budget_tokens),
            "block_size": CPU_BLOCK,
            "enforce_eager": True,
            "enable_chunked_prefill": False,
        }
        arguments = {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "dtype": str(policy.compute_dtype).removeprefix("torch."),
            "max_model_len": -1,  # what the cache has room for
            "max_num_seqs": workload.num_prompts * workload.num_completions,
            "generation_config": "vllm",
            **(memory or on_cpu),
        }
        spec = {
            "arguments": arguments,
            "prompts": [policy.encode_prompt(prompt) for prompt in workload.prompts()],
            "num_completions": workload.num_completions,
            "max_tokens": workload.max_new_tokens,
            "stop_ids": sorted(workload.stop_ids(policy)),
        }
        # Its engine computes in this process, as in a node: so their processor times can be compared.
        environment = {"PYTHONPATH": str(ROOT), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        command = [str(python), "-m", "benchmarks.engine.alone", json.dumps(spec)]
        self._child = Child("vllm", command, folder / "vllm.log", environment)
        self._child.wait_for("ready", PATIENCE_S)

    def __call__(self, policy: Policy, workload: Workload, seed: int) -> list[int]:
        """The whole workload."""
        self._child.tell("generate", seed=seed)
        lengths = self._child.wait_for("generate", PATIENCE_S)["lengths"]
        assert isinstance(lengths, list)
        return lengths

    def process_time(self) -> float:
        """CPU time of vLLM's process."""
        return self._child.cpu_s()

    def close(self) -> None:
        """End it."""
        self._child.end()


def _cache_bytes(policy: Policy, num_tokens: int) -> int:
    """Keys and values of so many tokens, at least what vLLM takes."""
    return max(2**20, num_tokens * sum(shape.num_bytes for shape in Decoder(policy).shapes))


class _FirstTurns:
    """Episodes of one turn, all of them ready."""

    continuing: frozenset[int] = frozenset()

    def __init__(self, workload: Workload) -> None:
        prompts = [prompt for prompt in workload.prompts() for _ in range(workload.num_completions)]
        self.num_episodes = len(prompts)
        self._ready = [NextTurn(episode, 1, prompt) for episode, prompt in enumerate(prompts)]

    def next_turns(self, wait: bool) -> list[NextTurn]:
        ready, self._ready = self._ready, []
        return ready


def _sampling(policy: Policy, workload: Workload) -> Sampling:
    return Sampling(max_new_tokens=workload.max_new_tokens, stop_tokens=tuple(workload.stop_tokens(policy)))


def _lengths(engine: RolloutEngine, policy: Policy, workload: Workload, seed: int) -> list[int]:
    answers = engine.generate(workload.prompts(), workload.num_completions, _sampling(policy, workload), seed)
    return [len(c.token_ids) for group in answers if not isinstance(group, Rejection) for c in group]


def static_batches(policy: Policy, workload: Workload, seed: int) -> list[int]:
    """`generate()`: whole groups in batches that fit the budget at their longest."""
    torch.manual_seed(seed)
    config = _generation_config(policy, workload, workload.num_completions)
    stops = torch.tensor(config.eos_token_id)
    prompts = [policy.encode_prompt(prompt) for prompt in workload.prompts()]
    per_batch = workload.static_rows // workload.num_completions
    lengths: list[int] = []
    for start in range(0, len(prompts), per_batch):
        batch = prompts[start : start + per_batch]
        width = max(map(len, batch))
        ids = torch.tensor([[policy.pad_id] * (width - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
        sampled = policy.model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:]
        ended = torch.isin(sampled, stops)
        lengths += torch.where(ended.any(1), ended.int().argmax(1) + 1, sampled.shape[1]).tolist()
    return lengths


def continuous_batches(policy: Policy, workload: Workload, seed: int) -> list[int]:
    """`generate_batch()`: pages that add up to the budget."""
    batching = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=workload.budget_tokens // PAGE_TOKENS,
        max_batch_tokens=PASS_TOKENS,
        max_requests_per_batch=workload.num_prompts * workload.num_completions,
        use_cuda_graph=False,
        seed=seed,
    )
    prompts = [policy.encode_prompt(prompt) for prompt in workload.prompts() for _ in range(workload.num_completions)]
    results = policy.model.generate_batch(
        prompts,
        generation_config=_generation_config(policy, workload, 1),
        continuous_batching_config=batching,
        warmup=False,
    )
    return [len(result.generated_tokens) for result in results.values()]


def _generation_config(policy: Policy, workload: Workload, num_sequences: int) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=workload.max_new_tokens,
        num_return_sequences=num_sequences,
        eos_token_id=sorted(workload.stop_ids(policy)),
        pad_token_id=policy.pad_id,
    )
