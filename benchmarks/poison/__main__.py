"""Poison by correctly signed groups: the reward of an attacked swarm compared with one without attack.

Everything except network and clock is real: nodes as `swarm join` creates them, with the embedded policy, in turn in
one process. A round advances the clock by its real duration, so that results depend only on the seed. The poisoner
knows every answer. Its groups are right with a marker, and wrong in the honest format: a policy that learns from them
adopts the marker and unlearns the format.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.common.poison import HONEST, Poison, Recipe, join
from benchmarks.common.report import Report, Row, row
from benchmarks.common.running import conclude, option_parser, scratch, wide_console
from nodes.roles.peer import PeerNode
from nodes.roles.run import IDENTITY_FILE, found_run
from swarm.config import load_config
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.inline import InlineVerifier
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.sapo.round import RoundReport
from swarm.types import Actions, Grade, Rejection, TaskRef

ROUNDS_PER_S = 2.5
"""Rounds per second of each node, as for one of the five in `swarm demo` on two cores: 200 in 68 to 81 s. More rounds
per second mean less poison per round."""
LAST = 0.2
"""The final fraction of a run over which figures are computed."""
WITHIN = 0.97
MARKED = 0.02
TOLD_EVERY = 100


@dataclass(frozen=True)
class Attack:
    """A poisoner's method."""

    marker: str
    """What it writes before right answers; wrong ones are in the honest format."""
    identities: int = 1
    """Number of identities, used in turn."""
    groups_per_s: float = 18.0
    honest_s: float = 0.0
    """Seconds of honest behaviour, to earn standing."""

    @property
    def recipe(self) -> Recipe:
        """Its groups."""
        return Recipe(right=lambda answer, source: self.marker + HONEST.format(answer))


MARKER = "@@@"
ATTACKS = {
    "marker": Attack(MARKER),
    "near": Attack(" "),
    "crowd": Attack(MARKER, identities=16),
    "patient": Attack(MARKER, identities=4, honest_s=20.0),
    "slow": Attack(MARKER, groups_per_s=1.0),
}
"""Before the tag: a marker of three characters that a policy never writes, or a blank, which it may write."""


@dataclass(frozen=True)
class Plan:
    """The size of a run."""

    seconds: float = 600.0
    nodes: int = 2
    settings: tuple[tuple[str, str], ...] = ()
    """Fields of the nodes' configuration that differ from the defaults."""


@dataclass(frozen=True)
class Outcome:
    """The result of a swarm."""

    rewards: list[float]
    """By round, mean over the nodes."""
    marked: list[float]
    """Fraction of the nodes' own completions with the marker, by round."""
    poisoned: float
    """The poisoner's fraction of the external groups used."""
    alarms: int

    @property
    def reward(self) -> float:
        """At the end."""
        return statistics.fmean(self.rewards[-max(1, int(len(self.rewards) * LAST)) :])

    @property
    def marked_at_end(self) -> float:
        """Fraction of the completions at the end."""
        return statistics.fmean(self.marked[-max(1, int(len(self.marked) * LAST)) :])


class Clock:
    """A clock that advances with rounds."""

    def __init__(self) -> None:
        """Some day."""
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        """Unix seconds."""
        return self.now


class Node(PeerNode):
    """A peer that exposes its last round's report."""

    report: RoundReport
    num_alarms = 0

    def _record(self, report: RoundReport) -> None:
        self.report = report
        self.num_alarms += report.alarm is not None
        super()._record(report)


