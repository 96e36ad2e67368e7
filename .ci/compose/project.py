"""The project of docker-compose.yml, and what must be seen of it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

from commands import ROOT, Failed, run, step, wait_until

PROJECT = "swarm-compose-test"
PEERS = 4
WORKERS = 2
MIXES = {"mix-8-0": (8, 0), "mix-6-2": (6, 2), "mix-4-4": (4, 4), "mix-2-6": (2, 6)}
MEMORY_MB, CPUS = 3_000, 1.5
SITE = "/tmp/site"
"""In a container, of which nothing else can be written."""

# Run in a node's container: what its metrics say. It has one node, and finds no other's.
LOOK = """
import json, pathlib
found = {}
for file in pathlib.Path('runs').glob('*/metrics.jsonl'):
    lines = [json.loads(line) for line in file.read_text().splitlines(True) if line.endswith('\\n')]
    starts = [line for line in lines if line['event'] == 'start']
    rounds = [line for line in lines if line['event'] == 'round']
    assert not found, 'the directory of another node is here'
    found = {
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

    def look(self, *services: str) -> dict[str, dict[str, int]]:
        """What the nodes' metrics say, by container of these services, or of `peer`."""
        found: dict[str, dict[str, int]] = {}
        for container in (each for service in services or ("peer",) for each in self.containers(service)):
            try:
                if said := json.loads(run("docker", "exec", container, "python3", "-c", LOOK, quiet=True)):
                    found[container] = said
            except (Failed, json.JSONDecodeError):  # it is being restarted
                continue
        return found

    def health(self, container: str) -> str:
        """What Docker thinks of a container."""
        return run("docker", "inspect", "-f", "{{.State.Status}} {{.State.Health.Status}}", container).strip()


def exercise(swarm: Swarm) -> None:
    """Up, training, in a list of runs and on a page, three deaths, and everybody back."""
    with step("up"):
        swarm.compose("up", "--detach")
    with step("every peer has used groups of others"):
        wait_until(
            f"{PEERS} peers that have used external groups",
            lambda: sum(peer["used_external"] > 0 for peer in swarm.look().values()) == PEERS,
            300,
        )
    before = swarm.look()
    ids = {container: peer["peer_id"] for container, peer in before.items()}
    print("  " + "\n  ".join(f"{container}: {json.dumps(peer)}" for container, peer in before.items()))
    if len(set(ids.values())) != PEERS:
        raise Failed(f"the peers must have different ids, got {ids}")
    containers = swarm.containers("peer")
    with step("the run is found, and a page for everybody made of it"):
        address = bootstrap_address(swarm)
        wait_until(f"a page with {PEERS} members", lambda: published(containers[0], address) == PEERS, 120)
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
    if {container: peer["peer_id"] for container, peer in after.items()} != ids:
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
            for peer in swarm.look(*MIXES).values()
            if peer["round"] > 3 and (peer["used_external"] or not peer["mix"]["external"])
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
                any(node["round"] > 2 for node in swarm.look("learner").values())
                and sum(node["following"] for node in swarm.look("worker").values()) == WORKERS
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
    """After `kill`, the node in `container` has its peer id again, and trains on from a checkpoint."""
    wait_until("a checkpoint", lambda: swarm.look()[container]["round"] > 12, 300)
    starts = swarm.look()[container]["starts"]
    kill()
    wait_until(
        f"{container} training again",
        lambda: (peer := swarm.look().get(container)) and peer["starts"] > starts and peer["since_start"] > 1,
        300,
    )
    peer = swarm.look()[container]
    if peer["peer_id"] != ids[container] or not peer["resumed_from"]:
        raise Failed(f"{container} was {ids[container]}, and is now {peer}")
    print(f"  {container}, {peer['peer_id']}, resumed from round {peer['resumed_from']}")


def published(container: str, address: str) -> int:
    """Members of the run at an address, as `swarm runs` and `swarm site` say in a peer's container."""
    inside = ("docker", "exec", container)
    (listed,) = json.loads(run(*inside, "swarm", "runs", address, "--json"))
    run(*inside, "swarm", "site", SITE, address)
    (shown,) = json.loads(run(*inside, "cat", f"{SITE}/swarm.json"))["runs"]
    if (shown["run"], shown["join"]) != (listed["run_id"], f"swarm join {address}"):
        raise Failed(f"the list has {listed}, and the page has {shown}")
    return min(int(shown["members"]), int(listed["claimed"]["members"]))


def bootstrap_address(swarm: Swarm) -> str:
    """The first address that the bootstrap gave out."""
    return run("docker", "exec", *swarm.containers("bootstrap"), "head", "-n", "1", "addresses/bootstrap").strip()
