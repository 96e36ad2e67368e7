"""Sweeps: cells in memory, their results, and the table made of them."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from benchmarks.common.children import until
from nodes.cli.options import repeat_option
from nodes.commands import sweep as command
from nodes.commands.sweep import SweepOptions, sweep, sweep_cells
from nodes.simulation import cells as schedule
from nodes.simulation.cell import run_cell
from nodes.simulation.cells import (
    CELL_FILE,
    RESULT_FILE,
    STOPPED_FILE,
    Cell,
    CellStore,
    Stopped,
    alike,
    complete,
    read,
    run_cells,
    write,
)
from nodes.simulation.configs import as_fields, mix_configs, real_model
from swarm.config import load_config
from swarm.errors import ConfigError
from swarm.schedule import AskedPause, ask, withdraw
from swarm.telemetry.benefit.comparison import NodeOutcome, SwarmOutcome, stops_in_words
from swarm.telemetry.history import PeerHistory

SMALL = [
    ("generation.questions_per_round", "2"),
    ("generation.group_size", "4"),
    ("evaluation.num_questions", "4"),
    ("watch.window_rounds", "2"),
]
QUIET = Console(quiet=True)
ROUNDS = 40
"""Far more than are made before a stop."""


def _never() -> bool:
    return False


@pytest.fixture(autouse=True)
def _no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "StopRequest", lambda: _never)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SweepOptions]:
    """A sweep of two mixes with one seed: two peers, three rounds."""
    out = tmp_path_factory.mktemp("sweep")
    options = SweepOptions(None, SMALL, ("2/0", "1/1"), 1, 2, 3, out, "memory", 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command, "StopRequest", lambda: _never)
        assert sweep(options, QUIET) == 0
    yield options


def _without_time(outcome: SwarmOutcome) -> list[NodeOutcome]:
    """What may not depend on the machine."""
    return [
        replace(
            node, evaluations=[replace(each, seconds=0.0, processor_s=0.0) for each in node.evaluations], seconds=None
        )
        for node in outcome.nodes
    ]


def _events(folder: Path, kind: str) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.parametrize(("given", "in_file", "expected"), [(3, 7, 3), (None, 7, 7), (None, None, 100)])
def test_rounds_are_those_given_or_the_files(
    tmp_path: Path, given: int | None, in_file: int | None, expected: int
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("name: mine\n" if in_file is None else f"rounds: {in_file}\n")
    (cell,) = sweep_cells(SweepOptions(file, SMALL, ("1/1",), 1, 2, given, tmp_path, "memory", 1))
    assert [member.config.rounds for member in cell.members(tmp_path)] == [expected] * 2


@pytest.mark.slow
def test_the_table_says_what_the_histories_say(finished: SweepOptions) -> None:
    found = json.loads((finished.out / "sweep.json").read_text())
    assert [row["row"] for row in found["rows"]] == ["2/0", "1/1"] and found["baseline"] == "2/0"
    totals = []
    for row in found["rows"]:
        peers = [finished.out / "cells" / f"{row['row'].replace('/', '-')}-seed0" / f"peer-{k}" for k in (1, 2)]
        rounds = [_events(peer, "round") for peer in peers]
        assert [len(each) for each in rounds] == [3, 3]
        totals.append(sum(event["reward"] for each in rounds for event in each) / 2)
        assert row["cumulative_reward"]["value"] == pytest.approx(totals[-1])
        last = [each[-1] for each in rounds]
        assert row["tokens"]["value"] == sum(event["tokens_generated"] for event in last) / 2
        signal = [event["groups"]["generated"] - event["groups"]["local"].get("zero_advantage", 0) for event in last]
        assert row["signal"]["value"] == pytest.approx(sum(signal) / 6)
        others = sum(event["groups"]["used_external"] for event in last)
        assert row["others_used"]["value"] == pytest.approx(others / 6)
        after = [_events(peer, "evaluation")[-1]["accuracy"] for peer in peers]
        assert row["accuracy"]["value"] == pytest.approx(sum(after) / 2)
        assert not any((peer / "checkpoints").exists() for peer in peers)
    ratio = found["rows"][1]["ratio"]
    if totals[0]:
        assert ratio["value"] == pytest.approx(totals[1] / totals[0])
    else:
        assert ratio is None
    assert (finished.out / "sweep.png").stat().st_size > 5_000
    table = (finished.out / "sweep.md").read_text()
    assert "| 1/1 |" in table and "against 2/0" in table


@pytest.mark.slow
def test_nobody_takes_from_others_at_2_0_and_questions_are_the_same(finished: SweepOptions) -> None:
    alone, together = (finished.out / "cells" / name for name in ("2-0-seed0", "1-1-seed0"))
    groups = [_events(folder / "peer-2", "round")[-1]["groups"] for folder in (alone, together)]
    assert [each["generated"] for each in groups] == [6, 6]
    assert groups[0]["received"] == groups[0]["shared"] == 0
    before = [_events(folder / "peer-2", "evaluation")[0]["accuracy"] for folder in (alone, together)]
    assert before[0] == before[1], "the same policy before the first round"
    first = [_events(folder / "peer-2", "round")[0]["reward"] for folder in (alone, together)]
    assert first[0] == first[1], "and the same questions in it"


@pytest.mark.slow
def test_a_finished_cell_is_not_run_again(finished: SweepOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: object) -> None:
        raise AssertionError("a cell was started")

    monkeypatch.setattr(schedule, "Child", start)
    (finished.out / "sweep.md").unlink()
    assert sweep(finished, QUIET) == 0
    assert "| 1/1 |" in (finished.out / "sweep.md").read_text()


@pytest.mark.slow
def test_another_configuration_is_refused_and_says_what_differs(finished: SweepOptions) -> None:
    other = replace(finished, fields=[*SMALL, ("update.learning_rate", "0.5"), ("mix.fill", "local")])
    with pytest.raises(ConfigError, match=r"2/0, seed 0.*mix.fill: none there, local now; update.learning_rate"):
        sweep(other, QUIET)
    with pytest.raises(ConfigError, match="peer-3"):
        sweep(replace(finished, peers=3), QUIET)
    with pytest.raises(ConfigError, match="rounds: 3 there, 4 now"):
        sweep(replace(finished, rounds=4), QUIET)


def _run_until_some_rounds(cell: Cell, store: CellStore) -> None:
    metrics = store.folder / cell.name / "peer-1" / "metrics.jsonl"
    assert run_cells([cell], store, 1, lambda: metrics.exists() and '"round":3,' in metrics.read_text(), QUIET) == 0
    assert store.results([cell]) == [], "it was stopped on its way"


@pytest.mark.slow
def test_a_cell_that_was_stopped_counts_for_nothing_and_goes_on(finished: SweepOptions, tmp_path: Path) -> None:
    (cell,) = sweep_cells(replace(finished, mixes=("1/1",), rounds=ROUNDS))
    store, folder = CellStore(tmp_path), tmp_path / cell.name
    _run_until_some_rounds(cell, store)
    stopped = read(folder / STOPPED_FILE, Stopped)
    first = _events(folder / "peer-1", "round")
    assert (stopped.times, stopped.turns) in [(1, len(first)), (1, len(first) - 1)] and stopped.cpu_s > 0
    assert run_cells([cell], store, 1, _never, QUIET) == 0
    (again,) = store.results([cell])
    assert again.stops == 1 and again.cpu_s > stopped.cpu_s and not (folder / STOPPED_FILE).exists()
    rounds = _events(folder / "peer-1", "round")
    assert rounds[: len(first)] == first, "what was done stays"
    assert [event["round"] for event in rounds] == list(range(1, ROUNDS + 1)), "no round is repeated"
    assert again.nodes[0].rewards == [event["reward"] for event in rounds]
    assert again.nodes[1].groups["used_external"] > 0
    (line,) = stops_in_words([again])
    assert "1/1 with seed 0" in line and "offered" in line and "(worth, plausibility)" in line


@pytest.mark.slow
def test_after_a_stop_no_node_is_ahead_by_more_than_a_round(finished: SweepOptions, tmp_path: Path) -> None:
    (cell,) = sweep_cells(replace(finished, mixes=("1/1",), rounds=ROUNDS))
    late = replace(cell.seats[1], name="late", joins_at=5, values={"rounds": ROUNDS - 5})
    cell, store = replace(cell, seats=(*cell.seats, late)), CellStore(tmp_path)
    _run_until_some_rounds(cell, store)
    assert run_cells([cell], store, 1, _never, QUIET) == 0
    made = {"peer-1": 0, "peer-2": 0, "late": 5}
    rounds = [(event["time"], name) for name in made for event in _events(tmp_path / cell.name / name, "round")]
    for _, mover in sorted(rounds):
        made[mover] += 1
        assert made["late"] == 5 or max(made.values()) - min(made.values()) <= 1
        assert abs(made["peer-1"] - made["peer-2"]) <= 1
    assert set(made.values()) == {ROUNDS}


@pytest.mark.slow
def test_while_one_node_is_paused_the_others_of_its_swarm_wait(finished: SweepOptions, tmp_path: Path) -> None:
    (cell,) = sweep_cells(replace(finished, mixes=("1/1",), rounds=8))
    stores = [CellStore(tmp_path / name) for name in ("whole", "paused")]
    other, peer = (stores[1].folder / cell.name / name / "metrics.jsonl" for name in ("peer-1", "peer-2"))
    ahead: list[int] = []

    def pause() -> None:
        assert until(lambda: PeerHistory.read(peer).latest is not None, 300.0, 0.02)
        ask(peer.parent, AskedPause())
        assert until(lambda: PeerHistory.read(peer).pause is not None, 300.0, 0.02)
        time.sleep(1.0)
        ahead.append(len(PeerHistory.read(other).rounds) - len(PeerHistory.read(peer).rounds))
        withdraw(peer.parent)

    pausing = threading.Thread(target=pause)
    pausing.start()
    assert [run_cells([cell], store, 1, _never, QUIET) for store in stores] == [0, 0]
    pausing.join()
    assert ahead == [1]
    (whole,), (paused,) = (store.results([cell]) for store in stores)
    assert _without_time(whole) == _without_time(paused), "a pause changes no result"


@pytest.mark.slow
def test_a_cell_that_was_killed_starts_over(finished: SweepOptions, tmp_path: Path) -> None:
    (cell,) = sweep_cells(replace(finished, mixes=("1/1",)))
    store, folder = CellStore(tmp_path), tmp_path / cell.name
    folder.mkdir()
    write(folder / CELL_FILE, cell)
    (folder / "left-over").touch()
    assert run_cells([cell], store, 1, _never, QUIET) == 0
    (again,) = store.results([cell])
    assert not (folder / "left-over").exists() and again.stops == 0
    (before,) = CellStore(finished.out / "cells").results([cell])
    assert _without_time(again) == _without_time(before), "the same seed gives the same cell"


def test_a_stopped_cell_of_another_configuration_or_with_guests_starts_over(tmp_path: Path) -> None:
    config = load_config(None, {"rounds": 1}).config
    cell, store = Cell("4/4", 0, complete(config), alike(1, 0)), CellStore(tmp_path)
    (tmp_path / cell.name).mkdir()
    write(tmp_path / cell.name / CELL_FILE, cell)
    assert not store.goes_on(cell)
    write(tmp_path / cell.name / STOPPED_FILE, Stopped(1, 1, 1e9, 1.0))
    assert store.goes_on(cell)
    assert not store.goes_on(replace(cell, seats=alike(1, 1)))
    guarded = replace(cell, guests=("nobody",))
    write(tmp_path / cell.name / CELL_FILE, guarded)
    run_cell(tmp_path / cell.name, lambda: True, {"nobody": lambda hub, clock, seed: lambda: None})
    assert not store.goes_on(guarded), "guests keep no checkpoints"


@pytest.mark.slow
@pytest.mark.network
def test_a_cell_of_real_processes_has_a_result_like_one_in_memory(tmp_path: Path) -> None:
    (cell,) = sweep_cells(SweepOptions(None, SMALL, ("1/1",), 1, 1, 3, tmp_path, "hivemind", 1))
    assert run_cells([cell], CellStore(tmp_path), 1, _never, QUIET) == 0, (tmp_path / cell.name / "log.txt").read_text()
    (outcome,) = CellStore(tmp_path).results([cell])
    (node,) = outcome.nodes
    assert (node.name, len(node.rewards)) == ("peer-1", 3) and node.groups["generated"] == 6
    assert node.tokens > 0 and node.accuracy_after is not None


@pytest.mark.slow
def test_a_cell_that_fails_is_said_and_counted(tmp_path: Path) -> None:
    config = load_config(None, {"rounds": 1, "tasks": [{"kind": "dataset", "name": "mine", "path": "./none.jsonl"}]})
    cell = Cell("4/4", 0, complete(config.config), alike(1, 0))
    said = io.StringIO()
    assert run_cells([cell], CellStore(tmp_path / "cells"), 1, _never, Console(file=said, width=200)) == 1
    assert "4-4-seed0 failed" in said.getvalue()
    assert CellStore(tmp_path / "cells").results([cell]) == []


@pytest.mark.slow
def test_cells_run_side_by_side_only_as_far_as_there_are_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[str] = []
    together: list[set[str]] = []

    class Process:
        """Ends when it has been looked at."""

        exit_code = 0

        def __init__(self, name: str, *_: object) -> None:
            self.name = name

        def start(self) -> None:
            running.append(self.name)

        @property
        def running(self) -> bool:
            together.append(set(running))
            running.remove(self.name)
            return False

        def last_words(self) -> str:
            return ""

    monkeypatch.setattr(schedule, "Child", Process)
    monkeypatch.setattr(schedule, "num_cores", lambda: 2)
    monkeypatch.setattr(schedule, "POLL_S", 0)
    values = complete(load_config().config)
    cells = [Cell(f"{n} nodes", 0, values, alike(n, 0), transport="hivemind", cores=0.5) for n in (1, 2, 1, 8)]
    cells[2] = replace(cells[2], row="another")
    assert run_cells(cells, CellStore(tmp_path), 4, _never, QUIET) == 4, "none has a result"
    assert together[0] == {"1-nodes-seed0", "2-nodes-seed0"}, "1.5 of the 1.8 cores"
    assert {"8-nodes-seed0"} in together, "one that needs more than there are runs alone"


@pytest.mark.slow
def test_a_stop_ends_the_cells_that_run(tmp_path: Path) -> None:
    config = load_config(None, {"rounds": 10_000}).config
    cells = [Cell("4/4", seed, complete(config), alike(1, seed)) for seed in range(2)]
    asked = iter([False] * 3)
    assert run_cells(cells, CellStore(tmp_path), 1, lambda: next(asked, True), QUIET) == 0
    assert not (tmp_path / cells[1].name).exists(), "it was still waiting"
    assert CellStore(tmp_path).results(cells) == []


def test_a_damaged_result_is_said(tmp_path: Path) -> None:
    cell = Cell("4/4", 0, complete(load_config().config), alike(1, 0))
    (tmp_path / cell.name).mkdir()
    (tmp_path / cell.name / RESULT_FILE).write_text("{")
    with pytest.raises(ConfigError, match="remove its folder"):
        CellStore(tmp_path).check([cell])


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    cell = Cell("4/4", 0, complete(load_config().config), alike(1, 0))
    with pytest.raises(ConfigError, match="same name"):
        run_cells([cell, replace(cell, row="4-4")], CellStore(tmp_path), 1, _never, QUIET)


def test_a_cell_s_nodes_have_its_configuration_and_their_own(tmp_path: Path) -> None:
    config = load_config(None, {"update": {"learning_rate": 0.5}, "mix": {"fill": "local"}}).config
    first, second = alike(2, 3)
    seats = (first, replace(second, values={"mix": {"local": 2}, "rounds": 7}, joins_at=5))
    members = Cell("4/4", 3, complete(config), seats).members(tmp_path)
    assert [member.config.seed for member in members] == [3_000, 3_001]
    assert [member.config.out for member in members] == [tmp_path / "peer-1", tmp_path / "peer-2"]
    assert [member.joins_at for member in members] == [0, 5]
    assert [member.config.mix.local for member in members] == [4, 2]
    assert [member.config.mix.fill for member in members] == ["local", "local"]
    assert [member.config.rounds for member in members] == [None, 7]
    assert members[0].config.model_copy(update={"name": "", "out": config.out, "seed": None}) == config


@pytest.mark.parametrize(
    ("mix", "questions", "share"),
    [("8/0", 8, "none"), ("6/2", 8, "informative"), ("2/6", 8, "informative"), ("20/0", 20, "none")],
)
def test_every_mix_asks_as_many_questions_but_the_control_that_needs_more(mix: str, questions: int, share: str) -> None:
    config = mix_configs(("8/0", mix), None, {"SWARM_MIX__LOCAL": "3"})[mix]
    assert f"{config.mix.local}/{config.mix.external}" == mix
    assert config.generation.questions_per_round == questions
    assert config.share.groups == share


def test_values_as_fields_say_the_same() -> None:
    values = real_model("smollm2", 4, 2)
    as_file = {**values, "mix": {"local": 2, "external": 2}}
    expected = load_config(None, as_file, None, [("policy.model", "smollm2")]).config
    assert load_config(None, None, None, as_fields(as_file)).config == expected


@pytest.mark.parametrize("mix", ["more", "4/4/4", "-1/8"])
def test_a_mix_that_is_none_is_refused(mix: str) -> None:
    with pytest.raises(ConfigError, match=f"a mix must be I/J.*auto.*got {mix}"):
        mix_configs(("8/0", mix), None, {})


def test_what_is_wrong_with_the_configuration_is_not_said_of_the_mix() -> None:
    for fields, message in (([("rounds", "-3")], "^rounds .*got '-3'"), ([("mix.nothing", "1")], "mix.nothing")):
        with pytest.raises(ConfigError, match=message) as refused:
            mix_configs(("8/0",), None, {}, fields)
        assert "I/J" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"must be at least 1, got 0 \+ 0"):
        mix_configs(("0/0",), None, {})


def test_an_option_may_take_several_values() -> None:
    given = ["sweep", "a.yaml", "--mix", "8/0", "4/4", "auto", "--seeds", "5", "--mix", "2/6"]
    expected = ["sweep", "a.yaml", *["--mix", "8/0", "--mix", "4/4", "--mix", "auto", "--seeds", "5", "--mix", "2/6"]]
    assert repeat_option(given, "--mix") == expected
    assert repeat_option(["sweep", "--mix"], "--mix") == ["sweep", "--mix"], "the parser says what is missing"


@pytest.mark.slow
def test_results_move_with_their_folder(finished: SweepOptions, tmp_path: Path) -> None:
    shutil.copytree(finished.out / "cells", tmp_path / "elsewhere")
    cells = sweep_cells(finished)
    store = CellStore(tmp_path / "elsewhere")
    store.check(cells)
    assert [outcome.row for outcome in store.results(cells)] == ["2/0", "1/1"]
