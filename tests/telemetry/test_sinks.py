"""Every sink for real: a file, a scrape over HTTP, event files read back; and what happens when one breaks."""

from __future__ import annotations

import http.client
import importlib.util
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from swarm.errors import ConfigError
from swarm.figures import finite
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.metrics_server import MAX_CONNECTIONS
from swarm.telemetry.records import METRICS_FILE, PauseEvent, ResumeEvent, RoundEvent, encode
from swarm.telemetry.sinks import MetricsWriter, TelemetrySettings, scalars
from tests.telemetry.folders import events, until

from . import synthetic


def last_round() -> RoundEvent:
    return [event for event in synthetic.peer_events() if isinstance(event, RoundEvent)][-1]


def scrape(port: int) -> dict[tuple[str, str], float]:
    """(sample, label value) -> value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
        text = response.read().decode()
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_each_event_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    events = synthetic.peer_events(num_rounds=3)
    history = PeerHistory(tmp_path / "out" / "metrics.jsonl")
    with MetricsWriter(tmp_path / "out", TelemetrySettings()) as writer:
        for event in events:
            writer.write(event)
            assert history.tail() == [event]


def test_appending_after_a_kill_loses_the_torn_line_only(tmp_path: Path) -> None:
    events = synthetic.killed_and_resumed()
    path = synthetic.write(tmp_path, events[:10], torn=encode(events[10])[:25])
    with MetricsWriter(tmp_path, TelemetrySettings()) as writer:
        for event in events[10:]:
            writer.write(event)
    history = PeerHistory(path)
    assert history.tail() == events
    assert history.ignored_lines == 1


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another output folder"):
        MetricsWriter(tmp_path / "file" / "out", TelemetrySettings())


def test_prometheus_serves_the_ledger(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer:
        assert writer.prometheus_port
        assert scrape(writer.prometheus_port) == {}
        for event in synthetic.peer_events():
            writer.write(event)
        found = scrape(writer.prometheus_port)
    event = last_round()
    assert found["swarm_round", ""] == event.round
    assert found["swarm_reward", ""] == pytest.approx(event.reward)
    for kind in ("generated", "shared", "received", "used_local", "used_external"):
        assert found["swarm_groups_total", kind] == event.groups[kind]
    for reason, n in event.groups["dropped"].items():
        assert found["swarm_dropped_total", reason] == n
    assert found["swarm_tokens_generated_total", ""] == event.tokens_generated
    assert found["swarm_stage_seconds", "update"] == 0.2
    assert {name: found["swarm_figure", name] for name in event.figures} == event.figures
    assert found["swarm_accuracy", ""] == pytest.approx(0.25, abs=0.02)
    with pytest.raises(OSError):
        scrape(writer.prometheus_port)


def test_only_names_of_this_machine_are_answered(tmp_path: Path) -> None:
    settings = TelemetrySettings(prometheus_port=0, prometheus_names=("Node.example",))
    with MetricsWriter(tmp_path, settings) as writer:
        assert (port := writer.prometheus_port)
        writer.write(synthetic.peer_events()[0])
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "10.0.0.1", "[::1"):
            status, body = ask(port, host)
            assert status == 400 and b"swarm_" not in body, host
        for host in ("127.0.0.1", f"localhost:{port}", "[::1]:80", "node.example:9"):
            assert ask(port, host)[0] == 200


def test_a_server_for_other_machines_is_asked_by_its_address(tmp_path: Path) -> None:
    settings = TelemetrySettings(prometheus_port=0, prometheus_host="0.0.0.0")
    with MetricsWriter(tmp_path, settings) as writer:
        assert (port := writer.prometheus_port)
        assert [ask(port, host)[0] for host in ("172.18.0.2:9464", "evil.example")] == [200, 400]


def test_idle_connections_keep_no_scrape_away_and_have_few_threads(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer, ExitStack() as stack:
        assert (port := writer.prometheus_port)
        before = threading.active_count()
        for number in range(100):
            mute = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            mute.sendall(b"GET / HTTP/1.1\r\nX: " * (number % 2))
        assert {ask(port, "localhost")[0] for _ in range(20)} == {200}
        until(lambda: threading.active_count() <= before + MAX_CONNECTIONS, "the others have ended")


def ask(port: int, host: str) -> tuple[int, bytes]:
    """Status and body for a request that names `host`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("GET", "/metrics", headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "a", TelemetrySettings(prometheus_port=0)) as first:
        taken = TelemetrySettings(prometheus_port=first.prometheus_port)
        with pytest.raises(ConfigError, match=f"telemetry.prometheus_port.*:{first.prometheus_port}"):
            MetricsWriter(tmp_path / "b", taken)


def test_tensorboard_files_read_back_without_the_rounds_a_resume_repeats(tmp_path: Path) -> None:
    events = synthetic.killed_and_resumed(num_rounds=40, checkpoint=20, lost=30)
    with MetricsWriter(tmp_path, TelemetrySettings(tensorboard=True)) as writer:
        for event in events:
            writer.write(event)
    read = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    rewards = read.Scalars("reward/mean")
    assert [scalar.step for scalar in rewards] == list(range(1, 41))
    expected = PeerHistory.read(tmp_path / "metrics.jsonl").series()
    assert [scalar.value for scalar in rewards] == pytest.approx([event.reward for event in expected])
    assert [scalar.step for scalar in read.Scalars("evaluate/gcd")] == [0, 40]
    assert {
        "update/external_groups",
        "drop/zero_advantage",
        "filter/zero_advantage",
        "loss",
        "gepo/outside_clip_ratio",
        "time/generate_s",
    } <= set(read.Tags()["scalars"])


