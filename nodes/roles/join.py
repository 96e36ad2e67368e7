"""`swarm join`: one peer that trains in a swarm, or alone while it finds none."""

from __future__ import annotations

from collections.abc import Callable

from nodes.roles.coordinator import NODES_OWN, OwnParts
from nodes.roles.hybrid import HybridNode
from nodes.roles.launch import Role
from nodes.roles.peer import PeerNode
from swarm.config import NodeConfig
from swarm.net.config import NetworkSettings
from swarm.net.records.identity import Identity
from swarm.policy.ranks import Ranks
from swarm.protocols import Transport, Verifier


def _plan(config: NodeConfig) -> list[tuple[str, str]]:
    generation, mix = config.generation, config.mix
    on_cpu, on_gpu = (config.num_questions(device) for device in ("cpu", "cuda"))
    questions = str(on_cpu) if on_cpu == on_gpu else f"{on_cpu} (on a GPU {on_gpu})"
    return [
        ("per round", f"{questions} questions x {generation.group_size} completions"),
        ("per update", f"{mix.local} local + {mix.external} external groups, {mix.policy} mix"),
        ("external groups", _most(config.network)),
        *([("trusted for their tools", ", ".join(config.trusted))] if config.trusted else []),
    ]


def _most(network: NetworkSettings) -> str:
    """The size limits of foreign records, which the run's founder may have set."""
    return f"at most {network.max_record_bytes / 1e6:g} MB, completions of {network.max_completion_chars} characters"


def make_peer(
    config: NodeConfig,
    identity: Identity,
    transport: Transport,
    verifier: Verifier,
    cancelled: Callable[[], bool],
    progress: Callable[[int, int], None] | None,
    ranks: Ranks | None,
    own: OwnParts = NODES_OWN,
) -> PeerNode:
    """A peer, which follows a learner if the configuration names one. Raises `SwarmError`."""
    make = HybridNode if config.follow.learner else PeerNode
    return make(config, identity, transport, verifier, cancelled, progress, ranks, own=own)


PEER = Role("peer", make_peer, _plan, "training alone")
