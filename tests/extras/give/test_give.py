"""Real givers: a trainer that uses their groups, pauses, ends, and what they load."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodes.boot.manifest import manifest_values
from nodes.commands.control import pause_nodes, resume_nodes
from nodes.console import literal_console
from swarm import distribution
from swarm.config import load_config, overlay
from swarm.distribution import versions
from swarm.engines.config import QUESTIONS
from swarm.environments.specs import to_specs
from swarm.extras.give.demand import EXPLORED
from swarm.extras.give.roles.giver import MOST_COMPLETIONS, GiverNode, questions_a_round
from swarm.extras.give.usage import Given, given_in_words, read_given
from swarm.net.services.usage import GroupUsage
from swarm.telemetry.live import plain_line
from swarm.types import Estimate, RunManifest
from tests.chat_server import MODEL, ChatServer, chat_server
from tests.extras.give.server import completions, solver
from tests.nodes.processes import DEADLINE_S, LOOPBACK, Swarm, address_of, swarm, until

TRAINER = [*LOOPBACK, "--evaluation.num_questions=0", "--mix.local=4", "--mix.external=4"]
MAX_MB = 300
PROBE = """
import resource, sys, nodes.cli, nodes.commands.evaluate, nodes.commands.give
import swarm.extras.give.roles.giver, swarm.net.hivemind.transport
print([name for name in ("torch", "transformers", "hivemind", "datasets") if name in sys.modules])
"""


@contextmanager
def giver(out: Path, address: str, server: ChatServer, *options: str) -> Iterator[Swarm]:
    command = ["give", address, "--endpoint", server.url, "--model", MODEL, "--out", str(out), "--no-live"]
    with swarm(out, *command, *LOOPBACK, *options) as running:
        yield running


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_a_giver_is_light_from_nothing_to_its_first_used_group(tmp_path: Path) -> None:
    with (
        swarm(tmp_path / "peer", "join", "--out", str(tmp_path / "peer"), *TRAINER) as peer,
        chat_server(solver(0.5, 0.05)) as server,
    ):
        command = ["give", address_of(peer), "--endpoint", server.url, "--model", MODEL, *LOOPBACK, "--no-live"]
        # Not forked from a process that has imported torch, as others are.
        out = tmp_path / "give"
        alone = subprocess.Popen([sys.executable, "-m", "nodes.cli", *command, f"--out={out}"])
        try:
            until(lambda: read_given(out).used > 0 or alone.poll() is not None, peer, "a group that is used")
            assert alone.poll() is None
            proc = Path(f"/proc/{alone.pid}")
            assert "libtorch" not in (proc / "maps").read_text()
            peak = re.search(r"VmHWM:\s+(\d+)", (proc / "status").read_text())
            assert peak is not None and int(peak[1]) < MAX_MB * 1024
            alone.send_signal(signal.SIGINT)
            assert alone.wait(DEADLINE_S) == 130
        finally:
            alone.kill()
            alone.wait()


def test_nothing_heavy_is_loaded() -> None:
    printed = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


@pytest.mark.slow
@pytest.mark.network
def test_a_trainer_uses_what_two_givers_give_and_says_so(tmp_path: Path) -> None:
    with (
        swarm(tmp_path / "peer", "join", "--out", str(tmp_path / "peer"), *TRAINER) as peer,
        chat_server(solver(0.5, 0.05)) as server,
    ):
        address = address_of(peer)
        with (
            giver(tmp_path / "one", address, server) as one,
            giver(tmp_path / "two", address, server, "--endpoint.requests_at_once=2") as two,
        ):
            for each in (one, two):
                until(lambda each=each: read_given(each.out).used > 4, each, "uses of its groups")  # type: ignore[misc]
            assert one.stop() == 130
            assert re.search(r"\d+ groups given, \d+ uses by 1 peer, as they say", one.text()), one.text()
            groups = peer.history().latest.groups
            assert groups["used_external"] > 8
            assert not set(groups["dropped"]) & {"malformed", "limits", "question_mismatch", "wrong_logprobs"}
            pause_nodes([two.out], None, None, literal_console())
            until(lambda: two.history().pause is not None, two, "a pause")
            num_asked = len(server.asked)
            resume_nodes([two.out], literal_console())
            until(lambda: len(server.asked) > num_asked, two, "questions after the pause")
            # The endpoint goes and comes back; nothing is lost.
            script, server.respond = server.respond, lambda asked: (503, b"")
            until(lambda: "asking again until it answers" in two.text(), two, "a line about it")
            before, server.respond = two.round(), script
            until(lambda: two.round() > before, two, "rounds after it is back")
            assert two.stop() == 130


@pytest.mark.slow
@pytest.mark.network
def test_a_giver_awaits_a_bootstrap_that_restarts(tmp_path: Path) -> None:
    boot = ["bootstrap", f"--out={tmp_path / 'boot'}", *LOOPBACK]
    with swarm(tmp_path / "boot", *boot) as first:
        address = address_of(first)
        assert first.stop() == 130
    waits = "connection refused; asking nobody until one answers"
    with chat_server(solver(0.5)) as server, giver(tmp_path / "give", address, server) as one:
        with swarm(tmp_path / "answer", "answer", address, f"--out={tmp_path / 'person'}", *LOOPBACK) as person:
            for each in (one, person):
                until(lambda each=each: waits in each.text(), each, "a line about it")  # type: ignore[misc]
            person.process.send_signal(signal.SIGINT)
            assert person.wait(10.0) == 130, "Ctrl-C does not wait for an answer"
            assert not (tmp_path / "person").exists()
        with swarm(tmp_path / "boot", *boot):
            until(lambda: "no member that learns is connected" in one.text(), one, "a word about the run")
            assert "tasks " in one.text() and one.text().count(waits) == 1
            assert one.stop() == 130


@pytest.mark.slow
@pytest.mark.network
def test_a_giver_stops_after_its_rounds_and_where_its_key_is_refused(tmp_path: Path) -> None:
    with (
        swarm(tmp_path / "peer", "join", "--out", str(tmp_path / "peer"), *TRAINER) as peer,
        chat_server(solver(0.5)) as server,
    ):
        address = address_of(peer)
        with giver(tmp_path / "give", address, server, "--rounds=2") as one:
            assert one.wait() == 0
            assert one.history().latest.round == 2
            assert one.history().role == "giver"
            assert "policy " not in one.text() and "system prompt" in one.text(), one.text()
            assert re.search(r"groups: given \d+ of 16 asked, \d+ uses by", plain_line(one.history()))
        with giver(tmp_path / "few", address, server, "--groups=5") as one:
            assert one.wait() == 0
            assert read_given(one.out).shared == 5
        local = ["give", address, "--engine=transformers", "--model=tiny", "--groups=3", "--no-live", *LOOPBACK]
        with swarm(tmp_path / "local", *local, f"--out={tmp_path / 'local'}") as one:
            assert one.wait() == 0
            assert read_given(one.out).shared == 3 and one.history().role == "giver"
            assert one.history().latest.tokens_generated > 0 and "endpoint" not in one.text(), one.text()
            assert "engine transformers: asked for" in one.text()
        with giver(tmp_path / "give", address, server) as one:
            until(lambda: one.round() > 0, one, "a round")
            server.respond = lambda asked: (401, b"")
            assert one.wait() == 1
            assert "wants a key" in one.text() and "Traceback" not in one.text()
        num_asked = len(server.asked)
        server.respond = lambda asked: completions(*["x"] * asked.n, model="other-9b")
        with giver(tmp_path / "give", address, server, "--rounds=1") as one:
            assert one.wait() in (0, 1)
            assert "the endpoint calls its model other-9b, not wise-0.5b" in one.text()
        assert len(server.asked) > num_asked


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["give"], "name the server and its model: --endpoint", 2),
        (["give", "--engine", "auto"], "--engine needs --model", 2),
        (["give", "--engine", "auto", "--endpoint", "http://127.0.0.1:9/v1", "--model", "x"], "give one of the two", 2),
        (["give", "--engine", "auto", "--model", "tiny"], "a giver needs the address of a member", 2),
        (["give", "--endpoint", "localhost:1", "--model", "x"], "must begin with http://", 2),
        (["give", "--endpoint", "http://127.0.0.1:9/v1", "--model", "x"], "a giver needs the address of a member", 2),
        (["answer"], "a giver needs the address of a member", 2),
        (["answer", "--model", "x"], "name the server and its model: --endpoint", 2),
        (["evaluate"], "name a model or run to evaluate, or a server by --endpoint URL", 2),
        (["evaluate", "tiny", "--endpoint", "http://127.0.0.1:9/v1"], "a model to load or an endpoint to ask", 2),
        (["evaluate", "--endpoint", "http://127.0.0.1:9/v1", "--model", "x"], "connection refused: start the", 1),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], says: str, code: int, tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "nodes.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert says in told.stderr and told.returncode == code, told.stderr
    assert "Traceback" not in told.stderr


def test_an_endpoint_is_evaluated_like_a_policy(tmp_path: Path) -> None:
    with chat_server(solver(1.0)) as server:
        command = ["evaluate", "--endpoint", server.url, "--model", MODEL, "--questions", "40", "--json"]
        told = subprocess.run(
            [sys.executable, "-m", "nodes.cli", *command], capture_output=True, text=True, check=True, timeout=300
        )
    found = json.loads(told.stdout)
    assert found["all"]["asked"] == 40 and found["all"]["accuracy"] > 0.8


def test_a_founder_does_not_say_how_much_is_asked_before_anybody_uses_it() -> None:
    own = load_config(None, None, {})
    huge = RunManifest("trap-0", "founder", 0.0, to_specs(own.config.tasks), 256, 1_024, 1_024, 2**20, 2**16)
    run = own.in_run(overlay(manifest_values(huge, own), GiverNode.values_of(huge)), Path("out")).config
    assert run.num_questions("cpu") == 1_024
    assert dict(GiverNode.plan(run))["per round"] == f"{QUESTIONS} questions x {MOST_COMPLETIONS} completions"
    assert questions_a_round(run) == QUESTIONS <= EXPLORED


def test_versions_are_those_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "VERSIONED", ("numpy", "swarm-lacks-this"))
    assert versions().keys() == {"python", "swarm", "numpy"}


def test_the_words_of_the_end() -> None:
    assert given_in_words(Given(3)) == "3 groups given; no peer has said what it used"
    peers = {"a": GroupUsage(10, 6, 1, 2, Estimate(0.4, 0.1, 0.7)), "b": GroupUsage(10, 0)}
    assert given_in_words(Given(12, peers)) == (
        "12 groups given, 6 uses by 1 peer, as they say; worth 0.40 of their own each"
    )
    assert [each.spare for each in peers.values()] == [2, 10]
    assert GroupUsage(3, 5).spare == 0, "one group may be used several times"
