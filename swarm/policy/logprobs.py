"""Log-probabilities of completions under a policy, with or without gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from swarm.errors import PolicyError
from swarm.policy.attention import sent
from swarm.policy.batching import Batching, Insert, Layout, Packed, Padded, Tokens
from swarm.policy.config import BatchingName
from swarm.policy.experts import Routing
from swarm.policy.loading import Policy
from swarm.policy.probing import TOLERANCE, small_copy
from swarm.policy.scoring import HALF, OutputHead
from swarm.types import Sampling


@dataclass(frozen=True)
class Scores:
    """A policy's scores of R completions of at most T tokens, all [R, T]; 0 beyond a row's end.

    Losses, screening and audits all start from it.
    """

    logprobs: Tensor
    entropies: Tensor
    """Entropy of each token's distribution, in nats; without gradient."""
    mask: Tensor
    """True on a row's tokens."""

    def repeated(self, counts: Sequence[int]) -> Scores:
        """Row i `counts[i]` times, one after another; each adds to its gradient."""
        rows = sent(torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)), self.mask.device)
        return Scores(*(values.index_select(0, rows) for values in (self.logprobs, self.entropies, self.mask)))


class Routed(Tokens, Protocol):
    """Tokens with an optional record of their experts."""

    @property
    def routing(self) -> Routing | None:
        """Experts of prompt and completion except the last token; None when unknown."""


R = TypeVar("R", bound=Routed)

HALF_TOLERANCE = 0.05
"""`TOLERANCE` in half precision."""

Given = Callable[[Tensor], Mapping[str, object]]
"""A model's inputs for ids [B, L]."""


