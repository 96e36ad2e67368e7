"""The process behind a `ProcessEngine`: `python -m swarm.engines.process.worker WORK CONTROL WEIGHTS`.

Its arguments are descriptors of two sockets and of shared memory. It ends when the sockets close. Between two decode
steps it checks for new weights and for `Stop`; it receives no other request while it generates.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from swarm import torchao
from swarm.engines.config import GenerationSettings
from swarm.engines.process.handover import map_weights
from swarm.engines.process.messages import (
    RAISED,
    Answered,
    Ask,
    End,
    More,
    Setup,
    decode_order,
    decode_setup,
    decode_swap,
    encode,
)
from swarm.errors import Interrupted
from swarm.policy.config import PolicySettings
from swarm.types import NextTurn

if TYPE_CHECKING:
    from swarm.engines.transformers.engine import TransformersEngine


class _Turns:
    """The turns that `More` tells of."""

    def __init__(self, num_episodes: int, listen: Callable[[], None]) -> None:
        """`listen` waits for a message; `hear` is then told what it says of turns."""
        self.num_episodes = num_episodes
        self.continuing: frozenset[int] = frozenset()
        self._listen = listen
        self._ready: list[NextTurn] = []
        self._complete = False

    def hear(self, more: More) -> None:
        """Note what has become ready."""
        self._ready += more.turns
        self.continuing = frozenset(more.continuing)
        self._complete = more.complete

    def take(self, wait: bool) -> list[NextTurn]:
        """Those that are ready. See `Turns`."""
        while wait and not self._ready and not self._complete:
            self._listen()
        ready, self._ready = self._ready, []
        return ready


class EngineWorker:
    """An engine with its own policy, at the other end of two sockets."""

    def __init__(self, work: Connection, control: Connection, weights: int) -> None:
        """Load the policy; the first `Swap` installs the weights from shared memory."""
        self._work = work
        self._control = control
        setup = decode_setup(work.recv_bytes())
        self._weights = map_weights(weights, setup.shapes)
        self._engine = open_engine(setup, self._look_up)
        self._turns: _Turns | None = None
        """Of the generation in progress."""

    def serve(self) -> None:
        """Serve requests until the sockets close."""
        self._swap()
        while True:
            ready = wait([self._control, self._work])
            if self._control in ready:
                self._swap()
            else:
                order = decode_order(self._work.recv_bytes())
                if isinstance(order, Ask):
                    self._work.send_bytes(encode(self._answer(order)))

    def _answer(self, ask: Ask) -> End:
        turns = self._turns = _Turns(ask.num_episodes, self._listen) if ask.num_episodes else None
        try:
            for index, answers in self._engine.stream(ask.prompts, ask.num_completions, ask.sampling, ask.seed, turns):
                self._work.send_bytes(encode(Answered(index, answers)))
        except tuple(RAISED.values()) as error:
            return End(type(error).__name__, str(error))
        except Interrupted:
            pass
        return End()

    def _look_up(self) -> bool:
        """Runs between two decode steps; returns whether to stop."""
        ready = wait([self._control, self._work], 0)
        if self._control in ready:
            self._swap()
        return self._work in ready and self._is_stopped()

    def _listen(self) -> None:
        """Wait for a message while there is nothing to generate. Raises `Interrupted`."""
        ready = wait([self._control, self._work])
        if self._control in ready:
            self._swap()
        if self._work in ready and self._is_stopped():
            raise Interrupted("generation was stopped")

    def _is_stopped(self) -> bool:
        """Read an order within a generation; returns whether it is to stop."""
        order = decode_order(self._work.recv_bytes())
        if self._turns is not None and isinstance(order, More):
            self._turns.hear(order)
            return False
        return True

    def _swap(self) -> None:
        swap = decode_swap(self._control.recv_bytes())
        self._engine.swap(self._weights, swap.version)
        self._control.send_bytes(encode(swap.version))


def open_engine(setup: Setup, look_up: Callable[[], bool]) -> TransformersEngine:
    """The engine with its model; imported here, after `main` has hidden torchao."""
    from swarm.engines.transformers.engine import TransformersEngine
    from swarm.policy.loading import load_policy

    policy = load_policy(PolicySettings.model_validate_json(setup.policy))
    return TransformersEngine(policy, GenerationSettings.model_validate_json(setup.generation), look_up)


def main() -> None:
    """Serve one node on the descriptors in the arguments."""
    torchao.hide()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work, control, weights = (int(argument) for argument in sys.argv[1:])
    try:
        EngineWorker(Connection(work), Connection(control), weights).serve()
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main()
