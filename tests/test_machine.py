"""Memory that is left: the machine's, or less within control groups; and memory that is returned."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from swarm.machine import available_bytes

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
