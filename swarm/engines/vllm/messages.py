"""What a node and its vLLM process say to each other, one message a record, over a socket pair.

Both ends run this file, each in its own Python: it may need nothing but msgspec.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from swarm.types import Sampling, VersionSpan


class Start(Struct, frozen=True, tag=True):
    """The first message: what to serve, and with how much memory."""

    id: int
    work: str
    """Directory of the node's files for this process, which goes when the node does."""
    model: str
    """Directory with configuration, tokenizer and weights."""
    version: int
    """Policy version of those weights."""
    dtype: str
    max_sequences: int
    gpu_memory_fraction: float | None
    """None: on the CPU, with `cpu_cache_bytes`."""
    cpu_cache_bytes: int
    lora_rank: int
    """Of the adapters that will be loaded; 0: there are none."""
    sleep: bool
    """Whether it will be asked to sleep."""
    trust_remote_code: bool


class Wanted(Struct, frozen=True):
    """One completion."""

    prompt: int
    """Index of its prompt."""
    completion: int
    """Index in its group."""
    seed: int
    """In [0, 2^63)."""


class Generate(Struct, frozen=True, tag=True):
    """Sample completions, in this order as far as there is room."""

    id: int
    prompts: dict[int, tuple[int, ...]]
    """Token ids by index."""
    wanted: tuple[Wanted, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...]
    """Tokens that end a completion, those of `sampling.stop_tokens` among them."""
    max_sequences: int
    """The most at once."""


class Abort(Struct, frozen=True, tag=True):
    """Nothing more of that call is wanted."""

    id: int


class Load(Struct, frozen=True, tag=True):
    """Go on with other weights, or other adapters, between two steps."""

    id: int
    path: str
    """Directory in Hugging Face or peft format."""
    version: int
    recompute: bool
    """Compute the past of what is running again, instead of keeping it."""
    adapters: bool


class Sleep(Struct, frozen=True, tag=True):
    """Give the GPU's memory back."""

    id: int


class Wake(Struct, frozen=True, tag=True):
    """Take it again."""

    id: int


Request = Start | Generate | Abort | Load | Sleep | Wake


class Ready(Struct, frozen=True, tag=True):
    """Started."""

    id: int
    max_positions: int
    """Longest sequence, prompt and completion."""
    room_tokens: int
    """Tokens whose keys and values are held together."""
    version: str
    """Of vLLM."""


class Sampled(Struct, frozen=True, tag=True):
    """One completion, whole."""

    id: int
    prompt: int
    completion: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]


class Unanswered(Struct, frozen=True, tag=True):
    """One completion that vLLM does not even begin."""

    id: int
    prompt: int
    reason: str


class Done(Struct, frozen=True, tag=True):
    """`Load`, `Sleep` or `Wake` has been done."""

    id: int


class Refused(Struct, frozen=True, tag=True):
    """A call that failed, and left everything as it was."""

    id: int
    reason: str


class Beat(Struct, frozen=True, tag=True):
    """Still at work: sent now and then while sampling."""


class Broken(Struct, frozen=True, tag=True):
    """The last message of a process that cannot go on."""

    reason: str


Answer = Ready | Sampled | Unanswered | Done | Refused
Reply = Answer | Beat | Broken

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
