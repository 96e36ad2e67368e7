"""Only good examples of others train."""

from __future__ import annotations

from typing import ClassVar

from swarm.sapo.mixing.policies.fixed import Fixed


class Positive(Fixed):
    """As `fixed`, but external completions of negative advantage have weight 0: `mix.external_negative_weight` is 0.

    Advantages are computed over the whole group first.
    """

    positive_only: ClassVar[bool] = True
