"""Log-probabilities of completions under a policy, with or without gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.policy.loading import Policy


def completion_logprobs(
    policy: Policy, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], temperature: float
) -> Tensor:
    """Log-probabilities [B, T] of each completion token given what precedes it; 0 beyond a completion's end.

    T is the longest completion. The output head runs on completion positions only; logits are divided by
    `temperature`, the softmax is at least float32.
    """
    prompt_ids, prompt_mask = pad(prompts, policy.pad_id, left=True)
    completion_ids, mask = pad(completions, policy.pad_id)
    ids = torch.cat([prompt_ids, completion_ids], dim=1).to(policy.device)  # [B, L + T]
    attention = torch.cat([prompt_mask, mask], dim=1).to(policy.device)
    with policy.compute():
        logits = policy.model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=position_ids(attention),
            logits_to_keep=completion_ids.shape[1] + 1,
            use_cache=False,
        ).logits[:, :-1]  # [B, T, V]
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    targets = completion_ids.to(policy.device)
    chosen = scaled.gather(-1, targets[..., None]).squeeze(-1)
    logprobs: Tensor = (chosen - scaled.logsumexp(dim=-1)) * mask.to(policy.device)
    return logprobs


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


def position_ids(attention: Tensor) -> Tensor:
    """Positions [B, T] that count real tokens only, so that padding on the left changes nothing."""
    return (attention.cumsum(dim=1) - 1).clamp(min=0)
