"""What is made of a data set's files is bounded, whatever the files' own size."""

from __future__ import annotations

import gzip
import threading
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from swarm.environments.config import DataSettings, VerificationSettings
from swarm.environments.conversion import limits
from swarm.environments.conversion.counting import Conversion, stated_by
from swarm.environments.conversion.limits import Limits
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.hf_datasets import store
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.verification.messages import Prepared
from swarm.environments.verification.pool import VerificationPool
from swarm.environments.verification.processes import Preparation
from swarm.errors import TaskError

from .altered import alter_workers
from .bombs import COMPRESSED, ROWS, VALUE, lines, parquet, parquet_of_lists, parquet_of_one_page, wide

MB = 2**20
GROWTH = 4
FOREIGN = Limits(rows=10_000, bytes=64 * MB, run_bytes=256 * MB, memory_bytes=512 * MB, growth=GROWTH)
OWN = Limits(rows=2**62, bytes=2**40, run_bytes=2**40, memory_bytes=2**40)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library's, of which it made constants when it was imported."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(limits, "SMALL_BYTES", 8 * MB)
    return tmp_path / "cache"


def task(folder: Path, name: str, content: bytes) -> DatasetTask:
    """On a folder with one file."""
    file = folder / "data" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return DatasetTask(kind="dataset", name="rows", path=str(folder / "data"))


def disk_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


