"""`swarm doctor`: each check with both outcomes, its probes on real things, and all of it over loopback."""

from __future__ import annotations

import json
import os
import socket
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from nodes.cli import app
from nodes.commands import doctor as command, doctor as machine, doctor as outside, probes
from nodes.commands.doctor import (
    Finding,
    check_clock,
    check_gpu,
    check_nat,
    check_reachable,
    check_run,
    dial_back_ports,
)
from nodes.commands.probes import DaemonTrial, Disk, Gpu, KeyFile, Package, Port, Sandbox, Torch
from swarm.config import NodeConfig, load_config
from swarm.engines.choice import Vllm
from swarm.engines.config import GenerationSettings, VllmSettings
from swarm.errors import ConfigError, Refusal
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.member import Profile
from swarm.net.records.identity import Identity
from swarm.net.services.diagnosis import ClockReading, DialBackReply, serve_diagnosis
from swarm.policy.loading import Policy
from swarm.preflight.check import Memory, Preflight, Verdict
from swarm.preflight.need import Need, Part
from tests.extras.vllm.stand_in import python_with_vllm
from tests.net.records import fast_settings, make_identity, make_manifest, sealed_manifest

GIB = 2**30
CPU_BUILD = Torch("2.13.0+cpu")
CUDA_BUILD = Torch("2.13.0", "13.0")
H200 = Gpu("NVIDIA H200", 100 * GIB, 139 * GIB)
LOCAL = frozenset({"127.0.0.1", "192.168.1.5", "8.8.4.4"})


def reply(observed: str, reached: bool) -> DialBackReply:
    return DialBackReply("done", "", observed, {4000: reached})


def engine(device: str, found: Vllm, model: str = "some/model", **settings: object) -> Finding:
    return machine.check_engine(GenerationSettings(**settings), model, device, found, "==0.32.0")


def preflight(verdict: Verdict, free_gib: int) -> Preflight:
    weights, passes = Part("weights", 3 * GIB), Part("activations", GIB, "update")
    memory = Memory("cuda", free_gib * GIB, 10 * GIB)
    return Preflight("m", memory, Need((weights, passes)), Need((weights,)), verdict)


PYTHON = Path("/vllm/bin/python")
NAMED = VllmSettings(python=PYTHON)
VLLM = Vllm(PYTHON, "0.32.0+cpu")
NO_VLLM = Vllm(PYTHON, problem="/vllm/bin/python has no vLLM")

REFUSED = DialBackReply("refused", "busy with others; ask again later")
MANIFEST = make_manifest(Identity.generate())

