"""Students and teachers on the memory transport: real policies, questions and updates, and liars."""

from __future__ import annotations

import copy
import hashlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from statistics import fmean

import msgspec
import pytest
import torch
from msgspec.structs import replace
from transformers import Qwen3ForCausalLM

from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import Refusal
from swarm.extras.distill import student
from swarm.extras.distill.messages import (
    MAX_READ_CHARS,
    MAX_SPANS,
    TEACH_PROTOCOL,
    Ask,
    Opinion,
    Said,
    encode_ask,
    open_ask,
    open_opinion,
    seal,
    spans_of,
)
from swarm.extras.distill.spans import Spans
from swarm.extras.distill.student import Learning, TaughtUpdater
from swarm.extras.distill.teacher import MAX_WAITING, MAX_WAITING_PER_STUDENT, Teaching
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config
from swarm.reasons import Reason
from swarm.sapo.mixing import MixSettings
from swarm.sapo.worth import WorthEstimator
from swarm.teaching import DistillSettings, TeacherState, TeachSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion, GradedGroup, PolicyId
from tests.example_groups import reference, rollout_group
from tests.extras.distill.tokenizers import merging_tokenizer
from tests.net.records import sealed_manifest
from tests.policy.completions import completion_logprobs

TEXTS = ("<answer>19</answer>", "19", "caf\u00e9", "a wrong one")
PAIRS = tuple((text, True) for text in TEXTS)
OFTEN = TeachSettings(passes_per_min=1e6)
STUDENT, TEACHER, STRANGER = (Identity.generate() for _ in range(3))


@pytest.fixture(scope="module")
def verifier() -> InlineVerifier:
    return InlineVerifier(TINY_TASKS[:1])


class Net:
    """A hub with the transports of a student and of a teacher, and every request that was made."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.run = sealed_manifest(TEACHER)
        self.asked: list[tuple[str, bytes]] = []
        self.student = self.transport(STUDENT)
        self.teacher = self.transport(TEACHER)

    def transport(self, identity: Identity) -> MemoryTransport:
        found = MemoryTransport(self.hub, identity.peer_id, self.run)
        found.start()
        request = found.request

        def seen(peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
            self.asked.append((peer_id, payload))
            return request(peer_id, protocol, payload, timeout_s)

        found.request = seen  # type: ignore[method-assign]
        return found

    def liar(self, say: Callable[[bytes, Ask], bytes | None]) -> None:
        """The teacher's key answers whatever `say` makes of a request; None for ever: nothing comes."""

        def answer(remote: str, request: bytes) -> Iterator[bytes | None]:
            while (said := say(request, open_ask(request, self.run.manifest.run_id))) is None:
                yield None
            yield said

        self.teacher.serve_stream(TEACH_PROTOCOL, answer)


@pytest.fixture
def net() -> Net:
    return Net()


def _group(policy: Policy, verifier: InlineVerifier, rewards: Sequence[float] = (1, 0, 0, 0)) -> GradedGroup:
    question = verifier.draw(1, 0, 1)[0]
    ids = [[*policy.tokenizer.encode(text), policy.tokenizer.eos_token_id] for text in TEXTS]
    prompts = [policy.encode_prompt(question.prompt)] * len(ids)
    found = completion_logprobs(policy, prompts, ids, 1.0)
    logprobs = [row.tolist()[: len(each)] for row, each in zip(found, ids, strict=True)]
    completions = tuple(
        Completion(text, "stop", tuple(each), tuple(row)) for text, each, row in zip(TEXTS, ids, logprobs, strict=True)
    )
    group = rollout_group(
        STUDENT.peer_id,
        question=question.ref,
        completions=completions,
        rewards=tuple(map(float, rewards)),
        policy=PolicyId("random", policy.tokenizer_hash, 0),
    )
    return GradedGroup(group, question.prompt, tuple(map(float, rewards)))


def _updater(policy: Policy, **settings: object) -> PolicyUpdater:
    return PolicyUpdater(policy, UpdateSettings(learning_rate=1e-3, **settings), MixSettings(), 1.0)


