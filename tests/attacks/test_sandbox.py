"""A stranger's text has taken a verification worker over. What can it do to the node and its owner?"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from swarm.environments.config import VerificationSettings
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError
from swarm.types import Grade
from tests.environments.altered import OBEYS, alter_workers
from tests.nodes.processes import gone

GCD = TINY_TASKS[2]
SECRET = "hf_a_token_that_is_nobodys_business"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems have limits and an empty environment"),
]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's folder with a key in it."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "identity.key").write_text(SECRET)
    (folder / "identity.key").chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def obedient(outside: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerificationPool]:
    """Two workers that run whatever they are sent."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(outside)
        monkeypatch.setenv("HF_TOKEN", SECRET)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        alter_workers(OBEYS, tmp_path_factory.mktemp("workers"), monkeypatch)
        with closing(VerificationPool([GCD], VerificationSettings(workers=2, time_limit_s=60))) as pool:
            pool.wait_until_ready()
            yield pool


@pytest.fixture(scope="module")
def escape(obedient: VerificationPool, outside: Path) -> Callable[..., bool]:
    """Runs code in a worker: `escaped` is what it says of itself, everything else is looked at from outside."""
    ref = obedient.draw(1, 0, 1)[0].ref

    def run(code: str, **names: object) -> bool:
        known = {"folder": str(outside), "key": str(outside / "identity.key"), "parent": os.getpid(), **names}
        given = "\n".join(f"{name} = {value!r}" for name, value in known.items())
        text = f"import ctypes, os, signal, socket\nlibc = ctypes.CDLL(None)\n{given}\n{dedent(code)}"
        (grade,) = obedient.grade([(ref, [text])])
        assert isinstance(grade, Grade), grade
        return grade.rewards == (1.0,)

    return run


def unless(pool: VerificationPool, protection: str) -> None:
    if protection in pool.unprotected():
        pytest.skip(f"not kept from {protection} here: {pool.unprotected()[protection]}")


def test_code_does_run_in_these_workers(escape: Callable[..., bool]) -> None:
    assert escape("escaped = sum(range(4)) == 6")


def listing(folder: Path) -> list[tuple[str, int, int, float]]:
    """Names, modes, sizes, times."""
    found = sorted(folder.rglob("*"))
    return [(path.name, (info := path.lstat()).st_mode, info.st_size, info.st_mtime) for path in found]


FILES = {
    "read a key": "escaped = open(key).read()",
    "read its folder": "escaped = os.listdir(folder)",
    "read the password file": "escaped = open('/etc/passwd').read()",
    "read the node's environment": "escaped = open(f'/proc/{parent}/environ', 'rb').read()",
    "read the node's memory": "escaped = open(f'/proc/{parent}/mem', 'rb')",
    "read its own folder's neighbours": "escaped = os.listdir('..')",
    "make a file": "escaped = open(folder + '/made', 'w')",
    "make a file in its own folder": "escaped = open('made', 'w')",
    "make a folder": "escaped = os.mkdir('made') is None",
    "make a temporary file": "escaped = open('/tmp/swarm-verification-made', 'w')",
    "change a key": "escaped = open(key, 'a')",
    "cut a key": "escaped = os.truncate(key, 0) is None",
    "remove a key": "escaped = os.unlink(key) is None",
    "move a key": "escaped = os.rename(key, folder + '/moved') is None",
    "link to a key": "escaped = os.link(key, 'linked') is None",
    "show a key to everybody": "escaped = os.chmod(key, 0o644) is None",
    "give a key away": "escaped = os.chown(key, 1, 1) is None",
    "turn back its clock": "escaped = os.utime(key, (1, 1)) is None",
    "mark it": "escaped = os.setxattr(key, 'user.mark', b'x') is None",
    "reach the terminal": "escaped = open('/dev/tty', 'w')",
    "hide code among Python's": "escaped = open(os.__file__, 'a')",
}


