from __future__ import annotations

import math
import tracemalloc

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarm.errors import Refusal
from swarm.net.records import envelope, wire
from swarm.net.records.envelope import Body, Envelope, read_record, wrap
from swarm.net.records.identity import Identity
from swarm.net.records.wire import (
    MAX_CLOCK_SKEW_S,
    Limits,
    check_seal,
    is_outdated,
    make_run_id,
    open_manifest,
    open_peer_record,
    seal,
    seal_manifest,
    seal_peer_record,
)
from swarm.net.trust.accounts import OFFENCES
from swarm.types import (
    SCHEMA_VERSION,
    Completion,
    DatasetRef,
    EpisodeRef,
    MemberSummary,
    PeerRecord,
    ProceduralRef,
    RolloutGroup,
    RunManifest,
    TaskSpec,
    Turn,
    VersionSpan,
)

from .records import make_group, make_manifest, opened

ALICE = Identity.generate()
RUN = make_run_id("demo", ALICE.peer_id)
GROUP = make_group(RUN, ALICE.peer_id)
SEALED = seal(ALICE, RUN, "group", GROUP)
NOW = 1_000.0


def refusal_of(record: bytes, limits: Limits | None = None) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        opened(record, RUN, limits, now=NOW)
    return refusal.value


def reason(record: bytes, limits: Limits | None = None) -> str:
    return refusal_of(record, limits).reason


def resign(identity: Identity, payload: bytes, **changes: object) -> bytes:
    """An envelope with a good signature over whatever payload, and whatever else is in its body."""
    fields = {"run_id": RUN, "peer_id": identity.peer_id, "kind": "group", "payload": payload}
    return wrap(identity, msgspec.msgpack.encode(fields | changes))


def parts(record: bytes) -> tuple[Envelope, Body]:
    sealed = read_record(record, len(record))
    return sealed.envelope, sealed.body


def test_round_trip_and_content_id() -> None:
    group = opened(SEALED, RUN, now=NOW)
    assert group.group == GROUP and len(group.content_id) == 32 and group.record == SEALED
    assert opened(seal(ALICE, RUN, "group", GROUP), RUN, now=NOW).content_id == group.content_id
    other = seal(ALICE, RUN, "group", replace(GROUP, sequence=1))
    assert opened(other, RUN, now=NOW).content_id != group.content_id


def test_the_content_id_is_of_what_was_sent_however_it_was_compressed() -> None:
    """Whoever receives it, of whatever minor version, knows it by the same id."""
    content = msgspec.msgpack.encode(GROUP)
    first, again = (opened(resign(ALICE, zstandard.compress(content, level=k)), RUN, now=NOW) for k in (1, 19))
    assert first.content_id == again.content_id == opened(SEALED, RUN, now=NOW).content_id
    more = msgspec.msgpack.encode(msgspec.to_builtins(GROUP) | {"mood": "good"})
    with_more = opened(resign(ALICE, zstandard.compress(more)), RUN, now=NOW)
    assert with_more.group == GROUP and with_more.content_id != first.content_id


def test_oversized() -> None:
    assert reason(SEALED, Limits(max_record_bytes=len(SEALED) - 1)) == "oversized"


@pytest.mark.parametrize(
    ("version", "advice"), [(SCHEMA_VERSION + 1, "update swarm here"), (SCHEMA_VERSION - 1, "update swarm there")]
)
def test_another_major_version_is_named_whatever_its_fields(version: int, advice: str) -> None:
    # The fields of version 1 were these.
    fields = {"run_id": RUN, "peer_id": ALICE.peer_id, "kind": "group", "payload": b"", "signature": b""}
    for record in (
        msgspec.msgpack.encode({"schema_version": version, "new_field": 1}),
        msgspec.msgpack.encode({"schema_version": version} | fields),
        msgspec.msgpack.encode(replace(parts(SEALED)[0], schema_version=version)),
    ):
        refusal = refusal_of(record)
        assert refusal.reason == "schema_version"
        assert f"version {version} " in refusal.detail and f"version {SCHEMA_VERSION}: {advice}" in refusal.detail


