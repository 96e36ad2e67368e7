"""Checkpoints that survive a kill at any moment: each is complete and verified, or ignored.

A checkpoint is written to a temporary directory, every file is flushed and hashed into a manifest, then the directory
is renamed. Hashes reveal a torn checkpoint, and the previous one is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import cast

import msgspec
import torch
from msgspec import Struct, structs
from safetensors import SafetensorError
from torch import Tensor

from swarm.errors import CheckpointError, TornCheckpoint
from swarm.files import sync, whole_directory
from swarm.policy.config import PolicySettings, local_name, origin
from swarm.policy.loading import Policy, load_policy
from swarm.received.corroboration import CorroborationState
from swarm.received.pool import PooledGroup
from swarm.sapo.curriculum import Bucket
from swarm.sapo.mixing import MixState
from swarm.sapo.watch import WatchState
from swarm.teaching import TeacherState
from swarm.telemetry.records import GroupCounts
from swarm.training.updater import PolicyUpdater

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
MODEL = "model"
OPTIMIZER = "optimizer.pt"
STATE = "state.msgpack"
CONFIG = "config.json"
FORMAT = 1


class TrainingState(Struct):
    """A node's state besides weights and optimizer.

    It holds no generator states: every random choice is a function of the node's seed and the round, so that a resumed
    round draws and samples like the lost one.
    """

    peer_id: str
    model: str
    """Name of the policy."""
    round: int
    """Rounds finished."""
    version: int
    """Version of the policy."""
    position: int
    """Questions drawn so far from the node's stream."""
    pool: list[PooledGroup]
    ledger: GroupCounts
    tokens_generated: int
    sequences: dict[str, int] = {}
    """Highest sequence number received from each peer: records from before a restart are not accepted again."""
    num_passed_over: int = 0
    """Number of versions so far that correspond to no update."""
    mix: MixState | None = None
    """A peer's mixing policy and the rounds it knows."""
    watch: WatchState | None = None
    """State of a peer's watch."""
    corroboration: CorroborationState | None = None
    """What a peer knows of the pushes of others' groups."""
    well: list[int] = []
    """Rounds of the healthy checkpoints, as `CheckpointStore` knows them: filled in by `save`."""
    origin: str = ""
    """Identity of the policy before training, see `swarm.policy.config.origin`: a checkpoint of another is refused.
    Empty in older checkpoints, of which the name decides."""
    role: str = ""
    """The role of the node: `peer` or `learner`. Empty in older checkpoints."""
    curriculum: dict[str, Bucket] = {}
    """A peer's success by kind of question, see `swarm.sapo.curriculum`."""
    workers: dict[str, CorroborationState] = {}
    """What a learner knows of the pushes of its workers' groups, by what they count as."""
    imitated: int = 0
    """Supervised steps that a peer took before its first round."""
    recorded: dict[str, int] = {}
    """Groups of a file (`pool.recorded`) that have joined a peer's rounds, by its path."""
    teachers: dict[str, TeacherState] = {}
    """What a peer knows of its teachers."""


class Earlier(Struct, frozen=True):
    """Role and model of a checkpoint."""

    round: int
    role: str
    """Empty if it does not say."""
    config: dict[str, object]
    """The node's configuration."""


class _Model(Struct):
    """The fields of a state that name its model."""

    model: str
    origin: str = ""


class _Progress(Struct):
    """The fields of a state that count progress."""

    round: int
    role: str = ""


def is_of(state: TrainingState | _Model, settings: PolicySettings) -> bool:
    """Whether a state is that of the policy that `settings` names."""
    if state.origin:
        return state.origin == origin(settings.model, settings.revision)
    return state.model == local_name(settings.model)


