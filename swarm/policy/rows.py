"""From graded groups to rows: the tokens one completion is trained on, its advantage and where they were sampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarm.mixing import MixSettings
from swarm.policy.loading import Policy
from swarm.types import Completion, GradedGroup


@dataclass
class Row:
    """One completion to train on."""

    prompt: Sequence[int]
    completion: Sequence[int]
    advantage: float
    old: Sequence[float] | None
    """Behaviour log-probabilities; None stands for the current ones: the ratio is 1 at that step."""
    wants_receiver: bool = False
    """`old` becomes this node's log-probabilities at batch time if more than one step is taken."""
    log_expectation: float = math.nan
    """Log of the group's expectation of the behaviour policy, for objectives that need the whole group."""
    claimed: bool = False
    """`old` is a stranger's word: it may not lift the first ratio far above 1."""

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

    def local(self, group: GradedGroup) -> list[Row]:
        """Rows of a group this policy sampled."""
        prompt = self._policy.encode_prompt(group.prompt)
        return [
            Row(prompt, completion.token_ids, advantage, completion.logprobs)
            for completion, advantage in zip(group.group.completions, self._advantages_of(group.rewards), strict=True)
            if completion.token_ids
        ]

    def external(self, group: GradedGroup) -> list[Row]:
        """Rows of a group that another policy sampled."""
        prompt = self._policy.encode_prompt(group.prompt)
        choice = self._mix.external_old_logprobs
        rows = []
        for completion, advantage in zip(group.group.completions, self._advantages_of(group.rewards), strict=True):
            if advantage < 0:
                advantage *= self._mix.external_negative_weight
            if choice == "behaviour" and self._same_tokens(group, completion):
                rows.append(Row(prompt, list(completion.token_ids), advantage, list(completion.logprobs), claimed=True))
            elif ids := self._policy.encode_completion(completion):
                rows.append(Row(prompt, ids, advantage, None, wants_receiver=choice != "none"))
        return rows

    def longest(self, group: GradedGroup) -> int:
        """Tokens of the prompt with the longest completion, whichever way its ids are read."""
        completions = group.group.completions
        longest = max(max(len(c.token_ids), len(self._policy.encode_completion(c))) for c in completions)
        return len(self._policy.encode_prompt(group.prompt)) + longest

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
