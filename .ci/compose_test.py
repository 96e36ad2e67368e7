"""Runs docker-compose.yml for real and takes it down again; `make compose-test`. Needs Python 3.10 and nothing else.

  engine      the one there is, or one of its own: installed from Debian's packages if need be, its state in build/
  base image  BASE_IMAGE or the Dockerfile's default if it can be had, else Debian bookworm by debootstrap
  packages    as pip is configured on this machine; folders of files are served to the builder over loopback
  swarm       a bootstrap and 4 peers: every peer uses groups of others; a node that crashes, a container that is killed
              and a bootstrap that is killed come back with the peer ids they had
  limits      what .env says of memory, processor, restarts and logs is what the engine applies
  mixes       four peers in one swarm, each with its own mix
  learner     a learner that trains on what its workers sample

Exits 0 when all of it was seen, or with one line "skipped: ..." where no container can be run, 1 otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "compose-test"
PROJECT = "swarm-compose-test"
IMAGE = "swarm-compose-test"
LOCAL_BASE = "swarm-compose-test-base"
LIMIT_S = int(os.environ.get("COMPOSE_TEST_LIMIT_S", "1500"))
PEERS = 4
WORKERS = 2
MIXES = {"mix-8-0": (8, 0), "mix-6-2": (6, 2), "mix-4-4": (4, 4), "mix-2-6": (2, 6)}
MEMORY_MB, CPUS = 3_000, 1.5
PACKAGES = ("docker.io", "docker-compose")

# Run in one node's container: every peer's directory, and what its metrics say.
LOOK = """
import json, pathlib
found = {}
for file in sorted(pathlib.Path('runs').glob('*/metrics.jsonl')):
    lines = [json.loads(line) for line in file.read_text().splitlines(True) if line.endswith('\\n')]
    starts = [line for line in lines if line['event'] == 'start']
    rounds = [line for line in lines if line['event'] == 'round']
    found[file.parent.name] = {
        'name': starts[-1]['name'], 'mix': starts[-1]['config']['mix'],
        'following': bool(rounds and rounds[-1].get('following')),
        'peer_id': starts[-1]['peer_id'], 'starts': len(starts), 'resumed_from': starts[-1].get('resumed_from'),
        'since_start': len(lines) - lines.index(starts[-1]) - 1,
        'round': rounds[-1]['round'] if rounds else 0,
        'used_external': rounds[-1]['groups']['used_external'] if rounds else 0,
    }
print(json.dumps(found))
"""
# Run in a peer's container: a crash as the kernel would do it. Process 1 is init, which then ends with the container.
CRASH = """
import os, pathlib, signal
for folder in pathlib.Path('/proc').glob('[0-9]*'):
    command = (folder / 'cmdline').read_bytes().split(b'\\0')
    if b'join' in command and int(folder.name) != 1:
        os.kill(int(folder.name), signal.SIGKILL)
"""


class Skipped(Exception):
    """No container can be run here."""


class Failed(Exception):
    """Something that had to happen did not."""


def run(*command: str, timeout_s: float = 600, quiet: bool = False, successes: Collection[int] = (0,)) -> str:
    """Standard output of a command that must succeed. What it says goes to the log, and is shown when it fails."""
    with open(WORK / "log.txt", "a+") as log:
        log.write(f"$ {' '.join(command[:12])}\n")
        log.flush()
        said_from = log.tell()
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=timeout_s, cwd=ROOT)
        log.seek(said_from)
        said = log.read()
        log.write(result.stdout)
    failed = result.returncode not in successes
    if failed and not quiet:
        print((result.stdout + said)[-4000:], file=sys.stderr)
    if failed:
        raise Failed(f"{' '.join(command[:6])} ended with {result.returncode}")
    return result.stdout


def succeeds(*command: str, timeout_s: float = 60) -> bool:
    """Whether a command runs and ends with 0."""
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout_s).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Says what is done and how long it took."""
    print(f"{name} ...", flush=True)
    began = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)


def wait_until(what: str, done: Callable[[], object], limit_s: float) -> None:
    """Look every two seconds until `done()`."""
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise Failed(f"not within {limit_s:.0f} s: {what}")
        time.sleep(3)


# --- an engine ---


def install(*packages: str) -> None:
    """Debian packages."""
    if not shutil.which("apt-get"):
        raise Skipped(f"{', '.join(packages)} missing, and this is no Debian to install them on")
    with step(f"install {' '.join(packages)}"):
        # On a machine with an init system the package would start an engine that nobody asked for.
        apt = ("env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get")
        run(*apt, "update", "-q")
        run(*apt, "install", "-qy", "--no-install-recommends", *packages)


