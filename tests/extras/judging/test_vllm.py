"""The judge behind vLLM's own OpenAI-compatible server."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from swarm.environments.judge import JudgeSettings
from swarm.extras.judging.endpoint import EndpointJudge
from swarm.extras.judging.prompts import JudgeSheet
from swarm.extras.judging.reward import JudgeReward
from tests.extras.judging.model import save_judge

PYTHON = os.environ.get("SWARM_TEST_VLLM_PYTHON")
START_S = 600.0
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="SWARM_TEST_VLLM_PYTHON names no Python with vLLM: make test-vllm"),
]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of a small judge called `wise`."""
    folder = tmp_path_factory.mktemp("judge")
    save_judge(folder / "model", head_dim=32)  # the smallest that vLLM has a kernel for
    template = folder / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model")]
    options = ["--served-model-name", "wise", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    options += ["--chat-template", str(template), "--enforce-eager", "--max-model-len", "1024"]
    options += ["--kv-cache-memory-bytes", str(2**28)]
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, *options], stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        _wait_for(server, f"http://127.0.0.1:{port}/health", folder / "log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(60)


def _wait_for(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text(errors="replace")[-2_000:]
        with suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.5)
    raise AssertionError(f"no answer in {START_S:g} s: {log.read_text(errors='replace')[-2_000:]}")


def sheet(mode: str, *texts: str) -> JudgeSheet:
    part = JudgeReward.model_validate(
        {"kind": "judge", "model": "wise", "rubric": "Be short.", "mode": mode, "max_new_tokens": 8}
    )
    return JudgeSheet(part, "Q?", texts)


def test_its_replies_become_numbers(endpoint: str) -> None:
    judge = EndpointJudge(JudgeSettings(model="wise", endpoint=endpoint), {})
    points, pairs = sheet("points", "a", "b"), sheet("pairs", "a", "b")
    told = judge.answer([*points.queries, *pairs.queries])
    assert told.numbers == (7, 7, None, None), "this judge replies to pairs with a score"
    assert told.unanswered == 0 and "did not end with its number" in told.error and told.tokens > 100


def test_a_prompt_that_is_too_long_for_it_is_no_number(endpoint: str) -> None:
    judge = EndpointJudge(JudgeSettings(model="wise", endpoint=endpoint), {})
    told = judge.answer(sheet("points", "word " * 1_500, "a").queries)
    assert told.numbers == (None, 7) and told.unanswered == 1 and "answered 400" in told.error
