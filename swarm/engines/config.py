"""Settings of generation."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, JsonValue, NonNegativeInt, field_validator, model_validator

from swarm.kinds import Kinds, extra
from swarm.settings import Settings
from swarm.types import MAX_NAME_CHARS, MAX_STOPS, MAX_TEMPERATURE, Sampling

if TYPE_CHECKING:
    from swarm.protocols import StreamingEngine

ENGINES: Kinds[Callable[..., StreamingEngine]] = Kinds(
    "engine",
    "swarm.engines",
    "",
    {
        "transformers": "swarm.engines.transformers.engine:open_engine",
        "vllm": "swarm.extras.vllm.engine:open_engine",
    },
)
"""Functions of policy, `GenerationSettings`, whether remote code is trusted, device or None, and what says whether to
stop. They return a `StreamingEngine` that is ready; they raise `EngineError`, `Interrupted`."""

StopText = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]

QUESTIONS = 8
"""Default number of questions per round."""
GPU_SEQUENCES = 256
"""Default number of completions per round on a GPU: it decodes them in hardly more time than a quarter of them."""

SHARED_FRACTION = 0.45
ALONE_FRACTION = 0.9


class VllmSettings(Settings):
    """vLLM in a separate process, which starts with the node and restarts after a crash."""

    python: Path | None = None
    """A Python with vLLM, for example in a separate environment; default: the one that runs this node."""
    gpus: tuple[NonNegativeInt, ...] = ()
    """GPUs for vLLM alone, by number: `[1]` beside a policy on GPU 0. Several share every matrix (tensor parallelism).
    Default: the policy's GPU."""
    gpu_memory_fraction: float | None = Field(None, gt=0, le=1)
    """Fraction of each GPU's memory for vLLM's weights and KV cache. Default: 0.45, because training needs the rest;
    0.9 on `gpus`."""
    cpu_cache_bytes: int = Field(2**30, ge=2**20)
    """Memory for the KV cache without a GPU."""
    sleep: bool = False
    """Release the GPU's memory after generation, for training, and reclaim it before the next."""
    transfer: Literal["auto", "ipc", "files"] = "auto"
    """How changed weights reach vLLM. `ipc`: through memory of the GPU that both are on; `files`: through files in
    memory. `auto`: `ipc` where it is possible. Adapters always go as files."""
    arguments: dict[str, JsonValue] = {}
    """Further arguments of vLLM's engine by their names there: `{quantization: fp8}`, `{kv_cache_dtype: fp8}`,
    `{attention_backend: FLASHINFER}`, `{speculative_config: {method: ngram, num_speculative_tokens: 4}}`. Unknown names
    and those that the node sets itself are refused."""
    start_timeout_s: float = Field(900.0, gt=0)
    """Maximum time to start."""
    silence_timeout_s: float = Field(300.0, gt=0)
    """Maximum silence while it has work; beyond it the process counts as dead and is restarted."""

    @property
    def memory_fraction(self) -> float:
        """`gpu_memory_fraction` or its default."""
        return self.gpu_memory_fraction or (ALONE_FRACTION if self.gpus else SHARED_FRACTION)

    @property
    def num_parts(self) -> int:
        """GPUs that share every matrix."""
        return max(1, len(self.gpus))

    @field_validator("arguments")
    @classmethod
    def _not_the_nodes(cls, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if given:
            extra("vllm.arguments").check(given)
        return given

    @field_validator("gpus")
    @classmethod
    def _each_once(cls, gpus: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(gpus)) < len(gpus):
            raise ValueError(f"gpus must name each GPU once, got {list(gpus)}")
        return gpus


class GenerationSettings(Settings):
    """The questions per round and the sampling of their completions."""

    engine: str = "auto"
    """`transformers`: in the node's process, with the trained weights themselves; `vllm`: in a separate process.
    `auto`: vLLM if there is a CUDA GPU and vLLM is installed, else transformers; the log states the choice and its
    reason. A custom one is named by its location: `file.py:open_engine` or `mypackage.mymodule:open_engine`."""
    vllm: VllmSettings = VllmSettings()
    questions_per_round: int | None = Field(None, ge=1)
    """P: questions per round; the groups with signal are the candidates for the local part of the mix. Default: 8, with
    CUDA enough for 256 completions, and at least `mix.local`."""
    draws_per_question: int = Field(1, ge=1, le=16)
    """Questions that a peer draws for each one that it asks: it prefers those that it probably answers right about half
    of the time, by its success at questions of the same task and about the same length. 1: it asks all it draws."""
    ask_on_s: float = Field(0.0, ge=0)
    """Seconds of a round in which a peer asks on, a batch at a time, while none of its groups has signal (dynamic
    sampling). Not with `max_staleness`, and not with several processes. Source: arXiv:2503.14476."""
    group_size: int = Field(8, ge=2, le=256)
    """G: completions per question."""
    temperature: float = Field(1.0, gt=0, le=MAX_TEMPERATURE)
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep 1, because updates use the log-probabilities of the full distribution. The same applies to `top_k` and
    `min_p`."""
    top_k: int = Field(0, ge=0)
    """Sample from the k most likely tokens; 0: all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Sample from tokens whose probability is at least this fraction of the most likely token's."""
    max_new_tokens: int = Field(512, ge=1)
    """Longest completion; the default for `tiny` is 16."""
    max_thinking_tokens: int = Field(0, ge=0)
    """Tokens after which the closing mark of a thought is inserted, so that an answer follows (budget forcing); the
    inserted tokens are not trained on. 0: thoughts end by themselves. Needs a model with tokens that mark its thoughts.
    Source: arXiv:2501.19393."""
    stop: tuple[StopText, ...] = Field((), max_length=MAX_STOPS)
    """Texts that end a completion and remain in it."""
    stop_tokens: tuple[StopText, ...] = Field((), max_length=MAX_STOPS)
    """Names of tokens that end a completion, besides the model's own end tokens."""
    round_minutes: float | None = Field(15.0, gt=0)
    """Longest time to generate a round's groups; the round goes on with those that are finished, at least one, and with
    the same part of others' groups. For runs whose founder asks for more than this machine can do. null: no limit. Not
    with several processes (torchrun)."""
    max_batch_sequences: int = Field(256, ge=1)
    """Sequences decoded together; a new one starts as soon as one finishes."""
    max_batch_tokens: int | None = Field(None, ge=1)
    """Capacity of the KV cache in tokens, prompts included: sequences times the longest of them. When it is full, the
    newest sequences wait. Default: derived from `memory_fraction`. Only for the engine `transformers`."""
    memory_fraction: float = Field(0.5, gt=0, le=1)
    """Fraction of the free memory at the start of generation for the KV cache. Only for the engine `transformers`; for
    vLLM see `vllm.gpu_memory_fraction`."""
    cuda_graphs: bool = True
    """Record decode steps on a CUDA GPU and replay them, which takes less time and some memory; a model that cannot be
    recorded is decoded without. Only for the engine `transformers`; vLLM has its own."""
    max_staleness: int = Field(0, ge=0)
    """Most updates between the policy that samples a local group and the one that trains on it. 0: generation and
    updates alternate. 1 or more: a separate process with its own copy of the model generates the next groups during an
    update, and a free slot takes a question of the next round; older groups are dropped. Not with several processes
    (torchrun)."""
    kv: Literal["keep", "recompute"] = "keep"
    """When weights change within a completion: keep the KV cache of the old weights, or recompute it. Source:
    arXiv:2509.19128."""

    @field_validator("engine")
    @classmethod
    def _engine_exists(cls, engine: str) -> str:
        if engine != "auto" and not ENGINES.is_built_in(engine):  # whether vLLM can be had is found out at the start
            ENGINES.find(engine, also=("auto",))
        return engine

    @model_validator(mode="after")
    def _nothing_is_ahead_of_what_is_asked_on(self) -> GenerationSettings:
        if self.ask_on_s and self.max_staleness:
            raise ValueError(
                f"ask_on_s must be 0 with max_staleness above 0, got {self.ask_on_s:g} and {self.max_staleness}: what "
                "is generated ahead does not know yet whether this round's groups have signal"
            )
        return self

    @model_validator(mode="after")
    def _a_thought_leaves_room_for_an_answer(self) -> GenerationSettings:
        longest = self.max_new_tokens
        if self.max_thinking_tokens >= longest and "max_new_tokens" in self.model_fields_set:
            raise ValueError(
                f"max_thinking_tokens must be below max_new_tokens {longest}, got {self.max_thinking_tokens}"
            )
        return self

    @property
    def round_s(self) -> float:
        """`round_minutes` in seconds; infinity without."""
        return math.inf if self.round_minutes is None else 60 * self.round_minutes

    def records(self, device: str) -> bool:
        """Whether the engine `transformers` records decode steps on this type of torch device."""
        return self.cuda_graphs and device == "cuda"

    def default_questions(self, device: str) -> int:
        """Default of `questions_per_round` on this type of torch device, whatever the mix."""
        return max(QUESTIONS, -(-GPU_SEQUENCES // self.group_size)) if device == "cuda" else QUESTIONS

    def sampling(self) -> Sampling:
        """The sampling settings for the engine."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
            stop_tokens=self.stop_tokens,
            max_thinking_tokens=self.max_thinking_tokens,
        )
