"""The measurement of both sides."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarks.common.children import emit
from benchmarks.updater.memory import PeakMemory
from benchmarks.updater.spec import Spec


class Stopwatch:
    """Seconds of each update and the peak memory of all of them."""

    def __init__(self, spec: Spec, model: PreTrainedModel) -> None:
        """Start measuring after loading."""
        _load_code(model)
        self._cuda = spec.device.startswith("cuda")
        self._memory = PeakMemory(spec.device)
        self._began, self._cpu_began = 0.0, 0.0

    def start(self) -> None:
        """Start of an update."""
        self._wait()
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def stop(self, model: torch.nn.Module, parameters_to: object) -> None:
        """End of an update: report it, and write the parameters to a file if one is given."""
        self._wait()
        seconds, cpu_seconds = time.perf_counter() - self._began, time.process_time() - self._cpu_began
        peak = self._memory.bytes()
        if parameters_to:
            torch.save([parameter.detach().cpu() for parameter in model.parameters()], Path(str(parameters_to)))
        emit("updated", seconds=seconds, cpu_seconds=cpu_seconds, peak_bytes=peak)

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


def _load_code(model: PreTrainedModel) -> None:
    """Load what torch imports at the first step, some 30 MiB, before the measurement."""
    model(torch.zeros(1, 2, dtype=torch.long, device=model.device)).logits.sum().backward()
    model.zero_grad(set_to_none=True)
    scalar = torch.nn.Parameter(torch.zeros(1))
    scalar.sum().backward()  # type: ignore[no-untyped-call]
    torch.optim.AdamW([scalar]).step()
