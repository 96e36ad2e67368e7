"""A run of Weights & Biases."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Literal

from pydantic import Field

from swarm.distribution import how_to_install
from swarm.errors import ConfigError
from swarm.telemetry.records import StartEvent
from swarm.telemetry.sinks import Measured, RunTracker, SinkSettings

logger = logging.getLogger(__name__)


class Wandb(SinkSettings):
    """A run of Weights & Biases, with its files in the output folder."""

    kind: Literal["wandb"] = "wandb"
    project: str = Field(min_length=1)
    """The project to log to."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """`online` needs a login, `offline` keeps the run on the disk for `wandb sync`; `auto` is online with a login."""

    def open(self, out: Path) -> WandbSink:
        """Check the package and the login; the run opens with the node's first event."""
        return WandbSink(out, self.project, self.mode)


class WandbSink(RunTracker):
    """A Weights & Biases run in the output folder."""

    def __init__(self, out_dir: Path, project: str, mode: Literal["auto", "online", "offline"]) -> None:
        """Raises `ConfigError` when the package is missing, or the login that mode `online` needs."""
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(
                f"telemetry.wandb_project is {project!r}, but Weights & Biases is not installed: "
                f"{how_to_install('wandb')}, or leave the field out"
            )
        problem = "" if mode == "offline" else _why_not_online()
        if mode == "online" and problem:
            raise ConfigError(f"telemetry.wandb_mode is 'online', but {problem}, or set it to 'offline'")
        online = mode != "offline" and not problem
        how = "online" if online else f"offline; upload it with `wandb sync {out_dir}/wandb/offline-run-*`"
        level = logging.WARNING if problem else logging.INFO
        logger.log(level, "Weights & Biases: project %s, %s%s", project, how, f" ({problem})" if problem else "")
        self._out_dir = out_dir
        self._project = project
        self._mode: Literal["online", "offline"] = "online" if online else "offline"

    def _begin(self, event: StartEvent) -> None:
        import wandb

        self._run = run = wandb.init(
            project=self._project,
            mode=self._mode,
            dir=str(self._out_dir),
            name=event.name or event.peer_id,
            group=event.run_id,
            config={"peer_id": event.peer_id, "resumed_from": event.resumed_from, **event.config},
            # The terminal belongs to the live view.
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Rounds repeat after a resume, which W&B's own step counter refuses: the round is an ordinary axis instead.
        run.define_metric("round")
        run.define_metric("*", step_metric="round")

    def _log(self, event: Measured, figures: dict[str, float]) -> None:
        self._run.log({"round": event.round, **figures})

    def _end(self) -> None:
        self._run.finish()


def _why_not_online() -> str:
    """Empty with a login that the server accepts. Never prompts."""
    import wandb

    try:
        if wandb.login(prompt=False):
            return ""
    except Exception as error:  # the client raises its own errors, and those of its service
        return f"the login failed ({' '.join(str(error).split())}): run `wandb login` again"
    return "this machine has no Weights & Biases login: run `wandb login` first"
