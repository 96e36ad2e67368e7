"""Trackers for real: a scrape over HTTP, event files and stores read back."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import threading
import types
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from swarm.errors import ConfigError
from swarm.extras.trackers import mlflow
from swarm.extras.trackers.prometheus import MAX_CONNECTIONS, PrometheusSink
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import PauseEvent, ResumeEvent, RoundEvent
from swarm.telemetry.sinks import MetricsWriter, TelemetrySettings
from tests.telemetry import synthetic
from tests.telemetry.folders import events, until


def scrape(port: int) -> dict[tuple[str, str], float]:
    """(sample, label value) -> value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
        text = response.read().decode()
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def last_round() -> RoundEvent:
    return [event for event in synthetic.peer_events() if isinstance(event, RoundEvent)][-1]


def ask(port: int, host: str) -> tuple[int, bytes]:
    """Status and body for a request that names `host`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("GET", "/metrics", headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()


def port_of(writer: MetricsWriter) -> int:
    sink = writer.sink("prometheus")
    assert isinstance(sink, PrometheusSink)
    return sink.port


def test_prometheus_serves_the_ledger(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer:
        assert scrape(port_of(writer)) == {}
        for event in synthetic.peer_events():
            writer.write(event)
        port = port_of(writer)
        found = scrape(port)
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
        scrape(port)


def test_only_names_of_this_machine_are_answered(tmp_path: Path) -> None:
    settings = TelemetrySettings(prometheus_port=0, prometheus_names=("Node.example",))
    with MetricsWriter(tmp_path, settings) as writer:
        port = port_of(writer)
        writer.write(synthetic.peer_events()[0])
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "10.0.0.1", "[::1"):
            status, body = ask(port, host)
            assert status == 400 and b"swarm_" not in body, host
        for host in ("127.0.0.1", f"localhost:{port}", "[::1]:80", "node.example:9"):
            assert ask(port, host)[0] == 200


def test_a_server_for_other_machines_is_asked_by_its_address(tmp_path: Path) -> None:
    settings = TelemetrySettings(prometheus_port=0, prometheus_host="0.0.0.0")
    with MetricsWriter(tmp_path, settings) as writer:
        port = port_of(writer)
        assert [ask(port, host)[0] for host in ("172.18.0.2:9464", "evil.example")] == [200, 400]


def test_idle_connections_keep_no_scrape_away_and_have_few_threads(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer, ExitStack() as stack:
        port = port_of(writer)
        before = threading.active_count()
        for number in range(100):
            mute = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            mute.sendall(b"GET / HTTP/1.1\r\nX: " * (number % 2))
        assert {ask(port, "localhost")[0] for _ in range(20)} == {200}
        until(lambda: threading.active_count() <= before + MAX_CONNECTIONS, "the others have ended")


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "a", TelemetrySettings(prometheus_port=0)) as first:
        taken = TelemetrySettings(prometheus_port=port_of(first))
        with pytest.raises(
            ConfigError, match=f"cannot serve metrics on 127.0.0.1:{port_of(first)}.*telemetry.prometheus_port"
        ):
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
    (said,) = (done.stdout + done.stderr).splitlines()
    assert said.startswith("Weights & Biases: project p, offline; upload it with")
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


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the extra `wandb` is not installed")
@pytest.mark.parametrize(("has_login", "said"), [(True, "project p, online"), (False, "project p, offline; upload it")])
def test_wandb_is_online_with_a_login_and_says_so(
    has_login: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("wandb.login", lambda prompt: has_login)
    with caplog.at_level("INFO"), MetricsWriter(tmp_path, TelemetrySettings(wandb_project="p")):
        assert said in caplog.text


def test_prometheus_serves_the_last_figures_of_each_suite(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer:
        for event in (synthetic.suite(0, 0, 0.1), synthetic.suite(0, 5, 0.3), synthetic.suite(0, 0, 0.7, "other")):
            writer.write(event)
        url = f"http://127.0.0.1:{port_of(writer)}/metrics"
        with urllib.request.urlopen(url, timeout=120) as reply:
            lines = reply.read().decode().splitlines()
    assert 'swarm_eval{figure="pass@4",suite="arithmetic"} 0.3' in lines
    assert 'swarm_eval{figure="avg@4",suite="other"} 0.7' in lines


BOARD = Path(__file__).parents[3] / "examples" / "metrics" / "grafana" / "swarm.json"


def test_every_query_of_the_dashboard_is_about_what_a_node_serves(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, TelemetrySettings(prometheus_port=0)) as writer:
        for event in (*events(1, 20, 0.0), synthetic.suite(0, 20, 0.3)):
            writer.write(event)
        with urllib.request.urlopen(f"http://127.0.0.1:{port_of(writer)}/metrics", timeout=120) as reply:
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
        for event in events(1, 3, 0.0):
            writer.write(event)
        writer.write(PauseEvent(time=1.0, why="asked"))
        assert scrape(port_of(writer))["swarm_paused", ""] == 1
        writer.write(ResumeEvent(time=2.0, paused_s=1.0))
        assert scrape(port_of(writer))["swarm_paused", ""] == 0


def events_of(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Write three rounds to a sink in a process of its own, and run `code` after it."""
    path = synthetic.write(tmp_path / "source", synthetic.peer_events(num_rounds=3))
    program = f"""
import pathlib, sys
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.sinks import MetricsWriter, TelemetrySettings
source, out = map(pathlib.Path, sys.argv[1:])
{code}"""
    home = {**os.environ, "HOME": str(tmp_path), "MLFLOW_ALLOW_FILE_STORE": "true", "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "out")]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=home)


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="the extra `mlflow` is not installed")
def test_mlflow_reads_back_what_was_logged(tmp_path: Path) -> None:
    code = """
uri = (out / "mlruns").absolute().as_uri()
settings = TelemetrySettings(sinks=[{"kind": "mlflow", "uri": uri, "experiment": "e"}])
with MetricsWriter(out, settings) as writer:
    for event in PeerHistory(source).tail():
        writer.write(event)
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=uri)
(run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
history = client.get_metric_history(run.info.run_id, "reward/mean")
print(run.info.status, run.info.run_name, sorted(point.step for point in history), "reward/mean" in run.data.metrics)
"""
    done = events_of(tmp_path, code)
    assert done.stdout.split()[0] == "FINISHED" and done.stdout.rstrip().endswith("[1, 2, 3] True"), done


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="the extra `trackio` is not installed")
def test_trackio_keeps_what_was_logged_and_prints_nothing(tmp_path: Path) -> None:
    code = """
with MetricsWriter(out, TelemetrySettings(sinks=[{"kind": "trackio", "project": "p"}])) as writer:
    for event in PeerHistory(source).tail():
        writer.write(event)
"""
    done = events_of(tmp_path, code)
    assert done.stdout == ""
    (store,) = tmp_path.rglob("p.db")
    assert b"reward/mean" in b"".join(file.read_bytes() for file in store.parent.glob("p.db*"))


@pytest.mark.parametrize("kind", ["mlflow", "trackio"])
def test_a_missing_tracker_names_its_package(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == kind else find(name))
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ConfigError, match=f"{kind}, which is not installed: .*{kind}"):
        MetricsWriter(tmp_path, TelemetrySettings(sinks=({"kind": kind},)))


def test_mlflow_without_a_server_asks_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("mlflow")
    module.MlflowClient = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match="set its uri, or MLFLOW_TRACKING_URI"):
        MetricsWriter(tmp_path, TelemetrySettings(sinks=({"kind": "mlflow"},)))


def test_names_and_values_fit_into_mlflow() -> None:
    assert mlflow.flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "d": [1]}
