"""Rounds per second with generation during updates and grading during generation, against sequential execution.

Real model, engine, updater and round; questions, rewards and network are doubles with zero or configured cost. Models
are random, so nearly every completion has full length.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.common.report import Row, row
from benchmarks.engine.generation import random_policy
from nodes.roles.ranks import PeerRanks
from swarm.config import NodeConfig
from swarm.figures import LAG_MAX
from swarm.groups.building import Member
from swarm.groups.flow import BATCHES_A_CALL
from swarm.policy.ranks import Ranks
from swarm.protocols import RolloutEngine, Turns
from swarm.reasons import Outcome, Reason
from swarm.sapo.external import ExternalSettings
from swarm.sapo.rollouts import RolloutPlan
from swarm.sapo.round import Parts, RoundReport, SapoNode, SapoSettings, ShareSettings
from swarm.types import (
    Actions,
    Answers,
    Commitment,
    Context,
    Grade,
    NetworkStatus,
    OfferedGroup,
    PolicyId,
    ProceduralRef,
    Question,
    ReceivedGroup,
    Rejection,
    RolloutGroup,
    Sampling,
    TaskRef,
)

TARGET = 1.5


@dataclass(frozen=True)
class Load:
    """Size of a round: questions, completions and tokens. Chosen so that generation and update cost the same."""

    questions: int
    group_size: int
    max_new_tokens: int
    rounds: int
    """Consecutive timed rounds."""


LOADS = {"0.13 M": Load(16, 8, 32, 12), "25 M": Load(2, 8, 32, 4)}
QUICK = Load(2, 2, 4, 2)


class HalfRight:
    """A `Verifier` that accepts every other completion, in a separate thread after `seconds` per group."""

    def __init__(self, seconds: float = 0.0) -> None:
        """Grades one group at a time."""
        self._seconds = seconds
        self._worker = ThreadPoolExecutor(1)

    def draw(self, seed: int, start: int, count: int) -> list[Question]:
        """Sums."""
        return [
            Question(ProceduralRef("sum", "none", "", seed, i, ""), f"Calculate {i} + {7 * i}.")
            for i in range(start, start + count)
        ]

    def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        """Queue a group."""
        return self._worker.submit(self._grade, ref, len(texts))

    def replay(self, ref: TaskRef, actions: Actions) -> Future[Grade | Rejection]:
        """An own episode so far. See `Verifier`."""
        return self.begin_grading(ref, [actions])

    def _grade(self, ref: TaskRef, num_texts: int) -> Grade | Rejection:
        time.sleep(self._seconds)
        assert isinstance(ref, ProceduralRef)
        prompt = f"Calculate {ref.index} + {7 * ref.index}."
        return Grade(prompt, tuple(float(k % 2) for k in range(num_texts)))

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[Actions]]]) -> list[Grade | Rejection]:
        """Grade and wait."""
        return [verdict.result() for verdict in [self.begin_grading(ref, texts) for ref, texts in jobs]]

    def submit(self, key: str, ref: TaskRef, texts: Sequence[Actions], sender: str = "") -> None:
        """Nothing is received."""

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        """Nothing."""
        return []

    def counters(self) -> dict[str, int]:
        """Nothing went wrong."""
        return {}

    def close(self) -> None:
        """End the thread."""
        self._worker.shutdown()


class Nobody:
    """A `GroupExchange` without a swarm."""

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        """Share with no one."""
        return None

    def share_all(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """Share with no one."""
        return [None] * len(groups)

    def took(self, num_groups: int, num_wanted: int) -> None:
        """There is nobody to know."""

    def offers(self) -> list[OfferedGroup]:
        """None."""
        return []

    def commitments(self) -> list[Commitment]:
        """None."""
        return []

    def banned(self) -> frozenset[str]:
        """No one."""
        return frozenset()

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        """Nothing is on offer."""

    def receive(self) -> tuple[list[ReceivedGroup], dict[Reason, int]]:
        """Nothing."""
        return [], {}

    def wait(self, timeout_s: float) -> bool:
        """Nothing comes."""
        return False

    def account(self, peer_id: str) -> str:
        """Every peer has its own account."""
        return peer_id

    def report(self, peer_id: str, outcome: Outcome, verify_s: float = 0.0) -> None:
        """Of no one."""

    def established(self) -> frozenset[str]:
        """No one."""
        return frozenset()

    def status(self) -> NetworkStatus:
        """Never asked."""
        raise NotImplementedError


class AtOnce:
    """An engine that yields all groups after the last one finishes."""

    def __init__(self, engine: RolloutEngine) -> None:
        """Wrap `engine`."""
        self._engine = engine

    def generate(
        self, prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int
    ) -> list[Answers]:
        """As the engine does."""
        return self._engine.generate(prompts, num_completions, sampling, seed)

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """All groups at the end."""
        yield from list(self._engine.stream(prompts, num_completions, sampling, seed, turns))


class Training:
    """One node that trains alone."""

    def __init__(
        self,
        model: Path,
        load: Load,
        max_staleness: int = 0,
        grading_s: float = 0.0,
        at_once: bool = False,
        dtype: str = "auto",
        batches_a_call: int = BATCHES_A_CALL,
        slots: int | None = None,
        stop_tokens: Sequence[str] = (),
        trained: int | None = None,
    ) -> None:
        """`grading_s` per group; `at_once`: grading starts after all groups are generated. `slots`: sequences that are
        sampled together, by default all of a batch; `trained`: groups that an update trains on, by default all."""
        config = NodeConfig.model_validate(
            {
                "policy": {"model": str(model), "system_prompt": "", "threads": 1, "dtype": dtype},
                "generation": {
                    "questions_per_round": load.questions,
                    "group_size": load.group_size,
                    "max_new_tokens": load.max_new_tokens,
                    "max_staleness": max_staleness,
                    "stop_tokens": stop_tokens,
                    "max_batch_sequences": slots
                    or load.group_size * (load.questions // 8 if grading_s else load.questions),
                },
                "mix": {"local": trained or load.questions, "external": 0},
            }
        )
        self._load, self._sampling = load, config.generation.sampling()
        self._ranks = PeerRanks(config, None, Ranks(), lambda: False)
        self._verifier = HalfRight(grading_s)
        settings = SapoSettings(
            rollouts=RolloutPlan(
                num_questions=load.questions,
                group_size=load.group_size,
                max_staleness=max_staleness,
                max_sequences=config.generation.max_batch_sequences,
                batches_a_call=batches_a_call,
            ),
            external=ExternalSettings(mix=config.mix, max_group_size=load.group_size, max_pending_per_peer=1),
            share=ShareSettings(groups="none"),
        )
        parts = Parts(
            engine=AtOnce(self._ranks) if at_once else self._ranks,
            verifier=self._verifier,
            updater=self._ranks,
            exchange=Nobody(),
        )
        self._node = SapoNode(settings, Member("", PolicyId("random", "", 0), self._sampling), parts)
        self.reports: list[RoundReport] = []
        self.own_s, self.beside_s = 0.0, 0.0
        """CPU seconds per round of the last timing: of this process and its generating processes."""

    def rounds_per_s(self, count: int) -> float:
        """Time `count` rounds after an untimed one, so that batches prepared in advance do not count."""
        self._node.run_round()
        began, own, beside = time.perf_counter(), time.process_time(), _worker_s()
        self.reports = [self._node.run_round() for _ in range(count)]
        taken = time.perf_counter() - began
        self.own_s, self.beside_s = (time.process_time() - own) / count, (_worker_s() - beside) / count
        return count / taken

    def tokens_per_s(self) -> float:
        """Tokens per CPU second of generating one round's completions, without anything else."""
        prompts: list[Context] = [question.prompt for question in self._verifier.draw(0, 0, self._load.questions)]
        began = time.process_time()
        groups = self._ranks.generate(prompts, self._load.group_size, self._sampling, 0)
        num_tokens = sum(len(each.token_ids) for group in groups if isinstance(group, tuple) for each in group)
        return num_tokens / (time.process_time() - began)

    def seconds(self, stage: str) -> float:
        """Seconds of this stage per round of the last timing."""
        return statistics.median(report.timings[stage] for report in self.reports)

    def close(self) -> None:
        """Stop everything."""
        self._node.close()
        self._ranks.close()
        self._verifier.close()


