"""vLLM's schedulers beside those that keep what is sampled: `python twin_schedulers.py BLOCKS AHEAD`, in vLLM's Python.

Both of a pair schedule the same requests and get the same tokens, of no model: chosen by request and position. With
AHEAD 1 a step begins before the last one's tokens are there. Requests come, end, are aborted, and are pushed out of a
cache of BLOCKS blocks; weights change. Fails unless both decide the same at every step and give the same completions.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import deque
from pathlib import Path

import numpy as np

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
SALT = "weights"
STEPS = 450
"""While requests come."""
MOST_STEPS = 5_000
"""Until all have ended."""


def parts() -> tuple[object, dict[str, object]]:
    """An engine, and what it made its scheduler of, with blocks of 32 tokens; its end would end that."""
    from vllm import EngineArgs, LLMEngine
    from vllm.v1.core.sched.scheduler import Scheduler

    class Noted(Scheduler):
        def __init__(self, **given: object) -> None:
            self.given = given
            super().__init__(**given)

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        arguments = EngineArgs(
            folder,
            load_format="dummy",
            dtype="float32",
            max_model_len=256,
            max_num_seqs=12,
            skip_tokenizer_init=True,
            kv_cache_memory_bytes=2**26,
            num_gpu_blocks_override=int(sys.argv[1]),
            block_size=32,
            enforce_eager=True,
            disable_log_stats=True,
            scheduler_cls=Noted,
        )
        engine = LLMEngine.from_engine_args(arguments)
        return engine, engine.engine_core.engine_core.scheduler.given


class Side:
    """A scheduler with a model runner that has no model."""

    def __init__(self, scheduler: object, ahead: bool) -> None:
        self.scheduler = scheduler
        scheduler.use_v2_model_runner = True
        self.depth = 2 if ahead else 1
        self.flying: deque[tuple[object, object]] = deque()
        self.num_pushed_out = 0
        self.known: dict[str, list[int]] = {}
        """Length of its prompt, and of all its tokens."""
        self.found: dict[str, tuple[list[int], list[float], list[object]]] = {}
        """Tokens, their log-probabilities, and why it ended."""

    def step(self) -> object:
        """What it decided; collects the oldest step unless one more may begin."""
        from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

        decided = None
        if self.scheduler.has_requests():
            scheduled = self.scheduler.schedule()
            decided = (dict(scheduled.num_scheduled_tokens), sorted(scheduled.finished_req_ids))
            self.num_pushed_out += len(scheduled.preempted_req_ids or ())
            tokens, values = self.run(scheduled)
            names = list(scheduled.num_scheduled_tokens)
            rows = np.array(values, np.float32).reshape(-1, 1)
            logprobs = LogprobsLists(np.zeros_like(rows, int), rows, np.zeros(len(rows), int))
            output = ModelRunnerOutput(names, {name: k for k, name in enumerate(names)}, tokens, logprobs)
            self.flying.append((scheduled, output))
            if len(self.flying) < self.depth and names:
                return decided
        self.collect()
        return decided

    def run(self, scheduled: object) -> tuple[list[list[int]], list[float]]:
        computed = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        for new in scheduled.scheduled_new_reqs:
            self.known[new.req_id] = [len(new.prompt_token_ids), len(new.prefill_token_ids)]
        cached = scheduled.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        tokens, values = [], []
        for name, num in scheduled.num_scheduled_tokens.items():
            prompt, total = self.known[name]
            draw = random.Random(f"{name} {total - prompt}")
            tokens.append([draw.randrange(2, 300)] if computed[name] + num >= total else [])
            values.append(-draw.random())
            self.known[name][1] += len(tokens[-1])
        return tokens, values

    def collect(self) -> None:
        if not self.flying:
            return
        outputs = self.scheduler.update_from_output(*self.flying.popleft())
        for output in outputs[0].outputs if 0 in outputs else ():
            tokens, logprobs, reasons = self.found.setdefault(output.request_id, ([], [], []))
            tokens += output.new_token_ids
            if output.new_logprobs is not None:
                logprobs += output.new_logprobs.logprobs[:, 0].tolist()
            if output.finish_reason is not None:
                reasons += [output.finish_reason, output.stop_reason]


def main() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import SamplingParams, __version__
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request, RequestStatus

    from swarm.extras.vllm.scheduler import KeepingAsyncScheduler, KeepingScheduler
    from swarm.extras.vllm.server import KNOWN

    assert __version__.startswith(KNOWN)
    (_engine, given), ahead = parts(), sys.argv[2] == "1"
    init_none_hash(sha256)
    hasher = get_request_block_hasher(32, sha256)
    kinds = (AsyncScheduler, KeepingAsyncScheduler) if ahead else (Scheduler, KeepingScheduler)
    plain, keeping = sides = [Side(kind(**given), ahead) for kind in kinds]
    draw, version, kept, versions = random.Random(5), 0, {}, {}
    for step in range(MOST_STEPS):
        if step < STEPS and draw.random() < 0.4:
            name, length = f"{step}", draw.randrange(5, 60)
            for side in sides:
                params = SamplingParams(
                    max_tokens=1 + step % 90,
                    stop_token_ids=[7, 8],
                    ignore_eos=True,
                    logprobs=0,
                    detokenize=step % 7 == 0,
                )
                ids = [9 + (step // 5 + k) % 90 for k in range(length)]
                side.scheduler.add_request(Request(name, ids, params, None, cache_salt=SALT, block_hasher=hasher))
            kept[name] = keeping.scheduler.kept(name)
        if draw.random() < 0.02 and kept:
            name = draw.choice(list(kept))
            for side in sides:
                side.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        if draw.random() < 0.03:
            for side in sides:
                while side.flying:
                    side.collect()
            version += 1
            keeping.scheduler.turn(version)
            for name, (tokens, *_) in plain.found.items():
                versions.setdefault(name, []).append((len(tokens), version))
            if draw.random() < 0.5:
                assert len({side.scheduler.reset_prefix_cache(reset_running_requests=True) for side in sides}) == 1
        decided = [side.step() for side in sides]
        if step >= STEPS and not any(side.scheduler.has_requests() or side.flying for side in sides):
            break
        assert decided[0] == decided[1], (step, decided)
        pools = [side.scheduler.kv_cache_manager.block_pool for side in sides]
        assert len({pool.get_num_free_blocks() for pool in pools}) == 1, step
        running = [[request.request_id for request in side.scheduler.running] for side in sides]
        assert running[0] == running[1], step
    assert not any(side.scheduler.has_requests() or side.flying for side in sides)
    assert not keeping.scheduler._kept
    ended = {name: found for name, found in plain.found.items() if found[2]}
    for name, (tokens, logprobs, reasons) in ended.items():
        assert kept[name].token_ids == keeping.found[name][0] == tokens, name
        assert kept[name].logprobs == logprobs and keeping.found[name][1:] == ([], reasons), name
        assert sum(span.num_tokens for span in kept[name].spans(len(tokens))) == len(tokens)
        turned = dict(at for at in versions.get(name, []) if at[0] < len(tokens))  # the last one at each token
        starts, at = {}, 0
        for span in kept[name].spans(len(tokens)):
            if at:
                starts[at] = span.version
            at += span.num_tokens
        assert starts == turned, name
    print(
        json.dumps({"ended": len(ended), "pushed out": sum(side.num_pushed_out for side in sides), "versions": version})
    )


if __name__ == "__main__":
    main()
