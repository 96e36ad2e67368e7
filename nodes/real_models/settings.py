"""A demo with a real language model: its tasks, and rounds that a CPU can carry."""

from __future__ import annotations

from pydantic import JsonValue

from swarm.config import Values
from swarm.machine import num_cores
from swarm.policy.config import EMBEDDED

ROUNDS = 24
ROUNDS_EMBEDDED = 200
GROUP_SIZE = 8
MAX_NEW_TOKENS = 24
MICRO_BATCH_TOKENS = 512
"""Half of a CPU's default: several nodes share the memory."""
EVALUATION_QUESTIONS = 64
TASKS: tuple[dict[str, JsonValue], ...] = (
    {
        "kind": "reasoning_gym",
        "name": "sums",
        "dataset": "basic_arithmetic",
        "find": "last_number",
        "ask": "",
        "options": {
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 1,
            "max_digits": 2,
            "operators": ["+"],
            "allow_parentheses": False,
            "allow_negation": False,
        },
    },
    {
        "kind": "reasoning_gym",
        "name": "gcd",
        "find": "last_number",
        "ask": "",
        "options": {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 20},
    },
)
"""The answer is a completion's last number: a small model states answers in sentences and never writes tags."""


def real_model(model: str, num_groups: int, num_nodes: int) -> Values:
    """The configuration of nodes with this policy, where it differs from a demo's with the embedded one.

    A round asks as many questions as an update has groups, so that a lone node can train on as many of its own.
    """
    return {
        # Without a prompt for tags; every node gets its share of the cores.
        "policy": {"model": model, "system_prompt": "", "threads": max(1, num_cores() // num_nodes)},
        "tasks": [dict(task) for task in TASKS],
        "generation": {
            "questions_per_round": num_groups,
            "group_size": GROUP_SIZE,
            "max_new_tokens": MAX_NEW_TOKENS,
        },
        "update": {"micro_batch_tokens": MICRO_BATCH_TOKENS},
        "checkpoint": {"every_rounds": 25, "keep": 1},
        "evaluation": {"num_questions": EVALUATION_QUESTIONS},
    }


def num_rounds(model: str | None) -> int:
    """Rounds of a demo with this policy; None: the embedded one."""
    return ROUNDS_EMBEDDED if model is None or model in EMBEDDED else ROUNDS
