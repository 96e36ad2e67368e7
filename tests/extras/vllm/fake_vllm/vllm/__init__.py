"""What `swarm/extras/vllm/server.py` uses of vLLM, without a model: tokens are a function of seed and position.

A file in the directory VLLM_FAKE makes it fail: `crash` once, `crash-always`, `hang` once, `no-start`,
`refuse-load`, `cannot-map` the GPU's memory; with `compiles` it says that it compiles. With `hold`, a number,
it waits for the next message as soon as a request has so many tokens; `holding` says that it does.

It writes there: `loads` gets a line for every change of weights; `transfer` one for each weight from the GPU's memory,
and for start and end; `sleep` one for every part that wakes or sleeps; `placed` the GPUs that it sees, into how many it
cuts matrices, and its fraction of their memory; `started` its arguments, its Python path and its place for kernels;
`mistaken` one for every token that was sampled with other weights than it is attributed to. `weights.safetensors` are
those that it got last as files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import select
import shutil
import sys
import time
from inspect import Parameter, Signature
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

__version__ = "fake"
SCRIPT = Path(os.environ["VLLM_FAKE"])
MAX_POSITIONS = 64
UPDATE = ("names", "dtype_names", "shapes", "tensor_sizes", "ipc_handles")
"""Fields of vLLM's `IPCWeightTransferUpdateInfo`."""


ARGUMENTS = (
    *("model", "dtype", "max_model_len", "max_num_seqs", "trust_remote_code", "hf_overrides", "tensor_parallel_size"),
    *("enable_sleep_mode", "enforce_eager", "enable_chunked_prefill", "logprobs_mode", "async_scheduling"),
    *("generation_config", "disable_log_stats", "gpu_memory_utilization", "kv_cache_memory_bytes", "block_size"),
    *("enable_lora", "max_loras", "max_lora_rank", "weight_transfer_config", "cudagraph_capture_sizes"),
    *("quantization", "kv_cache_dtype", "enable_return_routed_experts"),
)


class EngineArgs:
    __signature__ = Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in ARGUMENTS])

    def __init__(self, **arguments: object) -> None:
        self.arguments = arguments


class SamplingParams:
    def __init__(self, **arguments: object) -> None:
        self.__dict__ |= arguments


