"""One update of a policy, ours against TRL's `GRPOTrainer`: time and peak memory.

    python -m benchmarks.updater [--quick] [--out FILE] [--only NAME ...] [--repeats N] [--threads N] [--device cuda]

Same weights, same 64 completions of long-tailed length, float32 on both sides; each update in a separate process, the
two sides interleaved. TRL runs its real training loop with completions supplied through its `rollout_func`. Each of its
settings is tested once; then our defaults are compared with its fastest setting, and our least-memory settings with its
least-memory one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common.children import ChildFailed, ChildProcesses
from benchmarks.common.report import Report, row
from benchmarks.common.running import Result, at_least_one, conclude, measure, option_parser, scratch, wide_console
from benchmarks.updater.spec import Spec
from benchmarks.updater.workload import MODEL, Workload

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).parents[2]
PATIENCE_S = 3600.0
MEMORY = (
    "Peak memory: the process's largest resident memory during the updates above what it held with the model loaded "
    "(after malloc_trim); gradients and AdamW's state, three times the weights, are part of it. On a GPU, what torch "
    "allocated."
)
TIME = (
    "Time: from rewards to the end of the optimizer's step, after one update that is not timed. Ours includes reading "
    "the groups into rows, TRL's leaves out its padding and decoding. TRL computes no old log-probabilities here, as "
    "its generation and its optimizer step coincide; entropies, which it always computes, are part of its update. "
    "Speed-ups and parts are one a repeat."
)
PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "4090": 165.0}
"""Dense bfloat16 of the datasheets."""


@dataclass(frozen=True)
class Side:
    """One contender's settings."""

    name: str
    module: str
    settings: tuple[tuple[str, int | bool], ...] = ()


OURS = Side("ours", "ours")
OURS_LEAN = Side("ours, lean", "ours", (("micro_batch_tokens", 512), ("gradient_checkpointing", True)))


def trl(batch_size: int, checkpointing: bool) -> Side:
    """TRL with a number of completions per device, with or without gradient checkpointing."""
    name = f"batch {batch_size}{', checkpointing' if checkpointing else ''}"
    settings = (("per_device_train_batch_size", batch_size), ("gradient_checkpointing", checkpointing))
    return Side(name, "theirs", settings)


TRL_DEFAULT = trl(8, checkpointing=True)


@dataclass(frozen=True)
class Run:
    """The measurements of one process."""

    seconds: float
    """Median of the timed updates."""
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    quick: bool
    repeats: int
    threads: int
    device: str
    folder: Path

    def write(self, workload: Workload) -> tuple[Path, float]:
        """A folder with the workload, and the floating-point operations of an update."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        with ChildProcesses(folder) as processes:
            command = [sys.executable, "-m", "benchmarks.updater.workload", workload.as_argument(), str(folder)]
            child = processes.start("workload", command, self._environment())
            return folder, float(str(child.wait_for("written", PATIENCE_S)["flops"]))

    def run(self, side: Side, folder: Path, *, updates: int = 2, parameters_to: Path | None = None) -> Run:
        """Updates in a new process; the first is not timed unless it is the only one."""
        dtype = "bfloat16" if self.device.startswith("cuda") else "float32"
        spec = Spec(str(folder), self.device, dtype, self.threads, dict(side.settings))
        command = [sys.executable, "-m", f"benchmarks.updater.{side.module}", spec.as_argument()]
        with ChildProcesses(folder) as processes:
            child = processes.start(side.module, command, self._environment())
            child.wait_for("ready", PATIENCE_S)
            done = []
            for index in range(updates):
                child.tell("update", parameters_to=str(parameters_to) if parameters_to and not index else None)
                done.append(child.wait_for("updated", PATIENCE_S))

        def median(name: str) -> float:
            return statistics.median(float(str(each[name])) for each in (done[1:] or done))

        return Run(median("seconds"), median("cpu_seconds"), int(str(done[-1]["peak_bytes"])))

    def _environment(self) -> dict[str, str]:
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        return {**threads, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}


@dataclass
class Tried:
    """TRL's settings, each tested once."""

    runs: dict[Side, Run]
    failed: list[str]

    @property
    def fastest(self) -> Side:
        """The least CPU time, which other load disturbs least; on a GPU, the least time."""
        return min(self.runs, key=lambda side: self.runs[side].cpu_seconds)

    @property
    def leanest(self) -> Side:
        """The least memory."""
        return min(self.runs, key=lambda side: self.runs[side].peak_bytes)

    def note(self, what: str) -> str:
        """The figures of each setting."""
        figures = [
            f"{side.name}: {run.seconds:.3g} s ({run.cpu_seconds:.3g} s of CPU), {_mib(run):.0f} MiB"
            for side, run in self.runs.items()
        ]
        return f"TRL's settings for {what}, once each: {'; '.join([*figures, *self.failed])}."


