"""The effect of stale rollouts on each objective: best and last accuracy when updates use an old policy's rollouts.

One process and one policy. Update t uses rollouts of the policy after t - lag updates (the initial one while t < lag),
with that policy's log-probabilities. Engine, verifier and updater are real. A cell is one objective at one lag with one
seed; finished cells are stored in a folder, so that a run can be interrupted and resumed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from rich.console import Console

from benchmarks.common import halving
from benchmarks.common.report import Report, Row
from benchmarks.common.running import conclude, option_parser, wide_console
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import NonFiniteUpdates
from swarm.evaluation import evaluate
from swarm.groups.expectation import log_group_expectation
from swarm.groups.signal import has_signal
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import HELD_OUT_STREAMS, Grade, GradedGroup, PolicyId, Rejection, RolloutGroup, Sampling, UpdateReport

ARMS: dict[str, dict[str, object]] = {
    "grpo": {"objective": "grpo"},
    "gspo": {"objective": "gspo"},
    "gepo": {"objective": "gepo"},
    "tis": {"objective": "tis"},
    "grpo, token_truncate": {"objective": "grpo", "importance": "token_truncate"},
    "grpo, sequence_mask": {"objective": "grpo", "importance": "sequence_mask"},
    "gepo, behaviour_kl": {"objective": "gepo", "behaviour_kl": 0.005},
    "gepo, clipped": {"objective": "gepo", "loss": {"group_clip": True}},
}
"""The arms: fields of `update` that differ from the common ones."""
ASKED = ("grpo", "gspo", "gepo", "tis")
LAGS = (0, 8, 64)
SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_new_tokens=96)
GENERATION = GenerationSettings(max_batch_sequences=1024)
LAST_WITHIN = 0.97
"""The paper's: GEPO's last accuracy is within 3% of its best at lag 64."""
STUDENT_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Two-sided 95% quantiles by the number of seeds."""


@dataclass(frozen=True)
class Plan:
    """The size of a run; each plan has its own cells."""

    updates: int = 128
    questions: int = 4
    group_size: int = 8
    learning_rate: float = 3e-4
    evaluate_every: int = 16
    num_evaluation: int = 128
    """Updates between evaluations on held-out questions, which select the best policy."""
    num_final: int = 512
    """Other held-out questions for the best and the last policy, to remove selection bias."""
    warm_start: halving.WarmStart = halving.WarmStart()


QUICK = Plan(
    updates=6, questions=2, evaluate_every=2, num_evaluation=16, num_final=16, warm_start=halving.WarmStart(steps=30)
)


class Cell(msgspec.Struct, frozen=True):
    """The result of one objective at one lag with one seed."""

    arm: str
    lag: int
    seed: int
    accuracies: list[float]
    """Held-out, every `evaluate_every` updates, the first before any."""
    best: float
    """Accuracy of the selected best policy on the other questions."""
    last: float
    """Accuracy of the last policy on the same questions."""
    rewards: list[float]
    """Mean reward of each update's rollouts."""
    ess: list[float]
    """Per update, of the tokens' ratios to the sampling policy."""
    sequence_ess: list[float]
    """Of the completions'."""
    max_ratio: list[float]
    behaviour_kl: list[float]
    """Nats a token."""
    clip_fraction: list[float]
    mean_tokens: float
    """Length of a completion."""
    gave_up: bool
    """Whether too many consecutive steps were not finite."""
    cpu_s: float