@pytest.mark.parametrize("attempt", FILES)
def test_files_are_out_of_reach(
    attempt: str, obedient: VerificationPool, escape: Callable[..., bool], outside: Path
) -> None:
    unless(obedient, "files")
    before = listing(outside)
    assert not escape(FILES[attempt])
    assert listing(outside) == before and (outside / "identity.key").read_text() == SECRET
    assert stat.S_IMODE((outside / "identity.key").stat().st_mode) == 0o600


def test_the_environment_is_empty_but_for_what_python_needs(escape: Callable[..., bool]) -> None:
    assert not escape("escaped = secret in str(dict(os.environ))", secret=SECRET)
    assert not escape("escaped = secret.encode() in open('/proc/self/environ', 'rb').read()", secret=SECRET)
    assert not escape("escaped = os.environ['HOME'] in ('/root', os.path.expanduser('~root'))")


def test_nothing_is_inherited_but_streams_and_the_socket(escape: Callable[..., bool]) -> None:
    assert not escape("""
        def is_open(number):
            try:
                os.fstat(number)
            except OSError:
                return False
            try:
                return len(os.pread(number, 256, 0).split()) != 7  # by which a worker knows its memory: statm
            except OSError:
                return True
        escaped = sum(map(is_open, range(256))) > 4
    """)