def compose_command() -> list[str] | None:
    """Compose as a plugin or as the older command."""
    if succeeds("docker", "compose", "version"):
        return ["docker", "compose"]
    return ["docker-compose"] if succeeds("docker-compose", "version") else None


@contextlib.contextmanager
def engine() -> Iterator[list[str]]:
    """A running engine, and the compose command to talk to it."""
    if succeeds("docker", "info"):
        compose = compose_command()
        if compose is None and os.geteuid() == 0:
            install("docker-compose")
            compose = compose_command()
        if compose is None:
            raise Skipped("there is a Docker engine but no docker-compose")
        yield compose
        return
    if os.geteuid() != 0:
        raise Skipped("no Docker engine answers, and only root can start one")
    if sys.platform != "linux" or not succeeds("unshare", "--mount", "--net", "--pid", "--fork", "true"):
        raise Skipped("no Docker engine answers, and this machine does not allow namespaces")
    if not shutil.which("dockerd") or compose_command() is None:
        install(*PACKAGES)
    compose = compose_command()
    if compose is None:
        raise Skipped("docker-compose is installed but does not run")
    # A socket's path must be short, the checkout's may be long.
    with tempfile.TemporaryDirectory(prefix="swarm-docker-", ignore_cleanup_errors=True) as folder, own_engine(folder):
        yield compose


@contextlib.contextmanager
def own_engine(folder: str) -> Iterator[None]:
    """An engine that nobody else talks to, and that leaves this machine's network as it is.

    It needs no packet filter: containers talk over one bridge, and the builder is on the host's network.
    """
    os.environ["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
    network = ["--bridge=none", "--iptables=false", "--ip-forward=false"]
    for options in (network, [*network, "--storage-driver=vfs"]):
        command = ["dockerd", "--host", os.environ["DOCKER_HOST"], "--data-root", str(WORK / "engine")]
        command += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid", *options]
        with open(WORK / "engine.log", "ab") as log:
            # In a session of its own: Ctrl-C must not end it before the containers.
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            with step(f"start an engine with {' '.join(options)}"):
                answers = engine_answers(process)
            if answers:
                yield
                return
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            for mount in Path("/proc/mounts").read_text().splitlines():
                if mount.split()[1].startswith(folder):  # the engine leaves a network namespace behind
                    succeeds("umount", mount.split()[1])
    tail = (WORK / "engine.log").read_text(errors="replace").strip().splitlines()[-1:]
    raise Skipped(f"dockerd does not start here: {' '.join(tail)}")


def engine_answers(process: subprocess.Popen[bytes]) -> bool:
    """Whether the engine came up."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if succeeds("docker", "info"):
            return True
        time.sleep(0.5)
    return False


# --- an image ---


def base_image() -> str:
    """An image with Python that is here, can be pulled, or is made from Debian's packages."""
    wanted = os.environ.get("BASE_IMAGE") or default_base()
    if succeeds("docker", "image", "inspect", wanted) or succeeds("docker", "pull", wanted, timeout_s=180):
        return with_certificates(wanted)
    if not succeeds("docker", "image", "inspect", LOCAL_BASE):
        if os.geteuid() != 0:
            raise Skipped(f"{wanted} cannot be pulled, and only root can make a base image")
        if not shutil.which("debootstrap"):
            install("debootstrap")
        with step(f"make a base image, as {wanted} cannot be pulled"):
            bootstrap_debian()
    return with_certificates(LOCAL_BASE)


def default_base() -> str:
    """What the Dockerfile builds on by itself."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("ARG BASE_IMAGE="))


def bootstrap_debian() -> None:
    """Debian bookworm, whose Python is 3.11, as an image."""
    folder = Path(tempfile.mkdtemp(prefix="debian-", dir=WORK))
    try:
        packages = "--include=python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", packages, "bookworm", str(folder))
        for cache in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
            shutil.rmtree(folder / cache, ignore_errors=True)
        with subprocess.Popen(["docker", "import", "-", LOCAL_BASE], stdin=subprocess.PIPE) as importing:
            assert importing.stdin is not None
            with importing.stdin, tarfile.open(fileobj=importing.stdin, mode="w|") as archive:
                archive.add(folder, arcname=".")
        if importing.returncode:
            raise Failed("docker import did not take the base image")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def with_certificates(base: str) -> str:
    """The image, plus this machine's certificates where it has some of its own for pip."""
    bundle = own_certificates()
    if not bundle or not Path(bundle).is_file():
        return base
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        shutil.copyfile(bundle, Path(folder, "bundle.crt"))
        target = "/etc/ssl/certs/machine.crt"
        lines = f"FROM {base}\nCOPY bundle.crt {target}\nENV PIP_CERT={target} SSL_CERT_FILE={target}\n"
        Path(folder, "Dockerfile").write_text(lines)
        run("docker", "build", "-t", f"{LOCAL_BASE}:certificates", folder)
    return f"{LOCAL_BASE}:certificates"


def own_certificates() -> str:
    """The bundle that pip uses here, as the environment or its own settings have it; empty for its built-in one."""
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        if bundle := os.environ.get(name):
            return bundle
    settings = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = re.search(r"^global\.cert='(.+)'$", settings, re.MULTILINE)
    return found[1] if found else ""


class FolderHandler(http.server.SimpleHTTPRequestHandler):
    """Files and listings below some folders, under their own paths."""

    def __init__(self, *args: object, folders: list[Path], **kwargs: object) -> None:
        """`folders` are all that can be read."""
        self.folders = folders
        super().__init__(*args, directory="/", **kwargs)  # type: ignore[arg-type]

    def send_head(self) -> object:  # type: ignore[override]
        """Refuses what lies elsewhere."""
        asked = Path(self.translate_path(self.path)).resolve()
        if any(asked == folder or folder in asked.parents for folder in self.folders):
            return super().send_head()
        self.send_error(404)
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def package_sources() -> Iterator[dict[str, str]]:
    """pip's configuration on this machine as build arguments; folders become addresses on loopback."""
    settings = {}
    for name in ("index-url", "extra-index-url", "find-links", "trusted-host"):
        variable = f"PIP_{name.replace('-', '_').upper()}"
        configured = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"global.{name}"], capture_output=True, text=True
        )
        settings[variable] = os.environ.get(variable) or configured.stdout.strip()
    folders: list[Path] = []
    # The same port every time: it is part of the arguments that the builder's cache goes by.
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", stable_port()),
        functools.partial(FolderHandler, folders=folders),  # type: ignore[arg-type]
    )
    for variable, value in settings.items():
        settings[variable] = " ".join(
            reachable(item, "INDEX" in variable, folders, server.server_address[1]) for item in value.split()
        )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield settings
    finally:
        server.shutdown()


