"""The specification of a measurement for both sides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

LEARNING_RATE = 3e-4
BETAS = (0.9, 0.98)
CLIP = (0.2, 0.28)
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class Spec:
    """A side; the first argument, as JSON."""

    folder: str
    """Folder of the workload."""
    device: str = "cpu"
    dtype: str = "float32"
    """Type of forward passes; weights are float32."""
    threads: int = 1
    settings: Mapping[str, int | bool] = field(default_factory=dict)
    """Settings of this side only."""

    @staticmethod
    def read(argument: str) -> Spec:
        """From the command line."""
        return Spec(**json.loads(argument))

    def as_argument(self) -> str:
        """For the command line."""
        return json.dumps({**asdict(self), "settings": dict(self.settings)})