class CheckpointStore:
    """The checkpoints of one node, newest last; keeps the last few and those for a rollback."""

    def __init__(self, root: Path, keep: int = 2) -> None:
        """Checkpoints in `root`, which need not exist yet."""
        self.root = root
        self._keep = keep
        self._well: list[int] = []
        """Rounds of the last two that are healthy: written while the watch saw no decline."""

    def save(
        self, policy: Policy, updater: PolicyUpdater, state: TrainingState, config: str, well: bool = False
    ) -> Path:
        """Write a checkpoint of this round and remove the oldest beyond the number kept.

        `config` is the node's configuration as JSON, so that a checkpoint can be evaluated on its own. With `well` the
        checkpoint is healthy, and the previous healthy one becomes `good`. Raises `CheckpointError` when it cannot be
        written; the earlier ones stay.
        """
        final = self._path(state.round)
        healthy = [*self._well[-1:], state.round] if well else self._well
        weights, optimizer = snapshot(policy, updater)
        with written("checkpoint", final, "choose another directory with --out") as staging:
            policy.save(staging / MODEL, weights)
            torch.save(optimizer, staging / OPTIMIZER)
            (staging / STATE).write_bytes(msgspec.msgpack.encode(structs.replace(state, well=healthy)))
            (staging / CONFIG).write_text(config)
            _seal(staging)
        self._well = healthy
        self._prune(final)
        return final

    def resume(self, state: TrainingState) -> None:
        """Resume from a checkpoint with this state; its healthy checkpoint stays so."""
        self._well = [number for number in state.well if self._path(number).is_dir()]

    @property
    def good(self) -> Path | None:
        """The newest healthy checkpoint that was followed by another healthy one."""
        return self._path(self._well[0]) if len(self._well) == 2 else None

    def distrust(self) -> None:
        """Withdraw the newest healthy mark: that checkpoint may already be affected."""
        self._well = self._well[:1]

    def newest(self) -> Path | None:
        """The newest complete checkpoint; torn ones are logged and skipped.

        Raises `CheckpointError` for another format, and where all are torn: a fresh start in the same directory would
        remove them in the end.
        """
        torn = None
        for path in reversed(self._all()):
            try:
                verify(path)
            except TornCheckpoint as error:
                logger.warning("%s", error)
                torn = error
            else:
                return path
        if torn is not None:
            raise CheckpointError(
                f"{torn}, and there is no complete one before it: to start over, move {self.root} away, or choose "
                "another directory with --out"
            )
        return None

    def has_another_model(self, settings: PolicySettings) -> bool:
        """Whether the newest checkpoint, which is not verified, is of another policy; False without a readable one."""
        try:
            state = (self._all()[-1] / STATE).read_bytes()
            return not is_of(msgspec.msgpack.decode(state, type=_Model), settings)
        except (IndexError, OSError, msgspec.DecodeError):
            return False

    def earlier(self) -> Earlier | None:
        """Role and model of the newest checkpoint, unverified; None without a readable one."""
        try:
            newest = self._all()[-1]
            state = msgspec.msgpack.decode((newest / STATE).read_bytes(), type=_Progress)
            config = msgspec.json.decode((newest / CONFIG).read_bytes(), type=dict[str, object])
        except (IndexError, OSError, msgspec.DecodeError):
            return None
        return Earlier(state.round, state.role, config)

    def _all(self) -> list[Path]:
        return sorted(self.root.glob("round-*")) if self.root.is_dir() else []

    def _path(self, number: int) -> Path:
        return self.root / f"round-{number:08d}"

    def _prune(self, last: Path) -> None:
        """Remove what is not to be kept beside the checkpoint just written; those of later rounds are torn, or it
        would resume from them."""
        found = self._all()
        upto = [path for path in found if path <= last]
        kept = {*upto[-self._keep :], *map(self._path, self._well)}
        for path in found:
            if path not in kept:
                shutil.rmtree(path)
        for partial in self.root.glob(".round-*.partial"):  # left by a killed process
            shutil.rmtree(partial)


@contextmanager
def written(what: str, final: Path, instead: str) -> Iterator[Path]:
    """A directory to make and fill within the block, which then becomes `final`; see `whole_directory`.

    Raises `CheckpointError` where the disk has no room or cannot be written to: `what` names the directory, `instead`
    says what else to do.
    """
    try:
        with whole_directory(final) as staging:
            yield staging
    except (OSError, RuntimeError, SafetensorError) as error:  # torch says a full disk as a RuntimeError
        # `shutil.Error` has those of all files.
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else str(error).partition("\n")[0]
        raise CheckpointError(f"{what} {final} cannot be written: {reason}; free disk space, or {instead}") from error