def test_the_major_version_is_signed() -> None:
    envelope, _ = parts(SEALED)
    as_if_before = ALICE.sign(b"swarm envelope %d\0" % (SCHEMA_VERSION - 1) + envelope.body)
    assert reason(msgspec.msgpack.encode(replace(envelope, signature=as_if_before))) == "bad_signature"


def test_nothing_unsigned_travels_in_an_envelope() -> None:
    fields = msgspec.structs.asdict(parts(SEALED)[0])
    assert reason(msgspec.msgpack.encode(fields | {"more": 1})) == "malformed"


def _other_encodings(record: bytes) -> dict[str, bytes]:
    """The same envelope, as other encoders might write it."""
    envelope, _ = parts(record)
    version, body = b"\xaeschema_version", msgspec.msgpack.encode({"body": envelope.body})[1:]
    signature = msgspec.msgpack.encode({"signature": envelope.signature})[1:]
    return {
        "reordered": b"\x83" + body + version + b"\x02" + signature,
        "repeated": b"\x84" + version + b"\x07" + version + b"\x02" + body + signature,
        "wide number": b"\x83" + version + b"\xcc\x02" + body + signature,
        "wide map": b"\xde\x00\x03" + record[1:],
        "wide name": b"\x83\xd9\x0e" + record[2:],
        "wide bytes": b"\x83" + version + b"\x02" + body + b"\xa9signature\xc5\x00\x40" + envelope.signature,
        "as text": b"\x83"
        + version
        + b"\x02\xa4body"
        + b"\xdb"
        + len(envelope.body).to_bytes(4, "big")
        + envelope.body,
        "more after it": record + b"\x00",
    }


def test_an_envelope_has_one_encoding() -> None:
    for what, altered in _other_encodings(SEALED).items():
        assert reason(altered) == "malformed", what
    assert msgspec.msgpack.encode(parts(SEALED)[0]) == SEALED


def test_wrong_run() -> None:
    assert reason(seal(ALICE, "other", "group", replace(GROUP, run_id="other"))) == "wrong_run"
    assert reason(seal(ALICE, RUN, "group", replace(GROUP, run_id="other"))) == "wrong_run"


def test_wrong_peer_and_bad_signature() -> None:
    mallory = Identity.generate()
    assert reason(seal(mallory, RUN, "group", GROUP)) == "wrong_peer"
    envelope, body = parts(seal(mallory, RUN, "group", GROUP))
    forged = msgspec.msgpack.encode(replace(body, peer_id=ALICE.peer_id))
    assert reason(msgspec.msgpack.encode(replace(envelope, body=forged))) == "bad_signature"


@pytest.mark.parametrize("change", [{"payload": b"x"}, {"peer_id": "12D3KooW"}, {"peer_id": ""}, {"more": 1}])
def test_every_field_is_signed(change: dict[str, object]) -> None:
    envelope, body = parts(SEALED)
    changed = msgspec.msgpack.encode(msgspec.structs.asdict(body) | change)
    assert reason(msgspec.msgpack.encode(replace(envelope, body=changed))) == "bad_signature"
    assert reason(msgspec.msgpack.encode(replace(envelope, signature=b""))) == "bad_signature"


def test_what_is_fit_to_be_handed_on_is_signed_in_this_run() -> None:
    def refused(record: bytes) -> str:
        with pytest.raises(Refusal) as refusal:
            check_seal(read_record(record, 10_000), RUN)
        return refusal.value.reason

    envelope, body = parts(SEALED)
    assert refused(b"junk") == "malformed" and refused(bytes(10_001)) == "oversized"
    assert refused(seal(ALICE, "other", "group", GROUP)) == "wrong_run"
    other = msgspec.msgpack.encode(replace(body, payload=b"x"))
    assert refused(msgspec.msgpack.encode(replace(envelope, body=other))) == "bad_signature"
    assert refused(seal_manifest(ALICE, make_manifest(ALICE))) == "malformed"
    assert check_seal(read_record(SEALED, 10_000), RUN).record == SEALED


