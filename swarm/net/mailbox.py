"""The buffer between the network thread and the round: bounded in count and bytes, the oldest makes room."""

from __future__ import annotations

import threading
from collections import deque


class Mailbox:
    """Thread-safe queue of records that never blocks a writer and never exceeds its bounds."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        """Bounds on the number of records and on the sum of their sizes."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._records: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_dropped = 0

    def put(self, record: bytes) -> None:
        """Append a record, dropping the oldest ones to make room; one larger than the whole mailbox is dropped."""
        with self._lock:
            if len(record) > self._max_bytes:
                self._num_dropped += 1
                return
            self._records.append(record)
            self._num_bytes += len(record)
            while len(self._records) > self._max_records or self._num_bytes > self._max_bytes:
                self._num_bytes -= len(self._records.popleft())
                self._num_dropped += 1
            self._filled.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Block until there is something to take; whether there is."""
        with self._lock:
            return self._filled.wait_for(lambda: bool(self._records), timeout_s)

    def take(self) -> bytes | None:
        """The oldest record, removed; None when empty."""
        with self._lock:
            if not self._records:
                return None
            record = self._records.popleft()
            self._num_bytes -= len(record)
            return record

    def drain(self) -> list[bytes]:
        """Everything, oldest first; the mailbox is empty afterwards."""
        with self._lock:
            records = list(self._records)
            self._records.clear()
            self._num_bytes = 0
            return records

    @property
    def num_dropped(self) -> int:
        """Records dropped so far."""
        with self._lock:
            return self._num_dropped
