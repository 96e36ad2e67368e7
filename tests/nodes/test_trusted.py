"""Episodes with a tool that only their author has: shared with whoever trusts the author, and with nobody else."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodes.boot.directory import IDENTITY_FILE
from nodes.boot.manifest import NO_TASKS, found_run, manifest_values, other_options, sharing_of_own_tools
from nodes.roles.ranks import PeerRanks
from nodes.simulation.in_memory import Member, MemoryRun, Turns as Clock, take_turns
from swarm.config import LoadedConfig, NodeConfig, load_config
from swarm.environments.specs import left_out
from swarm.errors import ConfigError, TaskError
from swarm.net.records.identity import Identity
from swarm.protocols import Turns
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE
from swarm.telemetry.samples import SampleRecord, read
from swarm.types import Answers, Context, Rejection, Sampling
from tests.sapo.test_tool_use import Calling

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "tool-use.yaml"
ROUNDS = 2
TOOL = """
from swarm.environments.tools.calculator import Calculator

def search(call: str) -> str:
    return Calculator().run(call)
"""
OTHER_TASK = (
    "{kind: reasoning_gym, name: others, dataset: products, tool: calculator, max_turns: 2, ask: '', weight: 0.001,"
    " options: {min_terms: 2, max_terms: 2, min_digits: 4, max_digits: 4}}"
)


def peer_id_in(folder: Path) -> str:
    folder.mkdir(parents=True)
    identity = Identity.load_or_create(folder / IDENTITY_FILE)
    identity.close()
    return identity.peer_id


def with_own_tool(folder: Path, *trusted: str, rest: str = OTHER_TASK) -> LoadedConfig:
    """The example with a tool of one's own for its calculator."""
    (folder / "own.py").write_text(TOOL)
    (task,) = load_config(EXAMPLE).config.tasks
    own = json.dumps({**task.model_dump(mode="json"), "tool": f"{folder}/own.py:search"})
    return load_config(
        EXAMPLE,
        command_line=[
            ("tasks", f"[{own}, {rest}]" if rest else f"[{own}]"),
            ("trusted", f"[{', '.join(trusted)}]"),
            *common(folder),
        ],
    )


def common(folder: Path) -> list[tuple[str, str]]:
    fields = {
        "out": folder,
        "rounds": ROUNDS,
        "policy.model": "tiny",
        "generation.questions_per_round": 4,
        "generation.group_size": 2,
        "mix.local": 2,
        "mix.external": 4,
        "plausibility.slack_nats": 1_000,  # the texts are not the policy's
        "evaluation.num_questions": 0,
        "telemetry.samples_per_outcome": 1_000,
    }
    return [(name, str(value)) for name, value in fields.items()]


def joined(founder: NodeConfig, folder: Path, *changes: tuple[str, str]) -> NodeConfig:
    """A member with nothing but the manifest and these settings."""
    own = [*common(folder), *changes]
    manifest = found_run(founder, Identity.generate()).manifest
    return load_config(None, manifest_values(manifest, load_config(command_line=own)), {}, own).config


def scripted(
    self: PeerRanks,
    prompts: Sequence[Context],
    num_completions: int,
    sampling: Sampling,
    seed: int,
    turns: Turns | None = None,
) -> Generator[tuple[int, Answers]]:
    """Turns that call the tool and then repeat what it said, in tokens of the node's policy."""
    for index, answers in Calling().stream(prompts, num_completions, sampling, seed):
        assert not isinstance(answers, Rejection)
        ids = self.policy.encode_completions(answers)
        yield (
            index,
            tuple(
                replace(completion, token_ids=tuple(tokens), logprobs=(-1.0,) * len(tokens))
                for completion, tokens in zip(answers, ids, strict=True)
            ),
        )


@pytest.mark.slow
def test_the_trusted_peer_s_episodes_are_trained_on_and_the_others_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PeerRanks, "stream", scripted)
    ours, theirs = tmp_path / "trusted", tmp_path / "other"
    trusted, other = peer_id_in(ours), peer_id_in(theirs)
    founder, stranger = with_own_tool(ours, trusted).config, with_own_tool(theirs, other).config
    member = joined(founder, tmp_path / "member")
    configs = [each.model_copy(update={"seed": seed}) for seed, each in enumerate((founder, stranger, member))]
    clock = Clock()
    take_turns([MemoryRun([Member(each) for each in configs], lambda: False, clock)], clock, lambda: False)

    groups = PeerHistory.read(member.out / METRICS_FILE).rounds[ROUNDS].groups
    assert groups["dropped"]["untrusted"] > 0
    with_calls = [sample for sample in read(member.out) if not sample.own and has_call(sample)]
    used = [sample for sample in with_calls if sample.outcome == "used_external"]
    assert {sample.sender for sample in used} == {trusted}
    refused = [sample for sample in with_calls if sample.reason == "untrusted"]
    assert {sample.sender for sample in refused} == {other} and len(refused) == groups["dropped"]["untrusted"]
    assert {sample.task for sample in read(member.out) if sample.own} <= {"others"}, "it asks what it can"


def has_call(sample: SampleRecord) -> bool:
    return any("<tool>" in turn.text for each in sample.completions for turn in each.turns)


def test_a_member_takes_over_whom_the_run_trusts_and_has_the_last_word(tmp_path: Path) -> None:
    trusted, another = peer_id_in(tmp_path / "one"), peer_id_in(tmp_path / "two")
    founder = with_own_tool(tmp_path / "one", trusted).config
    member = joined(founder, tmp_path / "member")
    assert member.trusted == (trusted,)
    assert [getattr(task, "tool", None) for task in member.tasks] == ["trusted", "calculator"]
    assert joined(founder, tmp_path / "choosy", ("trusted", f"[{another}]")).trusted == (another,)
    nobody = joined(founder, tmp_path / "nobody", ("trusted", "[]"))
    assert nobody.trusted == () and [task.name for task in nobody.tasks] == ["others"]
    manifest = found_run(founder, Identity.generate()).manifest
    assert "trusts none" in left_out(manifest.tasks)["products"] and left_out(manifest.tasks, trusted=[another]) == {}
    assert other_options(manifest, founder.tasks) == [], "another tool of one's own is no difference"


def test_what_is_no_peer_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a peer id"):
        load_config(command_line=[("trusted", "[somebody]")])


def test_a_run_of_own_tools_alone_says_that_nobody_can_join_it(tmp_path: Path) -> None:
    peer_id = peer_id_in(tmp_path / "founder")
    alone = with_own_tool(tmp_path / "founder", rest="").config
    line = sharing_of_own_tools(alone, peer_id) or ""
    assert "nothing at all" in line and peer_id in line
    assert "shares these episodes" in (
        sharing_of_own_tools(alone.model_copy(update={"trusted": (peer_id,)}), peer_id) or ""
    )
    with pytest.raises(TaskError, match=NO_TASKS):
        joined(alone, tmp_path / "member")
