"""The process around vLLM and its faults, with a stand-in for vLLM; `test_contract.py` has the real one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors import SafetensorError
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from swarm.engines.choice import Vllm, choose_engine, look_for_vllm, open_engine
from swarm.engines.config import GenerationSettings, VllmSettings
from swarm.errors import ConfigError, EngineError, Interrupted
from swarm.extras.vllm import delivery, requests, service as service_module
from swarm.extras.vllm.engine import VllmEngine
from swarm.extras.vllm.messages import Add, Answer, Done, Generate, Load, Refused, Wanted, encode
from swarm.extras.vllm.service import Call, VllmService
from swarm.files import replace_file
from swarm.policy.adapters import Adapters
from swarm.policy.config import LoraSettings, PolicySettings
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_tokenizer
from swarm.types import Rejection, Sampling, VersionSpan
from tests.engines.models import make, random_policy
from tests.extras.vllm.stand_in import FAKE, python_with_vllm, script_for_vllm
from tests.thinking_models import FAMILIES, policy_of

SAMPLING = Sampling(max_new_tokens=12)
PROMPTS = ["Calculate 12 + 7.", "Solve for x: 2*x = 4"]
ROOT = Path(__file__).parents[3]
VLLM_PYTHON = os.environ.get("SWARM_TEST_VLLM_PYTHON")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return script_for_vllm(tmp_path, monkeypatch)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return python_with_vllm(tmp_path)


@pytest.fixture
def silence_s() -> float:
    """How long the process may say nothing: longer than a busy machine keeps it from that."""
    return 300.0


@pytest.fixture
def service(policy: Policy, script: Path, python: Path, silence_s: float) -> Iterator[VllmService]:
    service = VllmService(policy, GenerationSettings(vllm=VllmSettings(python=python, silence_timeout_s=silence_s)))
    yield service
    service.close()


@pytest.fixture
def engine(policy: Policy, service: VllmService, silence_s: float) -> VllmEngine:
    return VllmEngine(policy, GenerationSettings(vllm=VllmSettings(silence_timeout_s=silence_s)), service)


def received(call: Call) -> Answer:
    """Its next reply."""
    while (reply := call.receive(300.0)) is None:
        pass
    return reply


@pytest.mark.parametrize(("fault", "silence_s"), [("crash", 300.0), ("hang", 3.0)])
def test_a_process_that_dies_or_hangs_is_replaced_and_nothing_is_lost(
    engine: VllmEngine, service: VllmService, script: Path, fault: str
) -> None:
    expected = engine.generate(PROMPTS, 4, SAMPLING, 1)
    first = service.pid
    (script / fault).touch()
    assert engine.generate(PROMPTS, 4, SAMPLING, 1) == expected
    assert service.pid != first and not psutil.pid_exists(first)


def test_a_process_killed_between_two_calls_is_replaced(engine: VllmEngine, service: VllmService) -> None:
    expected = engine.generate(PROMPTS, 4, SAMPLING, 1)
    os.kill(service.pid, signal.SIGKILL)
    assert engine.generate(PROMPTS, 4, SAMPLING, 1) == expected


def test_a_process_that_always_dies_is_given_up(engine: VllmEngine, script: Path) -> None:
    engine.generate(PROMPTS, 4, SAMPLING, 1)
    (script / "crash-always").touch()
    with pytest.raises(EngineError, match="vLLM died 3 times in a row.*ended without a message"):
        engine.generate(PROMPTS, 4, SAMPLING, 1)


def test_a_model_it_cannot_serve_is_refused_at_once_in_its_words(engine: VllmEngine, script: Path) -> None:
    (script / "no-start").touch()
    with pytest.raises(EngineError, match="ValueError: no kernel for this model"):
        engine.generate(PROMPTS, 4, SAMPLING, 1)


def test_weights_are_handed_over_when_they_have_changed(engine: VllmEngine, policy: Policy, script: Path) -> None:
    def loads() -> int:
        return len((script / "loads").read_text().splitlines()) if (script / "loads").exists() else 0

    assert {c.versions[0].version for group in engine.generate(PROMPTS, 2, SAMPLING, 1) for c in group} == {0}
    assert loads() == 0, "it starts with the weights there are"
    with policy.gate.change():
        policy.version = 1
    for _ in range(2):
        assert {c.versions[0].version for group in engine.generate(PROMPTS, 2, SAMPLING, 1) for c in group} == {1}
    assert loads() == 1
    engine.swap({name: value + 1 for name, value in policy.weights.items()}, version=7)
    assert loads() == 2
    assert engine.generate(PROMPTS, 2, SAMPLING, 1)[0][0].versions[0].version == 7


@pytest.mark.parametrize("at", [3, SAMPLING.max_new_tokens - 2])
def test_tokens_of_a_step_in_flight_belong_to_the_weights_that_sampled_them(
    policy: Policy, script: Path, python: Path, at: int
) -> None:
    """With a GPU vLLM begins a step before it has the tokens of the last one, which may be the last of all that run."""
    settings = GenerationSettings(vllm=VllmSettings(python=python))
    with contextlib.closing(VllmService(policy, settings, device=torch.device("cuda"))) as service:
        process, _ = service.running(lambda: False)
        replace_file(script / "hold", str(at).encode())
        call = process.call(lambda id: Generate(id, SAMPLING, (), max_sequences=2))
        process.tell(Add(call.id, {0: (5,)}, {}, tuple(Wanted(0, k, seed=k) for k in range(4))))
        while not (script / "holding").exists():
            time.sleep(0.01)
        with delivery.changed_files(policy, service.work) as (directory, _):
            load = process.call(lambda id: Load(id, str(directory), 1, recompute=False, adapters=False))
            assert isinstance(received(load), Done)
        spans = {reply.completion: list(reply.versions) for reply in (received(call) for _ in range(4))}
    old = at + 2  # the step that held gave one, and began another
    new = SAMPLING.max_new_tokens - old
    mixed = [VersionSpan(0, old)] + ([VersionSpan(1, new)] if new else [])
    later = [VersionSpan(1, SAMPLING.max_new_tokens)]
    assert spans == {0: mixed, 1: mixed, 2: later, 3: later}
    assert not _lines(script / "mistaken")


def test_weights_that_vllm_refuses_are_an_error_in_its_words(engine: VllmEngine, policy: Policy, script: Path) -> None:
    engine.generate(PROMPTS, 2, SAMPLING, 1)
    (script / "refuse-load").touch()
    with pytest.raises(EngineError, match="shape mismatch"):
        engine.swap(policy.weights, version=1)


def test_a_prompt_it_refuses_or_has_no_room_for_leaves_the_others_alone(engine: VllmEngine, policy: Policy) -> None:
    answers = engine.generate([policy.decode([7]), "1 + 1", "x" * 60], 3, SAMPLING, 1)
    assert isinstance(answers[0], Rejection) and answers[0].reason == "engine_refused"
    assert "token 7 is not to its taste" in answers[0].detail
    assert len(answers[1]) == 3
    assert isinstance(answers[2], Rejection) and "vLLM has room for 64" in answers[2].detail


def test_a_request_it_cannot_decode_is_answered_and_the_others_go_on(engine: VllmEngine, service: VllmService) -> None:
    expected = engine.generate(PROMPTS, 2, SAMPLING, 1)
    process, _ = service.running(lambda: False)
    pid = service.pid
    number = process.call(lambda id: Generate(id, SAMPLING, ("five",), 4))  # type: ignore[arg-type]
    process.tell(Add(number.id, {0: (5,)}, {}, (Wanted(0, 0, 1),)))  # of a call that was never opened
    load = process.call(lambda id: Load(id, 5, 1, False, False))  # type: ignore[arg-type]
    for call in (number, load):
        reply = received(call)
        assert isinstance(reply, Refused) and "Expected `" in reply.reason
        call.close()
    assert engine.generate(PROMPTS, 2, SAMPLING, 1) == expected and service.pid == pid


def test_a_call_that_it_cannot_decode_is_an_error_in_its_words(
    engine: VllmEngine, service: VllmService, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine.generate(PROMPTS, 2, SAMPLING, 1)
    pid = service.pid
    with monkeypatch.context() as patched:
        patched.setattr(requests, "completion_seed", lambda *_: 0.5)
        with pytest.raises(EngineError, match="vLLM refused: ValidationError: Expected `int`, got `float`"):
            engine.generate(PROMPTS, 2, SAMPLING, 1)
    assert engine.generate(PROMPTS, 2, SAMPLING, 1) == expected and service.pid == pid


def test_closing_ends_the_process_and_leaves_nothing(engine: VllmEngine, service: VllmService) -> None:
    engine.generate(PROMPTS, 2, SAMPLING, 1)
    pid, work = service.pid, service.work
    engine.close()
    assert not psutil.pid_exists(pid) and not work.exists()


def test_it_ends_with_the_node_even_by_a_kill(script: Path, python: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from swarm.engines.config import GenerationSettings, VllmSettings\n"
        "from swarm.extras.vllm.service import VllmService\n"
        "from tests.engines.models import random_policy\n"
        "settings = GenerationSettings(vllm=VllmSettings(python=Path(sys.argv[1])))\n"
        "service = VllmService(random_policy(), settings)\n"
        "service.running(lambda: False)\n"
        "print(service.pid, service.work, flush=True)\n"
        "time.sleep(600)\n"
    )
    node = subprocess.Popen([sys.executable, "-c", code, str(python)], stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    pid, work = node.stdout.readline().split()
    node.kill()
    node.wait()
    server = psutil.Process(int(pid)) if psutil.pid_exists(int(pid)) else None
    if server is not None:
        server.wait(300)
    assert not Path(work).exists()


def test_a_failed_start_leaves_nothing(
    policy: Policy, script: Path, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script / "no-start").touch()
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(delivery, "SHARED_MEMORY", tmp_path / "work")
    settings = GenerationSettings(engine="vllm", vllm=VllmSettings(python=python))
    with pytest.raises(EngineError, match="no kernel"):
        open_engine(choose_engine(settings, policy), policy, PolicySettings(), settings)
    assert not list((tmp_path / "work").iterdir())


def test_starting_can_be_interrupted(policy: Policy, service: VllmService) -> None:
    with pytest.raises(Interrupted):
        service.running(lambda: True)


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ({}, "transformers", "the policy is on cpu"),
        ({"engine": "transformers"}, "transformers", "asked for"),
    ],
)
def test_the_choice_says_why(policy: Policy, settings: dict[str, str], name: str, reason: str) -> None:
    choice = choose_engine(GenerationSettings(**settings), policy)
    assert choice.name == name and reason in str(choice)


def test_auto_takes_vllm_where_there_is_a_gpu_and_a_vllm(
    policy: Policy, script: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Policy, "device", torch.device("cuda"))
    with_vllm = GenerationSettings(vllm=VllmSettings(python=python))
    assert choose_engine(with_vllm, policy).name == "vllm"
    without = GenerationSettings(vllm=VllmSettings(python=Path(sys.executable)))
    lacking = choose_engine(without, policy)
    assert lacking.reason.endswith("has no vLLM") and "generation.vllm.python" in lacking.fix


@pytest.mark.parametrize(("device", "level"), [("cuda", "warning"), ("cpu", "info")])
def test_a_gpu_without_vllm_is_a_loud_line_with_the_command(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, device: str, level: str
) -> None:
    monkeypatch.setattr(Policy, "device", torch.device(device))
    choice = choose_engine(GenerationSettings(vllm=VllmSettings(python=Path(sys.executable))), policy)
    assert choice.name == "transformers" and choice.level == level
    assert ("several times longer" in str(choice) and "pip install 'vllm==" in str(choice)) == (level == "warning")


def test_routing_replay_is_refused_where_nothing_would_record_it(
    script: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make("qwen3_moe")
    policy = Policy("moe", plain.model, plain.tokenizer, None, routing_replay=True)
    asked_for = GenerationSettings(engine="vllm", vllm=VllmSettings(python=python))
    with pytest.raises(ConfigError, match="policy.routing_replay must be false with generation.engine vllm on cpu"):
        choose_engine(asked_for, policy)
    monkeypatch.setattr(Policy, "device", torch.device("cuda"))
    assert choose_engine(asked_for, policy).name == "vllm"
    choice = choose_engine(GenerationSettings(vllm=VllmSettings(python=python)), policy)
    assert choice.name == "transformers" and "routing_replay" in choice.reason


@pytest.mark.parametrize("replayed", [False, True])
def test_experts_are_recorded_of_the_layers_that_have_any(script: Path, python: Path, replayed: bool) -> None:
    """vLLM reports them of every layer."""
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0]}
    config = Qwen3MoeConfig(vocab_size=322, num_hidden_layers=3, eos_token_id=1, pad_token_id=0, **shape, **experts)
    policy = Policy("moe", Qwen3MoeForCausalLM(config), tiny_tokenizer(), None, routing_replay=replayed)
    settings = GenerationSettings(vllm=VllmSettings(python=python))
    with contextlib.closing(VllmService(policy, settings, device=torch.device("cuda"))) as service:
        ((completion, *_),) = VllmEngine(policy, settings, service).generate(PROMPTS[:1], 2, SAMPLING, 1)
    if not replayed:
        assert not completion.routing and not _started(script)["arguments"].get("enable_return_routed_experts")
        return
    length = len(policy.encode_prompt(PROMPTS[0])) + len(completion.token_ids) - 1
    found = policy.routers.read(completion.routing, length)
    at = np.ogrid[:length, 1:3, :2]
    assert np.array_equal(found, (at[0] + 2 * at[1] + at[2]) % 16)
    assert not policy.routers.stored(completion.routing, length), "of two layers, not three"


def test_vllm_is_looked_for_where_it_would_run(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_for_vllm(python) == Vllm(python, version="0.0")
    (tmp_path / "vllm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert look_for_vllm(None).problem == "there is no vLLM in this environment", "an environment's directory is none"
    assert look_for_vllm(Path("/nowhere/python")).problem.endswith("cannot be run (No such file or directory)")
    python.write_text("#!/bin/sh\necho 'no libpython' >&2\nexit 127\n")
    assert look_for_vllm(python).problem == f"{python} cannot be used (no libpython)"


def _started(script: Path) -> dict[str, Any]:
    """What the stand-in was started with."""
    found: dict[str, Any] = json.loads((script / "started").read_text())
    return found


def test_it_imports_from_where_the_users_python_path_says(
    service: VllmService, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path / "first"), "", "second")))
    service.running(lambda: False)
    path = _started(script)["path"]
    own = str(service.work / "path")
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert path[: path.index(second) + 1] == [own, first, second], "swarm is this one, whatever else is there"


def test_a_vllm_on_the_users_python_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_for_vllm(None).problem
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    assert look_for_vllm(None) == Vllm(Path(sys.executable), version="0.0")


def test_arguments_reach_vllm_beside_those_of_the_node(policy: Policy, script: Path, python: Path) -> None:
    given = {"quantization": "fp8", "kv_cache_dtype": "fp8", "cudagraph_capture_sizes": [1, 2]}
    settings = GenerationSettings(max_batch_sequences=40, vllm=VllmSettings(python=python))
    more = GenerationSettings(vllm=VllmSettings(python=python, arguments=given))
    for each, expected in (settings, {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 40]}), (more, given):
        with contextlib.closing(VllmService(policy, each, device=torch.device("cuda"))) as service:
            service.running(lambda: False)
            found = _started(script)["arguments"]
            assert found["model"] == "model", "compiled graphs are found again by this name"
            assert {name: found[name] for name in expected} == expected
            assert found["max_num_seqs"] == each.max_batch_sequences and ("quantization" in found) == (
                expected == given
            )


def test_arguments_that_vllm_does_not_know_are_refused_before_it_loads(
    policy: Policy, script: Path, python: Path
) -> None:
    settings = GenerationSettings(vllm=VllmSettings(python=python, arguments={"quantisation": "fp8"}))
    refused = pytest.raises(EngineError, match="vLLM fake has no argument quantisation; did you mean quantization")
    with contextlib.closing(VllmService(policy, settings)) as service, refused:
        service.running(lambda: False)
    assert not (script / "started").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"max_num_seqs": 8}, "max_num_seqs is the node's: set generation.max_batch_sequences"),
        ({"model": "other"}, "model is the node's: set policy.model"),
        ({"tensor_parallel_size": 2}, "set generation.vllm.gpus"),
        ({"enable_sleep_mode": True}, "set generation.vllm.sleep"),
        ({"enable_lora": True}, "set policy.lora"),
        ({"weight_transfer_config": {}}, "set generation.vllm.transfer"),
        ({"seed": 1}, "each completion has its own seed"),
        ({"logprobs_mode": "raw_logprobs"}, "log-probabilities of the distribution"),
        ({"data_parallel_size": 2}, "a node has one vLLM"),
        ({"speculative_config": {"method": "n" * 2**14}}, "at most 64 arguments and 16,384 characters"),
    ],
)
def test_arguments_that_a_node_relies_on_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        VllmSettings(arguments=arguments)


def test_the_first_start_of_a_model_says_that_it_compiles(
    service: VllmService, script: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (script / "compiles").touch()
    service.running(lambda: False)
    assert "vLLM compiles this model" in caplog.text
    assert "vLLM fake is not the one this was made for" in caplog.text


@pytest.mark.parametrize(("variable", "expected"), [("TRITON_CACHE_DIR", ""), ("TRITON_HOME", ".triton/cache")])
def test_kernels_are_kept_where_the_next_start_looks(
    service: VllmService, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, expected: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    service.running(lambda: False)
    assert _started(script)["kernels"] == str(tmp_path / expected)


KEY = """
import os, sys
import msgspec
from vllm import EngineArgs
from vllm.compilation.caching import aot_compile_hash_factors
from swarm.extras.vllm.arguments import engine_arguments
from swarm.extras.vllm.messages import Start

