"""The code blocks of README and docs: Python runs, YAML is a configuration, commands are commands with their options.

A block that cannot be checked says why in a comment before it: `<!-- not run: REASON -->`. What changes a machine or
needs another one is parsed and not executed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.core import TyperGroup

from nodes.cli import app
from nodes.cli.options import rewrite
from swarm.config import load_config
from swarm.distribution import NAME, UNPINNED
from tests.nodes.processes import swarm

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
LANGUAGES = {"python", "yaml", "sh", "json"}
EXTRAS = metadata(NAME).get_all("Provides-Extra") or []
CHECKED = ("swarm", "make", "pip", "torchrun")
OTHERS = {".", "apt", "cp", "docker", "docker-compose", "git", "python", "python3", "sudo", "~/vllm/bin/pip"}
"""Programs of others; that a block names them is all that is looked at."""


class Block(NamedTuple):
    file: str
    line: int
    language: str
    why_not: str | None
    text: str


def _blocks() -> Iterator[Block]:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(str(path.relative_to(ROOT)), line, found["language"], found["why"], found["text"])


BLOCKS = list(_blocks())


def _each(language: str) -> pytest.MarkDecorator:
    chosen = [block for block in BLOCKS if block.language == language and block.why_not is None]
    assert chosen, f"there are blocks of {language}"
    return pytest.mark.parametrize("block", chosen, ids=lambda block: f"{block.file}:{block.line}")


def test_every_block_is_of_a_language_that_is_checked() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES
    fences = sum(len(re.findall(r"^```\w+$", path.read_text(), re.MULTILINE)) for path in (ROOT / "docs").rglob("*.md"))
    assert len(BLOCKS) >= fences, "none is passed over"


@_each("python")
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "block.py").write_text(block.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with swarm(tmp_path, module="block") as running:
        assert running.wait() == 0, running.text()


@_each("yaml")
def test_yaml_is_a_valid_configuration(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    file = tmp_path / "block.yaml"
    file.write_text(block.text)
    assert load_config(file).origins


@_each("sh")
def test_commands_are_commands_with_their_options(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for words in _commands(block.text):
        program = words[0]
        assert program in CHECKED or program in OTHERS, f"{program} is not a program that documents may use"
        if program == "swarm":
            _parse(words[1:])
        elif program == "torchrun":
            _parse(words[words.index("nodes.cli") + 1 :])
        elif program == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            extra = words[1].removeprefix("install-")
            assert words[1] in targets or (extra in EXTRAS and extra not in UNPINNED), f"make {words[1]}"
        elif program == "pip":
            pinned = (ROOT / ".ci" / "constraints.txt").read_text()
            assert all(word in pinned for word in words if "==" in word)
        for word in words:
            if word.startswith("examples/"):
                assert (ROOT / word.partition(":")[0]).exists(), word


def _commands(text: str) -> Iterator[list[str]]:
    """Each command's words, without comments and assignments before it."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        for part in " ".join(map(shlex.quote, words)).split("'&&'"):
            if part.strip():
                yield shlex.split(part)


def _parse(given: list[str]) -> None:
    """Parse as `swarm` does, down to the last subcommand, without running it. Raises what wrong use raises."""
    arguments, fields = rewrite(given)
    load_config(command_line=[(path, text) for path, text in fields if path not in ("network.bootstrap", "out")])
    command = typer.main.get_command(app)
    context = None
    with suppress(typer.Exit):  # --version, --help
        while isinstance(command, TyperGroup):
            context = command.make_context("swarm", list(arguments), parent=context)
            _, found, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
            assert found is not None
            command = found
        command.make_context("swarm", list(arguments), parent=context)


@pytest.mark.parametrize(
    "line",
    ["swarm joyn", "swarm join --modell tiny", "swarm join --mix.lokal 3", "swarm plan --rollouts many --train-s 1"],
)
def test_a_wrong_command_would_be_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r"[Nn]o such|no such field|valid"):
        _parse(shlex.split(line)[1:])
