"""Tasks and rewards of one's own: examples/own_task.py, in this process and in the workers' sandbox."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from swarm.config import load_config
from swarm.environments.code import GROUP, code_digest, load, resolved
from swarm.environments.config import VerificationSettings
from swarm.environments.mixture import TaskMixture
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.hf_datasets import DatasetSource
from swarm.environments.specs import CODE, LOCAL, from_specs, to_specs, why_left_out
from swarm.environments.task import PythonSource, PythonTask
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import Refusal, TaskError
from swarm.types import HELD_OUT_STREAMS, Grade, ProceduralRef, Question, Rejection, TaskSpec, Text
from swarm.types.media import Image

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = EXAMPLES / "own_task.py"


def halve(target: str = f"{OWN}:Halve", **changes: object) -> PythonTask:
    return PythonTask(**{"kind": "python", "name": "halve", "target": target, **changes})  # type: ignore[arg-type]


def ref_of(source: PythonSource) -> ProceduralRef:
    ref = source.question(3, 1).ref
    assert isinstance(ref, ProceduralRef)
    return ref


def half_of(question: Question) -> int:
    """The answer to a question of the example."""
    return int(str(question.prompt).split()[1]) // 2


def test_the_example_asks_and_rewards() -> None:
    source = PythonSource(halve(options={"largest": 9}))
    questions = [source.question(3, index) for index in range(60)]
    assert questions == [PythonSource(halve(options={"largest": 9})).question(3, index) for index in range(60)]
    held_out = {source.question(HELD_OUT_STREAMS, index).prompt for index in range(60)}
    asked = {question.prompt for question in questions}
    assert asked | held_out == {f"Calculate {2 * half} / 2." for half in range(1, 10)} and not asked & held_out
    ref, half = questions[0].ref, half_of(questions[0])
    assert source.recall(ref) == questions[0] and source.num_held_out is None
    assert [source.score(ref, text) for text in (f"{half}", f"{half + 1}", f" {half + 3} ")] == [1.0, 0.5, 0.25]
    assert source.counts["scorer_failures"] == 0
    assert source.score(ref, "none") == 0.0 and source.counts["scorer_failures"] == 1


def test_the_example_s_configuration_takes_the_last_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    mixture = TaskMixture(load_config(EXAMPLES / "own-task.yaml").config.tasks)
    question = mixture.question(0, 0)
    half = half_of(question)
    grade = mixture.grade(question.ref, [f"It is {half}.", f"{half}, or {half + 1}", "?"])
    assert isinstance(grade, Grade) and grade.rewards == (1.0, 0.5, 0.0)


def test_a_threshold_and_a_rule_apply_as_to_other_tasks() -> None:
    source = PythonSource(halve(find="tags", reward={"threshold": 0.5}))
    question = source.question(3, 1)
    half = half_of(question)
    texts = (f"<answer>{half + 1}</answer>", f"<answer>{half + 2}</answer>", f"{half}")
    assert [source.score(question.ref, text) for text in texts] == [1.0, 0.0, 0.0]


MINE = """
from swarm.environments.task import Task

class Mine(Task):
    def question(self, random):
        return {question}, "1"

    def reward(self, question, completion, reference):
        return {reward}
