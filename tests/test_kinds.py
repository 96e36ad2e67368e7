"""What is plugged in: found by name, by its place in code or as an entry point, everywhere in the same way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodes.simulation.configs import Member
from nodes.simulation.in_memory import MemoryRun, Turns, take_turns
from swarm.algorithms.losses import LOSSES
from swarm.config import NodeConfig, load_config
from swarm.environments.config import TASK_LIST, TASKS, VerificationSettings
from swarm.environments.mixture import TaskMixture
from swarm.environments.rewards import REWARDS
from swarm.environments.specs import CODE, LOCAL, from_specs, left_out, to_specs, why_left_out
from swarm.environments.tools.base import TOOLS
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import ConfigError, TaskError
from swarm.kinds import FOREIGN, Kinds
from swarm.sapo.mixing.policies import POLICIES
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE

PLUGIN = '''
from swarm.algorithms.losses import Grpo
from swarm.environments.rewards import NamedReward
from swarm.environments.sources.generated import GeneratedTask, Made
from swarm.environments.tools.base import Tool
from swarm.sapo.mixing import Decision, MixPolicy

class Doubles(GeneratedTask):
    """Numbers to double."""

    highest: int = 4

    def make(self, chance):
        number = chance.number(1, self.highest, "number")
        return Made((), f"What is 2 * {number}?", str(2 * number))

class Short(NamedReward):
    name: str = "short"

    def scorer(self):
        return lambda completion: 1.0 if len(completion) < 10 else 0.0

class Echo(Tool):
    request = "You may ask the echo."
    version = "echo 1"

    def run(self, call):
        return call

class Half(MixPolicy):
    def __call__(self, history, candidates):
        return Decision(1, 1)

class Mine(Grpo):
    pass
'''
ENTRY_POINTS = """
[swarm.tasks]
doubles = plugged_in:Doubles
[swarm.rewards]
short = plugged_in:Short
[swarm.tools]
echo = plugged_in:Echo
[swarm.mixes]
half = plugged_in:Half
[swarm.losses]
mine = plugged_in:Mine
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that offers a thing of each sort: its module."""
    folder = tmp_path / "site"
    about = folder / "plugged_in-1.dist-info"
    about.mkdir(parents=True)
    (folder / "plugged_in.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Name: plugged-in\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder))
    yield folder / "plugged_in.py"
    sys.modules.pop("plugged_in", None)


def config(*tasks: dict[str, object], **values: object) -> NodeConfig:
    return load_config(None, {"tasks": list(tasks), **values}).config


def test_a_new_kind_of_task_learns_without_a_change_of_this_repository(package: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PLUGIN)
    tasks = [
        {"kind": "doubles", "name": "offered", "highest": 3, "rewards": [{"kind": "answer"}, {"kind": "short"}]},
        {"kind": f"{tmp_path}/own.py:Doubles", "name": "own"},
        {"kind": "doubles", "name": "with-tool", "tool": "echo"},
    ]
    fields = {"rounds": 2, "evaluation": {"num_questions": 4}, "mix": {"policy": "half", "local": 1, "external": 1}}
    made = config(*tasks, **fields, update={"objective": "mine"})
    folders = [tmp_path / f"peer-{number}" for number in range(2)]
    members = [Member(made.model_copy(update={"out": out, "seed": seed})) for seed, out in enumerate(folders)]
    turns = Turns()
    take_turns([MemoryRun(members, lambda: False, turns)], turns, lambda: False)
    rounds = PeerHistory.read(folders[1] / METRICS_FILE).rounds
    assert len(rounds) == 2 and rounds[2].groups["used_external"] > 0


def test_members_need_the_code_of_a_custom_kind(package: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PLUGIN)
    kind = f"{tmp_path}/own.py:Doubles"
    tasks = config({"kind": "doubles", "name": "offered"}, {"kind": kind, "name": "own", "highest": 9}).tasks
    offered, own = specs = to_specs(tasks)
    assert (offered.kind, own.kind) == ("doubles", LOCAL) and CODE in offered.settings and CODE in own.settings
    assert str(tmp_path) not in repr(specs)
    assert from_specs(specs, code={"own": kind}) == tasks
    assert "name it: --code.own" in str(why_left_out(own))
    assert left_out(specs, code={"own": kind}) == {}
    (tmp_path / "other.py").write_text(f"{PLUGIN}\n# a line more\n")
    with pytest.raises(TaskError, match="get the same code"):
        from_specs([own], code={"own": f"{tmp_path}/other.py:Doubles"})
    package.write_text(f"{PLUGIN}\n# a line more\n")
    assert "get the same code" in str(why_left_out(offered))
    assert "knows no tasks of the kind chess" in str(why_left_out(replace(offered, kind="chess")))


def test_the_place_of_a_kind_does_not_matter_and_its_code_does(package: Path, tmp_path: Path) -> None:
    digests = []
    for name, text in (("one.py", PLUGIN), ("two.py", PLUGIN), ("three.py", f"{PLUGIN}# more\n")):
        (tmp_path / name).write_text(text)
        task = config({"kind": f"{tmp_path}/{name}:Doubles", "name": "same"}).tasks
        digests.append(TaskMixture(task).question(1, 0).ref)
    offered = TaskMixture(config({"kind": "doubles", "name": "same"}).tasks).question(1, 0).ref
    assert digests[0] == digests[1] == offered != digests[2]


@pytest.mark.parametrize("kind", ["shutil:rmtree", "/tmp/x.py:Task", "os:system"])
def test_another_peer_names_no_code_by_its_place(kind: str) -> None:
    (plain,) = to_specs(config({"kind": "number_guessing"}).tasks)
    for spec in (
        replace(plain, kind=kind),
        replace(plain, settings={"rewards": [{"kind": kind}]}),
        replace(plain, settings={"tool": kind}),
    ):
        assert left_out([spec]).keys() == {"number_guessing"} and from_specs([replace(spec, kind=kind)]) == ()
    with pytest.raises(ValueError, match="must not name code by its place"):
        TASK_LIST.validate_python([{"kind": kind, "name": "x"}], context=FOREIGN)


def test_a_reward_of_this_node_alone_gets_into_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PLUGIN)
    task = {"kind": "number_guessing", "rewards": [{"kind": f"{tmp_path}/own.py:Short"}]}
    with pytest.raises(TaskError, match=r"entry point of the group swarm\.rewards"):
        to_specs(config(task).tasks)


@pytest.mark.parametrize("kinds", [TASKS, REWARDS, TOOLS, LOSSES, POLICIES], ids=lambda kinds: kinds.group)
def test_names_are_found_and_refused_in_the_same_words(kinds: Kinds[type], package: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("class Wrong:\n    pass\n")
    first = next(iter(kinds))
    with pytest.raises(ValueError, match=rf"must be one of {first}, .* got {first}x; did you mean {first}\?"):
        kinds.find(f"{first}x")
    with pytest.raises(ValueError, match="must be a subclass of swarm"):
        kinds.find(f"{tmp_path}/own.py:Wrong")
    with pytest.raises(ValueError, match=r"has no Wron; did you mean Wrong\?"):
        kinds.find(f"{tmp_path}/own.py:Wron")
    offered = {"tasks": "doubles", "rewards": "short", "tools": "echo", "losses": "mine", "mixes": "half"}
    name = offered[kinds.group.removeprefix("swarm.")]
    assert kinds.find(name) is kinds.find(f"plugged_in:{kinds.find(name).__name__}")
    assert all(issubclass(each, object) for each in kinds.values()) and name not in kinds


def test_a_wrong_field_of_a_custom_kind_is_named(package: Path) -> None:
    with pytest.raises(ConfigError, match=r"task a: highst .*there is no such field; did you mean highest"):
        load_config(command_line=[("tasks", "[{kind: doubles, name: a, highst: 3}]")])


@pytest.mark.slow
def test_a_sandboxed_worker_runs_a_custom_kind(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    tasks = config({"kind": "doubles", "name": "offered"}, {"kind": "own.py:Doubles", "name": "own"}).tasks
    here = TaskMixture(tasks)
    with closing(VerificationPool(tasks, VerificationSettings())) as pool:
        for task in ("offered", "own"):
            assert pool.draw(1, 0, 1, task) == [here.question(1, 0, task=task)]