def _worker_s() -> float:
    """CPU seconds of the generating processes."""
    children = psutil.Process().children(recursive=True)
    times = [child.cpu_times() for child in children if "swarm.engines.process.worker" in child.cmdline()]
    return sum(each.user + each.system for each in times)


@contextmanager
def saved(size: str) -> Iterator[Path]:
    """The directory of a random policy of this size."""
    with tempfile.TemporaryDirectory() as folder:
        random_policy(size).save(Path(folder))
        yield Path(folder)


def overlap(size: str, quick: bool, repeats: int) -> tuple[list[Row], list[str]]:
    """Alternating against `max_staleness` 1, interleaved."""
    load = QUICK if quick else LOADS[size]
    alternating_s, overlapping_s, generate_s, update_s, processor = [], [], [], [], []
    with saved(size) as model:
        alternating, overlapping = Training(model, load), Training(model, load, max_staleness=1)
        try:
            for _ in range(repeats):
                alternating_s.append(alternating.rounds_per_s(load.rounds))
                overlapping_s.append(overlapping.rounds_per_s(load.rounds))
                generate_s.append(alternating.seconds("generate"))
                update_s.append(alternating.seconds("update"))
                processor.append(alternating.own_s / max(overlapping.own_s, overlapping.beside_s))
                lags = [report.update.figures[LAG_MAX] for report in overlapping.reports]
                assert max(lags) == 1, f"lags must be at most 1, got {lags}"
        finally:
            alternating.close()
            overlapping.close()
    gains = [ours / theirs for ours, theirs in zip(overlapping_s, alternating_s, strict=True)]
    best = [(g + u) / max(g, u) for g, u in zip(generate_s, update_s, strict=True)]
    return [
        row(f"{size} parameters: generation, alternating", generate_s, "s/round"),
        row(f"{size} parameters: update, alternating", update_s, "s/round"),
        row(f"{size} parameters: overlapping", overlapping_s, "rounds/s", baseline=alternating_s),
        row(f"{size} parameters: times the rounds of alternating", gains, "x", target=TARGET),
        row(f"{size} parameters: the same by processor time", processor, "x"),
        row(f"{size} parameters: upper bound for these costs", best, "x"),
    ], [
        f"{size}: {load.questions} questions x {load.group_size} completions of at most {load.max_new_tokens} tokens, "
        f"all trained on; {load.rounds} rounds of each in turns, one thread a process, wall-clock time. The baseline "
        "of rounds/s is max_staleness 0, ours is 1. By processor time: a round's when alternating, through that of the "
        "busier process when overlapping: the gain on two idle cores."
    ]


