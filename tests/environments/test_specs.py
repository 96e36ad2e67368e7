"""A manifest's tasks are a stranger's: no file of this machine, no name that is not one, nothing of the founder's."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from swarm.environments.digests import digest
from swarm.environments.sources.dataset import DatasetTask, is_hub_id
from swarm.environments.sources.hf_datasets import DatasetSource
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.specs import from_specs, is_founders_own, to_specs, why_left_out
from swarm.errors import TaskError
from swarm.types import TaskSpec


def spec(path: object, **settings: object) -> TaskSpec:
    return TaskSpec("rows", "dataset", 1.0, {"path": path, **settings})


@pytest.mark.parametrize("path", ["csv", "json", "text"])
def test_a_founder_reads_no_file_of_a_member(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\nsecret\n" * 10)
    (tmp_path / "rows.csv").write_text("text,answer\n" + "secret,1\n" * 20)
    (tmp_path / "rows.jsonl").write_text('{"text": "secret", "answer": "1"}\n' * 20)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TaskError, match="OWNER/NAME"):
        for config in from_specs([spec(path, prompt="text", answer="text")]):
            pytest.fail(f"it was asked {DatasetSource(config).question(0, 0).prompt!r}")  # type: ignore[arg-type]


def test_no_builder_of_the_library_can_be_named() -> None:
    from datasets import packaged_modules

    builders = {*packaged_modules._PACKAGED_DATASETS_MODULES, "cache", "generator", "spark", "sql"}
    assert len(builders) > 10
    for builder in builders:
        for path in (builder, f"hf://datasets/{builder}", f"{builder}::x", builder.upper()):
            assert is_founders_own(spec(path)) or _refused(spec(path))
            assert not is_hub_id(path)


def _refused(given: TaskSpec) -> bool:
    try:
        from_specs([given])
    except TaskError:
        return True
    return False


PATHS = [
    *("../..", "~/data", "/etc/passwd", "C:\\data", "a", "a/b/c", "a/../b", ".a/b", "a/.b", "a--b/c", "a/b.git"),
    *(
        "http://127.0.0.1/x.json",
        "file:///etc/passwd",
        "zip://*::/x.zip",
        "hf://datasets/a/b",
        "a/b::c",
        "a/b?c",
        "a//b",
    ),
    *("a/b\n", "a/\x1b]52", "ü/b", "a/" + "b" * 200, "", "x" * 5_000, "local"),
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_a_public_repository_or_nothing(path: str) -> None:
    assert is_founders_own(spec(path)) or _refused(spec(path))


@given(st.one_of(st.text(max_size=30), st.from_regex(r"[\w./-]{1,20}/[\w.-]{1,20}", fullmatch=True)))
def test_whatever_the_path_no_disk_is_looked_at(path: str) -> None:
    try:
        configs = from_specs([spec(path, public=False)])
    except TaskError:
        return
    for config in configs:
        assert isinstance(config, DatasetTask) and config.public and is_hub_id(config.path)
        assert not config.is_on_disk


@pytest.mark.parametrize(
    "settings",
    [
        {"data_files": "/etc/passwd"},
        {"data_dir": "."},
        {"trust_remote_code": True},
        {"storage_options": {}},
        {"revision": "../../../../etc/passwd"},
        {"revision": "x" * 1_000},
        {"subset": "../x"},
        {"subset": "\x1b]52"},
        {"split": "train" * 100},
        {"split": "../train"},
        {"prompt": "x" * 20_000},
        {"answer_pattern": "(" * 2_000},
    ],
)
def test_settings_lead_nowhere_else(settings: dict[str, object]) -> None:
    assert _refused(spec("owner/name", **settings))
    assert not _refused(spec("owner/name", revision="refs/convert/parquet", subset="main", split="train[:10%]+test"))


def test_whether_a_member_has_a_folder_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = from_specs([spec("owner/name")])
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert from_specs([spec("owner/name")]) == before != ()


def test_a_founders_paths_stay_at_home(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "a", "answer": "1"}\n')
    mine = DatasetTask(kind="dataset", name="mine", path=str(tmp_path / "rows.jsonl"), match="numeric")
    [published] = to_specs([mine])
    content = hashlib.sha256((tmp_path / "rows.jsonl").read_bytes()).hexdigest()
    assert published.settings == {"path": "local", "match": "numeric", "digest": digest("files", content)}
    assert tmp_path.name.encode() not in msgspec.msgpack.encode(published)
    assert from_specs([published]) == ()
    ref = DatasetSource(mine).question(0, 0).ref
    assert (ref.dataset, ref.revision) == ("local", published.settings["digest"])  # type: ignore[union-attr]


def copied(folder: Path, content: str = '{"question": "a", "answer": "1"}\n') -> Path:
    folder.mkdir()
    (folder / "rows.jsonl").write_text(content)
    return folder / "rows.jsonl"


def test_whoever_has_the_same_file_has_the_task_with_a_path_of_its_own(tmp_path: Path) -> None:
    theirs, mine = copied(tmp_path / "theirs"), copied(tmp_path / "mine")
    given = DatasetTask(kind="dataset", name="sums", path=str(theirs), weight=2, answer_pattern="1", find="last_number")
    specs = to_specs([given])
    assert why_left_out(specs[0]) == (
        "it is on local files of the run's founder; if you have a copy, give its path: --files.sums PATH"
    )
    assert from_specs(specs, {"sums": mine}) == (given.model_copy(update={"path": str(mine)}),)
    assert from_specs(specs, {"other": mine}) == ()


def test_another_file_is_an_error_that_names_both_digests(tmp_path: Path) -> None:
    theirs, mine = copied(tmp_path / "theirs"), copied(tmp_path / "mine", '{"question": "a", "answer": "2"}\n')
    [published] = to_specs([DatasetTask(kind="dataset", name="sums", path=str(theirs))])
    [other] = to_specs([DatasetTask(kind="dataset", name="sums", path=str(mine))])
    with pytest.raises(TaskError) as error:
        from_specs([published], {"sums": mine})
    for part in (str(mine), str(published.settings["digest"]), str(other.settings["digest"])):
        assert part in str(error.value)
    with pytest.raises(TaskError, match="no such file or folder: .*absent"):
        from_specs([published], {"sums": tmp_path / "absent.jsonl"})


def test_a_folder_has_the_digest_of_its_files_wherever_it_is(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b" / "c"]
    for folder in folders:
        (folder / "part").mkdir(parents=True)
        (folder / "train.csv").write_text("question,answer\na,1\n")
        (folder / "part" / "test.csv").write_text("question,answer\nb,2\n")
    specs = to_specs([DatasetTask(kind="dataset", name="sums", path=str(folders[0]))])
    assert len(from_specs(specs, {"sums": folders[1]})) == 1
    for added in (".DS_Store", "part/Thumbs.db", "desktop.ini", ".ipynb_checkpoints/train-checkpoint.csv"):
        (folders[1] / added).parent.mkdir(exist_ok=True)
        (folders[1] / added).write_text("not data")
    assert len(from_specs(specs, {"sums": folders[1]})) == 1, "what systems and editors add is not data"
    (folders[1] / "part" / "test.csv").write_text("question,answer\nb,3\n")
    with pytest.raises(TaskError, match="digest"):
        from_specs(specs, {"sums": folders[1]})


def test_a_founder_without_the_files_publishes_the_task_but_nobody_joins_it(tmp_path: Path) -> None:
    specs = to_specs([DatasetTask(kind="dataset", name="sums", path=str(tmp_path / "absent.jsonl"))])
    assert specs[0].settings == {"path": "local"}
    mine = copied(tmp_path / "mine")
    assert "without their digest" in str(why_left_out(specs[0], {"sums": mine}))
    assert from_specs(specs, {"sums": mine}) == ()


def test_a_copy_opens_no_other_file_and_is_not_read_before_the_digest_agrees(tmp_path: Path) -> None:
    mine = copied(tmp_path / "mine")
    [honest] = to_specs([DatasetTask(kind="dataset", name="sums", path=str(mine))])
    hostile = [{"subset": "../x"}, {"revision": "../../etc"}, {"split": "../train"}, {"data_files": "/etc/passwd"}]
    for settings in hostile:
        with pytest.raises(TaskError, match="cannot be set up here"):
            from_specs([TaskSpec("sums", "dataset", 1.0, {**honest.settings, **settings})], {"sums": mine})
    for claimed in ("", "0" * 32, "\x1b]52"):
        with pytest.raises(TaskError, match="digest") as error:
            from_specs([TaskSpec("sums", "dataset", 1.0, {**honest.settings, "digest": claimed})], {"sums": mine})
        assert str(error.value).isprintable()
    public = TaskSpec("sums", "dataset", 1.0, {"path": "owner/name"})
    assert [config.path for config in from_specs([public], {"sums": mine})] == ["owner/name"]  # type: ignore[union-attr]


def test_a_founder_is_told_what_members_would_refuse() -> None:
    with pytest.raises(TaskError, match="must be OWNER/NAME on the hub, got 'gsm8k'"):
        to_specs([DatasetTask(kind="dataset", name="sums", path="gsm8k")])


def test_a_path_too_long_for_the_disk_is_not_on_it() -> None:
    assert not DatasetTask(kind="dataset", name="rows", path="x" * 5_000).is_on_disk
    with pytest.raises(TaskError):
        DatasetSource(DatasetTask(kind="dataset", name="rows", path=f"{os.sep}{'x' * 5_000}"))


@pytest.mark.parametrize("name", ["", "\x1b]52;c;x\x07", "[/x]", "a\nb", "ü", "x" * 65])
def test_a_task_has_a_name_that_can_be_shown(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        ReasoningGymTask(name=name)
    with pytest.raises(TaskError) as error:
        from_specs([TaskSpec(name, "reasoning_gym", 1.0, {f"{name}\x1b": "x" * 10_000})])
    assert str(error.value).isprintable() and len(str(error.value)) <= 1_000
