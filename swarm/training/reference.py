"""The initial policy, for the penalty `update.reference_kl`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from swarm.errors import PolicyError
from swarm.policy.loading import Policy


class Reference:
    """A frozen copy, or the trained policy with its adapters disabled, which needs no copy."""

    def __init__(self, trained: Policy, frozen: Policy | None) -> None:
        """`frozen` is the initial policy. Raises `PolicyError` when it is missing and there are no adapters."""
        if frozen is None and trained.adapters is None:
            raise PolicyError("update.reference_kl needs the initial model, got only the trained one")
        self._trained = trained
        self._frozen = frozen
        if frozen is not None:
            frozen.model.requires_grad_(False)

    @contextlib.contextmanager
    def policy(self) -> Iterator[Policy]:
        """The reference; the trained policy must not be used within the block."""
        if self._trained.adapters is not None:
            with self._trained.adapters.disabled():
                yield self._trained
        elif self._frozen is not None:
            yield self._frozen
