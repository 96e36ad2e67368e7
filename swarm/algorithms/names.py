"""The names objectives and advantages are chosen by; light, so that a configuration is read without torch."""

from __future__ import annotations

from typing import Literal

LossName = Literal["grpo", "dapo", "dr_grpo", "gspo", "gepo", "tis"]
AdvantageName = Literal["grpo", "dr_grpo", "rloo"]
