"""The sampling process: `PYTHON -m swarm.engines.vllm.server FD`, started by `process.py` only, in vLLM's Python.

requests ──▶ calls ──▶ vLLM, bounded sequences per call ──▶ a step ──▶ completions, each when complete
                 weights change here, between two steps ──▲

One thread: messages are read between two steps, so that they never interrupt a step. vLLM's engine core runs in this
process too. On GPUs it begins a step before it has the tokens of the last one; that one is awaited before weights
change, so that every token is attributed to the weights that sampled it. With several GPUs vLLM starts a process of
its own for each, which end with this one. The process ends when its socket closes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from msgspec import ValidationError

from swarm.engines.vllm import pieces, reading
from swarm.engines.vllm.messages import (
    Add,
    Beat,
    Broken,
    Done,
    End,
    Features,
    Generate,
    Load,
    Piece,
    Placed,
    Ready,
    Refused,
    Reply,
    Request,
    Sampled,
    Sleep,
    Start,
    Unanswered,
    Wake,
    Wanted,
    decode_heading,
    decode_request,
    encode,
)
from swarm.types import VersionSpan

if TYPE_CHECKING:
    from torch.nn import Module
    from vllm import LLMEngine, RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest

BEAT_S = 2.0
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM supports."""
ADAPTERS_ID = 1
CPU_BLOCK = 32
"""Tokens, the fewest that vLLM's CPU kernels take. Its default of 128 would find too little of an episode's past."""


class Call:
    """One `Generate` in progress."""

    def __init__(self, request: Generate) -> None:
        """Nothing is asked yet."""
        self.request = request
        self.waiting: deque[tuple[Wanted, tuple[int, ...], tuple[Placed, ...]]] = deque()
        """Completions to begin, with their prompts and what is read in these beside text."""
        self.media: dict[int, reading.Read] = {}
        self.running: dict[str, tuple[Wanted, tuple[int, ...]]] = {}
        """Running completions, with their prompts, by vLLM's request id."""
        self.num_begun = 0


