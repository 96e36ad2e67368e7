"""The sampling process: `PYTHON -m swarm.extras.vllm.server FD`, started by `service.py` only, in vLLM's Python.

requests ──▶ calls ──▶ vLLM, bounded sequences per call ──▶ a step ──▶ completions, each when complete
                 weights change here, between two steps ──▲

One thread: messages are read between two steps, so that they never interrupt a step. vLLM's engine core runs in this
process too. On GPUs it begins a step before it has the tokens of the last one; that one is awaited before weights
change, so that every token is attributed to the weights that sampled it. With several GPUs vLLM starts a process of
its own for each, which end with this one. The process ends when its socket closes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections import deque
from inspect import signature
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, ValidationError

from swarm.extras.vllm import reading
from swarm.extras.vllm.arguments import check_names, engine_arguments
from swarm.extras.vllm.messages import (
    Add,
    Beat,
    Broken,
    Compiling,
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
from swarm.types import Sampling, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module
    from vllm import LLMEngine, RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest

    from swarm.extras.vllm.scheduler import KeepingAsyncScheduler, KeepingScheduler, Kept

BEAT_S = 2.0
ADAPTERS_ID = 1
COMPILES = ("vllm.compilation.monitor", "Starting torch.compile")
"""Logger and text of vLLM's message that it compiles a model without a cache entry."""
KNOWN = "0.32."
"""Prefix of the version whose schedulers `scheduler.py` supports."""


class Running(Struct, frozen=True):
    """A completion in progress."""

    wanted: Wanted
    token_ids: tuple[int, ...]
    """The prompt's."""
    kept: Kept | None
    """Samples so far; None if vLLM keeps them."""


class Call:
    """One `Generate` in progress."""

    def __init__(self, request: Generate) -> None:
        self.request = request
        self.waiting: deque[tuple[Wanted, tuple[int, ...], tuple[Placed, ...]]] = deque()
        """Completions to begin, with prompts and their media."""
        self.media: dict[int, reading.Read] = {}
        self.running: dict[str, Running] = {}
        """What vLLM generates now, by its request id."""
        self.num_begun = 0


class Server:
    """Serves one node."""

    def __init__(self, connection: Connection, start: Start) -> None:
        """Load the model, which takes a while; raises whatever vLLM raises."""
        self._connection = connection
        self._start = start
        self._calls: dict[int, Call] = {}
        self._adapters: LoRARequest | None = None
        self._loads = 0
        self._has_pieces = False
        """Whether a part of the next weights is loaded: the model is neither the old nor the new one."""
        self._spoke_at = time.monotonic()
        hear(*COMPILES, lambda: self._say(Compiling(start.id)))
        os.chdir(start.work)
        self._engine, self._scheduler = open_engine(start)
        self._turn(start.version)

    def serve(self) -> None:
        """Serve until the node closes its end."""
        self._say(self._ready())
        while True:
            idle = self._has_pieces or not self._engine.has_unfinished_requests()
            if self._connection.poll(None if idle else 0):
                self._receive(self._connection.recv_bytes())
            else:
                self._step()

    def _receive(self, content: bytes) -> None:
        """Execute a request, or refuse one that cannot be decoded."""
        try:
            request = decode_request(content)
        except ValidationError as error:
            self._say(Refused(decode_heading(content).id, describe(error)))
        else:
            self._execute(request)

    def _execute(self, request: Request) -> None:
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
                self._engine.collective_rpc("update_weights", kwargs={"update_info": reading.update_info(content)})
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
        self._refill()  # completions that ended meanwhile freed capacity

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
            if not self._start.on_gpu:
                self._engine.apply_model(pack_heads)
        self._loads += 1
        if load.recompute:
            self._engine.reset_prefix_cache(reset_running_requests=True)
        self._turn(load.version)

    def _turn(self, version: int) -> None:
        """Attribute tokens to weights of this version from now on."""
        self._engine.set_weight_version(str(version))
        if self._scheduler:
            self._scheduler.turn(version)

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
        salt = f"weights {self._loads}"  # separates prefix caches of different weights
        if placed:
            prompt = reading.prompt_with(token_ids, placed, call.media, salt)
        else:
            prompt = {"prompt_token_ids": list(token_ids), "cache_salt": salt}
        params = sampling_params(call.request, wanted)
        try:
            given = self._engine.add_request(name, prompt, params, lora_request=self._adapters)
        except ValueError as error:  # concerns this prompt only
            self._say(Unanswered(call.request.id, wanted.prompt, describe(error)))
        else:
            kept = self._scheduler.kept(given) if self._scheduler else None
            call.running[name] = Running(wanted, token_ids, kept)

    def _step(self) -> None:
        self._collect()
        self._refill()

    def _collect(self) -> None:
        """Run a step of vLLM and report finished completions; nothing new begins."""
        for output in self._engine.step():
            if output.finished:
                self._finish(output)
        if time.monotonic() - self._spoke_at > BEAT_S:
            self._say(Beat())

    def _finish(self, output: RequestOutput) -> None:
        call = self._calls.get(int(output.request_id.partition("/")[0]))
        if call is None:
            return
        running = call.running.pop(output.request_id)
        if tuple(output.prompt_token_ids or ()) != running.token_ids:
            raise AssertionError(f"vLLM has read another prompt than it was given: {output.prompt_token_ids}")
        self._say(sampled(call.request.id, running, output))

    def _ready(self) -> Ready:
        import vllm

        config = self._engine.vllm_config
        return Ready(
            self._start.id,
            config.model_config.max_model_len,
            vllm.__version__,
            self._scheduler is not None,
        )

    def _say(self, reply: Reply) -> None:
        self._connection.send_bytes(encode(reply))
        self._spoke_at = time.monotonic()


