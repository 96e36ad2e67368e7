"""Converts graded groups to rows: one completion's tokens, its advantage, and its old log-probabilities.

A row's `behaviour` holds the sampler's log-probabilities, where known. The receiver's are this node's own before the
first step, computed only where needed. `old`, the denominator of the objective's ratio, is one of the two; claims of
other nodes are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from swarm.algorithms.advantages import weighted_advantages
from swarm.groups.credit import Credit, credited_turns
from swarm.groups.expectation import log_expectation, log_group_expectation, mean_logprob, variance
from swarm.lru import LruDict
from swarm.policy.batching import Insert, num_read
from swarm.policy.experts import Routing
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.types import (
    Completion,
    FinishReason,
    GradedGroup,
    Observation,
    RolloutGroup,
    Tools,
    VersionSpan,
    tools_of,
)

Encode = Callable[[Sequence[Completion], Tools | None], list[list[int]]]
"""See `Policy.encode_completions`."""
Tokens = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]]
"""Prompt, completion, inserts."""
RewardWeights = Mapping[str, Mapping[str, float]]
"""Weights of named rewards, by task and name."""
MAX_REMEMBERED = 1_024
"""Rewards of groups, with their advantages."""
MAX_REMEMBERED_TOKENS = 1 << 18
"""Tokens of texts that may be trained on soon."""


@dataclass(frozen=True, eq=False)
class Row:
    """One completion to train on, in this policy's tokens; a group is text that any policy can read."""

    prompt: Sequence[int]
    completion: Sequence[int]
    """The policy's own tokens; `inserts` are between them."""
    advantage: float
    """Advantage of all its tokens, unless `turn_advantages` has one for each turn."""
    behaviour: Sequence[float] | None
    """The sampler's log-probabilities; None when unknown."""
    _: KW_ONLY
    inserts: Sequence[Insert] = ()
    """The environment's tokens between the policy's turns."""
    turn_advantages: Sequence[float] = ()
    token_factors: Sequence[float] = ()
    """Factor of each token's advantage; empty: all 1."""
    added: Sequence[float] = ()
    """Added to each token's advantage after that; empty: nothing."""
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
        """Tokens of prompt, completion and inserts."""
        return len(self.prompt) + num_read(self)

    @cached_property
    def key(self) -> Tokens:
        """What a model of text reads."""
        inserts = tuple((insert.after, tuple(insert.ids)) for insert in self.inserts)
        return tuple(self.prompt), tuple(self.completion), inserts