OUTCOMES = {
    "python": (machine.check_python("3.12.1", ">=3.11"), "ok", "3.12.1"),
    "old python": (machine.check_python("3.9.2", ">=3.11"), "fail", "3.9.2, but >=3.11"),
    "packages": (machine.check_packages([Package("numpy>=2", "2.1", True)]), "ok", "all 1"),
    "missing package": (
        machine.check_packages([Package("numpy>=2", None, False), Package("rich>=14", "9", False)]),
        "fail",
        "numpy>=2 is missing; out of range: rich>=14 (installed: 9)",
    ),
    "other package": (machine.check_packages([Package("rich>=14", "9", False)]), "warn", "out of range"),
    "no gpu": (check_gpu(CPU_BUILD, None, "auto"), "ok", "the CPU is used"),
    "gpu": (check_gpu(Torch("2.13.0", "13.0", (H200,)), "580", "auto"), "ok", "NVIDIA H200 (100 of 139 GiB free)"),
    "full gpu": (check_gpu(Torch("2.13.0", "13.0", (Gpu("G", GIB, 8 * GIB),)), "580", "auto"), "warn", "1 of 8 GiB"),
    "cpu build": (check_gpu(CPU_BUILD, "580.1", "auto"), "warn", "driver (580.1), but torch 2.13.0+cpu is a build"),
    "cpu build, gpu asked for": (check_gpu(CPU_BUILD, "580.1", "cuda:0"), "fail", "a build for CPUs"),
    "old driver": (check_gpu(CUDA_BUILD, "470", "auto"), "warn", "cannot use the driver 470"),
    "no gpu, gpu asked for": (check_gpu(CUDA_BUILD, None, "cuda"), "fail", "policy.device is cuda"),
    "apple": (check_gpu(Torch("2.13.0", mps=True), None, "mps"), "ok", "Apple"),
    "no apple": (check_gpu(CPU_BUILD, None, "mps"), "fail", "policy.device is mps"),
    "no torch": (check_gpu(Torch(problem="No module named torch"), None, "auto"), "fail", "No module named torch"),
    "engine without gpu": (engine("cpu", NO_VLLM), "ok", "transformers: the policy is on cpu, but vLLM needs a GPU"),
    "engine of tiny": (
        engine("cuda", NO_VLLM, "tiny"),
        "ok",
        "transformers: the embedded policy is too small for vLLM",
    ),
    "engine for a gpu": (
        engine("cuda", VLLM),
        "ok",
        "vllm: a CUDA GPU and vLLM are available; /vllm/bin/python has vLLM 0.32.0",
    ),
    "gpu without vllm": (engine("cuda", NO_VLLM), "warn", "the engine is transformers: /vllm/bin/python has no vLLM"),
    "gpu, transformers asked for": (engine("cuda", NO_VLLM, engine="transformers"), "ok", "transformers: asked for"),
    "vllm asked for": (engine("cpu", VLLM, engine="vllm"), "ok", "vllm: asked for; /vllm/bin/python has vLLM 0.32.0"),
    "vllm asked for and not there": (engine("cuda", NO_VLLM, engine="vllm"), "fail", "generation.engine is vllm, but"),
    "python without vllm": (engine("cpu", NO_VLLM, vllm=NAMED), "warn", "vLLM needs a GPU; /vllm/bin/python has no"),
    "other vllm": (engine("cuda", Vllm(PYTHON, "0.31.2")), "warn", "/vllm/bin/python has vLLM 0.31.2"),
    "unnamed vllm": (engine("cuda", Vllm(PYTHON)), "ok", "has vLLM of unknown version"),
    "memory": (machine.check_memory(preflight("fits", 10)), "ok", "m needs about 4.0 GiB, and 10.0 GiB of cuda memory"),
    "little memory": (machine.check_memory(preflight("smaller", 3)), "warn", "at least 3.0 GiB"),
    "no memory": (machine.check_memory(preflight("too large", 1)), "fail", "weights 3.0 GiB; in turn activations 1.0"),
    "sandbox": (machine.check_sandbox(Sandbox()), "ok", "only Python's own files, no network"),
    "sandbox with a hole": (machine.check_sandbox(Sandbox({"files": "Landlock: none"})), "warn", "not kept from files"),
    "no worker": (machine.check_sandbox(Sandbox(problem="workers do not start")), "fail", "do not start"),
    "disk": (machine.check_disk(Disk("directory", "runs", 10 * GIB)), "ok", "10.0 GiB free"),
    "little disk": (machine.check_disk(Disk("cache", "c", 2 * GIB)), "warn", "2.0 GiB"),
    "no disk": (machine.check_disk(Disk("cache", "c", 1_000)), "fail", "0.0 GiB"),
    "read-only disk": (machine.check_disk(Disk("directory", "r", 0, "denied")), "fail", "cannot be written: denied"),
    "no identity": (machine.check_identity(KeyFile("k")), "ok", "will be created"),
    "identity": (machine.check_identity(KeyFile("k", "12D3", in_use=True)), "ok", "in use by a running node"),
    "open identity": (machine.check_identity(KeyFile("k", "12D3", 0o644)), "warn", "mode 0644"),
    "damaged identity": (machine.check_identity(KeyFile("k", problem="k is damaged")), "fail", "damaged"),
    "port": (machine.check_port(Port("/ip4/0.0.0.0/tcp/0")), "ok", "can be listened on"),
    "port of a node": (machine.check_port(Port("a", "it is taken", True, "p2pd (pid 7)")), "warn", "a node is running"),
    "taken port": (machine.check_port(Port("a", "it is taken", True, "nginx (pid 7)")), "fail", "nginx (pid 7)"),
    "port taken by someone": (machine.check_port(Port("a", "it is taken", True)), "fail", "another process"),
    "forbidden port": (machine.check_port(Port("a", "permission denied")), "fail", "permission denied"),
    "daemon": (machine.check_daemon(DaemonTrial("p", start_s=0.21)), "ok", "answered in 0.2 s"),
    "unwatched daemon": (machine.check_daemon(DaemonTrial("p", start_s=0.2, unwatched="needs Linux")), "warn", "Linux"),
    "no daemon": (machine.check_daemon(DaemonTrial("", problem="none found")), "fail", "none found"),
    "daemon not executable": (machine.check_daemon(DaemonTrial("p", executable=False)), "fail", "may not be executed"),
    "broken daemon": (machine.check_daemon(DaemonTrial("p", problem="it exited")), "fail", "it exited"),
    "bootstraps": (outside.check_bootstraps(["a", "b"], {}), "ok", "all 2 answer"),
    "half the bootstraps": (outside.check_bootstraps(["a", "b"], {"b": "refused"}), "warn", "b: refused"),
    "no bootstraps": (outside.check_bootstraps(["b"], {"b": "refused"}), "fail", "b: refused"),
    "clock": (check_clock(ClockReading(-0.3, 0.1)), "ok", "0.30 s ahead of"),
    "drifting clock": (check_clock(ClockReading(2.0, 0.1)), "warn", "2.00 s behind"),
    "wrong clock": (check_clock(ClockReading(-3.5, 0.1)), "fail", "refuses more than 3 s"),
    "wrong clock, slow link": (check_clock(ClockReading(4.0, 3.5)), "warn", "to within 3.50 s"),
    "no clock": (check_clock(ClockReading(float("nan"), 0.1)), "warn", "not checked"),
    "run": (check_run(MANIFEST, "9.9", None), "ok", "schema 2 as ours; the bootstrap has swarm 9.9"),
    "run without version": (check_run(MANIFEST, "", MANIFEST.run_id), "ok", "an unknown version"),
    "no run": (check_run(None, "", None), "warn", "does not know its run"),
    "other run": (check_run(MANIFEST, "", "other-1"), "fail", "not in other-1"),
    "other schema": (check_run(Refusal("schema_version", "2"), "", None), "fail", "another version"),
    "forged run": (check_run(Refusal("bad_signature"), "", None), "fail", "was refused: bad_signature"),
    "reachable": (check_reachable(reply("8.8.4.4", True), [4000]), "ok", "at 8.8.4.4, port 4000"),
    "unreachable": (check_reachable(reply("8.8.8.8", False), [4000]), "warn", "cannot reach this machine"),
    "no dial-back": (check_reachable(REFUSED, [4000]), "warn", "not checked: busy with others; ask again later"),
    "public": (check_nat(reply("8.8.4.4", True), LOCAL), "ok", "public"),
    "firewalled": (check_nat(reply("8.8.4.4", False), LOCAL), "warn", "firewall"),
    "mapped": (check_nat(reply("8.8.8.8", True), LOCAL), "ok", "behind NAT with a mapped port"),
    "behind nat": (check_nat(reply("8.8.8.8", False), LOCAL), "warn", "behind NAT, unreachable"),
    "same network": (check_nat(reply("192.168.1.5", True), LOCAL), "ok", "same private network"),
    "same machine": (check_nat(reply("127.0.0.1", True), LOCAL), "ok", "on this machine"),
    "no nat": (check_nat(REFUSED, LOCAL), "warn", "not checked"),
    "nonsense nat": (check_nat(reply("\x1b[2J", True), LOCAL), "warn", "reported no address"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_check_says_what_it_saw_and_what_to_do(name: str) -> None:
    finding, level, words = OUTCOMES[name]
    assert finding.level == level, finding
    assert words in finding.seen, finding
    assert bool(finding.fix) == (level != "ok"), finding


def test_ports_to_be_dialled_back_are_few_tcp_and_unprivileged() -> None:
    addresses = [
        "/ip4/1.2.3.4/tcp/4001/p2p/x",
        "/ip4/127.0.0.1/tcp/4001/p2p/x",
        "/ip4/1.2.3.4/udp/4002/quic",
        "/ip4/1.2.3.4/tcp/443",
        "/ip4/9.9.9.9/tcp/4003/p2p/relay/p2p-circuit",
        *(f"/ip6/::/tcp/{port}" for port in range(5000, 5010)),
    ]
    assert dial_back_ports(addresses) == (4001, 5000, 5001, 5002)


def test_libraries_are_compared_with_their_ranges() -> None:
    found = probes.look_up(Requirement("msgspec>=0.1"))
    assert found.fits and found.installed == version("msgspec")
    assert not probes.look_up(Requirement("msgspec>=1000")).fits
    assert probes.look_up(Requirement("no-such-library-anywhere>=1")).installed is None
    assert any(package.requirement.startswith("torch") for package in probes.packages())
    assert "3.11" in probes.required_python()
    assert probes.supported_vllm().startswith("==")


def test_a_taken_port_is_seen_with_its_owner_and_freed_ones_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"
        taken = probes.try_port(address)
        assert taken.taken and not taken.by_a_node
        assert taken.owner in ("", f"{probes.psutil.Process().name()} (pid {os.getpid()})")

        def denied(kind: str) -> None:
            raise probes.psutil.AccessDenied

        monkeypatch.setattr(probes.psutil, "net_connections", denied)
        assert probes.try_port(address) == Port(address, "it is taken", True, "")
    assert not probes.try_port(address).problem
    assert not probes.try_port("/ip4/127.0.0.1/udp/0/quic").problem


@pytest.mark.parametrize("address", ["/ip4/203.0.113.1/tcp/0", "/dns4/a.example/tcp/1", "/ip4/1.2.3.4", "/ip4/x/tcp/y"])
def test_what_cannot_be_listened_on_has_a_reason(address: str) -> None:
    port = probes.try_port(address)
    assert port.problem and not port.taken


def test_a_disk_is_looked_at_without_leaving_anything(tmp_path: Path) -> None:
    disk = probes.look_at_disk("directory", tmp_path / "not" / "yet")
    assert not disk.problem and disk.free_bytes > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert "not a directory" in probes.look_at_disk("directory", tmp_path / "file" / "below").problem
    assert not probes.look_at_disk("directory", tmp_path).problem


def test_an_identity_is_looked_at_while_it_is_used(tmp_path: Path) -> None:
    config = NodeConfig(out=tmp_path)
    assert probes.key(config).peer_id == ""
    assert list(tmp_path.iterdir()) == [], "looking makes none"
    holder = Identity.load_or_create(tmp_path / "identity.key")
    assert probes.key(config) == KeyFile(str(tmp_path / "identity.key"), holder.peer_id, 0o600, True)
    holder.close()
    assert not probes.key(config).in_use
    (tmp_path / "identity.key").write_text("junk")
    assert "must hold an Ed25519 key" in probes.key(config).problem


def test_torch_that_breaks_its_process_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "ASK_TORCH", "import os; os.abort()")
    assert "ended with code" in probes.torch().problem
    monkeypatch.setattr(probes, "ASK_TORCH", "raise ImportError('no libcudart')")
    assert "no libcudart" in probes.torch().problem
    monkeypatch.setattr(probes, "ASK_TORCH", 'print(\'["2.13.0", "13.0", [["H", 1, 2]], false]\')')
    assert probes.torch() == Torch("2.13.0", "13.0", (Gpu("H", 1, 2),))
    monkeypatch.setattr(probes, "TORCH_TIMEOUT_S", 0.5)
    monkeypatch.setattr(probes, "ASK_TORCH", "import time; time.sleep(60)")
    assert "did not answer" in probes.torch().problem


@pytest.mark.parametrize(
    ("wanted", "torch", "device"),
    [
        ("auto", CPU_BUILD, "cpu"),
        ("auto", Torch("2.13.0", "13.0", (H200,)), "cuda"),
        ("auto", Torch("2.13.0", mps=True), "mps"),
        ("cpu", Torch("2.13.0", "13.0", (H200,)), "cpu"),
        ("cuda:1", Torch("2.13.0", "13.0", (H200, H200)), "cuda"),
    ],
)
def test_the_device_of_the_policy_is_known_before_it_is_loaded(wanted: str, torch: Torch, device: str) -> None:
    assert torch.device(wanted) == device


def test_the_engine_is_looked_for_as_a_node_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**policy: str) -> Finding:
        fields = {"generation.engine": "vllm", "generation.vllm.python": str(python_with_vllm(tmp_path)), **policy}
        loaded = load_config(command_line=[*fields.items()])
        return next(finding for finding in command.diagnose(loaded) if finding.check == "engine")

    monkeypatch.setattr(probes, "torch", lambda: CPU_BUILD)
    monkeypatch.setattr(probes, "nvidia_driver", lambda: None)
    stand_in = found()
    assert stand_in.seen == f"vllm: asked for; {tmp_path / 'python'} has vLLM 0.0"
    assert stand_in.level == "warn" and f"install vllm{probes.supported_vllm()} there" in stand_in.fix
    assert found(**{"policy.device": "cuda"}).seen == "not checked: the policy has no device"


