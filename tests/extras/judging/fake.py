"""A judge whose process does as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Pipe
from queue import Queue

from swarm.environments.judge import JudgeSettings
from swarm.extras.judging.messages import Query, Ready, Reply, Told
from swarm.extras.judging.service import JudgeService

LONG_S = 300.0


class FakeProcess:
    """Replies with what `reply` returns; None: it hangs."""

    def __init__(self, reply: Callable[[Sequence[Query]], Reply | None], first: Reply | None = None) -> None:
        self.connection, self._there = Pipe()
        self.asked: list[tuple[Query, ...]] = []
        self.killed = False
        self._reply = reply
        self._replies: Queue[Reply] = Queue()
        self._say(first or Ready())

    def send(self, queries: Sequence[Query]) -> None:
        self.asked.append(tuple(queries))
        if (reply := self._reply(queries)) is not None:
            self._say(reply)

    def receive(self) -> Reply:
        self.connection.recv_bytes()
        return self._replies.get()

    def kill(self) -> None:
        self.killed = True
        self.connection.close()

    def _say(self, reply: Reply) -> None:
        self._replies.put(reply)
        self._there.send_bytes(b"x")


def fives(queries: Sequence[Query]) -> Told:
    return Told((5,) * len(queries), tokens=10 * len(queries))


@contextmanager
def service(
    *replies: Callable[[Sequence[Query]], Reply | None], **changes: object
) -> Iterator[tuple[JudgeService, list[FakeProcess]]]:
    """A judge whose processes reply like this one after another, and these processes."""
    started: list[FakeProcess] = []

    def start(settings: JudgeSettings) -> FakeProcess:
        started.append(FakeProcess(replies[min(len(started), len(replies) - 1)]))
        return started[-1]

    made = JudgeService(JudgeSettings.model_validate({"model": "m", "time_limit_s": LONG_S, **changes}), start)
    try:
        made.wait_until_ready()
        yield made, started
    finally:
        made.close()
