"""What was seen of each node over time, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.report import Row, row
from benchmarks.soak.census import DESCRIPTORS, DISK, MEMORY, TEMPORARY, THREADS, Sample, growth
from benchmarks.soak.picture import draw

FOUNDER, PEERS, CHURNING_PEER = 0, (1, 2, 3), 4
LEARNER, WORKER, CHURNING_WORKER = 5, 6, 7
STAYING = (FOUNDER, *PEERS, LEARNER, WORKER)
LARGEST_GROWTH = {MEMORY: 0.05, DESCRIPTORS: 0.05, THREADS: 0.05, TEMPORARY: 0.0}
"""Of the last third over the third before it. The disk keeps a run's history, a line for each round."""
DISK_MIB_PER_ROUND = 0.02
"""Of the two kinds of lines, metrics and samples, and the samples end at a bound."""


@dataclass
class Course:
    """What was seen of one node."""

    name: str
    times: list[float] = field(default_factory=list)
    """Hours since the beginning."""
    samples: list[Sample] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def series(self, quantity: str) -> list[float]:
        """The values of a quantity."""
        return [sample.get(quantity, 0.0) for sample in self.samples]


def rows(courses: Sequence[Course], judged: bool) -> list[Row]:
    """The worst growth among the nodes that stayed, by quantity, and what the killed ones leave behind."""
    found = []
    staying = [courses[index] for index in STAYING]
    for quantity, most in LARGEST_GROWTH.items():
        grown = [value for course in staying if (value := growth(course.series(quantity))) is not None]
        target = 100 * most if judged else None
        worst = [100 * max(grown)] if grown else []
        what = f"{quantity} of the worst node, last third over the third before it"
        found.append(row(what, worst, "%", target=target, better="lower"))
    for index in (CHURNING_PEER, CHURNING_WORKER):
        left = max(courses[index].series(TEMPORARY), default=0.0)
        what = f"{courses[index].name}, killed again and again: most temporary files at any time"
        found.append(row(what, [left], ""))
    per_round = [value for course in staying if (value := _disk_per_round(course)) is not None]
    target = DISK_MIB_PER_ROUND if judged else None
    found.append(
        row("disk a round, the worst node", [max(per_round)] if per_round else [], "MiB", target=target, better="lower")
    )
    return found


def _disk_per_round(course: Course) -> float | None:
    """MiB a round since the first third of the time, when samples and checkpoints have reached their bounds."""
    since = len(course.samples) // 3
    done = course.rounds[-1] - course.rounds[since] if since else 0
    disk = course.series(DISK)
    return (disk[-1] - disk[since]) / done if done else None


def notes(courses: Sequence[Course]) -> list[str]:
    """Each node at the end."""
    quantities = (MEMORY, DESCRIPTORS, THREADS, DISK, TEMPORARY)
    said = []
    for course in courses:
        last = course.samples[-1] if course.samples else {}
        parts = ", ".join(f"{quantity} {last.get(quantity, 0):.0f}" for quantity in quantities)
        memory = ", ".join(
            f"{name[len(MEMORY) + 2 :]} {value:.0f}" for name, value in last.items() if f"{MEMORY}, " in name
        )
        said.append(
            f"{course.name} at the end: {parts} ({memory} MiB); {course.rounds[-1] if course.rounds else 0} rounds."
        )
    return said


def keep(courses: Sequence[Course], folder: Path) -> None:
    """Write the samples and draw them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        {"name": each.name, "hours": each.times, "samples": each.samples, "rounds": each.rounds} for each in courses
    ]
    (folder / "soak.json").write_text(json.dumps(written) + "\n")
    draw(courses, (MEMORY, DESCRIPTORS, THREADS, DISK, TEMPORARY), folder / "soak.png")
