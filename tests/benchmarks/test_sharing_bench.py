from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from benchmarks.common.larger import ensure_larger
from benchmarks.common.report import Report
from benchmarks.common.specialists import OTHERS_TASKS
from benchmarks.sharing import timed
from benchmarks.sharing.__main__ import DEFAULT, EVERY_SHORT, FULL, KINDS, QUICK, changed, main, take_table
from benchmarks.sharing.cell import HOSTILE, RECIPES
from benchmarks.sharing.clock import Target, clock_findings
from benchmarks.sharing.curves import accuracy_at, at_equal_cost, by_task, cost_to_reach, time_to_reach
from benchmarks.sharing.real_model import of_real_model
from benchmarks.sharing.swarms import (
    RealScale,
    Scale,
    Seating,
    Size,
    compare_mixes,
    late_joiners,
    sizes_and_tokenizers,
    specialists,
    strong_and_weak,
)
from benchmarks.sharing.table import rows
from benchmarks.sharing.tables import (
    TABLES,
    filtered,
    heterogeneous_targets,
    poison,
    poison_targets,
    sapo,
    sapo_targets,
)
from benchmarks.sharing.timed import by_time, node_cores
from nodes.simulation.cell import missing
from nodes.simulation.cells import CELL_FILE, RESULT_FILE, Cell, CellStore, alike, write
from nodes.simulation.configs import Member
from nodes.simulation.in_memory import MemoryRun, Turns
from swarm.config import load_config
from swarm.environments.mixture import TaskMixture
from swarm.environments.tiny import TINY_TASKS
from swarm.policy import tiny
from swarm.policy.config import TINY_SPARSE, PolicySettings
from swarm.policy.loading import load_policy
from swarm.telemetry.benefit.comparison import Evaluated, Point, SwarmOutcome
from swarm.telemetry.history import PeerHistory
from swarm.types import Grade
from tests.attacks.poison import Poison
from tests.telemetry.outcomes import node, swarm

RIGHT = {"wrong": 0, "inverted": 4, "gibberish": 4, "repetition": 4, "long": 4}


def _outcomes(**totals: tuple[float, ...]) -> dict[str, list[SwarmOutcome]]:
    """Cumulative rewards by row, one for each seed."""
    return {row: [swarm(row, seed, total) for seed, total in enumerate(each)] for row, each in totals.items()}


def test_the_default_is_held_against_a_node_alone() -> None:
    outcomes = _outcomes(**{"8/0": (10.0, 20.0), "4/4": (18.0, 30.0), "auto": (24.0, 36.0)})
    gain, loss = sapo_targets("sparse", outcomes)
    assert (gain.value, gain.target, gain.met, gain.n) == (2.0, 1.94, True, 2)
    assert gain.spread == pytest.approx((1.8, 2.4))
    assert (loss.target, loss.met) == (0.95, True)
    (only,) = sapo_targets("dense", _outcomes(**{"8/0": (10.0,), "auto": (9.4,)}))
    assert (only.value, only.met, only.spread) == (pytest.approx(0.94), False, None)
    (missing,) = sapo_targets("dense", _outcomes(**{"8/0": (10.0,), "auto": ()}))
    assert (missing.value, missing.met) == (None, False), "what was not measured is not met"


def test_the_default_is_held_against_the_best_fixed_mix_and_the_uniform_one() -> None:
    outcomes = _outcomes(**{"8/0": (9.0,), "6/2": (12.0,), "4/4": (10.0,), "2/6": (), "auto": (11.5,)})
    best, uniform = heterogeneous_targets("specialists", outcomes)
    assert "6/2" in best.what and best.value == pytest.approx(11.5 / 12) and best.met
    assert uniform.value == pytest.approx(1.15) and uniform.target == 1.15


