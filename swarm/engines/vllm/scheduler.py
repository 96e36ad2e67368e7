"""In vLLM's Python: vLLM's scheduler, which buffers the samples of a running completion until it is complete.

A step's tokens, log-probabilities ─┬▶ of a sequence that continues: appended to its `Kept`, nothing else
                                    └▶ of any other, and of one that ends: vLLM's own code, with all samples at once

vLLM makes several objects per token for streaming clients, converts log-probabilities one by one, and allocates blocks
per token, between two steps for which a GPU then waits. A node needs whole completions only. For a sequence that
continues, this module does the same as the schedulers of vLLM 0.32; other versions keep theirs (`server.py`).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import RequestStatus

from swarm.types import VersionSpan

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
    from vllm.v1.request import Request


class Kept:
    """Samples of a request so far."""

    def __init__(self, request: Request, version: int, is_read: bool) -> None:
        """No samples, weights of this version. `is_read`: whether vLLM gathers other outputs of each token."""
        params = request.sampling_params
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ends = {*(params.stop_token_ids or ()), params.eos_token_id}
        """Tokens that may end it."""
        self.is_read = is_read or params.detokenize
        """Whether vLLM has to see every token, also to look for stop texts."""
        self.is_plain = not (self.is_read or request.use_structured_output)
        """Whether it may continue without vLLM's loop."""
        self.has_media = request.has_encoder_inputs
        self._versions = [(0, version)]
        """(index of the first token, version)"""

    def turn(self, version: int) -> None:
        """Attribute later tokens to weights of this version."""
        if self._versions[-1][1] != version:
            self._versions.append((len(self.token_ids), version))

    def spans(self, num_tokens: int) -> tuple[VersionSpan, ...]:
        """Version spans of the first `num_tokens` tokens."""
        ends = [min(start, num_tokens) for start, _ in self._versions[1:]]
        pairs = zip(self._versions, [*ends, num_tokens], strict=True)
        return tuple(VersionSpan(version, end - start) for (start, version), end in pairs if end > start)


class _Rows:
    """Replaces vLLM's `LogprobsLists`, for the sampled tokens alone."""

    def __init__(self, logprobs: LogprobsLists) -> None:
        self.values: list[float] = logprobs.logprobs[:, 0].tolist()
        self._starts = logprobs.cu_num_generated_tokens

    def slice_request(self, index: int, num_tokens: int) -> list[float]:
        start = index if self._starts is None else self._starts[index]
        return self.values[start : start + num_tokens]


