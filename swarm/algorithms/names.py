"""The names that objectives and their parts are chosen by; light, so that a configuration is read without torch."""

from __future__ import annotations

from typing import Literal

LossName = Literal["grpo", "dapo", "dr_grpo", "gspo", "gepo", "tis"]
AdvantageName = Literal["grpo", "dr_grpo", "rloo"]
ImportanceName = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
KlEstimatorName = Literal["k1", "k2", "k3"]
