"""The list of `swarm tasks`: every ReasoningGYM data set with an example and its options."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

from msgspec import Struct

from swarm.environments.sources.library import DATASETS, load_all
from swarm.environments.sources.reasoning_gym import dataset_options, make_dataset, time_limit

EXAMPLE_SEED = 42
NOT_TASKS = frozenset({"composite"})
"""Data sets composed of others; a run's own mixture replaces them."""


class CatalogueEntry(Struct, frozen=True):
    """One data set of the library."""

    name: str
    category: str
    """The library's folder that contains it, e.g. `arithmetic`; empty when it cannot be created."""
    question: str
    """First lines of an example."""
    answer: str | None
    """The library's answer to the example; None when it has none."""
    options: dict[str, str]
    """Names of the options and the `repr` of their defaults."""
    error: str = ""
    """Why there is no example."""


def catalogue(time_limit_s: float = 5.0, max_lines: int = 3) -> list[CatalogueEntry]:
    """Every data set by name; one that fails or takes longer than the limit is listed with the reason.

    Must be called in the main thread: the limit is an alarm.
    """
    load_all()
    return [_entry(name, time_limit_s, max_lines) for name in sorted(DATASETS) if name not in NOT_TASKS]


def _entry(name: str, time_limit_s: float, max_lines: int) -> CatalogueEntry:
    options = {option: repr(value) for option, value in dataset_options(name).items()}
    try:
        with time_limit(time_limit_s), redirect_stdout(io.StringIO()):  # some generators print
            dataset = make_dataset(name, EXAMPLE_SEED, {})
            item = dataset[0]
    except Exception as error:  # generators raise anything; one must not end the list
        return CatalogueEntry(name, "", "", None, options, repr(error))
    lines = [line for line in str(item["question"]).splitlines() if line.strip()]
    answer = None if item["answer"] is None else str(item["answer"])
    return CatalogueEntry(name, dataset.category, "\n".join(lines[:max_lines]), answer, options)
