"""What docker-compose.yml, .env and Dockerfile say agrees; `make compose-test` runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from nodes.cli import watching
from swarm.config import load_config

ROOT = Path(__file__).parent.parent
METRICS = ROOT / "examples" / "metrics"
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def _settings() -> dict[str, str]:
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_every_setting_is_used_and_every_one_used_is_there() -> None:
    for_compose_itself = {"COMPOSE_PROFILES"}
    assert set(re.findall(r"\$\{(\w+)\}", COMPOSE)) == set(_settings()) - for_compose_itself


def _services() -> dict[str, dict]:
    filled = re.sub(r"\$\{(\w+)\}", lambda match: _settings()[match[1]], COMPOSE)
    services: dict[str, dict] = yaml.safe_load(filled)["services"]
    return services


NODES = [name for name, service in _services().items() if service["image"].startswith(_settings()["IMAGE"])]


@pytest.mark.parametrize("service", NODES)
def test_a_service_gives_its_node_a_valid_configuration(service: str) -> None:
    config = load_config(environment=_environment(service)).config
    mix = re.fullmatch(r"mix-(\d+)-(\d+)", service)
    assert (config.mix.local, config.mix.external) == ((int(mix[1]), int(mix[2])) if mix else (4, 4))
    assert config.name == (service if mix else "")
    assert config.rounds is None
    if service == "bootstrap":
        assert config.network.listen == ("/ip4/0.0.0.0/tcp/31337",)
        assert config.network.announce == ("/dns4/bootstrap/tcp/31337",)


def test_a_profile_starts_what_belongs_to_it() -> None:
    found: dict[str, set[str]] = {}
    for name, service in _services().items():
        for profile in service["profiles"]:
            found.setdefault(profile, set()).add(name)
    assert found == {
        "swarm": {"bootstrap", "peer"},
        "mixes": {"bootstrap", "mix-8-0", "mix-6-2", "mix-4-4", "mix-2-6"},
        "learner": {"learner", "worker"},
        "gpu": {"bootstrap", "peer-gpu"},
        "metrics": {"prometheus", "grafana"},
    }
    assert _settings()["COMPOSE_PROFILES"] == "swarm"


def test_every_container_has_limits_a_small_log_and_outlives_a_reboot() -> None:
    for name, service in _services().items():
        assert service["restart"] == "unless-stopped", name
        assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}, name
        assert (service["mem_limit"], service["cpus"]) == (0, 0), name


def test_every_container_has_a_volume_of_its_own_for_its_identity() -> None:
    """Also every replica of a service: a volume without a name is a container's."""
    homes = {}
    for name in NODES:
        mounted = {each["target"]: each for each in _services()[name]["volumes"]}
        homes[name] = mounted.pop("/data/runs").get("source")
        assert set(mounted) <= {"/data/hub", "/data/addresses"}
        serves = name in ("bootstrap", "learner")
        assert mounted["/data/addresses"].get("read_only", False) != serves, "who serves writes its address there"
        assert _environment(name).get("SWARM_NETWORK__ADDRESS_FILE") == (f"addresses/{name}" if serves else None)
    named = [name for name, source in homes.items() if source is not None]
    assert {name: homes[name] for name in named} == {"bootstrap": "bootstrap", "learner": "learner"}
    assert not any("deploy" in _services()[name] for name in named), "one container each"


def test_what_the_test_of_containers_runs_in_a_peer_is_there_and_writes_where_it_may() -> None:
    text = (ROOT / ".ci" / "compose" / "project.py").read_text()
    asked = set(re.findall(r'"swarm", "(\w+)"', text))
    assert {"runs", "site"} == asked <= {each.callback.__name__ for each in watching.app.registered_commands}
    service = _services()["peer"]
    (folder,) = re.findall(r'^SITE = "(/\w+)/', text, re.MULTILINE)
    assert service["read_only"] and service["tmpfs"] == [folder]


def test_nobody_can_log_in_to_grafana() -> None:
    told = _services()["grafana"]["environment"]
    assert told["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == told["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert (told["GF_AUTH_BASIC_ENABLED"], told["GF_AUTH_ANONYMOUS_ORG_ROLE"]) == ("false", "Viewer")


def test_images_are_named_by_exact_versions() -> None:
    for name in ("BASE_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE"):
        assert re.search(r":v?\d+\.\d+\.\d+", _settings()[name]), name


def test_every_pinned_package_has_its_digests_and_no_index_is_trusted_without_a_certificate() -> None:
    pins = set((ROOT / ".ci" / "constraints.txt").read_text().split())
    hashes = (ROOT / ".ci" / "hashes.txt").read_text()
    found = dict(re.findall(r"^(\S+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", hashes, re.MULTILINE))
    plain = [{re.sub(r"[-_.]+(?=.*==)", "-", each.lower()) for each in those} for those in (pins, found)]
    assert plain[0] - plain[1] == {"torch==2.13.0"} and plain[1] < plain[0]
    assert "--require-hashes" in (install := (ROOT / ".ci" / "install").read_text()) and "install_checked uv" in install
    for name in ("Dockerfile", "docker-compose.yml", ".env", ".ci/install", ".ci/compose/image.py"):
        assert "trusted" not in (ROOT / name).read_text().lower(), name


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
    assert re.fullmatch(r"\d+gb", _services()["peer-gpu"]["shm_size"])


def test_prometheus_asks_every_node_that_trains_where_it_serves_its_metrics() -> None:
    (job,) = yaml.safe_load((METRICS / "prometheus.yml").read_text())["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert set(found["names"]) == set(NODES) - {"bootstrap"}
    for name in found["names"]:
        telemetry = load_config(environment=_environment(name)).config.telemetry
        assert (telemetry.prometheus_port, telemetry.prometheus_host) == (found["port"], "0.0.0.0")


def test_what_the_profile_metrics_mounts_is_there_and_fits() -> None:
    services = _services()
    mounted = [line.split(":") for name in ("prometheus", "grafana") for line in services[name]["volumes"]]
    assert all((ROOT / source).is_file() for source, *_ in mounted if source.startswith("./"))
    source = yaml.safe_load((METRICS / "grafana" / "datasource.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((METRICS / "grafana" / "dashboards.yml").read_text())["providers"][0]
    assert any(target.startswith(provider["options"]["path"]) for _, target, *_ in mounted)
    board = json.loads((METRICS / "grafana" / "swarm.json").read_text())
    used = {target["datasource"]["uid"] for panel in board["panels"] for target in panel["targets"]}
    assert used == {source["uid"]}


def test_the_configuration_is_one_for_prometheus() -> None:
    if (tool := shutil.which("promtool")) is None:
        pytest.skip("no promtool here (on Debian: in the package prometheus)")
    checked = subprocess.run([tool, "check", "config", str(METRICS / "prometheus.yml")], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def _environment(service: str) -> dict[str, str]:
    return {name: str(value) for name, value in _services()[service]["environment"].items()}
