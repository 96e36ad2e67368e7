"""Runs docker-compose.yml for real and takes it down again; `make compose-test`. Needs Python 3.10 and nothing else.

  engine      the one there is, or one of its own: installed from Debian's packages if need be, its state in build/
  base image  BASE_IMAGE or the Dockerfile's default if it can be had, else Debian bookworm by debootstrap
  packages    as pip is configured on this machine; folders of files are served to the builder over loopback
  swarm       a bootstrap and 4 peers: every peer uses groups of others; `swarm runs` and `swarm site` show the run; a
              node that crashes, a container that is killed and a bootstrap that is killed come back with the peer ids
              they had
  limits      what .env says of memory, processor, restarts and logs is what the engine applies
  mixes       four peers in one swarm, each with its own mix
  learner     a learner that trains on what its workers sample

Exits 0 when all of it was seen, or with one line "skipped: ..." where no container can be run, 1 otherwise.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from commands import WORK, Failed, Skipped, run, step
from engine import engine
from image import base_image, package_sources
from project import CPUS, MEMORY_MB, PEERS, WORKERS, Swarm, compare_mixes, exercise, learn, limits

IMAGE = "swarm-compose-test"
LIMIT_S = int(os.environ.get("COMPOSE_TEST_LIMIT_S", "1500"))


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