def stable_port() -> int:
    """A free port, and the same one for a checkout if that is free."""
    port = 20_000 + zlib.crc32(str(ROOT).encode()) % 10_000
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port


def reachable(location: str, is_index: bool, folders: list[Path], port: int) -> str:
    """A location that a container on the host's network can read."""
    path = Path(unquote(urlsplit(location).path))
    if not location.startswith(("file://", "/")) or not path.is_dir():
        return location
    folders.append((path.parent if is_index else path).resolve())  # the pages of an index link to files beside it
    return f"http://127.0.0.1:{port}{path.resolve()}/"


# --- the swarm ---


class Swarm:
    """The project of docker-compose.yml."""

    def __init__(self, compose: list[str], settings: dict[str, str]) -> None:
        """`settings` stand above those of .env."""
        self._compose = [*compose, "--project-name", PROJECT, "--project-directory", str(ROOT)]
        os.environ.update(settings)

    def compose(self, *arguments: str, profile: str = "swarm", timeout_s: float = 900) -> str:
        """One command of compose."""
        return run(*self._compose, "--profile", profile, *arguments, timeout_s=timeout_s)

    def containers(self, service: str) -> list[str]:
        """Ids of those that run. Asked of the engine: compose takes a second of a core to say the same."""
        label = "label=com.docker.compose"
        filters = ("--filter", f"{label}.project={PROJECT}", "--filter", f"{label}.service={service}")
        return run("docker", "ps", "--quiet", *filters).split()

    def look(self, service: str = "bootstrap") -> dict[str, dict[str, int]]:
        """What the nodes' metrics say, by directory, read in a container of this service."""
        try:
            found: dict[str, dict[str, int]] = json.loads(
                run("docker", "exec", *self.containers(service)[:1], "python3", "-c", LOOK, quiet=True)
            )
        except (Failed, json.JSONDecodeError):  # the bootstrap is being restarted
            return {}
        return found

    def health(self, container: str) -> str:
        """What Docker thinks of a container."""
        return run("docker", "inspect", "-f", "{{.State.Status}} {{.State.Health.Status}}", container).strip()

    def home(self, container: str) -> str:
        """The directory of the node in a container; empty while none runs there."""
        try:
            nodes = json.loads(run("docker", "exec", container, "swarm", "health", "--json", quiet=True))
        except (Failed, json.JSONDecodeError):
            return ""
        return Path(nodes[0]["out"]).name if nodes else ""


