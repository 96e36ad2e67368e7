"""The configured I and J, candidates drawn uniformly."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.sapo.mixing.base import Candidate, Decision, History, MixPolicy


class Fixed(MixPolicy):
    """I = `mix.local`, J = `mix.external`, all candidates alike.

    Source: arXiv:2509.08721, section 3.
    """

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        return Decision(history.local, history.external)
