"""Episodes with a tool between nodes: receivers call it again; what a node's own tool said stays there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarm.environments.config import TaskConfig, custom_tool_tasks
from swarm.environments.specs import from_specs, to_specs, why_left_out
from swarm.environments.tiny import TINY_TASKS, TINY_TOOL_TASK
from swarm.environments.tools.custom import CustomTools, with_custom_tools
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import TaskError
from swarm.groups.episodes import digest
from swarm.net.records.identity import Identity
from swarm.net.records.wire import seal
from swarm.net.trust.accounts import OFFENCES
from swarm.protocols import TaskVerifier, Turns
from swarm.reasons import Reason
from swarm.sapo.round import SapoNode
from swarm.types import Answers, Completion, Context, Grade, Past, RolloutGroup, Sampling, Text, ToolResult, as_text
from tests.environments.test_tool_use import product
from tests.sapo.test_episodes import Altering
from tests.sapo.test_round import FakeUpdater, Swarm


class Calling:
    """The first episode of a question calls the tool with the product and repeats what it said; the others guess.

    It is asked in rounds.
    """

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        for index, prompt in enumerate(prompts):
            if isinstance(prompt, Past):
                ((part,),) = (step.observation for step in prompt.steps)
                yield index, (said(f"<answer>{part.text}</answer>"),)
            else:
                begins = prompt not in prompts[:index]
                yield index, (said(product(as_text(prompt))[0] if begins else "<answer>1</answer>"),)


def said(text: str) -> Completion:
    return Completion(text, "stop", (4,), (-1.0,))


def player(swarm: Swarm, seed: int, task: TaskConfig, updater: FakeUpdater, **parts: object) -> SapoNode:
    tasks = (
        [task]
        if task.is_asked
        else [task, TINY_TOOL_TASK.model_copy(update={"name": "another", "dataset": "products"})]
    )
    verifier = with_custom_tools(InlineVerifier(tasks), tasks)
    return swarm.node(seed, engine=Calling(), verifier=verifier, updater=updater, **parts)


def test_a_receiver_trains_on_what_its_own_calculator_says() -> None:
    swarm, updater = Swarm(), FakeUpdater()
    player(swarm, 1, TINY_TOOL_TASK, FakeUpdater()).run_round()
    report = player(swarm, 2, TINY_TOOL_TASK, updater).run_round()
    assert len(report.mix.external) == 2
    for graded in updater.batches[0][1]:
        assert graded.rewards == (1.0, 0.0, 0.0, 0.0)
        assert graded.observed(0) == ((Text(product(as_text(graded.prompt))[1], "calculator"),),)


def another_result(group: RolloutGroup) -> RolloutGroup:
    first, *others = group.completions
    return replace(group, completions=(replace(first, observed=digest(((Text("7", "calculator"),),))), *others))


def another_tool(group: RolloutGroup) -> RolloutGroup:
    return replace(group, question=replace(group.question, options_digest=f"x{group.question.options_digest[1:]}"))


@pytest.mark.parametrize(("alter", "reason"), [(another_result, "episode_mismatch"), (another_tool, "options_differ")])
def test_nothing_is_trained_of_another_result_or_tool(alter: object, reason: str) -> None:
    swarm, updater = Swarm(), FakeUpdater()
    sender = player(swarm, 1, TINY_TOOL_TASK, FakeUpdater())
    sender._own._exchange = Altering(sender._own._exchange, alter)
    sender.run_round()
    receiver = player(swarm, 2, TINY_TOOL_TASK, updater)
    receiver.run_round()
    counts = receiver.ledger.snapshot()
    assert counts["dropped"] == {reason: counts["received"]} and counts["received"] > 0
    assert updater.batches[0][1] == []


CODE = """
calls = []

def search(call):
    calls.append(call)
    if call == "fail":
        raise OSError("no network")
    left, right = call.split(" * ")
    return str(int(left) * int(right))

def changing(call):
    calls.append(call)
    return str(len(calls))
"""


def own(tmp_path: Path, name: str = "search") -> TaskConfig:
    file = tmp_path / "own_tool.py"
    file.write_text(CODE)
    return TINY_TOOL_TASK.model_copy(update={"tool": f"{file}:{name}"})


def test_episodes_with_an_own_tool_are_trained_on_and_never_shared(tmp_path: Path) -> None:
    swarm, task = Swarm(), own(tmp_path)
    sent, updater = FakeUpdater(), FakeUpdater()
    sender = player(swarm, 1, task, sent, unshared=custom_tool_tasks([task]))
    sender.run_round()
    assert sender.ledger.snapshot()["shared"] == 0 and len(sent.batches[0][0]) == 2
    careless = player(swarm, 2, task, FakeUpdater())
    careless.run_round()
    receiver = player(swarm, 3, task, updater)
    receiver.run_round()
    counts = receiver.ledger.snapshot()
    assert careless.ledger.snapshot()["shared"] == counts["received"] > 0
    assert counts["dropped"] == {"untrusted": counts["received"]} and updater.batches[0][1] == []
    account = receiver.external._exchange.book.stats()[careless.peer_id]
    assert account.offence == pytest.approx(OFFENCES[Reason.UNTRUSTED] * counts["received"], rel=0.01)


@pytest.mark.parametrize("has_a_tool_too", [False, True])
def test_who_is_trusted_is_believed_what_its_tool_said_and_nothing_else(tmp_path: Path, has_a_tool_too: bool) -> None:
    swarm, task, updater = Swarm(), own(tmp_path), FakeUpdater()
    sender, other = (player(swarm, seed, task, FakeUpdater()) for seed in (1, 2))
    sender.run_round()
    other.run_round()
    theirs = task if has_a_tool_too else task.model_copy(update={"tool": "trusted"})
    receiver = player(swarm, 3, theirs, updater, trusted=[sender.peer_id])
    receiver.run_round()
    external = updater.batches[0][1]
    assert {graded.group.peer_id for graded in external} == {sender.peer_id}
    for graded in external:
        assert graded.rewards == (1.0, 0.0, 0.0, 0.0), "its own: answers can be checked whatever a tool said"
        assert graded.observed(0) == ((ToolResult(product(as_text(graded.prompt))[1], "tool"),),)
        assert [completion.told for completion in graded.group.completions[1:]] == [()] * 3
    counts = receiver.ledger.snapshot()
    assert set(counts["dropped"]) == {"untrusted"} and counts["used_external"] == 2


class Claiming:
    """Signs with its own key what is said to be another's."""

    def __init__(self, key: Identity, peer_id: str) -> None:
        self._key = key
        self.peer_id = peer_id

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def more_said(group: RolloutGroup) -> RolloutGroup:
    first, *others = group.completions
    return replace(group, completions=(replace(first, told=("7",)), *others))