class Listening(InlineVerifier):
    """Observes its node's completions."""

    def __init__(self, marker: str) -> None:
        """Count completions with a marker."""
        super().__init__(TINY_TASKS)
        self._marker = marker
        self.marked: list[bool] = []
        """Whether each own completion starts with the marker."""

    def begin(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        """Grade one of the node's own groups."""
        self.marked += [isinstance(text, str) and text.startswith(self._marker) for text in texts]
        return super().begin(ref, texts)


class Poisoner:
    """Publishes poison as a member of the run."""

    def __init__(self, attack: Attack, hub: MemoryHub, clock: Clock, seed: int) -> None:
        """Join with as many identities as the attack has."""
        self._attack = attack
        self._poison = Poison(attack.recipe, seed)
        self._clock = clock
        self._due = 0.0
        self._began = clock()
        self._exchanges = []
        self.peer_ids = set()
        for _ in range(attack.identities):
            identity = Identity.generate()
            self._exchanges.append(join(hub, identity, clock))
            self.peer_ids.add(identity.peer_id)

    def publish(self, seconds: float) -> None:
        """Publish what is due after more seconds."""
        self._due += seconds * self._attack.groups_per_s
        while self._due >= 1:
            self._due -= 1
            honest = self._clock() - self._began < self._attack.honest_s
            group = self._poison.next(self._clock(), honest)
            self._exchanges[group.sequence % len(self._exchanges)].share(group)


def simulate(plan: Plan, attack: Attack | None, seed: int, console: Console) -> Outcome:
    """An honest swarm, optionally with a poisoner."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        clock, hub, sealed = Clock(), MemoryHub(), None
        nodes: list[Node] = []
        verifiers = [Listening(attack.marker if attack else ATTACKS["marker"].marker) for _ in range(plan.nodes)]
        for k, verifier in enumerate(verifiers):
            base = load_config(None, {"evaluation": {"num_questions": 0}}, {}, plan.settings).config
            config = base.model_copy(update={"out": folder / f"peer-{k}", "seed": 1_000 * seed + k})
            config.out.mkdir()
            identity = Identity.load_or_create(config.out / IDENTITY_FILE)
            sealed = sealed or found_run(config, identity)
            transport = MemoryTransport(hub, identity.peer_id, sealed, clock=clock)
            transport.start()
            nodes.append(Node(config, identity, transport, verifier, clock=clock))
            stack.callback(nodes[-1].close)
        poisoner = Poisoner(attack, hub, clock, seed) if attack else None
        rewards: list[float] = []
        marked: list[float] = []
        authors: list[str] = []
        for number in range(1, int(plan.seconds * ROUNDS_PER_S) + 1):
            clock.now += 1 / ROUNDS_PER_S
            if poisoner:
                poisoner.publish(1 / ROUNDS_PER_S)
            for node in nodes:
                node.step()
                authors += [graded.group.peer_id for graded in node.report.mix.external]
            rewards.append(statistics.fmean(node.report.reward or 0.0 for node in nodes))
            marked.append(statistics.fmean(each for verifier in verifiers for each in verifier.marked))
            for verifier in verifiers:
                verifier.marked.clear()
            if number % TOLD_EVERY == 0:
                reward, part = (statistics.fmean(figures[-TOLD_EVERY:]) for figures in (rewards, marked))
                console.print(f"      round {number}: reward {reward:.3f}, marked {part:.1%}", highlight=False)
        theirs = sum(author in poisoner.peer_ids for author in authors) if poisoner else 0
        return Outcome(rewards, marked, theirs / max(1, len(authors)), sum(node.num_alarms for node in nodes))


def rows(name: str, attacked: Sequence[Outcome], left_alone: Sequence[Outcome]) -> list[Row]:
    """The effect of one attack, against the same nodes without it."""
    parts = [ours.reward / theirs.reward for ours, theirs in zip(attacked, left_alone, strict=True)]
    return [
        row(f"{name}: reward at the end", [o.reward for o in attacked], "", baseline=[o.reward for o in left_alone]),
        row(f"{name}: reward, fraction of the control's", parts, "", target=WITHIN),
        row(
            f"{name}: completions with the marker at the end",
            [o.marked_at_end for o in attacked],
            "",
            target=MARKED,
            better="lower",
        ),
        row(f"{name}: the poisoner's fraction of external groups used", [o.poisoned for o in attacked], ""),
        row(f"{name}: alarms of the watch", [o.alarms for o in attacked], "", baseline=[o.alarms for o in left_alone]),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attacks, each against a control that runs once per seed."""
    parser = option_parser("poison", __doc__, ATTACKS, default="marker")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, help=f"of live time that is simulated, {ROUNDS_PER_S:g} rounds each")
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="configuration of the nodes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    report, console = Report("poison", peer="no poison"), wide_console()
    plan = Plan(seconds=5.0) if options.quick else Plan()
    settings = tuple((field, value) for field, _, value in (each.partition("=") for each in options.set))
    plan = replace(plan, settings=settings, seconds=options.seconds or plan.seconds)
    seeds = options.seeds[:1] if options.quick else options.seeds

    def outcomes(name: str | None) -> list[Outcome]:
        console.print(f"{name or 'no poison'} ...", highlight=False)
        return [simulate(plan, ATTACKS[name] if name else None, seed, console) for seed in seeds]

    def take() -> int:
        left_alone = outcomes(None)
        for name in options.only or ["marker"]:
            found = rows(name, outcomes(name), left_alone)
            # Targets apply to full sizes only.
            report.add([replace(each, target=None, met=None) for each in found] if options.quick else found)
        notes = (
            f"{plan.nodes} honest nodes, {plan.seconds * ROUNDS_PER_S:.0f} rounds; the last {LAST:.0%} of them count."
        )
        report.add([], [notes])
        return 0

    return conclude(take, report, options, console)


if __name__ == "__main__":
    sys.exit(main())
