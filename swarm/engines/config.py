"""How a node generates."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from swarm.settings import Settings
from swarm.types import Sampling

EngineName = Literal["transformers", "vllm"]


class VllmSettings(Settings):
    """vLLM in a process of its own. It starts with the node and again after a crash."""

    python: Path | None = None
    """The Python that has vLLM, in an environment of its own for example; default: the one that runs this node."""
    gpu_memory_fraction: float = Field(0.45, gt=0, le=1)
    """Part of the GPU's memory that vLLM takes, for weights, keys and values; training needs the rest."""
    cpu_cache_bytes: int = Field(2**30, ge=2**20)
    """Room for keys and values where there is no GPU."""
    sleep: bool = False
    """Give the GPU's memory back after generating, for training, and take it again before."""
    start_timeout_s: float = Field(900.0, gt=0)
    """Longest that it may take to start."""
    silence_timeout_s: float = Field(300.0, gt=0)
    """Longest that it may say nothing while it has work, before it is taken for dead and started again."""


class GenerationSettings(Settings):
    """One round's questions and how their completions are sampled."""

    engine: Literal["auto", "transformers", "vllm"] = "auto"
    """`transformers`: in the node's process, with the very weights that are trained; `vllm`: in a process of its own.
    `auto`: vLLM where there is a CUDA GPU and a vLLM, else transformers; it says what it chose and why."""
    vllm: VllmSettings = VllmSettings()
    questions_per_round: int = Field(8, ge=1)
    """P: questions a node answers each round; those with signal are the candidates for its local groups."""
    group_size: int = Field(8, ge=2, le=256)
    """G: completions a question."""
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep 1: the update's log-probabilities are those of the full distribution. The same goes for `top_k`, `min_p`."""
    top_k: int = Field(0, ge=0)
    """Sample from the k most likely tokens; 0: from all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Sample from tokens at least so likely as this part of the most likely one's probability."""
    max_new_tokens: int = Field(512, ge=1)
    """Longest completion; `tiny` has 16 as its default."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion; they stay in it."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens, by name, that end a completion besides the model's own end tokens."""
    max_batch_sequences: int = Field(256, ge=1)
    """Sequences decoded together; the next one starts as soon as one of them is finished."""
    max_batch_tokens: int | None = Field(None, ge=1)
    """Tokens, prompts included, whose keys and values are held together: sequences times the longest of them. The
    youngest wait when it gets tight. Default: what `memory_fraction` allows. Of the engine `transformers`."""
    memory_fraction: float = Field(0.5, gt=0, le=1)
    """Part of the memory that is free when generation starts which keys and values may take. Of the engine
    `transformers`; vLLM's is `vllm.gpu_memory_fraction`."""
    max_staleness: int = Field(0, ge=0)
    """Updates by which the policy that sampled a local group may be behind the one that is trained on it. 0: generation
    and updates take turns. 1 or more: the next groups are generated while an update runs, in a process of its own with
    its own copy of the model; groups that are older still are dropped. Not with several processes (torchrun)."""
    kv: Literal["keep", "recompute"] = "keep"
    """When new weights come in the middle of a completion: keep what the old ones computed of its past, or compute it
    again. Source: arXiv:2509.19128."""

    def sampling(self) -> Sampling:
        """What the engine is asked for."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
            stop_tokens=self.stop_tokens,
        )
