"""An episode's own state of the process's global generators, which libraries draw from."""

from __future__ import annotations

import random

import numpy as np


class OwnRandomness:
    """In a `with` block, `random` and `numpy.random` continue this episode's stream; outside, the process's own.

    So neither other episodes nor the process before them change what an episode draws.
    """

    def __init__(self, seed: int) -> None:
        """`seed` is below 2^32."""
        self._state = random.Random(seed).getstate()
        self._numpy_state = np.random.RandomState(seed).get_state(legacy=False)

    def __enter__(self) -> None:
        """Go on with the episode's stream."""
        self._swap()

    def __exit__(self, *exc: object) -> None:
        """Keep it, and go on with the process's."""
        self._swap()

    def _swap(self) -> None:
        kept, kept_of_numpy = random.getstate(), np.random.get_state(legacy=False)
        random.setstate(self._state)
        np.random.set_state(self._numpy_state)
        self._state, self._numpy_state = kept, kept_of_numpy
