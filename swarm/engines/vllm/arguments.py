"""Arguments of vLLM's engine, its `EngineArgs`: those of a node, and a user's own (`generation.vllm.arguments`).

The node refuses arguments of a user that would break its own, before anything starts; vLLM's process refuses names that
the installed vLLM does not have, before it loads a model. Both run this file.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Mapping

from swarm.engines.vllm import reading
from swarm.engines.vllm.messages import Start

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM supports."""
CPU_BLOCK = 32
"""Tokens, the fewest that vLLM's CPU kernels take. Its default of 128 would find too little of an episode's past."""
MOST_RECORDED = 512
"""Tokens of the largest step that is recorded as a CUDA graph, as in vLLM."""
MAX_ARGUMENTS = 64
MAX_CHARS = 2**14
"""Most characters of all arguments as JSON."""

_SETTINGS = {
    "policy.model": "model model_weights tokenizer tokenizer_mode tokenizer_revision hf_config_path config_format "
    "revision code_revision hf_token load_format model_loader_extra_config ignore_patterns model_class_overrides",
    "policy.dtype": "dtype",
    "policy.trust_remote_code": "trust_remote_code",
    "policy.routing_replay": "enable_return_routed_experts",
    "policy.lora": "enable_lora max_loras max_lora_rank max_cpu_loras lora_dtype lora_target_modules default_mm_loras",
    "generation.max_batch_sequences": "max_num_seqs max_num_active_seqs max_num_queued_reqs max_num_queued_tokens",
    "generation.vllm.gpus": "tensor_parallel_size device_ids",
    "generation.vllm.gpu_memory_fraction": "gpu_memory_utilization kv_cache_memory_bytes",
    "generation.vllm.sleep": "enable_sleep_mode sleep_mode_offload_cudagraph sleep_preserve_parameter_names",
    "generation.vllm.transfer": "weight_transfer_config",
}
_REASONS = {
    "each completion has its own seed": "seed",
    "a policy is trained on the log-probabilities of the distribution that it sampled from": "logprobs_mode "
    "max_logprobs logits_processors watermark_config",
    "sampling follows the settings of generation": "generation_config override_generation_config",
    "logits are computed as in training": "hf_overrides",
    "the longest sequence follows from the policy and the memory": "max_model_len",
    "each token is attributed to the weights that sampled it": "async_scheduling scheduler_cls worker_cls "
    "worker_extension_cls enable_chunked_prefill",
    "completions end at texts": "skip_tokenizer_init tokens_only",
    "it generates completions": "runner convert pooler_config diffusion_config io_processor_plugin",
    "the node computes what pictures and sounds become": "enable_mm_embeds enable_prompt_embeds limit_mm_per_prompt "
    "skip_mm_profiling language_model_only mm_encoder_only mm_processor_cache_gb",
    "a node has one vLLM, on its own machine: for more GPUs set generation.vllm.gpus, or start workers": "nnodes "
    "node_rank master_addr master_port distributed_executor_backend pipeline_parallel_size data_parallel_size "
    "data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address data_parallel_rpc_port "
    "data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb data_parallel_backend "
    "prefill_context_parallel_size decode_context_parallel_size enable_elastic_ep",
}
_USE = {name: f"set {setting}" for setting, names in _SETTINGS.items() for name in names.split()}
RESERVED = _USE | {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Names that a node refuses, with what to do or why."""


def check(arguments: Mapping[str, object]) -> None:
    """Raises `ValueError` for arguments that are the node's own, and for too many."""
    for name in arguments:
        if name in RESERVED:
            raise ValueError(f"{name} is the node's: {RESERVED[name]}")
    if len(arguments) > MAX_ARGUMENTS or len(json.dumps(arguments)) > MAX_CHARS:
        raise ValueError(f"must be at most {MAX_ARGUMENTS} arguments and {MAX_CHARS:,} characters of JSON")


def check_names(arguments: Collection[str], known: Collection[str], version: str) -> None:
    """Raises `ValueError` for a name that vLLM, of this version, does not know."""
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"generation.vllm.arguments: vLLM {version} has no argument {name}{hint}")


def engine_arguments(start: Start) -> dict[str, object]:
    """Arguments by name, for the working directory `start.work`; runs in vLLM's Python."""
    memory: dict[str, object] = (
        {"gpu_memory_utilization": start.gpu_memory_fraction, "cudagraph_capture_sizes": recorded(start)}
        if start.on_gpu
        else {"kv_cache_memory_bytes": start.cpu_cache_bytes, "block_size": CPU_BLOCK}
    )
    if {"compilation_config", "max_cudagraph_capture_size"} & start.arguments.keys():
        memory.pop("cudagraph_capture_sizes", None)
    lora = (
        {"enable_lora": True, "max_loras": 1, "max_lora_rank": min(r for r in LORA_RANKS if r >= start.lora_rank)}
        if start.lora_rank
        else {}
    )
    return {
        "model": os.path.relpath(start.model, start.work),  # vLLM finds what it has compiled by this name, too
        "dtype": start.dtype,
        "max_model_len": start.max_tokens,
        "max_num_seqs": start.max_sequences,
        "trust_remote_code": start.trust_remote_code,
        "hf_overrides": {"head_dtype": "float32"},  # logits as in training: `swarm/policy/scoring.py`
        "tensor_parallel_size": start.num_parts,
        "enable_sleep_mode": start.sleep,
        "enforce_eager": not start.on_gpu,  # compiling for a CPU needs a C++ compiler
        "enable_chunked_prefill": start.on_gpu,  # partial prompts rewind seeds, which fails on CPUs
        "logprobs_mode": "processed_logprobs",  # under the sampled distribution, with temperature and filters
        "async_scheduling": start.on_gpu,
        "generation_config": "vllm",
        "disable_log_stats": True,
        **memory,
        **lora,
        **(reading.arguments(start.model, start.reads) if start.reads else {}),
        **({"weight_transfer_config": reading.TRANSFER} if start.shares_gpu else {}),
        **({"enable_return_routed_experts": True} if start.reports_experts else {}),
        **start.arguments,
    }


def recorded(start: Start) -> list[int]:
    """Sizes in tokens of the steps that vLLM records as CUDA graphs: half as many as by default, because each takes
    time at every start; a step is rounded up by 15 tokens at most."""
    most = min(start.max_sequences, MOST_RECORDED)
    return sorted({size for size in (1, 2, 4, 8, most, *range(16, most, 16)) if size <= most})
