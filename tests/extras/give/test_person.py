"""A person's answers: what a terminal shows and reads, and the groups that come of it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from swarm.errors import Interrupted
from swarm.extras.give.engine import EndpointEngine
from swarm.extras.give.giving import Giver, GivingPlan
from swarm.extras.give.person import MAX_SHOWN_CHARS, Asked, ChosenTask, PersonEngine, Terminal
from swarm.groups.building import Member
from swarm.net.in_memory import MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.trust.exchange import Exchange
from swarm.protocols import Turns
from swarm.types import Answers, Completion, PolicyId, Sampling
from tests.chat_server import MODEL, chat_server
from tests.extras.give.server import solver
from tests.nodes.processes import DEADLINE_S, LOOPBACK, address_of, swarm
from tests.sapo.test_round import FakeVerifier, Swarm

GROUP_SIZE = 4
MAX_CHARS = 1_000


class Screen:
    """A terminal whose typing is a pipe, and what it shows."""

    def __init__(self, typed: str, cancelled: Callable[[], bool] = lambda: False, *, ends: bool = True) -> None:
        self._shown = io.StringIO()
        reading, self._writing = os.pipe()
        self.terminal = Terminal(reading, Console(file=self._shown, width=120), MAX_CHARS, cancelled)
        writer = threading.Thread(target=self._type, args=(typed.encode(), ends), daemon=True)
        writer.start()

    def text(self) -> str:
        return self._shown.getvalue()

    def _type(self, typed: bytes, ends: bool) -> None:
        with open(self._writing, "wb", closefd=ends) as pipe:
            pipe.write(typed)


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b[2J\x1b]0;owned\x07\x9b31m",
        "safe\rREWARD 1\b\b\b",
        "a\u202egnorw\u202c \u2066x\u2069 \u200b\ufeff",
        "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
        "[bold]markup[/bold] :smile: \ud800",
    ],
)
def test_a_hostile_question_does_nothing_to_a_terminal(hostile: str) -> None:
    screen = Screen("")
    screen.terminal.show(f"\t{hostile}\nsecond")
    shown = screen.text()
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert "second" in shown and ("[bold]" in shown) == ("[bold]" in hostile)


def test_long_questions_are_wrapped_and_endless_ones_cut() -> None:
    screen = Screen("")
    screen.terminal.show("漢" * 100 + "x" * 500 + "\n" + "word " * 10**6)
    lines = screen.text().splitlines()
    assert max(len(line) + line.count("漢") for line in lines) <= 80
    assert len(screen.text()) < 1.1 * MAX_SHOWN_CHARS and "more characters)" in lines[-1]


def test_lines_are_read_until_the_input_ends_whatever_they_hold() -> None:
    screen = Screen("\n  \nfirst\\\nand more\n" + "y" * 10**6 + "\nlast without an end")
    assert screen.terminal.ask("?") == "first\nand more"
    assert screen.terminal.ask("?") == "y" * MAX_CHARS
    assert screen.terminal.ask("?") == "last without an end"
    with pytest.raises(Interrupted):
        screen.terminal.ask("?")


def test_a_stop_ends_the_wait_for_an_answer() -> None:
    stopped = threading.Event()
    screen = Screen("half a line", stopped.is_set, ends=False)
    threading.Timer(0.1, stopped.set).start()
    with pytest.raises(Interrupted):
        screen.terminal.ask("?")


class Model:
    """Answers all turns alike at once, or never."""

    def __init__(self, abandoned: threading.Event, hangs: bool = False) -> None:
        self._abandoned, self._hangs = abandoned, hangs
        self.num_asked = 0

    def stream(
        self, prompts: object, num_completions: int, sampling: Sampling, seed: int, turns: Turns
    ) -> Generator[tuple[int, Answers]]:
        for turn in turns.next_turns(wait=True):
            self.num_asked += 1
            if self._hangs:
                assert self._abandoned.wait(DEADLINE_S)
                raise Interrupted("abandoned")
            yield turn.episode, (Completion("bad", "stop"),)


@contextmanager
def person(typed: str, make_model: Callable[[threading.Event], Model] | None) -> Iterator[tuple[Giver, Screen]]:
    hub, identity, screen, abandoned = Swarm(), Identity.generate(), Screen(typed), threading.Event()
    transport = MemoryTransport(hub.hub, identity.peer_id, hub.run, offers_per_s=1e9)
    transport.start()
    demand = ChosenTask()
    size = GROUP_SIZE if make_model else 2
    model: EndpointEngine | None = make_model(abandoned) if make_model else None  # type: ignore[assignment]
    engine = PersonEngine(
        screen.terminal,
        size,
        lambda each: Asked(giver.asked(each // size), 1, False),
        ["fake"],
        demand,
        model,
        abandoned,
    )
    plan = GivingPlan(1, size, slots=size, tasks=("fake",), patience=float("inf"), most_open=1)
    me = Member(identity.peer_id, PolicyId("human", "", 0), Sampling(), seed=1)
    giver = Giver(plan, me, engine.stream, FakeVerifier(), Exchange(transport, identity), demand=demand)
    yield giver, screen
    giver.stop()
    engine.close()
    transport.close()


def test_a_model_completes_the_group_of_a_person() -> None:
    with person("good\n/skip\nbad\n", Model) as (giver, _):
        report = giver.run_round()
        (group,) = report.groups
        assert [each.text for each in group.group.completions] == ["good", *["bad"] * (GROUP_SIZE - 1)]
        assert group.rewards == (1.0, *[0.0] * (GROUP_SIZE - 1)) and report.num_shared == 1
        assert giver.run_round().groups == ()
        alike = giver.run_round()
        assert len(alike.groups) == 1 and alike.num_informative == alike.num_shared == 0
        with pytest.raises(Interrupted):
            giver.run_round()


def test_without_a_model_the_spread_is_the_persons_own() -> None:
    with person("good\nbad\ngood\ngood\n/quit\n", None) as (giver, screen):
        assert giver.run_round().num_shared == 1
        assert giver.run_round().num_shared == 0
        with pytest.raises(Interrupted, match="left"):
            giver.run_round()
        assert "answer 2 of 2" in screen.text()


def test_a_person_who_skips_does_not_wait_for_the_model() -> None:
    with person("/skip\n/task other\n/task fake\n", lambda event: Model(event, hangs=True)) as (giver, screen):
        assert giver.run_round().groups == ()
        assert giver.run_round().groups == ()
        assert "/task takes one of fake; or any" in screen.text()


def test_a_chosen_task_is_the_only_one_asked() -> None:
    demand = ChosenTask()
    assert demand.part("a", ["a", "b"]) == 1.0
    demand.task = "b"
    assert [demand.part(task, ["a", "b"]) for task in ("a", "b")] == [0.0, 1.0]


@pytest.mark.slow
@pytest.mark.network
def test_answers_of_a_script_reach_a_trainer(tmp_path: Path) -> None:
    training = [*LOOPBACK, "--evaluation.num_questions=0", "--mix.local=4", "--mix.external=4"]
    with (
        swarm(tmp_path / "peer", "join", "--out", str(tmp_path / "peer"), *training) as peer,
        chat_server(solver(0.5)) as server,
    ):
        command = ["answer", address_of(peer), "--endpoint", server.url, "--model", MODEL, "--out", str(tmp_path / "a")]
        told = subprocess.run(
            [sys.executable, "-m", "nodes.cli", *command, *LOOPBACK],
            input="/task gcd\n" + "1\n" * 30,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert told.returncode == 0 and "Traceback" not in told.stderr, told.stdout + told.stderr
    assert re.search(r"reward 0; found 1, expected \d+", told.stdout), told.stdout
    assert re.search(r"\n\d+ groups given, \d+ uses by \d peer", told.stdout), told.stdout
