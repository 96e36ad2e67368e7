"""Names of an objective's parts; separate, so that a configuration is read without torch."""

from __future__ import annotations

from typing import Literal

ImportanceName = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
KlEstimatorName = Literal["k1", "k2", "k3"]
BehaviourKlEstimatorName = Literal["cppo", "weighted_k3"]
