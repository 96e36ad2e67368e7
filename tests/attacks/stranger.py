"""The stranger that attacks live nodes, in tests as in benchmarks."""

from __future__ import annotations

from benchmarks.common.stranger import RawStream, Stranger

__all__ = ["RawStream", "Stranger"]
