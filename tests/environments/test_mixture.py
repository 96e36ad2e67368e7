"""The weighted choice among tasks, and tasks in manifests."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from swarm.environments.answering import RewardSettings
from swarm.environments.config import Context, TaskConfig
from swarm.environments.mixture import Bounds, TaskMixture
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.tiny import TINY_TASKS
from swarm.errors import Refusal, TaskError
from swarm.protocols import Answered, Source
from swarm.types import Grade, Question, TaskRef, TaskSpec


class Echo:
    """A source whose questions say who made them; it may refuse to make any."""

    def __init__(self, inner: TaskMixture, name: str, broken: bool = False) -> None:
        self.name = name
        self._inner = inner.sources[name]
        self._broken = broken

    def question(self, seed: int, index: int) -> Question:
        if self._broken:
            raise TaskError(f"{self.name} is broken")
        return self._inner.question(seed, index)

    def recall(self, ref: TaskRef) -> Question:
        return self._inner.recall(ref)

    def score(self, ref: TaskRef, completion: str) -> float:
        return self._inner.score(ref, completion)


def names(mixture: TaskMixture, count: int, seed: int = 1) -> list[str]:
    return [mixture.question(seed, index).ref.task for index in range(count)]


def test_tasks_come_by_weight_and_by_nothing_else() -> None:
    tasks = [ReasoningGymTask(name="gcd", weight=3), ReasoningGymTask(name="lcm")]
    drawn = names(TaskMixture(tasks), 2000)
    assert drawn == names(TaskMixture(tasks), 2000)
    assert Counter(drawn)["gcd"] / 2000 == pytest.approx(0.75, abs=0.03)
    assert names(TaskMixture(tasks), 50, seed=2) != drawn[:50]


def test_a_broken_task_gives_way_to_the_next_and_all_broken_is_an_error() -> None:
    mixture = TaskMixture(TINY_TASKS[:3])
    before = names(mixture, 30)
    order = [task.name for task in TINY_TASKS[:3]]
    mixture.sources[order[1]] = Echo(mixture, order[1], broken=True)
    assert names(mixture, 30) == [order[2] if name == order[1] else name for name in before]
    assert mixture.counts["question_failures"] == before.count(order[1]) > 0
    for name in order:
        mixture.sources[name] = Echo(mixture, name, broken=True)
    with pytest.raises(TaskError, match="is broken; .* is broken"):
        mixture.question(1, 1)


def test_a_grade_says_what_was_expected_and_what_was_found() -> None:
    (task,) = (task for task in TINY_TASKS if task.name == "gcd")
    mixture = TaskMixture([task])
    question = mixture.question(1, 0)
    assert isinstance(source := mixture.sources["gcd"], Answered)
    right = source.solution(question.ref)
    grade = mixture.grade(
        question.ref, [f"<answer>{right}</answer>", "<answer>x</answer>", right, "<answer>" + "9" * 500]
    )
    assert isinstance(grade, Grade)
    assert grade.rewards == (1.0, 0.0, 0.0, 0.0)
    assert (grade.expected, grade.found) == (right, (right, "x", "", ""))


def test_skip_passes_over_tasks_in_order() -> None:
    mixture = TaskMixture(TINY_TASKS[:3])
    assert len({mixture.question(1, 1, skip).ref.task for skip in range(3)}) == 3
    with pytest.raises(TaskError, match="every task was skipped"):
        mixture.question(1, 1, 3)


def test_no_other_task_takes_over_from_one_that_is_asked_alone() -> None:
    mixture = TaskMixture(TINY_TASKS[:3])
    name = TINY_TASKS[1].name
    mixture.sources[name] = Echo(mixture, name, broken=True)
    with pytest.raises(TaskError, match=f"{name} is broken"):
        mixture.question(1, 1, task=name)
    with pytest.raises(TaskError, match="every task was skipped"):
        mixture.question(1, 1, 1, TINY_TASKS[0].name)


def test_lists_that_make_no_mixture() -> None:
    with pytest.raises(TaskError, match="at least one task"):
        TaskMixture([])
    with pytest.raises(TaskError, match="two tasks are named 'gcd'"):
        TaskMixture([ReasoningGymTask(name="gcd")] * 2)


def test_a_task_not_listed_is_unknown() -> None:
    mixture = TaskMixture(TINY_TASKS[:2])
    ref = msgspec.structs.replace(mixture.question(1, 1).ref, task="poker")
    with pytest.raises(Refusal, match="unknown_task"):
        mixture.recall(ref)


def test_specs_carry_tasks_and_leave_defaults_out() -> None:
    tasks = (
        *TINY_TASKS,
        ReasoningGymTask(name="easy", dataset="gcd", weight=2, reward=RewardSettings(threshold=None)),
        DatasetTask(kind="dataset", name="gsm8k", path="openai/gsm8k", subset="main", match="numeric"),
    )
    specs = to_specs(tasks)
    assert specs[2].settings == {"options": TINY_TASKS[2].options}
    assert specs[-1].settings == {"path": "openai/gsm8k", "subset": "main", "match": "numeric"}
    carried = msgspec.msgpack.decode(msgspec.msgpack.encode(specs), type=tuple[TaskSpec, ...])
    assert from_specs(carried) == (*tasks[:-1], tasks[-1].model_copy(update={"public": True}))


def test_a_manifest_opens_no_local_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    paths = [str(tmp_path), str(tmp_path / "rows.jsonl"), "../rows", "~/rows", "rows.jsonl", "a/b/c"]
    tasks = [DatasetTask(kind="dataset", name=f"local-{n}", path=path) for n, path in enumerate(paths)]
    assert from_specs(to_specs([TINY_TASKS[0], *tasks])) == (TINY_TASKS[0],)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TaskSpec("a", "reasoning_gym", 0.0, {}), "weight"),
        (TaskSpec("a", "reasoning_gym", 1.0, {"option": {}}), "option"),
        (TaskSpec("a", "dataset", 1.0, {}), "path"),
    ],
)
def test_specs_that_are_no_tasks(spec: TaskSpec, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        from_specs([spec])


def test_configuration_and_pool_import_no_task_library() -> None:
    modules = "specs", "tiny", "mixture", "verification.pool"
    code = (
        f"import sys, {', '.join(f'swarm.environments.{module}' for module in modules)}\n"
        "print({'reasoning_gym', 'datasets', 'torch', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_tasks_of_a_run_that_take_too_much_memory_or_time_are_left_out() -> None:
    taken = [0]

    def make(config: TaskConfig, counts: Counter[str]) -> Source:
        taken[0] += 300 if config.name == "gcd" else 40
        return config.build(Context(counts))

    tasks = [ReasoningGymTask(name=name) for name in ("lcm", "gcd", "basic_arithmetic")]
    mixture = TaskMixture(tasks, True, make, Bounds(lambda: taken[0], 200))
    assert list(mixture.sources) == ["lcm"] and taken[0] == 340, "what is full is not filled further"
    assert "verification.tasks_bytes" in mixture.skipped["gcd"] and "basic_arithmetic" in mixture.skipped
    assert mixture.question(1, 0).ref.task == "lcm"
    with pytest.raises(TaskError, match="none of the tasks can be set up here: it took"):
        TaskMixture(tasks, True, make, Bounds(max_seconds=-1.0))
    assert len(TaskMixture(tasks, False, make, Bounds(lambda: 999, 200)).sources) == 3, "one's own tasks"


FORGETS = """
from swarm.environments.sources.lru import LruCache
from swarm.environments.sandbox.usage import TaskMemory

memory, cache = TaskMemory(2**24), LruCache(1_000)
memory.begin()
cache.put(0, b"x" * 2**20)
memory.forget_if_full()
assert len(cache) == 1 and memory.used() >= 2**20 // 2
for number in range(32):
    cache.put(number, bytes([number]) * 2**20)
memory.forget_if_full()
assert len(cache) == 0 and memory.used() < 2**24
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process its memory so")
def test_a_worker_forgets_what_it_can_make_again_when_its_memory_is_full() -> None:
    """In a process whose memory nothing else changes."""
    subprocess.run([sys.executable, "-c", FORGETS], check=True, timeout=120)
