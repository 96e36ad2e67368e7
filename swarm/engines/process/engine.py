"""Generation in a separate process with a copy of the policy: it continues while this process trains.

this process                                    the other: worker.py
stream ──── prompts ───────────────────────▶    engine, policy
       ──── turns as they become ready ─────▶
       ◀─── groups as they are finished ────
swap   ──── weights in shared memory ──────▶    copied between two decode steps
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from multiprocessing.connection import Pipe

import torch
from torch import Tensor

from swarm.engines.base import PolicyEngine
from swarm.engines.config import GenerationSettings
from swarm.engines.process.duplex import Duplex
from swarm.engines.process.handover import map_weights, num_bytes, shared_memory
from swarm.engines.process.messages import RAISED, Ask, End, More, Reply, Setup, Stop, Swap, decode_reply, encode
from swarm.errors import EngineError, Interrupted, TaskError
from swarm.inherited import inherited, python_path
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
        ours, work = Pipe()
        self._control, control = Pipe()
        given = (work.fileno(), control.fileno(), memory)
        tokens = ("tokens",) if is_on_hub(policy_settings.model) else ()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", WORKER, *map(str, given)],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**inherited("base", "home", "compute", "hub", *tokens), **python_path()},
            process_group=0,  # the terminal's Ctrl-C goes to the node, which then ends this process
        )
        os.close(memory)
        work.close()
        control.close()
        self._work = Duplex(ours)
        setup = Setup(policy_settings.model_dump_json().encode(), settings.model_dump_json().encode(), shapes)
        self._work.send(encode(setup))
        self._hand_over(policy.weights, policy.version)

    @property
    def pid(self) -> int:
        """Process id of the generating process."""
        return self._process.pid

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
        try:
            self._control.recv_bytes()  # until then the other process may still copy the previous weights
        except (EOFError, ConnectionError) as error:
            raise self._gone() from error
        self._hand_over(weights, version)

    def close(self) -> None:
        """End the process; unfinished groups are lost, and calls that wait for them raise `EngineError`."""
        self._process.kill()
        self._process.wait()

    @torch.no_grad()
    def _hand_over(self, weights: Mapping[str, Tensor], version: int) -> None:
        for name, place in self._weights.items():
            place.copy_(weights[name])
        try:
            self._control.send_bytes(encode(Swap(version)))
        except ConnectionError as error:
            raise self._gone() from error

    def _next(self, outbox: _Outbox | None = None) -> Reply:
        while not self._cancelled():
            if outbox and (more := outbox.news()):
                self._work.send(encode(more))
            try:
                message = self._work.receive(TURN_S if outbox else LOOK_UP_S)
            except EOFError as error:
                raise self._gone() from error
            if message is not None:
                reply: Reply = decode_reply(message)
                return reply
        raise Interrupted("generation was cancelled")

    def _gone(self) -> EngineError:
        return EngineError(
            f"the generating process exited with {self._process.wait()}; its messages are in this process's standard "
            "error. If they do not explain it, run again with generation.max_staleness 0"
        )


class _Outbox:
    """What the other process is told of turns."""

    def __init__(self, turns: Turns, num_prompts: int) -> None:
        """Nothing is told yet."""
        self.num_unanswered = num_prompts
        """Prompts and turns that it knows and has not answered."""
        self._turns = turns
        self._told = More([], [], False)

    def news(self) -> More | None:
        """What has changed since the last call; waits for it if there is nothing to answer. Raises `TaskError`."""
        if self._told.complete:
            return None
        ready = self._turns.take(wait=not self.num_unanswered)
        self.num_unanswered += len(ready)
        more = More(list(ready), sorted(self._turns.continuing), complete=not self.num_unanswered)
        changed = ready or more.complete or more.continuing != self._told.continuing
        self._told = more
        return more if changed else None
