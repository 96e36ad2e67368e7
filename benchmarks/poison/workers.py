"""A learner and its workers in one process, one of them hostile: what the honest ones write, and what became of groups.

The real roles, each worker in a thread, on the memory transport; as many steps of the learner as the plan has rounds.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console

from benchmarks.common.running import scratch
from nodes.boot.directory import IDENTITY_FILE
from nodes.boot.manifest import found_run
from nodes.roles.runtime import NodeParts
from swarm.config import NodeConfig
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import Interrupted
from swarm.extras.learner.learner import Learner
from swarm.extras.learner.roles.learner import LearnerNode
from swarm.extras.learner.roles.worker import WorkerNode
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.reasons import Fate
from swarm.sapo.watch import Alarm
from tests.attacks.attackers import WorkerAttack
from tests.attacks.poisoned_swarm import TOLD_EVERY, Listening, Outcome, Plan, counting, last, reputation
from tests.extras.learner.marking import mark

ROLLOUTS = 64
AHEAD = 1
"""Turns of a worker beyond the learner's steps: what comes of more is dropped as more than its share."""
WAIT_S = 5.0
"""Longest wait for a step: a learner may need more groups to make it."""


class Turns:
    """Which worker works: one at a time, each as often, and not far ahead of the learner.

    Threads that all want the interpreter take fifty times as long.
    """

    def __init__(self, num_workers: int) -> None:
        """No step has been made."""
        self._steps = 0
        self._taken: list[float] = [0] * num_workers
        self._is_taken = self._ended = False
        self._changed = threading.Condition()

    def stepped(self) -> None:
        """The learner has made a step."""
        with self._changed:
            self._steps += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Nobody waits or works any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._ended

    def leave(self, worker: int) -> None:
        """Nobody waits for this one any more."""
        with self._changed:
            self._taken[worker] = math.inf
            self._changed.notify_all()

    @contextmanager
    def turn(self, worker: int) -> Iterator[None]:
        """The turn of the worker of this number, from 0."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._taken[worker] < self._steps + AHEAD, WAIT_S)
            self._changed.wait_for(lambda: self._ended or not self._is_taken and self._is_next(worker))
            self._is_taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken[worker] += 1
                self._is_taken = False
                self._changed.notify_all()

    def _is_next(self, worker: int) -> bool:
        return self._taken[worker] == min(self._taken)


class AttackedLearner(LearnerNode):
    """A learner that counts what becomes of groups, and its alarms."""

    num_alarms = 0

    def _make_learner(self) -> Learner:
        self.fates: Counter[tuple[str, Fate]] = Counter()
        counting(self._runtime.samples, self.fates)
        return super()._make_learner()

    def _heed(self, alarm: Alarm | None, what: str) -> None:
        self.num_alarms += alarm is not None
        super()._heed(alarm, what)

    def reputation(self, peer_id: str) -> float | None:
        """See `reputation`."""
        return reputation(self._runtime.exchange, peer_id)


class Run:
    """A learner's hub, identity and folder."""

    def __init__(self, plan: Plan, seed: int, folder: Path) -> None:
        """Founds the run."""
        self._plan = plan
        self._seed = seed
        self._folder = folder
        self._hub = MemoryHub()
        config = self._config("learner", 0)
        self._identity = Identity.load_or_create(config.out / IDENTITY_FILE)
        self._run = found_run(config, self._identity)
        self.peer_ids: list[str] = []
        """Of the workers."""

    @contextmanager
    def learner(self) -> Iterator[AttackedLearner]:
        """The learner, before its first snapshot."""
        config = self._config("learner", 0)
        transport = self._transport(self._identity.peer_id)
        node = AttackedLearner(NodeParts(config, self._identity, transport, InlineVerifier(config.tasks)))
        try:
            yield node
        finally:
            node.close()

    def worker(self, number: int, turns: Turns) -> tuple[WorkerNode, Listening]:
        """The worker of this number, with its verifier, which hears what it writes."""
        config = self._config(f"worker-{number}", number)
        heard, identity = Listening(config.tasks), Identity.load_or_create(config.out / IDENTITY_FILE)
        self.peer_ids.append(identity.peer_id)
        parts = NodeParts(config, identity, self._transport(identity.peer_id), heard, turns.ended)
        return WorkerNode(parts), heard

    def _config(self, name: str, number: int) -> NodeConfig:
        config = self._plan.config(self._plan.model, ("learner.rollouts_per_step", str(ROLLOUTS)))
        config = config.model_copy(update={"out": self._folder / name, "seed": 1_000 * self._seed + number})
        config.out.mkdir(exist_ok=True)
        return config

    def _transport(self, peer_id: str) -> MemoryTransport:
        transport = MemoryTransport(self._hub, peer_id, self._run)
        transport.start()
        return transport


def simulate(plan: Plan, attack: WorkerAttack | None, seed: int, console: Console) -> Outcome:
    """A learner from its first step to its last; the last of its workers is the hostile one, if there is an attack."""
    outcome, turns = Outcome(), Turns(plan.nodes + 1)
    with ExitStack() as stack:
        run = Run(plan, seed, Path(stack.enter_context(scratch())))
        learner = stack.enter_context(run.learner())
        workers = [run.worker(number, turns) for number in range(1, plan.nodes + 2)]
        attacks = [None] * plan.nodes + [attack]
        threads = [
            threading.Thread(target=_work, args=(number, node, each, seed, turns))
            for number, ((node, _), each) in enumerate(zip(workers, attacks, strict=True))
        ]
        stack.callback(_end, threads, turns)
        learner.begin()
        for thread in threads:
            thread.start()
        for number in range(1, plan.rounds + 1):
            learner.step()
            turns.stepped()
            heard = [listening for _, listening in workers[: plan.nodes]]
            rewards = [reward for each in heard for reward in each.take_rewards()]
            # Where no worker has finished a question since, the one before.
            outcome.rewards.append(statistics.fmean(rewards) if rewards else (outcome.rewards or [0.0])[-1])
            outcome.written.append([question for each in heard for question in each.take()])
            if number % max(1, plan.rounds // TOLD_EVERY) == 0:
                signed = f", with the sign {outcome.signed(attack, 1 - 1 / TOLD_EVERY):.1%}" if attack else ""
                shown = statistics.fmean(last(outcome.rewards))
                console.print(f"      step {number}: reward {shown:.3f}{signed}", highlight=False)
        hostile = run.peer_ids[-1] if attack else ""
        for (peer_id, fate), count in learner.fates.items():
            key = f"{'poisoner' if peer_id == hostile else 'worker'} {fate}"
            outcome.fates[key] = outcome.fates.get(key, 0) + count
        outcome.alarms = learner.num_alarms
        outcome.reputation = learner.reputation(hostile)
    return outcome


def _work(number: int, node: WorkerNode, attack: WorkerAttack | None, seed: int, turns: Turns) -> None:
    try:
        with suppress(Interrupted):
            node.begin()
            if attack is not None:
                mark(node, attack.marker, attack.part, attack.chosen, seed)
            while not turns.ended():
                with turns.turn(number):
                    node.step()
        node.end("interrupted")
    finally:
        turns.leave(number)


def _end(threads: list[threading.Thread], turns: Turns) -> None:
    turns.end()
    for thread in threads:
        thread.join()