@pytest.fixture(scope="module")
def listeners() -> Iterator[tuple[list[socket.socket], int]]:
    """A TCP and an abstract unix listener, and the port of the first."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0swarm-test-{os.getpid()}")
        abstract.listen()
        tcp.setblocking(False)
        abstract.setblocking(False)
        yield [tcp, abstract], tcp.getsockname()[1]


NETWORK = {
    "connect to a port": "escaped = socket.create_connection(('127.0.0.1', port), 5)",
    "send a datagram": "escaped = socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))",
    "listen": "escaped = socket.create_server(('127.0.0.1', 0))",
    "connect past Python": "escaped = libc.socket(2, 1, 0) >= 0",
    "connect to a socket without a file": "escaped = socket.socket(socket.AF_UNIX).connect(abstract) is None",
    "talk to the kernel": "escaped = libc.socket(16, 3, 0) >= 0",
    "go round by io_uring": "escaped = libc.syscall(425, 8, ctypes.create_string_buffer(256)) >= 0",
}


@pytest.mark.parametrize("attempt", NETWORK)
def test_the_network_is_out_of_reach(
    attempt: str,
    obedient: VerificationPool,
    escape: Callable[..., bool],
    listeners: tuple[list[socket.socket], int],
) -> None:
    unless(obedient, "network")
    heard, port = listeners
    assert not escape(NETWORK[attempt], port=port, abstract=f"\0swarm-test-{os.getpid()}")
    for listener in heard:
        with pytest.raises(BlockingIOError):
            listener.accept()


PROCESSES = {
    "fork": """
        child = os.fork()
        if child == 0:
            os._exit(0)
        escaped = child > 0
    """,
    "fork past Python": "escaped = libc.syscall(57 if os.uname().machine == 'x86_64' else 220, 17, 0, 0, 0, 0) > 0",
    "start threads": """
        import threading
        threading.Thread(target=print).start()
        escaped = True
    """,
    "run a shell": "escaped = os.system('true') == 0",
    "run a program": "import subprocess; escaped = subprocess.run(['/bin/true'])",
    "become a shell": "escaped = os.execv('/bin/sh', ['sh', '-c', 'true'])",
    "become a shell without a file": "escaped = os.memfd_create('shell') >= 0",
    "have namespaces of its own": "escaped = libc.unshare(0x10000000) == 0",
    "become root": "escaped = os.setuid(0) is None",
    "raise its limits": "import resource; escaped = resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999)) is None",
    "set its limits at all": "import resource; escaped = resource.setrlimit(resource.RLIMIT_CPU, (999, 999)) is None",
    "set its limits from an address that looks like none in its low half": """
        libc.mmap.restype = ctypes.c_void_p
        place = libc.mmap(ctypes.c_void_p(1 << 32), 4096, 3, 0x22, -1, 0)
        assert place == 1 << 32
        ctypes.memset(place, 9, 16)
        number = 302 if os.uname().machine == "x86_64" else 261
        escaped = libc.syscall(number, 0, 12, ctypes.c_void_p(place), None) == 0  # RLIMIT_MSGQUEUE
    """,
    "stay when the node is gone": "escaped = libc.prctl(1, 0, 0, 0, 0) == 0",
}


@pytest.mark.parametrize("attempt", PROCESSES)
def test_no_programs_are_started_and_no_processes_made(
    attempt: str, obedient: VerificationPool, escape: Callable[..., bool]
) -> None:
    unless(obedient, "processes")
    workers = set(obedient.worker_pids())
    assert not escape(PROCESSES[attempt])
    assert set(obedient.worker_pids()) == workers
    assert all(psutil.Process(pid).children() == [] and psutil.Process(pid).num_threads() == 1 for pid in workers)


SIGNALS = {
    "kill the node": "escaped = os.kill(parent, signal.SIGUSR1) is None",
    "kill a worker": "escaped = [os.kill(pid, signal.SIGKILL) for pid in workers if pid != os.getpid()]",
    "kill all": "escaped = os.kill(-1, 0) is None",
    "kill a thread of the node": "escaped = libc.syscall(200 if machine == 'x86_64' else 130, parent, 10) == 0",
    "queue a signal": "value = ctypes.c_long(0); escaped = libc.sigqueue(parent, 10, value) == 0",
    "have the kernel send one": "import fcntl; escaped = fcntl.fcntl(0, fcntl.F_SETOWN, parent) is None",
    "trace the node": "escaped = libc.ptrace(16, parent, 0, 0) == 0",
    "trace a worker": "escaped = any(libc.ptrace(16, pid, 0, 0) == 0 for pid in workers if pid != os.getpid())",
    "read the node's memory": """
        class Piece(ctypes.Structure):
            _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))
        here, there = Piece(ctypes.addressof(ctypes.create_string_buffer(8)), 8), Piece(id(0), 8)
        escaped = libc.process_vm_readv(parent, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) >= 0
    """,
    "hold the node": "escaped = os.pidfd_open(parent) >= 0",
    "slow the node down": "escaped = os.setpriority(os.PRIO_PROCESS, parent, 19) is None",
    "limit the node": "import resource; escaped = resource.prlimit(parent, resource.RLIMIT_CPU, (9**9, 9**9))",
    "share memory with others": "escaped = libc.shmget(0x5eed, 4096, 0o1666) >= 0",
}


@pytest.mark.parametrize("attempt", SIGNALS)
def test_other_processes_are_out_of_reach(
    attempt: str, obedient: VerificationPool, escape: Callable[..., bool]
) -> None:
    unless(obedient, "signals")
    received: list[int] = []
    workers = obedient.worker_pids()
    previous = signal.signal(signal.SIGUSR1, lambda *which: received.append(1))
    try:
        assert not escape(SIGNALS[attempt], workers=workers, machine=os.uname().machine)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert not received and obedient.worker_pids() == workers


def test_a_disk_cannot_be_filled(escape: Callable[..., bool]) -> None:
    """No file is open for writing; its standard error is a pipe, of which the node keeps the end."""
    assert not escape("""
        import fcntl, stat
        os.write(2, b"x" * 2**22)
        escaped = False
        for descriptor in range(256):
            try:
                regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
                flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            except OSError:
                continue
            escaped |= regular and flags & os.O_ACCMODE != os.O_RDONLY
    """)


MEMORY = {
    "on the heap": "escaped = len(bytearray(5 * 2**30))",
    "a mapping": "import mmap; escaped = len(mmap.mmap(-1, 5 * 2**30, mmap.MAP_PRIVATE | mmap.MAP_ANON))",
    "a stack, which no limit of memory counts": """
        import mmap
        escaped = len(mmap.mmap(-1, 5 * 2**30, mmap.MAP_PRIVATE | mmap.MAP_ANON | 0x100))
    """,
    "a mapping that becomes larger": """
        import mmap
        escaped = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANON).resize(8192) is None
    """,
    "the main thread's stack, moved and enlarged": """
        libc.mremap.restype = ctypes.c_void_p
        libc.getauxval.restype = ctypes.c_ulong
        lowest = libc.getauxval(25) & ~4095  # some random bytes on the stack
        while libc.mincore(ctypes.c_void_p(lowest - 4096), 4096, ctypes.create_string_buffer(1)) == 0:
            lowest -= 4096
        size = ctypes.c_size_t(5 * 2**30)
        escaped = libc.mremap(ctypes.c_void_p(lowest), ctypes.c_size_t(4096), size, 1) != 2**64 - 1
    """,
    "page tables": "import mmap; escaped = len(mmap.mmap(-1, 2**37, mmap.MAP_PRIVATE | mmap.MAP_ANON, mmap.PROT_READ))",
    "a longer stack": """
        import resource
        escaped = resource.getrlimit(resource.RLIMIT_STACK)[1] not in range(2**23 + 1)
    """,
}


@pytest.mark.parametrize("kind", MEMORY)
def test_memory_is_bounded(kind: str, obedient: VerificationPool, escape: Callable[..., bool]) -> None:
    unless(obedient, "memory")
    assert not escape(MEMORY[kind])


def test_what_grows_is_copied_and_stays_within_the_limit(escape: Callable[..., bool]) -> None:
    """The C library asks the kernel to enlarge large blocks; where it refuses they are copied."""
    assert not escape("""
        grown = bytearray(2**25)
        for _ in range(4):
            grown += bytes(2**25)
        import numpy
        array = numpy.ones(2**22)
        array.resize(2**23, refcheck=False)
        escaped = len(grown) != 5 * 2**25 or array.sum() != 2**22
    """)


def test_the_published_escape_runs_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that assigns to an attribute in a comprehension, and so calls without parentheses."""
    monkeypatch.chdir(tmp_path)
    scope = "from reasoning_gym.algorithmic import binary_matrix; scope = vars(binary_matrix)"
    escape = (
        "[BinaryMatrixConfig['touch stolen'] for BinaryMatrixConfig.__class_getitem__ in "
        "[dataclass.__globals__['sys'].modules['os'].system]]"
    )
    task = ReasoningGymTask(name="binary_matrix")
    with closing(VerificationPool([task], VerificationSettings())) as pool:
        ref = pool.draw(1, 0, 1)[0].ref
        pool.grade([(ref, [f"<answer>{escape}</answer>"])])
        assert os.listdir(tmp_path) == []
    alter_workers(OBEYS, tmp_path.parent / "obedient", monkeypatch)
    with closing(VerificationPool([task], VerificationSettings())) as pool:
        ref = pool.draw(1, 0, 1)[0].ref
        unless(pool, "processes")
        (grade,) = pool.grade([(ref, [f"{scope}\nescaped = [0] in [eval({escape!r}, scope)]"])])
        assert isinstance(grade, Grade) and grade.rewards == (0.0,)
        assert os.listdir(tmp_path) == []