def open_engine(start: Start) -> tuple[LLMEngine, KeepingScheduler | KeepingAsyncScheduler | None]:
    """vLLM with the model loaded, and its scheduler if that keeps what is sampled.

    Raises `ValueError` for a name in `Start.arguments` that vLLM does not know, and whatever vLLM raises.
    """
    from vllm import EngineArgs, LLMEngine, __version__

    check_names(start.arguments, signature(EngineArgs).parameters, __version__)
    keeps = __version__.startswith(KNOWN)
    if keeps:
        import_model(start.model)
        warm_up_for(start.sampling)
    gc.freeze()  # what is imported is never garbage, and would be looked through again and again
    gc.enable()
    given = engine_arguments(start) | ({"scheduler_cls": scheduler(start.on_gpu)} if keeps else {})
    engine = LLMEngine.from_engine_args(EngineArgs(**given))
    if start.shares_gpu:
        engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": reading.TRANSFER_INIT})
    return engine, engine.engine_core.engine_core.scheduler if keeps else None


def hear(logger: str, beginning: str, call: Callable[[], None]) -> None:
    """Call whenever vLLM logs a line with this text, at any level."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if beginning in record.getMessage():
                call()

    found = logging.getLogger(logger)
    found.setLevel(logging.INFO)
    found.addHandler(Handler())


def import_model(model: str) -> None:
    """Import vLLM's code for the model in a directory; otherwise vLLM imports it in another process first, to inspect
    it."""
    from vllm import ModelRegistry

    for architecture in json.loads((Path(model) / "config.json").read_bytes())["architectures"]:
        if found := ModelRegistry.models.get(architecture):
            ModelRegistry.register_model(architecture, found.load_model_cls())


def warm_up_for(sampling: Sampling) -> None:
    """Have vLLM compile only the kernels that completions need before it starts."""
    from vllm import SamplingParams

    used = sampling_params(Generate(0, sampling, (), 1), Wanted(0, 0, seed=0))
    SamplingParams.for_sampler_warmup = staticmethod(lambda: used)


def scheduler(ahead: bool) -> type[KeepingScheduler | KeepingAsyncScheduler]:
    """The class for asynchronous (`ahead`) or synchronous steps."""
    from swarm.extras.vllm.scheduler import KeepingAsyncScheduler, KeepingScheduler

    return KeepingAsyncScheduler if ahead else KeepingScheduler


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
        max_tokens=wanted.max_tokens or sampling.max_new_tokens,
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


def sampled(call: int, running: Running, output: RequestOutput) -> Sampled:
    """A finished request as a message to the node."""
    completion, kept = output.outputs[0], running.kept
    ids = tuple(completion.token_ids)
    if kept:
        known, logprobs = kept.token_ids[: len(ids)], kept.logprobs[: len(ids)]
        versions = kept.spans(len(ids))
    else:
        known, logprobs = completion.logprobs.token_ids, completion.logprobs.logprobs
        versions = tuple(VersionSpan(int(span.version), span.end - span.start) for span in completion.weight_versions)
    if tuple(known) != ids or len(logprobs) != len(ids):
        raise AssertionError(f"vLLM reports log-probabilities of other tokens than it sampled: {known}, {ids}")
    experts = getattr(completion, "routed_experts", None)
    return Sampled(
        id=call,
        prompt=running.wanted.prompt,
        completion=running.wanted.completion,
        token_ids=ids,
        logprobs=tuple(logprobs),
        versions=versions,
        experts=b"" if experts is None else experts.astype("<u2").tobytes(),
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
    gc.disable()  # until all is imported
    with contextlib.suppress(Exception):  # it is raised again when the node can receive it
        from vllm import EngineArgs, LLMEngine  # noqa: F401  meanwhile the node writes the model
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
