"""A founder is a stranger too: hostile manifests and answers, with real `swarm` processes as victims."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from nodes.boot.directory import MANIFEST_FILE
from swarm.net.records.envelope import Body, Envelope
from swarm.net.records.wire import make_run_id
from swarm.net.services.diagnosis import DIAL_BACK_PROTOCOL, TIME_PROTOCOL
from swarm.net.services.requests import MANIFEST_PROTOCOL
from swarm.types import SCHEMA_VERSION, RunManifest, TaskSpec
from tests.net.records import of_version
from tests.nodes.processes import LOOPBACK

from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

CLIPBOARD = "\x1b]52;c;ZWNobyBnb3RjaGE=\x07"
MARKUP = "[/nothing]"
SECRET = "correct-horse-battery"
GCD = TaskSpec("gcd", "reasoning_gym", 1.0, {})
LIMIT_S = 240.0


@dataclass
class Outcome:
    """What a victim said, and how it ended."""

    code: int
    text: str


class Founder:
    """A stranger that has founded a run, and tells whatever a test makes it tell."""

    def __init__(self, stranger: Stranger) -> None:
        self.stranger = stranger
        self.answer: Callable[[], bytes] = lambda: b""
        stranger.serve(MANIFEST_PROTOCOL, lambda remote, request: self.answer())
        [self.address] = stranger.run(stranger.daemon.addresses())
        self.address = f"{self.address}/p2p/{stranger.peer_id}"

    def manifest(self, *tasks: TaskSpec, **changes: object) -> RunManifest:
        """A manifest that nothing is wrong with but what is given."""
        run_id = make_run_id("trap", self.stranger.peer_id)
        plain = RunManifest(run_id, self.stranger.peer_id, time.time(), tasks, 4, 2, 1, 1_000_000, 10_000)
        return replace(plain, **changes)

    def tell(self, manifest: RunManifest) -> None:
        """Answer with this manifest, correctly sealed."""
        sealed = self.stranger.seal(manifest.run_id, "manifest", manifest)
        self.answer = lambda: sealed


@pytest.fixture(scope="module")
def founder(strangers: Callable[..., Stranger]) -> Founder:
    return Founder(strangers("founder"))


def _victim(folder: Path, command: str, *arguments: str) -> Outcome:
    """A `swarm` process, run to its end in the folder `work`, where its user has files."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "nodes.cli", command, *arguments, "--out", str(folder / "peer"), *LOOPBACK],
        cwd=work,
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
    )
    text = ended.stdout.decode(errors="replace")
    assert "Traceback" not in text, text
    assert "\x1b" not in text and "\x07" not in text, "an escape sequence reached the terminal"
    return Outcome(ended.returncode, text)


def _join(folder: Path, *addresses: str) -> Outcome:
    bootstraps = [f"--bootstrap={address}" for address in addresses]
    one_round = ("--rounds=1", "--evaluation.num_questions=0", "--generation.max_new_tokens=4")
    return _victim(folder, "join", *bootstraps, *one_round)


def _run_of(folder: Path) -> str | None:
    """The run in which the victim trained."""
    start = json.loads((folder / "peer" / "metrics.jsonl").read_text().splitlines()[0])
    return start["run_id"]


def test_answers_made_for_a_terminal_are_refused_and_the_victim_trains_alone(
    tmp_path: Path, founder: Founder, strangers: Callable[..., Stranger]
) -> None:
    founder.tell(founder.manifest(GCD, TaskSpec(f"{CLIPBOARD}{MARKUP}", "reasoning_gym", 1.0, {"dataset": "gcd"})))
    forger, failing = Founder(strangers("forger")), Founder(strangers("failing"))
    body = msgspec.msgpack.encode(Body("run", f"{CLIPBOARD}{MARKUP}", "manifest", b""))
    forged = msgspec.msgpack.encode(Envelope(SCHEMA_VERSION, body, b""))
    forger.answer = lambda: forged

    def fail() -> bytes:
        raise type(f"{MARKUP}{CLIPBOARD}", (Exception,), {})

    failing.answer = fail
    outcome = _join(tmp_path, founder.address, forger.address, failing.address)
    assert outcome.code == 0, outcome.text
    assert "refused: limits: names of tasks" in outcome.text and "training alone" in outcome.text
    assert "bad_signature" in outcome.text and f"the handler failed: {MARKUP}" in outcome.text
    assert _run_of(tmp_path) is None


