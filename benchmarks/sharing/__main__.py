"""What sharing brings: mixes, heterogeneous swarms, poison, the filter, a real language model, and time.

cells of all tables ──▶ run those without a result, side by side ──▶ FOLDER/SIZE/NAME.json, .md, .png
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks.common.report import Report
from benchmarks.common.running import at_least_one, conclude, option_parser, wide_console
from benchmarks.sharing.swarms import Comparison, RealScale, Scale, Size
from benchmarks.sharing.table import rows
from benchmarks.sharing.tables import DEFENCES, TABLES, WITHOUT_ANY
from nodes.simulation.cells import CellStore, run_cells
from swarm.machine import num_cores
from swarm.telemetry.benefit.comparison import compare, markdown, stops_in_words
from swarm.telemetry.benefit.picture import Section, write_comparisons

S = TypeVar("S", bound=Scale)

STARTS = ("sparse", "dense")
SWARMS = ("strong and weak", "specialists", "sizes and tokenizers", "late joiners")
KINDS = ("wrong", "inverted", "copies", "gibberish", "repetition", "long")
REAL = RealScale(nodes=4, rounds=16, seeds=3, evaluation=96, every=2, groups=8)
QUICK = Size(
    name="quick",
    nodes=4,
    rounds=12,
    seeds=1,
    evaluation=36,
    starts=STARTS,
    swarms=SWARMS,
    kinds=("copies", "gibberish"),
    hostile=(2,),
    without=(WITHOUT_ANY,),
    each_policy=False,
    real=RealScale(nodes=2, rounds=2, seeds=1, evaluation=8, every=1, groups=2),
    timed=Scale(nodes=2, rounds=12, seeds=1, evaluation=36, every=4),
    clock=Scale(nodes=2, rounds=12, seeds=1, evaluation=36, every=4),
    sampled=Scale(nodes=6, rounds=8, seeds=1, evaluation=0),
)
DEFAULT = Size(
    name="default",
    nodes=8,
    rounds=60,
    seeds=5,
    evaluation=180,
    starts=STARTS,
    swarms=SWARMS,
    kinds=KINDS,
    hostile=(4,),
    without=(WITHOUT_ANY,),
    each_policy=False,
    real=REAL,
    timed=Scale(nodes=8, rounds=120, seeds=5, evaluation=360, every=20),
    clock=Scale(nodes=8, rounds=60, seeds=5, evaluation=90, every=10),
    sampled=Scale(nodes=32, rounds=24, seeds=2, evaluation=0),
)
FULL = replace(
    DEFAULT,
    name="full",
    rounds=200,
    evaluation=360,
    hostile=(1, 2, 4),
    without=(*DEFENCES, WITHOUT_ANY),
    each_policy=True,
    timed=replace(DEFAULT.timed, rounds=200),
)
EVERY_SHORT = [name for name, table in TABLES.items() if not table.only_when_named]
ASKED = ["sapo"]
"""The table that two cores make in 40 minutes; each of the others takes as long or longer."""
CELL_MODULE = "benchmarks.sharing.cell"
MEANS = "Values are means over nodes and seeds; spread: bootstrap 95% intervals over the seeds, too narrow for few."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are missing, then print and write the tables."""
    default = f"{', '.join(ASKED)}; with --quick {', '.join(EVERY_SHORT)}; with --full all"
    parser = option_parser("sharing", __doc__, TABLES, default)
    parser.add_argument("--full", action="store_true", help="every kind and defence, and the real model: far longer")
    parser.add_argument("--nodes", type=at_least_one, help="of every swarm, at most, instead of the size's own")
    parser.add_argument("--rounds", type=at_least_one, help="of every swarm, instead of the size's own")
    parser.add_argument("--seeds", type=at_least_one, help="of every swarm, instead of the size's own")
    parser.add_argument(
        "--hostile", type=at_least_one, nargs="+", help="nodes of a swarm that are, in the table of poison"
    )
    parser.add_argument(
        "--without",
        nargs="*",
        choices=[*DEFENCES, WITHOUT_ANY],
        metavar="DEFENCE",
        help=f"defences also switched off there, in turn: {' | '.join(DEFENCES)} | {WITHOUT_ANY}; nothing: none",
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/sharing"), help="finished cells, tables and pictures")
    parser.add_argument("--jobs", type=at_least_one, default=num_cores(), help="cells at a time")
    options = parser.parse_args(arguments)
    chosen = QUICK if options.quick else FULL if options.full else DEFAULT
    names = options.only or {QUICK.name: EVERY_SHORT, DEFAULT.name: ASKED, FULL.name: list(TABLES)}[chosen.name]
    size = changed(chosen, options.nodes, options.rounds, options.seeds, options.hostile, options.without)
    if not all(0 < num_hostile < size.nodes for num_hostile in options.hostile or ()):
        parser.error(f"--hostile must be from 1 to {size.nodes - 1}, got {' '.join(map(str, options.hostile))}")
    report, console = Report("sharing", peer="baseline"), wide_console()

    def take() -> int:
        for name in names:
            TABLES[name].prepare(size, console, TABLES[name].jobs(options.jobs))
        failed = 0
        for name in names:
            failed += take_table(name, size, options.folder, options.jobs, report, console)
        return 1 if failed else 0

    return conclude(take, report, options, console)


def changed(
    size: Size,
    nodes: int | None,
    rounds: int | None,
    seeds: int | None,
    hostile: Sequence[int] | None = None,
    without: Sequence[str] | None = None,
) -> Size:
    """The size with other numbers, where given; other nodes or rounds have a folder of their own."""

    def scale(of: S) -> S:
        return replace(of, nodes=nodes or of.nodes, rounds=rounds or of.rounds, seeds=seeds or of.seeds)

    name = size.name + (f"-{nodes}-nodes" if nodes else "") + (f"-{rounds}-rounds" if rounds else "")
    without = size.without if without is None else tuple(without)
    size = replace(scale(size), name=name, hostile=tuple(hostile or size.hostile), without=without)
    return replace(
        size, real=scale(size.real), timed=scale(size.timed), clock=scale(size.clock), sampled=scale(size.sampled)
    )


def take_table(name: str, size: Size, folder: Path, jobs: int, report: Report, console: Console) -> int:
    """One table: its rows go into `report`, its files into the folder. Returns how many cells failed.

    When it is interrupted, the table is that of the cells that have finished.
    """
    table = TABLES[name]
    store = CellStore(folder / size.name / name)
    comparisons = table.comparisons(size)
    # Comparisons may have cells in common, such as the clean run.
    every = {cell.name: cell for each in comparisons for cells in each.cells.values() for cell in cells}
    in_order = sorted(every.values(), key=lambda cell: cell.seed)  # a table that was stopped has compared some seeds
    console.print(f"{name}: {len(in_order)} cells", highlight=False)
    store.check(in_order)
    try:
        return run_cells(in_order, store, table.jobs(jobs), lambda: False, console, CELL_MODULE)
    finally:
        write_table(name, size, comparisons, store, report)


def write_table(name: str, size: Size, comparisons: Sequence[Comparison], store: CellStore, report: Report) -> None:
    """The table of the cells that have finished."""
    table = TABLES[name]
    begun = [(each, section(each, store)) for each in comparisons]
    begun = [(comparison, each) for comparison, each in begun if any(each.outcomes.values())]
    if not begun:
        return
    found = Report("sharing", peer="baseline")
    for comparison, each in begun:
        found.add(table.findings(each.title, each.outcomes), [*table.notes, *comparison.notes])
    outcomes = [outcome for _, each in begun for row in each.outcomes.values() for outcome in row]
    found.add([], [f"{name}: {table.scale(size)}. {MEANS}", *stops_in_words(outcomes)])
    sections = [each for _, each in begun]
    texts = [f"{each.title}:\n\n{markdown(compare(each.outcomes), next(iter(each.outcomes)))}" for each in sections]
    store.folder.with_suffix(".md").write_text("\n".join([*texts, found.markdown()]))
    for each in sections:
        found.add(rows(each.title, each.outcomes))
    found.write(store.folder.with_suffix(".json"))
    write_comparisons(store.folder.with_suffix(".png"), sections)
    report.add(found.rows, found.notes)


def section(comparison: Comparison, store: CellStore) -> Section:
    """A comparison with its results so far."""
    return Section(comparison.title, {row: store.results(cells) for row, cells in comparison.cells.items()})


if __name__ == "__main__":
    sys.exit(main())
