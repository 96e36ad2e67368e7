"""The methods that the benchmark compares: fields of `update` that differ from the defaults.

Each has a published clip: `grpo` SAPO's, the others their papers'. The published code of GEPO trains all methods with a
clip of 0.2, advantages without the standard deviation, and under delay CPPO-KL with 0.005; `gepo` here is that code,
`gepo, equations` the paper's equations 5, 11 and 12 alone. On-policy CPPO-KL has no gradient in the first step, so that
it is never switched off.
"""

from __future__ import annotations

from pydantic import JsonValue

Arm = dict[str, JsonValue]

PUBLISHED_CLIP: Arm = {"clip_low": 0.2, "clip_high": 0.2}
PUBLISHED: Arm = {
    "objective": "gepo",
    "advantage": "dr_grpo",
    "behaviour_kl": 0.005,
    "loss": {"group_clip": True, **PUBLISHED_CLIP},
}
EQUATIONS: Arm = {"objective": "gepo", "advantage": "dr_grpo"}

ARMS: dict[str, Arm] = {
    "grpo": {"objective": "grpo"},
    "gspo": {"objective": "gspo", "loss": {"clip_low": 3e-4, "clip_high": 4e-4}},
    "gepo": PUBLISHED,
    "gepo, equations": EQUATIONS,
    "gepo, weighted_k3": {**PUBLISHED, "behaviour_kl_estimator": "weighted_k3"},
    "gepo, from variance": {**EQUATIONS, "loss": {"group_epsilon": 1.0, "epsilon_from": "variance"}},
    "gepo, positive_only": {**EQUATIONS, "loss": {"positive_only": True}},
    "grpo, published": {
        "objective": "grpo",
        "advantage": "dr_grpo",
        "behaviour_kl": 0.005,
        "loss": PUBLISHED_CLIP,
    },
    "gspo, wide clip": {"objective": "gspo"},
    "grpo, dual_clip": {"objective": "grpo", "loss": {"dual_clip": 3.0}},
    "grpo, positive_only": {"objective": "grpo", "loss": {"positive_only": True}},
    "grpo, sequence_mask": {"objective": "grpo", "importance": "sequence_mask"},
    "grpo, token_truncate": {"objective": "grpo", "importance": "token_truncate"},
    "tis": {"objective": "tis"},
}
"""By name; `grpo, published` has the settings of GEPO's code, `gspo, wide clip` the defaults of this project."""

ASKED = ("grpo", "gspo", "gepo", "gepo, equations")
EVERY_DELAY = ("0", "8", "64", "lognormal", "weibull", "exponential")
ASKED_DELAYS = ("0", "64", "lognormal")
