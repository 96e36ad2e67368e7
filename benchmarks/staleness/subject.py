"""What is trained: a policy with its tasks and sampling."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.common import halving
from swarm.config import NodeConfig
from swarm.engines.config import GenerationSettings
from swarm.environments.verification.inline import InlineVerifier
from swarm.policy.loading import Policy, load_policy
from swarm.types import Sampling


@dataclass(frozen=True)
class Subject:
    """A policy with its tasks and sampling."""

    load: Callable[[], Policy]
    """Loads the policy before the first update."""
    verifier: InlineVerifier
    sampling: Sampling
    generation: GenerationSettings
    about: str
    """For the notes."""
    digest: str
    """Names the folder of its finished cells."""


def counting_bits(recipe: halving.WarmStart, folder: Path, console: Console) -> Subject:
    """The toy of `benchmarks/common/halving.py`, warm-started once and stored in `folder`."""
    verifier = InlineVerifier([halving.TASK])
    digest = _digest(repr(recipe))
    start = folder / f"start-{digest}"

    def load() -> Policy:
        if not start.exists():
            console.print(f"warm start of {recipe.steps} steps")
            draft = start.with_name(f"{start.name}.partial")
            halving.warm_start(recipe, verifier, draft)
            draft.rename(start)
        return halving.load(start)

    sampling = Sampling(temperature=1.0, top_p=1.0, max_new_tokens=96)
    generation = GenerationSettings(max_batch_sequences=1024)
    return Subject(load, verifier, sampling, generation, "Counting 1 bits by halving a number", digest)


def configured(config: NodeConfig) -> Subject:
    """Policy, tasks and sampling of a node's configuration. Raises `TaskError`."""
    parts = [part.model_dump_json() for part in (config.policy, config.generation, *config.tasks)]
    tasks = ", ".join(task.name for task in config.tasks)
    return Subject(
        load=lambda: load_policy(config.policy),
        verifier=InlineVerifier(config.tasks),
        sampling=config.generation.sampling(),
        generation=config.generation,
        about=f"{config.policy.model} on {tasks}",
        digest=_digest("".join(parts)),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