def embedded(plan: Plan) -> Result:
    """0.13 M parameters with the embedded tokenizer."""
    candidates = [trl(size, False) for size in (1, 4, 8, 16, 64)] + [trl(1, True), TRL_DEFAULT]
    return _compare(plan, "0.13 M", "0.13 M parameters, embedded tokenizer", candidates, faster=3.0)


def small(plan: Plan) -> Result:
    """25 M parameters with a vocabulary of 32 000."""
    candidates = [trl(size, False) for size in (1, 4, 8)] + [trl(1, True), TRL_DEFAULT]
    return _compare(plan, "25 M", "25 M parameters, 32k vocabulary", candidates, faster=2.0)


def _compare(plan: Plan, model: str, what: str, candidates: Sequence[Side], faster: float) -> Result:
    workload = Workload(model, 16, 12, 24) if plan.quick else Workload(model)
    folder, _ = plan.write(workload)
    tried = _try(plan, folder, [trl(8, False), TRL_DEFAULT] if plan.quick else candidates)
    fastest, leanest = tried.fastest, tried.leanest
    runs: dict[Side, list[Run]] = {side: [] for side in (OURS, fastest, OURS_LEAN)}
    # Once, because an update takes minutes at 25 M.
    lean = [plan.run(leanest, folder, parameters_to=folder / f"{leanest.name}.pt")] * plan.repeats
    differences: list[float | None] = []
    for _ in range(plan.repeats):
        for side, done in runs.items():
            done.append(plan.run(side, folder, parameters_to=folder / f"{side.name}.pt"))
        differences.append(largest_difference(folder, [*runs, leanest]))
    ours, quick, ours_lean = (runs[side] for side in (OURS, fastest, OURS_LEAN))
    default = [tried.runs[TRL_DEFAULT]] * plan.repeats
    speed, memory = f"{what}: times as fast as TRL's", f"{what}: peak memory"
    leaner = f"{what}, gradient checkpointing and 512 tokens a pass"
    rows = [
        row(f"{what}: one update", _seconds(ours), "s", baseline=_seconds(quick)),
        row(f"{speed} fastest ({fastest.name})", _ratios(_seconds(quick), _seconds(ours)), "x", target=faster),
        row(f"{speed} fastest, CPU time", _ratios(_cpu_seconds(quick), _cpu_seconds(ours)), "x"),
        row(f"{speed} default, CPU time", _ratios(_cpu_seconds(default), _cpu_seconds(ours)), "x"),
        row(memory, _mibs(ours), "MiB", baseline=_mibs(quick)),
        row(f"{memory}, part of TRL's fastest", _ratios(_mibs(ours), _mibs(quick)), "", target=1 / 3, better="lower"),
        row(f"{memory}, part of TRL's default", _ratios(_mibs(ours), _mibs(default)), ""),
        row(f"{leaner}: peak memory", _mibs(ours_lean), "MiB", baseline=_mibs(lean)),
        row(
            f"{leaner}: peak memory, part of TRL's leanest ({leanest.name})",
            _ratios(_mibs(ours_lean), _mibs(lean)),
            "",
            target=1 / 3,
            better="lower",
        ),
        row(
            f"{leaner}: times as fast as TRL's leanest, CPU time",
            _ratios(_cpu_seconds(lean), _cpu_seconds(ours_lean)),
            "x",
        ),
        row(f"{what}: parameters, largest difference to TRL's", differences, "", target=1e-4, better="lower"),
    ]
    once = f"TRL's leanest and its default are measured once, the others {plan.repeats} times."
    return rows, [tried.note(what), once, TIME, MEMORY, f"Threads of each side: {plan.threads}."]


def flat(plan: Plan) -> Result:
    """Memory for growing batches with a constant token budget."""
    growth: list[float | None] = []
    peaks: list[list[int]] = []
    folders = [
        plan.write(Workload("0.13 M", sequences, 12, 24) if plan.quick else Workload("0.13 M", sequences))[0]
        for sequences in ((16, 32) if plan.quick else (64, 256, 1024))
    ]
    for _ in range(plan.repeats):
        peaks.append([plan.run(OURS, folder).peak_bytes for folder in folders])
        growth.append(100 * (max(peaks[-1]) / min(peaks[-1]) - 1))
    found = ", ".join(f"{peak / 2**20:.0f}" for peak in peaks[-1])
    what = "peak memory of 64, 256 and 1024 sequences, 0.13 M parameters, same token budget: largest over smallest"
    return [row(what, growth, "% more", target=10, better="lower")], [f"Of the last repeat: {found} MiB.", MEMORY]


