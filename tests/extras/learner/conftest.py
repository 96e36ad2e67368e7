from __future__ import annotations

from tests.attacks.conftest import _embedded_policy, strangers, victims
from tests.net.conftest import start
from tests.nodes.conftest import run_here

__all__ = ["_embedded_policy", "run_here", "start", "strangers", "victims"]
