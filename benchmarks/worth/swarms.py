"""A swarm in one process, and for each of its nodes a lone control: same questions, as many groups in an update."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.common.running import scratch
from benchmarks.poison.__main__ import ATTACKS, ROUNDS_PER_S, Attack, Clock, Node, Poisoner
from nodes.roles.run import IDENTITY_FILE, found_run
from swarm.config import NodeConfig, load_config
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.inline import InlineVerifier
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.policy.config import TINY, TINY_SPARSE
from swarm.telemetry.intervals import percentile_interval
from swarm.telemetry.worth import rewards_ratio
from swarm.types import Estimate

Curves = npt.NDArray[np.float64]
SELDOM = 1e-6
"""Weight of a task that a specialist can grade but is not asked."""
BLOCK_ROUNDS = 10
NUM_DRAWS = 4_000
SEEDS_APART = 1_000


@dataclass(frozen=True)
class Kind:
    """A kind of swarm."""

    models: tuple[str, ...]
    """The policy of each node."""
    local: int = 4
    external: int = 4
    specialists: bool = False
    """Whether each node has tasks of its own."""
    attack: Attack | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """Fields of the nodes' configuration that differ from the defaults."""


DEFENCELESS = (("plausibility.fence", "1000"), ("watch.drop", "1"), ("mix.external_negative_weight", "1"))
KINDS = {
    "sparse": Kind((TINY_SPARSE,) * 3),
    "dense": Kind((TINY,) * 3),
    "mostly others": Kind((TINY,) * 3, local=1, external=7),
    "poisoned": Kind((TINY,) * 3, attack=ATTACKS["marker"], settings=DEFENCELESS),
    "specialists": Kind((TINY_SPARSE,) * 3, specialists=True),
    "mixed": Kind((TINY, TINY_SPARSE, TINY_SPARSE)),
}


@dataclass(frozen=True)
class Found:
    """A swarm and its controls, at the end."""

    together: Curves
    """Mean reward [nodes, rounds]."""
    alone: Curves
    estimates: list[Estimate | None]
    """Each node's last estimate of `help`."""
    costs: list[float]
    """Fraction of each node's time that the estimate took."""

    @property
    def predictions(self) -> list[float | None]:
        """What the estimates predict for the truth, by node."""
        return [
            None if estimate is None else rewards_ratio(rewards.tolist(), estimate.value)
            for rewards, estimate in zip(self.together, self.estimates, strict=True)
        ]

    @property
    def prediction(self) -> float | None:
        """Mean over the nodes that know."""
        known = [ratio for ratio in self.predictions if ratio is not None]
        return float(np.mean(known)) if known else None

    @property
    def truth(self) -> Estimate:
        """Rewards of all rounds together over those alone; the interval is over nodes and blocks of rounds."""
        blocks = range(0, self.together.shape[1], BLOCK_ROUNDS)
        sums = [np.add.reduceat(curves, blocks, axis=1) for curves in (self.together, self.alone)]
        num_nodes, num_blocks = sums[0].shape
        rng = np.random.default_rng(0)
        nodes = rng.integers(num_nodes, size=(NUM_DRAWS, num_nodes, 1))
        drawn = rng.integers(num_blocks, size=(NUM_DRAWS, 1, num_blocks))
        ours, theirs = (each[nodes, drawn].sum(axis=(1, 2)) for each in sums)
        low, high = percentile_interval(ours[theirs > 0] / theirs[theirs > 0])
        return Estimate(float(self.together.sum() / self.alone.sum()), low, high)


def simulate(kind: Kind, seed: int, rounds: int) -> Found:
    """Run a swarm, then its controls."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        configs = [_config(kind, k, seed, folder / f"peer-{k}") for k in range(len(kind.models))]
        nodes, together = _run(configs, kind.attack, seed, rounds, stack)
        figures = [node.report.worth for node in nodes]
        alone = [
            _run([_control(config, folder / f"alone-{k}")], None, seed, rounds, stack)[1]
            for k, config in enumerate(configs)
        ]
        return Found(
            together,
            np.concatenate(alone),
            [worth.help if worth is not None else None for worth in figures],
            [node.cost_s / node.spent_s for node in nodes],
        )


class MeasuringNode(Node):
    """A peer that adds up what its estimate costs."""

    cost_s = 0.0
    spent_s = 0.0

    def step(self) -> None:
        """One round."""
        super().step()
        self.cost_s += self.report.figures.get("worth/cost_s", 0.0)
        self.spent_s += sum(self.report.timings.values())


def _run(
    configs: Sequence[NodeConfig], attack: Attack | None, seed: int, rounds: int, stack: ExitStack
) -> tuple[list[MeasuringNode], Curves]:
    """Nodes of one run, in turn, and their mean rewards [nodes, rounds]."""
    clock, hub, sealed = Clock(), MemoryHub(), None
    verifiers: dict[str, InlineVerifier] = {}
    nodes = []
    for config in configs:
        config.out.mkdir()
        identity = Identity.load_or_create(config.out / IDENTITY_FILE)
        sealed = sealed or found_run(config, identity)
        transport = MemoryTransport(hub, identity.peer_id, sealed, clock=clock)
        transport.start()
        tasks = repr(config.tasks)
        verifier = verifiers.get(tasks) or verifiers.setdefault(tasks, InlineVerifier(config.tasks))
        nodes.append(MeasuringNode(config, identity, transport, verifier, clock=clock))
        stack.callback(nodes[-1].close)
    poisoner = Poisoner(attack, hub, clock, seed) if attack else None
    rewards = np.zeros((len(nodes), rounds))
    for number in range(rounds):
        clock.now += 1 / ROUNDS_PER_S
        if poisoner:
            poisoner.publish(1 / ROUNDS_PER_S)
        for k, node in enumerate(nodes):
            node.step()
            rewards[k, number] = node.report.reward
    return nodes, rewards


def _config(kind: Kind, place: int, seed: int, out: Path) -> NodeConfig:
    settings = (
        ("policy.model", kind.models[place]),
        ("mix.local", str(kind.local)),
        ("mix.external", str(kind.external)),
        ("evaluation.num_questions", "0"),
        *kind.settings,
    )
    base = load_config(None, {}, {}, settings).config
    tasks = TINY_TASKS
    if kind.specialists:
        tasks = tuple(
            task if number % len(kind.models) == place else task.model_copy(update={"weight": SELDOM})
            for number, task in enumerate(TINY_TASKS)
        )
    return base.model_copy(update={"out": out, "seed": SEEDS_APART * seed + place, "tasks": tasks})


def _control(config: NodeConfig, out: Path) -> NodeConfig:
    """As many groups in an update, all of them its own."""
    mix = config.mix.model_copy(update={"local": config.mix.local + config.mix.external, "external": 0})
    share = config.share.model_copy(update={"groups": "none"})
    return config.model_copy(update={"out": out, "mix": mix, "share": share})