start = msgspec.msgpack.decode(bytes.fromhex(sys.argv[1]), type=Start)
os.chdir(start.work)
print(aot_compile_hash_factors(EngineArgs(**engine_arguments(start)).create_engine_config()))
"""


@pytest.mark.vllm
@pytest.mark.skipif(not VLLM_PYTHON, reason="needs SWARM_TEST_VLLM_PYTHON")
def test_what_a_real_vllm_compiles_is_found_again_from_another_directory(python: Path) -> None:
    """By the key under which it keeps that."""
    policy, settings = random_policy(64), GenerationSettings(vllm=VllmSettings(python=python))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    keys, works = set(), set()
    for _ in range(2):
        with contextlib.closing(VllmService(policy, settings)) as service:
            with delivery.model_files(policy, service.work) as (directory, state):
                start = service._order(0, directory, state.version)
                command = [str(VLLM_PYTHON), "-c", KEY, encode(start).hex()]
                ran = subprocess.run(command, capture_output=True, text=True, env=environment)
            assert ran.returncode == 0, ran.stderr
            keys.add(ran.stdout.splitlines()[-1])
            works.add(service.work)
    assert len(keys) == 1 and len(works) == 2


@pytest.mark.vllm
@pytest.mark.skipif(not VLLM_PYTHON, reason="needs SWARM_TEST_VLLM_PYTHON")
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("blocks", [200, 20])
def test_what_is_kept_beside_vllm_is_what_it_would_keep(blocks: int, ahead: int) -> None:
    """With room for all, and with so little that sequences are pushed out again and again."""
    command = [str(VLLM_PYTHON), str(Path(__file__).with_name("twin_schedulers.py")), str(blocks), str(ahead)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["ended"] > 100 and found["pushed out"] > 100 and found["versions"] > 10


def test_vllm_asked_for_and_not_there_is_wrong_configuration(policy: Policy) -> None:
    for python in (None, Path(sys.executable), Path("/nowhere/python")):
        with pytest.raises(ConfigError, match="generation.vllm.python"):
            choose_engine(GenerationSettings(engine="vllm", vllm=VllmSettings(python=python)), policy)


@pytest.mark.parametrize("lora", [False, True])
def test_between_rounds_it_sleeps_and_wakes_weights_before_the_cache(
    policy: Policy, script: Path, python: Path, monkeypatch: pytest.MonkeyPatch, lora: bool
) -> None:
    if lora:
        pytest.importorskip("peft", reason="needs the extra lora")
        policy.adapters = Adapters(policy.model, LoraSettings(rank=2))
    released: list[list[str]] = []
    monkeypatch.setattr(service_module, "release_unused", lambda: released.append(_lines(script / "sleep")))
    settings = GenerationSettings(vllm=VllmSettings(python=python, sleep=True))
    with contextlib.closing(VllmService(policy, settings, device=torch.device("cuda"))) as service:
        engine = VllmEngine(policy, settings, service)
        for _ in range(2):
            assert engine.generate(PROMPTS, 2, SAMPLING, 1)
    # Frozen weights come back from the CPU's memory; all others come from the policy anyway.
    asleep = "sleep 1" if lora else "sleep 2"
    assert _lines(script / "sleep") == [asleep, "wake weights", "wake kv_cache", asleep]
    assert released == [[], [asleep]], "what training left is given back before vLLM starts, and before it wakes"
    assert len(_lines(script / "loads")) == (0 if lora else 1)


@pytest.mark.parametrize(
    ("gpus", "fraction", "visible", "placed"),
    [
        ((), None, None, "0 in 1, 0.45"),
        ((), None, "GPU-a,GPU-b", "GPU-a in 1, 0.45"),
        ((1,), None, None, "1 in 1, 0.9"),
        ((1, 3), None, "4,5,6,7", "5,7 in 2, 0.9"),
        ((3,), 0.5, "4,5,6,7", "7 in 1, 0.5"),
    ],
)
def test_vllm_has_the_gpus_that_it_is_given(
    policy: Policy,
    script: Path,
    python: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[int, ...],
    fraction: float | None,
    visible: str | None,
    placed: str,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    settings = GenerationSettings(vllm=VllmSettings(python=python, gpus=gpus, gpu_memory_fraction=fraction))
    with contextlib.closing(VllmService(policy, settings, device=torch.device("cuda"))) as service:
        assert VllmEngine(policy, settings, service).generate(PROMPTS[:1], 2, SAMPLING, 1)
    assert (script / "placed").read_text() == placed


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_on_rocm_both_variables_name_the_same_gpus(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "4,5")
    found = service_module._environment(torch.device("cuda"), (1,))
    assert found == {"HIP_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": "5"}


@pytest.mark.parametrize(
    ("gpus", "device", "message"),
    [
        ((1,), "cpu", "needs CUDA, the policy is on cpu"),
        ((0, 2), "cuda", r"must be below 2, the number of visible GPUs, got \[2\]"),
        ((0, 1), "cuda:1", "must not have GPU 1, on which the policy is"),
        ((0,), "cuda", "must not have GPU 0, on which the policy is"),
    ],
)
def test_gpus_that_vllm_cannot_have_are_refused(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, gpus: tuple[int, ...], device: str, message: str
) -> None:
    monkeypatch.setattr(Policy, "device", torch.device(device))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(EngineError, match=message):
        VllmService(policy, GenerationSettings(vllm=VllmSettings(gpus=gpus)))


def test_a_gpu_is_named_once() -> None:
    with pytest.raises(ValueError, match=r"gpus must name each GPU once, got \[1, 1\]"):
        VllmSettings(gpus=(1, 1))


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize(("shared", "temporary"), [(2**40, 2**40), (2**26, 2**40), (2**26, 0)])
def test_weights_go_where_there_is_room(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: int, temporary: int
) -> None:
    """Docker gives a container 64 MiB of shared memory."""
    places = {tmp_path / "shm": shared, tmp_path / "tmp": temporary}
    for place in places:
        place.mkdir()
    monkeypatch.setattr(delivery, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(delivery, "gettempdir", lambda: str(tmp_path / "tmp"))
    monkeypatch.setattr(delivery.shutil, "disk_usage", lambda place: SimpleNamespace(free=places[place]))
    monkeypatch.setattr(delivery, "OTHER_FILES_BYTES", 2**26)
    if temporary:
        expected = tmp_path / ("shm" if shared > 2**26 else "tmp")
        assert delivery.make_work_directory(policy).parent == expected
    else:
        with pytest.raises(EngineError, match=r"no room for .* GiB of weights.*shm has 0.1 GiB free.*--shm-size"):
            delivery.make_work_directory(policy)


IN_64_MIB = """
import sys, tempfile
from pathlib import Path
from benchmarks.engine.generation import random_policy
from swarm.extras.vllm import delivery
from swarm.errors import EngineError
delivery.SHARED_MEMORY = shared = Path(sys.argv[1])
policy = random_policy("25 M")
print(delivery.make_work_directory(policy).parent == Path(tempfile.gettempdir()))
try:
    with delivery.model_files(policy, shared):
        pass
