"""Recorded groups: read from samples as they were, and one more author of the mix that is graded and screened."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from nodes.boot.assemble import opened
from nodes.boot.manifest import found_run
from nodes.cli.command import app
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from swarm.config import load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import ConfigError
from swarm.extras.recorded import reading
from swarm.extras.recorded.author import RecordedAuthor
from swarm.extras.recorded.reading import read_groups
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.roster import read_roster
from swarm.net.trust.exchange import Exchange
from swarm.protocols import RECORDED
from swarm.reasons import Reason
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE
from swarm.telemetry.samples import SAMPLES_FILE, SampleLog, SampleRecord, encode, read
from swarm.telemetry.sinks import TelemetrySettings
from swarm.types import Completion, GradedGroup
from tests.example_groups import graded


def recorded(folder: Path, *groups: GradedGroup) -> Path:
    log = SampleLog(folder, TelemetrySettings(samples_per_outcome=1_000), "me", lambda: 1_000.0)
    for group in groups:
        log.keep("used_local", group)
    log.close()
    return folder


def with_texts(*texts: str, rewards: tuple[float, ...] = (1.0, 0.0, 0.0)) -> GradedGroup:
    group = graded("me")
    completions = tuple(Completion(text, "stop") for text in texts)
    return replace(group, group=replace(group.group, completions=completions), rewards=rewards)


def test_a_recorded_group_is_what_was_sampled(tmp_path: Path) -> None:
    group = with_texts("<think>easy</think><answer>7</answer>", "<think>endless", "so <tool>1 + 1</tool>, 8")
    ((found,), num_rows, left_out) = read_groups(recorded(tmp_path, group))
    assert (num_rows, left_out) == (1, [])
    assert [each.text for each in found.completions] == [each.text for each in group.group.completions]
    assert found.question == group.group.question and found.rewards == (1.0, 0.0, 0.0)
    assert (found.peer_id, found.policy.model) == (RECORDED, group.group.policy.model)


def test_what_cannot_teach_is_left_out_and_said(tmp_path: Path) -> None:
    recorded(
        tmp_path,
        with_texts("7", "8", "9"),
        with_texts("7", "7", "7", rewards=(1.0, 1.0, 1.0)),
        with_texts("7", "x" * 40_000, "9"),
    )
    whole, *_ = read(tmp_path)
    several = replace(whole.completions[0], turns=whole.completions[0].turns * 2)
    earlier = msgspec.to_builtins(whole)
    del earlier["ref"]
    with (tmp_path / SAMPLES_FILE).open("ab") as file:
        file.write(msgspec.json.encode(earlier) + b"\n")
        file.write(encode(replace(whole, completions=(several, *whole.completions[1:]))))
        file.write(b'{"completions": 7}\n[[[[\n')
    groups, num_rows, left_out = read_groups(tmp_path)
    assert len(groups) == 1 and num_rows == 7
    for row, words in enumerate(("same reward", "whole", "which question", "of one turn", "no sample", "no JSON"), 2):
        assert left_out[row - 2].startswith(f"row {row}: ") and words in left_out[row - 2]
    assert msgspec.convert(earlier, SampleRecord).ref is None, "older files are still read"


def test_a_file_without_groups_is_refused_in_a_sentence(tmp_path: Path) -> None:
    recorded(tmp_path, with_texts("7", "7", "7", rewards=(1.0, 1.0, 1.0)))
    for path, words in ((tmp_path, "no group to learn from"), (tmp_path / "nowhere", "cannot read")):
        with pytest.raises(ConfigError, match=f"pool.recorded: .*{words}"):
            RecordedAuthor.of(path, 1, 0, lambda text, level: None)


@pytest.mark.parametrize(("section", "field"), [("pool", "recorded"), ("demonstrations", "path")])
def test_such_a_file_is_refused_before_anything_is_dialled(section: str, field: str, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"out: {tmp_path / 'out'}\nname: alone\n{section}: {{{field}: {tmp_path / 'nowhere'}}}\n")
    said = io.StringIO()
    with (
        pytest.raises(ConfigError, match=f"{section}.{field}: cannot read"),
        opened(PeerNode, load_config(config, {}), Console(file=said), lambda: False, None),
    ):
        pass
    assert not (tmp_path / "out").exists() and not said.getvalue()
    checked = CliRunner().invoke(app, ["config", "check", str(config)])
    assert isinstance(checked.exception, ConfigError)


def test_each_group_joins_once_in_the_order_of_the_file() -> None:
    groups = [replace(graded("me").group, sequence=number) for number in range(5)]
    author = RecordedAuthor(groups, 2)
    assert [[each.sequence for each in author.take()] for _ in range(4)] == [[0, 1], [2, 3], [4], []]
    assert [each.sequence for each in RecordedAuthor(groups, 2, num_joined=3).take()] == [3, 4]


def test_what_was_refused_ungraded_or_cut_where_it_was_recorded_does_not_join(tmp_path: Path) -> None:
    recorded(tmp_path, with_texts("7", "8", "9"))
    (good,) = read(tmp_path)
    claims = tuple(replace(each, reward=None, claimed=float(k)) for k, each in enumerate(good.completions))
    rows = {
        "refused as harmful": replace(good, outcome="refused", reason="harmful"),
        "graded": replace(good, completions=claims),
        "kept whole": replace(good, num_completions=300),
    }
    (tmp_path / SAMPLES_FILE).write_bytes(b"".join(encode(each) for each in rows.values()))
    groups, num_rows, why = read_groups(tmp_path)
    assert (groups, num_rows) == ([], 3)
    for words, found in zip(rows, why, strict=True):
        assert words in found


def test_an_endless_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_DEMONSTRATIONS", 100)
    bad, good = tmp_path / "bad.jsonl", recorded(tmp_path, *[with_texts("7", "8", "9")] * 3)
    bad.write_bytes(b"{}\n" * 1_000)
    groups, num_rows, why = read_groups(bad)
    assert (groups, num_rows, len(why)) == ([], 100, reading.MAX_REASONS)
    monkeypatch.setattr(reading, "MAX_GROUPS", 2)
    groups, _, why = read_groups(good)
    assert len(groups) == 2 and "2 groups" in why[0]
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 1_000)
    monkeypatch.setattr(reading, "MAX_LINE_READ", 100_000)
    (tmp_path / "line").write_bytes(b" " * 200_000)
    with pytest.raises(ConfigError, match="no end"):
        RecordedAuthor.of(tmp_path / "line", 1, 0, lambda text, level: None)


def test_recorded_groups_are_held_to_the_limits_and_charged_to_their_author() -> None:
    identity = Identity.generate()
    config = load_config(None, {}).config
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(config, identity))
    transport.start()
    exchange = Exchange(transport, identity, clock=lambda: 1_000.0)
    good = replace(graded(RECORDED).group, peer_id=RECORDED)
    many = replace(good, rewards=(0.5,) * 300, completions=good.completions[:1] * 300)
    endless = replace(good, rewards=tuple(1e300 for _ in good.rewards))
    huge = replace(good, policy=replace(good.policy, version=10**30))
    exchange.join([good, many, endless, huge, good])
    arrived, refused = exchange.receive()
    assert [each.group for each in arrived] == [good, good] and arrived[0].content_id == arrived[1].content_id
    assert sum(refused.values()) == 3 and refused.keys() <= {Reason.LIMITS, Reason.MALFORMED}
    assert exchange.receive() == ([], {})
    assert exchange.book.stats()[RECORDED].received == 5
    for _ in range(20):
        exchange.report(RECORDED, Reason.VERIFIER_CRASH)
    exchange.join([good])
    assert exchange.receive() == ([], {Reason.QUARANTINED: 1})


def node(folder: Path, **values: object) -> PeerNode:
    layers = {
        "evaluation": {"num_questions": 0},
        "generation": {"questions_per_round": 8, "group_size": 8},
        "telemetry": {"samples_per_outcome": 1_000},
        "mix": {"local": 2, "external": 2},
        **values,
    }
    config = load_config(None, layers).config.model_copy(update={"out": folder, "seed": 3})
    identity = Identity.generate()
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(config, identity))
    transport.start()
    return PeerNode(NodeParts(config, identity, transport, InlineVerifier(config.tasks)))


def test_a_lone_node_learns_from_what_an_earlier_one_recorded(tmp_path: Path) -> None:
    """Its claims decide nothing: groups whose rewards the file forges are graded again, and are dropped."""
    first = node(tmp_path / "first")
    first.begin()
    for _ in range(3):
        first.step()
    first.end("done")
    samples = [each for each in read(tmp_path / "first") if each.outcome == "used_local"]
    forged = next(each for each in read(tmp_path / "first") if each.outcome == "no_signal")
    claims = tuple(replace(each, reward=float(k)) for k, each in enumerate(forged.completions))
    for sample in (*samples, replace(forged, completions=claims)):
        with (tmp_path / "groups.jsonl").open("ab") as file:
            file.write(encode(sample))

    settings = {"recorded": str(tmp_path / "groups.jsonl"), "recorded_per_round": 2}
    second = node(tmp_path / "second", pool=settings)
    second.begin()
    for _ in range(1 + len(samples)):
        second.step()
    counts = second._node.ledger.snapshot()
    assert counts["received"] == len(samples) + 1 and second._node.unaccounted() == 0
    assert counts["used_external"] == len(samples) and counts["dropped"] == {Reason.ZERO_ADVANTAGE: 1}
    stats = second._runtime.exchange.book.stats()
    assert list(stats) == [RECORDED] and stats[RECORDED].used == len(samples)
    used = [each for each in read(tmp_path / "second") if each.outcome == "used_external"]
    assert {each.sender for each in used} == {RECORDED}
    assert sorted(c.reward for each in used for c in each.completions) == sorted(
        c.reward for each in samples for c in each.completions
    ), "by its own verifier"
    second.end("done")
    (row,) = read_roster(tmp_path / "second").peers
    assert (row.name, row.received, row.used) == (RECORDED, len(samples) + 1, len(samples))
    texts = [moment.text for moment in PeerHistory.read(tmp_path / "second" / METRICS_FILE).moments]
    assert any(f"{len(samples) + 1} recorded groups of" in text for text in texts)
    again = node(tmp_path / "second", pool=settings)
    again.begin()
    again.step()
    assert again._node.ledger.snapshot()["received"] == len(samples) + 1, "a resumed node takes none a second time"
    again.end("done")
