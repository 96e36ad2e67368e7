"""From graded groups to rows: the tokens one completion is trained on, its advantage and where they were sampled."""

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
    """The sampler's log-probabilities; None where they are not known."""
    _: KW_ONLY
    external: bool = False
    """Sampled by another node: `behaviour` and `log_expectation` are a stranger's word."""
    claimed: bool = False
    """Sampled by a follower with this policy's snapshots: `behaviour` is its word, bounded when the loss is taken."""
    wants_receiver: bool = False
    """Without `behaviour`, `old` becomes this node's log-probabilities at batch time if more than one step is taken."""
    log_expectation: float = math.nan
    """Log of the whole group's expectation of the sampler, for objectives that need it; NaN where it is not known."""
    lags: Sequence[tuple[int, int]] = ()
    """(updates since sampled, number of tokens) of its parts; none for another node, which counts its own updates."""
    routing: Routing | None = None
    """The experts that its tokens met at generation, where they are to meet them again."""
    reference: Sequence[float] | None = None
    """The reference policy's log-probabilities, where there is one."""
    old: Sequence[float] | None = None
    """What the objective's ratio is against; None stands for the current ones: the ratio is 1 at that step."""

    @property
    def length(self) -> int:
        """Tokens, prompt and completion."""
        return len(self.prompt) + len(self.completion)


class RowReader:
    """Turns groups into rows for one policy; completions without tokens are left out."""

    def __init__(self, policy: Policy, mix: MixSettings, advantages: Callable[[Tensor], Tensor]) -> None:
        """`advantages` maps rewards [P, G] to advantages [P, G]."""
        self._policy = policy
        self._mix = mix
        self._advantages = advantages

    def local(self, group: GradedGroup, version: int, claimed: bool = False) -> list[Row]:
        """Rows of a group this policy sampled; `version` is how many updates it has had by now.

        `claimed`: a follower sampled it with this policy's snapshots.
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
            for completion, advantage in zip(group.group.completions, self._advantages_of(group.rewards), strict=True)
            if completion.token_ids
        ]

    def external(self, group: GradedGroup) -> list[Row]:
        """Rows of a group that another policy sampled."""
        prompt = self._policy.encode_prompt(group.prompt)
        choice = self._mix.external_old_logprobs
        same_tokenizer = group.group.policy.tokenizer_hash == self._policy.tokenizer_hash
        believed = choice == "behaviour" and same_tokenizer
        expectation = _log_expectation(group.group) if believed else math.nan
        rows = []
        for completion, advantage in zip(group.group.completions, self._advantages_of(group.rewards), strict=True):
            if advantage < 0:
                advantage *= self._mix.external_negative_weight
            if believed and self.same_tokens(completion):
                ids, claims = list(completion.token_ids), list(completion.logprobs)
                rows.append(Row(prompt, ids, advantage, claims, external=True, log_expectation=expectation))
            elif ids := self._policy.encode_completion(completion):
                wants = choice != "none"
                rows.append(
                    Row(prompt, ids, advantage, None, external=True, wants_receiver=wants, log_expectation=expectation)
                )
        return rows

    def texts(self, group: GradedGroup) -> list[Row]:
        """A row for every completion, read as text, to be scored and not trained on."""
        prompt = self._policy.encode_prompt(group.prompt)
        completions = group.group.completions
        return [Row(prompt, self._policy.encode_completion(c), 0.0, None, external=True) for c in completions]

    def fits(self, group: GradedGroup) -> bool:
        """Whether the policy has positions for the prompt with each completion, whichever way its ids are read."""
        room = self._policy.max_positions - len(self._policy.encode_prompt(group.prompt))
        completions = group.group.completions
        # Counting takes no time: a stranger's text is read only where that does not tell.
        if any(max(len(c.token_ids), len(c.text) // self._policy.longest_token_chars) > room for c in completions):
            return False
        return all(len(self._policy.encode_completion(completion)) <= room for completion in completions)

    def _advantages_of(self, rewards: Sequence[float]) -> list[float]:
        return [float(value) for value in self._advantages(torch.tensor([rewards], dtype=torch.float64))[0]]

    def _routing(self, prompt: Sequence[int], completion: Completion) -> Routing | None:
        num_fed = len(prompt) + len(completion.token_ids) - 1
        return self._policy.routers.read(completion.routing, num_fed) if self._policy.routers is not None else None

    def same_tokens(self, completion: Completion) -> bool:
        """Whether ids of an equal tokenizer mean the very text that was graded, and nothing besides."""
        ids = list(completion.token_ids)
        return (
            len(ids) > 0
            and len(completion.logprobs) == len(ids)
            and not self._policy.hides(ids)
            and self._policy.decode(ids) == completion.text
        )


def _log_expectation(group: RolloutGroup) -> float:
    """Its sampler's expectation: computed where every log-probability is there, else as the record says, else NaN."""
    computed = log_group_expectation(group.completions)
    known = group.log_expectation if computed is None else computed
    return math.nan if known is None else known


def _lags(completion: Completion, sampled: int, now: int) -> list[tuple[int, int]]:
    """Of a completion begun at version `sampled`; new weights may have come while it was sampled."""
    spans = completion.versions or (VersionSpan(sampled, len(completion.token_ids)),)
    return [(max(0, now - span.version), span.num_tokens) for span in spans]
