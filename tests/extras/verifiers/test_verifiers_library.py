"""Environments of the verifiers library: by hand, in confined workers, those that are refused, and published ones."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
from pydantic import ValidationError

from swarm.environments.config import VerificationSettings
from swarm.environments.mixture import TaskMixture
from swarm.environments.specs import from_specs, to_specs, why_left_out
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError
from swarm.extras.verifiers.task import VerifiersTask
from swarm.types import Grade, observation_text

if find_spec("verifiers") is None:
    pytest.skip("the library verifiers is not installed: pip install verifiers==0.4.0", allow_module_level=True)

from swarm.extras.verifiers.environment import Coroutines

PACKAGE = """
import asyncio, random
import verifiers.v1 as vf

__all__ = ["Counting", "CountingEnv"]

class Data(vf.TaskData):
    answer: int

class Count(vf.Task[Data]):
    @vf.reward(weight=0.5)
    async def last(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward(weight=0.5)
    async def all(self, trace: vf.Trace) -> float:
        await asyncio.sleep(60)
        return len({message.content for message in trace.assistant_messages}) / 3

class Config(vf.TasksetConfig):
    first: int = 0

class Counting(vf.Taskset[Count, Config]):
    INFINITE = True

    def load(self):
        index = self.config.first
        while True:
            yield Count(Data(prompt=f"Say {index}.", system_prompt="Count.", answer=index + 2), self.config.task)
            index += 1

class CountingEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            for number in (1, 2):
                await asyncio.sleep(5)
                if segment.last_reply == "stop":
                    return
                segment = await interaction.turn(f"And {number} more, please. ({random.random()})")
"""
REFUSED = {
    "with tools": """
    @classmethod
    def toolsets(cls, config):
        return [object()]
""",
    "runs programs": """
    @vf.reward
    async def ran(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return 1.0
""",
    "changes requests": """
    @vf.intercept
    async def other(self, request: vf.Request) -> None:
        return None
""",
}
TASK = VerifiersTask(kind="verifiers", name="counting", target="counting_vf:Counting", settings={"first": 5}, rows=4)
PUBLISHED = {
    "reverse_text": ("ReverseTextTaskset", {"dataset_name": "rows"}),
    "alphabet_sort": ("AlphabetSortTaskset", {"min_turns": 2, "max_turns": 2}),
    "wordle": ("WordleTaskset", {}),
}


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages."""
    (tmp_path / "counting_vf").mkdir()
    (tmp_path / "counting_vf" / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("counting_vf", None)


def test_a_conversation_is_driven_and_scored_by_the_library() -> None:
    mixture = TaskMixture([TASK])
    question = mixture.question(0, 0)
    number = int(str(question.prompt).removeprefix("Count.\n\nSay ").removesuffix("."))
    assert number in range(5, 9)
    turns = tuple(str(number + step) for step in range(3))
    whole = mixture.grade(question.ref, [turns, turns[:1], ("stop",), (turns[0], turns[0], turns[2])])
    assert isinstance(whole, Grade)
    assert whole.rewards == pytest.approx((1.0, 0.0, 1 / 6, 0.5 + 1 / 3))
    (first,), (second,) = whole.observed(0)
    assert observation_text((first,)).startswith("And 1 more") and observation_text((second,)).startswith("And 2 more")
    assert mixture.grade(question.ref, [turns, turns[:1], ("stop",), (turns[0], turns[0], turns[2])]) == whole
    assert whole.observed(3)[0] == whole.observed(0)[0]  # what the environment draws does not depend on other episodes
    assert mixture.counts["environment_failures"] == 0


def test_confined_workers_load_the_rows_once_and_then_play() -> None:
    here, pool = TaskMixture([TASK]), VerificationPool([TASK], VerificationSettings())
    try:
        (question,) = pool.draw(0, 0, 1)
        assert question == here.question(0, 0)
        (there,), found = pool.grade([(question.ref, [("1", "2", "3")])]), here.grade(question.ref, [("1", "2", "3")])
        assert isinstance(there, Grade) and isinstance(found, Grade)
        assert (there.rewards, there.observations) == (found.rewards, found.observations)
    finally:
        pool.close()


@pytest.mark.parametrize("reason", REFUSED)
def test_what_others_could_not_replay_is_refused(packages: Path, reason: str) -> None:
    name = f"refused_{list(REFUSED).index(reason)}_vf"
    (packages / name).mkdir()
    changed = PACKAGE.replace("class Config(", REFUSED[reason] + "\nclass Config(")
    (packages / name / "__init__.py").write_text(changed)
    with pytest.raises(
        TaskError, match=f"{reason.removeprefix('with ')}.*; only environments in which one agent talks"
    ):
        TaskMixture([TASK.model_copy(update={"target": f"{name}:Counting"})])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"settings": {"second": 1}}, "second"),
        ({"target": "json:JSONDecoder"}, "must be a taskset"),
        ({"target": "no_such_package:Taskset"}, "no_such_package"),
    ],
)
def test_mistakes_are_told(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        TaskMixture([TASK.model_copy(update=changes)])


def test_a_manifest_names_no_package_and_members_name_their_own_copy() -> None:
    (spec,) = to_specs((TASK,))
    assert "counting_vf" not in json.dumps(spec.settings)
    assert "--code.counting" in (why_left_out(spec) or "")
    assert from_specs((spec,), code={"counting": TASK.target}) == (TASK,)
    with pytest.raises(TaskError, match="digest"):
        from_specs((spec,), code={"counting": "json:JSONDecoder"})


def test_settings_name_data_sets_of_the_hub_and_no_paths() -> None:
    task = TASK.model_copy(update={"settings": {"dataset_name": "PrimeIntellect/Reverse-Text-RL"}})
    assert VerifiersTask.model_validate(task.model_dump()) == task
    with pytest.raises(ValidationError, match="dataset_name must be plain words"):
        VerifiersTask.model_validate({**task.model_dump(), "settings": {"dataset_name": "/home/user/rows"}})


def test_the_loop_has_a_time_of_its_own_and_no_other_world() -> None:
    loop = Coroutines()

    async def both() -> list[str]:
        order: list[str] = []

        async def wait(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        await asyncio.gather(wait(3600, "late"), wait(60, "early"))
        return order

    assert loop.run_until_complete(both()) == ["early", "late"] and loop.time() == 3600
    with pytest.raises(RuntimeError, match="waits for something that is not here"):
        loop.run_until_complete(loop.create_future())


@pytest.mark.parametrize("package", PUBLISHED)
def test_published_environments_run_unchanged(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} of verifiers' repository, folder environments/, is not installed")
    _write_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    if package == "wordle":
        _write_words(tmp_path)
        monkeypatch.setattr(pytest.importorskip("nltk").data, "path", [str(tmp_path)])
    taskset, settings = PUBLISHED[package]
    target = f"{package}.taskset:{taskset}"
    task = VerifiersTask(kind="verifiers", name=package, target=target, settings=settings, rows=4)
    mixture = TaskMixture([task])
    question = mixture.question(0, 0)
    seen, turns = [str(question.prompt)], (_reply(package, [str(question.prompt)]),)
    while isinstance(grade := mixture.grade(question.ref, [turns]), Grade) and len(grade.observed(0)) == len(turns):
        seen.append(observation_text(grade.observed(0)[-1]))
        turns = (*turns, _reply(package, seen))
    assert isinstance(grade, Grade) and grade.rewards == (1.0,)
    assert len(turns) == (1 if package == "reverse_text" else 2)
    assert isinstance(wrong := mixture.grade(question.ref, ["no idea"]), Grade) and wrong.rewards == (0.0,)


def _write_rows(folder: Path) -> None:
    """Data in the form of what they download, where `load_dataset` finds it by a relative name."""
    first = ("Ada", "Bob", "Cyd", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Joe")
    last = ("Teak", "Ash", "Pine", "Elm", "Oak", "Fir", "Yew", "Lime", "Beech", "Holly")
    names = [f"{one} {other}" for one, other in zip(first, last, strict=True)]
    rows = {"rows": [{"prompt": "one small step"}], "kalomaze/alphabetic-arxiv-authors-it1": [{"names": names}]}
    for name, content in rows.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))


def _write_words(folder: Path) -> None:
    """NLTK's lists of words and its tagger, which TextArena's Wordle reads: two words, one of which is asked for."""
    lists, tagger = folder / "corpora" / "words", folder / "taggers" / "averaged_perceptron_tagger_eng"
    for part in (lists, tagger):
        part.mkdir(parents=True)
    (lists / "en").write_text("crane\nhouse\n")
    (lists / "en-basic").write_text("house\n")
    for name, content in {"weights": {}, "tagdict": {"crane": "NN", "house": "NN"}, "classes": ["NN"]}.items():
        (tagger / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(content))


def _reply(package: str, seen: list[str]) -> str:
    """The right one to what was said so far."""
    if package == "reverse_text":
        return f"<reversed_text>{seen[-1].rpartition(chr(10))[2][::-1]}</reversed_text>"
    if package == "wordle":
        return ("[crane]", "[house]")[len(seen) - 1]  # the words of the list
    told = [text.partition(" name: " if " name: " in text else ": ")[2].partition("\n")[0].split(", ") for text in seen]
    by_last = " by LAST" in seen[0]
    names = sorted(chain(*told), key=lambda name: re.findall("[A-Z][a-z]*", name)[1 if by_last else 0])
    if len(seen) == 1:
        return "<alphabetical_sorted>\n" + "\n".join(names) + "\n</alphabetical_sorted>"
    lines = [name if name in told[0] else f"{name} // new name!" for name in names]
    return "<combined_alphabetical_sorted>\n" + "\n".join(lines) + "\n</combined_alphabetical_sorted>"