def test_unknown_kinds_are_refused_by_name() -> None:
    refusal = refusal_of(resign(ALICE, b"", kind="conversation"))
    assert refusal.reason == "unknown_kind" and "'conversation'" in refusal.detail and refusal.peer_id is None
    riddle = msgspec.to_builtins(GROUP) | {"question": {"type": "riddle", "text": "?"}}
    refusal = refusal_of(resign(ALICE, zstandard.compress(msgspec.msgpack.encode(riddle))))
    assert refusal.reason == "unknown_question" and "'riddle'" in refusal.detail and refusal.peer_id == ALICE.peer_id
    assert not {"unknown_kind", "unknown_question", "schema_version"} & OFFENCES.keys(), "a newer node is honest"


@pytest.mark.parametrize("name", ["\x1b]52;c;eA==\x07", "", "x" * 65, 7, None])
def test_what_is_no_name_is_no_other_kind(name: object) -> None:
    assert reason(resign(ALICE, b"", kind=name)) == "malformed"
    question = msgspec.to_builtins(GROUP.question) | {"type": name}
    content = msgspec.msgpack.encode(msgspec.to_builtins(GROUP) | {"question": question})
    assert reason(resign(ALICE, zstandard.compress(content))) == "malformed"


def test_a_manifest_cannot_pass_for_a_group() -> None:
    assert reason(seal_manifest(ALICE, make_manifest(ALICE))) == "malformed"


def test_clock() -> None:
    assert reason(seal(ALICE, RUN, "group", replace(GROUP, created_at=NOW + 601))) == "clock"
    assert reason(seal(ALICE, RUN, "group", replace(GROUP, created_at=math.nan))) == "limits"
    assert reason(seal(ALICE, RUN, "group", replace(GROUP, created_at=NOW - 3_601))) == "stale"
    opened(seal(ALICE, RUN, "group", replace(GROUP, created_at=NOW + 599)), RUN, now=NOW)


TEXT = Completion("x", "stop")


@pytest.mark.parametrize(
    "group",
    [
        replace(GROUP, completions=(), rewards=()),
        replace(GROUP, completions=(TEXT,) * 257, rewards=(0.0,) * 257),
        replace(GROUP, rewards=(1.0,)),
        replace(GROUP, rewards=(1.0, math.inf)),
        replace(GROUP, completions=(TEXT, Completion("x" * 65_537, "stop"))),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (1, 2), (-1.0,)))),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (), (-1.0,)))),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (1,), (math.nan,)))),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (-1,), (-1.0,)))),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (1,) * 65_537))),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (1, 2), versions=(VersionSpan(0, 1),)))),
        replace(
            GROUP, completions=(TEXT, Completion("x", "stop", (1,), versions=(VersionSpan(0, 2), VersionSpan(1, -1))))
        ),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (1,), versions=(VersionSpan(-1, 1),)))),
        replace(GROUP, completions=(TEXT, Completion("xy", "stop", turns=(Turn(1, 0, "stop"),)))),
        replace(GROUP, completions=(TEXT, Completion("xy", "stop", turns=(Turn(2, 0, "stop"), Turn(1, 0, "stop"))))),
        replace(GROUP, completions=(TEXT, Completion("xy", "stop", (1,), turns=(Turn(2, 0, "stop"),)))),
        replace(GROUP, completions=(TEXT, Completion("xy", "stop", turns=(Turn(3, 0, "stop"), Turn(-1, 0, "stop"))))),
        replace(GROUP, completions=(TEXT, Completion("x" * 65, "stop", turns=(Turn(1, 0, "stop"),) * 65))),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", observed="d" * 257))),
        replace(GROUP, log_expectation=math.nan),
        replace(GROUP, log_expectation=-math.inf),
        replace(GROUP, log_expectation=0.5),
        replace(GROUP, log_expectation=-1e308),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (1,), (-1e308,)))),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (1,), (-10_001.0,)))),
        replace(GROUP, completions=(TEXT, Completion("x", "stop", (1,), (0.1,)))),
        replace(GROUP, rewards=(1.0, 1e308)),
        replace(GROUP, created_at=math.inf),
        replace(GROUP, created_at=-1e308),
        replace(GROUP, peer_id="p" * 257),
        replace(GROUP, policy=replace(GROUP.policy, version=2**63)),
        replace(GROUP, sampling=replace(GROUP.sampling, temperature=-1.0)),
        replace(GROUP, sampling=replace(GROUP.sampling, top_p=1.5)),
        replace(GROUP, sequence=-1),
        replace(GROUP, sequence=2**63),
        replace(GROUP, policy=replace(GROUP.policy, model="m" * 257)),
        replace(GROUP, question=replace(GROUP.question, task="t" * 257)),
        replace(GROUP, question=replace(GROUP.question, seed=-1)),
        replace(GROUP, sampling=replace(GROUP.sampling, temperature=math.inf)),
        replace(GROUP, sampling=replace(GROUP.sampling, min_p=math.nan)),
        replace(GROUP, sampling=replace(GROUP.sampling, top_k=-1)),
        replace(GROUP, sampling=replace(GROUP.sampling, stop=("x",) * 65)),
        replace(GROUP, sampling=replace(GROUP.sampling, stop_tokens=("x" * 257,))),
    ],
)
def test_limits(group: RolloutGroup) -> None:
    assert reason(seal(ALICE, RUN, "group", group)) == "limits"


