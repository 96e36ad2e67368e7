"""Layers of the sandbox that a machine may lack, worker directories, and a worker's environment variables."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from swarm.environments.config import VerificationSettings
from swarm.environments.sandbox import directories
from swarm.environments.sandbox.confinement import PROTECTIONS, in_words
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.pool import VerificationPool
from swarm.types import Grade
from tests.environments.altered import alter_workers

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems have limits and an empty environment")

NO_LANDLOCK = """
from errno import EOPNOTSUPP
from swarm.environments.sandbox import landlock
def refuse(*arguments):
    raise OSError(EOPNOTSUPP, "?")
landlock.confine = refuse
"""
NO_SECCOMP = """
import platform
platform.machine = lambda: "riscv64"
"""
NO_NAMESPACES = """
from errno import EPERM
from swarm import kernel
def refuse(*arguments):
    raise OSError(EPERM, "?")
kernel.unshare = refuse
"""
NO_SIGNALS_HELD = "import os\nos.kill = lambda *arguments: None\n"


OLDER_FILTERS = {
    "allows stacks": "_CONDITIONALLY['mmap'] = seccomp._Conditional((9, 222), (seccomp._Check(6, 33, (0, 32)),))",
    "allows mappings to grow": "_FREELY['mremap'] = (25, 216)",
}


def unprotected() -> dict[str, str]:
    """What a worker says, which must work all the same."""
    with closing(VerificationPool(TINY_TASKS[2:3], VerificationSettings())) as pool:
        pool.wait_until_ready()
        question = pool.draw(1, 0, 1)[0]
        assert isinstance(pool.grade([(question.ref, ["<answer>1</answer>"])])[0], Grade)
        return pool.unprotected()


@ON_LINUX
def test_without_landlock_files_are_said_to_be_in_reach_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = unprotected()
    alter_workers(NO_LANDLOCK, tmp_path, monkeypatch)
    assert unprotected() == {**here, "files": "Landlock: switched off in this kernel"}


@ON_LINUX
def test_without_a_filter_what_it_held_is_said_to_be_in_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = unprotected().get("files")
    alter_workers(NO_SECCOMP, tmp_path, monkeypatch)
    lacking = unprotected()
    assert lacking.get("files") == files
    assert lacking["processes"] == "seccomp: no numbers of system calls for riscv64"
    assert {"network", "memory"} < lacking.keys()


@ON_LINUX
def test_without_anything_workers_still_work_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alter_workers(NO_LANDLOCK + NO_SECCOMP + NO_NAMESPACES, tmp_path, monkeypatch)
    assert unprotected().keys() == PROTECTIONS.keys()


@ON_LINUX
def test_without_namespaces_everything_holds_that_held_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = unprotected()
    alter_workers(NO_NAMESPACES, tmp_path, monkeypatch)
    assert unprotected() == here


def test_a_system_that_is_no_linux_has_limits_and_says_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from types import SimpleNamespace as N; from swarm.environments.sandbox import confinement as c"
    alter_workers(f"{code}; c.sys = N(platform='darwin')", tmp_path, monkeypatch)
    lacking = unprotected()
    assert lacking["files"] == "Landlock: only Linux has it" and lacking["network"] == "seccomp: only Linux has it"


@ON_LINUX
def test_what_is_told_is_what_was_tried_not_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alter_workers(NO_SIGNALS_HELD, tmp_path, monkeypatch)
    assert unprotected()["signals"] == "seccomp: it does not hold"


@ON_LINUX
@pytest.mark.parametrize("hole", OLDER_FILTERS)
def test_memory_that_no_limit_counts_is_said_to_be_unbounded(
    hole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = unprotected()
    alter_workers(
        f"from swarm.environments.sandbox import seccomp\nseccomp.{OLDER_FILTERS[hole]}", tmp_path, monkeypatch
    )
    assert unprotected() == {"memory": "seccomp: it does not hold", **here}


def test_protections_in_words() -> None:
    assert in_words({}) == ", ".join(PROTECTIONS.values())
    assert in_words({"files": "Landlock: this kernel has none"}).endswith(
        "bounded memory; not kept from files (Landlock: this kernel has none)"
    )
    assert in_words(dict.fromkeys(PROTECTIONS, "?")).startswith("nothing; ")


def test_rooms_of_the_dead_are_swept_those_of_the_living_stay(tmp_path: Path) -> None:
    alive = directories.WorkerDirectories(tmp_path)
    kept = alive.new()
    dead = tmp_path / "swarm-verification-dead"
    (dead / "worker-1").mkdir(parents=True)
    (dead / "lock").touch()
    other = tmp_path / "swarm-verification-of-something-else"
    other.mkdir()
    directories.WorkerDirectories(tmp_path).close()
    assert kept.is_dir() and other.is_dir() and not dead.exists()
    alive.close()
    assert sorted(tmp_path.iterdir()) == [other]


def test_a_worker_is_told_nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "HTTPS_PROXY", "HF_ENDPOINT"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in directories.environment(tmp_path).values()
    assert directories.environment(tmp_path)["HOME"] == str(tmp_path)
    for_strangers = directories.download_environment(tmp_path, with_secrets=False)
    assert {name for name, value in for_strangers.items() if value == "secret"} == {"HTTPS_PROXY", "HF_ENDPOINT"}
    assert not (set(os.environ) & {"HF_TOKEN_PATH"}) and "HF_TOKEN_PATH" not in for_strangers
    own = directories.download_environment(tmp_path, with_secrets=True)
    assert own["HF_TOKEN"] == "secret" and own["HF_TOKEN_PATH"] == str(directories.token_file())


def test_caches_lie_where_the_libraries_look_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = Path.home() / ".cache" / "huggingface"
    assert directories.caches() == (home / "hub", home / "datasets")
    monkeypatch.setenv("HF_HOME", "/a")
    monkeypatch.setenv("HF_DATASETS_CACHE", "/b")
    assert directories.caches() == (Path("/a/hub"), Path("/b"))
