"""Every error this project raises on purpose. A message says what was wrong, the value seen, and what to do."""

from __future__ import annotations

from swarm.reasons import Reason
from swarm.sanitize import clean


class SwarmError(Exception):
    """Base of all errors below."""


class ConfigError(SwarmError):
    """A configuration that cannot be used; the command line exits with 2."""


class TaskError(SwarmError):
    """A task that cannot be set up: unknown name, bad option, missing column."""


class Refusal(SwarmError):
    """Something from another peer was refused: a record, its sender, a group's question.

    Bad rollouts are data: the node counts each refusal and goes on.
    """

    def __init__(self, reason: Reason, detail: str = "", peer_id: str | None = None) -> None:
        """`reason` is the counter's key, `peer_id` the peer that a valid signature makes responsible.

        `detail` is for people and quotes foreign text, so it is cleaned here for every log and view.
        """
        detail = clean(detail)
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.peer_id = peer_id


class IdentityError(SwarmError):
    """An identity file that is unreadable or not Ed25519."""


class DirectoryOfAnotherRun(ConfigError):
    """A node's directory holds the state of another run."""


class IdentityInUse(IdentityError):
    """A running node already uses the identity."""


class BackupError(IdentityError):
    """A backup of an identity is damaged, has another format, or needs another passphrase."""


class TransportError(SwarmError):
    """The network stack failed in a way its own retries could not repair."""


class PeerUnreachable(TransportError):
    """A request to one peer failed or timed out."""


class NoConnection(PeerUnreachable):
    """The peer could not be dialled: no request was sent."""


class OtherRun(PeerUnreachable):
    """All peers that were asked are in another run than the one wanted."""


class DirectoryError(TransportError):
    """This query to the directory of peers failed."""


class DirectoryLost(DirectoryError):
    """The process that keeps the directory of peers has died or stopped responding; it can be restarted."""


class PolicyError(SwarmError):
    """A model or tokenizer cannot be loaded, or the two do not match."""


class SamplingError(ConfigError):
    """Sampling settings leave no token to sample, or name a stop token that the tokenizer lacks."""


class EngineError(SwarmError):
    """The engine cannot generate with this model, the model's logits are not finite, or memory is too small."""


class EngineCrashed(EngineError):
    """The generating process died or timed out; it can be restarted."""


class WeightsRefused(EngineError):
    """New weights do not fit the policy; the old ones stay in use."""


class EndpointError(EngineError):
    """An OpenAI-compatible server gave no reply of the right form."""

    def __init__(
        self,
        text: str,
        *,
        code: int | None = None,
        busy: bool = False,
        unreachable: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        """`code`: the HTTP status, if there was one. `busy`: another attempt may succeed, after `retry_after_s`."""
        super().__init__(text)
        self.code = code
        self.busy = busy
        self.unreachable = unreachable
        self.retry_after_s = retry_after_s


class NonFiniteUpdates(SwarmError):
    """Too many consecutive optimizer steps had a non-finite loss or gradient."""


class OutOfMemory(SwarmError):
    """Memory is too small for the model, its optimizer, or a single completion; nothing can be split further."""


class SnapshotError(SwarmError):
    """Received weights do not match their manifest or their format."""


class CorruptChunk(SnapshotError):
    """A chunk's digest differs from the one that the learner signed."""


class CheckpointError(SwarmError):
    """A checkpoint is missing, belongs to another model, or was written by an incompatible version."""


class TornCheckpoint(CheckpointError):
    """Files of a checkpoint are missing or damaged."""


class Interrupted(SwarmError):
    """The user asked to stop; raised only where the state is consistent."""