def test_what_a_group_holds_is_bounded_in_all_and_not_only_each() -> None:
    text = Completion("a" * 65_000 + "\N{GRINNING FACE}", "stop")
    bomb = seal(ALICE, RUN, "group", replace(GROUP, completions=(text,) * 121, rewards=(0.0,) * 121))
    assert len(bomb) < 2_000 and reason(bomb) == "limits"
    as_long = seal(ALICE, RUN, "group", replace(GROUP, completions=(text,) * 30, rewards=(0.0,) * 30))
    assert opened(as_long, RUN, now=NOW).memory_bytes < 10_000_000
    tokens = Completion("x", "stop", (1,) * 60_000, (-1.0,) * 60_000)
    many = seal(ALICE, RUN, "group", replace(GROUP, completions=(tokens,) * 3, rewards=(0.0,) * 3))
    assert len(many) < 2_000 and reason(many) == "limits"
    spans = Completion("x", "stop", (1,) * 60_000, (-1.0,) * 60_000, (VersionSpan(1, 1),) * 60_000)
    split = seal(ALICE, RUN, "group", replace(GROUP, completions=(spans,) * 2, rewards=(0.0,) * 2))
    assert reason(split) == "limits"


def test_numbers_that_honest_samplers_give_travel() -> None:
    completion = Completion("x", "stop", (0, 2**31), (-0.0, -9_999.0))
    sampling = replace(GROUP.sampling, temperature=1e-3, top_p=0.1, min_p=0.05, top_k=50)
    group = replace(GROUP, completions=(completion,), rewards=(-1e6,), sampling=sampling, log_expectation=-9_999.0)
    assert opened(seal(ALICE, RUN, "group", group), RUN, now=NOW).group == group


def test_a_group_expectation_travels() -> None:
    group = replace(GROUP, log_expectation=-0.75)
    assert opened(seal(ALICE, RUN, "group", group), RUN, now=NOW).group == group


def test_an_episode_travels_and_a_node_that_knows_none_names_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    class OlderGroup(RolloutGroup, frozen=True, kw_only=True):
        question: ProceduralRef | DatasetRef

    turns = (Turn(2, 1, "length"), Turn(1, 2, "stop"))
    episode = Completion("abc", "stop", (1, 2, 3), (-1.0, -2.0, -3.0), turns=turns, observed="digest")
    question = EpisodeRef("guess", "number_guessing", "options", 1, 2, "question")
    group = replace(GROUP, question=question, completions=(episode, TEXT))
    record = seal(ALICE, RUN, "group", group)
    assert opened(record, RUN, now=NOW).group == group
    monkeypatch.setattr(wire, "RolloutGroup", OlderGroup)
    monkeypatch.setattr(envelope, "QUESTION_KINDS", frozenset({"procedural", "dataset"}))
    with pytest.raises(Refusal, match="unknown_question.*does not know questions of kind 'episode'"):
        opened(record, RUN, now=NOW)