def exercise(swarm: Swarm) -> None:
    """Up, training, three deaths, and everybody back."""
    with step("up"):
        swarm.compose("up", "--detach")
    with step("every peer has used groups of others"):
        wait_until(
            f"{PEERS} peers that have used external groups",
            lambda: sum(peer["used_external"] > 0 for peer in swarm.look().values()) == PEERS,
            300,
        )
    before = swarm.look()
    ids = {folder: peer["peer_id"] for folder, peer in before.items()}
    print("  " + "\n  ".join(f"{folder}: {json.dumps(peer)}" for folder, peer in before.items()))
    if len(set(ids.values())) != PEERS:
        raise Failed(f"the peers must have different ids, got {ids}")
    containers = swarm.containers("peer")
    with step("every container is healthy"):
        everybody = [*containers, *swarm.containers("bootstrap")]
        wait_until("healthy containers", lambda: all(swarm.health(c) == "running healthy" for c in everybody), 300)
    with step("a node that crashes is restarted and resumes as the same peer"):
        come_back(swarm, ids, containers[0], lambda: crash(containers[0]))
    with step("a killed container comes back with `up` as the same peer"):
        come_back(swarm, ids, containers[1], lambda: kill_and_start(swarm, containers[1]))
    with step("a killed bootstrap comes back with the same address"):
        address = bootstrap_address(swarm)
        (container,) = swarm.containers("bootstrap")
        kill_and_start(swarm, container)
        wait_until("a healthy bootstrap", lambda: swarm.health(container) == "running healthy", 300)
        if bootstrap_address(swarm) != address:
            raise Failed(f"the bootstrap's address was {address}, and is now {bootstrap_address(swarm)}")
    after = swarm.look()
    if {folder: peer["peer_id"] for folder, peer in after.items()} != ids:
        raise Failed(f"the peers were {ids}, and are now {after}")


def limits(swarm: Swarm) -> None:
    """What the engine applies to a peer."""
    with step("limits, restarts and logs are as .env says"):
        (container, *_) = swarm.containers("peer")
        host = json.loads(run("docker", "inspect", "-f", "{{json .HostConfig}}", container))
        found = (host["Memory"], host["NanoCpus"], host["RestartPolicy"]["Name"], host["LogConfig"]["Config"])
        expected = (MEMORY_MB * 2**20, int(CPUS * 1e9), "unless-stopped", {"max-file": "3", "max-size": "10m"})
        if found != expected:
            raise Failed(f"limits must be {expected}, got {found}")


def compare_mixes(swarm: Swarm) -> None:
    """Four peers with a mix each, learning from each other."""
    with step("up with the profile mixes"):
        swarm.compose("up", "--detach", profile="mixes")

    def trained() -> dict[str, tuple[int, int]]:
        return {
            peer["name"]: (peer["mix"]["local"], peer["mix"]["external"])
            for peer in swarm.look().values()
            if peer["name"] in MIXES and peer["round"] > 3 and (peer["used_external"] or not peer["mix"]["external"])
        }

    with step("each trains with its own mix"):
        wait_until(f"mixes {MIXES}", lambda: trained() == MIXES, 300)


def learn(swarm: Swarm) -> None:
    """A learner that takes steps, and workers that sample for it."""
    with step("up with the profile learner"):
        swarm.compose("up", "--detach", profile="learner")
    with step("the learner trains on what its workers sample"):
        wait_until(
            f"steps of the learner, and {WORKERS} workers with its snapshots",
            lambda: (
                (found := swarm.look("learner"))
                and found.get("learner", {}).get("round", 0) > 2
                and sum(node["following"] for node in found.values()) == WORKERS
            ),
            300,
        )


def crash(container: str) -> None:
    """Kill the node in a container. The container may end, and this command with it, before the command does."""
    run("docker", "exec", container, "python3", "-c", CRASH, successes=(0, 128 + signal.SIGKILL))


def kill_and_start(swarm: Swarm, container: str) -> None:
    """Docker takes `kill` for an order to stay down: no restart policy applies, somebody has to start it."""
    run("docker", "kill", container)
    swarm.compose("up", "--detach", "--no-recreate")