class Scorer:
    """Log-probabilities at the sampling temperature; the softmax is at least float32."""

    def __init__(self, policy: Policy, temperature: float, batching: Batching, filters: Sampling | None = None) -> None:
        """Scores under the whole distribution, or under what `filters` leave of it.

        Raises `PolicyError` for a model without a known output head.
        """
        self._policy = policy
        self._temperature = temperature
        self._batching = batching
        self._filters = filters
        self._head = policy.ranks.forward(lambda: OutputHead(policy.model))

    def __call__(self, rows: Sequence[Routed]) -> Scores:
        """One forward pass; the output head runs only on positions that predict completion tokens.

        The batching's `attention` must be active, in training until the backward pass ends.
        """
        (logprobs, entropies), mask = self._read(rows, self._head.logprobs)
        return Scores(logprobs, entropies, mask)

    def spreads(self, rows: Sequence[Routed], powers: Sequence[float]) -> tuple[tuple[Tensor, ...], Tensor]:
        """Log-probabilities and, for each of the `powers`, log sum p^a of each token's distribution, all [R, T], as
        `OutputHead.spreads`; and the mask [R, T]. One forward pass without gradient."""
        with torch.no_grad():
            return self._read(rows, partial(self._head.spreads, powers=powers))

    def _read(
        self, rows: Sequence[Routed], read: Callable[..., tuple[Tensor, ...]]
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """The output head's inputs at the completions' tokens, each [R, T], and the mask [R, T]."""
        layout = self._batching.lay_out(rows)
        device = self._policy.device
        if self._policy.routers is not None:
            self._policy.routers.replay([row.routing for row in rows], layout.pieces, device)
        with self._policy.compute():
            flat = self._policy.ranks.forward(
                lambda: read(
                    predicting_states(self._head, layout, device, self._policy.inputs),
                    sent(layout.targets, device),
                    self._temperature,
                    self._policy.compute_dtype,
                    self._filters,
                )
            )
        width = int(layout.lengths.max())
        mask = torch.arange(width) < layout.lengths[:, None]  # [R, T]
        indices = sent(mask.flatten().nonzero()[:, 0], device)
        found = (values.new_zeros(mask.numel()).index_copy(0, indices, values).view(mask.shape) for values in flat)
        return tuple(found), sent(mask, device)


def predicting_states(head: OutputHead, layout: Layout, device: torch.device, given: Given | None = None) -> Tensor:
    """Hidden states [N, H] from which the N completion tokens are predicted; `given` as `Policy.inputs`."""
    ids = sent(layout.ids, device)
    inputs: dict[str, object] = {"input_ids": ids} if given is None else {**given(ids)}
    if layout.positions is not None:
        inputs["position_ids"] = sent(layout.positions, device)
    if layout.packing is not None:
        inputs |= layout.packing.inputs(device)
    return head.hidden_states(**inputs).flatten(0, 1)[sent(layout.predictors, device)]


def choose_batching(policy: Policy, name: BatchingName) -> Batching:
    """Packed or padded rows; `auto` packs on the CPU, and on a GPU with a kernel for it, if the model can.

    Raises `PolicyError` when packing is required and impossible, and for a model whose rows padding changes.
    """
    small = small_copy(type(policy.model), policy.model.config)
    if small is not None and not can_pad(small):
        raise PolicyError(f"{policy.name} cannot be trained: what follows a token changes how the model reads it")
    in_ranges = policy.device.type == "cuda" and policy.compute_dtype in HALF
    if name == "padded" or (
        name == "auto" and (policy.ranks.size > 1 or not (policy.device.type == "cpu" or in_ranges))
    ):
        return Padded(policy.mrope_positions)
    if can_pack(small) if small is not None else policy.ranks.forward(lambda: can_pack(policy.model)):
        if not in_ranges:
            return Packed(policy.mrope_positions)
        if small is not None and runs_in_ranges(small.to(policy.device, policy.compute_dtype)):
            return Packed(policy.mrope_positions, in_ranges=True)
    if name == "packed":
        raise PolicyError(f"{policy.name} cannot be trained on packed rows; set update.batching to padded")
    return Padded(policy.mrope_positions)


def runs_in_ranges(model: PreTrainedModel) -> bool:
    """Whether the GPU's kernel for packed rows knows a model's heads."""
    try:
        return _reads_alike(model, Packed(in_ranges=True), HALF_TOLERANCE)
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return False


def can_pack(model: PreTrainedModel) -> bool:
    """Whether packed rows give the same hidden states as separate rows, tested on a few tokens."""
    layer_types = getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"]
    if not model.is_backend_compatible() or set(layer_types) != {"full_attention"}:
        return False
    try:
        return _reads_alike(model, Packed())
    except (NotImplementedError, TypeError, ValueError):  # no packed attention, or it is not passed on
        return False


def can_pad(model: PreTrainedModel) -> bool:
    """Whether rows padded on the right give the same hidden states as separate rows, likewise."""
    return _reads_alike(model, Padded())


@torch.no_grad()
def _reads_alike(model: PreTrainedModel, batching: Batching, tolerance: float = TOLERANCE) -> bool:
    pairs = [_Pair((0, 1, 2), (1, 2)), _Pair((0, 1, 2), (2, 0, 1)), _Pair((2, 1), (1, 0))]
    head = OutputHead(model)
    alone = [predicting_states(head, Padded().lay_out([pair]), model.device) for pair in pairs]
    with batching.attention(model):
        together = predicting_states(head, batching.lay_out(pairs), model.device)
    expected = torch.cat(alone)
    return bool((together - expected).abs().max() <= tolerance * expected.abs().max())


class _Pair(NamedTuple):
    prompt: Sequence[int]
    completion: Sequence[int]
    inserts: Sequence[Insert] = ()
    routing: None = None


def logprobs_by_row(
    rows: Sequence[R], parts: Iterable[list[R]], score: Callable[[list[R]], Scores]
) -> list[tuple[int, list[float]]]:
    """(index in `rows`, its completion's log-probabilities) of each row in `parts`, which are scored one by one."""
    indices = {id(row): index for index, row in enumerate(rows)}
    return [
        (indices[id(row)], values[: len(row.completion)])
        for part in parts
        for row, values in zip(part, score(part).logprobs[: len(part)].tolist(), strict=True)
    ]


class Continuation:
    """Log-probabilities of one completion, part by part, with other weights for each part.

    As in an engine that keeps its cache when it gets new weights: later tokens attend to keys and values that earlier
    weights computed. The newest token's are not in the cache yet when weights change.
    """

    def __init__(
        self,
        policy: Policy,
        prompt: Sequence[int],
        completion: Sequence[int],
        temperature: float,
        filters: Sampling | None = None,
        powers: Sequence[float] = (),
    ) -> None:
        """Nothing is scored yet. `policy` may get other weights between two parts; `filters` and `powers` as in
        `Scorer`."""
        self._policy = policy
        self._head = OutputHead(policy.model)
        self._temperature = temperature
        self._filters = filters
        self._powers = powers
        self.num_scored = 0
        """Tokens of the completion scored so far."""
        self._prompt = prompt
        self._completion = completion
        self._cache = DynamicCache(config=policy.model.config)

    @torch.no_grad()
    def next(self, num_tokens: int) -> Tensor:
        """Log-probabilities of the next `num_tokens` tokens under the policy's present weights, and log sum p^a of
        their distributions for each power, [1 + powers, num_tokens]."""
        end = self.num_scored + num_tokens
        if self.num_scored:
            unread = self._completion[self.num_scored - 1 : end - 1]
        else:
            unread = [*self._prompt, *self._completion[: end - 1]]
        targets = torch.tensor(self._completion[self.num_scored : end], device=self._policy.device)
        inputs = torch.tensor([unread], device=self._policy.device)
        given: dict[str, object] = {}
        if (mrope := self._policy.mrope_positions) is not None:
            positions = mrope([*self._prompt, *self._completion[: end - 1]])
            given["position_ids"] = positions[:, None, -len(unread) :].to(inputs.device)
        with self._policy.compute():
            given |= self._policy.inputs(inputs)
            hidden = self._head.hidden_states(**given, past_key_values=self._cache)[0, -num_tokens:]
            read = self._head.spreads(
                hidden, targets, self._temperature, self._policy.compute_dtype, self._filters, self._powers
            )
        self.num_scored = end
        return torch.stack(read)


def pad(rows: Sequence[Sequence[int]], value: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Ids [B, T] padded with `value`, and their mask [B, T] (1 on real tokens)."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), value, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, where] = torch.tensor(row, dtype=torch.long)
        mask[i, where] = 1
    return ids, mask