def test_token_ids_without_logprobs_are_fine() -> None:
    group = replace(GROUP, completions=(TEXT, Completion("x", "stop", (1, 2))))
    assert opened(seal(ALICE, RUN, "group", group), RUN, now=NOW).group == group


def test_a_decompression_bomb_is_refused_without_being_inflated() -> None:
    zeros = bytes(2**28)
    bomb = resign(ALICE, zstandard.compress(zeros))
    streamed = zstandard.ZstdCompressor().compressobj()
    unsized = resign(ALICE, streamed.compress(zeros) + streamed.flush())
    del zeros
    assert len(bomb) < 100_000
    tracemalloc.start()
    assert reason(bomb) == "oversized"
    assert reason(unsized) == "malformed"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_a_frame_that_lies_about_its_size_is_malformed() -> None:
    frame = bytearray(zstandard.compress(b"\x80" * 200))
    assert zstandard.frame_content_size(bytes(frame)) == 200
    frame[5] = 10
    assert reason(resign(ALICE, bytes(frame))) == "malformed"
    assert reason(resign(ALICE, zstandard.compress(b"x") + b"junk")) == "malformed"


def test_deep_nesting_is_malformed() -> None:
    deep = b"\x91" * 100_000
    assert reason(deep) == "malformed"
    assert reason(resign(ALICE, zstandard.compress(deep))) == "malformed"


def test_unknown_fields_cost_what_they_weigh_and_are_no_deeper_than_can_be_read() -> None:
    """How deep that is differs a little from node to node: it is held against the author, not whoever hands it on."""
    fields = msgspec.to_builtins(GROUP)
    for record in (
        resign(
            ALICE, zstandard.compress(msgspec.msgpack.encode(fields | {"more": msgspec.Raw(b"\x91" * 10**5 + b"\x01")}))
        ),
        resign(ALICE, b"", more=msgspec.Raw(b"\x91" * 10**5 + b"\x01")),
    ):
        assert reason(record) == "limits"
    many = msgspec.msgpack.encode(fields | {f"field {k}": [None] * 100 for k in range(10_000)})
    record = resign(ALICE, zstandard.compress(many))
    tracemalloc.start()
    group = opened(record, RUN, now=NOW)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert group.group == GROUP and group.memory_bytes == len(record) + GROUP.memory_bytes
    assert peak < 2 * len(many), "nothing is made of them"


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(record: bytes) -> None:
    reason(record)


@given(st.binary(max_size=300))
def test_arbitrary_signed_payloads_are_refused(payload: bytes) -> None:
    assert reason(resign(ALICE, payload)) == "malformed"
    assert reason(resign(ALICE, zstandard.compress(payload))) == "malformed"


@settings(max_examples=300)
@given(st.data())
def test_mutated_records_are_refused(data: st.DataObject) -> None:
    mutated = bytearray(SEALED)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        mutated[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(mutated)))
    for record in (bytes(mutated), bytes(mutated[:cut])):
        if record != SEALED:
            reason(record)


@settings(max_examples=200)
@given(st.data())
def test_mutated_payloads_under_a_good_signature_only_ever_raise_refusals(data: st.DataObject) -> None:
    payload = bytearray(msgspec.msgpack.encode(GROUP))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        opened(resign(ALICE, zstandard.compress(bytes(payload))), RUN, now=NOW)
    except Refusal as refusal:
        assert refusal.reason in {
            "malformed", "unknown_question", "wrong_run", "wrong_peer", "clock", "stale", "limits"
        }  # fmt: skip


