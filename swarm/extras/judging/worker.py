"""The judge's process: `python -m swarm.extras.judging.worker FD`, for `service.py` only.

It asks an endpoint or loads a model, and sends back nothing but numbers. It ends when its socket closes.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Protocol

from swarm import torchao
from swarm.children import serve
from swarm.environments.judge import JudgeSettings
from swarm.errors import SwarmError
from swarm.extras.judging.prompts import (
    MAX_ERROR_CHARS,
    Broken,
    Query,
    Ratings,
    Ready,
    decode_queries,
    decode_setup,
    encode,
)


class Backend(Protocol):
    """What a judge is."""

    def answer(self, queries: Sequence[Query]) -> Ratings:
        """The numbers in its replies."""


def open_backend(settings: JudgeSettings) -> Backend:
    """The judge of these settings. Raises `SwarmError`."""
    if settings.endpoint is not None:
        from swarm.extras.judging.endpoint import EndpointJudge

        return EndpointJudge(settings)
    from swarm.extras.judging.local import LocalJudge

    return LocalJudge(settings)


def work(connection: Connection) -> None:
    """Answer lists of queries until the socket closes."""
    settings = JudgeSettings.model_validate_json(decode_setup(connection.recv_bytes()).settings)
    try:
        backend = open_backend(settings)
    except SwarmError as error:
        connection.send_bytes(encode(Broken(str(error)[:MAX_ERROR_CHARS])))
        return
    connection.send_bytes(encode(Ready()))
    while True:
        connection.send_bytes(encode(backend.answer(decode_queries(connection.recv_bytes()))))


def main() -> None:
    """Serve the node at the other end of the descriptor in the argument."""
    torchao.hide()
    serve(work)


if __name__ == "__main__":
    main()
