"""Converts graded groups to rows: one completion's tokens, its advantage, and their sampler's log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from swarm.groups.expectation import log_group_expectation
from swarm.policy.loading import Policy
from swarm.policy.routing import Routing
from swarm.sapo.mixing import MixSettings
from swarm.types import Completion, GradedGroup, RolloutGroup, VersionSpan


@dataclass(frozen=True, eq=False)
class Row:
    """One completion to train on, in this policy's tokens; a group is text that any policy can read."""

    prompt: Sequence[int]
    completion: Sequence[int]
    advantage: float
    behaviour: Sequence[float] | None
    """The sampler's log-probabilities; None when unknown."""
    _: KW_ONLY
    external: bool = False
    """Sampled by another node: `behaviour` and `log_expectation` are unverified claims."""
    claimed: bool = False
    """Sampled by a worker with this policy's snapshots: `behaviour` is its claim, bounded in the loss."""
    wants_receiver: bool = False
    """Without `behaviour`, and with more than one step, `old` becomes this node's log-probabilities at batch time."""
    log_expectation: float = math.nan
    """Log of the sampler's expectation over the whole group, for objectives that need it; NaN when unknown."""
    variance: float = math.nan
    """Variance of the sampler's probabilities in the whole group, likewise."""
    lags: Sequence[tuple[int, int]] = ()
    """(updates since sampling, number of tokens) of its parts; empty for another node, which counts its own updates."""
    routing: Routing | None = None
    """The experts that its tokens were routed to at generation, when they are replayed."""
    reference: Sequence[float] | None = None
    """The reference policy's log-probabilities, if there is one."""
    old: Sequence[float] | None = None
    """Old log-probabilities in the objective's ratio; None means the current ones: the ratio is 1 at that step."""

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt) + len(self.completion)


class RowReader:
    """Converts groups to rows for one policy, without empty completions."""

    def __init__(self, policy: Policy, mix: MixSettings, advantages: Callable[[Tensor], Tensor]) -> None:
        """`advantages` maps rewards [P, G] to advantages [P, G]."""
        self._policy = policy
        self._mix = mix
        self._advantages = advantages

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """The advantages of a group's rewards, [G]."""
        return [float(value) for value in self._advantages(torch.tensor([rewards], dtype=torch.float64))[0]]

    def local(self, group: GradedGroup, version: int, claimed: bool = False) -> list[Row]:
        """Rows of a group that this policy sampled; `version` is its current version.

        `claimed`: a worker sampled it with this policy's snapshots.
        """
        prompt = self._policy.encode_prompt(group.prompt)
        expectation = _log_expectation(group.group)
        return [
            Row(
                prompt,
                completion.token_ids,
                advantage,
                completion.logprobs,
                claimed=claimed,
                log_expectation=expectation,
                lags=_lags(completion, group.group.policy.version, version),
                routing=self._routing(prompt, completion),
            )
            for completion, advantage in zip(group.group.completions, self.advantages(group.rewards), strict=True)
            if completion.token_ids
        ]

    def external(self, group: GradedGroup) -> list[Row]:
        """Rows of a group that another policy sampled."""
        prompt = self._policy.encode_prompt(group.prompt)
        choice = self._mix.external_old_logprobs
        same_tokenizer = group.group.policy.tokenizer_hash == self._policy.tokenizer_hash
        believed = choice == "behaviour" and same_tokenizer
        expectation = _log_expectation(group.group) if believed else math.nan
        completions = group.group.completions
        shared = [believed and self.same_tokens(completion) for completion in completions]
        others = [completion for completion, same in zip(completions, shared, strict=True) if not same]
        encoded = iter(self._policy.encode_completions(others))
        rows = []
        for completion, same, advantage in zip(completions, shared, self.advantages(group.rewards), strict=True):
            if advantage < 0:
                advantage *= self._mix.external_negative_weight
            if same:
                ids, claims = list(completion.token_ids), list(completion.logprobs)
                rows.append(Row(prompt, ids, advantage, claims, external=True, log_expectation=expectation))
            elif ids := next(encoded):
                wants = choice != "none"
                rows.append(
                    Row(prompt, ids, advantage, None, external=True, wants_receiver=wants, log_expectation=expectation)
                )
        return rows

    def texts(self, group: GradedGroup) -> list[Row]:
        """One row per completion, tokenized from its text, for scoring only."""
        prompt = self._policy.encode_prompt(group.prompt)
        encoded = self._policy.encode_completions(group.group.completions)
        return [Row(prompt, ids, 0.0, None, external=True) for ids in encoded]

    def fits(self, group: GradedGroup) -> bool:
        """Whether the policy has positions for the prompt with each completion, by its ids and by its text."""
        room = self._policy.max_positions - len(self._policy.encode_prompt(group.prompt))
        completions = group.group.completions
        # Count characters first: foreign text is tokenized only if that is inconclusive.
        if any(max(len(c.token_ids), len(c.text) // self._policy.longest_token_chars) > room for c in completions):
            return False
        return all(len(ids) <= room for ids in self._policy.encode_completions(completions))

    def _routing(self, prompt: Sequence[int], completion: Completion) -> Routing | None:
        num_fed = len(prompt) + len(completion.token_ids) - 1
        return self._policy.routers.read(completion.routing, num_fed) if self._policy.routers is not None else None

    def same_tokens(self, completion: Completion) -> bool:
        """Whether the ids decode to exactly the graded text, without hidden tokens."""
        ids = list(completion.token_ids)
        return (
            len(ids) > 0
            and len(completion.logprobs) == len(ids)
            and not self._policy.hides(ids)
            and self._policy.decode(ids) == completion.text
        )


def _log_expectation(group: RolloutGroup) -> float:
    """The sampler's expectation: computed if every log-probability is known, else the record's claim, else NaN."""
    computed = log_group_expectation(group.completions)
    known = group.log_expectation if computed is None else computed
    return math.nan if known is None else known


def _lags(completion: Completion, sampled: int, now: int) -> list[tuple[int, int]]:
    """The lags of a completion's parts; `sampled` is the version of a completion without spans."""
    spans = completion.versions or (VersionSpan(sampled, len(completion.token_ids)),)
    return [(max(0, now - span.version), span.num_tokens) for span in spans]