def test_kinds_of_nodes_are_compared_each_with_itself() -> None:
    def mixed(row: str, strong: float, weak: float) -> list[SwarmOutcome]:
        nodes = [node([strong], "strong-1"), node([weak], "weak-1"), node([3 * weak], "weak-2")]
        return [SwarmOutcome(row, 0, nodes, 1.0)]

    found = rows("strong and weak", {"8/0": mixed("8/0", 1.0, 0.1), "4/4": mixed("4/4", 0.9, 0.3)})
    by_name = {each.what: each.value for each in found}
    name = "strong and weak, 4/4, {} nodes: cumulative reward against the first"
    assert by_name[name.format("strong")] == pytest.approx(0.9)
    assert by_name[name.format("weak")] == pytest.approx(3.0)
    assert by_name["strong and weak, 4/4: cumulative reward against the first"] == pytest.approx(2.1 / 1.4)


def test_honest_nodes_are_held_against_the_clean_run() -> None:
    outcomes = _outcomes(**{"clean": (10.0, 10.0), "all defences": (9.8, 9.4), "without any": (3.0, 3.0)})
    (row,) = poison_targets("copies, 4 of 8", outcomes)
    assert (row.value, row.target, row.met) == (pytest.approx(0.96), 0.97, False)
    by_name = {each.what: each for each in rows("copies, 4 of 8", outcomes)}
    assert by_name["copies, 4 of 8, without any: cumulative reward against the first"].value == pytest.approx(0.3)
    assert by_name["copies, 4 of 8, clean: drawdown"].value == 0.0
    assert all(each.met is None for each in by_name.values()), "only targets are met or not"


@pytest.mark.parametrize("kind", RECIPES)
def test_a_recipe_s_answers_are_as_right_as_it_means_them(kind: str) -> None:
    maker, mixture = Poison(RECIPES[kind], seed=1), TaskMixture(TINY_TASKS)
    for _ in range(20):
        group = maker.next(created_at=0.0)
        graded = mixture.grade(group.question, [completion.text for completion in group.completions])
        assert isinstance(graded, Grade)
        assert sum(graded.rewards) == RIGHT[kind]
        claimed = sum(claim == reward for claim, reward in zip(group.rewards, graded.rewards, strict=True))
        assert claimed == {"wrong": 4, "inverted": 0}.get(kind, 8)


def _members(cell: Cell) -> list[Member]:
    return cell.members(Path("out"))


def test_nodes_of_heterogeneous_swarms_differ_in_what_they_should() -> None:
    def first(seating: Seating) -> list[Member]:
        comparison = compare_mixes("title", ("8/0", "4/4"), QUICK, seating)
        assert [len(cells) for cells in comparison.cells.values()] == [QUICK.seeds] * 2
        return _members(comparison.cells["4/4"][0])

    strong = [member.config.policy.model for member in first(strong_and_weak(QUICK))]
    assert strong == ["tiny", "tiny-sparse", "tiny-sparse", "tiny-sparse"]
    asked = [{t.name for t in m.config.tasks if t.weight > OTHERS_TASKS} for m in first(specialists(QUICK))]
    assert [len(tasks) for tasks in asked] == [3] * 4 and not asked[0] & asked[1] and asked[0] == asked[3]
    late = first(late_joiners(QUICK))
    assert [(member.joins_at, member.config.rounds) for member in late] == [(0, 12)] * 2 + [(6, 6)] * 2
    sizes = [member.config.policy for member in first(sizes_and_tokenizers(QUICK, Path("larger")))]
    assert [policy.model for policy in sizes] == ["tiny-sparse"] * 2 + ["larger"] * 2
    assert sizes[0].threads == sizes[2].threads == 1, "settings of the embedded policy are the common ones"