class Server:
    """Serves one node."""

    def __init__(self, connection: Connection, start: Start) -> None:
        """Load the model, which takes a while; raises whatever vLLM raises."""
        self._connection = connection
        self._start = start
        self._engine = open_engine(start)
        self._engine.set_weight_version(str(start.version))
        self._calls: dict[int, Call] = {}
        self._adapters: LoRARequest | None = None
        self._loads = 0
        self._has_pieces = False
        """Of the next weights: the model is neither the old nor the new one."""
        self._spoke_at = time.monotonic()

    def serve(self) -> None:
        """Serve until the node closes its end."""
        self._say(self._ready())
        while True:
            idle = self._has_pieces or not self._engine.has_unfinished_requests()
            if self._connection.poll(None if idle else 0):
                self._hear(self._connection.recv_bytes())
            else:
                self._step()

    def _hear(self, content: bytes) -> None:
        """Obey one request, or answer what cannot be read."""
        try:
            request = decode_request(content)
        except ValidationError as error:
            self._say(Refused(decode_heading(content).id, describe(error)))
        else:
            self._obey(request)

    def _obey(self, request: Request) -> None:
        match request:
            case Generate(id):
                self._calls[id] = Call(request)
            case Features(id) | Add(id):
                if call := self._calls.get(id):  # else its `Generate` could not be read
                    self._take(call, request)
            case End(id):
                if call := self._calls.pop(id, None):
                    self._engine.abort_request(list(call.running))
            case Piece(id) | Load(id) | Sleep(id) | Wake(id):
                try:
                    self._change(request)
                except Exception as error:  # the node handles whatever vLLM raises
                    self._say(Refused(id, describe(error)))
                else:
                    self._say(Done(id))
            case Start():
                raise AssertionError("a server accepts one Start")

    def _take(self, call: Call, request: Features | Add) -> None:
        match request:
            case Features(_, medium):
                call.media[medium] = reading.Read(request, self._start.dtype, self._loads)
            case Add(_, prompts, media, wanted):
                call.waiting.extend((one, prompts[one.prompt], media.get(one.prompt, ())) for one in wanted)
                self._refill()

    def _change(self, request: Piece | Load | Sleep | Wake) -> None:
        match request:
            case Sleep(_, keep_weights):
                self._engine.reset_prefix_cache()  # its blocks will be empty
                self._engine.sleep(level=1 if keep_weights else 2)
            case Wake(_, part):
                self._engine.wake_up([part])
            case Piece(_, content):
                if not self._has_pieces:
                    self._pause()
                    self._engine.collective_rpc("start_weight_update")
                    self._has_pieces = True
                self._engine.collective_rpc("update_weights", kwargs={"update_info": pieces.update_info(content)})
            case Load():
                self._pause()
                try:
                    self._load(request)
                finally:
                    self._resume()

    def _pause(self) -> None:
        """Begin no step, and await those in flight: their tokens would be attributed to the next weights."""
        if not self._engine.has_unfinished_requests():
            return
        self._engine.sleep(level=0, mode="keep")
        for _ in range(self._engine.vllm_config.max_concurrent_batches - 1):
            self._collect()

    def _resume(self) -> None:
        self._engine.wake_up(["scheduling"])
        self._refill()  # completions that ended meanwhile left room

    def _load(self, load: Load) -> None:
        if load.path is None:
            self._engine.collective_rpc("finish_weight_update")
            self._has_pieces = False
        elif load.adapters:
            self._load_adapters(load.path)
        else:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": load.path})
            if self._start.reads:  # the reload has emptied it, but the scheduler would still count on it
                self._engine.reset_encoder_cache()
            if self._start.gpu_memory_fraction is None:
                self._engine.apply_model(pack_heads)
        self._loads += 1
        if load.recompute:
            self._engine.reset_prefix_cache(reset_running_requests=True)
        self._engine.set_weight_version(str(load.version))

    def _load_adapters(self, path: str) -> None:
        from vllm.lora.request import LoRARequest

        self._engine.add_lora(LoRARequest("policy", ADAPTERS_ID, path, load_inplace=True))
        self._adapters = LoRARequest("policy", ADAPTERS_ID, path)

    def _refill(self) -> None:
        """Submit completions to vLLM up to the limits of the calls."""
        for call in self._calls.values():
            while call.waiting and len(call.running) < call.request.max_sequences:
                self._begin(call, *call.waiting.popleft())

    def _begin(self, call: Call, wanted: Wanted, token_ids: tuple[int, ...], placed: tuple[Placed, ...]) -> None:
        name = f"{call.request.id}/{call.num_begun}"
        call.num_begun += 1
        call.running[name] = wanted, token_ids
        salt = f"weights {self._loads}"  # separates prefix caches of different weights
        if placed:
            prompt = reading.prompt_with(token_ids, placed, call.media, salt)
        else:
            prompt = {"prompt_token_ids": list(token_ids), "cache_salt": salt}
        params = sampling_params(call.request, wanted)
        try:
            self._engine.add_request(name, prompt, params, lora_request=self._adapters)
        except ValueError as error:  # concerns this prompt only
            del call.running[name]
            self._say(Unanswered(call.request.id, wanted.prompt, describe(error)))

    def _step(self) -> None:
        self._collect()
        self._refill()

    def _collect(self) -> None:
        """A step of vLLM; what has ended is reported, and nothing begins instead."""
        for output in self._engine.step():
            if output.finished:
                self._finish(output)
        if time.monotonic() - self._spoke_at > BEAT_S:
            self._say(Beat())

    def _finish(self, output: RequestOutput) -> None:
        call = self._calls.get(int(output.request_id.partition("/")[0]))
        if call is None:
            return
        wanted, token_ids = call.running.pop(output.request_id)
        if tuple(output.prompt_token_ids or ()) != token_ids:
            raise AssertionError(f"vLLM has read another prompt than it was given: {output.prompt_token_ids}")
        self._say(sampled(call.request.id, wanted, output))

    def _ready(self) -> Ready:
        import vllm

        cache = self._engine.vllm_config.cache_config
        room = (cache.num_gpu_blocks or 0) * cache.block_size
        return Ready(self._start.id, self._engine.vllm_config.model_config.max_model_len, room, vllm.__version__)

    def _say(self, reply: Reply) -> None:
        self._connection.send_bytes(encode(reply))
        self._spoke_at = time.monotonic()