def test_memory_is_judged_for_the_model_and_the_role(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.save(tmp_path / "model")
    monkeypatch.setattr(probes, "torch", lambda: CPU_BUILD)
    monkeypatch.setattr(probes, "nvidia_driver", lambda: None)

    def found(model: Path, started_by: str, check: str = "memory") -> Finding:
        loaded = load_config(command_line=[("policy.model", str(model)), ("policy.device", "cpu")])
        return next(finding for finding in command.diagnose(loaded, started_by) if finding.check == check)

    assert "optimizer" in found(tmp_path / "model", "join").seen
    assert "optimizer" not in found(tmp_path / "model", "work").seen
    missing = found(tmp_path / "nowhere", "join", "settings")
    assert missing.level == "fail" and missing.seen == f"policy.model: there is no directory {tmp_path / 'nowhere'}"
    assert found(tmp_path / "nowhere", "join").seen == "not checked: these settings cannot be used"
    with pytest.raises(ConfigError, match="--role must be"):
        CliRunner().invoke(app, ["doctor", "--role", "boss"], catch_exceptions=False, standalone_mode=False)


def diagnosed(*arguments: str) -> tuple[int, dict[str, Finding]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments], obj=[])
    findings = [Finding(**entry) for entry in json.loads(result.output)]
    return result.exit_code, {finding.check: finding for finding in findings}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A configuration for loopback, on a machine whose torch is known."""
    monkeypatch.setattr(probes, "torch", lambda: CPU_BUILD)
    monkeypatch.setattr(probes, "nvidia_driver", lambda: None)
    monkeypatch.setenv("SWARM_OUT", str(tmp_path / "out"))
    file = tmp_path / "quick.yaml"
    file.write_text("network: {listen: [/ip4/127.0.0.1/tcp/0], nat_port_map: false}\n")
    return str(file)


@pytest.mark.network
def test_without_a_bootstrap_it_says_what_it_could_not_check(quick: str, tmp_path: Path) -> None:
    code, found = diagnosed(quick)
    assert code == 0, found
    assert found["daemon"].level == "ok"
    assert found["network"].level == "ok" and not found.keys() & set(outside.NETWORK_CHECKS), "a founder needs none"
    assert not (tmp_path / "out").exists()


@pytest.mark.network
def test_a_dead_bootstrap_fails(quick: str, tmp_path: Path) -> None:
    nobody = f"/ip4/127.0.0.1/tcp/1/p2p/{make_identity(tmp_path, 'nobody').peer_id}"
    code, found = diagnosed(quick, "--bootstrap", nobody)
    assert code == 1
    assert (found["bootstrap"].level, found["clock"].level) == ("fail", "warn")
    assert "connection refused" in found["bootstrap"].seen


@pytest.mark.network
def test_a_bootstrap_tells_time_run_and_reachability(
    quick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    founder = make_identity(tmp_path, "founder")
    settings = fast_settings()
    bootstrap = HivemindTransport(settings, founder, sealed_manifest(founder), Profile(role="bootstrap", version="9.9"))
    try:
        serve_diagnosis(bootstrap)
        bootstrap.start()
        address = bootstrap.multiaddrs()[0]
        code, found = diagnosed(quick, "--bootstrap", address)
        assert code == 0, found
        assert all(finding.level == "ok" for finding in found.values()), found
        assert "the bootstrap has swarm 9.9" in found["run"].seen
        assert "at 127.0.0.1, port" in found["reachable"].seen
        assert "on this machine" in found["nat"].seen
        assert bootstrap.peers() == (), "nobody was announced"
        # Once more, from a machine that listens where a node does already, with a clock that is wrong.
        monkeypatch.setattr(outside, "read_clock", lambda *arguments: ClockReading(7.0, 0.1))
        with open(quick, "a") as file:
            file.write(f"out: {tmp_path / 'other'}\n")
        monkeypatch.setenv("SWARM_NETWORK__LISTEN", address.partition("/p2p/")[0])
        code, found = diagnosed(quick, "--bootstrap", address)
        assert code == 1
        assert found["clock"].level == "fail"
        assert found["port"].level in ("warn", "fail"), "taken; by whom, not every system tells"
        assert "dialled a moment ago" in found["reachable"].seen
    finally:
        bootstrap.close()
        founder.close()


def test_a_person_reads_lines_that_fit_and_a_count(quick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [OUTCOMES[name][0] for name in ("python", "taken port", "behind nat")]
    monkeypatch.setattr(command, "diagnose", lambda config, role: iter(findings))
    result = CliRunner().invoke(app, ["doctor", quick], obj=[])
    assert result.exit_code == 1
    assert "to do: end that process" in result.output
    assert result.output.splitlines()[-1] == "1 ok, 1 to look at, 1 failed"


def test_a_wrong_bootstrap_address_is_wrong_use(quick: str) -> None:
    result = CliRunner().invoke(app, ["doctor", quick, "--bootstrap", "/ip4/127.0.0.1/tcp/1"], obj=[])
    assert "/p2p/" in str(result.exception)
