"""Whether an answer of the right value is in the form of an answer, and not the question again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarm.environments.scoring.forms.asked import Asked
from swarm.environments.scoring.forms.shapes import Shape, is_made_of, is_rational, shape_of, spread
from swarm.environments.scoring.forms.written import Written, form_of, read_number

OF_CONSTANTS = frozenset({"roots", "logarithms", "other functions"})
"""Work that a rounded reference does not have, and its exact value may: `2\\pi` for 6.283185307."""

IsStated = Callable[[], bool]
"""Whether the question has an expression of the reference's value."""

UNFINISHED = frozenset({"arithmetic", "like terms", "like factors"})
"""Work that is left in an equation or inequality; other work is a matter of its form."""


def is_in_form(given: str, wanted: str, asked: Asked | None, is_stated: IsStated) -> bool:
    """Whether a normalised expression of the reference's value is in the reference's form, or in one as finished.

    A number must be written as one. Where the question states the value, only the reference's own shape is an answer;
    elsewhere also others in which no more work is left. Without a question (`asked` None) nothing is a repetition.
    """
    number, reference = read_number(given), read_number(wanted)
    if number is not None:
        return fits(number, reference, asked, is_stated)
    one, other = shape_of(given), shape_of(wanted)
    if reference is not None and one is not None and reference.kind == "decimal" and one.value is not None:
        return not (is_rational(one.value) or one.work - OF_CONSTANTS or (asked is not None and is_stated()))
    if reference is not None or one is None or other is None:
        return False
    if one.key == other.key:
        return True
    if spread(one).key == spread(other).key:
        return asked is None or not asked.has_part(one)
    if is_rational(other.value) or (asked is not None and (is_stated() or _repeats(one, other, asked))):
        return False
    return one.work <= other.work


def is_finished(given: Sequence[str], wanted: Sequence[str], is_stated: IsStated) -> bool:
    """The same for the sides of an equation or inequality, whose form is free unless the question states it."""
    ones, others = [shape_of(side) for side in given], [shape_of(side) for side in wanted]
    keys = [sorted("" if side is None else side.key for side in sides) for sides in (ones, others)]
    if keys[0] == keys[1]:
        return True
    work = [frozenset[str]().union(*(side.work for side in sides if side is not None)) for sides in (ones, others)]
    return not is_stated() and work[0] & UNFINISHED <= work[1]


def fits(given: Written, wanted: Written | None, asked: Asked | None, is_stated: IsStated) -> bool:
    """Whether a number of the right value is written as an answer, neither unfinished nor as it is in the question.

    `wanted` None is a reference that is not written as a number.
    """
    kind = None if wanted is None else wanted.kind
    if wanted is not None and form_of(given) == form_of(wanted):
        return True
    is_whole = wanted is not None and kind == "whole" and not wanted.is_percentage
    if given.kind in ("fraction", "mixed") and (is_whole or not given.is_of_whole_numbers):
        return False
    if asked is None:
        return True
    if given.is_percentage and not (asked.is_in_percent or (wanted is not None and wanted.is_percentage)):
        return False
    if given.kind == "power" or (wanted is None and asked.has_value(given.value)):
        return False
    if not given.is_reduced and (asked.has_all(given.parts) or is_stated()):
        return False
    if (
        given.kind == "scientific"
        and kind != "scientific"
        and asked.has_all((given.parts[0], float(f"1e{given.parts[1]}")))
    ):
        return False
    return kind == given.kind or not asked.has(given)


def _repeats(given: Shape, wanted: Shape, asked: Asked) -> bool:
    """Whether it only joins expressions of the question, or multiplies out where factors are asked for."""
    if is_made_of(given, asked.has_part) and not given.kind == wanted.kind == "sum":
        return True
    return asked.asks_for_factors and "products" in wanted.work and "products" not in given.work
