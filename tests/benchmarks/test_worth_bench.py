from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.specialists import OTHERS_TASKS
from benchmarks.worth import swarms
from benchmarks.worth.__main__ import rows, spearman, verdict
from benchmarks.worth.found import Found, find
from benchmarks.worth.swarms import KINDS, Kind, swarm_and_controls
from nodes.simulation.cell import run_cell
from nodes.simulation.cells import CELL_FILE, CellStore, write
from swarm.policy.config import TINY, TINY_SPARSE
from swarm.types import Estimate

SMALL = (("generation.questions_per_round", "4"), ("generation.group_size", "4"), ("telemetry.worth_every_rounds", "1"))


def _found(ratio: float, estimate: float | None, noise: float = 0.0) -> Found:
    """A swarm whose nodes got `ratio` times what they got alone, on average; rewards rise from nothing."""
    rng = np.random.default_rng(0)
    alone = np.linspace(0, 0.4, 40) + noise * rng.normal(size=(3, 40))
    known = None if estimate is None else Estimate(estimate, estimate - 0.1, estimate + 0.1)
    together = ratio * (alone + noise * rng.normal(size=(3, 40)))
    return Found(together, alone, [known] * 3, [0.03] * 3, [0.5, None, 0.6], [0.5, 0.6, 0.7])


def test_rank_correlation_is_that_of_the_definition() -> None:
    ours, theirs = [0.9, 1.4, 3.0, 1.1], [0.8, 1.2, 1.1, 1.3]
    ranks = np.array([[1, 3, 4, 2], [1, 3, 2, 4]])
    assert spearman(ours, theirs) == pytest.approx(1 - 6 * ((ranks[0] - ranks[1]) ** 2).sum() / (4 * 15))
    assert spearman([1.0, 1.0, 2.0], [5.0, 5.0, 6.0]) == pytest.approx(1)
    assert spearman(ours[:2], theirs[:2]) is None


def test_signs_count_only_where_the_truth_is_significant() -> None:
    clear = [_found(1.5, 2.0), _found(0.8, 0.7), _found(1.2, 0.9)]
    unclear = _found(1.01, 0.5, noise=0.1)
    found = {row.what.partition(",")[0]: row for row in verdict([*clear, unclear, _found(2.0, None)])}
    assert found["same sign"].value == pytest.approx(2 / 3) and found["same sign"].met is False
    assert found["swarms with an estimate"].value == pytest.approx(4 / 5)
    assert found["cost"].met is True and found["cost"].n == 15


def test_the_truth_has_the_rewards_ratio_and_its_interval() -> None:
    estimated, predicted, true, time = rows("sparse", _found(1.5, 2.0, noise=0.01))
    assert (estimated.value, estimated.n) == (2.0, 3)
    assert predicted.value == pytest.approx(2.0, abs=0.1) and predicted.baseline == true.value
    assert true.spread is not None and true.spread[0] < 1.5 < true.spread[1]
    assert true.value == pytest.approx(1.5, abs=0.1)
    assert (time.value, time.baseline, time.n) == (0.55, 0.6, 2)


def test_controls_differ_from_their_nodes_in_the_others_alone(tmp_path: Path) -> None:
    swarm, controls = swarm_and_controls("specialists", KINDS["specialists"], 2, rounds=4)
    for member, control in zip(swarm.members(tmp_path), controls.members(tmp_path), strict=True):
        node, alone = member.config, control.config
        assert (alone.mix.local, alone.mix.external, alone.share.groups) == (8, 0, "none")
        assert alone.model_copy(update={"mix": node.mix, "share": node.share}) == node
    tasks = swarm.members(tmp_path)[1].config.tasks
    assert [task.name for task in tasks if task.weight > OTHERS_TASKS] == ["products", "count_bits", "simple_equations"]


def test_nodes_of_another_size_have_controls_of_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarms, "ensure_larger", lambda: tmp_path)
    for cell in swarm_and_controls("sizes", KINDS["sizes"], 1, rounds=4):
        policies = [member.config.policy for member in cell.members(tmp_path)]
        assert [policy.model for policy in policies] == [TINY_SPARSE, str(tmp_path), str(tmp_path)]
        assert [policy.system_prompt for policy in policies] == [None, "", ""]


def test_a_short_swarm_is_measured_beside_its_controls(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    pair = swarm_and_controls("dense", Kind((TINY,) * 2, local=2, external=2, settings=SMALL), 1, rounds=2)
    assert find(store, *pair) is None
    for cell in pair:
        folder = tmp_path / cell.name
        folder.mkdir()
        write(folder / CELL_FILE, cell)
        run_cell(folder, lambda: False, {})
    found = find(store, *pair)
    assert found is not None and found.together.shape == found.alone.shape == (2, 2)
    assert (found.together[:, 0] == found.alone[:, 0]).all(), "nobody has learned yet: the same questions and answers"
    assert found.estimates == [None, None] and all(0 < cost < 1 for cost in found.costs)