BOMBS = {
    "a text that is stored once": ("train.parquet", parquet(64), "bytes of rows"),
    "a list of it": ("train.parquet", parquet_of_lists(64), "bytes of rows"),
    "rows that are stored once": ("train.parquet", parquet(100_000, "a"), "100000 rows"),
    "columns of one row each": ("train.jsonl", wide(400), "bytes of rows"),
    **{f"compressed: {name}": (name, compress(lines(64)), "bytes of rows") for name, compress in COMPRESSED.items()},
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_founders_data_set_that_grows_is_refused_in_one_sentence_and_leaves_nothing(
    what: str, tmp_path: Path, cache: Path
) -> None:
    name, content, seen = BOMBS[what]
    config = task(tmp_path, name, content)
    with pytest.raises(
        TaskError, match=rf"^task 'rows': .*{seen}.*, above the limit of \d+: leave the task out"
    ) as refused:
        store(config, Conversion(FOREIGN))
    assert "\n" not in str(refused.value) and "verification.data" in str(refused.value)
    assert disk_bytes(cache) < MB
    assert not list(cache.rglob("*.incomplete"))


@pytest.mark.parametrize("what", ["a text that is stored once", "rows that are stored once", "compressed: train.zip"])
def test_ones_own_may_grow(what: str, tmp_path: Path) -> None:
    name, content, _ = BOMBS[what]
    rows = store(task(tmp_path, name, content), Conversion(OWN))
    assert sum(part.count for part in rows.files) in (64, 100_000)


@pytest.mark.parametrize("name", ["train.jsonl", *COMPRESSED])
def test_an_honest_data_set_is_the_same_with_limits_and_without(name: str, tmp_path: Path) -> None:
    config = task(tmp_path, name, COMPRESSED.get(name, bytes)(ROWS))
    with_limits = store(config, Conversion(FOREIGN))
    assert [part.count for part in with_limits.files] == [20]
    content = Path(with_limits.files[0].path).read_bytes()
    Path(with_limits.files[0].path).parent.rename(tmp_path / "before")
    assert store(config) == with_limits
    assert Path(with_limits.files[0].path).read_bytes() == content


def test_what_files_state_of_themselves(tmp_path: Path) -> None:
    whole = lines(4)
    for name, compress in COMPRESSED.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(compress(whole))
        says_nothing = name.endswith(".bz2") or "/" in name
        expected = file.stat().st_size if says_nothing else len(whole)
        assert stated_by([file]).content == expected, name
    (tmp_path / "train.parquet").write_bytes(parquet(4_000))
    stated = stated_by([tmp_path / "train.parquet"])
    assert (stated.rows, stated.stored < 1_000) == (4_000, True)
    assert len(VALUE) <= stated.content < 2 * len(VALUE), "the text once: what the rows make of it is not stated"


@pytest.mark.slow
def test_a_pool_leaves_out_what_takes_too_much_and_serves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them took gigabytes. Memory is that of the largest process, with its libraries."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    alter_workers(ABORTS, tmp_path / "workers", monkeypatch)
    line = b'{"question": "' + b"a" * (300 * MB) + b'", "answer": "1"}\n'
    contents = {
        "copies.parquet": parquet(4_000),
        "list.parquet": parquet_of_lists(4_000),
        "page.parquet": parquet_of_one_page(1_500 * MB),
        "line.jsonl": gzip.compress(line, 1),
        "cell.csv": gzip.compress(b"question,answer\n" + b"a" * (300 * MB) + b",1\n", 1),
        "aborts.jsonl": lines(1, "aborts"),
        "good.jsonl": ROWS,
    }
    tasks: list[DatasetTask | ReasoningGymTask] = [ReasoningGymTask(name="gcd")]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        tasks.append(DatasetTask(kind="dataset", name=name.split(".")[0], path=str(tmp_path / name)))
    names = [each.name for each in tasks]
    with Peak() as peak, closing(VerificationPool(tasks, VerificationSettings(), lenient=True, files=names)) as pool:
        skipped = pool.wait_until_ready()
        assert skipped.keys() == {"copies", "list", "page", "line", "cell", "aborts"}
        for name, reason in skipped.items():
            assert reason.startswith(f"task {name!r}: ") and "\n" not in reason, reason
        assert {question.ref.task for question in pool.draw(0, 0, 16)} == {"gcd", "good"}
        assert pool.counters()["violations"] == 0
    assert peak.memory_bytes < 900 * MB
    assert disk_bytes(tmp_path / "hf") < MB


ABORTS = """
import os
from swarm.environments.sources.dataset import DatasetTask
honest = DatasetTask.store
DatasetTask.store = lambda config, *rest: os.abort() if config.name == "aborts" else honest(config, *rest)
"""
"""As a library in C++ that finds no memory."""


def prepared(*names: str, foreign: bool = True) -> Preparation:
    configs = [DatasetTask(kind="dataset", name=name, path="owner/name") for name in names]
    made = Preparation(configs, DataSettings(), foreign)
    made.begin()
    return made


def test_a_data_set_that_ends_its_process_twice_is_left_out_and_the_next_has_its_own_chances() -> None:
    made = prepared("one", "two", "three")
    assert not made.give_up("no Python", late=False), "the process never got as far as a data set"
    for wanted in (["one", "two", "three"], ["two", "three"], ["two", "three"], ["three"]):
        assert made.accept(Prepared())
        assert made.give_up("worker exited with -6", late=False)
        assert [config.name for config in made.wanted] == wanted
    assert made.unprepared["one"].startswith("task 'one': ") and "exited with -6" in made.unprepared["one"]


def test_a_founders_data_sets_have_all_time_together_and_own_ones_each() -> None:
    for foreign, wanted in ((True, []), (False, ["two"])):
        made = prepared("one", "two", foreign=foreign)
        assert made.accept(Prepared())
        before = made.deadline()
        assert (made.deadline() == before) == foreign
        made.give_up("it took over 900 s", late=True)
        assert [config.name for config in made.wanted] == wanted


def test_all_data_sets_of_a_run_have_one_budget(cache: Path) -> None:
    made = prepared("one", "two")
    assert made.begin().run_bytes == DataSettings().run_bytes
    assert made.accept(Prepared(unprepared={"one": "too much"}, written=3 * 2**30, ends=True))
    assert made.begin().run_bytes == DataSettings().run_bytes - 3 * 2**30
    assert made.accept(Prepared(written=2**50)) and made.begin().run_bytes == 0
    assert prepared("one", foreign=False).begin().growth is None


@pytest.mark.parametrize(
    "place", ["/etc/x.incomplete", "{cache}/../x.incomplete", "{cache}/link/x.incomplete", "{cache}/x"]
)
def test_nothing_is_removed_but_what_a_conversion_left_in_the_cache(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, elsewhere = tmp_path / "hf", tmp_path / "elsewhere"
    for folder in (hf, elsewhere / "x.incomplete", tmp_path / "x.incomplete", hf / "x", hf / "y.incomplete"):
        folder.mkdir(parents=True, exist_ok=True)
    (hf / "link").symlink_to(elsewhere)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(hf))
    made = prepared("one")
    assert made.accept(Prepared(unfinished=place.format(cache=hf))) == (place == "{cache}/x")
    made.give_up("", late=False)
    assert (elsewhere / "x.incomplete").exists() and (tmp_path / "x.incomplete").exists() and (hf / "x").exists()
    assert made.accept(Prepared(unfinished=str(hf / "y.incomplete")))
    made.give_up("", late=False)
    assert not (hf / "y.incomplete").exists()


class Peak:
    """Of this process's children, while the block lasts; without those that are still copies of it."""

    def __init__(self) -> None:
        self.memory_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process().cmdline()
        while not self._ended.wait(0.01):
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if child.cmdline() != own:
                        self.memory_bytes = max(self.memory_bytes, child.memory_info().rss)