def come_back(swarm: Swarm, ids: dict[str, str], container: str, kill: Callable[[], object]) -> None:
    """After `kill`, the node in `container` has its directory and peer id again, and trains on from a checkpoint."""
    home = swarm.home(container)
    if home not in ids:
        raise Failed(f"no peer in container {container}: {home!r}")
    wait_until("a checkpoint", lambda: swarm.look()[home]["round"] > 12, 300)
    starts = swarm.look()[home]["starts"]
    kill()
    wait_until(
        f"{home} in its container, training again",
        lambda: (peer := swarm.look().get(home)) and peer["starts"] > starts and peer["since_start"] > 1,
        300,
    )
    peer = swarm.look()[home]
    if swarm.home(container) != home or peer["peer_id"] != ids[home] or not peer["resumed_from"]:
        raise Failed(f"{container} was {home} {ids[home]}, and is now {swarm.home(container)} {peer}")
    print(f"  {home}, {peer['peer_id']}, resumed from round {peer['resumed_from']}")


def bootstrap_address(swarm: Swarm) -> str:
    """The first address that the bootstrap gave out."""
    return run("docker", "exec", *swarm.containers("bootstrap"), "head", "-n", "1", "runs/bootstrap/multiaddrs")


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test() -> None:
    """Everything, and down again whatever happens."""
    with contextlib.ExitStack() as stack:
        compose = stack.enter_context(engine())
        base = base_image()
        sources = stack.enter_context(package_sources())
        port, learner_port = str(free_port()), str(free_port())
        settings = {
            **sources,
            "BASE_IMAGE": base,
            "BUILD_NETWORK": "host",
            "IMAGE": IMAGE,
            "PEERS": str(PEERS),
            "PORT": port,
            "ANNOUNCE": f"[/dns4/bootstrap/tcp/{port}]",
            "WORKERS": str(WORKERS),
            "LEARNER_PORT": learner_port,
            "LEARNER_ANNOUNCE": f"[/dns4/learner/tcp/{learner_port}]",
            "LEARNER_OPTIONS": "--evaluation.num_questions 0 --learner.rollouts_per_step 32",
            "MEMORY_LIMIT": f"{MEMORY_MB}m",
            "CPU_LIMIT": str(CPUS),
            "SWARM_ROUNDS": "2000",
            "PEER_OPTIONS": "--checkpoint.every_rounds 5 --evaluation.num_questions 64",
        }
        swarm = Swarm(compose, settings)
        with step("build the image"):
            swarm.compose("build")
        size = int(run("docker", "image", "inspect", "-f", "{{.Size}}", IMAGE))
        print(f"  {size / 1e6:.0f} MB, on a base of {base_size(base) / 1e6:.0f} MB")
        for profile, parts in (("swarm", (exercise, limits)), ("mixes", (compare_mixes,)), ("learner", (learn,))):
            with taken_down(swarm, profile):
                for part in parts:
                    part(swarm)


@contextlib.contextmanager
def taken_down(swarm: Swarm, profile: str) -> Iterator[None]:
    """Take a profile down in the end, and show its logs if something failed."""
    try:
        yield
    except (Failed, subprocess.TimeoutExpired):
        with contextlib.suppress(Failed):
            print(swarm.compose("logs", "--tail", "20", profile=profile), file=sys.stderr)
        raise
    finally:
        take_down(swarm, profile)


def base_size(base: str) -> int:
    """Bytes."""
    return int(run("docker", "image", "inspect", "-f", "{{.Size}}", base))


def take_down(swarm: Swarm, profile: str) -> None:
    """Containers, network and volumes; the images stay, for the next time."""
    left_s = signal.alarm(0)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it
    with step("down"):
        swarm.compose("down", "--volumes", "--remove-orphans", "--timeout", "10", profile=profile)
    signal.signal(signal.SIGINT, handler)
    signal.alarm(left_s)


def main() -> int:
    """The exit code."""
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "log.txt").unlink(missing_ok=True)

    def too_long(number: int, frame: object) -> None:
        raise Failed(f"not done within {LIMIT_S} s")

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, too_long)
    signal.signal(signal.SIGTERM, stop)
    signal.alarm(LIMIT_S)
    began = time.monotonic()
    try:
        test()
    except Skipped as reason:
        print(f"skipped: no way to run containers here: {reason}")
        return 0
    except (Failed, subprocess.TimeoutExpired) as error:
        print(f"failed: {error}; see {WORK / 'log.txt'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"passed in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
