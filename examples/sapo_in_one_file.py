"""SAPO in one file: two nodes learn arithmetic together, on the parts that `swarm join` is made of.

    python examples/sapo_in_one_file.py --rounds 40

    draw ─▶ generate ─▶ grade ─▶ share ─────────────▶ swarm
                          │                             │
                     own groups        pool ◀─ regrade ◀┘
                          └──▶ mix I + J ◀─┘
                                   │
                                 update

Source: arXiv:2509.08721, algorithm 1. The nodes take turns in one process, and the swarm is a mailbox for each;
signatures, budgets, regrading, the draw and the update are real. `SapoNode.run_round` does the same and more: it
screens for implausible text and copies, estimates what others are worth, and rolls back when others do harm.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from swarm.config import NodeConfig, load_config
from swarm.engines.transformers.engine import TransformersEngine
from swarm.environments.specs import to_specs
from swarm.environments.verification.inline import InlineVerifier
from swarm.groups.building import Member, OwnGroups, with_grade
from swarm.groups.credit import has_signal
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest, make_run_id, seal_manifest
from swarm.net.trust.exchange import Exchange
from swarm.policy.loading import load_policy
from swarm.received.pool import Pool
from swarm.sapo.mixing import Candidate, Decision
from swarm.sapo.mixing.mixer import Mix, mix
from swarm.training.updater import PolicyUpdater
from swarm.types import Grade, GradedGroup, PolicyId, RunManifest
from swarm.types.questions import stream_seed

START = time.time()
FIELDS = {
    "policy.model": "tiny",  # 0.13 M parameters, made on first use; any causal model of transformers works
    "policy.threads": "1",
    "generation.questions_per_round": "8",  # P
    "generation.group_size": "8",  # G
    "mix.local": "4",  # I
    "mix.external": "4",  # J
}


class Node:
    """One member: its own policy, questions and verifier, and a pool of others' groups."""

    def __init__(self, config: NodeConfig, key: Path, hub: MemoryHub, run: SealedManifest | None = None) -> None:
        """Enter the swarm of `hub`; the first node founds the run, the others enter its `run`."""
        self.config = config
        self.round = 0
        self.identity = Identity.load_or_create(key)
        self.run = run or found_run(config, self.identity)
        transport = MemoryTransport(hub, self.identity.peer_id, self.run, clock=self.clock)
        transport.start()
        self.policy = load_policy(config.policy)
        self.engine = TransformersEngine(self.policy, config.generation)
        self.sampling = config.generation.sampling()
        self.updater = PolicyUpdater(self.policy, config.update, config.mix, self.sampling.temperature)
        self.verifier = InlineVerifier(config.tasks)  # `swarm join` grades in sandboxed processes instead
        self.exchange = Exchange(transport, self.identity, clock=self.clock)
        self.pool = Pool(config.pool)
        policy_id = PolicyId(self.policy.name, self.policy.tokenizer_hash, 0)
        me = Member(self.identity.peer_id, policy_id, self.sampling, clock=self.clock)
        self.groups = OwnGroups(me, self.exchange, token_ids=False)  # decoded text is all that travels
        self.seed = stream_seed(self.identity.peer_id)  # every node asks its own questions

    def clock(self) -> float:
        """Unix seconds, as if a round took half a minute: members' budgets are per minute."""
        return START + 30.0 * self.round

    def run_round(self) -> tuple[float, Mix]:
        """One round. Returns the mean reward of the node's own completions, and what it trained on."""
        local = self.rollouts()
        informative = [graded for graded in local if has_signal(graded.rewards)]
        for graded in informative:
            self.groups.share(graded.group)
        self.receive()
        mixed = self.mix(informative)
        self.updater.update(mixed.local, mixed.external)
        self.pool.use(mixed.drawn)
        self.round += 1
        return fmean(reward for graded in local for reward in graded.rewards), mixed

    def rollouts(self) -> list[GradedGroup]:
        """Draw P questions, generate G completions for each, grade them."""
        generation = self.config.generation
        count = generation.questions_per_round or 8
        questions = self.verifier.draw(self.seed, self.round * count, count)
        prompts = [question.prompt for question in questions]
        answers = self.engine.generate(prompts, generation.group_size, self.sampling, self.seed + self.round)
        graded = []
        for question, completions in zip(questions, answers, strict=True):
            if not isinstance(completions, Sequence):
                continue  # a `Rejection`: the prompt does not fit
            (grade,) = self.verifier.grade([(question.ref, [each.actions for each in completions])])
            if isinstance(grade, Grade):
                group = self.groups.make(question.ref, completions, grade.rewards, self.updater.version)
                graded.append(with_grade(group, grade))
        return graded

    def receive(self) -> None:
        """Regrade what arrived, since a received reward is only a claim, and keep what has signal."""
        arrived, _ = self.exchange.receive()  # opened: size, signature, run, age, the sender's budget
        for received in arrived:
            group = received.group
            (grade,) = self.verifier.grade([(group.question, [each.actions for each in group.completions])])
            if isinstance(grade, Grade) and not grade.held_out and self.pool.wants(grade.rewards):
                received.content = with_grade(group, grade)
                self.pool.admit(received)

    def mix(self, informative: Sequence[GradedGroup]) -> Mix:
        """I of the own groups and J of the pool's, each author at most its fair share."""
        candidates = [Candidate(received) for received in self.pool]
        decision = Decision(self.config.mix.local, self.config.mix.external)
        return mix(informative, candidates, decision, np.random.default_rng([self.seed, self.round]))


def found_run(config: NodeConfig, founder: Identity) -> SealedManifest:
    """The run's manifest, signed by its founder; the run id ends in a digest of the founder's key."""
    manifest = RunManifest(
        run_id=make_run_id("one-file", founder.peer_id),
        founder=founder.peer_id,
        created_at=time.time(),
        tasks=to_specs(config.tasks),
        group_size=config.generation.group_size,
        local=config.mix.local,
        external=config.mix.external,
        max_record_bytes=config.network.max_record_bytes,
        max_completion_chars=config.network.max_completion_chars,
    )
    return SealedManifest(seal_manifest(founder, manifest), manifest)


def run(num_nodes: int, num_rounds: int) -> list[list[tuple[float, Mix]]]:
    """What `run_round` returned, [rounds][nodes]; prints a line for each round."""
    config = load_config(environment={}, command_line=list(FIELDS.items())).config
    hub = MemoryHub()
    nodes: list[Node] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_nodes):
            nodes.append(Node(config, Path(folder, f"{number}.key"), hub, nodes[0].run if nodes else None))
    rounds = []
    for number in range(1, num_rounds + 1):
        rounds.append([node.run_round() for node in nodes])
        shown = [f"{reward:.3f} ({len(m.local)} own + {len(m.external)} others')" for reward, m in rounds[-1]]
        print(f"round {number:3}   reward {'   '.join(shown)}")
    return rounds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    means = [fmean(reward for reward, _ in nodes) for nodes in run(given.nodes, given.rounds)]
    tenth = max(1, len(means) // 10)
    print(f"mean reward: {fmean(means[:tenth]):.3f} at first, {fmean(means[-tenth:]):.3f} at the end")
