"""Policy-gradient updates on whole groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swarm.algorithms.advantages import ADVANTAGES
from swarm.algorithms.diagnostics import ess
from swarm.algorithms.kl import cppo_kl
from swarm.algorithms.losses import LOSSES, Groups, LossConfig
from swarm.algorithms.losses.base import log_ratio
from swarm.algorithms.losses.gepo import log_group_expectation
from swarm.errors import NonFiniteUpdates
from swarm.mixing import MixSettings
from swarm.policy.config import UpdateSettings
from swarm.policy.loading import Policy
from swarm.policy.logprobs import completion_logprobs, pad
from swarm.types import Completion, GradedGroup, UpdateReport

LOG_MAX_CLAIMED_RATIO = math.log(10.0)
"""A sender's log-probabilities are believed as far as the importance ratio at the first step stays below 10."""


@dataclass
class _Row:
    """One completion to train on."""

    prompt: list[int]
    completion: list[int]
    advantage: float
    old: list[float] | None
    """Behaviour log-probabilities; None stands for the current ones: the ratio is 1 at that step."""
    wants_receiver: bool = False
    """`old` becomes this node's log-probabilities at batch time if more than one step is taken."""
    log_expectation: float = math.nan
    """Log of the group's expectation of the behaviour policy, for objectives that need the whole group."""
    claimed: bool = False
    """`old` is a stranger's word: it may not lift the first ratio above `LOG_MAX_CLAIMED_RATIO`."""

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.completion)