def _other_policy() -> Policy:
    tokenizer = merging_tokenizer()
    config = tiny_config()
    config.vocab_size = len(tokenizer)
    return Policy("other", Qwen3ForCausalLM(config), tokenizer, system_prompt=None)


def _learning(net: Net, policy: Policy, updater: PolicyUpdater, **settings: object) -> Learning:
    chosen = DistillSettings(**{"ask_twice": 0, "timeout_s": 10, "untested": 1, **settings})
    return Learning(chosen, [TEACHER.peer_id], net.student, policy, updater.advantages)


def _until(condition: Callable[[], object]) -> None:
    ends_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen"
        time.sleep(0.005)


def _over(learning: Learning, count: int = 1) -> dict[str, int]:
    """The counts after so many questions are over."""
    _until(lambda: sum(learning.counters().values()) >= 2 * count)
    return learning.counters()


def _spans(text: str, each: float = -1.0) -> Spans:
    ends = [len(text[: k + 1].encode()) for k in range(len(text))]
    return Spans([*ends, ends[-1] + 1], [each] * (len(ends) + 1))


def _honest(request: bytes, ask: Ask, version: int = 0) -> bytes:
    return seal(TEACHER, request, version, [_spans(text) for text, _ in ask.texts])


def test_an_answer_says_what_was_meant_up_to_rounding() -> None:
    request = encode_ask(Ask("run", reference(), (("x" * 50, True),), bytes(16)))
    meant = Spans(range(1, 52), [-0.013 * k for k in range(51)])
    opinion = open_opinion(seal(TEACHER, request, 3, [meant]), request, (("x" * 50, True),), TEACHER.peer_id)
    said = spans_of(opinion.said[0])
    assert list(said.ends) == list(meant.ends) and opinion.version == 3
    for k in range(51):
        for j in range(k):
            assert sum(said.logprobs[j:k]) == pytest.approx(sum(meant.logprobs[j:k]), abs=1 / 64)


def _forge(said: Sequence[Said], request: bytes = b"request", signer: Identity = TEACHER) -> bytes:
    opinion = msgspec.msgpack.encode(Opinion(hashlib.sha256(request).digest(), 0, tuple(said)))
    return msgspec.msgpack.encode([opinion, signer.sign(b"swarm opinion 1\0" + opinion)])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", Reason.MALFORMED),
        (b"\x92" * 5000, Reason.MALFORMED),
        (_forge([Said((1,), (1,))], signer=STRANGER), Reason.BAD_SIGNATURE),
        (_forge([Said((1,), (1,))], b"another request"), Reason.REPLAYED),
        (_forge([Said((1,), (1,)), Said((1,), (1,))]), Reason.LIMITS),
        (_forge([Said((1, 1), (1,))]), Reason.LIMITS),
        (_forge([Said((3, 2), (1, 1))]), Reason.LIMITS),
        (_forge([Said((0,), (1,))]), Reason.MALFORMED),
        (_forge([Said((1,), (-1,))]), Reason.MALFORMED),
        (_forge([Said((1,), (2**40,))]), Reason.MALFORMED),
        (_forge([Said((1,) * (MAX_SPANS + 1), (1,) * (MAX_SPANS + 1))]), Reason.MALFORMED),
        (_forge([]), Reason.MALFORMED),
    ],
)
def test_a_false_answer_is_refused(answer: bytes, reason: Reason) -> None:
    with pytest.raises(Refusal) as refusal:
        open_opinion(answer, b"request", (("abc", True),), TEACHER.peer_id)
    assert refusal.value.reason == reason