@pytest.mark.parametrize("size", [QUICK, DEFAULT, FULL], ids=lambda size: size.name)
def test_poisoned_swarms_have_the_hostile_nodes_that_their_row_says(size: Size) -> None:
    for comparison in poison(size):
        kind, _, counts = comparison.title.partition(", ")
        for row, cells in comparison.cells.items():
            assert len(cells) == size.seeds
            for cell in cells:
                hostile = () if row == "clean" else (kind,) * int(counts.split()[0])
                assert cell.guests == hostile and kind in HOSTILE
                assert len(cell.seats) == size.nodes - int(counts.split()[0])
        config = _members(comparison.cells["without any"][0])[0].config
        assert config.watch.drop == 1 and config.mix.external_negative_weight == 1
    names = [c.name for each in poison(size) for cells in each.cells.values() for c in cells]
    assert len(set(names)) < len(names), "kinds share the clean run"


def test_sapo_s_mixes_have_the_same_questions_but_the_control_that_needs_more() -> None:
    sparse, dense = sapo(QUICK)
    configs = {mix: _members(cells[0])[0].config for mix, cells in sparse.cells.items()}
    assert list(configs) == ["8/0", "6/2", "4/4", "2/6", "20/0", "auto"]
    assert [config.generation.questions_per_round for config in configs.values()] == [8, 8, 8, 8, 20, 8]
    assert [config.mix.policy for config in configs.values()] == ["fixed"] * 5 + ["auto"]
    assert {config.policy.model for config in configs.values()} == {"tiny-sparse"}
    assert _members(dense.cells["auto"][0])[0].config.policy.model == "tiny"


def test_the_filter_s_swarms_differ_in_it_and_in_nothing_else() -> None:
    for comparison in filtered(QUICK):
        configs = {row: _members(cells[0])[0].config for row, cells in comparison.cells.items()}
        least = {row: config.pool.min_reward_std for row, config in configs.items()}
        assert least == {"8/0": 0, "off": None, "zero advantage": 0, "std above 0.35": 0.35, "std above 0.45": 0.45}
        assert [config.share.groups for config in configs.values()] == ["none", "all"] + ["informative"] * 3
        others = {config.model_dump_json(exclude={"pool", "share"}) for config in configs.values()}
        assert len(others) == 2, "the lone nodes' mix differs as well"


def test_hostile_peers_reach_a_node_and_are_found_out(tmp_path: Path) -> None:
    generation = {"questions_per_round": 2}
    small = {"generation": generation, "mix": {"local": 2}, "evaluation": {"num_questions": 0}, "rounds": 3}
    config = load_config(None, small).config
    members = [
        Member(config.model_copy(update={"name": seat.name, "out": tmp_path / seat.name, "seed": seat.seed}))
        for seat in alike(2, 1)
    ]
    turns = Turns()
    run = MemoryRun(members, lambda: False, turns)
    run.guests += [HOSTILE["gibberish"](run.hub, turns, 7), HOSTILE["copies"](run.hub, turns, 8)]
    while not run.done:
        run.take_turn(turns.taken)
        turns.taken += 1
    run.end()
    dropped = PeerHistory.read(tmp_path / "peer-1" / "metrics.jsonl").groups["dropped"]
    # Within a minute nobody can tell who copied.
    assert dropped["repeated"] == 24, "what the copyist took from the other hostile peer"
    assert dropped["improbable"] > 0, "of what that one wrote"


def _curve(row: str, seed: int, *nodes: list[tuple[float, float]]) -> SwarmOutcome:
    """Nodes by their (seconds, accuracy) at the start and every ten rounds; a token a second."""
    found = []
    for k, points in enumerate(nodes):
        evaluations = [
            Evaluated(10 * place, int(seconds), seconds, accuracy, {"sums": (round(20 * accuracy), 20)})
            for place, (seconds, accuracy) in enumerate(points)
        ]
        found.append(structs.replace(node([0.1] * 10, f"peer-{k + 1}"), evaluations=evaluations))
    return SwarmOutcome(row, seed, found, 1.0)