class RowReader:
    """Converts groups to rows for one policy, without empty completions."""

    def __init__(
        self,
        policy: Policy,
        mix: MixSettings,
        advantages: Callable[[Tensor], Tensor],
        credit: Credit = "episode",
        whole_groups: bool = True,
        reward_weights: RewardWeights = MappingProxyType({}),
    ) -> None:
        """`advantages` maps rewards [P, G] to advantages [P, G]; `credit` as in the settings of updates.

        `whole_groups`: the objective needs the sampler's expectation over the group. `reward_weights`: of the tasks
        whose named rewards have advantages of their own.
        """
        self._credit = credit
        self._reward_weights = reward_weights
        self._whole_groups = whole_groups
        self._policy = policy
        self._mix = mix
        self._advantages = advantages
        self._advantages_of = LruDict[tuple[float, ...], list[float]](MAX_REMEMBERED)
        """Advantages by rewards: screening asks for those of a group several times, and many groups have the same."""
        self._encode = RememberedTokens(policy.encode_completions)

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """The advantages of a group's rewards, [G]."""
        key = tuple(rewards)
        if (found := self._advantages_of.get(key)) is None:
            found = self._advantages_of[key] = self._advantages(torch.tensor([key], dtype=torch.float64))[0].tolist()
        return list(found)

    def _of_own(self, group: GradedGroup) -> list[float]:
        """The advantages of an own group's completions, [G]. Others' groups are screened by those of their rewards, and
        learned from with the same."""
        weights = self._reward_weights.get(group.group.question.task, {})
        weights = {name: weight for name, weight in weights.items() if weight and name in group.parts}
        if not weights:
            return self.advantages(group.rewards)
        return weighted_advantages([self.advantages(group.parts[name]) for name in weights], list(weights.values()))

    def local(self, group: GradedGroup, version: int, claimed: bool = False) -> list[Row]:
        """Rows of a group that this policy sampled; `version` is its current version.

        `claimed`: a worker sampled it with this policy's snapshots.
        """
        prompt = self._policy.encode_prompt(group.prompt)
        expectation = _log_expectation(group.group) if self._whole_groups else math.nan
        rows = []
        advantages, each_turn = self._of_own(group), credited_turns(group, self.advantages, self._credit)
        for index, completion in enumerate(group.group.completions):
            if completion.token_ids:
                row = sampled_row(self._policy, prompt, group, index)
                row = replace(
                    row,
                    advantage=advantages[index],
                    turn_advantages=each_turn[index],
                    token_factors=group.factors[index] if group.factors else (),
                    added=group.added[index] if group.added else (),
                    claimed=claimed,
                    log_expectation=expectation,
                    lags=_lags(completion, group.group.policy.version, version),
                    routing=self._routing(row, completion),
                )
                rows.append(row)
        return rows

    def external(self, group: GradedGroup) -> list[Row]:
        """Rows of a group that another policy sampled."""
        believed = self._whole_groups and self._believes(group)
        expectation = _log_expectation(group.group) if believed else math.nan
        advantages, each_turn = self.advantages(group.rewards), credited_turns(group, self.advantages, self._credit)
        return [
            replace(
                row,
                advantage=self._of_others(advantages[index]),
                turn_advantages=[self._of_others(each) for each in each_turn[index]],
                token_factors=group.factors[index] if group.factors else (),
                added=[group.imitated] * len(row.completion) if group.imitated else (),
                wants_receiver=row.behaviour is None and self._mix.external_old_logprobs != "none",
                log_expectation=expectation,
            )
            for index, row in enumerate(self.unweighted(group))
            if row.completion
        ]

    def unweighted(self, group: GradedGroup) -> list[Row]:
        """One row per completion of a group that another policy sampled, in the tokens of an update; no advantage."""
        prompt = self._policy.encode_prompt(group.prompt)
        believed = self._believes(group)
        by_text = [
            index
            for index, completion in enumerate(group.group.completions)
            if not (believed and self.same_tokens(completion))
        ]
        texts = dict(zip(by_text, text_rows(self._policy, prompt, group, by_text, self._encode), strict=True))
        return [
            replace(
                texts[index] if index in texts else sampled_row(self._policy, prompt, group, index),
                external=True,
            )
            for index in range(len(group.group.completions))
        ]

    def _believes(self, group: GradedGroup) -> bool:
        """Whether the sampler's tokens and log-probabilities count."""
        same_tokenizer = group.group.policy.tokenizer_hash == self._policy.tokenizer_hash
        return same_tokenizer and self._mix.external_old_logprobs == "behaviour"

    def _of_others(self, advantage: float) -> float:
        return advantage * self._mix.external_negative_weight if advantage < 0 else advantage

    def fits(self, group: GradedGroup) -> bool:
        """Whether the policy has positions for the prompt with each completion, by its ids and by its text."""
        policy, completions = self._policy, group.group.completions
        prompt = policy.encode_prompt(group.prompt)
        room = policy.max_positions - len(prompt)
        # Count characters first: another peer's text is tokenized only if that is inconclusive.
        if any(max(len(c.token_ids), len(c.text) // policy.longest_token_chars) > room for c in completions):
            return False
        everything = range(len(completions))
        rows = [sampled_row(policy, prompt, group, index) for index in everything]
        rows += text_rows(policy, prompt, group, everything, self._encode)
        return all(row.length <= policy.max_positions for row in rows)

    def _routing(self, row: Row, completion: Completion) -> Routing | None:
        routers = self._policy.routers
        return routers.read(completion.routing, row.length - 1) if routers is not None else None

    def same_tokens(self, completion: Completion) -> bool:
        """Whether the ids of each turn decode to exactly its graded text, without hidden tokens."""
        return all(
            len(turn.token_ids) > 0
            and len(turn.logprobs) == len(turn.token_ids)
            and not self._policy.hides(turn.token_ids, turn.forced)
            and self._policy.said(turn.token_ids, turn.forced) == turn.text
            for turn in completion.by_turn()
        )


def sampled_row(policy: Policy, prompt: Sequence[int], group: GradedGroup, index: int) -> Row:
    """Completion `index` in the tokens that it was sampled as, with the sampler's log-probabilities; no advantage."""
    completion = group.group.completions[index]
    turns = [_Turn(turn.token_ids, turn.forced) for turn in completion.by_turn()]
    return replace(_row(policy, prompt, turns, group.observed(index)), behaviour=completion.logprobs)


def text_rows(
    policy: Policy, prompt: Sequence[int], group: GradedGroup, indices: Sequence[int], encode: Encode | None = None
) -> list[Row]:
    """These completions in this policy's tokens of their texts, tokenized in one call; no advantage."""
    turns = [group.group.completions[index].by_turn() for index in indices]
    tools = tools_of(group.prompt)
    encoded = iter((encode or policy.encode_completions)(list(chain.from_iterable(turns)), tools))
    return [
        _row(policy, prompt, [_Turn(next(encoded), policy.forced_at(turn)) for turn in each], group.observed(index))
        for index, each in zip(indices, turns, strict=True)
    ]


_Text = tuple[str, FinishReason, bool, Tools | None]
"""A text, how it ended, whether an engine ended its thought, and the tools of its question."""


class RememberedTokens:
    """Tokenizes each text once from its arrival to its update; the oldest are forgotten."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._known: dict[_Text, list[int]] = {}
        self._num_tokens = 0

    def __call__(self, completions: Sequence[Completion], tools: Tools | None = None) -> list[list[int]]:
        """See `Policy.encode_completions`."""
        keys: list[_Text] = [(each.text, each.finish_reason, each.forced is not None, tools) for each in completions]
        missing = {key: each for key, each in zip(keys, completions, strict=True) if key not in self._known}
        found = dict(zip(missing, self._encode(list(missing.values()), tools), strict=True))
        tokens = [found[key] if key in found else self._known[key] for key in keys]
        self._known.update(found)
        self._num_tokens += sum(map(len, found.values()))
        while self._num_tokens > MAX_REMEMBERED_TOKENS:
            self._num_tokens -= len(self._known.pop(next(iter(self._known))))
        return tokens


class _Turn(NamedTuple):
    ids: Sequence[int]
    """The policy's own."""
    forced: int | None
    """See `Completion`."""


def _row(policy: Policy, prompt: Sequence[int], turns: Sequence[_Turn], observations: Sequence[Observation]) -> Row:
    """The policy's turns, with the observations between them and inserted ends of thoughts as inserts."""
    inserts, num_tokens = [], 0
    for turn, observation in zip_longest(turns, observations[: len(turns) - 1]):
        if turn.forced is not None:
            inserts.append(Insert(num_tokens + turn.forced, policy.end_of_thought, within=True))
        num_tokens += len(turn.ids)
        if observation is not None:  # none follows the last turn
            inserts.append(Insert(num_tokens, policy.encode_observation(observation, turn.ids)))
    return Row(prompt, list(chain.from_iterable(turn.ids for turn in turns)), 0.0, None, inserts=inserts)


def _log_expectation(group: RolloutGroup) -> float:
    """The sampler's expectation: computed if every log-probability is known, else the record's claim, else NaN."""
    computed = log_group_expectation(group.completions)
    known = group.log_expectation if computed is None else computed
    return math.nan if known is None else known


def _lags(completion: Completion, sampled: int, now: int) -> list[tuple[int, int]]:
    """The lags of a completion's parts; `sampled` is the version of a completion without spans."""
    spans = completion.versions or (VersionSpan(sampled, len(completion.token_ids)),)
    return [(max(0, now - span.version), span.num_tokens) for span in spans]


LOG_MAX_CLAIMED_RATIO = math.log(10.0)
"""Bounds a sender's log-probabilities so that the importance ratio at the first step is between 1/10 and 10."""


def needs_receiver(row: Row, decoupled: bool, several_steps: bool, whole_groups: bool) -> bool:
    """Whether this node's own log-probabilities must be computed before the first step changes them.

    `decoupled`: the clip is against them. `whole_groups`: the objective needs the sampler's expectation over the group;
    they replace an unknown one and bound one that another peer claims.
    """
    if row.external and (row.behaviour is not None or whole_groups):
        return True
    return several_steps and (decoupled if row.behaviour is not None else row.wants_receiver)


def resolve_old_logprobs(
    rows: Sequence[Row], receiver: Sequence[Sequence[float] | None], decoupled: bool, whole_group: bool
) -> list[Row]:
    """The rows of one group with other nodes' claims bounded and `old` set.

    `receiver`: this node's own log-probabilities of each row's tokens before the first step, where computed; without
    them another node's claims are not bounded, which is right for rows that no step trains on.
    """
    resolved = [_resolved(row, own, decoupled) for row, own in zip(rows, receiver, strict=True)]
    if not whole_group:
        return resolved
    expectation = _expectation(resolved, receiver)
    # No record carries a variance: without the sampler's log-probabilities it is the receiver's.
    spread = variance([mean_logprob(row.old or ()) for row in resolved])
    return [replace(row, log_expectation=expectation, variance=spread) for row in resolved]


def _resolved(row: Row, own: Sequence[float] | None, decoupled: bool) -> Row:
    behaviour = row.behaviour
    if row.external and behaviour is not None and own is not None:
        behaviour = _bounded(behaviour, own)
    return replace(row, behaviour=behaviour, old=own if decoupled or behaviour is None else behaviour)


def _expectation(rows: Sequence[Row], receiver: Sequence[Sequence[float] | None]) -> float:
    """The sampler's expectation over the group, computed before the batch is split."""
    known = rows[0].log_expectation
    if math.isnan(known):
        return log_expectation([mean_logprob(row.old or ()) for row in rows])
    if rows[0].external:
        # As for single tokens: a low claim would inflate the group's weights.
        return max(known, log_expectation([mean_logprob(own or ()) for own in receiver]) - LOG_MAX_CLAIMED_RATIO)
    return known


def _bounded(claims: Sequence[float], own: Sequence[float]) -> list[float]:
    """Without these bounds, a bad token would dominate the gradient: with a claim of near-zero probability in the
    objective, whose clip is one-sided, and with one of near-certainty in `update.behaviour_kl`."""
    bound = LOG_MAX_CLAIMED_RATIO
    return [min(max(claim, mine - bound), mine + bound) for claim, mine in zip(claims, own, strict=True)]
