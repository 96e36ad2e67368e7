"""A judge whose process does as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from socket import socketpair

from swarm.children import Channel
from swarm.environments.judge import JudgeSettings
from swarm.errors import EngineCrashed
from swarm.extras.judging.prompts import MAX_REPLY_BYTES, Query, Ratings, Ready, Reply, decode_reply, encode
from swarm.extras.judging.service import JudgeService

LONG_S = 300.0


class FakeProcess:
    """Replies with what `reply` returns; None: it hangs."""

    def __init__(self, reply: Callable[[Sequence[Query]], Reply | None], first: Reply | None = None) -> None:
        self._ours, theirs = socketpair()
        self.channel, self._there = Channel(self._ours, MAX_REPLY_BYTES), Connection(theirs.detach())
        self.asked: list[tuple[Query, ...]] = []
        self.killed = False
        self._reply = reply
        self._say(first or Ready())

    def send(self, queries: Sequence[Query]) -> None:
        self.asked.append(tuple(queries))
        try:
            reply = self._reply(queries)
        except EngineCrashed:
            self._there.close()
        else:
            if reply is not None:
                self._say(reply)

    def receive(self) -> Reply | None:
        try:
            message = self.channel.receive()
        except EOFError as error:
            raise EngineCrashed("gone") from error
        return None if message is None else decode_reply(message)

    def kill(self) -> None:
        self.killed = True
        self._ours.close()

    def _say(self, reply: Reply) -> None:
        self._there.send_bytes(encode(reply))


def fives(queries: Sequence[Query]) -> Ratings:
    return Ratings((5,) * len(queries), tokens=10 * len(queries))


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
