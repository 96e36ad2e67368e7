"""The process of a judge or a reward service's client: `python -m swarm.extras.judging.worker FD`, for `service.py`
only.

It asks an endpoint or loads a model, and sends back nothing but numbers. It ends when its socket closes.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

from swarm import torchao
from swarm.children import serve
from swarm.environments.judge import JudgeSettings, RaterSettings, RewardServiceSettings
from swarm.errors import SwarmError
from swarm.extras.judging.prompts import (
    MAX_ERROR_CHARS,
    Broken,
    Ratings,
    Ready,
    decode_queries,
    decode_setup,
    encode,
)

RATERS: tuple[type[RaterSettings], ...] = JudgeSettings, RewardServiceSettings


class Backend(Protocol):
    """What a judge or a service is."""

    def answer(self, queries: Sequence[Any]) -> Ratings:
        """The numbers in its replies."""


def open_backend(settings: RaterSettings) -> Backend:
    """The judge or service of these settings. Raises `SwarmError`."""
    if isinstance(settings, RewardServiceSettings):
        from swarm.extras.judging.endpoint import RewardService

        return RewardService(settings)
    assert isinstance(settings, JudgeSettings)
    if settings.endpoint is not None:
        from swarm.extras.judging.endpoint import EndpointJudge

        return EndpointJudge(settings)
    from swarm.extras.judging.local import LocalJudge

    return LocalJudge(settings)


def work(connection: Connection) -> None:
    """Answer lists of queries until the socket closes."""
    setup = decode_setup(connection.recv_bytes())
    (kind,) = (each for each in RATERS if each.rater == setup.rater)
    try:
        backend = open_backend(kind.model_validate_json(setup.settings))
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
