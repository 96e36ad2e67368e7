"""Batches that flow into each other's slots, against batches one after another: `max_staleness` 2, real processes.

Completions of a random model end at random stop tokens, so that lengths are geometric: nearly as uneven as log-normal
ones, the longest of a batch about five times the mean.
"""

from __future__ import annotations

from statistics import fmean

from benchmarks.common.report import Row, row
from benchmarks.engine.ahead import Load, Training, saved
from benchmarks.engine.generation import Workload, random_policy
from swarm.figures import LAG_MAX, SLOTS_BUSY
from swarm.groups.flow import BATCHES_A_CALL

STALENESS = 2
SIZE = "0.13 M"
LOAD = Load(24, 8, 320, 12)
QUICK = Load(6, 2, 32, 3)
SLOTS_SHARE = 6
"""A batch has so many times the sequences that are sampled together."""
TRAINED_SHARE = 4
"""An update trains on so small a part of a batch, so that generation is what takes time."""
TARGET = 0.95


def flowing(quick: bool, repeats: int) -> tuple[list[Row], list[str]]:
    """Share of the slots that is busy, and what a token costs, interleaved."""
    load = QUICK if quick else LOAD
    stop_tokens = Workload().stop_tokens(random_policy(SIZE))
    busy: dict[int, list[float]] = {1: [], BATCHES_A_CALL: []}
    tokens_per_s: dict[int, list[float]] = {1: [], BATCHES_A_CALL: []}
    with saved(SIZE) as model:
        trainings = {
            batches: Training(
                model,
                load,
                STALENESS,
                batches_a_call=batches,
                slots=load.questions * load.group_size // SLOTS_SHARE,
                stop_tokens=stop_tokens,
                trained=max(1, load.questions // TRAINED_SHARE),
            )
            for batches in busy
        }
        try:
            for _ in range(repeats):
                for batches, training in trainings.items():
                    training.rounds_per_s(load.rounds)
                    reports = training.reports
                    assert max(report.update.figures[LAG_MAX] for report in reports) <= STALENESS
                    busy[batches].append(fmean(report.figures[SLOTS_BUSY] for report in reports))
                    tokens_per_s[batches].append(fmean(report.num_tokens for report in reports) / training.beside_s)
        finally:
            for training in trainings.values():
                training.close()
    return [
        row("share of busy slots", busy[BATCHES_A_CALL], "", baseline=busy[1], target=TARGET),
        row("tokens per processor second", tokens_per_s[BATCHES_A_CALL], "tokens/s", baseline=tokens_per_s[1]),
    ], [
        f"{SIZE} parameters, {load.questions} questions x {load.group_size} completions a batch, of which a "
        f"{SLOTS_SHARE}th part is sampled together, {load.rounds} rounds of each in turns; processor time of the "
        "generating process. The baseline begins a batch when the one before has ended."
    ]