def open_engine(start: Start) -> LLMEngine:
    """vLLM with the model loaded."""
    from vllm import EngineArgs, LLMEngine

    on_gpu = start.gpu_memory_fraction is not None
    memory = (
        {"gpu_memory_utilization": start.gpu_memory_fraction}
        if on_gpu
        else {"kv_cache_memory_bytes": start.cpu_cache_bytes, "block_size": CPU_BLOCK}
    )
    lora = (
        {"enable_lora": True, "max_loras": 1, "max_lora_rank": min(r for r in LORA_RANKS if r >= start.lora_rank)}
        if start.lora_rank
        else {}
    )
    media = reading.arguments(start.model, start.reads) if start.reads else {}
    transfer = {"weight_transfer_config": pieces.CONFIG} if start.shares_gpu else {}
    arguments = EngineArgs(
        model=start.model,
        dtype=start.dtype,
        max_model_len=start.max_tokens,
        max_num_seqs=start.max_sequences,
        trust_remote_code=start.trust_remote_code,
        hf_overrides={"head_dtype": "float32"},  # logits as in training: `swarm/policy/scoring/head.py`
        tensor_parallel_size=start.num_parts,
        enable_sleep_mode=start.sleep,
        enforce_eager=not on_gpu,  # compiling for a CPU needs a C++ compiler
        enable_chunked_prefill=on_gpu,  # partial prompts rewind seeds, which fails on CPUs
        logprobs_mode="processed_logprobs",  # under the sampled distribution, with temperature and filters
        async_scheduling=on_gpu,
        generation_config="vllm",
        disable_log_stats=True,
        **memory,
        **lora,
        **media,
        **transfer,
    )
    engine = LLMEngine.from_engine_args(arguments)
    if start.shares_gpu:
        engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": pieces.INIT})
    return engine


def pack_heads(model: Module) -> None:
    """On CPUs vLLM multiplies with packed copies; a reload leaves a stale one for a head tied to the embeddings."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def sampling_params(request: Generate, wanted: Wanted) -> SamplingParams:
    """vLLM's sampling parameters for one completion."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_new_tokens,
        seed=wanted.seed,
        stop=list(sampling.stop),
        include_stop_str_in_output=True,
        detokenize=bool(sampling.stop),
        stop_token_ids=list(request.stop_ids),
        ignore_eos=True,  # end tokens are among the stop ids
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,  # instead of two objects a token, made between two steps
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def sampled(call: int, wanted: Wanted, output: RequestOutput) -> Sampled:
    """A finished request as a message to the node."""
    completion = output.outputs[0]
    ids = tuple(completion.token_ids)
    if tuple(completion.logprobs.token_ids) != ids:
        raise AssertionError(f"vLLM reports log-probabilities of other tokens than it sampled: {completion.logprobs}")
    return Sampled(
        id=call,
        prompt=wanted.prompt,
        completion=wanted.completion,
        token_ids=ids,
        logprobs=tuple(completion.logprobs.logprobs),
        versions=tuple(VersionSpan(int(span.version), span.end - span.start) for span in completion.weight_versions),
    )


def describe(error: BaseException) -> str:
    """One line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def main() -> None:
    """Serve on the socket whose file descriptor is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # vLLM's child processes must not keep the socket open
    connection = Connection(descriptor)
    try:
        start = decode_request(connection.recv_bytes())
        assert isinstance(start, Start)
    except (EOFError, ConnectionError):
        return
    try:
        Server(connection, start).serve()
    except (EOFError, ConnectionError):
        shutil.rmtree(start.work, ignore_errors=True)  # the node may have died before it could
    except BaseException as error:
        connection.send_bytes(encode(Broken(describe(error))))
        raise


if __name__ == "__main__":
    main()
