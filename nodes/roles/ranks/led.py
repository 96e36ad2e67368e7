"""The ranks of one node: rank 0 is the node and sends orders, the others do their share of the work.

    rank 0    a node: network, questions, verification, metrics ──▶ its `Led` object ──┐ order
    others    follow: wait for an order, then do what rank 0 does  ◀───────────────────┘

torchrun starts several ranks; a single process works the same way without sending orders.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from nodes import exits
from nodes.stop import StopRequest
from swarm.config import NodeConfig
from swarm.errors import Interrupted, NonFiniteUpdates, SwarmError
from swarm.policy.loading import Policy, load_policy
from swarm.policy.ranks import Ranks
from swarm.protocols import RolloutEngine, Turns
from swarm.types import Answers, Context, Sampling


class Begin(Struct, frozen=True):
    """Make the same object with the same policy, and obey its orders."""

    make: Callable[[NodeConfig, Path | None, Ranks, Callable[[], bool]], Led]
    config: NodeConfig
    checkpoint: Path | None


class Generate(Struct, frozen=True):
    """Answer a share of these questions."""

    prompts: Sequence[Context]
    num_completions: int
    sampling: Sampling
    seed: int


class Snapshot(Struct, frozen=True):
    """Send this rank's shard of weights and optimizer."""


class GoBack(Struct, frozen=True):
    """Roll back to a checkpoint of this node."""

    checkpoint: Path


class Led:
    """What every rank of a node has.

    Rank 0 uses it, also as its `RolloutEngine`; it tells the others what it does, and they do the same.
    """

    _engine: RolloutEngine

    def __init__(self, config: NodeConfig, checkpoint: Path | None, ranks: Ranks) -> None:
        """Rank 0 orders the others to make the same."""
        self._ranks = ranks
        if ranks.rank == 0:
            self._order(Begin(type(self), config, checkpoint))

    def follow(self) -> None:
        """Execute rank 0's orders until the last."""
        while (order := self._ranks.broadcast(END)) is not None:
            with contextlib.suppress(Interrupted, NonFiniteUpdates):  # rank 0 raises the same and decides
                self._obey(order)

    def generate(
        self, prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int
    ) -> list[Answers]:
        """G completions for each of P prompts, [P][G], or a `Rejection`; from the newest policy."""
        self._order(Generate(prompts, num_completions, sampling, seed))
        return self._engine.generate(prompts, num_completions, sampling, seed)

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """The same, group by group."""
        self._order(Generate(prompts, num_completions, sampling, seed))
        return self._engine.stream(prompts, num_completions, sampling, seed, turns)

    def _order(self, order: object) -> None:
        self._ranks.broadcast(order)

    def _obey(self, order: object) -> None:
        """Do what rank 0 does after this order."""
        match order:
            case Generate(prompts, num_completions, sampling, seed):
                self._engine.generate(prompts, num_completions, sampling, seed)
            case _:
                raise AssertionError(f"{order} is not a valid order after the start")


END: object = None
"""The last order."""


@contextlib.contextmanager
def leading(ranks: Ranks) -> Iterator[None]:
    """Dismiss the other ranks at the end; after a crash torchrun ends them."""
    try:
        yield
    except SwarmError:
        with contextlib.suppress(RuntimeError):  # they may have failed for the same reason
            ranks.broadcast(END)
        raise
    ranks.broadcast(END)


def follow(ranks: Ranks) -> int:
    """The main loop of every rank except 0. Returns the exit code."""
    stop = StopRequest()  # generation ends at the next token, everything else by rank 0's order
    order = ranks.broadcast(END)
    if isinstance(order, Begin):
        order.make(order.config, order.checkpoint, ranks, stop).follow()
    return exits.DONE


def load_reference(config: NodeConfig, ranks: Ranks) -> Policy | None:
    """The initial policy; None when it is not needed, or when only adapters are trained."""
    if config.update.reference_kl == 0 or config.policy.lora.rank > 0:
        return None
    return load_policy(config.policy, ranks=ranks.for_another())
