"""Generation with the very weights that are trained: no copy, no transfer, in the round's own thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache

from swarm.errors import Interrupted
from swarm.policy.loading import Policy
from swarm.policy.logprobs import pad, position_ids
from swarm.types import Completion, Sampling


@dataclass
class _Sequence:
    """One completion in the making."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False


class TransformersEngine:
    """Batched sampling: each prompt is read once for all its completions, finished rows leave the batch."""

    def __init__(self, policy: Policy, max_batch_sequences: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        """`cancelled` is asked between decode steps; once true, `generate` raises `Interrupted`."""
        self._policy = policy
        self._cancelled = cancelled
        self._max_batch_sequences = max_batch_sequences

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
    ) -> list[tuple[Completion, ...]]:
        """G completions for each of P prompts: [P][G]; an empty tuple for a prompt that leaves the model no room."""
        generator = torch.Generator(self._policy.device).manual_seed(seed)
        encoded = [self._policy.encode_prompt(prompt) for prompt in prompts]
        room = self._policy.max_positions - sampling.max_new_tokens
        fitting = [i for i, ids in enumerate(encoded) if 0 < len(ids) <= room]
        results: list[tuple[Completion, ...]] = [() for _ in prompts]
        per_batch = max(1, self._max_batch_sequences // num_completions)
        for start in range(0, len(fitting), per_batch):
            batch = fitting[start : start + per_batch]
            sequences = self._decode([encoded[i] for i in batch], num_completions, sampling, generator)
            for row, i in enumerate(batch):
                group = sequences[row * num_completions : (row + 1) * num_completions]
                results[i] = tuple(self._completion(sequence) for sequence in group)
        return results

    def _decode(
        self, prompts: list[list[int]], num_completions: int, sampling: Sampling, generator: torch.Generator
    ) -> list[_Sequence]:
        """Sample until every row has stopped or reached its limit: [P * G], a prompt's completions adjacent."""
        policy = self._policy
        sequences = [_Sequence() for _ in range(len(prompts) * num_completions)]
        ids, attention = (t.to(policy.device) for t in pad(prompts, policy.pad_id, left=True))  # [P, L]
        cache = DynamicCache(config=policy.model.config)
        logits = self._forward(ids, attention, position_ids(attention), cache)  # [P, V]
        cache.batch_repeat_interleave(num_completions)
        logits = logits.repeat_interleave(num_completions, dim=0)  # [P * G, V]
        attention = attention.repeat_interleave(num_completions, dim=0)
        active = list(range(len(sequences)))  # which sequence each row of the batch is
        for step in range(sampling.max_new_tokens):
            if self._cancelled():
                raise Interrupted("generation was cancelled")
            tokens, logprobs = sample(logits, sampling, generator)
            keep = self._append(sequences, active, tokens, logprobs)
            if not keep or step + 1 == sampling.max_new_tokens:
                break
            if len(keep) < len(active):
                rows = torch.tensor(keep, device=policy.device)
                cache.batch_select_indices(rows)
                tokens, attention = tokens[rows], attention[rows]
                active = [active[row] for row in keep]
            attention = torch.cat([attention, attention.new_ones(len(active), 1)], dim=1)
            logits = self._forward(tokens[:, None], attention, position_ids(attention)[:, -1:], cache)
        return sequences

    def _forward(self, ids: Tensor, attention: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """Logits [B, V] of the last position."""
        with self._policy.compute():
            output = self._policy.model(
                input_ids=ids,
                attention_mask=attention,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _append(self, sequences: list[_Sequence], active: list[int], tokens: Tensor, logprobs: Tensor) -> list[int]:
        """Record one sampled token a row; the rows that go on."""
        keep = []
        for row, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
            sequence = sequences[active[row]]
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            sequence.stopped = token in self._policy.stop_ids
            if not sequence.stopped:
                keep.append(row)
        return keep

    def _completion(self, sequence: _Sequence) -> Completion:
        return Completion(
            text=self._policy.decode(sequence.ids),
            finish_reason="stop" if sequence.stopped else "length",
            token_ids=tuple(sequence.ids),
            logprobs=tuple(sequence.logprobs),
        )


def sample(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token a row of logits [B, V]: ids [B], and their log-probabilities [B] under what was sampled from."""
    log_probabilities = torch.log_softmax(logits / sampling.temperature, dim=-1)
    if sampling.top_p < 1:
        log_probabilities = _nucleus(log_probabilities, sampling.top_p)
    tokens = torch.multinomial(log_probabilities.exp(), 1, generator=generator)
    return tokens[:, 0], log_probabilities.gather(-1, tokens)[:, 0]


def _nucleus(log_probabilities: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of tokens whose probability reaches `top_p`, renormalised."""
    ordered, order = log_probabilities.sort(dim=-1, descending=True)
    before = ordered.exp().cumsum(dim=-1) - ordered.exp()
    dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return torch.log_softmax(log_probabilities.masked_fill(dropped, -torch.inf), dim=-1)
