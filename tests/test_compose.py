"""What docker-compose.yml, .env and Dockerfile say agrees; `make compose-test` runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from swarm.config import load_config

ROOT = Path(__file__).parent.parent
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def _settings() -> dict[str, str]:
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_every_setting_is_used_and_every_one_used_is_there() -> None:
    assert set(re.findall(r"\$\{(\w+)\}", COMPOSE)) == set(_settings())


@pytest.mark.parametrize("service", ["bootstrap", "peer", "peer-gpu"])
def test_a_service_gives_its_node_a_valid_configuration(service: str) -> None:
    filled = re.sub(r"\$\{(\w+)\}", lambda match: _settings()[match[1]], COMPOSE)
    environment = yaml.safe_load(filled)["services"][service]["environment"]
    config = load_config(environment={name: str(value) for name, value in environment.items()}).config
    assert (config.mix.local, config.mix.external) == (4, 4)
    assert config.rounds is None
    if service == "bootstrap":
        assert config.network.listen == ("/ip4/0.0.0.0/tcp/31337",)
        assert config.network.announce == ("/dns4/bootstrap/tcp/31337",)


def test_the_image_is_built_from_arguments_it_knows() -> None:
    declared = dict(re.findall(r"^ARG (\w+)=(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    arguments = yaml.safe_load(COMPOSE)["x-build"]["args"]
    assert set(arguments) <= set(declared)
    assert {name: _settings()[name] for name in arguments} == {name: declared[name] for name in arguments}


def test_the_build_sees_what_it_copies() -> None:
    context = (ROOT / ".dockerignore").read_text()
    for line in re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        for source in line.split():
            assert f"!{source}\n" in context
            assert (ROOT / source).exists()


@pytest.mark.parametrize("torch", ["cpu", "cuda"])
def test_the_image_for_gpus_keeps_a_compiler(torch: str) -> None:
    """Triton compiles at run time."""
    stages, last = {}, ""
    for start, body in re.findall(r"^FROM (.+)\n((?:(?!FROM ).*\n)*)", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        base, _, name = start.replace("${TORCH}", torch).partition(" AS ")
        last = stages.get(base, "") + body
        stages[name] = last
    assert ("g++" in last) == (torch == "cuda")


def test_a_gpus_peer_has_shared_memory_for_weights() -> None:
    filled = re.sub(r"\$\{(\w+)\}", lambda match: _settings()[match[1]], COMPOSE)
    assert re.fullmatch(r"\d+gb", yaml.safe_load(filled)["services"]["peer-gpu"]["shm_size"])
