"""Why questions of a node's own have no groups, for its user."""

from __future__ import annotations

from types import MappingProxyType

from swarm.foreign import clean
from swarm.reasons import Reason
from swarm.types import Rejection

REMEDIES = MappingProxyType(
    {
        Reason.PROMPT_TOO_LONG: "ask shorter questions, lower generation.max_new_tokens, or choose a model with more "
        "positions",
        Reason.JUDGE_FAILED: "make sure that the server at judge.endpoint is up and knows judge.model",
        Reason.JUDGE_TIMEOUT: "raise judge.time_limit_s, or choose a faster judge",
        Reason.JUDGE_BUDGET: "raise the judge's budget, or ask fewer questions",
    }
)
"""What helps where a node's own questions have no groups."""


def without_group(rejection: Rejection) -> str:
    """Why an own question has no group, and what helps."""
    why = f"{rejection.reason}: {clean(rejection.detail)}" if rejection.detail else str(rejection.reason)
    return f"{why}; {remedy}" if (remedy := REMEDIES.get(rejection.reason)) else why
