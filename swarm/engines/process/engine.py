"""Generation in a separate process with a copy of the policy: it continues while this process trains.

this process                                    the other: worker.py
stream ──── prompts ───────────────────────▶    engine, policy
       ──── turns as they become ready ─────▶
       ◀─── groups as they are finished ────
swap   ──── weights in shared memory ──────▶    copied between two decode steps
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Semaphore

import torch
from torch import Tensor

from swarm.children import Child, Duplex, inherited, python_path
from swarm.engines.base import PolicyEngine
from swarm.engines.config import GenerationSettings
from swarm.engines.process.messages import (
    RAISED,
    Answered,
    Ask,
    End,
    More,
    Setup,
    Stop,
    Swap,
    Swapped,
    decode_reply,
    encode,
    map_weights,
    num_bytes,
    shared_memory,
)
from swarm.errors import EngineError, Interrupted, TaskError
from swarm.policy.config import PolicySettings, is_on_hub
from swarm.policy.loading import Policy
from swarm.policy.weights import check_weights
from swarm.protocols import Turns
from swarm.types import Answers, Context, Sampling

WORKER = "swarm.engines.process.worker"
LOOK_UP_S = 0.1
"""Interval at which a waiting call checks for cancellation."""
TURN_S = 0.01
"""Interval at which it checks for turns that have become ready."""


class ProcessEngine(PolicyEngine):
    """A `StreamingEngine` that uses the weights last swapped in, not the current ones of `policy`.

    One thread generates at a time; another may swap meanwhile.
    """

    def __init__(
        self,
        policy: Policy,
        policy_settings: PolicySettings,
        settings: GenerationSettings,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the process, which loads the model of `policy_settings` and starts with the weights of `policy`."""
        super().__init__(policy)
        self._cancelled = cancelled
        self._stopping = False
        """Whether the `End` of a stopped stream is still pending."""
        shapes = {name: list(weight.shape) for name, weight in policy.weights.items()}
        memory = shared_memory(num_bytes(shapes))
        self._weights = map_weights(memory, shapes)
        tokens = ("tokens",) if is_on_hub(policy_settings.model) else ()
        variables = {**inherited("base", "home", "compute", "hub", *tokens), **python_path()}
        self._child = Child(WORKER, variables, descriptors=[memory])
        os.close(memory)
        self._replies: SimpleQueue[Answered | End | None] = SimpleQueue()
        """None: the process has ended."""
        self._free = Semaphore()
        """Acquired while the process copies weights."""
        self._ended = False
        self._work = Duplex(self._child.socket, self._receive, self._note_end)
        setup = Setup(policy_settings.model_dump_json().encode(), settings.model_dump_json().encode(), shapes)
        self._work.send(encode(setup))
        self.swap(policy.weights, policy.version)

    @property
    def pid(self) -> int:
        """Process id of the generating process."""
        return self._child.pid

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Yield each prompt's index and its G completions as soon as they are complete. See `RolloutEngine`."""
        while self._stopping:
            self._stopping = not isinstance(self._next(), End)
        num_episodes = turns.num_episodes if turns else 0
        self._work.send(encode(Ask(list(prompts), num_completions, sampling, seed, num_episodes)))
        outbox = _Outbox(turns, len(prompts)) if turns else None
        try:
            while not isinstance(reply := self._next(outbox), End):
                if outbox:
                    outbox.num_unanswered -= 1
                yield reply.index, reply.answers
        except (Interrupted, GeneratorExit, TaskError):
            self._work.send(encode(Stop()))
            self._stopping = True
            raise
        if reply.error:
            raise RAISED[reply.error](reply.message)

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Use other weights from the next decode step on; any thread may call it. See `StreamingEngine`."""
        check_weights(self._policy, weights)
        self._free.acquire()  # until then the other process may still copy the previous weights
        if self._ended:
            self._free.release()
            raise self._gone()
        with torch.no_grad():
            for name, shared in self._weights.items():
                shared.copy_(weights[name])
        self._work.send(encode(Swap(version)))

    def close(self) -> None:
        """End the process; unfinished groups are lost, and calls that wait for them raise `EngineError`."""
        self._child.kill()

    def _receive(self, message: bytes) -> None:
        reply = decode_reply(message)
        if isinstance(reply, Swapped):
            self._free.release()
        else:
            self._replies.put(reply)

    def _note_end(self) -> None:
        self._ended = True
        self._replies.put(None)
        self._free.release()

    def _next(self, outbox: _Outbox | None = None) -> Answered | End:
        while not self._cancelled():
            if outbox and (more := outbox.news()):
                self._work.send(encode(more))
            try:
                reply = self._replies.get(timeout=TURN_S if outbox else LOOK_UP_S)
            except Empty:
                continue
            if reply is None:
                self._replies.put(None)
                raise self._gone()
            return reply
        raise Interrupted("generation was cancelled")

    def _gone(self) -> EngineError:
        return EngineError(
            f"the generating process {self._child.ending()}. If that does not explain it, run again with "
            "generation.max_staleness 0"
        )


class _Outbox:
    """Turns on their way to the other process."""

    def __init__(self, turns: Turns, num_prompts: int) -> None:
        self.num_unanswered = num_prompts
        """Prompts and turns that were sent and are not answered."""
        self._turns = turns
        self._sent = More([], [], False)

    def news(self) -> More | None:
        """Changes since the last call; waits for one if nothing is unanswered. Raises `TaskError`."""
        if self._sent.complete:
            return None
        ready = self._turns.next_turns(wait=not self.num_unanswered)
        self.num_unanswered += len(ready)
        more = More(list(ready), sorted(self._turns.continuing), complete=not self.num_unanswered)
        changed = ready or more.complete or more.continuing != self._sent.continuing
        self._sent = more
        return more if changed else None
