"""The training behind one cell. An interrupted run continues from its last evaluation, with the same result."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from benchmarks.staleness.delays import lags
from benchmarks.staleness.sampler import Sampler
from benchmarks.staleness.subject import Subject
from swarm.errors import NonFiniteUpdates
from swarm.groups.credit import has_signal
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import GradedGroup


@dataclass(frozen=True)
class Plan:
    """The size of a run."""

    updates: int = 128
    window_updates: int = 64
    """Updates in the window of drawn delays; the paper's bound."""
    questions: int = 4
    group_size: int = 8
    evaluate_every: int = 16
    """Updates between evaluations on held-out questions, which select the best policy."""
    num_evaluation: int = 128
    num_final: int = 512
    """Other held-out questions for the first, the best and the last policy, to remove selection bias."""


class Progress(msgspec.Struct):
    """What a run has found so far."""

    step: int = 0
    """Updates done."""
    version: int = 0
    """The policy's; an update without signal does not increase it."""
    start: float | None = None
    """Accuracy of the initial policy on the final questions."""
    best_step: int = 0
    """Updates done when the policy was best; 0 before the first evaluation."""
    waiting: dict[int, list[GradedGroup]] = {}
    """Sampled batches by the update that uses them."""
    accuracies: list[float] = []
    """Held-out, every `evaluate_every` updates, the first before any."""
    rewards: list[float] = []
    """Mean reward of each update's rollouts."""
    figures: list[dict[str, float]] = []
    """Of each update that took a step."""
    num_tokens: int = 0
    num_completions: int = 0
    cpu_s: float = 0.0


class Run:
    """One policy, trained by one method on rollouts of one age."""

    def __init__(self, subject: Subject, plan: Plan, settings: UpdateSettings, delay: str, seed: int) -> None:
        """A run from the beginning; `resume` continues one."""
        self.progress = Progress()
        self.lags = lags(delay, plan.updates, plan.window_updates, seed)
        self._plan = plan
        self._policy = subject.load()
        self._updater = PolicyUpdater(self._policy, settings, MixSettings(), subject.sampling.temperature)
        self._sampler = Sampler(self._policy, subject, plan.questions, plan.group_size, seed)
        self._best = self._weights()
        self._due: dict[int, list[int]] = defaultdict(list)
        """Batches that each version samples, by the updates before it."""
        for step, lag in enumerate(self.lags):
            self._due[step - lag].append(step)

    def train(self, start: float | None, file: Path) -> tuple[float, float]:
        """Train to the end; returns the accuracy of the best and of the last policy on the final questions.

        `start` is that of the initial policy, if known; `file` keeps the state of an unfinished run.
        """
        plan, progress, began = self._plan, self.progress, time.process_time()
        if not progress.accuracies:
            progress.start = self._final_accuracy() if start is None else start
            progress.accuracies.append(self._sampler.accuracy(0, plan.num_evaluation))
        while progress.step < plan.updates:
            try:
                self._update()
            except NonFiniteUpdates:
                break
            if progress.step % plan.evaluate_every == 0:
                self._evaluate()
                progress.cpu_s += time.process_time() - began
                began = time.process_time()
                self._save(file)
        best = last = self._final_accuracy()
        if progress.best_step not in (0, progress.step):
            self._restore(self._best)
            best = self._final_accuracy()
        progress.cpu_s += time.process_time() - began
        return best, last

    def resume(self, file: Path) -> None:
        """Continue from the state in `file`."""
        state = torch.load(file, weights_only=True)
        self.progress = msgspec.json.decode(state["progress"], type=Progress)
        self._restore(state["weights"])
        self._best = state["best"]
        self._updater.optimizer.load_state_dict(state["optimizer"])
        self._updater.version = self.progress.version

    def _save(self, file: Path) -> None:
        self.progress.version = self._updater.version
        state = {
            "progress": msgspec.json.encode(self.progress).decode(),
            "weights": self._weights(),
            "best": self._best,
            "optimizer": self._updater.optimizer.state_dict(),
        }
        draft = file.with_name(f"{file.name}.partial")
        draft.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, draft)
        draft.rename(file)

    def _update(self) -> None:
        """Sample with the policy as it is, then train on the batch that is due. Raises `NonFiniteUpdates`."""
        progress = self.progress
        for batch, groups in self._sampler.sample(self._due[progress.step]).items():
            progress.waiting[batch] = groups
            completions = [completion for group in groups for completion in group.group.completions]
            progress.num_completions += len(completions)
            progress.num_tokens += sum(len(completion.token_ids) for completion in completions)
        groups = progress.waiting.pop(progress.step)
        progress.rewards.append(statistics.fmean(reward for group in groups for reward in group.rewards))
        report = self._updater.update([group for group in groups if has_signal(group.rewards)], [])
        if not report.skipped:
            progress.figures.append(report.figures)
        progress.step += 1

    def _evaluate(self) -> None:
        progress = self.progress
        accuracy = self._sampler.accuracy(progress.step, self._plan.num_evaluation)
        if len(progress.accuracies) == 1 or accuracy > max(progress.accuracies[1:]):
            self._best, progress.best_step = self._weights(), progress.step
        progress.accuracies.append(accuracy)

    def _final_accuracy(self) -> float:
        return self._sampler.accuracy(self._plan.updates + 1, self._plan.num_final)

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._policy.weights.items()}

    @torch.no_grad()
    def _restore(self, weights: dict[str, Tensor]) -> None:
        with self._policy.gate.change():
            for name, value in self._policy.weights.items():
                value.copy_(weights[name])