def snapshot(policy: Policy, updater: PolicyUpdater) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Complete weights and optimizer state on the CPU. Every rank must call it; only the leader gets the result."""

    def whole(value: object) -> object:
        if isinstance(value, dict):
            return {key: whole(entry) for key, entry in value.items()}
        if not isinstance(value, Tensor):
            return value
        tensor = policy.ranks.whole(value.detach())
        return tensor.cpu() if policy.ranks.rank == 0 else tensor.new_empty(0)

    return cast(dict[str, Tensor], whole(policy.weights)), cast(
        dict[str, object], whole(updater.optimizer.state_dict())
    )


def restore(path: Path, updater: PolicyUpdater) -> TrainingState:
    """Load optimizer and state of a complete checkpoint; `load_policy` loads the weights from `path / MODEL`."""
    try:
        _load_optimizer(torch.load(path / OPTIMIZER, weights_only=True, map_location="cpu"), updater)
        state = msgspec.msgpack.decode((path / STATE).read_bytes(), type=TrainingState)
    except UnpicklingError as error:
        raise CheckpointError(f"checkpoint {path} was written with another update.optimizer: {error}") from error
    except (ValueError, RuntimeError, LookupError, TypeError, AttributeError, msgspec.DecodeError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} does not fit this node's model: {error}") from error
    updater.version, updater.num_passed_over = state.version, state.num_passed_over
    return state


@torch.no_grad()
def go_back(path: Path, policy: Policy, updater: PolicyUpdater, settings: PolicySettings) -> None:
    """Roll back weights and optimizer to an earlier checkpoint of this policy; the version still increases.

    `settings` are those that loaded the policy. Raises `CheckpointError`.
    """
    verify(path)
    alone = policy.ranks.size == 1
    settings = settings.model_copy(update={"device": "cpu"}) if alone else settings
    earlier = load_policy(settings, path / MODEL, ranks=None if alone else policy.ranks.for_another())
    version = updater.version
    restore(path, updater)
    updater.rise_to(version + 1)
    with policy.gate.change():
        for name, parameter in policy.weights.items():
            parameter.copy_(earlier.weights[name])


def _load_optimizer(saved: dict[str, dict[int, dict[str, Tensor]]], updater: PolicyUpdater) -> None:
    parameters = [parameter for group in updater.optimizer.param_groups for parameter in group["params"]]
    plain = all(type(value) is Tensor for entry in saved["state"].values() for value in entry.values())
    if saved["state"] and plain != isinstance(updater.optimizer, torch.optim.AdamW):
        bits = 32 if plain else 8
        raise CheckpointError(f"the checkpoint's optimizer has moments of {bits} bits: set update.optimizer to match")
    own = [{name: value for name, value in group.items() if name != "params"} for group in _groups(updater)]
    saved["state"] = {
        i: {name: updater.ranks.cut(value, parameters[i]) for name, value in entry.items()}
        for i, entry in saved["state"].items()
    }
    updater.optimizer.load_state_dict(saved)
    for group, settings in zip(_groups(updater), own, strict=True):
        group.update(settings)  # as configured now, not as when the checkpoint was written


def _groups(updater: PolicyUpdater) -> list[dict[str, object]]:
    return cast(list[dict[str, object]], updater.optimizer.param_groups)


def verify(path: Path) -> None:
    """Raises `TornCheckpoint` unless every file matches its hash, `CheckpointError` for another format."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        expected = dict(manifest["files"])
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TornCheckpoint(f"checkpoint {path} is torn: its manifest is missing or unreadable") from error
    if version != FORMAT:
        fix = "update swarm, or choose" if isinstance(version, int) and version > FORMAT else "choose"
        raise CheckpointError(
            f"checkpoint {path} has format {version}, this version reads {FORMAT}; {fix} another directory with --out"
        )
    for name, digest in expected.items():
        file = path / name
        if not file.is_file() or _digest(file) != digest:
            raise TornCheckpoint(f"checkpoint {path} is torn: {name} is missing or differs from what was written")


def _seal(directory: Path) -> None:
    """Flush every file, then write and flush the manifest with their hashes."""
    files = sorted(p for p in directory.rglob("*") if p.is_file())
    for file in files:
        sync(file)
    manifest = {"format": FORMAT, "files": {str(f.relative_to(directory)): _digest(f) for f in files}}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1))
    sync(directory / MANIFEST)
    for folder in (directory, *(p for p in directory.rglob("*") if p.is_dir())):
        sync(folder)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
