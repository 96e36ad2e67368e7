"""What `swarm/engines/vllm/server.py` uses of vLLM, without a model: tokens are a function of seed and position.

A file in the directory FAKE_VLLM makes it fail: `crash` once, `crash-always`, `hang` once, `no-start`,
`refuse-load`. `loads` there gets a line for every change of weights, `sleep` one for every part that wakes or sleeps,
`placed` the GPUs that it sees, into how many it cuts matrices, and its fraction of their memory.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

__version__ = "fake"
SCRIPT = Path(os.environ["FAKE_VLLM"])
MAX_POSITIONS = 64


class EngineArgs:
    def __init__(self, **arguments: object) -> None:
        self.arguments = arguments


class SamplingParams:
    def __init__(self, **arguments: object) -> None:
        self.__dict__ |= arguments


class LLMEngine:
    def __init__(self, arguments: dict[str, object]) -> None:
        if (SCRIPT / "no-start").exists():
            raise ValueError("no kernel for this model")
        assert (Path(str(arguments["model"])) / "model.safetensors").stat().st_size > 0
        assert arguments["hf_overrides"] == {"head_dtype": "float32"}
        gpus, parts = os.environ["CUDA_VISIBLE_DEVICES"], arguments["tensor_parallel_size"]
        (SCRIPT / "placed").write_text(f"{gpus} in {parts}, {arguments.get('gpu_memory_utilization')}")
        cache = SimpleNamespace(num_gpu_blocks=10, block_size=16)
        self.vllm_config = SimpleNamespace(
            cache_config=cache, model_config=SimpleNamespace(max_model_len=MAX_POSITIONS)
        )
        self._version = ""
        self._missing: set[str] = set()
        """What it has no memory for, or no content in."""
        self._running: dict[str, tuple[SamplingParams, list[int], list[str]]] = {}
        self._prompts: dict[str, list[int]] = {}

    @classmethod
    def from_engine_args(cls, arguments: EngineArgs) -> LLMEngine:
        return cls(arguments.arguments)

    def set_weight_version(self, version: str) -> None:
        self._version = version

    def has_unfinished_requests(self) -> bool:
        return bool(self._running)

    def add_request(self, name: str, prompt: dict[str, object], params: SamplingParams, lora_request: object) -> None:
        if 7 in prompt["prompt_token_ids"]:
            raise ValueError("token 7 is not to its taste")
        self._running[name] = (params, [], [])
        self._prompts[name] = prompt["prompt_token_ids"]

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self._running.pop(name, None)

    def collective_rpc(self, method: str, kwargs: dict[str, str]) -> None:
        if (SCRIPT / "refuse-load").exists():
            raise ValueError("shape mismatch")
        assert method == "reload_weights" and (Path(kwargs["weights_path"]) / "model.safetensors").exists()
        assert "weights" not in self._missing
        self._missing.discard("content of the weights")
        with (SCRIPT / "loads").open("a") as file:
            file.write(f"{os.getpid()}\n")

    def add_lora(self, request: object) -> None:
        assert "weights" not in self._missing

    def apply_model(self, function: object) -> None:
        pass

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return True

    def sleep(self, level: int) -> None:
        self._missing = {"weights", "kv_cache", *(["content of the weights"] if level == 2 else [])}
        self._note(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        assert "content of the weights" not in self._missing or "kv_cache" not in tags, "there would be no room to load"
        self._missing -= set(tags)
        self._note(f"wake {' '.join(tags)}")

    def _note(self, line: str) -> None:
        with (SCRIPT / "sleep").open("a") as file:
            file.write(f"{line}\n")

    def step(self) -> list[SimpleNamespace]:
        self._fail_if_asked()
        assert not self._missing
        finished = []
        for name, (params, ids, versions) in list(self._running.items()):
            digest = hashlib.blake2b(f"{params.seed}/{len(ids)}".encode(), digest_size=4).digest()
            ids.append(20 + int.from_bytes(digest, "big") % 50)
            versions.append(self._version)
            if len(ids) == params.max_tokens:
                del self._running[name]
                finished.append(_output(name, self._prompts[name], ids, versions))
        return finished

    def _fail_if_asked(self) -> None:
        if (SCRIPT / "crash-always").exists():
            os._exit(9)
        if (SCRIPT / "crash").exists() and any(len(ids) == 3 for _, ids, _ in self._running.values()):
            (SCRIPT / "crash").unlink()
            os._exit(9)
        if (SCRIPT / "hang").exists():
            (SCRIPT / "hang").unlink()
            time.sleep(3600)


def _output(name: str, prompt: list[int], ids: list[int], versions: list[str]) -> SimpleNamespace:
    starts = [i for i, version in enumerate(versions) if i == 0 or versions[i - 1] != version]
    spans = [
        SimpleNamespace(version=versions[start], start=start, end=end)
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)
    ]
    logprobs = [{token: SimpleNamespace(logprob=-1.0)} for token in ids]
    completion = SimpleNamespace(token_ids=ids, logprobs=logprobs, weight_versions=spans)
    return SimpleNamespace(request_id=name, prompt_token_ids=prompt, finished=True, outputs=[completion])
