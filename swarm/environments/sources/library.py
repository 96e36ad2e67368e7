"""ReasoningGYM, of which a process that draws or grades imports only the data sets that its tasks name.

The whole library would take most of a worker's start: 105 data sets, of which a run has a few. It also loads cellpylib,
for one data set, and cellpylib loads matplotlib for plots that are never drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any, ClassVar

from swarm.environments.stand_ins import stand_ins

LIBRARY = "reasoning_gym"
DRAWING = (
    *("matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.collections"),
    *("mpl_toolkits", "mpl_toolkits.mplot3d"),
)
"""What cellpylib imports for its plots."""


@contextmanager
def _without_the_rest(*packages: str) -> Iterator[None]:
    """Within the block, modules of these packages are imported on their own.

    The packages are registered without running their `__init__`, and only for the block: a later import by others in
    this process, such as a user's own scorer, is the whole library, which keeps the modules imported here.
    """
    added = [name for name in packages if name not in sys.modules]
    try:
        for name in added:
            spec = find_spec(name)
            assert spec is not None, f"{name} must be installed"
            sys.modules[name] = module_from_spec(spec)
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)


with stand_ins(DRAWING), _without_the_rest(LIBRARY):
    import reasoning_gym.coaching  # noqa: F401, first: it and the next module import each other
    from reasoning_gym import factory
    from reasoning_gym.factory import DATASETS

__all__ = ["DATASETS", "create_dataset", "load", "load_all"]


def create_dataset(name: str, **options: object) -> Any:
    """The library's function of this name, which raises `ValueError` for an unknown data set."""
    load(name)
    made = factory.create_dataset(name, **options)
    return _CodeIO(made) if name == "codeio" else made


class _CodeIO:
    """codeio, whose items are what programs in its rows return: made from seed and options alone.

    The library keeps the rows of the instance that was made last, for all of them, and seeds only the generator that it
    hands to a program.
    """

    _rows: ClassVar[dict[int | None, object]] = {}
    """Rows by difficulty, so that equal ones take memory once."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._own_rows = self._rows.setdefault(made.config.difficulty, type(made)._jsonl_data)
        self.category: str = made.category

    def __getitem__(self, index: int) -> Any:
        from swarm.environments.randomness import OwnRandomness  # numpy, which most data sets go without

        type(self._made)._jsonl_data = self._own_rows
        with OwnRandomness(self._made.seed + index):
            return self._made[index]

    def score_answer(self, answer: str | None, entry: Any) -> float:
        return float(self._made.score_answer(answer, entry))


def load(dataset: str) -> None:
    """Import the data set of this name, with the whole library where its module has another name, or there is none."""
    if dataset in DATASETS:
        return
    if (category := _category_of(dataset)) is not None:
        # On some systems a file's name matches in another case, and no module is found.
        with suppress(ModuleNotFoundError), stand_ins(DRAWING), _without_the_rest(LIBRARY, f"{LIBRARY}.{category}"):
            import_module(f"{LIBRARY}.{category}.{dataset}")
    if dataset not in DATASETS:
        load_all()


def load_all() -> None:
    """Import the whole library."""
    with stand_ins(DRAWING):
        import_module(LIBRARY)


def _category_of(dataset: str) -> str | None:
    """The library's folder with a module of this name. Names come from others' tasks, too, and may be anything."""
    spec = find_spec(LIBRARY)
    if spec is None or not spec.submodule_search_locations or not dataset.isidentifier():
        return None
    found = Path(spec.submodule_search_locations[0]).glob(f"*/{dataset}.py")
    return next((path.parent.name for path in sorted(found)), None)