def test_run_ids_name_their_owner() -> None:
    name, _, digest = RUN.rpartition("-")
    assert name == "demo" and len(digest) == 20
    assert make_run_id("demo", Identity.generate().peer_id) != RUN
    for bad in ("", "Demo", "a b", "x" * 41, "a/b"):
        with pytest.raises(ValueError, match="run's name"):
            make_run_id(bad, ALICE.peer_id)


def refused(record: bytes, run_id: str | None = None) -> str:
    with pytest.raises(Refusal) as refusal:
        open_manifest(record, run_id)
    return refusal.value.reason


def test_manifest() -> None:
    manifest = make_manifest(ALICE)
    spec = TaskSpec("gcd", "reasoning_gym", 1.0, {"max": 3, "nested": {"list": [1.5, None, True]}})
    manifest = replace(manifest, tasks=(spec,))
    assert open_manifest(seal_manifest(ALICE, manifest), RUN) == manifest
    assert refused(seal_manifest(ALICE, manifest), "other") == "wrong_run"


def test_forged_manifests() -> None:
    mallory = Identity.generate()
    theirs = make_manifest(ALICE)
    assert refused(seal_manifest(mallory, theirs)) == "wrong_peer"
    assert refused(seal_manifest(mallory, replace(theirs, founder=mallory.peer_id))) == "wrong_run"
    assert refused(seal_manifest(ALICE, replace(theirs, run_id="demo"))) == "wrong_run"
    envelope, body = parts(seal_manifest(mallory, theirs))
    forged = msgspec.msgpack.encode(replace(body, peer_id=ALICE.peer_id))
    assert refused(msgspec.msgpack.encode(replace(envelope, body=forged))) == "bad_signature"


def test_manifest_limits() -> None:
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    manifest = make_manifest(ALICE)
    task = TaskSpec("t", "k", 1.0, {})
    for bad in (
        replace(manifest, group_size=0),
        replace(manifest, group_size=10**9),
        replace(manifest, external=-1),
        replace(manifest, external=10**9),
        replace(manifest, local=10**9),
        replace(manifest, local=0, external=0),
        replace(manifest, max_record_bytes=2**40),
        replace(manifest, max_record_bytes=1),
        replace(manifest, max_completion_chars=2**40),
        replace(manifest, created_at=math.nan),
        replace(manifest, tasks=(task, task)),
        replace(manifest, tasks=(replace(task, weight=1e308),)),
        replace(manifest, tasks=(replace(task, weight=0.0),)),
        replace(manifest, tasks=(replace(task, weight=-1.0),)),
        replace(manifest, tasks=(replace(task, name="\x1b]52;c;eA==\x07"),)),
        replace(manifest, tasks=(replace(task, name="[/nothing]"),)),
        replace(manifest, tasks=(replace(task, name="x" * 65),)),
        replace(manifest, tasks=(replace(task, name="a\u202eb"),)),
        replace(manifest, tasks=(replace(task, kind=""),)),
        replace(manifest, tasks=(replace(task, settings={"x": "y" * 20_000}),)),
        replace(manifest, tasks=(replace(task, settings={"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": 1}}}}}}}}),)),
        replace(manifest, tasks=(task,) * 257),
        replace(manifest, tasks=(replace(task, weight=math.nan),)),
        replace(manifest, tasks=(replace(task, settings={"x": math.inf}),)),
        replace(manifest, tasks=(replace(task, settings={"x": msgspec.msgpack.Ext(1, b"")}),)),
    ):
        assert refused(seal_manifest(ALICE, bad)) in {"limits", "malformed"}
    try:
        open_manifest(seal_manifest(ALICE, replace(manifest, tasks=(replace(task, settings={"x": deep}),))))
    except Refusal as refusal:
        assert refusal.reason in {"limits", "malformed"}


