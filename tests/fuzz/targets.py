"""What reads bytes that somebody else wrote: how each is called, how it may refuse, and what real input looks like."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import yaml
import zstandard
from torch.nn import Linear, Sequential

from nodes.boot.manifest import manifest_values
from swarm.config import NodeConfig, load_config
from swarm.environments.conversion.counting import UNREADABLE, stated_by
from swarm.environments.scoring.answer_guard import read_json
from swarm.environments.scoring.expressions import Unreadable, parse
from swarm.environments.scoring.finding import finder
from swarm.environments.scoring.forms import Asked
from swarm.environments.scoring.grading import matches
from swarm.environments.scoring.mathematics import is_stated
from swarm.environments.scoring.notation import normalise
from swarm.environments.scoring.scorers import OWN_SCORERS, is_antiderivative
from swarm.environments.scoring.shapes import shape_of
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.reasoning_gym import ReasoningGymSource, ReasoningGymTask
from swarm.environments.tools.calculator import Calculator
from swarm.errors import (
    BackupError,
    ConfigError,
    IdentityError,
    PeerUnreachable,
    PolicyError,
    Refusal,
    SnapshotError,
    TaskError,
    WeightsRefused,
)
from swarm.extras.direct.client import DirectClient
from swarm.extras.direct.tickets import Ticket
from swarm.extras.learner.heartbeats import serve_heartbeats
from swarm.extras.learner.packing import read_snapshot
from swarm.extras.learner.snapshots.messages import (
    ChunksRequest,
    SnapshotAnnouncement,
    StatusReply,
    StatusRequest,
    request_status,
)
from swarm.extras.learner.snapshots.plan import Slot
from swarm.net.addresses.bootstrap import read_addresses
from swarm.net.config import NetworkSettings
from swarm.net.guard import Counters
from swarm.net.hivemind.control import read_limits
from swarm.net.hivemind.dht_entries import EntryChecker, part_of
from swarm.net.hivemind.directory import Found, Read, decode_reply, decode_request
from swarm.net.membership.known_peers import CurrentRun, KnownPeers
from swarm.net.records.envelope import encode_answer, read_answer, read_record, read_request, seal_payload
from swarm.net.records.feed import Feed, FeedPart, FeedRequest, Hello, Named, decode_hello, decode_part, encode
from swarm.net.records.identity import Backup, Identity, open_backup, seal_backup
from swarm.net.records.large import MARK, LargeRequest, Referrals, answer_large, read_referral
from swarm.net.records.repair import GiveRequest, HaveRequest, RecordReader, answer_give, answer_have
from swarm.net.records.stores import RecordStore, record_id
from swarm.net.records.wire import SealedManifest, open_peer_record
from swarm.net.roster import PeerRow, Roster, decode_roster, encode_roster
from swarm.net.services.diagnosis import DialBacks
from swarm.net.services.requests import HEARTBEAT_PROTOCOL, answer_peers, ask_peers
from swarm.policy.loading import Policy
from swarm.policy.reading import outline
from swarm.policy.tiny import tiny_config
from swarm.policy.turns import RENDERER
from swarm.policy.weights import check_weights
from swarm.sanitize import clean, clean_lines
from swarm.telemetry.nodes import NodeReader, kinds, leaders
from swarm.telemetry.records import NoteEvent, decode as decode_event, encode as encode_event
from swarm.telemetry.samples import (
    SAMPLES_FILE,
    SampledCompletion,
    SampleRecord,
    Turn,
    encode as encode_sample,
    read as read_samples,
)
from swarm.types import Heartbeat, Orders
from tests.environments.bombs import COMPRESSED, ROWS, parquet
from tests.extras.learner.snapshot_files import applied, delta_of, held, packed
from tests.net.vectors import FOUNDER, NOW, OPENERS, RECORDS, RUN_ID, identity_of, read_vectors

Run = Callable[[bytes], object]
Refusals = tuple[type[Exception], ...]

MESSAGE_ERRORS: Refusals = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError)
"""What a handler of requests may raise: the transport answers with an error and charges the sender."""


SAMPLE = SampleRecord(
    NOW, 1, "used_external", "", "gcd", "gcd of 4 and 6?", FOUNDER.peer_id, False, "tiny", 3,
    (SampledCompletion((Turn("policy", "two", 3),), 1.0, 1.0, "stop"),), 8,
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One reader. Anything but `refusals` is a defect."""

    run: Run
    seeds: tuple[bytes, ...]
    refusals: Refusals = ()

    def __call__(self, content: bytes) -> None:
        """Raises what it should not."""
        with suppress(*self.refusals):
            self.run(content)


