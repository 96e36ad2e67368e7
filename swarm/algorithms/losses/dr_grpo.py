"""Dr. GRPO: the clipped surrogate over a constant length, so that length is neither rewarded nor punished."""

from __future__ import annotations

from torch import Tensor

from swarm.algorithms.losses.base import Groups, LossConfig, LossOutput, clipped_surrogate, log_ratio, token_shares


def dr_grpo(
    new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig, groups: Groups | None = None
) -> LossOutput:
    """Sum over all tokens of -min(rho A, clip(rho) A) / (B x max_completion_tokens); goes with `dr_grpo` advantages.

    Denominator: B x max_completion_tokens.

    Source: arXiv:2503.20783, section 3.
    """
    losses, clipped = clipped_surrogate(log_ratio(new, old).exp(), advantages, config)
    denominator = float(new.shape[0] * config.max_completion_tokens)
    shares = token_shares(mask, denominator, new)
    return LossOutput((losses * shares).sum(), shares, denominator, metrics={"clipped": (clipped * mask).sum()})
