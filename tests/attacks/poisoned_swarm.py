"""A swarm in one process, with a poisoner among its honest nodes: what the nodes write, and what became of groups."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct, structs
from rich.console import Console

from benchmarks.common.running import scratch
from nodes.boot.directory import IDENTITY_FILE
from nodes.boot.manifest import found_run
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from nodes.simulation.configs import Fields, as_fields, real_model
from swarm.config import NodeConfig, load_config
from swarm.environments.config import TaskConfig
from swarm.environments.verification.inline import InlineVerifier
from swarm.machine import return_free_memory
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest
from swarm.net.trust.exchange import Exchange
from swarm.policy.config import TINY
from swarm.reasons import Fate, Reason
from swarm.sapo.round import RoundReport, SapoNode
from swarm.telemetry.samples import SampleLog
from swarm.types import Actions, Grade, GradedGroup, ReceivedGroup, Rejection, RolloutGroup, TaskRef
from swarm.types.questions import as_text
from tests.attacks.attackers import Attack, PeerAttack
from tests.attacks.poison import Poison, join

LAST = 0.2
"""The final fraction of a run over which figures are computed."""
TOLD_EVERY = 20
"""Parts of a run of which the console says something."""
DRAWN = 6
"""Groups that an adaptive poisoner makes, at most, for each that it may publish."""


NUM_GROUPS = 4
"""In an update of a real language model, half of them from others."""


class Plan(Struct, frozen=True):
    """The size of a run."""

    model: str = TINY
    others: tuple[str, ...] = ()
    """Policies of further honest nodes, which do not count in figures of rewards and completions."""
    nodes: int = 2
    rounds: int = 1_500
    rounds_per_s: float = 2.5
    """Of each node. For the embedded policy as for one of the five in `swarm demo` on two cores: 200 in 68 to 81 s.
    More rounds per second mean less poison per round."""
    learner: bool = False
    """Whether the nodes are workers of a learner, which makes as many steps as there are rounds."""
    settings: tuple[tuple[str, str], ...] = ()
    """Fields of the nodes' configuration that differ from the defaults."""

    def config(self, model: str, *more: tuple[str, str]) -> NodeConfig:
        """Of a node with this policy."""
        fields: Fields = [("policy.model", model), ("policy.threads", "1")]
        if self.model != TINY:
            half = str(NUM_GROUPS // 2)
            cheap = [("policy.dtype", "bfloat16"), ("mix.local", half), ("mix.external", half)]
            fields = [*as_fields(real_model(model, NUM_GROUPS, num_nodes=1)), *fields, *cheap]
        fields = [*fields, ("evaluation.num_questions", "0")]
        return load_config(None, {}, {}, [*fields, *self.settings, *more]).config


class Outcome(Struct):
    """What became of a swarm."""

    rewards: list[float] = []
    """By round, mean over the nodes."""
    written: list[list[tuple[str, list[str]]]] = []
    """By round, the nodes' questions, each with its completions."""
    fates: dict[str, int] = {}
    """Groups by author and fate, `poisoner used_external`: an author is `poisoner`, `peer`, or another's policy."""
    alarms: int = 0
    reputation: float | None = None
    """The mean of the poisoner's identities at the end, with all nodes."""
    seconds: dict[str, float] = {}
    """Of the nodes' rounds, by stage."""
    mix: dict[str, float] = {}
    """Sums over the rounds of the figures of the mix, by name."""

    @property
    def reward(self) -> float:
        """At the end."""
        return statistics.fmean(last(self.rewards))

    def signed(self, attack: Attack, begin: float = 1 - LAST, end: float = 1.0) -> float:
        """Fraction of the completions with the attack's sign, in a part of the run."""
        size = len(self.written)
        rounds = self.written[min(int(begin * size), size - 1) : max(1, round(end * size))]
        counts = [attack.num_signed(*question) for questions in rounds for question in questions]
        return sum(signed for signed, _ in counts) / max(1, sum(total for _, total in counts))

    def used(self, author: str) -> float:
        """The author's fraction of the external groups used."""
        used = {who: count for who, fate, count in self._fates() if fate == "used_external"}
        return used.get(author, 0) / max(1, sum(used.values()))

    def refused(self, author: str) -> float:
        """Fraction of the author's groups that were drawn and then left out as improbable."""
        found = Counter({fate: count for who, fate, count in self._fates() if who == author})
        return found[Reason.IMPROBABLE] / max(1, found[Reason.IMPROBABLE] + found["used_external"])

    @property
    def authors(self) -> list[str]:
        """Of groups that had a fate."""
        return [who for who, _, _ in self._fates()]

    def _fates(self) -> Iterator[tuple[str, str, int]]:
        for key, count in self.fates.items():
            author, fate = key.split()
            yield author, fate, count


class Clock:
    """A clock that advances with rounds."""

    def __init__(self) -> None:
        """Some day."""
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        """Unix seconds."""
        return self.now


class Listening(InlineVerifier):
    """Observes its node's completions."""

    def __init__(self, tasks: Sequence[TaskConfig]) -> None:
        """Nothing is written yet."""
        super().__init__(tasks)
        self._written: list[tuple[str, list[str]]] = []
        self._rewards: list[float] = []

    def take_rewards(self) -> list[float]:
        """Of the completions since the last call."""
        rewards, self._rewards = self._rewards, []
        return rewards

    def take(self) -> list[tuple[str, list[str]]]:
        """The questions since the last call, each with its completions."""
        written, self._written = self._written, []
        return written

    def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        """Grade one of the node's own groups."""
        verdict = super().begin_grading(ref, texts)
        found = verdict.result()
        if isinstance(found, Grade):
            self._written.append((as_text(found.prompt), [text for text in texts if isinstance(text, str)]))
            self._rewards += found.rewards
        return verdict


def counting(samples: SampleLog, fates: Counter[tuple[str, Fate]]) -> None:
    """Count what becomes of groups, by author and fate, before `samples` hears of it."""
    keep = samples.keep

    def count(fate: Fate, group: GradedGroup | RolloutGroup) -> None:
        fates[(group.group if isinstance(group, GradedGroup) else group).peer_id, fate] += 1
        keep(fate, group)

    samples.keep = count  # type: ignore[method-assign]


def reputation(exchange: Exchange, peer_id: str) -> float | None:
    """What a node thinks of a peer; None when it has not heard of it."""
    stats = exchange.book.stats().get(peer_id)
    return stats.reputation if stats else None


class Node(PeerNode):
    """A peer that exposes its last round, and counts what becomes of groups."""

    report: RoundReport
    num_alarms = 0

    def __init__(
        self, config: NodeConfig, identity: Identity, transport: MemoryTransport, clock: Callable[[], float]
    ) -> None:
        """A node with a verifier in this process."""
        self.peer_id = identity.peer_id
        self.tasks = config.tasks
        self.listening = Listening(config.tasks)
        self.fates: Counter[tuple[str, Fate]] = Counter()
        """By author and fate."""
        super().__init__(NodeParts(config, identity, transport, self.listening, clock=clock))

    def _make_node(self) -> SapoNode:
        counting(self._runtime.samples, self.fates)
        return super()._make_node()

    def _record(self, report: RoundReport) -> None:
        self.report = report
        self.num_alarms += report.alarm is not None
        super()._record(report)

    def would_learn(self, groups: Sequence[GradedGroup]) -> list[bool]:
        """Whether an update would learn from each group as a whole, if it were another's."""
        received = [ReceivedGroup(str(number), group) for number, group in enumerate(groups)]
        kept = self._node.external._scorer().screen(received)
        return [part is not None and part.rewards == group.rewards for part, group in zip(kept, groups, strict=True)]

    def reputation(self, peer_id: str) -> float | None:
        """See `reputation`."""
        return reputation(self._runtime.exchange, peer_id)


class Poisoner:
    """Publishes poison as a member of the run."""

    def __init__(
        self,
        attack: PeerAttack,
        hub: MemoryHub,
        clock: Callable[[], float],
        seed: int,
        scout: Node,
        name: Callable[[], Identity] = Identity.generate,
    ) -> None:
        """Not a member yet; `scout` is the node whose policy an adaptive attacker knows, `name` gives identities."""
        self._attack = attack
        self._poison = Poison(attack.recipe, seed, scout.tasks, attack.honest_recipe)
        self._hub = hub
        self._clock = clock
        self._scout = scout
        self._name = name
        self._due = 0.0
        self._shares = 0.0
        self._began = self._joined = clock()
        self._exchanges: list[Exchange] = []
        self.peer_ids: list[str] = []
        """Of all its identities, the latest last."""

    def publish(self, seconds: float) -> None:
        """Publish what is due after more seconds."""
        attack, now = self._attack, self._clock()
        age = now - self._began - attack.begins_s
        if age < 0:
            return
        if not self._exchanges or now - self._joined >= attack.lives_s:
            self._enter()
        self._due += seconds * attack.groups_per_s
        number, self._due = int(self._due), self._due % 1
        honest = number if age < attack.honest_s else self._num_honest(number)
        groups = [self._poison.next(now, honest=True) for _ in range(honest)]
        for group in [*groups, *self._poisoned(number - honest)]:
            self._exchanges[group.sequence % len(self._exchanges)].share(group)

    def _num_honest(self, number: int) -> int:
        """How many of these groups are honest, so that in the long run a fraction of them is."""
        self._shares += number * (1 - self._attack.part)
        honest, self._shares = int(self._shares), self._shares % 1
        return honest

    def _poisoned(self, number: int) -> list[RolloutGroup]:
        if not self._attack.adaptive:
            return [self._poison.next(self._clock()) for _ in range(number)]
        found: list[RolloutGroup] = []
        for _ in range(DRAWN if number else 0):
            made = [self._poison.graded(self._poison.next(self._clock())) for _ in range(number)]
            learns = self._scout.would_learn([_in_short(group) for group in made])
            found += [graded.group for graded, use in zip(made, learns, strict=True) if use]
            if len(found) >= number:
                break
        return found[:number]

    def _enter(self) -> None:
        identities = [self._name() for _ in range(self._attack.identities)]
        for peer_id in self.peer_ids[-len(self._exchanges) :] if self._exchanges else []:
            self._hub.leave(peer_id)
        self._exchanges = [join(self._hub, identity, self._clock) for identity in identities]
        self._joined = self._clock()
        self.peer_ids += [identity.peer_id for identity in identities]


def _in_short(graded: GradedGroup) -> GradedGroup:
    """A group with each right completion once and a single wrong one, which a screen judges alike and in less time."""
    group = graded.group
    right = {c.text: (c, reward) for c, reward in zip(group.completions, graded.rewards, strict=True) if reward > 0}
    pairs = [*right.values(), (group.completions[-1], graded.rewards[-1])]
    rewards = tuple(reward for _, reward in pairs)
    group = structs.replace(group, completions=tuple(completion for completion, _ in pairs), rewards=rewards)
    return GradedGroup(group, graded.prompt, rewards)


class Swarm:
    """Honest nodes, and optionally a poisoner."""

    def __init__(self, plan: Plan, attack: PeerAttack | None, seed: int, folder: Path, stack: ExitStack) -> None:
        """All in the same run; an attacker of the embedded policy has a node of its own, which keeps its groups."""
        self._plan = plan
        self._clock, self._hub = Clock(), MemoryHub()
        self._folder, self._stack = folder, stack
        self._run: SealedManifest | None = None
        models = [*[plan.model] * plan.nodes, *plan.others]
        honest = [self._join(plan.config(model), 1_000 * seed + k) for k, model in enumerate(models)]
        self.nodes = honest[: plan.nodes]
        """Those that figures are about."""
        self._everybody = honest
        self._poisoner: Poisoner | None = None
        if attack:
            scout = self.nodes[0]  # another copy of a large policy would cost as much as its node
            if attack.adaptive and plan.model == TINY:
                scout = self._join(plan.config(plan.model, ("share.groups", "none")), 1_000 * seed + 900)
                self._everybody = [*honest, scout]
            self._poisoner = Poisoner(attack, self._hub, self._clock, seed, scout)
        names = [*["peer"] * plan.nodes, *(Path(model).name for model in plan.others)]
        self._names = {node.peer_id: name for node, name in zip(honest, names, strict=True)}
        """Of honest authors."""

    def round(self) -> None:
        """A round of everybody."""
        seconds = 1 / self._plan.rounds_per_s
        self._clock.now += seconds
        if self._poisoner:
            self._poisoner.publish(seconds)
        for node in self._everybody:
            node.step()
            if self._plan.model != TINY:
                return_free_memory()

    def add_to(self, outcome: Outcome) -> None:
        """Add what the last round was like."""
        outcome.rewards.append(statistics.fmean(node.report.reward or 0.0 for node in self.nodes))
        outcome.written.append([each for node in self.nodes for each in node.listening.take()])
        for node in self.nodes:
            mix = {name: value for name, value in node.report.figures.items() if name.startswith("mix/")}
            for sums, more in ((outcome.seconds, node.report.timings), (outcome.mix, mix)):
                for name, value in more.items():
                    sums[name] = sums.get(name, 0.0) + value / len(self.nodes)

    def close(self, outcome: Outcome) -> None:
        """Add what is known at the end."""
        for node in self.nodes:
            outcome.alarms += node.num_alarms
            for (peer_id, fate), count in node.fates.items():
                if peer_id != node.peer_id:
                    key = f"{self._names.get(peer_id, 'poisoner')} {fate}"
                    outcome.fates[key] = outcome.fates.get(key, 0) + count
        hostile = self._poisoner.peer_ids if self._poisoner else []
        known = [found for node in self.nodes for each in hostile if (found := node.reputation(each)) is not None]
        outcome.reputation = statistics.fmean(known) if known else None

    def _join(self, base: NodeConfig, seed: int) -> Node:
        config = base.model_copy(update={"out": self._folder / f"peer-{seed}", "seed": seed})
        config.out.mkdir()
        identity = Identity.load_or_create(config.out / IDENTITY_FILE)
        self._run = self._run or found_run(config, identity)
        transport = MemoryTransport(self._hub, identity.peer_id, self._run, clock=self._clock)
        transport.start()
        node = Node(config, identity, transport, self._clock)
        self._stack.callback(node.close)
        return node


def simulate(plan: Plan, attack: PeerAttack | None, seed: int, console: Console) -> Outcome:
    """A swarm from its first round to its last."""
    with ExitStack() as stack:
        swarm = Swarm(plan, attack, seed, Path(stack.enter_context(scratch())), stack)
        outcome = Outcome()
        for number in range(1, plan.rounds + 1):
            swarm.round()
            swarm.add_to(outcome)
            if number % max(1, plan.rounds // TOLD_EVERY) == 0:
                shown = f"reward {statistics.fmean(last(outcome.rewards)):.3f}"
                if attack:
                    shown += f", with the sign {outcome.signed(attack, begin=1 - 1 / TOLD_EVERY):.1%}"
                console.print(f"      round {number}: {shown}", highlight=False)
        swarm.close(outcome)
    return outcome


def last(values: Sequence[float]) -> Sequence[float]:
    """Those of the final fraction of a run."""
    return values[-max(1, int(len(values) * LAST)) :]
