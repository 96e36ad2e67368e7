"""A person as an engine: answers typed in a terminal, or lines of another program; a model may complete the groups.

    question ──▶ terminal ──▶ the person's answer, first in its group ──▶ graded like any completion
        └──────▶ endpoint ──▶ the other answers, asked for meanwhile ─────▲

Questions are foreign text: the terminal gets printable characters only.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from swarm.errors import Interrupted
from swarm.extras.give.demand import TaskDemand
from swarm.extras.give.engine import EndpointEngine, conversation, ids_of
from swarm.protocols import Turns
from swarm.reasons import Reason
from swarm.sanitize import clean, clean_lines
from swarm.types import Answers, Completion, Context, NextTurn, Past, Question, Rejection, Sampling

LOOK_EVERY_S = 0.2
WIDTH = 80
MAX_SHOWN_CHARS = 16_384
MAX_NAME_CHARS = 80
PIECE_BYTES = 4_096
CONTINUES = "\\"
"""At a line's end: the answer goes on in the next line."""
SKIPPED = "skipped by the person"
COMMANDS = "/skip, /task NAME, /quit"


Drafts = Future[list[tuple[int, Answers]]]


class Terminal:
    """Shows foreign text and reads lines from a descriptor, a terminal's or a pipe's."""

    def __init__(self, descriptor: int, console: Console, max_chars: int, cancelled: Callable[[], bool]) -> None:
        """Lines are cut at `max_chars`."""
        self._descriptor = descriptor
        self._console = console
        self._max_chars = max_chars
        self._cancelled = cancelled
        self._read = bytearray()
        self._ended = False

    def show(self, text: str, style: str = "") -> None:
        """Print lines, wrapped at 80 columns, without control characters, and not more than one can read."""
        cut = len(text) - MAX_SHOWN_CHARS
        shown = clean_lines(text[:MAX_SHOWN_CHARS].expandtabs()) + (f"\n... ({cut:,} more characters)" * (cut > 0))
        self._console.print(Text(shown, style), width=min(WIDTH, self._console.width), highlight=False)

    def ask(self, prompt: str) -> str:
        """The next line that is not empty. Raises `Interrupted` at the end of the input, and when the node stops."""
        while True:
            self._console.print(Text(f"{prompt}> ", "bold"), end="", soft_wrap=True)
            lines = [self._line()]
            while lines[-1].endswith(CONTINUES):
                lines[-1] = lines[-1].removesuffix(CONTINUES)
                lines.append(self._line())
            if text := "\n".join(lines).strip():
                return text[: self._max_chars]

    def _line(self) -> str:
        """Not `sys.stdin`, whose lock would be held when the interpreter exits."""
        while b"\n" not in self._read and not self._ended:
            if self._cancelled():
                raise self._left("stopped while a person was asked")
            if select.select([self._descriptor], [], [], LOOK_EVERY_S)[0]:
                piece = os.read(self._descriptor, PIECE_BYTES)
                self._ended = not piece
                # A line that is too long costs no memory: what exceeds the limit in UTF-8 is read and forgotten.
                full = b"\n" not in self._read and len(self._read) > 4 * self._max_chars
                self._read += piece[piece.find(b"\n") :] if full and b"\n" in piece else b"" if full else piece
        if not self._read:
            raise self._left("there are no more answers")
        line, _, rest = self._read.partition(b"\n")
        self._read = bytearray(rest)
        return line.decode(errors="replace")

    def _left(self, why: str) -> Interrupted:
        self._console.print()  # what follows begins a line of its own
        return Interrupted(why)


class ChosenTask(TaskDemand):
    """The person's choice of a task, else what receivers want."""

    task: str | None = None

    def part(self, task: str, tasks: Sequence[str]) -> float:
        """See `TaskDemand`."""
        return super().part(task, tasks) if self.task is None else float(task == self.task)


class Asked(Struct, frozen=True):
    """A question as a person is asked it."""

    question: Question
    number: int
    in_tags: bool
    """Whether the task looks for its answer between tags, which a person need not type."""


