"""The core without its extras: a demo runs, and what needs an extra says so in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXTRAS = Path(__file__).parents[2] / "swarm" / "extras"
NAMES = sorted(path.parent.name for path in EXTRAS.glob("*/__init__.py"))
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(tuple(f"swarm.extras.{each}" for each in HIDDEN)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from nodes.cli import main
main()
"""
ASKED = {
    "audio_video": ("tasks", "[{kind: tones}]"),
    "judging": ("tasks", "[{kind: number_guessing, rewards: [{kind: judge, model: m, rubric: r}]}]"),
    "pictures": ("tasks", "[{kind: maze}]"),
    "poker": ("tasks", "[{kind: holdem}]"),
    "textarena": ("tasks", "[{kind: textarena, name: a, game: b}]"),
    "trackers": ("telemetry", "{tensorboard: true}"),
    "verifiers": ("tasks", "[{kind: verifiers, name: a, target: b:C}]"),
    "vllm": ("generation", "{vllm: {arguments: {quantization: fp8}}}"),
    "wasm": ("tasks", "[{kind: reasoning_gym, name: gcd, tool: python}]"),
}
"""What a user may ask of an extra: a field with its value."""


def run(hidden: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    code = HIDE.replace("HIDDEN", repr(hidden))
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_demo_of_text_runs_without_any_extra(tmp_path: Path) -> None:
    options = "--transport memory --peers 2 --rounds 2 --no-control --no-ui --no-live"
    ended = run(NAMES, "demo", *options.split(), "--out", str(tmp_path / "demo"))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "demo" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name in ASKED])
def test_what_needs_a_hidden_extra_says_so_in_one_sentence(name: str, tmp_path: Path) -> None:
    field, value = ASKED[name]
    (tmp_path / "run.yaml").write_text(f"{field}: {value}\n")
    ended = run([name], "config", "check", str(tmp_path / "run.yaml"))
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert f"needs swarm.extras.{name}, which this installation of swarm lacks" in line


LEARNER = "12D3KooWP9RZLWYuszakU4fyxta4PDyafN8nUVSAH1sgimKUpB9a"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["learn"],
        ["work", f"/ip4/192.0.2.2/tcp/4001/p2p/{LEARNER}"],
        ["join", f"--follow={LEARNER}"],
        ["plan", "--rollouts=64"],
        ["demo", "--mode=learner"],
    ],
)
def test_a_command_that_needs_a_hidden_extra_says_so_in_one_sentence(command: list[str], tmp_path: Path) -> None:
    started = [] if command[0] == "plan" else ["--out", str(tmp_path / "node")]
    ended = run(["learner"], *command, *started)
    assert ended.returncode == 2
    assert ended.stderr.strip() == "error: this needs swarm.extras.learner, which this installation of swarm lacks"
    assert not (tmp_path / "node").exists()
