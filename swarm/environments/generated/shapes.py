"""Pictures with coloured shapes, to count and to compare."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from swarm.environments.generated.chance import Chance
from swarm.environments.generated.config import ColourName, ShapeName, ShapesTask
from swarm.environments.generated.drawing import add_shape, as_image, blank
from swarm.environments.generated.source import Made
from swarm.types.media import Image

Drawn = tuple[ShapeName, ColourName]


def make_shapes(task: ShapesTask, chance: Chance) -> Made:
    """A picture and a question about it."""
    asked = chance.one_of(task.questions, "question")
    everything: list[Drawn] = list(product(task.shapes, task.colours))
    if asked == "compare":
        return _compared(task, chance, everything)
    shape, colour = chance.one_of(task.shapes, "shape"), chance.one_of(task.colours, "colour")
    match asked:
        case "count":
            wanted, what = everything, "shapes"
        case "shape":
            wanted, what = [each for each in everything if each[0] == shape], f"{shape}s"
        case "colour":
            wanted, what = [each for each in everything if each[1] == colour], f"{colour} shapes"
        case "both":
            wanted, what = [(shape, colour)], f"{colour} {shape}s"
    others = [each for each in everything if each not in wanted]
    count = chance.number(0, task.max_shapes, "count")
    num_others = chance.number(0, task.max_shapes - count, "others") if others else 0
    shown = [*_some(chance, wanted, count, "wanted"), *_some(chance, others, num_others, "other")]
    return Made((_picture(task, chance, shown),), f"How many {what}?", str(count))


def _compared(task: ShapesTask, chance: Chance, everything: Sequence[Drawn]) -> Made:
    """More of one shape than of another."""
    more, less, *_ = chance.shuffled(tuple(dict.fromkeys(task.shapes)), "compared")
    count = chance.number(1, task.max_shapes, "count")
    fewer = chance.number(0, min(count - 1, task.max_shapes - count), "fewer")
    mores, lesses = ([each for each in everything if each[0] == shape] for shape in (more, less))
    shown = [*_some(chance, mores, count, "more"), *_some(chance, lesses, fewer, "less")]
    first, second = chance.shuffled((more, less), "order")
    return Made((_picture(task, chance, shown),), f"More {first}s or {second}s?", f"{more}s")


def _some(chance: Chance, choices: Sequence[Drawn], count: int, what: str) -> list[Drawn]:
    return [chance.one_of(choices, what, number) for number in range(count)]


def _picture(task: ShapesTask, chance: Chance, shown: Sequence[Drawn]) -> Image:
    """Each shape in a square of its own, of a size and at a place that are left to chance."""
    pixels, cell = blank(task.size, task.size), task.size // task.columns
    places = chance.shuffled(list(product(range(task.columns), repeat=2)), "places")
    for number, ((shape, colour), (column, row)) in enumerate(zip(shown, places, strict=False)):
        side = chance.number(cell * 5 // 8, cell * 7 // 8, "side", number)
        x, y = (chance.number(1, cell - side, axis, number) for axis in ("x", "y"))  # neighbours do not touch
        add_shape(pixels, shape, colour, column * cell + x, row * cell + y, side)
    return as_image(pixels)