LONE = [_curve("alone", 0, [(0, 0.0), (100, 0.1), (200, 0.2)]), _curve("alone", 1, [(0, 0.0), (100, 0.2)])]
TOGETHER = [
    # Means over the nodes: 0.2 after 100 s, and 0.4.
    _curve("2 nodes", 0, [(0, 0.0), (90, 0.1)], [(0, 0.0), (110, 0.3)]),
    _curve("2 nodes", 1, [(0, 0.0), (100, 0.4)], [(0, 0.0), (100, 0.4)]),
]


def test_the_time_to_an_accuracy_is_interpolated_and_none_where_a_swarm_does_not_get_there() -> None:
    found = {each.what: each for each in time_to_reach("time", {"alone": LONE, "2 nodes": TOGETHER}, (0.1, 0.3))}
    alone = found["time, alone: time to a held-out accuracy of 10%"]
    assert (alone.value, alone.unit, alone.n) == (pytest.approx((100 + 50) / 2), "s", 2)
    together = found["time, 2 nodes: time to a held-out accuracy of 10%"]
    assert together.value == pytest.approx((50 + 25) / 2) and together.spread == pytest.approx((25, 50))
    against = found["time, 2 nodes: time to a held-out accuracy of 10%, against alone"]
    assert against.value == pytest.approx(0.5) and against.spread == pytest.approx((0.5, 0.5))
    assert found["time, alone: time to a held-out accuracy of 30%, reached by 0 of 2"].value is None
    assert found["time, 2 nodes: time to a held-out accuracy of 30%, reached by 1 of 2"].value is None
    assert len(found) == 5, "who does not get there is compared with nobody"


def test_processor_time_is_compared_with_that_of_the_best_lone_node() -> None:
    def of_processor(row: str, *seconds: float) -> list[SwarmOutcome]:
        found = []
        for seed, each in enumerate(seconds):
            evaluations = [Evaluated(0, 0, 0.0, 0.0, {}, 0.0), Evaluated(10, 9, 9.0, 0.2, {}, 2 * each)]
            found.append(SwarmOutcome(row, seed, [structs.replace(node([0.1]), evaluations=evaluations)], 1.0))
        return found

    outcomes = {
        "alone, 8 questions": of_processor("alone, 8 questions", 10.0, 12.0),
        "alone, 16 questions": of_processor("alone, 16 questions", 8.0, 12.0),
        "alone, auto": of_processor("alone, auto", 10.0, 11.0),
        "2 nodes": of_processor("2 nodes", 5.0, 5.0),
        "4 nodes": of_processor("4 nodes", 6.0, 6.0),
    }
    found = {each.what: each for each in clock_findings("clock", outcomes)}
    what = "processor time to 10%, against the best lone node, alone, 16 questions"
    four, two, auto = (found[f"clock, {row}: {what}"] for row in ("4 nodes", "2 nodes", "alone, auto"))
    assert (four.value, four.target, four.met) == (pytest.approx(0.6), 0.7, True)
    assert (two.value, two.met) == (pytest.approx(0.5), None)
    assert (auto.value, auto.met) == (pytest.approx(1.05), True)
    unknown = {row: [structs.replace(each, nodes=[node([0.1])]) for each in found] for row, found in outcomes.items()}
    assert not any(row.met for row in clock_findings("clock", unknown))
    real = Target((0.05, 0.2), decides=0.2, most=0.5)
    (row,) = (each for each in clock_findings("clock", outcomes, real) if each.target == 0.5)
    assert row.what == f"clock, 4 nodes: {what.replace('10%', '20%')}"
    assert (row.value, row.met) == (pytest.approx(0.6), False)
    few = clock_findings("clock", {**outcomes, "alone, 16 questions": [], "2 nodes": []})
    assert few[1].what == "clock, 4 nodes: processor time to 10%, against the best lone node, alone, auto"


