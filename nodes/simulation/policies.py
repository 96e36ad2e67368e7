"""Makes the policies of a simulation in a child, so that its parent imports neither torch nor transformers."""

from __future__ import annotations

from multiprocessing import Pipe
from multiprocessing.connection import Connection

from nodes.simulation.children import start_function
from swarm.errors import PolicyError, SwarmError
from swarm.policy.config import MADE_HERE
from swarm.policy.packaged.cache import Progress


def find_source_in_child(model: str, progress: Progress) -> str:
    """What transformers loads, as `find_source` in `swarm/policy/loading.py`. Raises what it does."""
    if model not in MADE_HERE:
        return model
    answers, sender = Pipe(duplex=False)
    with answers:
        with sender:
            child = start_function(_find, model, sender)
        try:
            return _source(answers, progress)
        except EOFError:
            raise PolicyError(f"the process that makes {model} died; is there enough memory?") from None
        finally:
            child.join()


def _source(answers: Connection, progress: Progress) -> str:
    while True:
        match answers.recv():
            case (int(done), int(total)):
                progress(done, total)
            case SwarmError() as error:
                raise error
            case source:
                return str(source)


def _find(model: str, answers: Connection) -> None:
    from swarm.policy.loading import find_source

    try:
        answers.send(find_source(model, lambda done, total: answers.send((done, total))))
    except SwarmError as error:
        answers.send(error)
