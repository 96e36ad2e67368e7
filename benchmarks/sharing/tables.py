"""The tables: which cells each compares, and what it looks for in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from rich.console import Console

from benchmarks.common.larger import LARGER, ensure_larger
from benchmarks.common.report import Row
from benchmarks.sharing import clock, real_model, sampled, timed
from benchmarks.sharing.swarms import (
    ALONE,
    AUTO,
    START_MODELS,
    UNIFORM,
    Comparison,
    Seating,
    Size,
    compare_mixes,
    late_joiners,
    peers,
    sizes_and_tokenizers,
    specialists,
    strong_and_weak,
    swarm_cells,
)
from benchmarks.sharing.table import Outcomes, Table, target_row
from nodes.console import policy_progress
from nodes.simulation.cells import Cell
from nodes.simulation.configs import Fields
from swarm.telemetry.benefit.comparison import Estimate, SwarmOutcome, ratio

FIXED = (ALONE, "6/2", UNIFORM, "2/6")
"""SAPO's. Source: arXiv:2509.08721, section 5."""
FEW_OWN = ("1/7", "0/8")
POLICIES = ("worth", "edge", "advantage", "positive", "novelty")
OWN_OF_POLICIES = "2/6"
"""Own and others' groups of an update by these policies: the best fixed mix."""
MORE_ALONE = "20/0"
"""The honest control: a lone node that generates 2.5 times as many completions, and trains on all."""

SAPO_GAIN = 1.94
"""The paper's, from 4/4."""
MOST_LOST = 0.95
OVER_UNIFORM = 1.15
BEST_FIXED = 0.95
UNHARMED = 0.97

DEFENCES: dict[str, Fields] = {
    "fence": [("plausibility.fence", "1000000"), ("plausibility.slack_nats", "1000000")],
    "watch": [("watch.drop", "1")],
    "weight": [("mix.external_negative_weight", "1")],
}
"""How to switch each off."""
WITHOUT_ANY = "any"
DEFENDED = "all defences"
FILTERS: dict[str, Fields] = {
    "off": [("pool.min_reward_std", "null"), ("share.groups", "all")],
    "zero advantage": [],
    "std above 0.35": [("pool.min_reward_std", "0.35")],
    "std above 0.45": [("pool.min_reward_std", "0.45")],
}
"""Of 8 binary rewards the standard deviation is 0.33, 0.43, 0.48 or 0.5 with 1, 2, 3 or 4 right ones."""


def sapo(size: Size) -> list[Comparison]:
    """SAPO's mixes, the honest control and `auto`, from each start."""
    mixes = (*FIXED, MORE_ALONE, AUTO)
    return [compare_mixes(start, mixes, size, peers(size.nodes), START_MODELS[start]) for start in size.starts]


def sapo_targets(title: str, outcomes: Outcomes) -> list[Row]:
    """`auto` against a node alone."""
    found = ratio(outcomes[AUTO], outcomes[ALONE])
    what = f"{title}: {AUTO} against {ALONE}"
    rows = [target_row(f"{what}, at most 5% lost", found, MOST_LOST)]
    if title == "sparse":
        rows.insert(0, target_row(f"{what}, the paper's gain", found, SAPO_GAIN))
    return rows


def heterogeneous(size: Size) -> list[Comparison]:
    """Nodes that differ, with fixed mixes and `auto`."""
    seatings = {
        "strong and weak": lambda: strong_and_weak(size),
        "specialists": lambda: specialists(size),
        "sizes and tokenizers": lambda: sizes_and_tokenizers(size, ensure_larger()),
        "late joiners": lambda: late_joiners(size),
    }
    comparisons = []
    for name in size.swarms:
        seating = seatings[name]()
        mixes = (*FIXED, *(FEW_OWN if size.each_policy else ()), AUTO)
        compared = compare_mixes(name, mixes, size, seating)
        others = _with_each_policy(name, size, seating) if size.each_policy else {}
        comparisons.append(replace(compared, cells={**compared.cells, **others}))
    return comparisons


def _with_each_policy(title: str, size: Size, seating: Seating) -> dict[str, list[Cell]]:
    """Cells of the other mixing policies, each with the best fixed numbers of own and of others' groups."""
    local, external = OWN_OF_POLICIES.split("/")
    changes: Fields = [
        ("mix.local", local),
        ("mix.external", external),
        ("generation.questions_per_round", str(int(local) + int(external))),
    ]
    rows = {policy: f"{policy}, {OWN_OF_POLICIES}" for policy in POLICIES}
    return {
        row: swarm_cells(f"{title}, {row}", size, seating, START_MODELS["sparse"], policy, changes)
        for policy, row in rows.items()
    }


def prepare_heterogeneous(size: Size, console: Console, jobs: int) -> None:
    """Make the larger policy, once. Raises `PolicyError`."""
    with policy_progress(console, LARGER) as progress:
        ensure_larger(progress)


