"""A peer in the user's own process, for notebooks and scripts: `swarm.Node`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, FunctionType, TracebackType

from nodes.boot.assemble import opened
from nodes.boot.directory import best_address, refuse_at_once
from nodes.console import literal_console
from nodes.roles.peer import PeerNode
from nodes.roles.ranks import CustomParts
from nodes.roles.runtime import EndReason
from swarm.config import NodeConfig, load_config
from swarm.errors import Interrupted, SwarmError
from swarm.policy.loading import Policy
from swarm.policy.ranks import Ranks
from swarm.protocols import RolloutEngine, Updater
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, RoundEvent

MakeEngine = Callable[[Policy, RolloutEngine], RolloutEngine]
MakeUpdater = Callable[[Policy, Updater], Updater]
OnRound = Callable[[RoundEvent], object]


class Node:
    """A peer of a swarm in this process; what `swarm join` starts, round by round.

    It keeps the same directory: identity, checkpoints, metrics. A `with` block closes it.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] = (),
        *,
        file: str | Path | None = None,
        fields: Mapping[str, object] | None = None,
        engine: MakeEngine | None = None,
        updater: MakeUpdater | None = None,
        quiet: bool = False,
    ) -> None:
        """Open a peer: of the run of these members' addresses, or of one that it founds.

        `fields` are configuration fields by dotted path, `{"mix.local": 6}`; they take precedence over the YAML `file`
        and the environment. A loss, a mix or an advantage may be given as the class or function itself. `engine` and
        `updater` are called with the policy and the node's own part, and return its replacement. `quiet`:
        print nothing. Raises `SwarmError`.
        """
        given = [bootstrap] if isinstance(bootstrap, str) else bootstrap
        pairs = [("network.bootstrap", address) for address in given]
        pairs += [(path, _text(value)) for path, value in (fields or {}).items()]
        loaded = load_config(Path(file) if file is not None else None, None, os.environ, pairs)
        refuse_at_once(loaded)
        self._asked = False
        self._begun = False
        """Whether it has started, so that it must end."""
        self._ready = False
        """Whether what comes before the first round is done."""
        self._left_at = time.monotonic()
        """When `run` returned last."""
        self._reason: EndReason | None = "interrupted"
        """How it ends; None after a failure that may have left a round half done."""

        class Peer(PeerNode):
            custom = CustomParts(engine, updater)

        self._open = contextlib.ExitStack()
        console = literal_console(quiet=quiet)
        self._running = self._open.enter_context(opened(Peer, loaded, console, lambda: self._asked, Ranks()))
        assert isinstance(self._running.node, PeerNode)  # as the role makes it
        self._peer = self._running.node
        self.policy = self._peer.policy
        """Model and tokenizer. Change weights only within `policy.gate.change()`."""
        self.history = PeerHistory.read(self.out / METRICS_FILE, self.config.called(self.peer_id))
        """All its rounds, evaluations and notes so far, those of earlier processes included."""

    @property
    def config(self) -> NodeConfig:
        """What it runs with, the run's values included."""
        return self._running.config

    @property
    def out(self) -> Path:
        """Its directory."""
        return self.config.out

    @property
    def peer_id(self) -> str:
        """Its identity."""
        return self._running.transport.peer_id

    @property
    def address(self) -> str:
        """Where others can join."""
        return best_address(self._running.transport.multiaddrs())

    def run(self, rounds: int | None = None, on_round: OnRound | None = None) -> list[RoundEvent]:
        """Train: so many rounds, or until `stop`, or until there are as many as the field `rounds` says.

        Calls `on_round` after each round and returns all of them. The first call evaluates before the first round
        (`evaluation.num_questions`). Ctrl-C discards the round in progress and raises `KeyboardInterrupt`; the node can
        go on. Raises `SwarmError`.
        """
        finished: list[RoundEvent] = []
        first = self._peer.round
        with self._obeying_ctrl_c(), self._timed(), contextlib.suppress(Interrupted):
            self._begin()
            while not (self._asked or self._peer.done or self._peer.round - first == rounds):
                self._step()
                for event in self.history.tail():
                    if isinstance(event, RoundEvent):
                        finished.append(event)
                        if on_round is not None:
                            on_round(event)
        return finished

    def stop(self) -> None:
        """Let `run` return soon, without the round in progress; from `on_round` or any thread."""
        self._asked = True

    def close(self) -> None:
        """Write a checkpoint, evaluate if all rounds of the field `rounds` are done, and leave the swarm.

        Raises what the evaluation does.
        """
        with self._open:
            if self._begun and self._reason is not None:
                reason = "done" if self._peer.done and self._reason != "error" else self._reason
                self._reason = None
                self._asked = False
                self._peer.end(reason)
                self.history.tail()

    def __enter__(self) -> Node:
        """The node itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _begin(self) -> None:
        if not self._ready:
            self._begun = True
            self._peer.begin()
            self._ready = True

    def _step(self) -> None:
        try:
            self._running.step()
        except Interrupted:
            raise
        except SwarmError as error:
            self._reason = "error"
            self._peer.note(str(error), "error")
            raise
        except BaseException:
            self._reason = None
            raise

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the time within the block only, not that between two calls of `run`."""
        self._peer.leave_out(time.monotonic() - self._left_at)
        try:
            yield
        finally:
            self._left_at = time.monotonic()

    @contextlib.contextmanager
    def _obeying_ctrl_c(self) -> Iterator[None]:
        """Make the first Ctrl-C a request to stop, which is obeyed where the state is consistent."""
        self._asked = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        interrupted = False

        def on_signal(number: int, frame: FrameType | None) -> None:
            nonlocal interrupted
            if interrupted:
                raise KeyboardInterrupt
            interrupted = self._asked = True

        before = signal.signal(signal.SIGINT, on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if interrupted:
            raise KeyboardInterrupt


def _text(value: object) -> str:
    """A field's value as the command line has it; a class or function by its import path."""
    if isinstance(value, type | FunctionType):
        return f"{value.__module__}:{value.__qualname__}"
    if value is None:
        return "none"
    if isinstance(value, str | Path):
        return str(value)
    return json.dumps(value)
