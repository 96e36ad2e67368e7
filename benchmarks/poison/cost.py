"""What screening others' groups costs an honest node: its part of the node's processor time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.common.report import Row, row
from benchmarks.common.running import scratch
from swarm.received.corroboration import Corroboration
from swarm.received.plausibility import Plausibility
from swarm.received.screening import CandidateScorer
from swarm.sapo.external import ExternalGroups
from tests.attacks.poisoned_swarm import Plan, Swarm

MAX_PART = 0.03
READING = "pass of the policy"
PARTS: tuple[tuple[type, str, str], ...] = (
    (Plausibility, "learn", "fence"),
    (Plausibility, "plausible", "fence"),
    (Corroboration, "learn", "corroboration"),
    (Corroboration, "credited", "corroboration"),
    (Corroboration, "drift", "corroboration"),
    (CandidateScorer, "_readings", READING),
    (CandidateScorer, "screen", "the rest"),
    (CandidateScorer, "surprisals", "the rest"),
    (ExternalGroups, "_learn", "the rest"),
)
"""Methods that are called one within the other count without the inner ones."""


@contextmanager
def counted() -> Iterator[Mapping[str, float]]:
    """Processor seconds of this thread by part, while the block runs."""
    spent: defaultdict[str, float] = defaultdict(float)
    inner = [0.0]
    originals: list[tuple[type, str, Callable[..., Any]]] = []

    def counting(method: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            inner.append(0.0)
            try:
                return method(*arguments, **named)
            finally:
                whole = time.thread_time() - began
                spent[part] += whole - inner.pop()
                inner[-1] += whole

        return call

    try:
        for kind, name, part in PARTS:
            originals.append((kind, name, getattr(kind, name)))
            setattr(kind, name, counting(originals[-1][-1], part))
        yield spent
    finally:
        for kind, name, method in originals:
            setattr(kind, name, method)


def measure(plan: Plan, num_first: int, console: Console) -> list[Row]:
    """Rounds of a swarm without an attacker, after `num_first` that do not count: policies must have learned to get
    groups with signal."""
    with ExitStack() as stack:
        swarm = Swarm(plan, None, 0, Path(stack.enter_context(scratch())), stack)
        for number in range(1, num_first + 1):
            swarm.round()
            console.print(f"      round {number} of {num_first} before", highlight=False)
        with counted() as spent:
            began = time.thread_time()
            for _ in range(plan.rounds):
                swarm.round()
            whole = time.thread_time() - began
    rounds = plan.rounds * plan.nodes
    screening = sum(seconds for part, seconds in spent.items() if part != READING)
    return [
        row("screening, part of a node's processor time", [screening / whole], "", target=MAX_PART, better="lower"),
        *(
            row(f"of a node's processor time: {part}", [spent[part] / whole], "")
            for part in dict.fromkeys(part for *_, part in PARTS)
        ),
        row("screening, a round", [1e3 * screening / rounds], "ms"),
        row("a round", [1e3 * whole / rounds], "ms"),
    ]
