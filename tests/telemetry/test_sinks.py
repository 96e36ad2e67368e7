"""Every sink for real: a file, a scrape over HTTP, event files read back; and what happens when one breaks."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from pydantic import ValidationError

from swarm.errors import ConfigError
from swarm.figures import finite
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, RoundEvent, encode
from swarm.telemetry.sinks import MetricsWriter, TelemetrySettings, scalars
from tests.telemetry.folders import until

from . import synthetic

MY_SINK = """
import time
from typing import ClassVar
from swarm.telemetry.sinks import SinkSettings

class Slow(SinkSettings):
    waits: ClassVar[bool] = True
    file: str
    pause_s: float = 0.0

    def open(self, out):
        return Writes(out / self.file, self.pause_s)

class Writes:
    def __init__(self, path, pause_s):
        self.path, self.pause_s = path, pause_s

    def write(self, event):
        time.sleep(self.pause_s)
        if self.pause_s < 0:
            raise OSError("no server")
        with self.path.open("a") as file:
            print(type(event).__name__, getattr(event, "round", ""), file=file)

    def close(self):
        with self.path.open("a") as file:
            print("closed", file=file)

class Broken(SinkSettings):
    def open(self, out):
        return 1 / 0
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MY_SINK)
    return str(tmp_path / "mine.py")


def last_round() -> RoundEvent:
    return [event for event in synthetic.peer_events() if isinstance(event, RoundEvent)][-1]


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_reported_once_and_leaves_the_other_sinks(
    mine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    settings = TelemetrySettings(sinks=({"kind": f"{mine}:Slow", "file": "seen"},))
    with MetricsWriter(tmp_path, settings) as writer:
        for event in synthetic.peer_events(num_rounds=3):
            writer.write(event)
    assert "RoundEvent 3" in (tmp_path / "seen").read_text()
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


def test_a_custom_sink_gets_all_events_in_order_though_it_is_slow(mine: str, tmp_path: Path) -> None:
    settings = TelemetrySettings(sinks=({"kind": f"{mine}:Slow", "file": "seen", "pause_s": 0.05},))
    began = time.monotonic()
    with MetricsWriter(tmp_path, settings) as writer:
        for event in synthetic.peer_events(num_rounds=10):
            writer.write(event)
        assert time.monotonic() - began < 0.05 * 10, "nothing waited for it"
    written = (tmp_path / "seen").read_text().splitlines()
    assert [line for line in written if line.startswith("Round")] == [f"RoundEvent {i}" for i in range(1, 11)]
    assert written[-1] == "closed"


def test_two_sinks_of_a_kind_both_write(mine: str, tmp_path: Path) -> None:
    sinks = tuple({"kind": f"{mine}:Slow", "file": name} for name in ("a", "b"))
    with MetricsWriter(tmp_path, TelemetrySettings(sinks=sinks)) as writer:
        writer.write(last_round())
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() != ""


def test_a_sink_that_fails_on_its_thread_is_reported_once(
    mine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = TelemetrySettings(sinks=({"kind": f"{mine}:Slow", "file": "no/folder"},))
    with MetricsWriter(tmp_path, settings) as writer:
        writer.write(last_round())
        until(lambda: bool(caplog.records) or writer.write(last_round()) is not None, "the failure is seen")
        writer.write(last_round())
    (error,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "mine.py:Slow failed and is switched off: FileNotFoundError" in error.getMessage()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mlflo", "did you mean mlflow"),
        ("{mine}:Nothing", "has no Nothing"),
        ("{mine}:Writes", "must be a subclass of swarm.telemetry.sinks.SinkSettings"),
    ],
)
def test_a_wrong_sink_is_named(kind: str, message: str, mine: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TelemetrySettings(sinks=({"kind": kind.format(mine=mine)},))


def test_a_sink_whose_code_fails_stops_the_start_in_one_line(mine: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Broken failed: ZeroDivisionError"):
        MetricsWriter(tmp_path, TelemetrySettings(sinks=({"kind": f"{mine}:Broken"},)))