def test_a_worker_under_a_strangers_control_ends_with_its_node(tmp_path: Path) -> None:
    """The signal that ends it comes from the kernel; an alarm it could have switched off."""
    (tmp_path / "altered_worker.py").write_text(f"{OBEYS}\nworker.main()\n")
    node = f"""
import sys, time
sys.path.insert(0, {str(tmp_path)!r})
import swarm.environments.verification.processes as processes
from swarm.environments.config import VerificationSettings
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.pool import VerificationPool
processes.WORKER = "altered_worker"
pool = VerificationPool(TINY_TASKS[:1], VerificationSettings(time_limit_s=600))
ref = pool.draw(1, 0, 1)[0].ref
pool.submit("x", ref, ["import signal, time; signal.setitimer(signal.ITIMER_REAL, 0)\\nwhile True: time.sleep(1)"])
print(*pool.worker_pids(), flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", node], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        (worker,) = (psutil.Process(int(pid)) for pid in process.stdout.readline().split())
        room = Path(worker.cwd())
        process.kill()
    assert gone([worker])
    with closing(VerificationPool([GCD], VerificationSettings())):
        assert not room.exists(), "the next node sweeps what a killed one left"


def test_own_rows_are_asked_and_their_file_cannot_be_read(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data sets of the user's own, by a relative path, beside a key."""
    rows = [{"question": f"{n}?", "answer": str(n)} for n in range(50)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "identity.key").write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    alter_workers(OBEYS, tmp_path.parent / "obedient", monkeypatch)
    task = DatasetTask(kind="dataset", name="mine", path="rows.jsonl")
    with closing(VerificationPool([task], VerificationSettings())) as pool:
        questions = pool.draw(1, 0, 5)
        assert all(question.prompt in {row["question"] for row in rows} for question in questions)
        unless(pool, "files")
        for name in ("rows.jsonl", "identity.key"):
            code = f"escaped = open({str(tmp_path / name)!r}).read()"
            (grade,) = pool.grade([(questions[0].ref, [code])])
            assert isinstance(grade, Grade) and grade.rewards == (0.0,)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty, and no hub."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "cache"