def grading(quick: bool, repeats: int) -> tuple[list[Row], list[str]]:
    """Grading groups as they finish, against grading all afterwards, when grading takes as long as generation."""
    size = "0.13 M"
    load = Load(8, 2, 4, 2) if quick else LOADS[size]
    with saved(size) as model:
        free = Training(model, load, grading_s=1e-6)
        try:
            free.rounds_per_s(load.rounds)
            a_group = free.seconds("generate") / load.questions
            beside, after = Training(model, load, grading_s=a_group), Training(model, load, 0, a_group, True)
            alone_s: list[float] = []
            beside_s: list[float] = []
            after_s: list[float] = []
            for _ in range(repeats):
                for training, seconds in ((free, alone_s), (beside, beside_s), (after, after_s)):
                    training.rounds_per_s(load.rounds)
                    seconds.append(training.seconds("generate") + training.seconds("grade"))
        finally:
            for training in (free, beside, after):
                training.close()
    added = [(b - f) / (a - f) for f, b, a in zip(alone_s, beside_s, after_s, strict=True)]
    return [
        row("generation with free verification", alone_s, "s/round"),
        row("generation with concurrent verification of equal cost", beside_s, "s/round", baseline=after_s),
        row("fraction of verification added to the round", added, ""),
    ], [
        "Verification: one worker that sleeps for each group as long as its generation takes; the baseline grades when "
        "all groups are generated."
    ]
