"""A node's history as a table: one row a round, the columns named as in the other sinks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import ConfigError
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, EvaluationEvent, RoundEvent, SuiteEvent
from swarm.telemetry.sinks import scalars

if TYPE_CHECKING:
    from pandas import DataFrame


def history(run: str | Path) -> PeerHistory:
    """What the node of this directory has written so far, running or not.

    Raises `ConfigError` where no node has written anything.
    """
    file = Path(run) / METRICS_FILE
    if not file.exists():
        raise ConfigError(f"there is no {file}: a node writes it while it runs; give a node's directory")
    return PeerHistory.read(file)


def records(run: str | Path) -> list[dict[str, float]]:
    """The rounds of the node of this directory in order, each once, with what evaluations found after them.

    Every record has `round`; counts of groups and tokens are cumulative, and what is unknown is left out. Round 0 is
    the evaluation before the first round. Raises `ConfigError` as `history` does.
    """
    found = history(run)
    suites = [event for results in found.suites.values() for event in results.values()]
    events: list[RoundEvent | EvaluationEvent | SuiteEvent] = []
    events += [*found.rounds.values(), *found.evaluations.values(), *suites]
    rows: dict[int, dict[str, float]] = {}
    for event in events:
        rows.setdefault(event.round, {"round": event.round}).update(scalars(event))
    for number, made in found.rounds.items():
        rows[number] |= {"time": made.time, "wall_s": made.wall_s}
    return [rows[number] for number in sorted(rows)]


def frame(run: str | Path) -> DataFrame:
    """`records` as a pandas `DataFrame`, with NaN for what is unknown. Raises `ConfigError` as `history` does."""
    from pandas import DataFrame

    return DataFrame(records(run))
