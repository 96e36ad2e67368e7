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
for each in COMMANDS:
    sys.argv = ["swarm", *each]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, file=sys.stderr)
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


def run(hidden: list[str], *commands: list[str]) -> list[str]:
    """Run commands one after another in a process without these extras; what they write to the standard error, each
    followed by its exit code."""
    code = HIDE.replace("HIDDEN", repr(hidden)).replace("COMMANDS", repr(commands))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip().splitlines()


@pytest.mark.slow
def test_a_demo_of_text_runs_without_any_extra(tmp_path: Path) -> None:
    options = "--transport memory --peers 2 --rounds 2 --no-control --no-ui --no-live"
    assert run(NAMES, ["demo", *options.split(), "--out", str(tmp_path / "demo")])[-1] == "0"
    assert (tmp_path / "demo" / "summary.json").exists()


@pytest.mark.slow
def test_what_needs_a_hidden_extra_says_so_in_one_sentence(tmp_path: Path) -> None:
    wanted = {name: value for name, value in ASKED.items() if name in NAMES}
    for name, (field, value) in wanted.items():
        (tmp_path / f"{name}.yaml").write_text(f"{field}: {value}\n")
    said = run(NAMES, *(["config", "check", str(tmp_path / f"{name}.yaml")] for name in wanted))
    assert said[1::2] == ["2"] * len(wanted)
    for name, line in zip(wanted, said[::2], strict=True):
        assert f"needs swarm.extras.{name}, which this installation of swarm lacks" in line


LEARNER = "12D3KooWP9RZLWYuszakU4fyxta4PDyafN8nUVSAH1sgimKUpB9a"


@pytest.mark.slow
def test_a_command_that_needs_a_hidden_extra_says_so_in_one_sentence(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "node")]
    commands = [
        ["learn", *out],
        ["work", f"/ip4/192.0.2.2/tcp/4001/p2p/{LEARNER}", *out],
        ["join", f"--follow={LEARNER}", *out],
        ["plan", "--rollouts=64"],
        ["demo", "--mode=learner", *out],
    ]
    said = run(["learner"], *commands)
    sentence = "error: this needs swarm.extras.learner, which this installation of swarm lacks"
    assert said == [sentence, "2"] * len(commands)
    assert not (tmp_path / "node").exists()
