"""The default task list: nine ReasoningGYM tasks that the embedded policy can partly learn.

Prompts of about ten tokens of its tokenizer, answers of at most nine: hard enough that a warm-started policy usually
fails, easy enough that the first round has groups with signal.
"""

from __future__ import annotations

from pydantic import JsonValue

from swarm.environments.sources.reasoning_gym import ReasoningGymTask

_OPTIONS: dict[str, dict[str, JsonValue]] = {
    "basic_arithmetic": {
        "min_terms": 2,
        "max_terms": 2,
        "min_digits": 1,
        "max_digits": 2,
        "operators": ["+", "-"],
        "allow_parentheses": False,
        "allow_negation": False,
    },
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 40},
    "lcm": {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 12},
    "count_bits": {"min_n": 1, "max_n": 255},
    "letter_counting": {"min_words": 1, "max_words": 2},
    "fraction_simplification": {
        "min_value": 1,
        "max_value": 9,
        "min_factor": 2,
        "max_factor": 6,
        "styles": ["plain"],
    },
    "simple_equations": {"min_terms": 2, "max_terms": 2, "min_value": 1, "max_value": 10},
    "leg_counting": {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 9},
}

TINY_TASKS: tuple[ReasoningGymTask, ...] = tuple(
    ReasoningGymTask(name=name, options=options) for name, options in _OPTIONS.items()
)
"""In this order and with equal weights; the tiny tokenizer's phrases come from exactly these prompts."""

TINY_TOOL_TASK = ReasoningGymTask(
    name="products",
    options={"min_terms": 2, "max_terms": 2, "min_digits": 4, "max_digits": 4},
    tool="calculator",
    max_turns=2,
    ask="",
)
"""A task that the embedded policy `tiny-tool` can do with the tool, and not without."""