class PolicyUpdater:
    """AdamW on one policy; what an update does is independent of how it is cut into micro-batches."""

    def __init__(self, policy: Policy, settings: UpdateSettings, mix: MixSettings, temperature: float) -> None:
        """Train `policy` with its log-probabilities taken at the sampling `temperature`."""
        self.nonfinite_in_a_row = 0
        self._policy = policy
        self._settings = settings
        self._mix = mix
        self._temperature = temperature
        self._loss = LOSSES[settings.objective]
        self._advantages = ADVANTAGES[settings.advantage]
        self._loss_config = LossConfig(
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            max_completion_tokens=settings.max_completion_tokens,
            ratio_cap=settings.ratio_cap,
            group_epsilon=settings.group_epsilon,
        )
        self.optimizer = torch.optim.AdamW(
            policy.model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )

    @property
    def version(self) -> int:
        """Updates applied to the policy."""
        return self._policy.version

    @version.setter
    def version(self, version: int) -> None:
        self._policy.version = version

    def fits(self, group: GradedGroup) -> bool:
        """Whether the model has positions for the prompt with each completion."""
        completions = group.group.completions
        longest = max(max(len(c.token_ids), len(self._policy.encode_completion(c))) for c in completions)
        return len(self._policy.encode_prompt(group.prompt)) + longest <= self._policy.max_positions

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """One update on I local and J external groups. Raises `NonFiniteUpdates` after too many bad ones in a row."""
        groups = [self._local_rows(group) for group in local] + [self._external_rows(group) for group in external]
        groups = [rows for rows in groups if rows]
        rows = [row for group in groups for row in group]
        if not rows:
            return UpdateReport(0.0, 0.0, 0, 0, 0.0, skipped=True)
        whole_groups = self._settings.objective == "gepo"
        if whole_groups or self._settings.epochs * self._settings.minibatches > 1:
            self._freeze_receiver_logprobs(
                [row for row in rows if row.old is None and (row.wants_receiver or whole_groups)]
            )
        self._bound_claims([row for row in rows if row.claimed])
        if whole_groups:
            _set_group_expectations(groups)
        self._warm_up()
        reports = [
            self._step([row for group in part for row in group])
            for _ in range(self._settings.epochs)
            for part in _split(groups, self._settings.minibatches)
        ]
        self.version += any(not report.skipped for report in reports)
        return _summarise(reports)

    def _local_rows(self, group: GradedGroup) -> list[_Row]:
        prompt = self._policy.encode_prompt(group.prompt)
        return [
            _Row(prompt, list(completion.token_ids), advantage, list(completion.logprobs))
            for completion, advantage in zip(group.group.completions, self._advantages_of(group.rewards), strict=True)
            if completion.token_ids
        ]

    def _external_rows(self, group: GradedGroup) -> list[_Row]:
        prompt = self._policy.encode_prompt(group.prompt)
        choice = self._mix.external_old_logprobs
        rows = []
        for completion, advantage in zip(group.group.completions, self._advantages_of(group.rewards), strict=True):
            if advantage < 0:
                advantage *= self._mix.external_negative_weight
            if choice == "behaviour" and self._same_tokens(group, completion):
                rows.append(
                    _Row(prompt, list(completion.token_ids), advantage, list(completion.logprobs), claimed=True)
                )
            elif ids := self._policy.encode_completion(completion):
                rows.append(_Row(prompt, ids, advantage, None, wants_receiver=choice != "none"))
        return rows

    def _advantages_of(self, rewards: Sequence[float]) -> list[float]:
        return [float(value) for value in self._advantages(torch.tensor([rewards], dtype=torch.float64))[0]]

    def _same_tokens(self, group: GradedGroup, completion: Completion) -> bool:
        """Whether the sender's ids mean, to this tokenizer, the very text that was graded, and nothing besides."""
        ids = list(completion.token_ids)
        text_ids = ids[:-1] if ids and ids[-1] in self._policy.stop_ids else ids
        return (
            group.group.policy.tokenizer_hash == self._policy.tokenizer_hash
            and len(ids) > 0
            and len(completion.logprobs) == len(ids)
            and max(ids) < len(self._policy.tokenizer)
            and not set(text_ids) & set(self._policy.tokenizer.all_special_ids)
            and self._policy.decode(text_ids) == completion.text
        )

    @torch.no_grad()
    def _bound_claims(self, rows: list[_Row]) -> None:
        """A sampler that claims near-zero probability for a bad token would own the gradient: the clip is one-sided."""
        for micro in self._micro_batches(rows):
            for row, own in zip(micro, self._logprobs(micro).tolist(), strict=True):
                claims = row.old or []
                row.old = [max(claim, mine - LOG_MAX_CLAIMED_RATIO) for claim, mine in zip(claims, own, strict=False)]

    @torch.no_grad()
    def _freeze_receiver_logprobs(self, rows: list[_Row]) -> None:
        for micro in self._micro_batches(rows):
            logprobs = self._logprobs(micro)
            for row, values in zip(micro, logprobs, strict=True):
                row.old = values[: len(row.completion)].tolist()

    def _step(self, rows: list[_Row]) -> UpdateReport:
        """One optimizer step, gradients accumulated over micro-batches."""
        self.optimizer.zero_grad(set_to_none=True)
        totals = _Totals(num_sequences=len(rows), num_tokens=sum(len(row.completion) for row in rows))
        for micro in self._micro_batches(rows):
            self._accumulate(micro, totals)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._policy.model.parameters(), self._settings.max_grad_norm))
        skipped = not (math.isfinite(totals.loss) and math.isfinite(grad_norm))
        if skipped:
            self._count_nonfinite()
        else:
            self.nonfinite_in_a_row = 0
            with self._policy.gate.change():
                self.optimizer.step()
        return totals.report(grad_norm, skipped)

    def _accumulate(self, rows: list[_Row], totals: _Totals) -> None:
        """Add one micro-batch's share of the loss and its gradient: the sum over all is that of the whole batch."""
        new = self._logprobs(rows)  # [B, T]
        old, mask = _pad_floats([row.old for row in rows], [len(row.completion) for row in rows], new)
        weights = torch.tensor([row.advantage for row in rows], device=new.device, dtype=new.dtype)  # [B]
        expectations = torch.tensor([row.log_expectation for row in rows], device=new.device, dtype=new.dtype)
        groups = Groups(torch.zeros(len(rows), device=new.device, dtype=torch.long), expectations)
        output = self._loss(new, old, weights, mask, self._loss_config, groups)
        sequences_share = len(rows) / totals.num_sequences
        share = output.denominator / totals.num_tokens if output.per_token else sequences_share
        loss = output.loss * share
        if self._settings.behaviour_kl > 0:
            loss = loss + self._settings.behaviour_kl * sequences_share * cppo_kl(new, old, mask)
        loss.backward()  # type: ignore[no-untyped-call]
        totals.add(loss, output.metrics["clipped"], log_ratio(new.detach(), old).exp(), mask)

    def _logprobs(self, rows: list[_Row]) -> Tensor:
        return completion_logprobs(
            self._policy, [row.prompt for row in rows], [row.completion for row in rows], self._temperature
        )

    def _micro_batches(self, rows: list[_Row]) -> Iterator[list[_Row]]:
        """Rows of similar length together, each batch within the token budget once padded, at least one row."""
        micro: list[_Row] = []
        for row in sorted(rows, key=lambda row: row.length):
            if micro and (len(micro) + 1) * row.length > self._settings.micro_batch_tokens:
                yield micro
                micro = []
            micro.append(row)
        if micro:
            yield micro

    def _warm_up(self) -> None:
        progress = (self.version + 1) / max(1, self._settings.warmup_updates)
        for group in self.optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * min(1.0, progress)

    def _count_nonfinite(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.nonfinite_in_a_row += 1
        if self.nonfinite_in_a_row >= self._settings.max_nonfinite_steps:
            raise NonFiniteUpdates(
                f"{self.nonfinite_in_a_row} steps in a row had a loss or gradient that was not finite; lower "
                f"update.learning_rate (now {self._settings.learning_rate:g}) and resume from the last checkpoint"
            )


@dataclass
class _Totals:
    """Sums over the micro-batches of one step."""

    num_sequences: int
    num_tokens: int
    loss: float = 0.0
    clipped: float = 0.0
    weights: list[Tensor] = field(default_factory=list)
    """Importance weights of the unmasked tokens."""

    def add(self, loss: Tensor, clipped: Tensor, ratio: Tensor, mask: Tensor) -> None:
        """Add a micro-batch."""
        self.loss += float(loss.detach())
        self.clipped += float(clipped)
        self.weights.append(ratio[mask.bool()])

    def report(self, grad_norm: float, skipped: bool) -> UpdateReport:
        """The step's figures."""
        weights = torch.cat(self.weights)
        clip_fraction = self.clipped / max(1, self.num_tokens)
        part = float(ess(weights, torch.ones_like(weights)))
        return UpdateReport(self.loss, grad_norm, self.num_sequences, self.num_tokens, clip_fraction, skipped, part)


def _set_group_expectations(groups: list[list[_Row]]) -> None:
    for rows in groups:
        log_q = torch.tensor([sum(row.old or []) / len(row.completion) for row in rows], dtype=torch.float64)
        expectation = float(log_group_expectation(log_q, torch.zeros(len(rows)))[0])
        for row in rows:
            row.log_expectation = expectation


def _pad_floats(rows: list[list[float] | None], lengths: list[int], new: Tensor) -> tuple[Tensor, Tensor]:
    """Old log-probabilities and mask, both [B, T] like `new`; a row of None is the current log-probabilities."""
    _, mask = pad([[0] * length for length in lengths], 0)
    old = new.detach().clone()
    for i, row in enumerate(rows):
        if row is not None:
            old[i, : len(row)] = torch.tensor(row, device=new.device)
    return old, mask.to(new.device)


def _split(groups: list[list[_Row]], parts: int) -> list[list[list[_Row]]]:
    """Groups dealt into `parts` minibatches; fewer when there are fewer groups."""
    parts = min(parts, len(groups))
    return [groups[i::parts] for i in range(parts)]


def _summarise(reports: list[UpdateReport]) -> UpdateReport:
    """The steps of one update as one report: means over steps, totals over sequences and tokens."""
    taken = [report for report in reports if not report.skipped]
    tokens = sum(report.num_tokens for report in taken)
    return UpdateReport(
        loss=sum(report.loss for report in taken) / max(1, len(taken)),
        grad_norm=sum(report.grad_norm for report in taken) / max(1, len(taken)),
        num_sequences=sum(report.num_sequences for report in taken),
        num_tokens=tokens,
        clip_fraction=sum(report.clip_fraction * report.num_tokens for report in taken) / max(1, tokens),
        skipped=not taken,
        ess=sum(report.ess * report.num_tokens for report in taken) / max(1, tokens),
    )
