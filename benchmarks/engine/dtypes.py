"""From which size on a CPU works faster in bfloat16: a whole round, generation and update, in both types."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.common.report import Row, row
from benchmarks.engine.ahead import QUICK, Load, Training, saved
from swarm.policy.loading import BFLOAT16_PARAMETERS, multiplies_bfloat16

LOADS = {"0.13 M": Load(16, 8, 32, 4), "25 M": Load(2, 8, 32, 2), "135 M": Load(2, 8, 16, 1)}
"""By size, in its order; rounds take longer than starting them."""
QUICK_SIZES = ("0.13 M",)


def dtypes(quick: bool, repeats: int) -> tuple[list[Row], list[str]]:
    """Processor seconds of a round in float32 and in bfloat16, and the least size from which bfloat16 gains."""
    rows: list[Row] = []
    gains: dict[str, float] = {}
    for size in QUICK_SIZES if quick else LOADS:
        seconds = _seconds(size, QUICK if quick else LOADS[size], repeats)
        rows += [row(f"{size} parameters: a round in {dtype}", taken, "s") for dtype, taken in seconds.items()]
        ratios = [slow / fast for slow, fast in zip(seconds["float32"], seconds["bfloat16"], strict=True)]
        rows.append(row(f"{size} parameters: float32 against bfloat16", ratios, "x"))
        gains[size] = statistics.median(ratios)
    has = "has" if multiplies_bfloat16() else "lacks"
    return rows, [
        f"Crossover: {crossover(gains)}. This CPU {has} AVX512-BF16 or AMX; with them `policy.dtype: auto` takes "
        f"bfloat16 from {BFLOAT16_PARAMETERS:,} parameters on. Random weights, one thread, processor time."
    ]


def crossover(gains: dict[str, float]) -> str:
    """The least size that gains together with all larger ones; `gains` are in the order of sizes."""
    sizes: Sequence[str] = list(gains)
    losing = [index for index, size in enumerate(sizes) if gains[size] <= 1]
    first = losing[-1] + 1 if losing else 0
    return f"bfloat16 is faster from {sizes[first]} parameters on" if first < len(sizes) else "bfloat16 is never faster"


def _seconds(size: str, load: Load, repeats: int) -> dict[str, list[float]]:
    """Processor seconds per round by dtype, measured in turns."""
    found: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    with saved(size) as model:
        nodes = {dtype: Training(model, load, dtype=dtype) for dtype in found}
        try:
            for _ in range(repeats):
                for dtype, node in nodes.items():
                    node.rounds_per_s(load.rounds)
                    found[dtype].append(node.own_s)
        finally:
            for node in nodes.values():
                node.close()
    return found