@pytest.mark.parametrize("builder", ["csv", "text"])
def test_a_founders_task_does_not_read_a_members_folder(
    builder: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`datasets` has builders of its own that read what lies about."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / f"private.{'csv' if builder == 'csv' else 'txt'}").write_text(f"text,answer\n{SECRET},1\n" * 20)
    monkeypatch.chdir(tmp_path / "run")
    asked = DatasetTask(kind="dataset", name="asked", path=builder, prompt="text", answer="text")
    with closing(VerificationPool([GCD, asked], VerificationSettings(), lenient=True)) as pool:
        assert list(pool.wait_until_ready()) == ["asked"]
        assert {question.ref.task for question in pool.draw(0, 0, 8)} == {"gcd"}


@pytest.mark.parametrize(
    ("lenient", "files", "found"),
    [(True, (), ""), (True, ("mine",), "rows.jsonl"), (False, (), "rows.jsonl token environment")],
)
def test_who_prepares_data_sets_reads_these_and_nothing_else(
    lenient: bool, files: tuple[str, ...], found: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's bytes are a stranger's as well; a run's founder names data sets, but not to use this user's token."""
    token = tmp_path / "token"
    for path in (token, tmp_path / "identity.key", tmp_path / "rows.jsonl"):
        path.write_text(SECRET)
    monkeypatch.setenv("HF_TOKEN_PATH", str(token))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    looks = f"""
    import os
    from swarm.errors import TaskError
    import swarm.environments.verification.worker as worker
    def look(config, conversion):
        found = []
        for name in ("identity.key", "rows.jsonl", "token"):
            try:
                found += [name] if open({str(tmp_path)!r} + "/" + name).read() else []
            except OSError:
                pass
        found += ["environment"] if {SECRET!r} in os.environ.values() else []
        raise TaskError(" ".join(found))
    def prepare(request, send):
        import swarm.environments.sources.hf_datasets
        swarm.environments.sources.hf_datasets.store = look
        honest(request, send)
    honest, worker._prepare = worker._prepare, prepare
    """
    alter_workers(looks, tmp_path / "workers", monkeypatch)
    task = DatasetTask(kind="dataset", name="mine", path=str(tmp_path / "rows.jsonl"))
    with (
        closing(VerificationPool([task], VerificationSettings(), lenient, files)) as pool,
        pytest.raises(TaskError, match=f"(^|: ){found}$"),
    ):
        pool.wait_until_ready()


def test_rows_are_not_taken_from_elsewhere(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What prepares data sets may be a stranger's too, and says which files those that grade may read."""
    lies = f"""
    import swarm.environments.verification.worker as worker
    from swarm.environments.config import FileRows, StoredRows
    rows = StoredRows((FileRows({str(cache)!r} + "/../identity.key", 0, 1),), "")
    worker._prepare = lambda request, send: send(worker.Prepared({{"mine": rows}}, {{}}))
    """
    alter_workers(lies, tmp_path / "workers", monkeypatch)
    task = DatasetTask(kind="dataset", name="mine", path="owner/name")
    with closing(VerificationPool([task], VerificationSettings())) as pool:
        with pytest.raises(TaskError, match="outside the cache"):
            pool.wait_until_ready()
        assert pool.counters()["violations"] == 1
