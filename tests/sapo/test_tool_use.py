"""Episodes with a tool between nodes: receivers call it again; what a node's own tool said stays there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarm.environments.config import TaskConfig, unshared
from swarm.environments.specs import from_specs, to_specs, why_left_out
from swarm.environments.tiny import TINY_TASKS, TINY_TOOL_TASK
from swarm.environments.tools.own import OwnTools, with_own_tools
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import TaskError
from swarm.groups.episodes import digest
from swarm.protocols import TaskVerifier, Turns
from swarm.sapo.round import SapoNode
from swarm.types import Answers, Completion, Context, Grade, Past, RolloutGroup, Sampling, Text
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
                assert isinstance(prompt, str)
                begins = prompt not in prompts[:index]
                yield index, (said(product(prompt)[0] if begins else "<answer>1</answer>"),)


def said(text: str) -> Completion:
    return Completion(text, "stop", (4,), (-1.0,))


def player(swarm: Swarm, seed: int, task: TaskConfig, updater: FakeUpdater, **parts: object) -> SapoNode:
    verifier = with_own_tools(InlineVerifier([task]), [task])
    return swarm.node(seed, engine=Calling(), verifier=verifier, updater=updater, **parts)


def test_a_receiver_trains_on_what_its_own_calculator_says() -> None:
    swarm, updater = Swarm(), FakeUpdater()
    player(swarm, 1, TINY_TOOL_TASK, FakeUpdater()).run_round()
    report = player(swarm, 2, TINY_TOOL_TASK, updater).run_round()
    assert len(report.mix.external) == 2
    for graded in updater.batches[0][1]:
        assert graded.rewards == (1.0, 0.0, 0.0, 0.0)
        assert graded.observed(0) == ((Text(product(str(graded.prompt))[1]),),)


def another_result(group: RolloutGroup) -> RolloutGroup:
    first, *others = group.completions
    return replace(group, completions=(replace(first, observed=digest(((Text("7"),),))), *others))


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
    sender = player(swarm, 1, task, sent, unshared=unshared([task]))
    sender.run_round()
    assert sender.ledger.snapshot()["shared"] == 0 and len(sent.batches[0][0]) == 2
    careless = player(swarm, 2, task, FakeUpdater())
    careless.run_round()
    receiver = player(swarm, 3, task, updater)
    receiver.run_round()
    counts = receiver.ledger.snapshot()
    assert careless.ledger.snapshot()["shared"] == counts["received"] > 0
    assert counts["dropped"] == {"unknown_task": counts["received"]} and updater.batches[0][1] == []


def test_an_own_tool_is_called_once_for_a_turn_and_its_failure_is_an_observation(tmp_path: Path) -> None:
    task = own(tmp_path, "changing")
    verifier = with_own_tools(InlineVerifier([task]), [task])
    (question,) = verifier.draw(1, 0, 1)
    calls = ["<tool>a</tool>", "<tool>b</tool>", "<tool>a</tool>"]
    first, again = (verifier.begin(question.ref, calls).result() for _ in range(2))
    assert isinstance(first, Grade) and first == again
    shown = [observed[0][0].text for observed in first.observations]
    assert shown[0] == shown[2] != shown[1], "the same turn after the same past"
    failing = own(tmp_path, "search")
    verifier = with_own_tools(InlineVerifier([failing]), [failing])
    (failed,) = verifier.grade([(question.ref, ["<tool>fail</tool>"])])
    assert isinstance(failed, Grade) and failed.observations == (((Text("error: OSError: no network"),),),)
    assert verifier.counters()["tool_failures"] == 1
    verifier.close()


def test_no_manifest_names_an_own_tool_and_none_is_loaded_for_one(tmp_path: Path) -> None:
    task = own(tmp_path)
    assert to_specs([task, TINY_TASKS[0]]) == to_specs([TINY_TASKS[0]])
    (spec,) = to_specs([TINY_TOOL_TASK])
    hostile = replace(spec, settings={**spec.settings, "tool": f"{tmp_path}/own_tool.py:search"})
    assert "tool" in (why_left_out(hostile) or "") and from_specs([hostile]) == ()
    inner: TaskVerifier = InlineVerifier([TINY_TOOL_TASK])
    assert with_own_tools(inner, [TINY_TOOL_TASK]) is inner
    with pytest.raises(TaskError, match="has no nothing"):
        with_own_tools(inner, [own(tmp_path, "nothing")])
    assert isinstance(with_own_tools(inner, [task]), OwnTools)
