"""What sharing brings, and what hostile nodes cost: mixes, heterogeneous swarms, poison, the filter; in memory.

cells of all tables ──▶ run those without a result, side by side ──▶ FOLDER/SIZE/NAME.json, .md, .png
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.common.report import Report
from benchmarks.common.running import conclude, option_parser, wide_console
from benchmarks.sharing.swarms import Comparison, Size
from benchmarks.sharing.tables import TABLES, rows
from nodes.simulation.cells import CellStore
from nodes.simulation.schedule import run_cells
from swarm.machine import num_cores
from swarm.telemetry.comparison.picture import Section, write_comparisons
from swarm.telemetry.comparison.table import compare, markdown

STARTS = ("sparse", "dense")
SWARMS = ("strong and weak", "specialists", "sizes and tokenizers", "late joiners")
KINDS = ("wrong", "inverted", "copies", "gibberish", "repetition", "long")
QUICK = Size("quick", 4, 12, 1, 36, STARTS, SWARMS, ("copies", "gibberish"), (2,), each_defence=False)
DEFAULT = Size("default", 8, 60, 5, 180, STARTS, SWARMS, KINDS, (4,), each_defence=False)
FULL = Size("full", 8, 200, 5, 360, STARTS, SWARMS, KINDS, (1, 2, 4), each_defence=True)
CELL_MODULE = "benchmarks.sharing.cell"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are missing, then print and write the tables."""
    parser = option_parser("sharing", __doc__, TABLES)
    parser.add_argument("--full", action="store_true", help="every size, kind and defence: hours")
    parser.add_argument("--folder", type=Path, default=Path("runs/sharing"), help="finished cells, tables and pictures")
    parser.add_argument("--jobs", type=int, default=num_cores(), help="cells at a time")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else FULL if options.full else DEFAULT
    report, console = Report("sharing", peer="baseline"), wide_console()

    def take() -> int:
        failed = 0
        for name in options.only or TABLES:
            failed += take_table(name, size, options.folder, options.jobs, report, console)
        return 1 if failed else 0

    return conclude(take, report, options, console)


def take_table(name: str, size: Size, folder: Path, jobs: int, report: Report, console: Console) -> int:
    """One table: its rows go into `report`, its files into the folder. Returns how many cells failed."""
    table = TABLES[name]
    store = CellStore(folder / size.name / name)
    comparisons = table.comparisons(size, folder)
    # Comparisons may have cells in common, such as the clean run.
    every = {cell.name: cell for each in comparisons for cells in each.cells.values() for cell in cells}
    console.print(f"{name}: {len(every)} cells", highlight=False)
    failed = run_cells(list(every.values()), store, jobs, lambda: False, console, CELL_MODULE)
    sections = [section(comparison, store) for comparison in comparisons]
    own = Report("sharing", peer="baseline")
    for each in sections:
        own.add([*table.targets(each.title, each.outcomes), *rows(each.title, each.outcomes)], table.notes)
    report.add(own.rows, [*table.notes, _size_note(size)])
    own.write(folder / size.name / f"{name}.json")
    texts = [f"{each.title}:\n\n{markdown(compare(each.outcomes), next(iter(each.outcomes)))}" for each in sections]
    (folder / size.name / f"{name}.md").write_text("\n".join(texts))
    write_comparisons(folder / size.name / f"{name}.png", sections)
    return failed


def section(comparison: Comparison, store: CellStore) -> Section:
    """A comparison with its results so far."""
    return Section(comparison.title, {row: store.results(cells) for row, cells in comparison.cells.items()})


def _size_note(size: Size) -> str:
    return (
        f"{size.nodes} nodes, {size.rounds} rounds, {size.seeds} seeds, {size.evaluation} held-out questions. Values "
        "are means over nodes and seeds; spread: bootstrap 95% intervals over the seeds."
    )


if __name__ == "__main__":
    sys.exit(main())
