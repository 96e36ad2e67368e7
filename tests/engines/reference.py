"""What an engine is compared with: one sequence at a time, no cache, no padding."""

from __future__ import annotations

import torch

from swarm.policy.loading import Policy
from swarm.policy.scoring import keep_likely
from swarm.types import Completion, Context, Sampling


@torch.no_grad()
def teacher_forced(policy: Policy, prompt: Context, completion: Completion, sampling: Sampling) -> list[float]:
    """Log-probabilities of a completion's tokens under the policy as it is now."""
    past = policy.encode(prompt)
    ids = torch.tensor([[*past, *completion.token_ids]], device=policy.device)
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(past) - 1 : -1].float()
    kept = keep_likely(logits / sampling.temperature, sampling)
    chosen = torch.tensor(completion.token_ids, device=policy.device)[:, None]
    return torch.log_softmax(kept, dim=-1).gather(1, chosen)[:, 0].tolist()
