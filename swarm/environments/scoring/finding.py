"""Finds the answer in a completion, by the rule of the task, before any scorer sees it.

Every rule reads a bounded number of characters in linear time, on any text and with any pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from swarm.environments.answering import FindSettings, MatchRule
from swarm.environments.scoring.statements import boxed_content
from swarm.environments.scoring.written import numbers, plain_number

MAX_SEARCHED_CHARS = 16_384
"""Characters at the end of a completion that `last_number` and `boxed` read, and the longest `whole` answer."""

Find = Callable[[str], str | None]
"""The answer in a completion; None when there is none."""

_OPEN, _CLOSE = "<answer>", "</answer>"
_PAIR = re.compile(rf"{_OPEN}\s?(.*?)\s?{_CLOSE}", re.DOTALL)


def finder(config: FindSettings) -> Find:
    """The rule of a task. Raises `TaskError` for a pattern that is not valid."""
    match config.find:
        case "tags":
            return last_pair
        case "last_number":
            return last_number
        case "boxed":
            return last_box
        case "whole":
            return whole
        case "regex":
            # pyarrow takes 60 MB, which only this rule needs
            from swarm.environments.scoring.patterns import LinearPattern

            assert config.find_pattern is not None
            return LinearPattern(config.find_pattern).last
        case None if config.scored_by_code:
            return everything
        case None:
            return last_pair if config.match_rule is None else partial(by_match_rule, config.match_rule)


def last_pair(completion: str) -> str | None:
    """The content of the last `<answer>` pair, as ReasoningGYM's `extract_answer` returns it."""
    end = completion.rfind(_CLOSE)
    if end < 0:
        return None
    # without the tail: the pattern takes quadratic time on unclosed tags
    found = _PAIR.findall(completion[: end + len(_CLOSE)])
    return found[-1].strip() if found else None


def by_match_rule(rule: MatchRule, completion: str) -> str | None:
    r"""A data set's default: the last `<answer>` pair, else the last `\boxed{}`.

    For numbers else the whole text, of which the last number counts.
    """
    end = completion.rfind(_CLOSE)
    start = completion.rfind(_OPEN, 0, end) if end >= 0 else -1
    if start >= 0:
        return completion[start + len(_OPEN) : end].strip()
    in_box = boxed_content(completion)
    if in_box is not None:
        return in_box
    return completion if rule == "numeric" else None


def last_number(completion: str) -> str | None:
    r"""The last number in plain notation: `-1234.5` for `-$1,234.50 m^2`, `3/4` for `\frac{3}{4}`, `50%`, `2e5`.

    Its digits stay as they are written. The exponent of a unit is no number.
    """
    found = None
    for found in numbers(completion[-MAX_SEARCHED_CHARS:]):  # noqa: B007
        pass
    return None if found is None else plain_number(found)


def last_box(completion: str) -> str | None:
    r"""The content of the last closed `\boxed{}`."""
    return boxed_content(completion[-MAX_SEARCHED_CHARS:])


def everything(completion: str) -> str | None:
    """The whole completion, for custom code."""
    return completion


def whole(completion: str) -> str | None:
    """The completion without the white space around it; None for one that is empty or too long for an answer."""
    answer = completion.strip() if len(completion) <= MAX_SEARCHED_CHARS else ""
    return answer or None