@cache
def targets() -> Mapping[str, Target]:
    """All, by name."""
    return {**_records(), **_messages(), **_weights(), **_models(), **_data(), **_answers(), **_files(), **_shown()}


def _records() -> dict[str, Target]:
    """Records as they arrive, and what is in them under a good signature."""
    sealed = {vector.kind: bytes.fromhex(vector.record) for vector in read_vectors()}
    found = {f"record {kind}": Target(OPENERS[kind], (sealed[kind],), (Refusal,)) for kind in RECORDS}
    for kind in RECORDS:
        payload = zstandard.decompress(read_record(sealed[kind], len(sealed[kind])).body.payload)
        found[f"payload {kind}"] = Target(_signed(kind), (payload,), (Refusal,))
    found["tasks of a manifest"] = Target(
        lambda content: manifest_values(OPENERS["manifest"](seal_payload(FOUNDER, RUN_ID, "manifest", content))),  # type: ignore[arg-type]
        found["payload manifest"].seeds,
        (Refusal, TaskError, ConfigError),
    )
    return found


def _signed(kind: str) -> Run:
    return lambda content: OPENERS[kind](seal_payload(FOUNDER, RUN_ID, kind, content))


def _messages() -> dict[str, Target]:
    """Requests and answers on streams."""
    store = RecordStore(8, 2**20, 3_600.0)
    record = bytes.fromhex(read_vectors()[0].record)
    store.add(record)
    name = record_id(record)
    keys = {bytes([part]): part for part in range(16)}
    checker = EntryChecker(RUN_ID, keys, lambda: NOW)
    key = bytes([part_of(FOUNDER.peer_id)])
    peer, manifest = bytes.fromhex(_vector("peer")), bytes.fromhex(_vector("manifest"))
    member = (FOUNDER.peer_id, msgspec.msgpack.encode(peer), NOW + 60)
    part = msgspec.msgpack.encode(msgspec.msgpack.Ext(0x50, msgspec.msgpack.encode((0.0, 0.0, [member]))))
    dial_backs = DialBacks(lambda peer_id: ("/ip4/192.0.2.1/tcp/4001",), lambda host, ports: dict.fromkeys(ports, True))

    run = CurrentRun(None, SealedManifest.reopen(manifest))
    peers = KnownPeers(NetworkSettings(), FOUNDER.peer_id, run, Counters(), lambda: NOW)
    referrals = Referrals(peers.is_record_of)
    slot = Slot((FOUNDER.peer_id,), 2, None)

    def encoded(*values: object) -> tuple[bytes, ...]:
        return tuple(msgspec.msgpack.encode(value) for value in values)

    def decoder(kind: type) -> Run:
        return lambda content: msgspec.msgpack.decode(content, type=kind)

    return {
        "have": Target(lambda content: answer_have(store, content), encoded(HaveRequest(60.0)), MESSAGE_ERRORS),
        "give": Target(
            lambda content: list(answer_give(store, Feed(), content)), encoded(GiveRequest((name,))), MESSAGE_ERRORS
        ),
        "hello": Target(decode_hello, (encode(Hello(RUN_ID, True)),), (*MESSAGE_ERRORS, Refusal)),
        "feed request": Target(decoder(FeedRequest), encoded(FeedRequest(RUN_ID)), MESSAGE_ERRORS),
        "feed part": Target(
            decode_part, (encode(FeedPart((record,), (Named(name, len(record)),))),), (PeerUnreachable,)
        ),
        "given": Target(
            lambda content: list(RecordReader([name]).feed(content)),
            (name + len(record).to_bytes(4, "big") + record,),
            (PeerUnreachable,),
        ),
        "large": Target(
            lambda content: list(answer_large(store, referrals, FOUNDER.peer_id, content)),
            encoded(LargeRequest(name, 0), LargeRequest(name, 0, peer)),
            (*MESSAGE_ERRORS, Refusal),
        ),
        "referral": Target(read_referral, (MARK + msgspec.msgpack.encode([peer, peer]),), (PeerUnreachable,)),
        "peers": Target(
            lambda content: asyncio.run(ask_peers(_answering(content), "peer", RUN_ID, NOW)),  # type: ignore[arg-type]
            (answer_peers([peer]),),
            (PeerUnreachable,),
        ),
        "request frame": Target(
            lambda content: asyncio.run(read_request(_reader(content))), (b"\0\0\0\2ab",), (PeerUnreachable,)
        ),
        "answer frames": Target(
            lambda content: asyncio.run(_all_chunks(content)),
            (b"".join(encode_answer([b"one", b"two"])),),
            (PeerUnreachable,),
        ),
        "heartbeat": Target(_heartbeat(), encoded(Heartbeat(NOW, 3, 10, 2.5, 0.3)), MESSAGE_ERRORS),
        "orders": Target(decoder(Orders), encoded(Orders(3, 6, True)), MESSAGE_ERRORS),
        "snapshot status": Target(decoder(StatusRequest), encoded(StatusRequest(3)), MESSAGE_ERRORS),
        "snapshot reply": Target(
            lambda content: request_status(_Answers(content), "peer", StatusRequest(3), 1.0),  # type: ignore[arg-type]
            encoded(StatusReply(b"", 1, 2, 0)),
            (Refusal,),
        ),
        "snapshot announcement": Target(
            decoder(SnapshotAnnouncement), encoded(SnapshotAnnouncement(b"sealed", slot)), MESSAGE_ERRORS
        ),
        "snapshot chunks": Target(decoder(ChunksRequest), encoded(ChunksRequest(3, "whole", 0)), MESSAGE_ERRORS),
        "ticket": Target(_open_link, encoded(Ticket(40_000, bytes(32), bytes(32)))),
        "dial back": Target(lambda content: dial_backs.handle("peer", content), (b'{"ports":[]}',)),
        "directory part": Target(lambda content: checker.open_part(key, content, 2**20), (part,), (Refusal,)),
        "directory entry": Target(
            lambda content: checker.open(key, msgspec.msgpack.encode(FOUNDER.peer_id), content, NOW + 60),
            encoded(peer),
            (Refusal,),
        ),
        "directory request": Target(decode_request, encoded(Read(True)), MESSAGE_ERRORS),
        "directory reply": Target(decode_reply, encoded(Found((b"r",))), MESSAGE_ERRORS),
        "relay reply": Target(read_limits, (b"\x08\x02\x28\x64\x22\x05\x08\x78\x10\x80\x01",), (ValueError,)),
    }