def test_accuracies_are_compared_where_all_have_cost_the_same() -> None:
    found = {each.what: each for each in at_equal_cost("smollm2", {"8/0": LONE, "4/4": TOGETHER})}
    for unit in ("tokens", "s"):
        what = f"held-out accuracy after 100 {unit} a node"
        assert found[f"smollm2, 8/0: {what}"].value == pytest.approx((0.1 + 0.2) / 2)
        assert found[f"smollm2, 4/4: {what}"].value == pytest.approx((0.2 + 0.4) / 2)
        ratio = found[f"smollm2, 4/4: {what}, against 8/0"]
        assert ratio.value == pytest.approx(2.0) and ratio.met is None
    assert len(found) == 6
    assert at_equal_cost("smollm2", {"8/0": [], "4/4": []}) == [], "nothing has finished yet"


def test_accuracy_is_also_given_by_task() -> None:
    found = {each.what: each.value for each in by_task("smollm2", {"8/0": LONE[:1], "4/4": TOGETHER[:1]})}
    assert found["smollm2, 8/0: held-out accuracy on sums, before"] == 0
    assert found["smollm2, 8/0: held-out accuracy on sums, after"] == pytest.approx(0.2)
    assert found["smollm2, 4/4: held-out accuracy on sums, after"] == pytest.approx((0.1 + 0.3) / 2)
    assert found["smollm2, 4/4: held-out accuracy on sums, after, against 8/0"] == pytest.approx(1.0)


@pytest.mark.parametrize("size", [QUICK, DEFAULT, FULL], ids=lambda size: size.name)
def test_nodes_with_a_real_model_differ_in_the_mix_alone(size: Size) -> None:
    (comparison,) = of_real_model(size)
    scale, groups = size.real, size.real.groups
    rows = {row: _members(cells[0])[0].config for row, cells in comparison.cells.items()}
    assert list(rows) == ["alone", "alone, constant 1e-5", f"{scale.nodes} nodes"]
    assert [len(cells[0].seats) for cells in comparison.cells.values()] == [1, 1, scale.nodes]
    assert [config.update.learning_rate for config in rows.values()] == [2e-5, 1e-5, 2e-5]
    assert [config.update.schedule for config in rows.values()] == ["linear", "constant", "linear"]
    assert all(config.update.total_updates == config.rounds for config in rows.values())
    *lone, together = rows.values()
    for config in lone:
        assert (config.mix.policy, config.mix.local, config.mix.external) == ("fixed", groups, 0)
        assert (config.rounds, config.evaluation.num_questions) == (2 * scale.rounds, 2 * scale.evaluation)
    assert (together.mix.policy, together.mix.local, together.mix.external) == ("auto", groups, 3 * groups)
    assert (together.rounds, together.evaluation.num_questions) == (scale.rounds, scale.evaluation)
    for config in rows.values():
        assert config.policy.model == "smollm2" and config.policy.threads == 1
        assert [(task.name, task.find) for task in config.tasks] == [("sums", "last_number"), ("gcd", "last_number")]
        assert (config.generation.questions_per_round, config.evaluation.every_rounds) == (groups, scale.every)
    differing = {
        "mix": True,
        "share": True,
        "rounds": True,
        "evaluation": {"num_questions"},
        "update": {"total_updates"},
    }
    first, _, last = (config.model_dump_json(exclude=differing) for config in rows.values())
    assert first == last
    assert all(len(cells) == scale.seeds for cells in comparison.cells.values())
    assert TABLES["model"].jobs(8) == 8, "a swarm has one thread"


def test_a_real_model_is_trained_only_when_asked_for() -> None:
    assert set(TABLES) - set(EVERY_SHORT) == {"model"}


