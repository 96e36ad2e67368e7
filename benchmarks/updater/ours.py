"""Our side: `python -m benchmarks.updater.ours SPEC`, then JSON lines.

commands  update (`parameters_to`: a file to write them to), quit
events    ready, and updated for each update
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks.common.children import commands, emit
from benchmarks.updater.spec import BETAS, CLIP, LEARNING_RATE, MAX_GRAD_NORM, Spec
from benchmarks.updater.stopwatch import Stopwatch
from benchmarks.updater.workload import MODEL, read_batch
from swarm.policy.config import PolicySettings
from swarm.policy.loading import load_policy
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater


def main(spec: Spec) -> None:
    """Load, then update on command."""
    torch.set_num_threads(spec.threads)
    policy = load_policy(
        PolicySettings.model_validate(
            {"model": str(Path(spec.folder) / MODEL), "device": spec.device, "dtype": spec.dtype, "system_prompt": ""}
        )
    )
    settings = UpdateSettings.model_validate(
        {
            "objective": "grpo",
            "advantage": "dr_grpo",
            "learning_rate": LEARNING_RATE,
            "betas": BETAS,
            "loss": {"clip_low": CLIP[0], "clip_high": CLIP[1]},
            "max_grad_norm": MAX_GRAD_NORM,
            "minibatches": 1,
            **spec.settings,
        }
    )
    updater = PolicyUpdater(policy, settings, MixSettings(), temperature=1.0)
    groups = read_batch(Path(spec.folder))
    stopwatch = Stopwatch(spec, policy.model)
    waiting = commands()
    emit("ready")
    while (command := waiting.get())["do"] == "update":
        stopwatch.start()
        updater.update(groups, [])
        stopwatch.stop(policy.model, command.get("parameters_to"))


if __name__ == "__main__":
    main(Spec.read(sys.argv[1]))
