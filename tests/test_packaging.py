"""What is published holds what the checkout runs on."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
DATA = ("swarm/py.typed", "swarm/policy/tiny_tokenizer.json")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, built from a copy: a build leaves files beside the code."""
    pytest.importorskip("setuptools", "77", reason="the build backend is not installed here")
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for part in ("swarm", "nodes", "tests", "examples"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    built = subprocess.run([sys.executable, "-c", BUILD], cwd=copy, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return copy / "dist"


def _needed() -> set[str]:
    assets = {str(path.relative_to(ROOT)) for path in (ROOT / "swarm" / "extras" / "page" / "assets").iterdir()}
    documents = {str(path.relative_to(ROOT)) for path in (ROOT / "swarm" / "docs").glob("**/*.md")}
    recipes = {f"swarm/examples/{path.name}" for path in (ROOT / "examples").glob("*.yaml")}
    assert documents and recipes
    modules = {str(path.relative_to(ROOT)) for part in ("swarm", "nodes") for path in (ROOT / part).rglob("*.py")}
    return {*modules, *assets, *documents, *recipes, *DATA}


def test_the_wheel_has_every_module_the_types_and_the_command(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
        scripts = configparser.ConfigParser()
        scripts.read_string(archive.read(f"{info}/entry_points.txt").decode())
    assert {name for name in names if not name.startswith(info)} == _needed(), "and nothing else, tests least of all"
    assert dict(scripts["console_scripts"]) == {"swarm": "nodes.cli:main"}
    assert f"{info}/licenses/LICENSE" in names


def test_the_wheel_can_be_built_from_the_sdist(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert _needed() | {"pyproject.toml", "README.md", "LICENSE"} <= names
