"""Settings of when a node works."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from swarm.schedule.hours import Window
from swarm.settings import Settings


def _readable(text: str) -> str:
    Window.parse(text)
    return text


Hours = Annotated[str, AfterValidator(_readable)]


class ScheduleSettings(Settings):
    """When the node works; otherwise it pauses between two rounds and stays a member. See docs/operate.md."""

    hours: tuple[Hours, ...] = ()
    """Local times of day at which it works, such as `22:00-07:00`; default: always."""
    only_on_ac: bool = False
    """Pause while the machine runs on its battery. A machine without a battery is always on AC power."""
    gpu_idle_s: float | None = Field(None, ge=0)
    """Work only when no other program has used an NVIDIA GPU for so many seconds, e.g. 300; needs `nvidia-smi`.
    Not in a container without the machine's process numbers, nor with several processes (torchrun)."""