def nothing_said(group: RolloutGroup) -> RolloutGroup:
    return replace(group, completions=tuple(replace(each, told=()) for each in group.completions))


@pytest.mark.parametrize("alter", [more_said, nothing_said, another_result])
def test_a_trusted_author_must_say_what_its_policy_was_told(tmp_path: Path, alter: object) -> None:
    swarm, task, updater = Swarm(), own(tmp_path), FakeUpdater()
    sender = player(swarm, 1, task, FakeUpdater())
    sender._own._exchange = Altering(sender._own._exchange, alter)
    sender.run_round()
    receiver = player(swarm, 2, task, updater, trusted=[sender.peer_id])
    receiver.run_round()
    counts = receiver.ledger.snapshot()
    assert counts["dropped"] == {"episode_mismatch": counts["received"]} and counts["received"] > 0


def test_nobody_speaks_in_the_name_of_a_trusted_peer(tmp_path: Path) -> None:
    swarm, task, updater = Swarm(), own(tmp_path), FakeUpdater()
    trusted = player(swarm, 1, task, FakeUpdater())
    forger = player(swarm, 2, task, FakeUpdater())
    receiver = player(swarm, 3, task, updater, trusted=[trusted.peer_id])
    exchange = forger.external._exchange
    run_id = exchange.status().run_id

    class Forging:
        def share_all(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
            forged = [replace(group, run_id=run_id, peer_id=trusted.peer_id) for group in groups]
            for identity in (exchange._identity, Claiming(exchange._identity, trusted.peer_id)):
                for group in forged:
                    exchange._transport.publish(seal(identity, run_id, "group", group))
            return forged

    forger._own._exchange = Forging()
    forger.run_round()
    receiver.run_round()
    counts = receiver.ledger.snapshot()
    assert counts["received"] == sum(counts["dropped"].values()) > 0 and updater.batches[0][1] == []
    assert counts["dropped"].keys() == {"wrong_peer", "bad_signature"}
    assert trusted.peer_id not in receiver.external._exchange.book.stats(), "the forger alone is charged"


def test_an_own_tool_is_called_once_for_a_turn_and_its_failure_is_an_observation(tmp_path: Path) -> None:
    task = own(tmp_path, "changing")
    verifier = with_custom_tools(InlineVerifier([task]), [task])
    (question,) = verifier.draw(1, 0, 1)
    calls = ["<tool>a</tool>", "<tool>b</tool>", "<tool>a</tool>"]
    first, again = (verifier.begin_grading(question.ref, calls).result() for _ in range(2))
    assert isinstance(first, Grade) and first == again
    shown = [observed[0][0].text for observed in first.observations]
    assert shown[0] == shown[2] != shown[1], "the same turn after the same past"
    failing = own(tmp_path, "search")
    verifier = with_custom_tools(InlineVerifier([failing]), [failing])
    (failed,) = verifier.grade([(question.ref, ["<tool>fail</tool>"])])
    assert isinstance(failed, Grade) and failed.observations == (
        ((ToolResult("error: OSError: no network", "tool"),),),
    )
    assert verifier.counters()["tool_failures"] == 1
    verifier.close()


def test_no_manifest_names_an_own_tool_and_none_is_loaded_for_one(tmp_path: Path) -> None:
    task = own(tmp_path)
    assert to_specs([task, TINY_TASKS[0]]) == to_specs([TINY_TASKS[0]])
    (spec,) = to_specs([TINY_TOOL_TASK])
    (listed,) = to_specs([task], trusted=["somebody"])
    assert listed.settings["tool"] == "trusted" and str(tmp_path) not in str(listed)
    assert "it trusts none" in (why_left_out(listed) or "")
    assert from_specs([listed], trusted=["somebody"]) == (task.model_copy(update={"tool": "trusted"}),)
    hostile = replace(spec, settings={**spec.settings, "tool": f"{tmp_path}/own_tool.py:search"})
    assert "tool" in (why_left_out(hostile) or "") and from_specs([hostile]) == ()
    inner: TaskVerifier = InlineVerifier([TINY_TOOL_TASK])
    assert with_custom_tools(inner, [TINY_TOOL_TASK]) is inner
    with pytest.raises(TaskError, match="has no nothing"):
        with_custom_tools(inner, [own(tmp_path, "nothing")])
    assert isinstance(with_custom_tools(inner, [task]), CustomTools)