@pytest.mark.parametrize("same", [True, False])
def test_a_student_becomes_like_its_teacher(policy: Policy, net: Net, verifier: InlineVerifier, same: bool) -> None:
    """With one tokenizer and with two, without any reward."""
    teacher = copy.deepcopy(policy) if same else _other_policy()
    favourite = replace(_group(policy, verifier), rewards=(0.0, 1.0, 0.0, 0.0))
    training = _updater(teacher)
    for _ in range(10):
        training.update([], [favourite])
    group = replace(favourite, rewards=(0.0,) * 4)
    updater = _updater(policy)
    learning = _learning(net, policy, updater, bound=20.0)
    taught = TaughtUpdater(updater, updater.sketcher, learning, WorthEstimator(updater.sketcher, 1, 1))
    teaching = Teaching(OFTEN, TEACHER, net.teacher, verifier, _updater(teacher), teacher.decode)
    before = _apart(policy, teacher, group)
    for _ in range(4):
        group = _group(policy, verifier, rewards=(0, 0, 0, 0))
        learning.offer(group)
        learning.ask()
        _until(lambda: teaching._waiting)
        teaching.teach()
        _until(lambda: learning._arrived)
        report = taught.update([], [])
        assert report.figures["distill/groups"] == 1 and not report.skipped
        assert (report.figures["distill/left_out"] == 0) is same or report.figures["distill/left_out"] < 0.5
        updater.version = 0  # or the group's tokens would be old
    assert _apart(policy, teacher, group) < 0.7 * before
    assert teaching.counters() == {"taught": 4, "texts": 16}
    assert {peer_id for peer_id, _ in net.asked} == {TEACHER.peer_id}