def test_a_manifest_from_the_future_outranks_nothing() -> None:
    manifest = replace(make_manifest(ALICE), created_at=NOW + MAX_CLOCK_SKEW_S + 1)
    with pytest.raises(Refusal) as refusal:
        open_manifest(seal_manifest(ALICE, manifest), now=NOW)
    assert refusal.value.reason == "clock"
    today = replace(manifest, created_at=NOW)
    assert open_manifest(seal_manifest(ALICE, today), now=NOW) == today
    assert is_outdated(today, replace(today, created_at=NOW + 1), now=NOW)
    assert not is_outdated(today, today, now=NOW)
    assert not is_outdated(today, manifest, now=NOW), "what was kept while this clock was wrong locks nothing out"


@given(st.binary(max_size=300))
def test_arbitrary_manifests_and_peer_records_are_refused(record: bytes) -> None:
    refused(record)
    refused(resign(ALICE, zstandard.compress(record), kind="manifest"))
    for sealed in (record, resign(ALICE, zstandard.compress(record), kind="peer")):
        with pytest.raises(Refusal):
            open_peer_record(sealed, RUN, now=NOW)


def test_peer_record() -> None:
    record = PeerRecord(RUN, ALICE.peer_id, ("/ip4/1.2.3.4/tcp/1/p2p/x",), "tiny", ("gcd",), "peer", "0", NOW + 60)
    sealed = seal_peer_record(ALICE, record)
    assert open_peer_record(sealed, RUN, now=NOW) == record
    named = replace(record, name="anna")
    assert open_peer_record(seal_peer_record(ALICE, named), RUN, now=NOW) == named
    summary = MemberSummary(rounds=7, given=3, used=2, correct=1, asked=2, weights=4, tries={"gcd/6": (3, 16)})
    telling = replace(record, summary=summary)
    assert open_peer_record(seal_peer_record(ALICE, telling), RUN, now=NOW) == telling
    with pytest.raises(Refusal) as refusal:
        open_peer_record(sealed, RUN, now=NOW + 61)  # verified before, and expired since
    assert refusal.value.reason == "clock"
    bad: list[tuple[Identity, PeerRecord, str]] = [
        (ALICE, replace(record, expires_at=NOW - 1), "clock"),
        (ALICE, replace(record, expires_at=NOW + 10_000), "clock"),
        (ALICE, replace(record, expires_at=math.nan), "limits"),
        (ALICE, replace(record, run_id="other"), "wrong_run"),
        (ALICE, replace(record, multiaddrs=("/a",) * 17), "limits"),
        (ALICE, replace(record, model="/home/\x1b]52;c;eA==\x07"), "limits"),
        (ALICE, replace(record, tasks=("gcd", "[/nothing]")), "limits"),
        (ALICE, replace(record, role="pe\ner"), "limits"),
        (ALICE, replace(record, name="anna\x1b[2J"), "limits"),
        (ALICE, replace(record, version="\u202e1"), "limits"),
        (ALICE, replace(record, summary=MemberSummary(rounds=1, correct=2, asked=1)), "limits"),
        (ALICE, replace(record, summary=MemberSummary(rounds=-1)), "limits"),
        (ALICE, replace(record, summary=MemberSummary(rounds=1, tries={"gcd\x1b[2J": (1, 2)})), "limits"),
        (ALICE, replace(record, summary=MemberSummary(rounds=1, tries={"gcd/6": (-1, 2)})), "limits"),
        (ALICE, replace(record, summary=MemberSummary(rounds=1, tries={str(k): (1, 2) for k in range(17)})), "limits"),
        (ALICE, replace(record, summary=MemberSummary(rounds=2**64 - 1)), "limits"),
        (ALICE, replace(record, multiaddrs=("/ip4/1.2.3.4/tcp/1/\x9b",)), "limits"),
        (ALICE, replace(record, model="".join(map(chr, range(200, 3_000)))), "oversized"),
        (Identity.generate(), record, "wrong_peer"),
    ]
    for identity, forged, expected in bad:
        with pytest.raises(Refusal) as refusal:
            open_peer_record(seal_peer_record(identity, forged), RUN, now=NOW)
        assert refusal.value.reason == expected


def test_manifest_type_is_what_opens() -> None:
    assert isinstance(open_manifest(seal_manifest(ALICE, make_manifest(ALICE))), RunManifest)
