"""Strangers that send more, or larger, or stranger things than a node can bear, against live nodes."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from benchmarks.common.arithmetic import solve
from swarm.environments.mixture import TaskMixture
from swarm.environments.tiny import TINY_TASKS
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.records.envelope import read_record
from swarm.net.records.identity import Identity
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL, GiveRequest, HaveRequest, RecordReader
from swarm.net.records.stores import Held, record_id
from swarm.net.records.wire import Announcement, seal, seal_announcement
from swarm.policy.config import PolicySettings
from swarm.policy.loading import load_policy
from swarm.types import Completion, PolicyId, Question, RolloutGroup, Sampling
from tests.net.records import drained, fast_settings, make_identity, opened, sealed_manifest, signed, until as soon
from tests.nodes.processes import Swarm, address_of, until

from .conftest import memory_bytes
from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

Strangers = Callable[..., Stranger]
Victims = Callable[..., Swarm]
PATIENCE_S = 300.0


@dataclass
class Scene:
    """Two honest peers, of which one is attacked."""

    victim: Swarm
    address: str
    run_id: str

    def learned(self) -> int:
        """Groups of others that the victim has trained on."""
        return int(self.victim.history().groups.get("used_external", 0))  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, victims: Victims, strangers: Strangers) -> Scene:
    folder = tmp_path_factory.mktemp("admission")
    bootstrap = address_of(victims(folder / "bootstrap", "bootstrap", "examples/tiny.yaml"))
    options = ("--evaluation.num_questions=0", "--network.repair_every_s=1")
    victims(folder / "honest", "join", bootstrap, *options)
    victim = victims(folder / "victim", "join", bootstrap, *options)
    address = address_of(victim)
    guest = strangers("guest")
    (peer_id,) = guest.connect(address)
    scene = Scene(victim, address, guest.manifest(peer_id).run_id)
    until(lambda: scene.learned() > 5, victim, "groups of the other peer", PATIENCE_S)
    return scene


def test_bombs_take_neither_memory_nor_rounds(scene: Scene, strangers: Strangers) -> None:
    """1.4 KB each that decode to 31 MB, under three names; and as much as a group may be, under a fourth."""
    wide = Completion("1" * 65_000 + "\N{FIRE}", "stop")
    before, round_before, learned = memory_bytes(scene.victim), scene.victim.round(), scene.learned()
    highest = before
    for name, size in (("a", 121), ("b", 121), ("c", 121), ("d", 30)):
        bomber = strangers(f"bomber-{name}")
        bomber.connect(scene.address)
        for number in range(15):
            group = _group(scene.run_id, bomber.peer_id, number, (wide,) * size)
            bomber.publish(scene.run_id, bomber.seal(scene.run_id, "group", group))
            highest = max(highest, memory_bytes(scene.victim))
    deadline = time.monotonic() + 8.0
    while time.monotonic() < deadline:
        highest = max(highest, memory_bytes(scene.victim))
        time.sleep(0.2)
    # A tenth of what all of them would take; some are decoded at the same time.
    assert highest < before + 200 * 2**20, f"{(highest - before) >> 20} MiB more"
    until(lambda: scene.victim.round() > round_before + 20, scene.victim, "further rounds", PATIENCE_S)
    until(lambda: scene.learned() > learned + 5, scene.victim, "groups of the honest peer", PATIENCE_S)


def test_copies_under_thousands_of_names_come_to_one_newcomer_s_part(scene: Scene, strangers: Strangers) -> None:
    thief = strangers("thief")
    (victim,) = thief.connect(scene.address)
    thief.follow(scene.run_id)

    def groups() -> list[bytes]:
        """Those that the victim hands to whoever missed them, sent or on offer."""
        answer = thief.request(victim, HAVE_PROTOCOL, msgspec.msgpack.encode(HaveRequest(120.0)))
        names = tuple(each.record_id for each in msgspec.msgpack.decode(answer, type=list[Held])[:16])
        given = thief.request(victim, GIVE_PROTOCOL, msgspec.msgpack.encode(GiveRequest(names)))
        return [each for each in RecordReader(names).feed(given) if read_record(each, len(each)).body.kind == "group"]

    soon(groups, "groups to copy", PATIENCE_S)
    originals = [_open(record, scene.run_id) for record in groups()]
    copies = [_resigned(originals[k % len(originals)], scene.run_id) for k in range(3_000)]
    ours = {record_id(copy) for copy in copies}

    def held() -> int:
        answer = thief.request(victim, HAVE_PROTOCOL, msgspec.msgpack.encode(HaveRequest(120.0)))
        return sum(each.record_id in ours for each in msgspec.msgpack.decode(answer, type=list[Held]))

    began = time.monotonic()
    asked = _shelve(thief, copies, victim)
    soon(lambda: asked.count(HAVE_PROTOCOL) >= 3 and held(), "the victim asks the thief, and again", PATIENCE_S)
    assert held() <= 1_024 + 10 * (time.monotonic() - began), "what the inbox holds at once, and ten a second"
    learned = scene.learned()
    until(lambda: scene.learned() > learned + 5, scene.victim, "groups meanwhile", PATIENCE_S)


def test_noise_with_a_good_signature_is_not_handed_on(scene: Scene, strangers: Strangers) -> None:
    noisy = strangers("noisy")
    (victim,) = noisy.connect(scene.address)
    noisy.follow(scene.run_id)
    noise = [seal(Identity.generate(), scene.run_id, "group", f"noise {k}") for k in range(50)]  # type: ignore[type-var]
    asked = _shelve(noisy, noise, victim)
    soon(lambda: asked[1:].count(HAVE_PROTOCOL) and GIVE_PROTOCOL in asked, "the victim asks, and again", PATIENCE_S)
    request = msgspec.msgpack.encode(GiveRequest(tuple(map(record_id, noise))))
    assert noisy.request(victim, GIVE_PROTOCOL, request) == b"", "it has none of it for others"


def test_junk_announcements_keep_no_honest_large_record_out(tmp_path: Path, strangers: Strangers) -> None:
    founder = make_identity(tmp_path, "founder")
    near = HivemindTransport(fast_settings(), founder, sealed_manifest(founder))
    far: HivemindTransport | None = None
    try:
        near.start()
        far = HivemindTransport(fast_settings(near.multiaddrs()), make_identity(tmp_path, "victim"))
        far.start()
        soon(lambda: far.status().connected and near.status().connected, "they meet")
        run_id = near.sealed_manifest() and near.status().run_id
        assert run_id is not None
        liar = strangers("announcer")
        liar.connect(far.multiaddrs()[0])
        liar.follow(run_id)
        _shelve(liar, [_in_vain(run_id, k) for k in range(300)], far.peer_id)
        soon(lambda: far.counters().get("drop_announced"), "junk waits in all places there are", PATIENCE_S)
        large = [signed(near, bytes([k]) + _noise(1_200_000, k)) for k in range(4)]
        for record in large:
            near.publish(record)
        arrived: list[bytes] = []
        soon(lambda: arrived.extend(drained(far)) or set(large) <= set(arrived), "all honest large records", PATIENCE_S)
    finally:
        for node in (near, far):
            if node is not None:
                node.close()


def test_absurd_log_probabilities_do_not_end_a_learner(tmp_path: Path, victims: Victims, strangers: Strangers) -> None:
    settings = ("--learner.spot_check=0", "--learner.rollouts_per_step=8", "--evaluation.num_questions=0")
    learner = victims(tmp_path / "learner", "learn", "examples/tiny.yaml", *settings)
    address = address_of(learner)
    worker = strangers("worker")
    (peer_id,) = worker.connect(address)
    run_id = worker.manifest(peer_id).run_id
    policy = load_policy(PolicySettings())
    mixture = TaskMixture(TINY_TASKS)
    questions = (mixture.question(1, index) for index in range(10_000))
    solved = (question for question in questions if "Calculate" in question.prompt and solve(question.prompt))

    def sample(question: Question, logprob: float, number: int) -> RolloutGroup:
        right = solve(question.prompt)
        texts = [f"<answer>{right if k % 2 else -1_000}</answer>" for k in range(8)]
        ids = [(*policy.tokenizer.encode(text), policy.tokenizer.eos_token_id) for text in texts]
        completions = tuple(
            Completion(text, "stop", tokens, (logprob,) * len(tokens)) for text, tokens in zip(texts, ids, strict=True)
        )
        group = _group(run_id, worker.peer_id, number, completions)
        return replace(group, policy=PolicyId("tiny", policy.tokenizer_hash, 0), question=question.ref)

    numbers = itertools.count()
    for _ in range(3):
        absurd = sample(next(solved), -1e308, next(numbers))
        worker.publish(run_id, worker.seal(run_id, "group", absurd))
    honest = strangers("honest-worker")
    honest.connect(address)

    def steps() -> bool:
        group = replace(sample(next(solved), -1.0, next(numbers)), peer_id=honest.peer_id)
        honest.publish(run_id, honest.seal(run_id, "group", group))
        return learner.round() >= 1

    until(steps, learner, "a step", PATIENCE_S)
    assert learner.process.poll() is None


def _group(run_id: str, peer_id: str, number: int, completions: Sequence[Completion]) -> RolloutGroup:
    question = _question()
    return RolloutGroup(
        run_id=run_id,
        peer_id=peer_id,
        sequence=int(time.time() * 1_000) - 1_000 + number,
        created_at=time.time(),
        policy=PolicyId("tiny", "", 0),
        sampling=Sampling(),
        question=question.ref,
        completions=tuple(completions),
        rewards=(0.0,) * len(completions),
    )


_QUESTIONS: list[Question] = []


def _question() -> Question:
    if not _QUESTIONS:
        _QUESTIONS.append(TaskMixture(TINY_TASKS).question(0, 0))
    return _QUESTIONS[0]


def _open(record: bytes, run_id: str) -> RolloutGroup:
    return opened(record, run_id).group


def _resigned(group: RolloutGroup, run_id: str) -> bytes:
    name = Identity.generate()
    return seal(name, run_id, "group", replace(group, peer_id=name.peer_id))


def _in_vain(run_id: str, number: int) -> bytes:
    """The announcement of a record that nobody has, in a name of its own."""
    name = Identity.generate()
    content = number.to_bytes(16, "big")
    return seal_announcement(name, Announcement(run_id, name.peer_id, content, 2_000_000, (content,) * 8))


def _shelve(stranger: Stranger, records: Sequence[bytes], victim: str) -> list[str]:
    """Have a stranger say that it holds these, and give them, to one victim; what that asked for, as it asks."""
    by_id = {record_id(record): record for record in records}
    asked: list[str] = []

    def have(remote: str, request: bytes) -> bytes:
        if remote != victim:  # what others have of it they would hand on, each as much as it may
            return msgspec.msgpack.encode([])
        asked.append(HAVE_PROTOCOL)
        return msgspec.msgpack.encode([Held(name, len(record), 5.0) for name, record in by_id.items()])

    def give(remote: str, request: bytes) -> bytes:
        asked.append(GIVE_PROTOCOL)
        names = msgspec.msgpack.decode(request, type=GiveRequest).record_ids
        return b"".join(name + len(by_id[name]).to_bytes(4, "big") + by_id[name] for name in names)

    stranger.serve(HAVE_PROTOCOL, have)
    stranger.serve(GIVE_PROTOCOL, give)
    return asked


def _noise(num_bytes: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(num_bytes)