@pytest.mark.parametrize("author", ["teacher", "faded", "untrusted", "stranger"])
def test_a_teachers_own_text_is_imitated_whatever_its_reward(author: str, policy: Policy, net: Net, verifier) -> None:
    """A step of supervised learning on all of it; nobody else's text, and not without trust."""
    by = STRANGER if author == "stranger" else TEACHER
    group = replace(_group(policy, verifier), rewards=(0.0,) * 4)
    group = replace(group, group=replace(group.group, peer_id=by.peer_id))
    twin = copy.deepcopy(policy)
    updater = _updater(policy, max_grad_norm=1e9)
    changes = {"faded": {"half_life": 0.01}, "untrusted": {"untested": 0}}.get(author, {})
    learning = _learning(net, policy, updater, imitate=1.0, **changes)
    taught = TaughtUpdater(updater, updater.sketcher, learning, WorthEstimator(updater.sketcher, 1, 1))
    updater.version = 1
    taught.update([], [group])
    if author != "teacher":
        assert all(torch.equal(a, b) for a, b in zip(policy.model.parameters(), twin.model.parameters(), strict=True))
        return
    optimizer = torch.optim.AdamW(twin.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    ids = [list(each.token_ids) for each in group.group.completions]
    found = completion_logprobs(twin, [twin.encode_prompt(group.prompt)] * 4, ids, 1.0)
    loss = -sum(row[: len(each)].mean() for row, each in zip(found, ids, strict=True)) / len(ids)
    loss.backward()
    optimizer.step()
    for ours, theirs in zip(policy.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def _apart(policy: Policy, teacher: Policy, group: GradedGroup) -> float:
    """Mean difference of what both say of each text, in nats."""
    ours, theirs = (_updater(each).read([group])[0] for each in (policy, teacher))
    return fmean(abs(sum(a[0].logprobs) - sum(b[0].logprobs)) for a, b in zip(ours, theirs, strict=True))


def test_one_tokenizer_gives_what_both_policies_say_of_each_token(policy: Policy, net: Net, verifier) -> None:
    teacher = copy.deepcopy(policy)
    _updater(teacher).update([], [_group(policy, verifier)])
    group = _group(policy, verifier)
    learning = _learning(net, policy, _updater(policy), weight=1.0, bound=1e9)
    teaching = Teaching(OFTEN, TEACHER, net.teacher, verifier, _updater(teacher), teacher.decode)
    learning.offer(group)
    learning.ask()
    _until(lambda: teaching._waiting)
    teaching.teach()
    _over(learning)
    (found,), _, figures = learning.taught(0)
    for added, completion, turns in zip(
        found.added, group.group.completions, _updater(teacher).read([group])[0], strict=True
    ):
        expected = [theirs - ours for theirs, ours in zip(turns[0].logprobs, completion.logprobs, strict=True)]
        assert added == pytest.approx(expected, abs=1 / 32)
    assert found.rewards == (0.0,) * 4 and figures["distill/left_out"] == 0


@pytest.mark.parametrize(
    "say",
    [
        lambda request, ask: _honest(request + b"x", ask),
        lambda request, ask: _honest(request, ask)[:-1],
        lambda request, ask: bytes(2**20),
        lambda request, ask: seal(STRANGER, request, 0, [_spans(text) for text, _ in ask.texts]),
        lambda request, ask: seal(TEACHER, request, 0, [_spans(text + "!") for text, _ in ask.texts]),
    ],
    ids=["replayed", "cut", "zeros", "forged", "too long"],
)
def test_what_is_refused_teaches_nothing_and_costs_the_teacher_a_rest(say, policy, net, verifier) -> None:
    net.liar(say)
    learning = _learning(net, policy, _updater(policy))
    learning.offer(_group(policy, verifier))
    learning.ask()
    assert _over(learning) == {"asked": 1, "refused": 1}
    assert learning.taught(0)[0] == []
    learning.offer(_group(policy, verifier))
    learning.ask()
    assert learning.counters()["asked"] == 1


def test_an_answer_that_is_huge_slow_or_withheld_stops_nothing(policy: Policy, net: Net, verifier) -> None:
    for say, outcome in (
        (lambda request, ask: bytes(2**22), "unreachable"),
        (lambda request, ask: None, "unreachable"),
        (lambda request, ask: b"", "busy"),
    ):
        net.liar(say)
        learning = _learning(net, policy, _updater(policy), timeout_s=0.1)
        learning.offer(_group(policy, verifier))
        learning.ask()
        assert _over(learning) == {"asked": 1, outcome: 1}
        assert learning.taught(0)[0] == []


def test_a_teacher_that_contradicts_itself_is_asked_no_more(policy: Policy, net: Net, verifier) -> None:
    """Whatever version it says it has: with the third contradiction it is dropped."""
    answers = iter(range(1, 100))

    def say(request: bytes, ask: Ask) -> bytes:
        number = next(answers)
        return seal(TEACHER, request, number, [_spans(text, -float(number)) for text, _ in ask.texts])

    net.liar(say)
    learning = _learning(net, policy, _updater(policy), ask_twice=1)
    teacher = learning.teachers[TEACHER.peer_id]
    for k in (1, 2, 3):
        assert not teacher.is_dropped
        learning.offer(_group(policy, verifier))
        learning.ask()
        assert _over(learning, k) == {"asked": k, "contradicted": k}
        assert learning.taught(0)[0] == []
        teacher.rests_until = 0.0
    assert teacher.is_dropped


def test_an_answer_that_is_not_given_again_does_not_count(policy: Policy, net: Net, verifier) -> None:
    answers = iter([True, False])
    net.liar(lambda request, ask: _honest(request, ask) if next(answers) else b"")
    learning = _learning(net, policy, _updater(policy), ask_twice=1)
    learning.offer(_group(policy, verifier))
    learning.ask()
    assert _over(learning) == {"asked": 1, "busy": 1}
    assert learning.taught(0)[0] == []


def test_a_teacher_does_not_live_on_its_past(policy: Policy, net: Net) -> None:
    teacher = _learning(net, policy, _updater(policy)).teachers[TEACHER.peer_id]
    for _ in range(200):
        teacher.note(1.0, 0)
    assert teacher.trust(0.0, 0) == 1
    for _ in range(student.RECENT_GROUPS):
        teacher.note(-0.1, 0)
    assert teacher.score > student.CLEAR and teacher.trust(0.0, 0) == 0


def test_a_late_answer_is_dropped(policy: Policy, net: Net, verifier: InlineVerifier) -> None:
    net.liar(_honest)
    learning = _learning(net, policy, _updater(policy), max_staleness=2)
    for version, groups in ((2, 1), (3, 0)):
        learning.offer(_group(policy, verifier))
        learning.ask()
        _until(lambda: learning._arrived)
        assert len(learning.taught(version)[0]) == groups
    assert learning.counters()["late"] == 1


def test_a_weight_that_has_faded_asks_and_adds_nothing(policy: Policy, net: Net, verifier) -> None:
    net.liar(_honest)
    learning = _learning(net, policy, _updater(policy), half_life=1, max_staleness=99)
    for version, groups in ((6, 1), (7, 0)):
        learning.offer(_group(policy, verifier))
        learning.ask()
        _until(lambda: learning._arrived)
        assert len(learning.taught(version)[0]) == groups
    learning.offer(_group(policy, verifier))
    learning.ask()
    assert learning.counters()["asked"] == 2


@pytest.mark.parametrize("lie", ["right", "inverted", "random", "noise"])
def test_a_teacher_counts_as_far_as_it_prefers_what_is_rewarded(lie: str, policy, net, verifier) -> None:
    """Before it is judged it teaches nothing, unless its student says otherwise; of those that lie, nobody does."""

    chance = random.Random(0)

    def say(request: bytes, ask: Ask) -> bytes:
        if lie == "noise":
            return seal(TEACHER, request, 0, [_spans(text, -chance.expovariate(1.0)) for text, _ in ask.texts])
        best = {"right": 0, "inverted": -1, "random": chance.randrange(4)}[lie]
        texts = [text for text, _ in ask.texts]
        return seal(TEACHER, request, 0, [_spans(text, -1.0 if text == TEXTS[best] else -9.0) for text in texts])

    net.liar(say)
    learning = _learning(net, policy, _updater(policy), groups=1, untested=0)
    learning._chance.seed(0)
    group = _group(policy, verifier)
    if lie == "noise":  # against which the right answer, improbable to the student, always looks undervalued
        first, *others = group.group.completions
        first = replace(first, logprobs=tuple(2 * each for each in first.logprobs))
        group = replace(group, group=replace(group.group, completions=(first, *others)))
    learning.offer(replace(group, rewards=(0.0,) * 4))
    learning.ask()
    assert not learning.counters()  # it would say nothing about the teacher
    taught = []
    for _ in range(40):
        learning.offer(group)
        asked = learning.counters().get("asked", 0)
        learning.ask()
        if learning.counters()["asked"] > asked:
            _until(lambda: learning._arrived)
            taught.append(len(learning.taught(0)[0]))
    assert not any(taught[: student.MIN_GROUPS - 1])
    if lie == "right":
        assert all(taught[student.MIN_GROUPS :]) and len(taught) == 40
    else:
        assert sum(taught) <= 4 and not taught[-1]
        assert (len(taught) < 20) is (lie == "inverted")  # asked rarely from then on
    trusted = lie == "right"
    later = _learning(net, policy, _updater(policy), untested=0)
    later.restore({**learning.dump(), "former": TeacherState([1.0], 0)})
    assert later.dump() == learning.dump() and later.taught(0)[2]["distill/trust"] == trusted


def test_what_was_found_out_about_a_teacher_outlives_a_restart(policy: Policy, net: Net) -> None:
    states = [TeacherState([1.0] * 6, 1), TeacherState([1.0] * 6, student.FRESH_ROUNDS), TeacherState([], 0, 2, True)]
    trust = []
    for state in states:
        learning = _learning(net, policy, _updater(policy))
        learning.restore({TEACHER.peer_id: state})
        learning.ask()  # a round later
        trust.append(learning.taught(0)[2]["distill/trust"])
    assert trust == [1.0, 0.0, 0.0]
    for wrong in (math.nan, 2.0):
        with pytest.raises(ValueError, match=r"in \[-1, 1\]"):
            learning.restore({TEACHER.peer_id: TeacherState([wrong], 0)})


def test_no_text_goes_to_anybody_but_a_chosen_teacher(policy: Policy, net: Net, verifier: InlineVerifier) -> None:
    stranger = net.transport(STRANGER)
    heard: list[bytes] = []
    stranger.serve(TEACH_PROTOCOL, lambda remote, request: heard.append(request) or b"")
    net.liar(_honest)
    updater = _updater(policy)
    learning = Learning(DistillSettings(), [TEACHER.peer_id], net.student, policy, updater.advantages, {"secret"})
    group = _group(policy, verifier)
    secret = replace(group, group=replace(group.group, question=replace(group.group.question, task="secret")))
    for each in (secret, group):
        learning.offer(each)
        learning.ask()
        learning.ask()
    _over(learning)
    assert {peer_id for peer_id, _ in net.asked} == {TEACHER.peer_id} and not heard
    assert group.prompt.encode() not in b"".join(request for _, request in net.asked)
    assert not stranger.drain()


def test_what_hides_tokens_from_its_text_is_not_asked_about(policy: Policy, net: Net, verifier) -> None:
    learning = _learning(net, policy, _updater(policy))
    group = _group(policy, verifier)
    first, *others = group.group.completions
    end = policy.tokenizer.eos_token_id
    hiding = replace(first, token_ids=(first.token_ids[0], end, *first.token_ids[1:]), logprobs=(-1.0, *first.logprobs))
    learning.offer(replace(group, group=replace(group.group, completions=(hiding, *others))))
    assert not learning._round
    learning.offer(group)
    assert learning._round == [group]


def _request(net: Net, identity: Identity, question: object, texts=PAIRS, run_id: str = "") -> bytes:
    run_id = run_id or net.run.manifest.run_id
    return encode_ask(Ask(run_id, question, texts, identity.peer_id.encode()[-16:]))


def _outcomes(teaching: Teaching, net: Net, students: Sequence[Identity], request: bytes) -> list[bytes]:
    """What each gets who sends the request at the same time."""
    found: dict[int, bytes] = {}

    def ask(number: int, transport: MemoryTransport) -> None:
        try:
            found[number] = transport.request(TEACHER.peer_id, TEACH_PROTOCOL, request, 30)
        except Exception as error:
            found[number] = repr(error).encode()

    transports = {each.peer_id: net.student if each is STUDENT else net.transport(each) for each in {*students}}
    threads = [threading.Thread(target=ask, args=(k, transports[s.peer_id])) for k, s in enumerate(students)]
    for thread in threads:
        thread.start()
    _until(lambda: len(found) + len(teaching._waiting) == len(students))
    teaching.teach()
    for thread in threads:
        thread.join()
    return [found[k] for k in range(len(students))]


def test_a_student_takes_only_its_share_of_a_teacher(policy: Policy, net: Net, verifier: InlineVerifier) -> None:
    question = verifier.draw(1, 0, 1)[0].ref
    teaching = Teaching(OFTEN, TEACHER, net.teacher, verifier, _updater(policy), policy.decode)
    asking = [STUDENT] * (MAX_WAITING_PER_STUDENT + 3) + [STRANGER]
    found = _outcomes(teaching, net, asking, _request(net, STUDENT, question))
    assert sum(map(bool, found[:-1])) == MAX_WAITING_PER_STUDENT and found[-1]
    assert teaching.counters()["busy"] == 3


def test_a_long_text_is_not_asked_about_and_costs_more_passes(policy: Policy, net: Net, verifier) -> None:
    question = verifier.draw(1, 0, 1)[0].ref
    teaching = Teaching(OFTEN, TEACHER, net.teacher, verifier, _updater(policy), policy.decode)
    long = "x" * MAX_READ_CHARS
    assert Ask("run", question, (("", True), ("x" * 4_095, True), (long, False)), bytes(16)).passes == 1 + 1 + 17
    learning = _learning(net, policy, _updater(policy))
    group = _group(policy, verifier)
    first, *others = group.group.completions
    for text, is_read in ((long, True), (long + "x", False)):
        request = _request(net, STUDENT, question, ((text, True),))
        assert (teaching._admit(STUDENT.peer_id, request) is not None) is is_read
        long_one = replace(group.group, completions=(replace(first, text=text), *others))
        learning.offer(replace(group, group=long_one))
    assert len(learning._round) == 1 and teaching.counters() == {"refused": 1}


def _waiting_teaching(policy: Policy, net: Net, verifier: InlineVerifier, passes_per_min: float, clock=time.monotonic):
    """A teacher, and a way to ask it whose answer is what waits."""
    settings = TeachSettings(passes_per_min=passes_per_min)
    teaching = Teaching(settings, TEACHER, net.teacher, verifier, _updater(policy), policy.decode, clock)
    question = verifier.draw(1, 0, 1)[0].ref

    def ask(name: str, texts=PAIRS):
        return teaching._admit(name, _request(net, STUDENT, question, texts))

    return teaching, ask


def test_a_teacher_spends_what_its_owner_set_and_never_more(policy: Policy, net: Net, verifier) -> None:
    now = 0.0
    teaching, ask = _waiting_teaching(policy, net, verifier, 8, lambda: now)
    half, much = (("x", True),) * 32, (("x", True),) * 65
    assert ask("a", much) is None and teaching.counters() == {"refused": 1}
    waiting = [ask("a", half) for _ in range(3)]
    teaching.teach()
    assert [each.answer is not None for each in waiting] == [True, True, False]
    now = 61.0  # 8 passes more
    small = ask("a", (("x", True),))
    teaching.teach()
    assert waiting[2].answer is None and small.answer is None, "whose turn it is waits until it can be paid"
    now = 4 * 61.0
    teaching.teach()
    assert waiting[2].answer and small.answer is None
    assert 0 <= teaching._budget.left(now) < 1


def test_students_have_turns_whoever_asks_more(policy: Policy, net: Net, verifier: InlineVerifier) -> None:
    now = 0.0
    teaching, ask = _waiting_teaching(policy, net, verifier, 4, lambda: now)
    teaching._budget.spend(64, now)
    for _ in range(MAX_WAITING_PER_STUDENT):
        ask("greedy")
    modest = ask("modest")
    served = []
    for minutes in (1.01, 2.02, 3.03):
        now = minutes * 60
        served += [each.student for each in teaching._next()]
        modest = ask("modest") if modest not in teaching._waiting else modest
    assert served == ["greedy", "modest", "greedy"]


def test_who_fills_all_places_makes_room_for_others(policy: Policy, net: Net, verifier: InlineVerifier) -> None:
    teaching, ask = _waiting_teaching(policy, net, verifier, 1e6)
    filled = [ask(name) for name in "abcd" for _ in range(MAX_WAITING_PER_STUDENT)]
    assert len(teaching._waiting) == MAX_WAITING and ask("a") is None
    for k in range(MAX_WAITING_PER_STUDENT - 2):
        assert ask("e") is not None and len(teaching._waiting) == MAX_WAITING, k
    assert ask("e") is None
    assert filled[MAX_WAITING_PER_STUDENT - 1].answer == b"" and filled[0].answer is None


def test_a_request_that_fails_costs_no_other_its_answer(policy, net, verifier, monkeypatch, caplog) -> None:
    teaching, ask = _waiting_teaching(policy, net, verifier, 1e6)
    read = teaching._updater.read

    def reading(groups: Sequence[GradedGroup]):
        if any(each.text == "panic" for group in groups for each in group.group.completions):
            raise RuntimeError("a tokenizer panicked")
        return [
            [
                [turn._replace(logprobs=[-math.inf] * len(turn.logprobs)) for turn in turns]
                if c.text == "inf"
                else turns
                for c, turns in zip(group.group.completions, found, strict=True)
            ]
            for group, found in zip(groups, read(groups), strict=True)
        ]

    monkeypatch.setattr(teaching._updater, "read", reading)
    texts = (("panic", True),), (("inf", True), ("fine", True)), PAIRS
    bad, infinite, good = (ask(name, each) for name, each in zip("abc", texts, strict=True))
    teaching.teach()
    assert bad.answer == b"" and good.answer
    opinion = open_opinion(infinite.answer, infinite.request, texts[1], TEACHER.peer_id)
    assert [bool(said.deltas) for said in opinion.said] == [False, True]
    assert teaching.counters() == {"failed": 1, "taught": 2, "texts": 6} and "panicked" in caplog.text


def test_a_question_without_end_is_not_waited_for_twice(policy, net, verifier, monkeypatch) -> None:
    now = 0.0
    settings = TeachSettings(passes_per_min=1e6, seconds_per_round=0.05)
    teaching = Teaching(settings, TEACHER, net.teacher, verifier, _updater(policy), policy.decode, lambda: now)
    question = verifier.draw(1, 0, 1)[0].ref
    endless = replace(question, seed=7)
    begin = verifier.begin_grading
    monkeypatch.setattr(verifier, "begin_grading", lambda ref, texts: Future() if ref == endless else begin(ref, texts))
    slow, good = (
        teaching._admit(name, _request(net, STUDENT, ref)) for name, ref in (("slow", endless), ("good", question))
    )
    began = time.monotonic()
    teaching.teach()
    assert time.monotonic() - began < 5
    assert slow.answer == b"" and good.answer
    for seconds, is_admitted in ((299.0, False), (300.0, True)):
        now = seconds
        assert (teaching._admit("slow", _request(net, STUDENT, question)) is not None) is is_admitted
    assert teaching._admit("good", _request(net, STUDENT, question)) is not None


def test_a_teacher_refuses_strangers_other_runs_and_what_it_cannot_read(policy, net, verifier) -> None:
    question = verifier.draw(1, 0, 1)[0].ref
    settings = TeachSettings(passes_per_min=1e6, students=(STUDENT.peer_id,))
    teaching = Teaching(settings, TEACHER, net.teacher, verifier, _updater(policy), policy.decode)
    assert _outcomes(teaching, net, [STRANGER], _request(net, STRANGER, question)) == [b""]
    for request in (
        _request(net, STUDENT, question, run_id="another"),
        b"\xc1",
        _request(net, STUDENT, question, texts=()),
    ):
        assert _outcomes(teaching, net, [STUDENT], request)[0].startswith(b"PeerUnreachable")
    for texts, ref in (
        ((("x" * 100_000, True),), question),  # more than the policy has positions for
        (PAIRS, replace(question, question_hash="0")),
        (PAIRS, replace(question, task="unknown")),
        (PAIRS, replace(question, seed=2**62)),  # held out
    ):
        assert _outcomes(teaching, net, [STUDENT], _request(net, STUDENT, ref, texts)) == [b""]
    assert teaching.counters()["refused"] == 8 and not teaching._waiting
    assert _outcomes(teaching, net, [STUDENT], _request(net, STUDENT, question))[0]


def test_a_teacher_that_leaves_answers_nothing(policy: Policy, net: Net, verifier: InlineVerifier) -> None:
    question = verifier.draw(1, 0, 1)[0].ref
    teaching = Teaching(OFTEN, TEACHER, net.teacher, verifier, _updater(policy), policy.decode)
    teaching.teach = teaching.close  # type: ignore[method-assign]
    assert _outcomes(teaching, net, [STUDENT], _request(net, STUDENT, question)) == [b""]
    assert net.student.request(TEACHER.peer_id, TEACH_PROTOCOL, _request(net, STUDENT, question), 1) == b""


def test_a_student_waits_as_long_as_it_likes(policy: Policy, net: Net, verifier: InlineVerifier) -> None:
    now = 0.0
    teaching, _ = _waiting_teaching(policy, net, verifier, 1e6, lambda: now)
    serving = teaching._serve("a", _request(net, STUDENT, verifier.draw(1, 0, 1)[0].ref))
    assert next(serving) is None
    now = 3_000.0
    assert next(serving) is None
    teaching.teach()
    assert next(serving)
