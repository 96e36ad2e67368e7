"""One cell of the table: a policy trained by one method at one learning rate on rollouts of one age, with one seed."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.staleness.arms import ARMS
from benchmarks.staleness.run import Plan, Run
from benchmarks.staleness.subject import Subject
from swarm.training.config import UpdateSettings


class Cell(msgspec.Struct, frozen=True):
    """The result of one run. The best policy is selected on other questions than those of `start`, `best`, `last`."""

    arm: str
    delay: str
    seed: int
    learning_rate: float
    accuracies: list[float]
    """Held-out, every `evaluate_every` updates, the first before any."""
    start: float
    """Accuracy of the initial policy on the final questions."""
    best: float
    """Of the best policy."""
    last: float
    """Of the last policy."""
    rewards: list[float]
    """Mean reward of each update's rollouts."""
    lags: list[int]
    """Updates since each update's rollouts were sampled."""
    behaviour_kl: list[float]
    """Per update, divergence of the sampling policy from the trained one, nats a token."""
    ess: list[float]
    """Of the tokens' ratios to the sampling policy."""
    sequence_ess: list[float]
    """Of the completions'."""
    max_ratio: list[float]
    clip_fraction: list[float]
    mean_tokens: float
    """Length of a completion."""
    gave_up: bool
    """Whether too many consecutive steps were not finite."""
    cpu_s: float


class Bench:
    """Runs cells from one policy. A finished cell is stored as JSON and never run again."""

    def __init__(self, plan: Plan, subject: Subject, folder: Path, console: Console) -> None:
        """Cells are stored in `folder`, separately for each plan and subject."""
        self._plan = plan
        self._subject = subject
        self._folder = folder / f"{subject.digest}-{_digest(asdict(plan))}"
        self._console = console
        self._starts: dict[int, float] = {}
        """Accuracy of the initial policy on the final questions, by seed."""

    def cell(self, arm: str, delay: str, seed: int, learning_rate: float) -> Cell:
        """The cell, from its file if already finished."""
        method = f"{arm.replace(', ', '-').replace(' ', '-')}-{_digest(ARMS[arm])}"
        file = self._folder / f"{method}-delay-{delay}-rate-{learning_rate:g}-seed-{seed}.json"
        if file.exists():
            cell = msgspec.json.decode(file.read_bytes(), type=Cell)
        else:
            cell = self._run(arm, delay, seed, learning_rate, file.with_suffix(".unfinished"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.with_suffix(".partial").write_bytes(msgspec.json.encode(cell))
            file.with_suffix(".partial").rename(file)
            file.with_suffix(".unfinished").unlink(missing_ok=True)
            self._tell(cell)
        self._starts[seed] = cell.start
        return cell

    def _run(self, arm: str, delay: str, seed: int, learning_rate: float, unfinished: Path) -> Cell:
        settings = UpdateSettings.model_validate({"learning_rate": learning_rate, "minibatches": 1, **ARMS[arm]})
        run = Run(self._subject, self._plan, settings, delay, seed)
        if unfinished.exists():
            run.resume(unfinished)
        best, last = run.train(self._starts.get(seed), unfinished)
        progress = run.progress

        def each(name: str) -> list[float]:
            return [figures[name] for figures in progress.figures]

        return Cell(
            arm=arm,
            delay=delay,
            seed=seed,
            learning_rate=learning_rate,
            accuracies=progress.accuracies,
            start=progress.start or 0.0,
            best=best,
            last=last,
            rewards=progress.rewards,
            lags=run.lags,
            behaviour_kl=each("sampling/behaviour_kl"),
            ess=each("sampling/ess"),
            sequence_ess=each("sampling/sequence_ess"),
            max_ratio=each("sampling/importance_sampling_ratio/max"),
            clip_fraction=each("clip_ratio/region_mean"),
            mean_tokens=progress.num_tokens / max(1, progress.num_completions),
            gave_up=progress.step < self._plan.updates,
            cpu_s=progress.cpu_s,
        )

    def _tell(self, cell: Cell) -> None:
        self._console.print(
            f"{cell.arm}, delay {cell.delay}, learning rate {cell.learning_rate:g}, seed {cell.seed}: accuracy "
            f"{cell.start:.2f} at first, {cell.best:.2f} at best, {cell.last:.2f} at last; "
            f"{typical(cell.behaviour_kl):.2g} nats a token from the sampler ({cell.cpu_s:.0f} s)",
            highlight=False,
        )


def typical(figures: Sequence[float]) -> float:
    """Median over the second half of a run's updates, at full staleness."""
    later = figures[len(figures) // 2 :]
    return statistics.median(later) if later else 0.0


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
