"""What is made of a data set's files is bounded, whatever the files' own size."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psutil
import pytest

from swarm.environments.config import DatasetTask, ReasoningGymTask, VerificationSettings
from swarm.environments.sources import limits
from swarm.environments.sources.conversion import Conversion
from swarm.environments.sources.hf_datasets import store
from swarm.environments.sources.limits import Limits
from swarm.environments.sources.stated import stated_by
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError

from .bombs import COMPRESSED, ROWS, VALUE, lines, parquet, parquet_of_lists, wide

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


@pytest.mark.parametrize("what", [what for what in BOMBS if "columns" not in what and "list" not in what])
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