class LLMEngine:
    def __init__(self, arguments: dict[str, object]) -> None:
        if (SCRIPT / "no-start").exists():
            raise ValueError("no kernel for this model")
        if (SCRIPT / "compiles").exists():
            logging.getLogger("vllm.compilation.monitor").info("[backbone] Starting torch.compile")
        started = {"arguments": arguments, "path": sys.path, "kernels": os.environ["TRITON_CACHE_DIR"]}
        (SCRIPT / "started").write_text(json.dumps(started))
        assert "RANK" not in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ
        shutil.copy(Path(str(arguments["model"])) / "model.safetensors", SCRIPT / "weights.safetensors")
        assert arguments["hf_overrides"] == {"head_dtype": "float32"}
        gpus, parts = os.environ["CUDA_VISIBLE_DEVICES"], arguments["tensor_parallel_size"]
        (SCRIPT / "placed").write_text(f"{gpus} in {parts}, {arguments.get('gpu_memory_utilization')}")
        cache = SimpleNamespace(num_gpu_blocks=10, block_size=16)
        self.vllm_config = SimpleNamespace(
            cache_config=cache,
            model_config=SimpleNamespace(max_model_len=MAX_POSITIONS),
            max_concurrent_batches=2 if arguments["async_scheduling"] else 1,
        )
        self._version = ""
        self._loads = 0
        self._paused = False
        self._transfer = arguments.get("weight_transfer_config")
        self._updating = False
        self._in_flight: list[_Batch] = []
        self._missing: set[str] = set()
        """What it has no memory for, or no content in."""
        self._config = json.loads((Path(str(arguments["model"])) / "config.json").read_bytes())
        self._reports = arguments.get("enable_return_routed_experts", False)
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

    def collective_rpc(self, method: str, kwargs: dict[str, object] | None = None) -> None:
        getattr(self, f"_{method}")(**kwargs or {})

    def _reload_weights(self, weights_path: str) -> None:
        if (SCRIPT / "refuse-load").exists():
            raise ValueError("shape mismatch")
        shutil.copy(Path(weights_path) / "model.safetensors", SCRIPT / "weights.safetensors")
        self._loaded()

    def _init_weight_transfer_engine(self, init_info: dict[str, object]) -> None:
        assert self._transfer == {"backend": "ipc"} and init_info == {"packed": True}

    def _start_weight_update(self) -> None:
        assert self._transfer and not self._updating
        self._updating = True
        self._note("transfer", "start")

    def _update_weights(self, update_info: dict[str, object]) -> None:
        """As vLLM's packed transfer; a handle is a file's name here."""
        assert self._updating
        if (SCRIPT / "cannot-map").exists():
            raise RuntimeError("invalid device context")
        names, dtypes, shapes, sizes, handles = (update_info[name] for name in UPDATE)
        ((gpu, handle),) = handles.items()
        content = Path(handle[7].decode()).read_bytes()
        assert len(handle) == 15 and handle[1] == (len(content),)
        for name, dtype, shape, size in zip(names, dtypes, shapes, sizes, strict=True):
            digest = hashlib.blake2b(content[:size], digest_size=8).hexdigest()
            self._note("transfer", f"{gpu} {name} {dtype} {shape} {digest}")
            content = content[size:]

    def _finish_weight_update(self) -> None:
        assert self._updating
        self._updating = False
        self._note("transfer", "finish")
        self._loaded()

    def _loaded(self) -> None:
        assert "weights" not in self._missing
        self._missing.discard("content of the weights")
        self._loads += 1
        self._note("loads", str(os.getpid()))

    def add_lora(self, request: object) -> None:
        assert "weights" not in self._missing

    def apply_model(self, function: object) -> None:
        pass

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return True

    def sleep(self, level: int, mode: str = "abort") -> None:
        if level == 0:
            assert mode == "keep"
            self._paused = True
            return
        self._missing = {"weights", "kv_cache", *(["content of the weights"] if level == 2 else [])}
        self._note("sleep", f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        if tags == ["scheduling"]:
            self._paused = False
            return
        assert "content of the weights" not in self._missing or "kv_cache" not in tags, "there would be no room to load"
        self._missing -= set(tags)
        self._note("sleep", f"wake {' '.join(tags)}")

    def _note(self, name: str, line: str) -> None:
        with (SCRIPT / name).open("a") as file:
            file.write(f"{line}\n")

    def step(self) -> list[SimpleNamespace]:
        """As vLLM's own: it begins a step, and gives the tokens of the oldest unless it may begin one more."""
        self._fail_if_asked()
        assert not self._missing and not self._updating
        if began := bool(self._running and not self._paused):
            self._in_flight.append(_Batch(self._begin(), self._loads))
        if not self._in_flight or (began and len(self._in_flight) < self.vllm_config.max_concurrent_batches):
            return []
        return self._end(self._in_flight.pop(0))

    def _begin(self) -> list[str]:
        """A token for each that is not complete with those in flight."""
        ahead = [name for batch in self._in_flight for name in batch.names]
        return [n for n, (params, ids, _) in self._running.items() if len(ids) + ahead.count(n) < params.max_tokens]

    def _end(self, batch: _Batch) -> list[SimpleNamespace]:
        finished = []
        for name in batch.names:
            if name not in self._running:
                continue
            params, ids, versions = self._running[name]
            if batch.loads != self._loads:
                self._note("mistaken", name)
            digest = hashlib.blake2b(f"{params.seed}/{len(ids)}".encode(), digest_size=4).digest()
            ids.append(20 + int.from_bytes(digest, "big") % 50)
            versions.append(self._version)
            if len(ids) == params.max_tokens:
                del self._running[name]
                output = _output(name, self._prompts[name], ids, versions)
                if self._reports:
                    output.outputs[0].routed_experts = self._experts(len(self._prompts[name]) + len(ids) - 1)
                finished.append(output)
        return finished

    def _experts(self, num_tokens: int) -> np.ndarray:
        """[tokens, L, k] uint8: position + 2 layer + k, of 16."""
        layers, top_k = self._config["num_hidden_layers"], self._config["num_experts_per_tok"]
        at = np.ogrid[:num_tokens, :layers, :top_k]
        return ((at[0] + 2 * at[1] + at[2]) % 16).astype(np.uint8)

    def _fail_if_asked(self) -> None:
        hold = SCRIPT / "hold"
        if hold.exists() and any(len(ids) == int(hold.read_text()) for _, ids, _ in self._running.values()):
            hold.unlink()
            (SCRIPT / "holding").touch()
            select.select([int(sys.argv[1])], [], [])
        if (SCRIPT / "crash-always").exists():
            os._exit(9)
        if (SCRIPT / "crash").exists() and any(len(ids) == 3 for _, ids, _ in self._running.values()):
            (SCRIPT / "crash").unlink()
            os._exit(9)
        if (SCRIPT / "hang").exists():
            (SCRIPT / "hang").unlink()
            time.sleep(3600)


class _Batch(NamedTuple):
    names: list[str]
    """Of the requests that get a token."""
    loads: int
    """Changes of the weights before it began."""


def _output(name: str, prompt: list[int], ids: list[int], versions: list[str]) -> SimpleNamespace:
    starts = [i for i, version in enumerate(versions) if i == 0 or versions[i - 1] != version]
    spans = [
        SimpleNamespace(version=versions[start], start=start, end=end)
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)
    ]
    logprobs = SimpleNamespace(token_ids=ids, logprobs=[-1.0] * len(ids))
    completion = SimpleNamespace(token_ids=ids, logprobs=logprobs, weight_versions=spans)
    return SimpleNamespace(request_id=name, prompt_token_ids=prompt, finished=True, outputs=[completion])
