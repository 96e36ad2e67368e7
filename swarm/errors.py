"""Every error this project raises on purpose. A message says what was wrong, the value seen, and what to do."""

from __future__ import annotations

from swarm.foreign import clean
from swarm.reasons import Reason


class SwarmError(Exception):
    """Base of all errors below."""


class ConfigError(SwarmError):
    """A configuration that cannot be used; the command line exits with 2."""


class TaskError(SwarmError):
    """A task that cannot be set up: unknown name, bad option, missing column."""


class Refusal(SwarmError):
    """Something of another peer that was refused: a record, its sender, the question of a group.

    Bad rollouts are data: every refusal becomes a count, none of them stops a node.
    """

    def __init__(self, reason: Reason, detail: str = "", peer_id: str | None = None) -> None:
        """`reason` is what it is counted under, `detail` for people, `peer_id` whom a good signature holds responsible.

        A detail quotes what was refused, so it is cleaned here, for every log and view.
        """
        detail = clean(detail)
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.peer_id = peer_id


class IdentityError(SwarmError):
    """An identity file that is unreadable or not Ed25519."""


class IdentityInUse(IdentityError):
    """The identity belongs to a node that is running."""


class BackupError(IdentityError):
    """A backup of an identity that is damaged, of another format, or whose passphrase does not fit."""


class TransportError(SwarmError):
    """The network stack failed in a way its own retries could not repair."""


class PeerUnreachable(TransportError):
    """A request to one peer failed or timed out."""


class DirectoryError(TransportError):
    """The directory of peers could not be asked this time."""


class DirectoryLost(DirectoryError):
    """The process that keeps the directory of peers is gone, or of no use any more; it can be started again."""


class PolicyError(SwarmError):
    """A model or tokenizer that cannot be loaded, or that do not fit each other."""


class SamplingError(ConfigError):
    """Sampling settings that no token could be sampled with, or a stop token that the tokenizer does not have."""


class EngineError(SwarmError):
    """A model that an engine cannot generate with, or that gives no numbers to sample from; or too little memory."""


class EngineCrashed(EngineError):
    """The process that generates is gone, or has said nothing for too long; it can be started again."""


class WeightsRefused(EngineError):
    """New weights that do not fit the policy; the old ones stay in use."""


class NonFiniteUpdates(SwarmError):
    """Too many optimizer steps in a row had a loss or gradient that was not finite."""


class OutOfMemory(SwarmError):
    """A single completion does not fit in memory; there is nothing left to cut."""


class SnapshotError(SwarmError):
    """Weights from elsewhere that cannot be what they are said to be."""


class CorruptChunk(SnapshotError):
    """A chunk that is not the one that the learner signed for."""


class CheckpointError(SwarmError):
    """A checkpoint that is missing, of another model, or made by an incompatible version."""


class TornCheckpoint(CheckpointError):
    """A checkpoint of which files are missing or damaged."""


class Interrupted(SwarmError):
    """The user asked to stop; raised where stopping leaves everything consistent."""
