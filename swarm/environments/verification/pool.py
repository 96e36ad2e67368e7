"""Makes questions and grades in killable processes.

    draw, grade ──▶ own jobs ──────────────────▶┐
                                                ├─▶ dispatcher thread ─▶ worker (one job at a time) ─▶ results
    submit ──▶ a queue per sender (bounded) ────▶┘                        killed when late, replaced

The node's process imports neither ReasoningGYM nor `datasets`. A scorer may hang, hold the interpreter lock or crash:
that costs one job and one worker, never the node. Own jobs have priority; if they still wait too long for foreign jobs,
an additional worker serves only own jobs, until foreign jobs have been short for a while. Workers run in a sandbox
(`sandbox.confinement`), because foreign text may take one over; the pool checks replies against its requests and never
blocks on them. A separate process downloads and converts data sets, and ends before the workers start.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future

import msgspec

from swarm.environments.config import TaskConfig, VerificationSettings
from swarm.environments.verification.dispatcher import Dispatcher
from swarm.environments.verification.messages import (
    Draw,
    Drawn,
    DrawnSeveral,
    DrawSeveral,
    Failed,
    Graded,
    GradeGroup,
    Refused,
    Reply,
)
from swarm.environments.verification.processes import Job, WorkerStarter
from swarm.errors import TaskError
from swarm.reasons import Reason
from swarm.types import Actions, Grade, Question, Rejection, TaskRef

TOGETHER = 32
"""Most questions that a worker is asked for at once."""
_PERHAPS_FROM_OUTSIDE = (Reason.VERIFIER_CRASH, Reason.VERIFIER_TIMEOUT)
"""The worker may have been killed, or the machine was busy or asleep."""


class VerificationPool:
    """Implements `TaskVerifier` with worker processes.

    Workers start in the background; the first call that needs the tasks raises a `TaskError` if they are unusable, and
    so does every later call.
    """

    def __init__(
        self,
        configs: Sequence[TaskConfig],
        settings: VerificationSettings,
        lenient: bool = False,
        files: Collection[str] = (),
    ) -> None:
        """Start the workers and the dispatcher thread.

        `lenient`, for another node's task list: omit tasks that cannot be set up, and read no files except the caches
        and those of the tasks named in `files`, whose paths this node's user gave.
        """
        self._lock = threading.Lock()
        self._done: list[tuple[str, Grade | Rejection]] = []
        starter = WorkerStarter(configs, settings, lenient, files)
        self._has_media = any(starter.shows.values())
        self._dispatcher = Dispatcher(starter, settings)

    def wait_until_ready(self) -> dict[str, str]:
        """The tasks that a lenient pool omitted, with reasons. Raises `TaskError` when none can be set up."""
        first = Draw(0, 0)
        self._question(self._ask(first), first)
        return dict(self._dispatcher.ready.skipped)

    def num_held_out(self, task: str) -> int | None:
        """Questions of a task's held-out streams before one repeats; None when there is no end. Waits until ready."""
        self.wait_until_ready()
        return self._dispatcher.ready.held_out.get(task)

    def unprotected(self) -> dict[str, str]:
        """Protections that a worker found missing, as in `Confinement.probe`; known once ready."""
        return dict(self._dispatcher.ready.unprotected)

    def draw(self, seed: int, start: int, count: int, task: str = "") -> list[Question]:
        """Questions `start .. start + count - 1` of stream `seed`: of one task, or of the weighted mixture of all.

        If a task of the mixture fails, hangs or crashes on a question, the next in the list takes over. Raises
        `TaskError` when none is left, or when the tasks cannot be set up.
        """
        found = self._draw_together(seed, start, count, task)
        draws = [Draw(seed, index, task=task) for index in range(start, start + count) if index not in found]
        pending = [(self._ask(each), each) for each in draws]
        found |= {each.index: self._question(reply, each) for reply, each in pending}
        return [found[index] for index in range(start, start + count)]

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[Actions]]]) -> list[Grade | Rejection]:
        """Grade groups and wait: one result per job, in order. Raises `TaskError` when the tasks cannot be set up."""
        pending = [self.begin_grading(ref, texts) for ref, texts in jobs]
        return [verdict.result() for verdict in pending]

    def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        """Grade one of this node's own groups; the call or its result raises `TaskError` when the tasks cannot be set
        up."""
        verdict: Future[Grade | Rejection] = Future()

        def finish(reply: Future[Reply]) -> None:
            try:
                verdict.set_result(_outcome(reply.result()))
            except TaskError as error:
                verdict.set_exception(error)

        self._ask(GradeGroup(ref, tuple(texts))).add_done_callback(finish)
        return verdict

    def replay(self, ref: TaskRef, actions: Actions) -> Future[Grade | Rejection]:
        """An own episode so far. See `Verifier`."""
        return self.begin_grading(ref, [actions])

    def submit(self, key: str, ref: TaskRef, texts: Sequence[Actions], sender: str = "") -> None:
        """Queue a group for grading; never blocks.

        Senders are served in turn. When the queue is full, the oldest group of the sender with the most gets
        `verifier_overflow`.
        """

        def finish(reply: Reply) -> None:
            if not isinstance(reply, Failed):  # the pool is closing: there will be no `collect`
                with self._lock:
                    self._done.append((key, _outcome(reply)))

        self._dispatcher.put_foreign(sender, Job(GradeGroup(ref, tuple(texts)), finish, own=False))

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        """Results since the last call, by key; raises `TaskError` when the tasks cannot be set up."""
        self._dispatcher.check()
        with self._lock:
            done, self._done = self._done, []
            return done

    def close(self) -> None:
        """Kill the workers and end the thread; unfinished jobs are lost, and waiting calls raise `TaskError`."""
        self._dispatcher.close()

    def counters(self) -> dict[str, int]:
        """Cumulative counts of the workers and of `TaskMixture`.

        `timeouts`, `crashes`, `violations` (replies that no intact worker sends), `overflows` of the queue, `restarts`.
        """
        return self._dispatcher.counters()

    def take_texts(self) -> dict[str, str]:
        """First failure of each task since the last call, by a key that begins with the name of its counter."""
        return self._dispatcher.take_texts()

    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return self._dispatcher.worker_pids()

    def _draw_together(self, seed: int, start: int, count: int, task: str) -> dict[int, Question]:
        """Questions by index, several per message, because a message costs more than most questions.

        Leaves out questions that fail. Media fill a reply by themselves.
        """
        if count == 1 or self._has_media:
            return {}
        end = start + count
        rows = [DrawSeveral(seed, at, min(TOGETHER, end - at), task) for at in range(start, end, TOGETHER)]
        pending = [(self._ask(row), row) for row in rows]
        found: dict[int, Question] = {}
        for reply, row in pending:
            answer = reply.result()
            if isinstance(answer, DrawnSeveral):
                found |= dict(enumerate(answer.questions, row.start))
        return found

    def _ask(self, request: Draw | DrawSeveral | GradeGroup) -> Future[Reply]:
        reply: Future[Reply] = Future()
        self._dispatcher.put_own(Job(request, reply.set_result, own=True))
        return reply

    def _question(self, reply: Future[Reply], draw: Draw) -> Question:
        """The question of `draw`; asks again after the loss of a worker."""
        forgiven, last = False, ""
        while True:  # ends, because a worker fails when it has to skip every task
            answer = reply.result()
            match answer:
                case Drawn(question, _):
                    return question
                case Failed(error):
                    raise TaskError(error + last)
                case Refused(rejection):
                    last = f"; the last one: {rejection.detail}"
                case _:
                    raise AssertionError(f"a verification worker answered {answer} to a draw")
            if rejection.reason in _PERHAPS_FROM_OUTSIDE and not forgiven:
                forgiven = True  # blame the task only the second time
            else:
                draw = msgspec.structs.replace(draw, skip=draw.skip + 1)
            reply = self._ask(draw)


def _outcome(reply: Reply) -> Grade | Rejection:
    match reply:
        case Graded(grade, _):
            return grade
        case Refused(rejection):
            return rejection
        case Failed(error):
            raise TaskError(error)
    raise AssertionError(f"a verification worker answered {reply} to a group")