"""


def mine(folder: Path, question: str = "'?'", reward: str = "1") -> str:
    """A task with these expressions as its code."""
    (folder / "mine.py").write_text(MINE.format(question=question, reward=reward))
    return f"{folder / 'mine.py'}:Mine"


@pytest.mark.parametrize(
    ("reward", "given"), [("2", 1.0), ("-1", 0.0), ("float('nan')", 0.0), ("None", 0.0), ("True", 1.0), ("1 / 0", 0.0)]
)
def test_a_reward_is_between_0_and_1_whatever_the_code_returns(reward: str, given: float, tmp_path: Path) -> None:
    source = PythonSource(halve(mine(tmp_path, reward=reward)))
    assert source.score(ref_of(source), "1") == given


@pytest.mark.parametrize("question", ["1 / 0", "None", "''", "2"])
def test_after_a_question_that_fails_it_is_the_next_task_s_turn(question: str, tmp_path: Path) -> None:
    target = mine(tmp_path, question)
    with pytest.raises(TaskError, match="task 'halve'"):
        PythonSource(halve(target)).question(1, 1)
    mixture = TaskMixture([halve(target), halve(name="other")])
    assert {mixture.question(1, index).ref.task for index in range(20)} == {"other"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": f"{OWN}:Half"}, "has no Half; did you mean Halve?"),
        ({"target": f"{OWN}:brief"}, "must be a subclass of swarm.environments.task.Task"),
        ({"target": "/absent.py:Halve"}, "cannot read /absent.py: No such file"),
        ({"target": "absent_module:Halve"}, "cannot import absent_module"),
        ({"target": "halve"}, f"no installed package offers 'halve' as an entry point of the group {GROUP}"),
        ({"options": {"larges": 3}}, "options: larges"),
        ({"options": {"largest": 0}}, "options: largest: must be at least 1"),
    ],
)
def test_code_that_cannot_be_used_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TaskError) as error:
        PythonSource(halve(**changes))  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("class Mine(", "SyntaxError"),
        ("raise RuntimeError('no')", "RuntimeError: no"),
        (MINE.partition("    def reward")[0].format(question="'?'"), "abstract method '?reward"),
    ],
)
def test_code_that_fails_or_lacks_a_method_is_named(code: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(TaskError, match=message):
        PythonSource(halve(f"{tmp_path / 'mine.py'}:Mine"))


def scored(path: Path, scorer: str | None = f"{OWN}:brief") -> DatasetTask:
    return DatasetTask(kind="dataset", name="rows", path=str(path), scorer=scorer)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    lines = [{"question": f"{n}?", "answer": [f"a{n}", f"b{n}"]} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "rows.jsonl"


def test_a_function_scores_the_whole_completions_of_a_data_set(rows: Path) -> None:
    source = DatasetSource(scored(rows))
    ref = source.question(1, 1).ref
    row = ref.row  # type: ignore[union-attr]
    assert source.score(ref, f"it is a{row}.") == 1.0
    assert source.score(ref, f"b{row}") == 1.0, "the best of the references counts"
    assert source.score(ref, f"a{row}".rjust(400)) == 0.5
    assert source.score(ref, "neither") == 0.0
    with pytest.raises(TaskError, match="must be a function"):
        DatasetSource(scored(rows, f"{OWN}:Halve"))


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A copy of the example that differs."""
    (tmp_path / "changed.py").write_text(f"{OWN.read_text()}\n# a line more\n")
    return tmp_path / "changed.py"


def test_other_code_is_another_task_and_other_options_are_other_options(changed: Path) -> None:
    source = PythonSource(halve())
    ref = ref_of(source)
    with pytest.raises(Refusal, match="other_task"):
        PythonSource(halve(f"{changed}:Halve")).recall(ref)
    with pytest.raises(Refusal, match="options_differ"):
        PythonSource(halve(options={"largest": 3})).recall(ref)
    with pytest.raises(Refusal, match="question_mismatch"):
        source.recall(msgspec.structs.replace(ref, index=5))
    shutil.copy(OWN, changed)
    assert PythonSource(halve(f"{changed}:Halve")).recall(ref), "wherever the same code is"
    verdict = TaskMixture([halve(name="another")]).grade(ref, ["1"])
    assert isinstance(verdict, Rejection) and verdict.reason == "unknown_task"


def test_another_scorer_is_another_task(rows: Path, changed: Path) -> None:
    ref = DatasetSource(scored(rows)).question(1, 1).ref
    for scorer, reason in ((f"{changed}:brief", "other_task"), (None, "options_differ")):
        with pytest.raises(Refusal, match=reason):
            DatasetSource(scored(rows, scorer)).recall(ref)


def test_a_manifest_carries_a_digest_and_no_place() -> None:
    [spec] = to_specs([halve(options={"largest": 9})])
    assert spec.settings == {"target": LOCAL, "options": {"largest": 9}, CODE: code_digest(f"{OWN}:Halve")}
    assert why_left_out(spec) == (
        "it runs code of the run's founder; if you have a copy, name it: --code.halve tasks.py:Name"
    )
    assert from_specs([spec]) == ()
    assert from_specs([spec], code={"halve": f"{OWN}:Halve"}) == (halve(options={"largest": 9}),)
    assert resolved("own_task.py:Halve") == f"{Path.cwd() / 'own_task.py'}:Halve"


def test_a_copy_that_differs_is_an_error_that_names_both_digests(changed: Path) -> None:
    [spec] = to_specs([halve()])
    with pytest.raises(TaskError) as error:
        from_specs([spec], code={"halve": f"{changed}:Halve"})
    for target in (f"{changed}:Halve", f"{OWN}:Halve"):
        assert code_digest(target) in str(error.value)
    [without] = to_specs([halve("/absent.py:Halve")])
    assert "without its digest" in str(why_left_out(without, code={"halve": f"{OWN}:Halve"}))


def test_a_data_set_on_local_files_with_own_code_needs_both_copies(rows: Path) -> None:
    [spec] = to_specs([scored(rows)])
    assert spec.settings["path"] == spec.settings["scorer"] == LOCAL
    code = {"rows": f"{OWN}:brief"}
    assert "--code.rows" in str(why_left_out(spec, {"rows": rows}))
    assert "--files.rows" in str(why_left_out(spec, code=code))
    assert from_specs([spec], {"rows": rows}, code) == (scored(rows),)