def gpu(plan: Plan) -> Result:
    """0.5 B parameters, bfloat16, 64 sequences of 1024 tokens."""
    what = "GPU, 0.5 B parameters (Qwen2.5's shape), bfloat16, 64 x 1024 tokens"
    if not plan.device.startswith("cuda"):
        return [row(f"{what}: not measured", [], "tokens/s")], ["The GPU's rows need `--device cuda`, and a GPU."]
    completion, prompt = (24, 8) if plan.quick else (960, 64)
    workload = Workload("0.5 B", 64, completion, completion, (prompt, prompt), plan.device)
    folder, flops = plan.write(workload)
    candidates = [trl(size, checkpointing) for size in (4, 8, 16, 32) for checkpointing in (False, True)]
    tried = _try(plan, folder, candidates, updates=2)
    runs: dict[Side, list[Run]] = {OURS: [], tried.fastest: []}
    for _ in range(plan.repeats):
        for side, done in runs.items():
            done.append(plan.run(side, folder, updates=4))
    tokens = workload.sequences * (completion + prompt)
    ours, theirs = ([tokens / run.seconds for run in runs[side]] for side in runs)
    peak = _peak_tflops()
    used = [100 * flops / run.seconds / (peak * 1e12) if peak else None for run in runs[OURS]]
    theirs_used = [100 * flops / run.seconds / (peak * 1e12) if peak else None for run in runs[tried.fastest]]
    rows = [
        row(f"{what}: prompt and completion tokens", ours, "tokens/s", baseline=theirs),
        row(f"{what}: times as fast as TRL's fastest ({tried.fastest.name})", _ratios(ours, theirs), "x", target=1.5),
        row(f"{what}: model FLOP utilisation", used, "%", baseline=theirs_used, target=40),
        row(f"{what}: peak memory", _mibs(runs[OURS]), "MiB", baseline=_mibs(runs[tried.fastest])),
    ]
    note = (
        "Model FLOPs: six a weight and token, the head's for completion tokens alone, and causal attention; what is "
        f"computed again is not counted. Peak of this GPU: {peak or 'unknown'} TFLOP/s."
    )
    return rows, [tried.note(what), TIME, MEMORY, note]


def _try(plan: Plan, folder: Path, candidates: Sequence[Side], updates: int = 1) -> Tried:
    tried = Tried({}, [])
    for side in candidates:
        try:
            tried.runs[side] = plan.run(side, folder, updates=updates)
        except ChildFailed as error:
            tried.failed.append(f"{side.name}: {error}")
    if not tried.runs:
        raise ChildFailed(f"TRL did not run: {'; '.join(tried.failed)}")
    return tried


def largest_difference(folder: Path, sides: Sequence[Side]) -> float:
    """Largest difference of any parameter after each side's first update; raises `ChildFailed` when a side did not
    change them."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    start = list(AutoModelForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32).parameters())
    first, *others = [torch.load(folder / f"{side.name}.pt", weights_only=True) for side in sides]

    def largest(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
        return max(float((a.detach() - b.detach()).abs().max()) for a, b in zip(one, other, strict=True))

    if not all(largest(start, after) > 0 for after in (first, *others)):
        raise ChildFailed("an update left the parameters as they were")
    return max(largest(first, other) for other in others)


def _peak_tflops() -> float | None:
    import torch

    name = torch.cuda.get_device_name()
    return next((peak for known, peak in PEAK_TFLOPS.items() if known in name), None)


def _seconds(runs: Sequence[Run]) -> list[float]:
    return [run.seconds for run in runs]


def _cpu_seconds(runs: Sequence[Run]) -> list[float]:
    return [run.cpu_seconds for run in runs]


def _mib(run: Run) -> float:
    return run.peak_bytes / 2**20


def _mibs(runs: Sequence[Run]) -> list[float]:
    return [_mib(run) for run in runs]


def _ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(one, other, strict=True)]


MEASUREMENTS: dict[str, Callable[[Plan], Result]] = {"embedded": embedded, "small": small, "flat": flat, "gpu": gpu}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 130 when interrupted."""
    parser = option_parser("updater", __doc__, MEASUREMENTS)
    parser.add_argument("--repeats", type=at_least_one, help="of every measurement; default 3, with --quick 1")
    parser.add_argument("--threads", type=at_least_one, default=1, help="CPU threads of each side; default 1")
    parser.add_argument("--device", default="cpu", help="of `gpu`, which a CPU skips; default cpu")
    options = parser.parse_args(arguments)
    report, console = Report("updater", peer="TRL", versions={"trl": version("trl")}), wide_console()
    names = options.only or [name for name in MEASUREMENTS if options.device == "cpu" or name == "gpu"]

    def take() -> int:
        with scratch() as folder:
            repeats = options.repeats or (1 if options.quick else 3)
            plan = Plan(options.quick, repeats, options.threads, options.device, Path(folder))
            return measure(MEASUREMENTS, names, plan, report, console, quick=plan.quick)

    return conclude(take, report, options, console)


if __name__ == "__main__":
    sys.exit(main())