def _weights() -> dict[str, Target]:
    """A learner's snapshots, for a model of two layers."""
    model = Sequential(Linear(4, 3), Linear(3, 2))
    policy = cast(Policy, SimpleNamespace(model=model, weights=dict(model.named_parameters()), adapters=None))
    whole, changed = packed(policy.weights), packed({name: 2 * value for name, value in policy.weights.items()})
    contents = (whole, packed(policy.weights, "bfloat16"), packed(policy.weights, "int8"))
    return {
        "snapshot": Target(
            lambda content: check_weights(policy, read_snapshot(policy, held(content))),
            contents,
            (SnapshotError, WeightsRefused),
        ),
        "snapshot delta": Target(
            lambda content: applied(content, whole), (delta_of(changed, whole) or b"",), (SnapshotError,)
        ),
    }


def _models() -> dict[str, Target]:
    """What is in the directory of a stranger's model."""
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    values = {"messages": turns, "add_generation_prompt": True, "bos_token": "<s>"}
    config = tiny_config().to_json_string().encode()
    return {
        "chat template": Target(
            lambda content: RENDERER.render(_text(content), values),
            (
                b"{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}{{ bos_token }}",
                b"{% set n = namespace(a=0) %}{% for m in messages %}{% if loop.last %}{{ m | tojson }}{% endif %}"
                b"{% endfor %}",
            ),
            (PolicyError,),
        ),
        "model configuration": Target(
            _in_folder("config.json", lambda folder: outline(str(folder), None, trust_remote_code=False)),
            (config,),
            (PolicyError,),
        ),
    }


def _data() -> dict[str, Target]:
    """What the files of a data set say of their size."""
    rows = ROWS[:200]
    packed = {name: compress(rows) for name, compress in COMPRESSED.items()}
    return {
        "data set figures": Target(
            _in_file(lambda file: stated_by([file])), (parquet(9, "a"), rows, *packed.values()), UNREADABLE
        )
    }