TARGETS = ("shutil:rmtree", "os:system", "builtins:exec", "/tmp/x.py:f", "halve", "os.path", "", 3, ["os:system"])


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("kind", "field"), [("python", "target"), ("dataset", "scorer")])
def test_a_founder_s_manifest_names_no_code_of_this_machine(kind: str, field: str, target: object) -> None:
    spec = TaskSpec("halve", kind, 1.0, {field: target, "path": "owner/name", CODE: code_digest("shutil:rmtree")})
    assert "code of the run's founder" in str(why_left_out(spec))
    assert from_specs([spec]) == ()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that offers the example's task: the path of its module."""
    shutil.copy(OWN, tmp_path / "halving_tasks.py")
    about = tmp_path / "halving_tasks-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: halving-tasks\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\nhalving = halving_tasks:Halve\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "halving_tasks.py"
    sys.modules.pop("halving_tasks", None)


def test_what_a_package_offers_is_named_by_the_manifest(package: Path) -> None:
    [spec] = to_specs([halve("halving")])
    assert spec.settings == {"target": "halving", CODE: code_digest(f"{OWN}:Halve")}
    assert from_specs([spec]) == (halve("halving_tasks:Halve"),)
    assert isinstance(load("halving"), type)
    assert PythonSource(halve("halving")).recall(ref_of(PythonSource(halve()))), "the same code"
    package.write_text(f"{OWN.read_text()}\n# a line more\n")
    assert "get the same code" in str(why_left_out(spec)) and from_specs([spec]) == ()


@pytest.mark.slow
def test_code_runs_in_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.txt").write_text("x")
    shutil.copy(OWN, tmp_path / "own_task.py")
    peeks = mine(tmp_path, reward=f"open({str(tmp_path / 'secret.txt')!r}).read() == 'x'")
    monkeypatch.chdir(tmp_path)
    tasks = [halve("own_task.py:Halve"), halve(peeks, name="peeks")]
    with closing(VerificationPool(tasks, VerificationSettings())) as pool:
        questions = {question.ref.task: question for question in pool.draw(1, 0, 20)}
        half = half_of(questions["halve"])
        jobs = [(questions["halve"].ref, [str(half), str(half + 1)]), (questions["peeks"].ref, ["1"])]
        halved, peeked = pool.grade(jobs)
        assert isinstance(halved, Grade) and halved.rewards == (1.0, 0.5)
        assert isinstance(peeked, Grade)
        assert peeked.rewards == ((1.0,) if "files" in pool.unprotected() else (0.0,))


@pytest.mark.slow
def test_code_that_fails_in_a_worker_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import nothing_of_this_name")
    with (
        closing(VerificationPool([halve(f"{tmp_path / 'mine.py'}:Mine")], VerificationSettings())) as pool,
        pytest.raises(TaskError, match="mine.py: ModuleNotFoundError"),
    ):
        pool.wait_until_ready()


BRIGHTNESS = """
from swarm.environments.task import Task
from swarm.types.media import Image


class Brightness(Task):
    side: int = 4

    def question(self, random):
        level = random.randrange(256)
        picture = Image(self.side, self.side, bytes([level] * 3 * 16))
        return [picture, "Dark or bright?"], "bright" if level >= 128 else "dark"

    def reward(self, question, completion, reference):
        assert question == "[image 4 x 4]\\nDark or bright?"
        return float(completion == reference)
"""


def brightness(folder: Path, **changes: object) -> PythonTask:
    (folder / "own.py").write_text(BRIGHTNESS)
    settings = {"name": "own", "find": "whole", "ask": "One word.", "modalities": ["image"], **changes}
    return PythonTask.model_validate({"kind": "python", "target": f"{folder}/own.py:Brightness", **settings})


def test_a_question_of_one_s_own_has_a_picture_in_every_process(tmp_path: Path) -> None:
    config = brightness(tmp_path)
    here = TaskMixture([config]).question(3, 1)
    assert not isinstance(here.prompt, str)
    image, text = here.prompt[0].parts
    assert isinstance(image, Image) and text == Text("Dark or bright?\nOne word.")
    assert config.media == {"image"} and from_specs(to_specs([config]), code={"own": config.target}) == (config,)
    right, wrong = ("bright", "dark") if image.pixels[0] >= 128 else ("dark", "bright")
    with closing(VerificationPool([config], VerificationSettings())) as pool:
        assert pool.draw(3, 1, 1) == [here]
        (grade,) = pool.grade([(here.ref, [right, wrong])])
        assert isinstance(grade, Grade) and grade.rewards == (1.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"modalities": []}, r"made \[image 4 x 4\]: list 'image' in the task's `modalities`"),
        ({"options": {"side": 5}}, r"made \[image 5 x 5\] has 48 bytes, must have 75"),
    ],
)
def test_a_picture_that_was_not_announced_or_is_not_whole_is_named(
    changes: dict[str, object], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=problem):
        PythonSource(brightness(tmp_path, **changes)).question(3, 1)