def heterogeneous_targets(title: str, outcomes: Outcomes) -> list[Row]:
    """`auto` against the best fixed mix, which a user does not know, and against the uniform one."""
    fixed = {mix: outcomes[mix] for mix in FIXED if outcomes[mix]}
    best = max(fixed, key=lambda mix: _mean_reward(fixed[mix]), default=ALONE)
    return [
        target_row(f"{title}: {AUTO} against the best fixed mix, {best}", _against(outcomes, best), BEST_FIXED),
        target_row(f"{title}: {AUTO} against {UNIFORM}", _against(outcomes, UNIFORM), OVER_UNIFORM),
    ]


def poison(size: Size) -> list[Comparison]:
    """The honest nodes without the hostile ones, with them, and without defences."""
    comparisons = []
    for num_hostile in size.hostile:
        honest = peers(size.nodes - num_hostile)

        def cells(row: str, guests: Sequence[str] = (), changes: Fields = (), honest: Seating = honest) -> list[Cell]:
            return swarm_cells(row, size, honest, START_MODELS["dense"], UNIFORM, changes, guests)

        clean = cells(f"clean, {size.nodes - num_hostile} nodes")
        for kind in size.kinds:
            title, guests = f"{kind}, {num_hostile} of {size.nodes}", (kind,) * num_hostile
            compared = {"clean": clean, DEFENDED: cells(f"{title}, {DEFENDED}", guests)}
            for name, changes in _without(size.without).items():
                compared[name] = cells(f"{title}, {name}", guests, changes)
            comparisons.append(Comparison(title, compared))
    return comparisons


def poison_targets(title: str, outcomes: Outcomes) -> list[Row]:
    """The honest nodes' reward against that of the same nodes without the hostile ones."""
    found = ratio(outcomes[DEFENDED], outcomes["clean"])
    return [target_row(f"{title}: honest nodes against the clean run", found, UNHARMED)]


def filtered(size: Size) -> list[Comparison]:
    """The filter of others' groups, from each start."""
    comparisons = []
    for start in size.starts:
        alone = swarm_cells(f"{start}, {ALONE}", size, peers(size.nodes), START_MODELS[start], ALONE)
        compared = {ALONE: alone}
        for name, changes in FILTERS.items():
            row = f"{start}, {name}"
            compared[name] = swarm_cells(row, size, peers(size.nodes), START_MODELS[start], UNIFORM, changes)
        comparisons.append(Comparison(start, compared))
    return comparisons


def no_targets(title: str, outcomes: Outcomes) -> list[Row]:
    """An ablation: nothing to reach."""
    return []


TABLES = {
    "sapo": Table(
        sapo,
        sapo_targets,
        (
            f"{MORE_ALONE}: alone with 2.5 times the completions, all of them trained on. sparse, dense: the embedded "
            "policies `tiny-sparse` and `tiny`.",
        ),
    ),
    "heterogeneous": Table(
        heterogeneous,
        heterogeneous_targets,
        (
            "strong and weak: a quarter starts dense, the rest sparse. specialists: each asks a third of the tasks and "
            "is asked these at the end. sizes and tokenizers: half has 2.75 times the parameters and another "
            "tokenizer. late joiners: half comes after half of the rounds. All others start sparse.",
        ),
        prepare=prepare_heterogeneous,
    ),
    "poison": Table(
        poison,
        poison_targets,
        (
            "The clean run has the same honest nodes and nobody else; all start dense, with 4/4. A hostile node "
            "publishes 8 groups a round. The fence, the watch and the lower weight of others' bad answers can be "
            "switched off; regrading, quotas and the search for copies always work.",
        ),
    ),
    "filter": Table(
        filtered,
        no_targets,
        (
            f"All but {ALONE} with {UNIFORM}. The filter is on others' groups, by the receiver's own rewards; off: "
            "those without signal are shared and drawn, too. Own groups without signal are never trained on.",
        ),
    ),
    "model": Table(
        real_model.of_real_model,
        real_model.real_model_findings,
        (real_model.NOTE,),
        scale=attrgetter("real"),
        prepare=real_model.prepare_real_model,
        only_when_named=True,
    ),
    "time": Table(
        timed.by_time,
        timed.time_findings,
        (timed.NOTE,),
        scale=attrgetter("timed"),
        jobs=timed.time_jobs,
    ),
    "clock": Table(clock.by_clock, clock.clock_findings, (clock.NOTE,), scale=attrgetter("clock")),
    "sampled": Table(sampled.of_samples, sampled.sample_findings, (sampled.NOTE,), scale=attrgetter("sampled")),
}


def _without(defences: Sequence[str]) -> dict[str, Fields]:
    """Changes that switch off each of these, by row."""
    every = [field for fields in DEFENCES.values() for field in fields]
    return {f"without {name}": DEFENCES.get(name, every) for name in defences}


def _against(outcomes: Outcomes, mix: str) -> Estimate | None:
    return ratio(outcomes[AUTO], outcomes[mix])


def _mean_reward(outcomes: Sequence[SwarmOutcome]) -> float:
    return sum(outcome.cumulative_reward for outcome in outcomes) / len(outcomes)