class Bench:
    """Runs cells from one warm-started policy."""

    def __init__(self, plan: Plan, folder: Path, console: Console) -> None:
        """Finished cells and the policy are stored in `folder`."""
        digest = hashlib.sha256(json.dumps(asdict(plan), sort_keys=True).encode()).hexdigest()[:12]
        self._plan = plan
        self._folder = folder / digest
        self._console = console
        self._verifier = InlineVerifier([halving.TASK])
        self._start = folder / f"start-{hashlib.sha256(repr(plan.warm_start).encode()).hexdigest()[:12]}"

    def cell(self, arm: str, lag: int, seed: int) -> Cell:
        """The cell, from its file if already finished."""
        file = self._folder / f"{arm.replace(', ', '-')}-lag{lag}-seed{seed}.json"
        if file.exists():
            return msgspec.json.decode(file.read_bytes(), type=Cell)
        if not self._start.exists():
            self._console.print(f"warm start of {self._plan.warm_start.steps} steps")
            draft = self._start.with_name(f"{self._start.name}.partial")
            halving.warm_start(self._plan.warm_start, self._verifier, draft)
            draft.rename(self._start)
        cell = self._train(arm, lag, seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".partial").write_bytes(msgspec.json.encode(cell))
        file.with_suffix(".partial").rename(file)
        self._console.print(
            f"{arm}, lag {lag}, seed {seed}: accuracy {cell.accuracies[0]:.2f} at first, {cell.best:.2f} at "
            f"best, {cell.last:.2f} at last; least ess {min(cell.ess, default=1.0):.2f} ({cell.cpu_s:.0f} s)"
        )
        return cell

    def _train(self, arm: str, lag: int, seed: int) -> Cell:
        plan, began = self._plan, time.process_time()
        policy = halving.load(self._start)
        settings = UpdateSettings.model_validate({"learning_rate": plan.learning_rate, **ARMS[arm]})
        updater = PolicyUpdater(policy, settings, MixSettings(), SAMPLING.temperature)
        sampler = Sampler(policy.name, TransformersEngine(policy, GENERATION), self._verifier, plan, seed)
        waiting = deque(sampler.sample(0, lag, version=0))
        reports: list[UpdateReport] = []
        rewards: list[float] = []
        accuracies = [self._accuracy(sampler.engine, seed, 0, plan.num_evaluation)]
        snapshots = []
        gave_up = False
        for step in range(plan.updates):
            waiting.extend(sampler.sample(step + lag, 1, updater.version))
            groups = waiting.popleft()
            rewards.append(statistics.fmean(reward for group in groups for reward in group.rewards))
            try:
                report = updater.update([group for group in groups if has_signal(group.rewards)], [])
            except NonFiniteUpdates:
                gave_up = True
                break
            if not report.skipped:
                reports.append(report)
            if (step + 1) % plan.evaluate_every == 0:
                accuracies.append(self._accuracy(sampler.engine, seed, step + 1, plan.num_evaluation))
                snapshots.append(copy.deepcopy(policy.model.state_dict()))
        snapshots.append(copy.deepcopy(policy.model.state_dict()))
        finals = []
        for state in (snapshots[int(np.argmax(accuracies[1:]))] if accuracies[1:] else snapshots[-1], snapshots[-1]):
            policy.model.load_state_dict(state)
            finals.append(self._accuracy(sampler.engine, seed, plan.updates + 1, plan.num_final))
        return Cell(
            arm=arm,
            lag=lag,
            seed=seed,
            accuracies=accuracies,
            best=finals[0],
            last=finals[1],
            rewards=rewards,
            ess=[report.figures["sampling/ess"] for report in reports],
            sequence_ess=[report.figures["sampling/sequence_ess"] for report in reports],
            max_ratio=[report.figures["sampling/importance_sampling_ratio/max"] for report in reports],
            behaviour_kl=[report.figures["sampling/behaviour_kl"] for report in reports],
            clip_fraction=[report.figures["clip_ratio/region_mean"] for report in reports],
            mean_tokens=sampler.num_tokens / max(1, sampler.num_completions),
            gave_up=gave_up,
            cpu_s=time.process_time() - began,
        )

    def _accuracy(self, engine: TransformersEngine, seed: int, step: int, num_questions: int) -> float:
        """On other questions at each step."""
        stream = HELD_OUT_STREAMS + 1_000 * seed + step
        return evaluate(engine, self._verifier, SAMPLING, num_questions, stream).accuracy or 0.0


class Sampler:
    """Batches of graded groups, each drawn once and in order, with the current policy."""

    def __init__(self, model: str, engine: TransformersEngine, verifier: InlineVerifier, plan: Plan, seed: int) -> None:
        """Questions and samples of batch b are functions of `seed` and b."""
        self.engine = engine
        self.num_tokens = 0
        self.num_completions = 0
        self._model = model
        self._verifier = verifier
        self._plan = plan
        self._seed = seed

    def sample(self, batch: int, count: int, version: int) -> list[list[GradedGroup]]:
        """Batches `batch .. batch + count - 1`: [count][P], sampled with this version of the policy."""
        per_batch = self._plan.questions
        if count == 0:
            return []
        questions = self._verifier.draw(self._seed, batch * per_batch, count * per_batch)
        prompts = [question.prompt for question in questions]
        seed = self._seed * 1_000_003 + batch
        generated = self.engine.generate(prompts, self._plan.group_size, SAMPLING, seed)
        answers = [completions for completions in generated if not isinstance(completions, Rejection)]
        assert len(answers) == len(questions), "the questions fit the policy"
        grades = self._verifier.grade(
            [(q.ref, [c.text for c in completions]) for q, completions in zip(questions, answers, strict=True)]
        )
        groups = []
        for question, completions, grade in zip(questions, answers, grades, strict=True):
            assert isinstance(grade, Grade)
            self.num_completions += len(completions)
            self.num_tokens += sum(len(completion.token_ids) for completion in completions)
            group = RolloutGroup(
                run_id="",
                peer_id="",
                sequence=0,
                created_at=0.0,
                policy=PolicyId(self._model, "", version),
                sampling=SAMPLING,
                question=question.ref,
                completions=completions,
                rewards=grade.rewards,
                log_expectation=log_group_expectation(completions),
            )
            groups.append(GradedGroup(group, question.prompt, grade.rewards))
        return [groups[i : i + per_batch] for i in range(0, len(groups), per_batch)]


