"""The process behind a `ProcessEngine`: `python -m swarm.engines.process.worker FD WEIGHTS`.

Its arguments are descriptors of a socket and of shared memory. It ends when the socket closes. Between two decode steps
it checks for new weights, turns and `Stop`; it receives no other request while it generates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from swarm import torchao
from swarm.children import serve
from swarm.engines.config import GenerationSettings
from swarm.engines.process.messages import (
    RAISED,
    Answered,
    Ask,
    End,
    More,
    Order,
    Setup,
    Stop,
    Swap,
    Swapped,
    decode_order,
    decode_setup,
    encode,
    map_weights,
)
from swarm.errors import Interrupted
from swarm.policy.config import PolicySettings
from swarm.types import NextTurn

if TYPE_CHECKING:
    from swarm.engines.transformers.engine import TransformersEngine


class _Turns:
    """The turns in `More`."""

    def __init__(self, num_episodes: int, listen: Callable[[], None]) -> None:
        """`listen` waits for a message and passes turns to `hear`."""
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

    def next_turns(self, wait: bool) -> list[NextTurn]:
        """Ready turns. See `Turns`."""
        while wait and not self._ready and not self._complete:
            self._listen()
        ready, self._ready = self._ready, []
        return ready


class EngineWorker:
    """An engine with its own policy, at the other end of a socket."""

    def __init__(self, node: Connection, weights: int) -> None:
        """Load the policy; the first `Swap` installs the weights from shared memory."""
        self._node = node
        setup = decode_setup(node.recv_bytes())
        self._weights = map_weights(weights, setup.shapes)
        self._engine = open_engine(setup, self._look_up)
        self._turns: _Turns | None = None
        """Turns of the generation in progress."""

    def serve(self) -> None:
        """Serve requests until the socket closes."""
        while True:
            if isinstance(order := self._receive(), Ask):
                self._node.send_bytes(encode(self._answer(order)))

    def _answer(self, ask: Ask) -> End:
        turns = self._turns = _Turns(ask.num_episodes, self._listen) if ask.num_episodes else None
        try:
            for index, answers in self._engine.stream(ask.prompts, ask.num_completions, ask.sampling, ask.seed, turns):
                self._node.send_bytes(encode(Answered(index, answers)))
        except tuple(RAISED.values()) as error:
            return End(type(error).__name__, str(error))
        except Interrupted:
            pass
        finally:
            self._turns = None
        return End()

    def _look_up(self) -> bool:
        """Runs between two decode steps; returns whether to stop."""
        try:
            while self._node.poll():
                self._listen()
        except Interrupted:
            return True
        return False

    def _listen(self) -> None:
        """Handle a message during generation; wait for it if there is none. Raises `Interrupted`."""
        if isinstance(self._receive(), Ask | Stop):
            raise Interrupted("generation was stopped")

    def _receive(self) -> Order:
        """The next message; weights and turns are handled already."""
        order: Order = decode_order(self._node.recv_bytes())
        if isinstance(order, Swap):
            self._engine.swap(self._weights, order.version)
            self._node.send_bytes(encode(Swapped()))
        elif isinstance(order, More) and self._turns is not None:
            self._turns.hear(order)
        return order


def open_engine(setup: Setup, look_up: Callable[[], bool]) -> TransformersEngine:
    """The engine with its model; imported here, after `main` has hidden torchao."""
    from swarm.engines.transformers.engine import TransformersEngine
    from swarm.policy.loading import load_policy

    policy = load_policy(PolicySettings.model_validate_json(setup.policy))
    return TransformersEngine(policy, GenerationSettings.model_validate_json(setup.generation), look_up)


def main() -> None:
    """Serve one node on the descriptors in the arguments."""
    torchao.hide()
    serve(lambda node: EngineWorker(node, int(sys.argv[2])).serve())


if __name__ == "__main__":
    main()