class KeepingScheduler(Scheduler):  # type: ignore[misc]
    """Synchronous steps."""

    def __init__(self, *arguments: object, **options: object) -> None:
        """See vLLM."""
        super().__init__(*arguments, **options)
        self._kept: dict[str, Kept] = {}
        """Incomplete requests, by vLLM's own request id."""
        self._version = 0
        manager = self.kv_cache_manager
        kinds = manager.coordinator.single_type_managers
        if [type(kind) for kind in kinds] == [FullAttentionManager] and self.num_lookahead_tokens == 0:
            self._blocks, self._block_size = kinds[0].req_to_blocks, kinds[0].block_size
            self._allocate = manager.allocate_slots
            manager.allocate_slots = self._slots

    def kept(self, request: str) -> Kept:
        """Samples of a request that was just added; they grow until it is complete."""
        return self._kept[request]

    def turn(self, version: int) -> None:
        """Attribute tokens to weights of this version from now on; no step is in flight."""
        self._version = version
        for kept in self._kept.values():
            kept.turn(version)

    def add_request(self, request: Request) -> None:
        """See vLLM."""
        super().add_request(request)
        self._kept[request.request_id] = Kept(request, self._version, self.aux_output_connector is not None)

    def finish_requests(self, request_ids: object, finished_status: RequestStatus) -> list[Request]:
        """See vLLM."""
        finished: list[Request] = super().finish_requests(request_ids, finished_status)
        for request in finished:
            self._kept.pop(request.request_id, None)
        return finished

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """See vLLM; outputs of requests that continue are missing."""
        if model_runner_output.logprobs is not None:
            model_runner_output.logprobs = _Rows(model_runner_output.logprobs)
        others = copy.copy(scheduler_output)
        others.num_scheduled_tokens = self._go_on(scheduler_output, model_runner_output)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(others, model_runner_output)
        for each in outputs.values():
            each.outputs = [output for output in each.outputs if self._passes(output)]
        return outputs

    def _go_on(self, scheduled: SchedulerOutput, sampled: ModelRunnerOutput) -> dict[str, int]:
        """Append the token of each sequence that plainly continues; returns the others, as they were scheduled."""
        tokens, logprobs = sampled.sampled_token_ids, sampled.logprobs
        if not tokens or logprobs is None or scheduled.scheduled_spec_decode_tokens or self._looks_at_each(sampled):
            return dict(scheduled.num_scheduled_tokens)
        others = {}
        for name, num in scheduled.num_scheduled_tokens.items():
            kept, request = self._kept.get(name), self.requests.get(name)
            row = sampled.req_id_to_index[name]
            if (
                kept is None
                or request is None
                or not (kept.is_plain and kept.token_ids)  # with the first token go figures of its prompt
                or request.status is not RequestStatus.RUNNING
                or request.num_stale_output_tokens
                or len(tokens[row]) != 1
                or self._may_end(request, kept, token := tokens[row][0])
            ):
                others[name] = num
                continue
            request.num_in_flight_tokens -= num
            if kept.has_media:
                self._free_encoder_inputs(request)
            self._append(request, token)
            kept.token_ids.append(token)
            kept.logprobs.append(logprobs.values[row])
        return others

    def _looks_at_each(self, sampled: ModelRunnerOutput) -> bool:
        """Whether vLLM has other work for every request."""
        return bool(
            self.aux_output_connector
            or self.connector
            or self.ec_connector
            or self.return_sampling_mask
            or sampled.pooler_output
            or sampled.num_nans_in_logits
        )

    def _may_end(self, request: Request, kept: Kept, token: int) -> bool:
        return (
            token in kept.ends
            or len(kept.token_ids) + 1 >= request.max_tokens
            or request.num_tokens + 1 >= self.max_model_len
        )

    def _append(self, request: Request, token: int) -> None:
        """Append a token as vLLM does, which looks for a full block at every token."""
        request._output_token_ids.append(token)
        request._all_token_ids.append(token)
        if len(request._all_token_ids) % self.hash_block_size == 0:
            request.update_block_hashes()
        if request.num_output_placeholders:  # only where steps begin before the last one's tokens are there
            request.num_output_placeholders -= 1
        num_computed = request.num_computed_tokens - request.num_output_placeholders
        if num_computed % self.hash_block_size == 0:
            self.kv_cache_manager.cache_blocks(request, num_computed)

    def _slots(self, request: Request, num_new_tokens: int, *arguments: object, **options: object) -> KVCacheBlocks:
        """Allocate slots; vLLM's own code only runs if another block is needed."""
        if num_new_tokens == 1 and request.status is RequestStatus.RUNNING:
            blocks = self._blocks.get(request.request_id, ())
            if request.num_computed_tokens < len(blocks) * self._block_size:
                return self.kv_cache_manager.empty_kv_cache_blocks
        return self._allocate(request, num_new_tokens, *arguments, **options)

    def _passes(self, output: EngineCoreOutput) -> bool:
        """Keep the samples in an output; returns whether vLLM passes it on."""
        kept = self._kept.get(output.request_id)
        if kept is None:
            return True
        kept.token_ids += output.new_token_ids
        if output.new_logprobs is not None:
            kept.logprobs += output.new_logprobs
            output.new_logprobs = None
        if output.finish_reason is not None:
            del self._kept[output.request_id]
            if not kept.is_read:
                output.new_token_ids = list(kept.token_ids)
            return True
        return bool(kept.is_read)


class KeepingAsyncScheduler(KeepingScheduler, AsyncScheduler):  # type: ignore[misc]
    """Asynchronous steps, which begin before the last one's tokens are known."""