@pytest.mark.parametrize(("cores", "share"), [(2, 0.2), (16, 0.2), (1, 0.1)])
def test_every_node_has_the_same_share_of_a_core_in_swarms_of_every_size(
    cores: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed, "num_cores", lambda: cores)
    monkeypatch.setattr(timed, "missing", lambda: None)
    assert node_cores(8) == share and 8 * share <= cores
    (comparison,) = by_time(DEFAULT)
    assert list(comparison.cells) == ["alone", "2 nodes", "4 nodes", "8 nodes"]
    for count, cells in zip((1, 2, 4, 8), comparison.cells.values(), strict=True):
        for cell in cells:
            assert (cell.transport, cell.cores, len(cell.seats)) == ("hivemind", share, count)
            config = _members(cell)[0].config
            assert config.mix.external == (0 if count == 1 else 4)
            assert config.network.listen == ("/ip4/127.0.0.1/tcp/0",)
    assert comparison.notes == (f"Every node has {share} of a core.",)


def test_where_no_shares_can_be_made_swarms_run_one_by_one_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timed, "missing", lambda: "No control groups.")
    (comparison,) = by_time(QUICK)
    assert {cell.cores for cells in comparison.cells.values() for cell in cells} == {None}
    assert comparison.notes[0].startswith("No control groups.") and TABLES["time"].jobs(4) == 1


@pytest.mark.slow
def test_the_larger_policy_is_made_once_with_a_size_and_tokenizer_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recipe = replace(tiny.STARTS[TINY_SPARSE], questions_per_task=20, steps=3, batch_size=8, warmup_steps=2)
    monkeypatch.setitem(tiny.STARTS, TINY_SPARSE, recipe)
    larger = ensure_larger()
    assert ensure_larger(lambda done, total: pytest.fail("made twice")) == larger
    small = load_policy(PolicySettings(model=str(tiny.ensure_tiny(TINY_SPARSE))))
    policy = load_policy(PolicySettings(model=str(larger)))
    assert 2.5 < policy.model.num_parameters() / small.model.num_parameters() < 4
    assert policy.tokenizer_hash != small.tokenizer_hash
    assert len(policy.encode_prompt("2 cats")) > len(small.encode_prompt("2 cats"))


SHORT = Size(
    name="short",
    nodes=2,
    rounds=2,
    seeds=1,
    evaluation=4,
    starts=("sparse",),
    swarms=(),
    kinds=("gibberish",),
    hostile=(1,),
    without=("any",),
    each_policy=False,
    # The embedded policy in the real one's place.
    real=RealScale(nodes=2, rounds=2, seeds=1, evaluation=6, every=1, groups=2, policy="tiny"),
    timed=Scale(nodes=2, rounds=2, seeds=1, evaluation=4, every=1),
    clock=Scale(nodes=2, rounds=2, seeds=1, evaluation=4, every=1),
    sampled=Scale(nodes=2, rounds=2, seeds=1, evaluation=0),
)


@pytest.mark.slow
def test_a_short_table_has_rows_a_picture_and_finished_cells(tmp_path: Path) -> None:
    report = Report("sharing", peer="baseline")
    assert take_table("poison", SHORT, tmp_path, 1, report, Console(quiet=True)) == 0
    clean = json.loads((tmp_path / "short" / "poison" / "clean-1-nodes-seed0" / "result.json").read_text())
    (peer,) = clean["nodes"]
    by_name = {row.what: row for row in report.rows}
    total = by_name["gibberish, 1 of 2, clean: cumulative reward a node"]
    assert total.value == pytest.approx(sum(peer["rewards"])) and len(peer["rewards"]) == 2
    target = by_name["gibberish, 1 of 2: honest nodes against the clean run"]
    assert target.target == 0.97 and target.met is not None
    written = json.loads((tmp_path / "short" / "poison.json").read_text())
    assert [row["what"] for row in written["rows"]] == [row.what for row in report.rows]
    assert "| all defences |" in (tmp_path / "short" / "poison.md").read_text()
    assert (tmp_path / "short" / "poison.png").stat().st_size > 5_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "titles", "num_targets"),
    [
        ("sapo", ["sparse"], 2),
        ("heterogeneous", ["specialists"], 2),
        ("filter", ["sparse"], 0),
        ("clock", ["clock"], 0),
    ],
)
def test_a_short_run_of_every_other_table_in_memory(
    tmp_path: Path, name: str, titles: list[str], num_targets: int
) -> None:
    size = replace(SHORT, swarms=("specialists",))
    report = Report("sharing", peer="baseline")
    assert take_table(name, size, tmp_path, 2, report, Console(quiet=True)) == 0
    comparisons = TABLES[name].comparisons(size)
    assert [each.title for each in comparisons] == titles
    measured = {row.what for row in report.rows}
    for each in comparisons:
        for row in each.cells:
            costs = ("tokens a node", "seconds a node")
            for figure in ("cumulative reward a node", "held-out accuracy", "drawdown", *costs):
                assert f"{each.title}, {row}: {figure}" in measured
    targets = [row for row in report.rows if row.target is not None]
    assert len(targets) == num_targets and all(row.met is not None for row in targets)
    assert {path.suffix for path in (tmp_path / "short").glob(f"{name}.*")} == {".json", ".md", ".png"}


