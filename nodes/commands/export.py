"""`swarm export`: a checkpoint's policy as a whole model, with a model card, as GGUF, and on the Hugging Face hub."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct
from rich.console import Console

from nodes.commands.evaluate import find_checkpoint
from nodes.commands.exported import write_trained
from nodes.console import say
from swarm.config import NodeConfig
from swarm.errors import ConfigError
from swarm.kinds import extra
from swarm.policy.config import prompt_of
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, GroupCounts


class Wanted(Struct, frozen=True):
    """What to make of a checkpoint, besides a directory that `from_pretrained` loads."""

    gguf: tuple[str, ...] = ()
    """Types of GGUF files."""
    push: str | None = None
    """OWNER/NAME on the hub."""
    public: bool = False
    dry_run: bool = False
    """Say what would be written and sent, and keep nothing."""


class _State(Struct, frozen=True):
    """What a card needs of a checkpoint's state."""

    round: int
    version: int
    ledger: GroupCounts
    num_passed_over: int = 0
    role: str = ""
    imitated: int = 0


def export_checkpoint(path: Path, directory: Path, console: Console, wanted: Wanted | None = None) -> None:
    """Write a checkpoint's policy as a complete model, with adapters merged, and its suites with their local data.

    Raises `CheckpointError`, or `ConfigError` when `directory` exists, no GGUF file can be written of the model, or the
    hub refuses it.
    """
    from swarm.training.checkpoint import CONFIG, written

    wanted = wanted or Wanted()
    checkpoint = find_checkpoint(path)
    if directory.exists():
        raise ConfigError(f"{directory} already exists; choose a new directory")
    if wanted.gguf:
        extra("export.gguf").check_gguf()
    if wanted.push is not None:
        extra("export.hub").check_push(wanted.push, wanted.dry_run)
    config = NodeConfig.model_validate_json((checkpoint / CONFIG).read_bytes())
    with _dry(directory) if wanted.dry_run else written("model", directory, "export elsewhere") as staging:
        lines = _write(checkpoint, config, staging, directory.name, wanted)
        listed = sorted(
            (file.relative_to(staging), file.stat().st_size) for file in staging.rglob("*") if file.is_file()
        )
    _say(console, *lines)
    if wanted.dry_run:
        where = f"sent to {wanted.push} ({'public' if wanted.public else 'private'})" if wanted.push else "written"
        _say(console, f"would be {where}:", *(f"  {name}  {size:,} bytes" for name, size in listed))
        return
    _say(console, f"wrote the policy of {checkpoint} to {directory}")
    if wanted.push is not None:
        _say(console, f"sent to {extra('export.hub').push(directory, wanted.push, wanted.public)}")


@contextmanager
def _dry(directory: Path) -> Iterator[Path]:
    """A place for a model that is not kept, on the disk where it would be."""
    parent = next(path for path in directory.absolute().parents if path.is_dir())
    with TemporaryDirectory(prefix=".export-", dir=parent) as folder:
        yield Path(folder) / directory.name


def _write(checkpoint: Path, config: NodeConfig, staging: Path, name: str, wanted: Wanted) -> list[str]:
    """Write all files; a line for what people should know of them."""
    from swarm.policy.adapters import is_adapter_directory
    from swarm.policy.loading import load_policy
    from swarm.training.checkpoint import MODEL, STATE

    trained = config.policy
    if is_adapter_directory(checkpoint / MODEL):
        policy = load_policy(trained.model_copy(update={"device": "cpu", "dtype": "float32"}), checkpoint / MODEL)
        policy.merge()
        policy.save(staging)
    else:
        shutil.copytree(checkpoint / MODEL, staging)
    lines = write_trained(staging, prompt_of(trained), config)
    gguf = [f"{name}-{kind}.gguf" for kind in wanted.gguf]
    for kind, file in zip(wanted.gguf, gguf, strict=True):
        extra("export.gguf").write_gguf(staging, staging / file, kind)
    cards = extra("export.card")
    state = msgspec.msgpack.decode((checkpoint / STATE).read_bytes(), type=_State)
    run = cards.Run(
        name=wanted.push or name,
        base=cards.base_of(trained.model, trained.revision),
        config=config,
        role=state.role,
        rounds=state.round,
        updates=state.version - state.num_passed_over,
        groups=state.ledger,
        history=_history(checkpoint),
        gguf=gguf,
        imitated=state.imitated,
    )
    (staging / cards.CARD).write_text(cards.model_card(run), encoding="utf-8")
    return lines


def _history(checkpoint: Path) -> PeerHistory:
    """The run's metrics: in the node's directory, two levels above."""
    return PeerHistory.read(checkpoint.parent.parent / METRICS_FILE)


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        say(console, line)