def test_a_run_of_another_major_version_ends_with_what_to_do(tmp_path: Path, founder: Founder) -> None:
    manifest = founder.stranger.seal(founder.manifest(GCD).run_id, "manifest", founder.manifest(GCD))
    founder.answer = lambda: of_version(manifest, SCHEMA_VERSION + 1)
    outcome = _join(tmp_path, founder.address)
    assert outcome.code == 0, outcome.text
    said = (
        f"it speaks version {SCHEMA_VERSION + 1} of the protocol, this node version {SCHEMA_VERSION}: update swarm here"
    )
    assert f"this run cannot be joined: {said}" in outcome.text and "training alone until one answers" in outcome.text
    assert _run_of(tmp_path) is None


def test_markup_in_a_reason_is_only_text(tmp_path: Path, founder: Founder) -> None:
    options = {f"{MARKUP}{CLIPBOARD}": 1}
    founder.tell(founder.manifest(GCD, TaskSpec("trap", "reasoning_gym", 1.0, {"dataset": "lcm", "options": options})))
    outcome = _join(tmp_path, founder.address)
    assert outcome.code == 0, outcome.text
    assert f"omitting the run's task trap: task 'trap' has no option '{MARKUP}" in outcome.text
    assert _run_of(tmp_path) == make_run_id("trap", founder.stranger.peer_id)


def test_a_data_set_is_never_a_file_of_the_victim(tmp_path: Path, founder: Founder) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "diary.csv").write_text("question,answer\n" + f"{SECRET},1\n" * 20)
    founder.tell(founder.manifest(TaskSpec("rows", "dataset", 1.0, {"path": "csv"})))
    outcome = _join(tmp_path, founder.address)
    assert outcome.code == 2, outcome.text
    assert "path must be OWNER/NAME of a data set on the hub, got 'csv'" in outcome.text
    assert SECRET not in outcome.text and not (tmp_path / "hf").exists()


def test_a_founder_locks_no_member_out_with_a_task_that_it_cannot_set_up(tmp_path: Path, founder: Founder) -> None:
    """At the first start, and at one without the founder, with the manifest that the member has stored."""
    bad = (
        TaskSpec("later-kind", "telepathy", 1.0, {}),
        TaskSpec("later-field", "reasoning_gym", 1.0, {"dataset": "gcd", "clairvoyance": 3}),
        TaskSpec("pattern", "reasoning_gym", 1.0, {"dataset": "gcd", "find": "regex", "find_pattern": "("}),
        TaskSpec("game", "textarena", 1.0, {"game": "../../etc"}),
        TaskSpec("rows", "dataset", 1.0, {"path": "csv"}),
    )
    founder.tell(founder.manifest(GCD, *bad))
    for addresses in ((founder.address,), ()):
        outcome = _join(tmp_path, *addresses)
        assert outcome.code == 0, outcome.text
        assert outcome.text.count("omitting the run's task") == len(bad), outcome.text
        assert _run_of(tmp_path) == make_run_id("trap", founder.stranger.peer_id)


def test_a_round_that_a_founder_makes_endless_ends_in_the_member_s_time(tmp_path: Path, founder: Founder) -> None:
    founder.tell(founder.manifest(GCD, group_size=256, local=1_024, external=1_024))
    short = ("--generation.round_minutes=0.02", "--generation.max_new_tokens=4")
    own = ("--rounds=1", "--evaluation.num_questions=0", *short)
    outcome = _victim(tmp_path, "join", f"--bootstrap={founder.address}", *own)
    assert outcome.code == 0, outcome.text
    assert "the run asks for more than this machine can do" in outcome.text
    events = [json.loads(line) for line in (tmp_path / "peer" / "metrics.jsonl").read_text().splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    assert [each["round"] for each in rounds] == [1]
    assert 0 < rounds[0]["groups"]["generated"] < 1_024


def test_an_older_manifest_does_not_replace_the_newer_one(tmp_path: Path, founder: Founder) -> None:
    newer = founder.manifest(GCD, local=2)
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / MANIFEST_FILE).write_bytes(founder.stranger.seal(newer.run_id, "manifest", newer))
    founder.tell(replace(newer, created_at=newer.created_at - 3_600, local=1))
    outcome = _join(tmp_path, founder.address)
    assert outcome.code == 0, outcome.text
    assert "2 local + 1 external" in outcome.text and "sent an older manifest" in outcome.text


def test_a_doctor_takes_no_harm_from_whom_it_asks(tmp_path: Path, founder: Founder) -> None:
    founder.tell(founder.manifest(TaskSpec(CLIPBOARD, CLIPBOARD, 1.0, {})))
    founder.stranger.serve(TIME_PROTOCOL, lambda remote, request: b"\xff" * 8)
    founder.stranger.serve(DIAL_BACK_PROTOCOL, lambda remote, request: b'{"state": "done", "detail": "\xff\xfe"}')
    outcome = _victim(tmp_path, "doctor", founder.address)
    assert outcome.code in (0, 1), outcome.text
    assert "reported no time" in outcome.text and "to a dial-back request cannot be decoded" in outcome.text