def test_a_missing_wandb_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name))
    with pytest.raises(ConfigError, match="make install-wandb"):
        MetricsWriter(tmp_path, TelemetrySettings(wandb_project="p"))


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the extra `wandb` is not installed")
def test_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    """In a process of its own: the client finishes its file when the process ends."""
    path = synthetic.write(tmp_path / "source", synthetic.peer_events(num_rounds=3))
    code = (
        "import pathlib, sys\n"
        "from swarm.telemetry.sinks import TelemetrySettings\n"
        "from swarm.telemetry.history import PeerHistory\n"
        "from swarm.telemetry.sinks import MetricsWriter\n"
        "source, out = map(pathlib.Path, sys.argv[1:])\n"
        "with MetricsWriter(out, TelemetrySettings(wandb_project='p')) as writer:\n"
        "    for event in PeerHistory(source).tail():\n"
        "        writer.write(event)\n"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
    (run,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert b"reward/mean" in run.read_bytes()


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the extra `wandb` is not installed")
def test_wandb_online_without_a_login_is_refused_instead_of_asking(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from swarm.telemetry.sinks import TelemetrySettings\n"
        "from swarm.telemetry.sinks import MetricsWriter\n"
        "MetricsWriter(pathlib.Path(sys.argv[1]), TelemetrySettings(wandb_project='p', wandb_mode='online'))\n"
    )
    nobody = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "PATH": os.defpath}
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=nobody, stdin=subprocess.DEVNULL, timeout=600)
    assert "ConfigError: telemetry.wandb_mode is 'online'" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_reported_once_and_leaves_the_other_sinks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer:
        for event in synthetic.peer_events(num_rounds=3):
            writer.write(event)
        assert writer.prometheus_port
        assert scrape(writer.prometheus_port)["swarm_round", ""] == 3
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1 and "jsonl failed and is switched off" in errors[0].getMessage()


def test_importing_telemetry_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "import swarm.telemetry.nodes, swarm.telemetry.history, swarm.telemetry.ledger, swarm.telemetry.live\n"
        "import swarm.telemetry.records, swarm.telemetry.report, swarm.telemetry.sinks\n"
        "heavy = {'torch', 'matplotlib', 'rich', 'prometheus_client', 'tensorboard', 'wandb'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_figures_of_suites_have_conventional_names() -> None:
    found = scalars(synthetic.suite(0.0, 20, 0.25))
    assert found.keys() == {
        f"eval/{part}/{figure}"
        for part in ("arithmetic", "arithmetic/gcd", "arithmetic/lcm")
        for figure in ("avg@4", "pass@1", "pass@4")
    }
    assert set(found.values()) == {0.25}


def test_prometheus_serves_the_last_figures_of_each_suite(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer:
        assert writer.prometheus_port
        for event in (synthetic.suite(0, 0, 0.1), synthetic.suite(0, 5, 0.3), synthetic.suite(0, 0, 0.7, "other")):
            writer.write(event)
        url = f"http://127.0.0.1:{writer.prometheus_port}/metrics"
        with urllib.request.urlopen(url, timeout=120) as reply:
            lines = reply.read().decode().splitlines()
    assert 'swarm_eval{figure="pass@4",suite="arithmetic"} 0.3' in lines
    assert 'swarm_eval{figure="avg@4",suite="other"} 0.7' in lines


BOARD = Path(__file__).parents[2] / "examples" / "metrics" / "grafana" / "swarm.json"


def test_every_query_of_the_dashboard_is_about_what_a_node_serves(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer:
        assert writer.prometheus_port
        for event in (*events(1, 20, 0.0), synthetic.suite(0, 20, 0.3)):
            writer.write(event)
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.prometheus_port}/metrics", timeout=120) as reply:
            page = reply.read().decode()
    served: dict[str, set[str]] = {}
    figures = set()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            served.setdefault(sample.name, set()).update(sample.labels)
            figures |= {sample.labels["name"]} if sample.name == "swarm_figure" else set()
    panels = json.loads(BOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) >= 16
    for query in queries:
        named = re.findall(r"\bswarm_\w+", query)
        assert named and set(named) <= served.keys(), query
        assert set(re.findall(r"by \((\w+)\)", query)) <= served[named[0]], query
        assert set(re.findall(r'name="([^"]+)"', query)) <= figures, query
    asked = {name for query in queries for name in re.findall(r"\bswarm_\w+", query)}
    unasked = {"swarm_alone_since_seconds", "swarm_tokens_generated_total"}
    assert served.keys() - asked == unasked, "the rest has a panel"


def test_prometheus_tells_of_pauses(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer:
        assert writer.prometheus_port
        for event in events(1, 3, 0.0):
            writer.write(event)
        writer.write(PauseEvent(time=1.0, why="asked"))
        assert scrape(writer.prometheus_port)["swarm_paused", ""] == 1
        writer.write(ResumeEvent(time=2.0, paused_s=1.0))
        assert scrape(writer.prometheus_port)["swarm_paused", ""] == 0


def test_figures_of_a_users_updater_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    event = structs.replace(
        last_round(), figures=finite({"loss": np.float32(0.5), "kl": np.float64("nan")}), reward=0.5
    )
    with MetricsWriter(tmp_path, TelemetrySettings()) as writer:
        writer.write(event)
        writer.write(structs.replace(event, round=event.round + 1, reward=np.float32(0.25)))
    kept = PeerHistory.read(tmp_path / METRICS_FILE)
    assert kept.rounds[event.round].figures == {"loss": 0.5, "kl": None}
    assert kept.rounds[event.round + 1].reward == 0.25