@pytest.mark.slow
def test_a_short_table_of_the_real_model_has_what_accuracy_costs(tmp_path: Path) -> None:
    report = Report("sharing", peer="baseline")
    TABLES["model"].prepare(SHORT, Console(quiet=True), 2)
    assert take_table("model", SHORT, tmp_path, 2, report, Console(quiet=True)) == 0
    result = json.loads((tmp_path / "short" / "model" / "tiny-2-nodes-seed0" / "result.json").read_text())
    for peer in result["nodes"]:
        start, middle, end = peer["evaluations"]
        assert [each["round"] for each in peer["evaluations"]] == [0, 1, 2]
        assert (start["tokens"], start["seconds"]) == (0, 0)
        assert 0 < middle["tokens"] < end["tokens"] == peer["tokens"] and 0 < middle["seconds"] < end["seconds"]
        assert set(end["tasks"]) == {"sums", "gcd"}
    by_name = {row.what: row for row in report.rows}
    tokens = by_name["tiny, 2 nodes, after 2 rounds: tokens a node"].value
    assert tokens == sum(peer["tokens"] for peer in result["nodes"]) / 2
    assert all(row.met is None for row in report.rows), "only from four nodes on there is a target"
    written = json.loads((tmp_path / "short" / "model.json").read_text())
    assert [row["what"] for row in written["rows"]] == [row.what for row in report.rows]
    text = (tmp_path / "short" / "model.md").read_text()
    assert "| 2 nodes |" in text and "held-out accuracy on gcd, after" in text
    assert (tmp_path / "short" / "model.png").stat().st_size > 10_000
    # A second run has nothing left to do.
    again = Report("sharing", peer="baseline")
    assert take_table("model", SHORT, tmp_path, 2, again, Console(quiet=True)) == 0
    assert again.rows == report.rows


@pytest.mark.slow
@pytest.mark.network
def test_a_short_table_of_time_is_one_of_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "NODE_CORES", 0.5)  # two nodes start sooner than eight
    report = Report("sharing", peer="baseline")
    assert take_table("time", SHORT, tmp_path, 2, report, Console(quiet=True)) == 0
    cell = json.loads((tmp_path / "short" / "time" / "2-nodes-seed0" / "cell.json").read_text())
    assert cell["transport"] == "hivemind" and cell["cores"] == (None if missing() else node_cores(2))
    by_name = {row.what: row for row in report.rows}
    for name in ("alone", "2 nodes"):
        assert by_name[f"time, {name}, after 2 rounds: seconds a node"].value > 0
        assert any(what.startswith(f"time, {name}: time to a held-out accuracy") for what in by_name)
    assert (tmp_path / "short" / "time.png").stat().st_size > 10_000


