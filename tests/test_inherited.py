"""What child processes inherit of this one's variables."""

from __future__ import annotations

import asyncio
import os
import sysconfig
from pathlib import Path

import psutil
import pytest

from nodes.page import page_of
from swarm.inherited import inherited, spare_loopback, user_path
from swarm.judging.config import JudgeSettings
from swarm.judging.process import JudgeProcess
from swarm.net.hivemind.daemon import Daemon
from swarm.net.hivemind.directory import Directory

SECRETS = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "VLLM_API_KEY"),
    *("GITHUB_TOKEN", "SSH_AUTH_SOCK", "HF_OIDC_RESOURCE", "CUDA_TOKEN", "JUDGE_KEY", "MY_OWN_VARIABLE"),
)


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"secret of {name}")
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_HOME", "HTTPS_PROXY", "https_proxy", "LC_ALL"):
        monkeypatch.setenv(name, "plain")


def secrets_of(pid: int) -> set[str]:
    """The secrets in the environment of a live process."""
    return set(psutil.Process(pid).environ()) & set(SECRETS)


def test_groups_hold_what_is_needed_and_no_secret() -> None:
    told = dict.fromkeys(
        (*SECRETS, "PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "VLLM_USE_V1", "HF_HOME"), ""
    )
    told |= dict.fromkeys(("HF_HUB_OFFLINE", "HTTPS_PROXY", "no_proxy", "LD_LIBRARY_PATH"), "")
    told["TOKENIZERS_PARALLELISM"] = "false"
    assert inherited("base", told=told).keys() == {"PATH", "LC_ALL", "LD_LIBRARY_PATH"}
    everything = inherited("base", "home", "compute", "hub", told=told)
    assert everything.keys() == told.keys() - set(SECRETS)
    assert inherited("tokens", told=told).keys() == {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"}
    assert inherited(names=("JUDGE_KEY",), told=told).keys() == {"JUDGE_KEY"}


def test_another_python_gets_the_users_path_without_this_ones_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = sysconfig.get_path("purelib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", "here", packages, "/elsewhere")))
    assert user_path() == [str(tmp_path / "here"), packages, "/elsewhere"]
    assert user_path(Path("/other/bin/python")) == [str(tmp_path / "here"), "/elsewhere"]
    monkeypatch.delenv("PYTHONPATH")
    assert user_path() == []


@pytest.mark.network
def test_the_network_s_processes_have_no_secret() -> None:
    async def look() -> tuple[set[str], set[str], set[str]]:
        daemon = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",))
        try:
            async with Directory.running() as directory:
                names = set(psutil.Process(daemon.pid).environ())
                return secrets_of(daemon.pid), secrets_of(directory.pid), names
        finally:
            await daemon.stop()

    of_daemon, of_directory, names = asyncio.run(look())
    assert of_daemon == of_directory == set()
    assert "PATH" in names and not names & {"HOME", "HF_HOME", "HTTPS_PROXY", "CUDA_VISIBLE_DEVICES"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (JudgeSettings(model="judge", endpoint="https://judge.example/v1", api_key_env="JUDGE_KEY"), {"JUDGE_KEY"}),
        (JudgeSettings(model="judge", endpoint="http://127.0.0.1:1/v1"), set()),
        (JudgeSettings(model="tiny"), set()),
        (JudgeSettings(model="owner/model"), {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"}),
    ],
)
def test_a_judge_has_its_key_and_no_other(settings: JudgeSettings, expected: set[str]) -> None:
    judge = JudgeProcess(settings)
    try:
        assert secrets_of(judge.pid) == expected
        assert "HF_HOME" in psutil.Process(judge.pid).environ()
    finally:
        judge.kill()


def test_the_page_has_no_secret(tmp_path: Path) -> None:
    pytest.importorskip("swarm.extras.page")
    before = set(psutil.Process().children())
    with page_of(tmp_path, None, lambda line: None):
        (page,) = set(psutil.Process().children()) - before
        assert secrets_of(page.pid) == set()


@pytest.mark.parametrize(
    ("told", "spared"),
    [
        ({"HTTP_PROXY": "http://p:1"}, "localhost,127.0.0.1,::1"),
        ({"https_proxy": "http://p:1", "no_proxy": "a.example, localhost"}, "a.example,localhost,127.0.0.1,::1"),
        ({"all_proxy": "http://p:1", "NO_PROXY": "*"}, None),
        ({"PATH": "/bin"}, None),
    ],
)
def test_no_proxy_is_used_for_this_machine(told: dict[str, str], spared: str | None) -> None:
    before = dict(told)
    spare_loopback(told)
    assert told == (before if spared is None else before | {"no_proxy": spared, "NO_PROXY": spared})