def _answers() -> dict[str, Target]:
    """Completions: rules that find an answer, scorers, and what they read answers with."""
    found = {}
    for rule in ("tags", "last_number", "boxed", "whole", "regex"):
        pattern = {"find_pattern": "= (-?[0-9]+)", "ask": "End with `= NUMBER`."} if rule == "regex" else {}
        find = finder(ReasoningGymTask.model_validate({"name": "gcd", "find": rule, **pattern}))
        found[f"find {rule}"] = Target(
            lambda content, find=find: find(_text(content)),  # type: ignore[misc]
            (b"so <answer> 12 </answer>", rb"it is \boxed{\frac{3}{4}}", b"= -1,234.50 m^2", b"50% or 2e5"),
        )
    for match in ("exact", "numeric", "boxed"):
        found[f"match {match}"] = Target(
            lambda content, match=match: matches(match, _text(content), r"\frac{3}{4}"),  # type: ignore[misc]
            (b"0.75", rb"\dfrac{3}{4}", rb"x = \sqrt{\frac{9}{16}}", b"75\\%", rb"(3, \{4\})", b"1,234e-3"),
        )
    found["question"] = Target(
        lambda content: _ask(_text(content)),
        (
            rb"Simplify $\frac{12}{18}$.",
            rb"Expand (x+1)(x+2), if x < 5!",
            b"Write 0.5 as a percentage, 3x10^5 or 2 1/2",
        ),
    )
    found["shape"] = Target(
        lambda content: shape_of(normalise(_text(content))),
        (rb"\frac{(x+1)^2}{2\sqrt{3}} - |y|", rb"\sin^2 2x \log_2 8 + \binom{5}{2}! - 50\%", rb"-1\frac12 e^{-x}"),
    )
    found["json"] = Target(lambda content: read_json(_text(content)), (b'{"a": [1, 2.5e3, "x"], "b": null}',))
    found["expression"] = Target(
        lambda content: parse(_text(content)), (b"2*x**3 - sin(x)/(4+1)", b"-3.5 + (2 - y)"), (Unreadable,)
    )
    found["antiderivative"] = Target(
        lambda content: is_antiderivative(parse(_text(content)), parse("3*x**2 + cos(x)"), "x", "seed"),
        (b"x**3 + sin(x) + C", b"exp(x)*log(x)/x"),
        (Unreadable,),
    )
    calculator = Calculator()
    found["calculator"] = Target(lambda content: calculator.run(_text(content)), (b"12*(3+4)/5", b"2**100 - 1"))
    found["scorers"] = Target(
        _score, tuple(bytes([k]) + b"<answer>[[1, 2], [3, 4]]</answer>" for k in range(0, 250, 25))
    )
    return found


def _ask(question: str) -> None:
    """A question's text as the rules for answers read it."""
    asked = Asked(question)
    is_stated(r"2\sqrt{3}", asked)
    asked.has_all((1, 2))
    for rule in ("numeric", "boxed"):
        matches(rule, "2/4", r"\frac{1}{2}", question)  # type: ignore[arg-type]
        matches(rule, r"\sqrt{12}", r"2\sqrt{3}", question)  # type: ignore[arg-type]


def _files() -> dict[str, Target]:
    """What a user hands over, or a process left behind."""
    config = yaml.safe_dump(NodeConfig(name="kept").model_dump(mode="json"), sort_keys=False)
    backup = seal_backup(Backup(FOUNDER.peer_id, 1_700_000_000, FOUNDER.encoded()), None)
    data_set = DatasetTask(kind="dataset", name="sums", path="owner/name")
    tasks = yaml.safe_dump({"tasks": [data_set.model_dump(mode="json")], "mix": {"local": 4}})
    return {
        "configuration": Target(
            _in_file(load_config), (config.encode(), tasks.encode()), (ConfigError, TaskError, PolicyError)
        ),
        "addresses": Target(_in_file(read_addresses), (b"/ip4/192.0.2.1/tcp/4001/p2p/12D3 # first\n",)),
        "samples": Target(_in_folder(SAMPLES_FILE, read_samples), (encode_sample(SAMPLE),)),
        "event": Target(decode_event, (encode_event(NoteEvent(time=NOW, text="x")),)),
        "roster": Target(decode_roster, (encode_roster(Roster(NOW, RUN_ID, FOUNDER.peer_id)),), (ConfigError,)),
        "backup": Target(lambda content: open_backup(_text(content), None), (backup.encode(),), (BackupError,)),
        "identity": Target(Identity.parse, (identity_of(bytes(32)).encoded(),), (IdentityError,)),
    }


