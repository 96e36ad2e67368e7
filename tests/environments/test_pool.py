"""What happens to the pool when tasks hang, crash, or cannot be set up, and when its process dies."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from swarm.children import Channel, Oversized
from swarm.environments.config import TaskConfig, VerificationSettings
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.hf_datasets import DatasetSource
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.messages import (
    MAX_TEXT_REPLY_BYTES,
    Draw,
    DrawnSeveral,
    DrawSeveral,
    Graded,
    GradeGroup,
    Refused,
    Reply,
    decode_reply,
    in_order,
)
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError
from swarm.net.trust.accounts import FORFEITS
from swarm.reasons import OF_GRADING, Reason
from swarm.types import DatasetRef, Grade, Message, ProceduralRef, Prompt, Question, Rejection, TaskRef
from swarm.types.media import Image
from tests.environments.altered import alter_workers, plain_workers  # noqa: F401
from tests.environments.plain_worker import HANGING, PLAIN, POISON
from tests.environments.rubbish_worker import RUBBISH, graded

pytestmark = pytest.mark.slow

FAST = VerificationSettings(time_limit_s=3.0)
GCD = TINY_TASKS[2]
PATIENCE_S = 120.0
ONE_OF_EACH = ("a message too long", "no reply", "two replies", "too few rewards", "counts of the pool's own")
"""Rubbish that is noticed in several places: by length, by form, before a request, by the request, by the counters."""
ROOT = Path(__file__).parents[2]
TAKES_ITS_TIME = """
import time
from tests.environments.plain_worker import be_plain
import swarm.environments.verification.worker as worker

def answer_late(mixture, request):
    "A group takes the seconds that its first completion says."
    if isinstance(request, worker.GradeGroup):
        time.sleep(float(request.texts[0]))
    return answer(mixture, request)

