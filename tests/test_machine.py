"""Cores and memory: the machine's, or less within control groups; and memory that is returned."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from swarm import machine
from swarm.machine import available_bytes, num_cores, threads_of_each

FREE = 10_000


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": FREE}))


def _group(folder: Path, **files: str | int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def _own(tmp_path: Path, lines: str) -> Path:
    file = tmp_path / "own"
    file.write_text(lines)
    return file


def test_without_control_groups_the_machine_decides(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path / "missing") == FREE


@pytest.mark.parametrize(("limit", "left"), [("max", FREE), ("8000", 5500), ("1000", 0)])
def test_version_2_counts_what_the_kernel_can_take_back(tmp_path: Path, limit: str, left: int) -> None:
    stat = "anon 2000\ninactive_file 500"
    _group(tmp_path / "groups" / "a", memory__max=limit, memory__current=3000, memory__stat=stat)
    own = _own(tmp_path, "0::/a\n")
    assert available_bytes(tmp_path / "groups", own) == left


def test_an_outer_group_may_be_the_narrowest(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    _group(groups / "pod", memory__max=4000, memory__current=1000, memory__stat="inactive_file 0")
    _group(groups / "pod" / "a", memory__max=9000, memory__current=1000, memory__stat="inactive_file 0")
    assert available_bytes(groups, _own(tmp_path, "0::/pod/a\n")) == 3000


def test_version_1_in_a_container_that_sees_its_group_as_the_root(tmp_path: Path) -> None:
    _group(
        tmp_path / "groups" / "memory",
        memory__limit_in_bytes=6000,
        memory__usage_in_bytes=4000,
        memory__stat="inactive_file 1\ntotal_inactive_file 1000",
    )
    own = _own(tmp_path, "5:cpuset:/docker/abc\n4:memory:/docker/abc\n0::/\n")
    assert available_bytes(tmp_path / "groups", own) == 3000


CORES = 16


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", CORES), ("200000 100000", 2), ("150000 100000", 2), ("20000 100000", 1), ("9900000 100000", CORES)],
)
def test_a_containers_processor_time_counts_in_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(CORES), raising=False)
    assert num_cores(tmp_path, tmp_path / "missing") == CORES
    _group(tmp_path / "second" / "a", cpu__max=quota)
    assert num_cores(tmp_path / "second", _own(tmp_path, "0::/a\n")) == cores
    time, period = quota.replace("max", "-1").split()
    _group(tmp_path / "first" / "cpu", cpu__cfs_quota_us=time, cpu__cfs_period_us=period)
    assert num_cores(tmp_path / "first", _own(tmp_path, "4:cpu,cpuacct:/docker/abc\n")) == cores


@pytest.mark.parametrize(
    ("cores", "most", "alone", "of_two"),
    [(1, 1, 1, 1), (2, 2, 2, 1), (3, 3, 3, 2), (4, 4, 3, 2), (8, 4, 4, 2), (16, 16, 15, 8), (64, 1, 1, 1)],
)
def test_processes_that_compute_at_once_share_the_cores_and_leave_one(
    monkeypatch: pytest.MonkeyPatch, cores: int, most: int, alone: int, of_two: int
) -> None:
    """`most` is less than the cores where two share their arithmetic, or where torchrun divides them."""
    monkeypatch.setattr(machine, "num_cores", lambda: cores)
    assert (threads_of_each(1, most), threads_of_each(2, most)) == (alone, of_two)


HELD_BY_THE_HEAP = """
import ctypes, psutil
from swarm.machine import return_free_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
blocks = [libc.malloc(65_536) for _ in range(4_001)]
for block in blocks:
    ctypes.memset(block, 1, 65_536)
for block in blocks[:-1]:  # the last keeps the heap from shrinking by itself
    libc.free(block)
before = psutil.Process().memory_info().rss
return_free_memory()
print(before - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps it")
def test_freed_memory_is_returned_to_the_system() -> None:
    out = subprocess.run([sys.executable, "-c", HELD_BY_THE_HEAP], capture_output=True, text=True, check=True).stdout
    assert int(out) > 200 * 2**20


ALLOCATES_AGAIN_AND_AGAIN = """
import resource
import numpy as np
from swarm.machine import keep_free_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        [np.ones(2**20, np.float32) for _ in range(32)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
before = faults()
keep_free_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns it")
def test_freed_memory_is_used_again() -> None:
    command = [sys.executable, "-c", ALLOCATES_AGAIN_AND_AGAIN]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after = map(int, out.split())
    assert before > 10 * after and after < 1_000


def test_processor_time_counts_child_processes_also_when_they_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LOOK_EVERY_S", 0.0)
    time = machine.ProcessorTime()
    before = time.seconds()
    work = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"done\n"
        running = time.seconds()
        child.communicate(b"\n")
    assert running - before >= 0.4
    assert time.seconds() >= running
