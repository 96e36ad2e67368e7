"""A decode step that is recorded once and replayed, as a CUDA graph.

A step launches some ten kernels per layer, each through Python. On a GPU this takes longer than the kernels do, at any
number of rows that a small or medium model is given. Replayed, a step is one launch. A recording repeats the same
operations on the same memory; so its shapes are rounded up, to a power of two of rows and to a block of tokens, and
spare rows write into slots that nobody has.

Recordings belong to the tensors of one cache and to the weights of one change. A step of a new shape runs as it is,
which also lets libraries set up what they must not set up in a recording; the next one of that shape is recorded.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from swarm.engines.transformers.layout import Layout, Unread
from swarm.engines.transformers.scheduler import blocks
from swarm.engines.transformers.slots import SlotCache
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

Work = Callable[[], None]
Record = Callable[[Work], Work]
"""Takes work that changes tensors in place, and returns what repeats it on them."""

logger = logging.getLogger(__name__)


@dataclass
class Step:
    """A decode step of one shape."""

    layout: Layout
    """Its ids and positions, [B, 1] each, are filled in before each run."""
    replay: Work | None = None
    """None before it is recorded."""

    def fill(self, rows: Sequence[Unread]) -> None:
        """Take the tokens of these rows, which are in the first slots, in order."""
        for target, values in (
            (self.layout.ids, [row.tokens[0] for row in rows]),
            (self.layout.positions, [row.start for row in rows]),
        ):
            target[: len(rows), 0].copy_(torch.from_numpy(np.array(values)))


@dataclass
class Recordings:
    """The steps on a cache's present tensors with the weights of one change; they share their memory."""

    of: tuple[int, int]
    """Changes of the weights, and of the tensors."""
    record: Record
    steps: dict[tuple[int, int], Step] = field(default_factory=dict)
    """By rows and width."""
    logits: Tensor | None = None
    """[slots, V] of the newest step."""


class RecordedStep:
    """Decode steps of one token for every row."""

    def __init__(
        self, policy: Policy, feed: Callable[[SlotCache, Layout], Tensor], recorder: Callable[[], Record]
    ) -> None:
        """`feed` runs the model; `recorder` starts recordings that share memory."""
        self._policy = policy
        self._feed = feed
        self._recorder: Callable[[], Record] | None = recorder
        self._recordings: WeakKeyDictionary[SlotCache, Recordings] = WeakKeyDictionary()

    def step(self, cache: SlotCache, rows: Sequence[Unread]) -> Tensor | None:
        """Feed one token of each row, which are in the first slots, in order; returns logits [B, V] of the next, valid
        until the next step. None once a step could not be recorded."""
        if self._recorder is None:
            return None
        recordings = self._of(cache, self._recorder)
        width = blocks(max(row.start for row in rows) + 1)
        key = min(1 << (len(rows) - 1).bit_length(), cache.num_slots), width
        known = key in recordings.steps
        step = recordings.steps.setdefault(key, Step(self._layout(*key)))
        step.fill(rows)
        work = partial(self._run, cache, recordings, step)
        if known and step.replay is None:
            step.replay = self._recorded(recordings, work)
        (step.replay or work)()
        assert recordings.logits is not None
        return recordings.logits[: len(rows)]

    def _of(self, cache: SlotCache, recorder: Callable[[], Record]) -> Recordings:
        of = self._policy.gate.changes, cache.num_resized
        found = self._recordings.get(cache)
        if found is None or found.of != of:
            found = self._recordings[cache] = Recordings(of, recorder())
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

    def _run(self, cache: SlotCache, recordings: Recordings, step: Step) -> None:
        logits = self._feed(cache, step.layout)
        if recordings.logits is None:
            recordings.logits = logits.new_empty(cache.num_slots, logits.shape[1])
        recordings.logits[: len(logits)].copy_(logits)

    def _layout(self, num_rows: int, width: int) -> Layout:
        """Rows side by side, of one token each."""
        device = self._policy.device
        return Layout(
            rows=[],
            ids=torch.zeros(num_rows, 1, dtype=torch.long, device=device),
            slots=torch.arange(num_rows, device=device)[:, None],
            positions=torch.zeros(num_rows, 1, dtype=torch.long, device=device),
            read=slice(0, num_rows),
            width=width,
            last=1,
        )


def can_record(policy: Policy) -> bool:
    """Whether all that a decode step is given are the ids and positions of text."""
    return policy.media is None and policy.routers is None and policy.ranks.size == 1


def cuda_recorder(device: torch.device) -> Callable[[], Record]:
    """Records as CUDA graphs on this device."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin() -> Record:
        return partial(_captured, device, stream, torch.cuda.graph_pool_handle())

    return begin


def _captured(device: torch.device, stream: torch.cuda.Stream, pool: _POOL_HANDLE, work: Work) -> Work:
    """Not by `torch.cuda.graph`, which waits for the GPU and returns all memory that is free at each capture."""
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