answer, worker._answer = worker._answer, answer_late
be_plain()
"""


def eventually(condition: Callable[[], bool], limit_s: float = PATIENCE_S) -> bool:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> tuple[DatasetTask, TaskRef]:
    """A task whose rows make a regular expression run for ever, holding the interpreter; and a reference to it."""
    path = tmp_path_factory.mktemp("hanging") / "rows.jsonl"
    path.write_text(json.dumps({"question": "?", "answer": "a" * 60 + "!"}))
    fine = DatasetTask(kind="dataset", name="hanging", path=str(path))
    hangs = fine.model_copy(update={"answer_pattern": "^(a+)+$"})
    ref = DatasetSource(fine).question(1, 1).ref  # drawing from the other would hang
    assert isinstance(ref, DatasetRef)
    return hangs, replace(ref, options_digest=DatasetSource(hangs)._options_digest)


@pytest.fixture(scope="module")
def pool(hanging: tuple[DatasetTask, TaskRef]) -> Iterator[VerificationPool]:
    with closing(VerificationPool([GCD, hanging[0]], FAST)) as made:
        yield made


@pytest.fixture(scope="module")
def calm() -> Iterator[VerificationPool]:
    with closing(VerificationPool([GCD], FAST)) as made:
        made.draw(1, 0, 1)
        yield made


def test_a_hanging_group_costs_a_worker_and_nothing_else(
    pool: VerificationPool, hanging: tuple[DatasetTask, TaskRef]
) -> None:
    fine = next(question.ref for question in pool.draw(1, 0, 1))
    assert fine.task == "gcd"
    before = pool.worker_pids()
    timeouts = pool.counters()["timeouts"]
    results = pool.grade([(fine, ["x"]), (hanging[1], ["x"]), (fine, ["x"])])
    assert [type(result) for result in results] == [Grade, Rejection, Grade]
    assert isinstance(results[1], Rejection) and results[1].reason == "verifier_timeout"
    assert pool.counters()["timeouts"] == timeouts + 1
    assert not psutil.pid_exists(before[0]) and pool.worker_pids() != before


@pytest.mark.usefixtures("plain_workers")
def test_a_group_begun_before_the_pool_is_closed_is_an_error_for_whoever_waits() -> None:
    with closing(VerificationPool([PLAIN, HANGING], VerificationSettings(time_limit_s=600))) as pool:
        pool.draw(1, 0, 1)
        verdict = pool.begin_grading(POISON, ["x"])
    with pytest.raises(TaskError, match="closed"):
        verdict.result()


def test_what_sources_count_reaches_the_node(tmp_path: Path) -> None:
    rows = [{"question": "?", "answer": str(n) if n else None} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    half = DatasetTask(kind="dataset", name="half", path=str(tmp_path / "rows.jsonl"))
    with closing(VerificationPool([half], FAST)) as pool:
        pool.draw(1, 0, 20)
        assert pool.counters()["malformed_rows"] > 5


def test_a_question_that_hangs_gives_way_to_the_next_task(pool: VerificationPool) -> None:
    assert [question.ref.task for question in pool.draw(1, 0, 3)] == ["gcd"] * 3


def test_when_every_task_hangs_drawing_is_an_error(hanging: tuple[DatasetTask, TaskRef]) -> None:
    why = "every task was skipped; the last one: over 3.0 s"
    with closing(VerificationPool([hanging[0]], FAST)) as pool, pytest.raises(TaskError, match=why):
        pool.draw(1, 0, 1)


@pytest.mark.usefixtures("plain_workers")
@pytest.mark.parametrize("reason", [Reason.VERIFIER_CRASH, Reason.VERIFIER_TIMEOUT])
def test_a_draw_that_fails_once_is_repeated(reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(VerificationPool([PLAIN], VerificationSettings(time_limit_s=600))) as pool:
        ask, asked = pool._ask, []

        def failing_once(request: Draw) -> Future[Reply]:
            asked.append(request)
            reply: Future[Reply] = Future()
            reply.set_result(Refused(Rejection(reason, "")))
            return reply if len(asked) == 1 else ask(request)

        monkeypatch.setattr(pool, "_ask", failing_once)
        assert pool.draw(1, 3, 1)[0].prompt == "Say 3."
        assert asked == [Draw(1, 3)] * 2


def test_questions_drawn_in_rows_are_those_drawn_one_by_one(calm: VerificationPool) -> None:
    assert calm.draw(7, 5, 70) == [calm.draw(7, 5 + number, 1)[0] for number in range(70)]


@pytest.mark.parametrize("row", ["made[:2]", "()", "1 / 0"])
def test_what_a_row_leaves_out_is_drawn_alone(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    less = f"""
    import swarm.environments.verification.worker as worker
    from tests.environments.plain_worker import be_plain
    several = worker._several
    def fewer(mixture, request):
        made = several(mixture, request)
        return {row}
    worker._several = fewer
    be_plain()
    """
    alter_workers(less, tmp_path, monkeypatch)
    with closing(VerificationPool([PLAIN], VerificationSettings(time_limit_s=600))) as pool:
        questions = pool.draw(1, 0, 5)
        assert [question.prompt for question in questions] == [f"Say {number}." for number in range(5)]
        assert pool.counters()["crashes"] == (row == "1 / 0")


def test_a_row_is_bounded_and_of_the_tasks_asked_for() -> None:
    def drawn(*prompts: Prompt, task: str = "gcd") -> DrawnSeveral:
        return DrawnSeveral(tuple(Question(ProceduralRef(task, "", "", 0, 0, ""), each) for each in prompts), {})

    two = DrawSeveral(0, 0, 2)
    assert in_order(two, drawn("one", "two"), {"gcd": ()}) and in_order(two, drawn(), {"gcd": ()})
    picture = (Message("user", (Image(1, 1, b"\0\0\0"),)),)
    wrong = (
        drawn("one", "two", "three"),
        drawn("one", task="lcm"),
        drawn("x" * 2**19, "x" * (2**19 + 1)),
        drawn(picture),
    )
    for reply in wrong:
        assert not in_order(two, reply, {"gcd": ()}, {"gcd": ("image",)})
    assert not in_order(Draw(0, 0), drawn("one"), {"gcd": ()})


@pytest.mark.usefixtures("plain_workers")
def test_a_worker_that_dies_costs_its_job() -> None:
    with closing(VerificationPool([PLAIN, HANGING], VerificationSettings(time_limit_s=600))) as pool:
        pool.draw(1, 0, 1)
        (pid,) = pool.worker_pids()
        idle = psutil.Process(pid).cpu_times().user
        pool.submit("poison", POISON, ["x"])
        assert eventually(lambda: psutil.Process(pid).cpu_times().user > idle + 0.1)
        os.kill(pid, signal.SIGSEGV)
        results: list[tuple[str, Grade | Rejection]] = []
        assert eventually(lambda: bool(results.extend(pool.collect()) or results))
        key, result = results[0]
        assert key == "poison" and isinstance(result, Rejection) and result.reason == "verifier_crash"
        assert pool.counters()["crashes"] == 1
        assert pool.draw(1, 0, 1)[0].ref.task == "plain"


def test_own_groups_go_before_submitted_ones_and_the_oldest_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter_workers(TAKES_ITS_TIME, tmp_path, monkeypatch)
    with closing(VerificationPool([PLAIN], VerificationSettings(queue_groups=20))) as pool:
        ref = pool.draw(1, 0, 1)[0].ref
        for number in range(100):
            pool.submit(str(number), ref, ["0.2"])
        pool.grade([(ref, ["0"])])
        early = dict(pool.collect())
        graded = [key for key, result in early.items() if isinstance(result, Grade)]
        dropped = [key for key, result in early.items() if isinstance(result, Rejection)]
        assert len(graded) + len(dropped) < 100, "the own group did not wait for the queue"
        assert {early[key].reason for key in dropped} == {"verifier_overflow"}  # type: ignore[union-attr]
        rest: dict[str, Grade | Rejection] = {}
        assert eventually(lambda: bool(rest.update(pool.collect()) or len(rest) + len(early) == 100))
        assert pool.counters()["overflows"] == len(dropped)
        assert isinstance(rest["99"], Grade)


@pytest.mark.usefixtures("plain_workers")
def test_submitting_never_waits_for_a_worker() -> None:
    with closing(VerificationPool([PLAIN, HANGING], VerificationSettings(queue_groups=20, time_limit_s=600))) as pool:
        ref = pool.draw(1, 0, 1)[0].ref
        pool.submit("blocks", POISON, ["x"], sender="somebody")
        for number in range(100):
            pool.submit(str(number), ref, ["x"], sender="displaces its own groups only")
        assert eventually(lambda: pool.counters()["overflows"] >= 80)
        dropped = len(pool.collect())
        assert dropped <= pool.counters()["overflows"] <= dropped + len(pool.collect())


@pytest.mark.usefixtures("plain_workers")
def test_who_floods_the_queue_displaces_itself() -> None:
    settings = VerificationSettings(queue_groups=20, time_limit_s=2)
    with closing(VerificationPool([PLAIN, HANGING], settings)) as pool:
        ref = pool.draw(1, 0, 1)[0].ref
        pool.submit("blocks", POISON, ["x"], sender="somebody")
        for number in range(5):
            pool.submit(f"quiet {number}", ref, ["x"], sender=f"quiet {number}")
        for number in range(200):
            pool.submit(f"flood {number}", ref, ["x"], sender="flood")
        graded: dict[str, Grade | Rejection] = {}
        assert eventually(lambda: bool(graded.update(pool.collect()) or len(graded) == 206))
        assert all(isinstance(graded[f"quiet {number}"], Grade) for number in range(5))
        lost = [key for key, verdict in graded.items() if isinstance(verdict, Rejection) and key != "blocks"]
        assert len(lost) == pool.counters()["overflows"] > 0 and all(key.startswith("flood") for key in lost)


def test_a_worker_that_answers_with_rubbish_is_replaced_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.environments.verification.processes.WORKER", "tests.environments.rubbish_worker")
    with closing(VerificationPool([PLAIN], VerificationSettings(time_limit_s=600, workers=2))) as pool:
        question = pool.draw(1, 0, 1)[0]
        for number, what in enumerate(ONE_OF_EACH, start=1):
            before = pool.worker_pids()
            (verdict,) = pool.grade([(question.ref, [what, "x"])])
            assert isinstance(verdict, Rejection) and verdict.reason == "verifier_crash", what
            assert pool.counters()["violations"] == number, what
            assert eventually(lambda before=before: pool.worker_pids() != before)
        assert pool.draw(1, 0, 1) == [question]
        assert pool.counters()["restarts"] == len(ONE_OF_EACH) and pool.counters()["timeouts"] == 0


@pytest.mark.parametrize("what", sorted(RUBBISH.keys() - set(ONE_OF_EACH)))
def test_whatever_else_no_intact_worker_sends_is_a_violation_too(what: str) -> None:
    asked = GradeGroup(ProceduralRef("plain", "none", "", 0, 0, ""), (what, "x"))
    assert in_order(asked, decode_reply(graded(1, 1)), {"plain": ()}, took_s=2.0), "else all would be violations"
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as worker:
        channel = Channel(ours, MAX_TEXT_REPLY_BYTES)
        worker.submit(RUBBISH[what], theirs.fileno(), asked)
        try:
            while (message := channel.receive()) is None:
                pass
            reply = decode_reply(message)
        except (Oversized, msgspec.DecodeError, RecursionError):
            return
    assert not in_order(asked, reply, {"plain": ()}, took_s=2.0)


@pytest.mark.parametrize("request_", [Draw(0, 0), GradeGroup(POISON, ("x",))])
def test_only_the_reasons_of_grading_are_believed(request_: Draw | GradeGroup) -> None:
    believed = {reason for reason in Reason if in_order(request_, Refused(Rejection(reason)), {"hanging": ()})}
    assert believed == OF_GRADING and not believed & FORFEITS


@pytest.mark.parametrize("seconds", [-0.1, 2.1, float("inf"), float("nan")])
def test_no_worker_can_charge_an_author_for_more_time_than_passed(seconds: float) -> None:
    asked = GradeGroup(POISON, ("x",))
    for claimed, believed in ((1.9, True), (seconds, False)):
        grade = Grade("", (1.0,), claimed)
        refusal = Rejection(Reason.QUESTION_MISMATCH, "", claimed)
        assert in_order(asked, Graded(grade, {}), {"hanging": ()}, took_s=2.0) == believed
        assert in_order(asked, Refused(refusal), {"hanging": ()}, took_s=2.0) == believed


def test_a_worker_that_answers_half_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = """
    import os, sys, time
    import swarm.environments.verification.worker as worker
    from tests.environments.plain_worker import be_plain
    def stop(mixture, request):
        if isinstance(request, worker.GradeGroup) and "stop" in request.texts:
            os.write(int(sys.argv[1]), bytes(2))
            time.sleep(600)
        return answer(mixture, request)
    answer, worker._answer = worker._answer, stop
    be_plain()
    """
    alter_workers(half, tmp_path, monkeypatch)
    with closing(VerificationPool([PLAIN], VerificationSettings(workers=2, time_limit_s=600))) as pool:
        ref = pool.draw(1, 0, 1)[0].ref
        pool.submit("half", ref, ["stop"])
        assert isinstance(pool.grade([(ref, ["x"])])[0], Grade)
        assert len(pool.draw(1, 0, 8)) == 8 and pool.collect() == []


def refuse(monkeypatch: pytest.MonkeyPatch, starts: Iterator[bool]) -> None:
    """Have the system refuse the starts of processes for which there is a true."""

    def popen(*arguments: object, **keywords: object) -> object:
        if next(starts):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real(*arguments, **keywords)  # type: ignore[call-overload]

    real = subprocess.Popen
    monkeypatch.setattr("swarm.children.subprocess.Popen", popen)


@pytest.mark.usefixtures("plain_workers")
def test_a_start_that_the_system_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, chain([True, False, False, True, True], repeat(False)))
    with closing(VerificationPool([PLAIN], VerificationSettings(workers=2, time_limit_s=600))) as pool:
        first = pool.draw(1, 0, 1)
        assert eventually(lambda: len(pool.worker_pids()) == 2)
        before = pool.worker_pids()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: len(set(pool.worker_pids()) - set(before)) == 2)
        assert pool.draw(1, 0, 1) == first


@pytest.mark.usefixtures("plain_workers")
def test_a_worker_for_own_questions_that_is_refused_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, chain([False, True, False, True], repeat(False)))
    with closing(VerificationPool([PLAIN, HANGING], VerificationSettings(time_limit_s=600))) as pool:
        first = pool.draw(1, 0, 1)
        for _ in range(2):
            pool.submit("poison", POISON, ["x"])
            assert eventually(lambda: len(pool.worker_pids()) == 2)
            assert pool.draw(1, 0, 1) == first
            os.kill(pool.worker_pids()[1], signal.SIGKILL)


@pytest.mark.usefixtures("plain_workers")
@pytest.mark.parametrize("num_before", [0, 1])
def test_starts_that_are_refused_again_and_again_end_the_pool(num_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.environments.verification.dispatcher.REFUSED_REST_S", 0.001)
    refuse(monkeypatch, chain([False] * num_before, repeat(True)))
    with closing(VerificationPool([PLAIN], VerificationSettings())) as pool:
        if num_before:
            pool.draw(1, 0, 1)
            os.kill(pool.worker_pids()[0], signal.SIGKILL)
        with pytest.raises(TaskError, match="cannot be started: .*temporarily unavailable"):
            pool.draw(1, 0, 1)


@pytest.mark.usefixtures("plain_workers")
def test_own_questions_do_not_wait_for_a_stranger_that_hangs() -> None:
    with closing(VerificationPool([PLAIN, HANGING], VerificationSettings(time_limit_s=600))) as pool:
        first = pool.draw(1, 0, 1)
        for name in ("poison", "more poison"):
            pool.submit(name, POISON, ["x"])
        assert pool.draw(1, 0, 1) == first and pool.draw(1, 0, 1) == first
        assert pool.collect() == [] and len(pool.worker_pids()) == 2
        os.kill(pool.worker_pids()[1], signal.SIGKILL)
        assert pool.draw(1, 0, 1) == first, "the reserved worker comes back"
        assert pool.collect() == [] and len(pool.worker_pids()) == 2


@pytest.mark.usefixtures("plain_workers")
def test_a_group_that_hangs_brings_the_worker_for_own_questions_before_one_waits() -> None:
    with closing(VerificationPool([PLAIN, HANGING], VerificationSettings(time_limit_s=600))) as pool:
        pool.draw(1, 0, 1)
        pool.submit("poison", POISON, ["x"])
        assert eventually(lambda: len(pool.worker_pids()) == 2)


def test_waits_for_strangers_add_up_to_a_worker_that_ends_when_it_is_not_needed_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter_workers(TAKES_ITS_TIME, tmp_path, monkeypatch)
    monkeypatch.setattr("swarm.environments.verification.dispatcher.MAX_WAIT_S", 4.0)
    monkeypatch.setattr("swarm.environments.verification.dispatcher.RESERVED_S", 1.0)
    with closing(VerificationPool([PLAIN], VerificationSettings())) as pool:
        first = pool.draw(1, 0, 1)
        (pid,) = pool.worker_pids()

        def draw_behind_a_stranger() -> None:
            pool.submit("stranger", first[0].ref, ["0.7"])
            time.sleep(0.1)
            assert pool.draw(1, 0, 1) == first
            pool.collect()

        draw_behind_a_stranger()
        assert pool.worker_pids() == (pid,), "one wait is not worth a worker"
        assert eventually(lambda: draw_behind_a_stranger() or len(pool.worker_pids()) == 2)
        assert eventually(lambda: pool.worker_pids() == (pid,)), "its memory is given back"
        assert pool.draw(1, 0, 1) == first
        assert pool.counters()["restarts"] == 0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (ReasoningGymTask(name="gcdd"), "no data set 'gcdd'"),
        (DatasetTask(kind="dataset", name="sums", path="/nowhere.jsonl"), "no such file"),
    ],
)
def test_tasks_that_cannot_be_set_up_are_said_at_once_with_the_workers_words(task: TaskConfig, message: str) -> None:
    with closing(VerificationPool([task], FAST)) as pool:
        with pytest.raises(TaskError, match=message):
            pool.draw(1, 0, 1)
        with pytest.raises(TaskError, match=message):
            pool.collect()
        assert pool.counters()["restarts"] == 0


def test_workers_that_die_at_every_start_end_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with closing(VerificationPool([GCD], FAST)) as pool:
        with pytest.raises(TaskError, match="do not start"):
            pool.draw(1, 0, 1)
        assert pool.counters()["restarts"] == 2


def test_closing_is_quick_and_leaves_nothing(hanging: tuple[DatasetTask, TaskRef]) -> None:
    threads = threading.active_count()
    pool = VerificationPool([GCD, hanging[0]], VerificationSettings(workers=2, time_limit_s=600))
    pids = pool.worker_pids()
    pool.submit("poison", hanging[1], ["x"])
    outcomes: list[str] = []

    def wait_for_ever() -> None:
        try:
            pool.grade([(hanging[1], ["x"])])
        except TaskError as error:
            outcomes.append(str(error))

    waiting = threading.Thread(target=wait_for_ever)
    waiting.start()
    time.sleep(0.2)
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 60, "not the time that groups may take"
    waiting.join(PATIENCE_S)
    assert outcomes == ["the verification pool is closed"]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert threading.active_count() == threads
    pool.close()
    with pytest.raises(TaskError, match="is closed"):
        pool.draw(1, 0, 1)


def test_a_terminals_interrupt_does_not_reach_workers(calm: VerificationPool) -> None:
    (pid,) = calm.worker_pids()
    assert os.getpgid(pid) != os.getpgid(0)
    os.kill(pid, signal.SIGINT)
    assert len(calm.draw(1, 1, 1)) == 1
    assert calm.worker_pids() == (pid,)


def test_a_worker_is_limited_in_memory_single_threaded_and_loads_no_torch(calm: VerificationPool) -> None:
    worker = psutil.Process(calm.worker_pids()[0])
    assert worker.rlimit(psutil.RLIMIT_DATA)[0] == FAST.memory_limit_bytes
    assert worker.num_threads() == 1
    assert not [mapped.path for mapped in worker.memory_maps() if "torch" in mapped.path]


def test_an_idle_worker_that_dies_is_replaced(calm: VerificationPool) -> None:
    os.kill(calm.worker_pids()[0], signal.SIGKILL)
    assert len(calm.draw(1, 1, 4)) == 4


PARENT = """
import sys, time
from swarm.environments.config import VerificationSettings
from swarm.environments.verification import processes
from swarm.environments.verification.messages import Draw, DrawnSeveral, DrawSeveral, in_order
from swarm.environments.verification.pool import VerificationPool
from tests.environments.plain_worker import HANGING, PLAIN, POISON
if __name__ == "__main__":
    processes.WORKER = "tests.environments.plain_worker"
    made = VerificationPool([PLAIN, HANGING], VerificationSettings(time_limit_s=2))
    made.draw(1, 0, 1)
    if sys.argv[1] == "hangs":
        made.submit("poison", POISON, ["x"])
        time.sleep(0.5)
    print(made.worker_pids()[0], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("doing", ["idle", "hangs"])
def test_workers_end_with_a_parent_that_was_killed(doing: str) -> None:
    # Workers do not import from the current directory, but from where their parent does.
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", PARENT, doing], env=env, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert psutil.Process(worker).cmdline()[-2] == "tests.environments.plain_worker"
        parent.kill()
    assert eventually(lambda: _is_gone(worker))


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_worker_finds_the_same_files_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "random.py").write_text("raise RuntimeError('shadows the standard library')")
    monkeypatch.chdir(tmp_path)
    with closing(VerificationPool([GCD], FAST)) as pool:
        assert len(pool.draw(1, 0, 1)) == 1


