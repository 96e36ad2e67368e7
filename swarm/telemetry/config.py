"""Where a node sends its figures, besides its JSONL file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from swarm.settings import Settings


class TelemetrySettings(Settings):
    """The JSONL file is always written; the rest is opt-in."""

    prometheus_port: int | None = Field(None, ge=0, le=65535)
    """Serve /metrics on this port; 0 takes a free one."""
    prometheus_host: str = "127.0.0.1"
    """Address to serve it on; the default is reachable from this machine only."""
    prometheus_names: tuple[str, ...] = ()
    """Names by which Prometheus asks for it, besides localhost and IP addresses; others are refused, so that no website
    can read it through a browser on this machine."""
    ui: bool = False
    """Serve a page about this node for browsers on this machine (extra `ui`); `--ui` sets it. See
    docs/extras/page.md."""
    ui_port: int | None = Field(None, ge=1, le=65535)
    """Its port; default: that of the last start in this directory, 8787, or a free one."""
    tensorboard: bool = False
    """Write event files under `OUT/tensorboard`."""
    wandb_project: str | None = None
    """Log to this Weights & Biases project (extra `wandb`)."""
    wandb_mode: Literal["online", "offline"] = "offline"
    samples_bytes: int = Field(16 * 2**20, ge=0)
    """Keep samples of the groups and of what became of them in `samples.jsonl`; beyond this size the older half is
    deleted. 0: keep none. See docs/operate.md."""
    samples_per_outcome: int = Field(4, ge=1)
    """Most groups kept of a round for each outcome: trained on, no signal, or a reason of refusal."""
    worth_every_rounds: int = Field(2, ge=0)
    """A peer measures in every Nth round what others' groups do for it; 0: never. See docs/operate.md."""
    log_every_rounds: int = Field(5, ge=1)
    """Rounds between log lines when there is no terminal."""