class PersonEngine:
    """Answers of a person, and of a model where there is one. One stream at a time."""

    def __init__(
        self,
        terminal: Terminal,
        group_size: int,
        asked: Callable[[int], Asked],
        tasks: Sequence[str],
        demand: ChosenTask,
        model: EndpointEngine | None,
        abandoned: threading.Event,
    ) -> None:
        """`asked` gives the question of an episode. Without `model` all answers of a group are the person's; its
        stream is to end soon when `abandoned` is set."""
        self.num_own = 1 if model is not None else group_size
        """Answers of the person in each group, the first ones."""
        self._terminal = terminal
        self._group_size = group_size
        self._asked = asked
        self._tasks = tasks
        self._demand = demand
        self._model = model
        self._abandoned = abandoned
        self._pool = ThreadPoolExecutor(1, "model")

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """See `RolloutEngine`; answers turns only. Raises `Interrupted` when the person leaves."""
        assert turns is not None and not prompts
        while taken := turns.next_turns(wait=True):
            own = [turn for turn in taken if self._place(turn) < self.num_own]
            others = [turn for turn in taken if self._place(turn) >= self.num_own]
            drafts = self._begin(others, sampling, seed)
            answered: list[tuple[int, Answers]]
            try:
                answered = [(turn.episode, self._answer(turn, turn.episode in turns.continuing)) for turn in own]
            except _Skipped:
                answered = [(turn.episode, Rejection(Reason.UNANSWERED, SKIPPED)) for turn in taken]
            else:
                if drafts is not None:
                    if not drafts.done():
                        self._terminal.show("waiting for the model's answers", "dim")
                    answered += drafts.result()
            finally:
                self._end(drafts)
            yield from answered

    def close(self) -> None:
        """End the model's thread."""
        self._abandoned.set()
        self._pool.shutdown()

    def _place(self, turn: NextTurn) -> int:
        """In its group."""
        return turn.episode % self._group_size

    def _begin(self, turns: Sequence[NextTurn], sampling: Sampling, seed: int) -> Drafts | None:
        model = self._model
        if model is None or not turns:
            return None
        return self._pool.submit(lambda: list(model.stream((), 1, sampling, seed, _Once(turns))))

    def _end(self, drafts: Drafts | None) -> None:
        """The model's engine has one stream at a time: an unfinished one is given up before the next."""
        if drafts is not None and not drafts.done():
            self._abandoned.set()
            with suppress(Interrupted):
                drafts.result()
            self._abandoned.clear()

    def _answer(self, turn: NextTurn, may_continue: bool) -> Answers:
        """Raises `_Skipped`, `Interrupted`."""
        asked = self._asked(turn.episode)
        place = self._place(turn)
        if turn.number > 1 or place == 0:
            self._show(asked, turn)
        which = f"answer {place + 1} of {self.num_own}" if self.num_own > 1 else "your answer"
        text = self._typed(f"{which} ({COMMANDS})" if place == 0 else which)
        if asked.in_tags and not may_continue and "<answer>" not in text:
            text = f"<answer>{text}</answer>"
        return (Completion(text, "stop", ids_of(text)),)

    def _show(self, asked: Asked, turn: NextTurn) -> None:
        messages = conversation(turn.context, None)
        if isinstance(turn.context, Past) and turn.context.steps:
            messages = messages[-1:]
        else:
            self._terminal.show(f"\nquestion {asked.number}: {clean(asked.question.ref.task, MAX_NAME_CHARS)}", "bold")
        for message in messages:
            self._terminal.show(
                message["content"] if len(messages) == 1 else f"{message['role']}: {message['content']}"
            )

    def _typed(self, prompt: str) -> str:
        while True:
            text = self._terminal.ask(prompt)
            command, _, name = text.partition(" ")
            if command == "/quit":
                raise Interrupted("the person has left")
            if command == "/skip":
                raise _Skipped
            if command != "/task":
                return text
            if name in self._tasks:
                self._demand.task = name
                raise _Skipped
            if name == "any":
                self._demand.task = None
                raise _Skipped
            self._terminal.show(f"/task takes one of {', '.join(self._tasks)}; or any")


class _Skipped(Exception):
    """The person wants another question."""


class _Once:
    """Turns that are known, and no others."""

    continuing: Collection[int] = ()

    def __init__(self, turns: Sequence[NextTurn]) -> None:
        self.num_episodes = len(turns)
        self._turns = turns

    def next_turns(self, wait: bool) -> Sequence[NextTurn]:
        """See `Turns`."""
        turns, self._turns = self._turns, ()
        return turns
