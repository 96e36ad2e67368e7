"""From which size on a CPU works faster in bfloat16: a whole round, generation and update, in both types."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.common.report import Row, row
from benchmarks.engine.ahead import QUICK, Load, Training, saved
from swarm.policy.devices import BFLOAT16_PARAMETERS, multiplies_bfloat16

LOADS = {"0.13 M": Load(16, 8, 32, 4), "25 M": Load(2, 8, 32, 2), "135 M": Load(2, 8, 16, 1)}
"""By size, in its order; rounds take longer than starting them."""
QUICK_SIZES = ("0.13 M",)


def dtypes(quick: bool, repeats: int) -> tuple[list[Row], list[str]]:
    """Processor seconds of a round in float32 and in bfloat16, and the least size from which bfloat16 gains."""
    rows: list[Row] = []
    gains: dict[str, float] = {}
    for size in QUICK_SIZES if quick else LOADS:
        seconds, speeds = _measured(size, QUICK if quick else LOADS[size], repeats)
        rows += [row(f"{size} parameters: a round in {dtype}", taken, "s") for dtype, taken in seconds.items()]
        rows += [row(f"{size} parameters: generation in {dtype}", found, "tokens/s") for dtype, found in speeds.items()]
        ratios = [slow / fast for slow, fast in zip(seconds["float32"], seconds["bfloat16"], strict=True)]
        gains[size] = statistics.median(ratios)
        rows.append(row(f"{size} parameters: a round in float32 against bfloat16", ratios, "x"))
        ratios = [fast / slow for slow, fast in zip(speeds["float32"], speeds["bfloat16"], strict=True)]
        rows.append(row(f"{size} parameters: generation in bfloat16 against float32", ratios, "x"))
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


def _measured(size: str, load: Load, repeats: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Processor seconds per round, and generated tokens per processor second, by dtype, measured in turns."""
    seconds: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    speeds: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    with saved(size) as model:
        nodes = {dtype: Training(model, load, dtype=dtype) for dtype in seconds}
        try:
            for _ in range(repeats):
                for dtype, node in nodes.items():
                    node.rounds_per_s(load.rounds)
                    seconds[dtype].append(node.own_s)
                    speeds[dtype].append(node.tokens_per_s())
        finally:
            for node in nodes.values():
                node.close()
    return seconds, speeds
