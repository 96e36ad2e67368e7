"""Messages between a node and its vLLM process, one per record, over a socket pair.

Both ends run this file, each in its own Python: it may import only msgspec.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from swarm.types import Sampling, VersionSpan


class Reads(Struct, frozen=True):
    """Modalities of the model besides text. The node computes their features: vLLM runs no encoder."""

    kinds: tuple[str, ...]
    """`image`, `audio`."""
    has_layers: bool
    """Features enter several layers: vLLM's code for these reads their number off its encoder, which is loaded."""


class Start(Struct, frozen=True, tag=True):
    """The first message: the model to serve and its memory."""

    id: int
    work: str
    """Directory of the node's files for this process, removed with the node."""
    model: str
    """Directory with configuration, tokenizer and weights."""
    version: int
    """Policy version of those weights."""
    dtype: str
    max_tokens: int
    """Longest sequence; -1: as long as the model and the KV cache allow."""
    max_sequences: int
    sampling: Sampling
    """Sampling of most completions."""
    gpu_memory_fraction: float | None
    """None on the CPU, which uses `cpu_cache_bytes`."""
    cpu_cache_bytes: int
    lora_rank: int
    """Rank of the adapters to be loaded; 0 without adapters."""
    num_parts: int
    """GPUs that share every matrix."""
    sleep: bool
    """Whether `Sleep` will be used."""
    trust_remote_code: bool
    reads: Reads | None
    """None: text only."""
    shares_gpu: bool
    """Whether weights will come in pieces, through memory of the GPU."""
    reports_experts: bool
    """Whether `Sampled` includes the chosen experts."""
    arguments: dict[str, object]
    """Further arguments of vLLM's engine, of the user."""

    @property
    def on_gpu(self) -> bool:
        """Whether vLLM runs on a GPU."""
        return self.gpu_memory_fraction is not None


class Wanted(Struct, frozen=True):
    """One completion."""

    prompt: int
    """Name of its prompt."""
    completion: int
    """Index in its group."""
    seed: int
    """In [0, 2^63)."""
    max_tokens: int = 0
    """Its longest length; 0: the call's."""


class Generate(Struct, frozen=True, tag=True):
    """Opens a call; `Add` adds its completions."""

    id: int
    sampling: Sampling
    stop_ids: tuple[int, ...]
    """Ids of tokens that end a completion, including `sampling.stop_tokens`."""
    max_sequences: int
    """Most sequences at a time."""


class Features(Struct, frozen=True, tag=True):
    """Encoder features of an image or audio clip; sent once in a call, before the first prompt that has it."""

    id: int
    """The open call's."""
    medium: int
    """Number, unique for its content."""
    kind: str
    shape: tuple[int, int]
    """[positions, D x H]: the features for several layers, concatenated."""
    content: bytes
    """Raw values of type `Start.dtype`."""
    grid: tuple[int, ...]
    """Patches in time, height and width, from which vLLM derives positions; empty where positions are plain."""


class Placed(Struct, frozen=True):
    """A medium in a prompt."""

    medium: int
    runs: tuple[tuple[int, int], ...]
    """Start and length of each run of its features; between two of them there may be text."""


class Add(Struct, frozen=True, tag=True):
    """Sample these completions, too, in this order and as capacity allows."""

    id: int
    """The open call's."""
    prompts: dict[int, tuple[int, ...]]
    """Token ids by name; a model's own token stands for each feature."""
    media: dict[int, tuple[Placed, ...]]
    """Media by name of the prompt, in order; only prompts with media."""
    wanted: tuple[Wanted, ...]


class End(Struct, frozen=True, tag=True):
    """Close the call and cancel its remaining completions."""

    id: int


class Shared(Struct, frozen=True):
    """Memory of a GPU that another process can map, as torch describes it (`torch.multiprocessing.reductions`)."""

    gpu: str
    """Its UUID, the same in every process."""
    num_bytes: int
    handle: bytes
    """Handle of the allocation."""
    storage_bytes: int
    storage_offset_bytes: int
    counter: bytes
    """Handle of the count of its users, by which its owner knows when it is free."""
    counter_offset: int
    event: bytes
    must_wait: bool
    """Whether to wait for the event."""


class Packed(Struct, frozen=True):
    """Some of the weights, one after another in shared memory."""

    memory: Shared
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    item_bytes: int


class Piece(Struct, frozen=True, tag=True):
    """Copy these weights; between the first piece and the `Load` after the last one there is no step."""

    id: int
    content: Packed


class Load(Struct, frozen=True, tag=True):
    """Install other weights or adapters between two steps."""

    id: int
    path: str | None
    """Directory in Hugging Face or peft format; None: the pieces before."""
    version: int
    recompute: bool
    """Recompute the KV cache of running sequences instead of keeping it."""
    adapters: bool


class Sleep(Struct, frozen=True, tag=True):
    """Release the GPU's memory, when nothing is running."""

    id: int
    keep_weights: bool
    """Copy the weights to the CPU's memory. Otherwise they are gone, and a `Load` must follow the first `Wake`."""


class Wake(Struct, frozen=True, tag=True):
    """Reclaim the memory, first for the weights: the KV cache would take the memory that loading them needs."""

    id: int
    part: Literal["weights", "kv_cache"]


class Heading(Struct, frozen=True):
    """The part of a request that can be decoded even if the rest is invalid."""

    id: int


Request = Start | Generate | Features | Add | End | Piece | Load | Sleep | Wake


class Compiling(Struct, frozen=True, tag=True):
    """The start takes longer, because vLLM compiles this model for the first time."""

    id: int


class Ready(Struct, frozen=True, tag=True):
    """Started."""

    id: int
    max_positions: int
    """Longest sequence of prompt and completion."""
    version: str
    """Version of vLLM."""
    keeps: bool
    """Whether `scheduler.py` keeps samples, because it supports this version of vLLM."""


class Sampled(Struct, frozen=True, tag=True):
    """One complete completion."""

    id: int
    prompt: int
    completion: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    experts: bytes = b""
    """[tokens, L, k] ids of two bytes: what each of the model's layers chose for every token that was read, the
    prompt's included, the last one's not."""


class Unanswered(Struct, frozen=True, tag=True):
    """One completion that vLLM refused to start."""

    id: int
    prompt: int
    reason: str


class Done(Struct, frozen=True, tag=True):
    """`Piece`, `Load`, `Sleep` or `Wake` has completed."""

    id: int


class Refused(Struct, frozen=True, tag=True):
    """A call failed, without side effects; or a request of an open call, which lacks it from then on."""

    id: int
    reason: str


class Beat(Struct, frozen=True, tag=True):
    """Heartbeat, sent from time to time while sampling."""


class Broken(Struct, frozen=True, tag=True):
    """The last message of a process with a fatal error."""

    reason: str


Answer = Compiling | Ready | Sampled | Unanswered | Done | Refused
Reply = Answer | Beat | Broken

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_heading = msgspec.msgpack.Decoder(Heading).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
