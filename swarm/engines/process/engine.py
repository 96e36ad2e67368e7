"""Generation in a process of its own, with a copy of the policy: it goes on while this process trains.

this process                                    the other: worker.py
stream ──── prompts ───────────────────────▶    engine, policy
       ◀─── groups as they are finished ────
swap   ──── weights in shared memory ──────▶    copied between two decode steps
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe

import msgspec
import torch
from torch import Tensor

from swarm.engines.base import PolicyEngine
from swarm.engines.config import GenerationSettings
from swarm.engines.process.handover import map_weights, num_bytes, shared_memory
from swarm.engines.process.messages import RAISED, Ask, End, Reply, Setup, Stop, Swap, decode_reply, encode
from swarm.errors import EngineError, Interrupted
from swarm.policy.config import PolicySettings
from swarm.policy.loading import Policy
from swarm.policy.weights import check_weights
from swarm.types import Answers, Sampling

LOOK_UP_S = 0.1
"""How often a waiting call asks whether it was cancelled."""


class ProcessEngine(PolicyEngine):
    """A `StreamingEngine` whose weights are those last swapped in, not the ones that `policy` has by now.

    One thread generates at a time; another one may swap meanwhile.
    """

    def __init__(
        self,
        policy: Policy,
        policy_settings: PolicySettings,
        settings: GenerationSettings,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the process, which loads what `policy_settings` name and begins with the weights of `policy`."""
        super().__init__(policy)
        self._cancelled = cancelled
        self._stopping = False
        """The `End` of a stream that was stopped has not come yet."""
        shapes = {name: list(weight.shape) for name, weight in policy.weights.items()}
        memory = shared_memory(num_bytes(shapes))
        self._weights = map_weights(memory, shapes)
        self._work, work = Pipe()
        self._control, control = Pipe()
        given = (work.fileno(), control.fileno(), memory)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "swarm.engines.process.worker", *map(str, given)],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            process_group=0,  # a terminal's Ctrl-C is for the node, which then ends this process
        )
        os.close(memory)
        work.close()
        control.close()
        setup = Setup(policy_settings.model_dump_json().encode(), settings.model_dump_json().encode(), shapes)
        self._send(self._work, setup)
        self._hand_over(policy.weights, policy.version)

    @property
    def pid(self) -> int:
        """Process id of the other process."""
        return self._process.pid

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
    ) -> Generator[tuple[int, Answers]]:
        """Each prompt's index and its G completions as soon as it has them all. See `RolloutEngine`."""
        while self._stopping:
            self._stopping = not isinstance(self._receive(), End)
        self._send(self._work, Ask(list(prompts), num_completions, sampling, seed))
        try:
            while not isinstance(reply := self._next(), End):
                yield reply.index, reply.answers
        except (Interrupted, GeneratorExit):
            self._send(self._work, Stop())
            self._stopping = True
            raise
        if reply.error:
            raise RAISED[reply.error](reply.message)

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Go on with other weights from the next decode step; any thread may call. See `StreamingEngine`."""
        check_weights(self._policy, weights)
        self._recv(self._control)  # until then the other process may be copying the former ones
        self._hand_over(weights, version)

    def close(self) -> None:
        """End the process; what it was generating is lost, and whoever waits for that gets `EngineError`."""
        self._process.kill()
        self._process.wait()

    @torch.no_grad()
    def _hand_over(self, weights: Mapping[str, Tensor], version: int) -> None:
        for name, place in self._weights.items():
            place.copy_(weights[name])
        self._send(self._control, Swap(version))

    def _next(self) -> Reply:
        while not self._cancelled():
            if self._work.poll(LOOK_UP_S):
                return self._receive()
        raise Interrupted("generation was cancelled")

    def _receive(self) -> Reply:
        reply: Reply = decode_reply(self._recv(self._work))
        return reply

    def _send(self, connection: Connection, message: msgspec.Struct) -> None:
        try:
            connection.send_bytes(encode(message))
        except ConnectionError as error:
            raise self._gone() from error

    def _recv(self, connection: Connection) -> bytes:
        try:
            return connection.recv_bytes()
        except (EOFError, ConnectionError) as error:
            raise self._gone() from error

    def _gone(self) -> EngineError:
        return EngineError(
            f"the process that generates ended with {self._process.wait()}; what it said is in this one's standard "
            "error. Run it again with generation.max_staleness 0 if that does not tell why"
        )
