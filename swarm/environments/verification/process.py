"""One worker process of the pool: its socket, its current job, and its end."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from swarm.environments.verification.channel import Channel
from swarm.environments.verification.messages import (
    MAX_TEXT_REPLY_BYTES,
    Draw,
    DrawSeveral,
    GradeGroup,
    Prepare,
    Reply,
    Setup,
    encode,
)

WORKER = "swarm.environments.verification.worker"
START_LIMIT_S = 900.0
"""Long, because a first start may download and convert data sets."""
_LAST_WORDS_BYTES = 2_000


class Job:
    """One request and the receiver of its outcome."""

    def __init__(self, request: Draw | DrawSeveral | GradeGroup, finish: Callable[[Reply], None], own: bool) -> None:
        """`own`: for this node itself, not a foreign group."""
        self.request = request
        # encode in the caller's thread, so that an encoding error is raised there
        self.message = encode(request)
        self.what = f"a group of {request.ref.task}" if isinstance(request, GradeGroup) else str(request)
        self.finish = finish
        self.own = own
        self.queued_at = time.monotonic()


class WorkerProcess:
    """One process, its socket and its current job."""

    def __init__(
        self, request: Prepare | Setup, room: Path, told: dict[str, str], max_reply_bytes: int = MAX_TEXT_REPLY_BYTES
    ) -> None:
        """Start it in the empty directory `room` with the environment variables `told`."""
        self.request = request
        self._room = room
        self._stderr = room.with_suffix(".stderr")
        end, theirs = socket.socketpair()
        self.channel = Channel(end, max_reply_bytes)
        with theirs, self._stderr.open("ab") as stderr:
            # not multiprocessing: a plain child neither imports the parent's __main__ nor inherits its memory
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # some generators print
                stderr=stderr,  # not the node's: foreign text must not reach a terminal
                cwd=room,
                env=told,
                start_new_session=True,  # the terminal's Ctrl-C goes to the node, which then closes the pool
            )
        self.ready = False
        self.job: Job | None = None
        self.began = time.monotonic()
        """Time of its last job's start."""
        self.deadline = self.began + START_LIMIT_S
        self._send(encode(request))

    def give(self, job: Job, time_limit_s: float) -> None:
        """Send it a job."""
        self.job = job
        self.began = time.monotonic()
        self.deadline = self.began + time_limit_s
        self._send(job.message)

    def proceed(self, deadline: float) -> None:
        """Let it prepare the next data set."""
        self.deadline = deadline
        self._send(b"")

    @property
    def asked(self) -> Prepare | Setup | Draw | DrawSeveral | GradeGroup | None:
        """The request that it must answer."""
        if not self.ready:
            return self.request
        return self.job.request if self.job is not None else None

    def kill(self) -> str:
        """Kill the process; returns how it ended, with the end of its standard error."""
        self.process.kill()
        code = self.process.wait()
        self.channel.close()
        words = b""
        with suppress(OSError):  # already killed, or no more files can be opened
            words = self._stderr.read_bytes()[-_LAST_WORDS_BYTES:].strip()
            self._stderr.unlink()
        shutil.rmtree(self._room, ignore_errors=True)
        return f"worker exited with {code}" + (f"; standard error: {words.decode(errors='replace')!r}" if words else "")

    def _send(self, message: bytes) -> None:
        with suppress(ConnectionError):  # the next wait detects a dead child
            self.channel.send(message)
