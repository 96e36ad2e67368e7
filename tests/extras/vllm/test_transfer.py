"""Weights through memory of the GPU that policy and vLLM share: with a file for the memory, and a stand-in for vLLM."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from swarm.engines.config import GenerationSettings, VllmSettings
from swarm.errors import EngineError
from swarm.extras.vllm import delivery, service as service_module
from swarm.extras.vllm.engine import VllmEngine
from swarm.extras.vllm.messages import Packed, Shared, encode
from swarm.extras.vllm.service import VllmService
from swarm.policy.adapters import Adapters
from swarm.policy.config import LoraSettings
from swarm.policy.loading import Policy
from swarm.types import Rejection, Sampling
from tests.engines.models import make_published, random_policy
from tests.engines.test_contract import VLLM_PYTHON
from tests.extras.vllm.stand_in import python_with_vllm, script_for_vllm

SAMPLING = Sampling(max_new_tokens=4)


class FileBuffer(delivery.GpuBuffer):
    """A file that another process can read, instead of memory of a GPU."""

    place: Path

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._file = self.place / "memory"
        self._file.write_bytes(b"")
        self.content = torch.from_file(str(self._file), shared=True, size=num_bytes, dtype=torch.uint8)
        self.shared = Shared("GPU-1", num_bytes, str(self._file).encode(), num_bytes, 0, b"c", 0, b"e", True)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._file.unlink()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return script_for_vllm(tmp_path, monkeypatch)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return python_with_vllm(tmp_path)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Policy:
    policy = random_policy()
    policy.dtype = torch.bfloat16
    monkeypatch.setattr(Policy, "device", torch.device("cuda"))
    monkeypatch.setattr(FileBuffer, "place", tmp_path, raising=False)
    monkeypatch.setattr(delivery, "GpuBuffer", FileBuffer)
    monkeypatch.setattr(service_module, "release_unused", lambda: None)
    return policy


@contextlib.contextmanager
def opened(policy: Policy, python: Path, **settings: object) -> Iterator[VllmEngine]:
    generation = GenerationSettings(vllm=VllmSettings(python=python, **settings))
    with contextlib.closing(VllmService(policy, generation)) as service:
        yield VllmEngine(policy, generation, service)


def versions(engine: VllmEngine) -> set[int]:
    (group,) = engine.generate(["1 + 1"], 2, SAMPLING, 1)
    assert not isinstance(group, Rejection)
    return {span.version for completion in group for span in completion.versions}


def swap(engine: VllmEngine, policy: Policy, version: int) -> None:
    engine.swap({name: value.detach() + 0.1 for name, value in policy.weights.items()}, version)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("room", [2**28, 2**14])
def test_every_weight_arrives_rounded_and_vllm_samples_from_them(
    policy: Policy, script: Path, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(delivery, "BUFFER_BYTES", room)  # 2**14: less than one of the weights
    with opened(policy, python) as engine:
        assert versions(engine) == {0} and not lines(script / "transfer"), "it starts with files"
        swap(engine, policy, 3)
        assert versions(engine) == {3}
    expected = []
    for name, value in policy.weights.items():
        rounded = value.detach().to(torch.bfloat16).contiguous()
        digest = hashlib.blake2b(rounded.view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()
        expected.append(f"GPU-1 {name} bfloat16 {list(value.shape)} {digest}")
    first, *sent, last = lines(script / "transfer")
    assert (first, sorted(sent), last) == ("start", sorted(expected), "finish")
    assert not (tmp_path / "memory").exists()


def test_what_sleeps_wakes_takes_the_weights_and_then_has_its_cache(policy: Policy, script: Path, python: Path) -> None:
    with opened(policy, python, sleep=True) as engine:
        for _ in range(2):
            versions(engine)
    assert lines(script / "sleep") == ["sleep 2", "wake weights", "wake kv_cache", "sleep 2"]
    assert [line for line in lines(script / "transfer") if " " not in line] == ["start", "finish"]


def test_buffers_are_sent_again_after_a_deep_sleep(policy: Policy, script: Path, python: Path) -> None:
    """Some are parameters of vLLM, which it forgets."""
    routed = make_published("glm4_moe")
    routed.dtype = policy.dtype
    with opened(routed, python, sleep=True) as engine:
        for _ in range(2):
            versions(engine)
    (name,) = [name for name in routed.model.state_dict() if name.endswith("e_score_correction_bias")]
    content = routed.model.state_dict()[name].numpy().tobytes()
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    assert f"GPU-1 {name} float32 [4] {digest}" in lines(script / "transfer")


def test_without_a_way_to_share_memory_files_go_and_it_is_said_once(
    policy: Policy, script: Path, python: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA error: operation not supported")

    monkeypatch.setattr(delivery, "GpuBuffer", refuse)
    with opened(policy, python) as engine:
        for version in (0, 1, 2):
            assert versions(engine) == {version}
            swap(engine, policy, version + 1)
    assert len(lines(script / "loads")) == 3 and not lines(script / "transfer")
    assert [record.message for record in caplog.records if "through files" in record.message] == [
        "weights go to vLLM through files, because memory of the GPU cannot be shared: "
        "CUDA error: operation not supported"
    ]
    with opened(policy, python, transfer="ipc") as engine:
        versions(engine)
        with pytest.raises(EngineError, match=r"generation.vllm.transfer must be files here: CUDA error"):
            swap(engine, policy, 1)


def test_a_vllm_that_cannot_read_the_memory_is_replaced_and_gets_files(
    policy: Policy, script: Path, python: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (script / "cannot-map").touch()
    with opened(policy, python) as engine:
        versions(engine)
        swap(engine, policy, 1)
        assert versions(engine) == {1}
        swap(engine, policy, 2)
        assert versions(engine) == {2}
    assert len([record for record in caplog.records if "invalid device context" in record.message]) == 1
    assert lines(script / "transfer") == ["start"]


TAKE = """
import inspect, sys
from types import SimpleNamespace
import msgspec, torch
from torch.multiprocessing import reductions
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from swarm.extras.vllm.messages import Packed
from swarm.extras.vllm import reading