def _shown() -> dict[str, Target]:
    """Texts of strangers, before they reach a terminal."""

    def show(content: bytes) -> None:
        text = content.decode("utf-8", "surrogateescape")
        assert clean(text).isprintable()
        assert all(line.isprintable() for line in clean_lines(text).split("\n"))

    def rank(content: bytes) -> None:
        """A directory entry as its leader board has it."""
        record = open_peer_record(seal_payload(FOUNDER, RUN_ID, "peer", content), RUN_ID, now=NOW)
        row = PeerRow(record.peer_id, record.model, role=record.role, version=record.version, name=record.name)
        node = NodeReader(Path("nowhere"))
        node.roster = Roster(NOW, RUN_ID, "self", (msgspec.structs.replace(row, summary=record.summary),))
        for leader in leaders([node]):
            assert leader.claimed and all(text.isprintable() for text in (leader.peer, leader.name, leader.model))
            assert leader.accuracy is None or 0 <= leader.accuracy[1] <= leader.accuracy[2] <= 1
        msgspec.json.encode((leaders([node]), kinds([node])))

    sealed = bytes.fromhex(_vector("peer"))
    entry = zstandard.decompress(read_record(sealed, len(sealed)).body.payload)
    strange = "\x1b]52;c;ZWNobw==\x07\u202eexe\u2066[/b]".encode()
    return {"leaderboard": Target(rank, (entry,), (Refusal,)), "clean": Target(show, (strange,))}


def _vector(kind: str) -> str:
    return next(vector.record for vector in read_vectors() if vector.kind == kind)


def _text(content: bytes) -> str:
    """As a completion has it: valid Unicode."""
    return content.decode("utf-8", "replace")


def _score(content: bytes) -> None:
    """The first byte chooses the data set."""
    sources = _sources()
    source = sources[content[0] % len(sources) if content else 0]
    reward = source.score(source.question(1, 0).ref, _text(content[1:]))
    assert math.isfinite(reward) and 0 <= reward <= 1, reward


@cache
def _sources() -> list[ReasoningGymSource]:
    """Data sets with scorers of this project, and some of the library's."""
    others = (
        "gcd",
        "sudoku",
        "word_ladder",
        "rearc",
        "knight_swap",
        "rush_hour",
        "graph_color",
        "boxnet",
        "cryptarithm",
    )
    names = [*OWN_SCORERS, *others]
    return [ReasoningGymSource(ReasoningGymTask(name=name)) for name in names]


class _Answers:
    """A transport on which a peer answers the same to everything."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        return self._answer


def _open_link(content: bytes) -> None:
    """What a peer says where a ticket is expected; nobody listens at the address at which it is seen."""

    class Seen(_Answers):
        def observed(self, peer_id: str) -> tuple[str, ...]:
            return ("/ip4/127.255.255.254/tcp/4001",)

    client = DirectClient(Seen(content), "direct", Counters())  # type: ignore[arg-type]
    assert client.stream("peer", b"", 1.0, 1) is None


def _heartbeat() -> Run:
    """A learner's handler."""
    handlers: dict[str, Callable[[str, bytes], bytes]] = {}

    class Serving:
        def serve(self, protocol: str, handler: Callable[[str, bytes], bytes]) -> None:
            handlers[protocol] = handler

    serve_heartbeats(Serving(), lambda peer_id, beat: Orders(3, 6, True))  # type: ignore[arg-type]
    return lambda content: handlers[HEARTBEAT_PROTOCOL]("peer", content)


def _answering(content: bytes) -> Callable[[str, str, bytes, int], AsyncGenerator[bytes, None]]:
    async def fetch(peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        yield content[:max_bytes]

    return fetch


def _reader(content: bytes) -> Callable[[int], object]:
    rest = bytearray(content)

    async def read(length: int) -> bytes:
        if length > len(rest):
            raise PeerUnreachable("the stream ended")
        taken = bytes(rest[:length])
        del rest[:length]
        return taken

    return read


async def _all_chunks(content: bytes) -> list[bytes]:
    return [chunk async for chunk in read_answer(_reader(content), 2**20)]  # type: ignore[arg-type]


def _in_file(read: Callable[[Path], object]) -> Run:
    def run(content: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
            file.write(content)
            file.flush()
            read(Path(file.name))

    return run


def _in_folder(name: str, read: Callable[[Path], object]) -> Run:
    def run(content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(content)
            read(Path(folder))

    return run
