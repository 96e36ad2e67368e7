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
            if trained.media is not None and frozen.media is not None:
                frozen.media = trained.media.read_by(frozen.media.encoder)

    @contextlib.contextmanager
    def policy(self) -> Iterator[Policy]:
        """The reference; the trained policy must not be used within the block."""
        if self._trained.adapters is not None:
            with self._trained.adapters.disabled(), self._other_features():
                yield self._trained
        elif self._frozen is not None:
            yield self._frozen

    @contextlib.contextmanager
    def _other_features(self) -> Iterator[None]:
        """Within the block and after it, features of media are computed anew, if adapters decide them."""
        media = self._trained.media
        if media is None or not media.encoder.is_trained:
            yield
            return
        media.encoder.clear()
        yield
        media.encoder.clear()