content = torch.arange(6, dtype=torch.bfloat16).view(torch.uint8)
signature = inspect.signature(reductions.rebuild_cuda_tensor)

def rebuild(*handle):
    found = signature.bind(*handle).arguments
    assert (found["storage_handle"], found["storage_device"], found["storage_cls"]) == (b"h", 0, torch.TypedStorage)
    assert (found["ref_counter_handle"], found["event_handle"], found["event_sync_required"]) == (b"c", b"e", True)
    return content

reductions.rebuild_cuda_tensor = rebuild
torch.cuda.get_device_properties = lambda _: SimpleNamespace(uuid="GPU-1")
torch.accelerator.synchronize = lambda: None
taken = []
model = SimpleNamespace(load_weights=lambda weights: taken.extend(weights))
vllm = SimpleNamespace(parallel_config=None, model_config=None)
engine = IPCWeightTransferEngine(WeightTransferConfig(**reading.TRANSFER), vllm, SimpleNamespace(index=0), model)
engine.init_transfer_engine(engine.parse_init_info(reading.TRANSFER_INIT))
engine.update_weights(reading.update_info(msgspec.msgpack.decode(bytes.fromhex(sys.argv[1]), type=Packed)))
print([(name, value.tolist(), str(value.dtype)) for name, value in taken])
"""


@pytest.mark.vllm
@pytest.mark.skipif(not VLLM_PYTHON, reason="needs SWARM_TEST_VLLM_PYTHON")
def test_a_real_vllm_takes_pieces() -> None:
    """Its code, with memory of the CPU where it maps that of a GPU."""
    memory = Shared("GPU-1", 12, b"h", 12, 0, b"c", 0, b"e", True)
    piece = Packed(memory, ("a", "b"), ((2, 2), (2,)), "bfloat16", item_bytes=2)
    ran = subprocess.run(
        [VLLM_PYTHON, "-c", TAKE, encode(piece).hex()],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert ran.returncode == 0, ran.stderr
    assert literal_eval(ran.stdout.splitlines()[-1]) == [
        ("a", [[0.0, 1.0], [2.0, 3.0]], "torch.bfloat16"),
        ("b", [4.0, 5.0], "torch.bfloat16"),
    ]


@pytest.mark.parametrize("settings", [{"gpus": (1,)}, {"transfer": "files"}])
def test_files_where_vllm_has_other_gpus_or_they_are_asked_for(
    policy: Policy, script: Path, python: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with opened(policy, python, **settings) as engine:
        versions(engine)
        swap(engine, policy, 1)
        assert versions(engine) == {1}
    assert len(lines(script / "loads")) == 1 and not lines(script / "transfer")


def test_what_cannot_be_is_refused(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = GenerationSettings(vllm=VllmSettings(transfer="ipc"))
    with monkeypatch.context() as patched, pytest.raises(EngineError, match="are not on one GPU: got ipc"):
        patched.setattr(Policy, "device", torch.device("cpu"))
        VllmService(policy, asked)
    pytest.importorskip("peft", reason="needs the extra lora")
    policy.adapters = Adapters(policy.model, LoraSettings(rank=2))
    with pytest.raises(EngineError, match="adapters go as files: got ipc"):
        VllmService(policy, asked)