except EngineError as error:
    print(error)
"""


def test_a_containers_shared_memory_is_passed_over_and_named_where_it_fills_up(tmp_path: Path) -> None:
    """As large as Docker's, for weights of 96 MiB."""
    (shared := tmp_path / "shm").mkdir()
    mounted = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m none "$0" && exec "$@"']
    if subprocess.run([*mounted, str(shared), "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system in a namespace of its own")
    command = [*mounted, str(shared), sys.executable, "-c", IN_64_MIB, str(shared)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
    assert told[0] == "True"
    assert "no room for weights" in told[1] and "--shm-size" in told[1] and "No space left on device" in told[1]


def test_shared_memory_that_fills_up_is_a_clear_error(service: VllmService, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patched:
        patched.setattr(delivery, "save_file", full)
        with pytest.raises(EngineError, match="--shm-size.*No space left on device"):
            service.running(lambda: False)
    assert service.pid is not None and not psutil.pid_exists(service.pid), "it waited for a model"
    service.running(lambda: False)


def test_sleep_needs_a_gpu(policy: Policy, script: Path, python: Path) -> None:
    settings = GenerationSettings(engine="vllm", vllm=VllmSettings(python=python, sleep=True))
    with pytest.raises(EngineError, match="generation.vllm.sleep needs a GPU"):
        open_engine(choose_engine(settings, policy), policy, PolicySettings(), settings)


def test_a_thought_is_ended_at_its_limit_and_the_completion_goes_on(
    script: Path, python: Path, silence_s: float
) -> None:
    """The rest is another request; a crash between the two loses nothing."""
    policy = policy_of(FAMILIES["qwen3 opened"])
    settings = GenerationSettings(vllm=VllmSettings(python=python, silence_timeout_s=silence_s))
    limited = Sampling(max_new_tokens=20, max_thinking_tokens=5)
    with contextlib.closing(VllmService(policy, settings)) as service:
        engine = VllmEngine(policy, settings, service)
        first = engine.generate(PROMPTS, 4, limited, 1)
        (script / "crash").touch()
        assert engine.generate(PROMPTS, 4, limited, 1) == first
        free = engine.generate(PROMPTS, 4, Sampling(max_new_tokens=20), 1)
    completions = [each for group in first for each in group]
    assert any(each.forced is not None for each in completions)
    for each, unlimited in zip(completions, [each for group in free for each in group], strict=True):
        assert each.token_ids[:5] == unlimited.token_ids[:5]
        assert len(each.logprobs) == len(each.token_ids) == sum(span.num_tokens for span in each.versions)
        assert each.text == policy.said(each.token_ids, each.forced)
        if each.forced is not None:
            assert each.forced == 5
            assert len(each.token_ids) + len(policy.end_of_thought) <= 20
            assert each.finish_reason in ("stop", "length")