def test_an_interrupted_table_shows_what_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(num_cells: int) -> Callable[..., int]:
        def run(cells: Sequence[Cell], store: CellStore, *_: object) -> int:
            for cell in cells[:num_cells]:
                (store.folder / cell.name).mkdir(parents=True)
                write(store.folder / cell.name / CELL_FILE, cell)
                write(store.folder / cell.name / RESULT_FILE, swarm(cell.row, cell.seed, 3.0))
            raise KeyboardInterrupt

        return run

    report = Report("sharing", peer="baseline")
    for num_cells in (0, 1):
        monkeypatch.setattr("benchmarks.sharing.__main__.run_cells", finish(num_cells))
        with pytest.raises(KeyboardInterrupt):
            take_table("poison", SHORT, tmp_path, 1, report, Console(quiet=True))
        assert (tmp_path / "short" / "poison.md").exists() == (num_cells > 0)
    found = {row.what: row for row in report.rows}
    assert found["gibberish, 1 of 2, clean: cumulative reward a node"].value == pytest.approx(3.0)
    assert found["gibberish, 1 of 2: honest nodes against the clean run"].met is False, "it was not measured"


def test_sizes_may_be_chosen_and_other_sizes_share_no_results() -> None:
    assert changed(FULL, None, None, None) == FULL
    fewer = changed(FULL, 16, 60, 3)
    assert (fewer.nodes, fewer.rounds, fewer.seeds, fewer.timed.rounds, fewer.real.seeds) == (16, 60, 3, 60, 3)
    assert len({fewer.name, changed(FULL, None, 60, 3).name, changed(FULL, 16, None, 3).name, FULL.name}) == 4
    assert changed(DEFAULT, None, None, 3).name == DEFAULT.name, "seeds are cells of the same table"


def test_the_number_of_hostile_nodes_may_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    size = changed(DEFAULT, None, None, 1, [1, 2])
    assert size.name == DEFAULT.name
    assert [each.title for each in poison(size)] == [f"{kind}, {n} of 8" for n in (1, 2) for kind in KINDS]
    with pytest.raises(SystemExit):
        main(["--only", "poison", "--hostile", "8"])
    assert "from 1 to 7, got 8" in capsys.readouterr().err


def test_the_defences_that_are_switched_off_may_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    def rows_of(without: list[str] | None) -> list[str]:
        return list(poison(changed(DEFAULT, None, None, 1, [1], without))[0].cells)

    assert rows_of(None) == ["clean", "all defences", "without any"]
    assert rows_of([]) == ["clean", "all defences"]
    assert rows_of(["fence"]) == ["clean", "all defences", "without fence"]
    with pytest.raises(SystemExit):
        main(["--only", "poison", "--without", "regrading"])
    assert "regrading" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--nodes", "--rounds", "--seeds", "--hostile", "--jobs"])
def test_counts_below_one_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("0", "-3", "few"):
        with pytest.raises(SystemExit):
            main([option, value])
        assert f"{option}: must be a whole number of at least 1, got {value}" in capsys.readouterr().err


def test_costs_and_accuracies_are_interpolated_between_evaluations() -> None:
    curve = [Point(0, 0, 0.0, 0.1), Point(10, 100, 20.0, 0.3), Point(20, 200, 40.0, 0.2), Point(30, 300, 60.0, 0.6)]
    assert accuracy_at(curve, "tokens", 50) == pytest.approx(0.2)
    assert accuracy_at(curve, "seconds", 50) == pytest.approx(0.4)
    assert accuracy_at(curve, "seconds", 99) == 0.6, "the last one beyond the last"
    assert cost_to_reach(curve, "seconds", 0.1) == 0.0
    assert cost_to_reach(curve, "seconds", 0.25) == pytest.approx(15.0), "at first, although it falls again"
    assert cost_to_reach(curve, "tokens", 0.5) == pytest.approx(275.0)
    assert cost_to_reach(curve, "tokens", 0.7) is None
    assert cost_to_reach([], "tokens", 0.1) is None
