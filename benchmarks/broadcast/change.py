"""The size of the delta of one reinforcement learning step.

    python -m benchmarks.broadcast.change FOLDER MODEL UPDATES

The default objective and learning rate on a batch of the updater's benchmark. Event: changed, for each precision
(weights, full, change, seconds) of the last update.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import get_args

from benchmarks.common.children import emit
from benchmarks.updater.workload import MODEL, Workload, read_batch, write
from swarm.extras.learner.packing import Precision, pack
from swarm.extras.learner.snapshots.store import BLOCK_BYTES, apply_delta, delta
from swarm.files import RandomAccessFile
from swarm.policy.config import PolicySettings
from swarm.policy.loading import load_policy
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater


def main(folder: Path, model: str, num_updates: int) -> None:
    """Update, and report the last delta."""
    write(Workload(model, sequences=16, longest=256), folder)
    settings = {"model": str(folder / MODEL), "device": "cpu", "system_prompt": ""}
    policy = load_policy(PolicySettings.model_validate(settings))
    updater = PolicyUpdater(policy, UpdateSettings(minibatches=1), MixSettings(), temperature=1.0)
    groups = read_batch(folder)
    for _ in range(num_updates - 1):
        updater.update(groups, [])
    precisions: tuple[Precision, ...] = get_args(Precision)

    def packed(name: str, precision: Precision) -> RandomAccessFile:
        pack(path := folder / f"{name}-{precision}", policy.weights, policy.weights.items(), precision)
        return RandomAccessFile(path)

    before = {precision: packed("before", precision) for precision in precisions}
    report = updater.update(groups, [])
    assert not report.skipped
    for precision in precisions:
        after = packed("after", precision)
        began = time.perf_counter()
        change = delta(after, before[precision])
        seconds = time.perf_counter() - began
        assert change is not None
        restored = apply_delta(change, before[precision], BLOCK_BYTES)
        assert all(map(bytes.__eq__, restored, after.pieces(BLOCK_BYTES)))
        sizes = {"weights": policy.model.num_parameters(), "full": after.size, "change": change.size}
        emit("changed", precision=precision, **sizes, seconds=seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