def rows(cells: Mapping[tuple[str, int], Sequence[Cell]]) -> list[Row]:
    """Best, last and their ratio of every objective at every lag, and the spread of the importance weights."""
    table = []
    for (arm, lag), seeds in cells.items():
        best = [cell.best for cell in seeds]
        last = [cell.last for cell in seeds]
        kept = [after / before if before else 0.0 for before, after in zip(best, last, strict=True)]
        target = LAST_WITHIN if arm in ("gepo", "gepo, clipped") and lag == max(LAGS) else None
        name = f"lag {lag}, {arm}"
        table += [
            _row(f"{name}: best accuracy", best, ""),
            _row(f"{name}: last accuracy", last, ""),
            _row(f"{name}: last / best", kept, "", target),
            _row(f"{name}: effective sample size, tokens", [_typical(cell.ess) for cell in seeds], ""),
            _row(f"{name}: effective sample size, completions", [_typical(cell.sequence_ess) for cell in seeds], ""),
            _row(f"{name}: largest token ratio", [_typical(cell.max_ratio) for cell in seeds], ""),
            _row(f"{name}: tokens clipped or capped", [_typical(cell.clip_fraction) for cell in seeds], ""),
        ]
    return table


def _typical(figures: Sequence[float]) -> float:
    """Median over the second half of a cell's updates, at full staleness."""
    return statistics.median(figures[len(figures) // 2 :]) if figures else 1.0


def _row(what: str, values: Sequence[float], unit: str, target: float | None = None) -> Row:
    low, high = interval(values)
    mean = statistics.fmean(values)
    met = None if target is None else mean >= target
    return Row(what, mean, unit, target=target, met=met, spread=(low, high), n=len(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean by Student's t; of a single value, itself."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, mean
    half = STUDENT_T.get(len(values), 2.3) * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def notes(cells: Mapping[tuple[str, int], Sequence[Cell]], plan: Plan) -> list[str]:
    """What the rows mean."""
    everything = [cell for seeds in cells.values() for cell in seeds]
    first = statistics.fmean(cell.accuracies[0] for cell in everything)
    tokens = statistics.fmean(cell.mean_tokens for cell in everything)
    gave_up = sum(cell.gave_up for cell in everything)
    return [
        f"Counting 1 bits by halving a number, {tokens:.0f} tokens per completion; accuracy {first:.2f} before the "
        f"first update. {plan.updates} updates of {plan.questions} questions with {plan.group_size} completions, "
        f"learning rate {plan.learning_rate:g}, no KL term.",
        f"Best: the policy that was best at {plan.num_evaluation} held-out questions, asked every "
        f"{plan.evaluate_every} updates; it and the last are asked {plan.num_final} others. Spread: 95% interval of "
        "the mean over seeds.",
        "Effective sample size (as a part of tokens, of completions) and largest ratio of an update: against the "
        "policy that sampled it; the median over the second half of the updates.",
        f"{gave_up} of {len(everything)} cells ended in losses that were not finite.",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are missing, then print and write the table."""
    parser = option_parser("staleness", __doc__, ARMS, default=" | ".join(ASKED))
    parser.add_argument("--lags", nargs="+", type=int, default=list(LAGS), help="updates between sampling and use")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--updates", type=int, help="updates a cell")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--cells", type=Path, default=Path("runs/staleness"), help="folder of finished cells")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    report, console = Report("staleness"), wide_console()
    plan = QUICK if options.quick else Plan()
    changes = {"updates": options.updates, "learning_rate": options.learning_rate}
    plan = replace(plan, **{name: value for name, value in changes.items() if value is not None})

    def take() -> int:
        bench = Bench(plan, options.cells, console)
        arms = options.only or ASKED
        cells: dict[tuple[str, int], list[Cell]] = {(arm, lag): [] for lag in options.lags for arm in arms}
        for seed in options.seeds:
            for arm, lag in cells:
                cells[arm, lag].append(bench.cell(arm, lag, seed))
        report.add(rows(cells), notes(cells, plan))
        return 0

    return conclude(take, report, options, console)


if __name__ == "__main__":
    sys.exit(main())