def test_a_run_of_many_costly_tasks_leaves_a_worker_its_memory() -> None:
    if sys.platform != "linux":
        pytest.skip("no process can be asked for its memory in its sandbox here")
    costly = [ReasoningGymTask(name=f"arc-{number}", dataset="arc_agi") for number in range(48)]
    settings = VerificationSettings(tasks_bytes=2**26)
    with closing(VerificationPool([TINY_TASKS[0], *costly], settings, lenient=True)) as pool:
        skipped = pool.wait_until_ready()
        assert TINY_TASKS[0].name not in skipped and len(costly) > len(skipped) > len(costly) // 2
        assert all("verification.tasks_bytes" in reason for reason in skipped.values())
        (pid,) = pool.worker_pids()
        memory = psutil.Process(pid).memory_info()
        assert memory.rss - memory.shared < 2**26 + 200e6


def test_a_lenient_pool_goes_without_what_it_cannot_set_up() -> None:
    unknown = ReasoningGymTask(name="of-a-later-version")
    pool = VerificationPool([TINY_TASKS[0], unknown], VerificationSettings(), lenient=True)
    try:
        assert list(pool.wait_until_ready()) == ["of-a-later-version"]
        assert {question.ref.task for question in pool.draw(0, 0, 8)} == {TINY_TASKS[0].name}
    finally:
        pool.close()
    hopeless = VerificationPool([unknown], VerificationSettings(), lenient=True)
    try:
        with pytest.raises(TaskError, match="none of the tasks can be set up"):
            hopeless.wait_until_ready()
    finally:
        hopeless.close()


def test_a_pool_knows_how_many_questions_a_data_set_holds_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"{k}?", "answer": str(k)}) + "\n" for k in range(25)))
    task = DatasetTask(kind="dataset", name="rows", path=str(path))
    with closing(VerificationPool([GCD, task], FAST)) as pool:
        assert (pool.num_held_out("rows"), pool.num_held_out(GCD.name)) == (2, None)
        assert {question.ref.row for question in pool.draw(2**62, 0, 2, "rows")} == {9, 19}
