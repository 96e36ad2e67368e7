"""Decode steps as CUDA graphs: recorded once, then replayed.

A step launches some ten kernels per layer, each through Python. On a GPU this takes longer than the kernels for small
and medium models, at any batch size. Replayed, a step is one launch: it samples a token for every row
and leaves it where the next step reads it, so that a few steps follow one another before the host looks at any. A
recording repeats the same operations on the same memory; so its shapes are rounded up, to a power of two of rows and to
a few widths, and spare rows write into unused slots.

Recordings belong to the tensors of one cache and of one model, which change in place. A step of a new shape runs as it
is, which also lets libraries set up what they must not set up in a recording; the next one of that shape is recorded.
Either takes as long as some ten replays, so the cache is kept for the next call where memory allows.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from swarm.engines.sampling import as_signed, sample, uniforms_on_device
from swarm.engines.transformers.layout import Draws, Layout, Unread
from swarm.engines.transformers.scheduler import blocks
from swarm.engines.transformers.slots import SlotCache
from swarm.policy.attention import power_of_two
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import is_out_of_memory
from swarm.types import Sampling

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

Work = Callable[[], None]
Record = Callable[[Work], Work]
"""Records work that changes tensors in place; returns its replay."""

logger = logging.getLogger(__name__)

MOST_STEPS = 8
"""Steps in a row without a look by the host: tokens beyond a row's end are lost."""


class Step:
    """A decode step of one shape."""

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        self._state = torch.zeros(4, num_rows, dtype=torch.long, device=device)
        ids, positions, self.seeds, self.counts = self._state
        self.layout = Layout(
            rows=[],
            ids=ids[:, None],
            slots=torch.arange(num_rows, device=device)[:, None],
            positions=positions[:, None],
            read=slice(0, num_rows),
            width=width,
            last=1,
        )
        """Padded layout, one token per row."""
        self.index = torch.zeros(1, dtype=torch.long, device=device)
        """Index of the next step in `tokens` and `logprobs`."""
        self.tokens = torch.zeros(MOST_STEPS, num_rows, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(MOST_STEPS, num_rows, device=device)
        self.replay: Work | None = None
        """None before it is recorded."""

    def fill(self, rows: Sequence[Unread], draws: Draws) -> None:
        """Set the inputs of these rows, which are in the first slots, in order; spare rows are zero."""
        filled = np.zeros(self._state.shape, np.int64)
        filled[0, : len(rows)] = [row.tokens[0] for row in rows]
        filled[1, : len(rows)] = [row.start for row in rows]
        filled[2, : len(rows)] = as_signed(draws.seeds)
        filled[3, : len(rows)] = draws.positions
        self._state.copy_(torch.from_numpy(filled))
        self.index.zero_()

    def take(self, tokens: Tensor, logprobs: Tensor) -> None:
        """Store sampled tokens and log-probabilities, [B] each, and make the tokens the next inputs."""
        self.tokens.index_copy_(0, self.index, tokens[None])
        self.logprobs.index_copy_(0, self.index, logprobs[None])
        self.layout.ids.copy_(tokens[:, None])
        for each in (self.layout.positions, self.counts, self.index):
            each.add_(1)


@dataclass
class Recordings:
    """Recorded steps for the present tensors of a cache and the model; they share memory."""

    num_resized: int
    """Resizes of the cache."""
    addresses: list[int]
    """Addresses of the model's tensors."""
    changes: int
    """Changes of the weights at the last look-up of addresses."""
    record: Record
    steps: dict[tuple[float, ...], Step] = field(default_factory=dict)
    """Recorded steps, by rows, width and distribution."""


class RecordedStep:
    """Decode steps of one token for every row."""

    def __init__(
        self,
        policy: Policy,
        feed: Callable[[SlotCache, Layout], Tensor],
        tensors: Callable[[], Iterable[Tensor]],
        recorder: Callable[[], Record],
    ) -> None:
        """`feed` runs the model, for logits [B, V]; `tensors` are those it reads; `recorder` starts recordings that
        share memory."""
        self._policy = policy
        self._feed = feed
        self._tensors = tensors
        self._recorder: Callable[[], Record] | None = recorder
        self._recordings: WeakKeyDictionary[SlotCache, Recordings] = WeakKeyDictionary()

    @property
    def failed(self) -> bool:
        """Whether a step could not be recorded."""
        return self._recorder is None

    def sample(self, cache: SlotCache, rows: Sequence[Unread], draws: Draws) -> tuple[Tensor, Tensor] | None:
        """Feed one token of each row, which are in the first slots, in order, and sample the next `draws.num` of each:
        ids and log-probabilities, [num, B]. None once a step could not be recorded."""
        if self._recorder is None:
            return None
        recordings = self._of(cache, self._recorder)
        width = _roomy(blocks(max(row.start for row in rows) + draws.num))
        shape = min(power_of_two(len(rows)), cache.num_slots), min(width, cache.capacity)
        sampling = draws.sampling
        key = *shape, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
        known = key in recordings.steps
        if not known:
            recordings.steps[key] = Step(*shape, self._policy.device)
        step = recordings.steps[key]
        step.fill(rows, draws)
        work = partial(self._run, cache, step, draws.sampling)
        if known and step.replay is None:
            step.replay = self._recorded(recordings, work)
            step.fill(rows, draws)  # a recorder may run what it records
        for _ in range(draws.num):
            (step.replay or work)()
        return step.tokens[: draws.num, : len(rows)], step.logprobs[: draws.num, : len(rows)]

    def _of(self, cache: SlotCache, recorder: Callable[[], Record]) -> Recordings:
        found, changes = self._recordings.get(cache), self._policy.gate.changes
        if found is not None and found.num_resized == cache.num_resized and found.changes == changes:
            return found
        addresses = [tensor.data_ptr() for tensor in self._tensors()]
        if found is None or found.num_resized != cache.num_resized or found.addresses != addresses:
            found = self._recordings[cache] = Recordings(cache.num_resized, addresses, changes, recorder())
        found.changes = changes
        return found

    def _recorded(self, recordings: Recordings, work: Work) -> Work | None:
        try:
            return recordings.record(work)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            self._recorder = None
            logger.warning(
                "%s decodes without CUDA graphs: %s", self._policy.name, " ".join(str(error).split()) or type(error)
            )
            return None

    def _run(self, cache: SlotCache, step: Step, sampling: Sampling) -> None:
        logits = self._feed(cache, step.layout)
        step.take(*sample(logits, sampling, uniforms_on_device(step.seeds, step.counts)))


def _roomy(width: int) -> int:
    """At least `width`, a power of two or one and a half times one: few, and at most half too wide."""
    power = power_of_two(width)
    return power if width > power * 3 // 4 else power * 3 // 4


def can_record(policy: Policy) -> bool:
    """Whether ids and positions of text are a decode step's only inputs."""
    return policy.media is None and policy.routers is None and policy.ranks.size == 1


def cuda_recorder(device: torch.device) -> Callable[[], Record]:
    """Records as CUDA graphs on this device."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin() -> Record:
        return partial(_captured, device, stream, torch.cuda.graph_pool_handle())

    return begin


def _captured(device: torch.device, stream: torch.cuda.Stream, pool: _POOL_HANDLE, work: Work) -> Work:
    """Capture without `torch.cuda.graph`, which waits for the GPU and returns all free memory at each capture."""
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        # Other threads may allocate meanwhile: what they do is not part of it.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of a capture that has failed, which the first error explains
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
    replay: Work = graph.replay
    return replay
