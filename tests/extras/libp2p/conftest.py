from __future__ import annotations

from tests.net.conftest import start

__all__ = ["start"]
