"""Which field of a configuration somebody meant, by a name that there is not, or that other trainers use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from pydantic import BaseModel

from swarm.kinds import Kinds
from swarm.settings import field_paths, nearest

NUM_NAMED = 3
"""Most fields that a message suggests."""
NAMES_ELSEWHERE = {
    "model_name_or_path": "policy.model",
    "lr": "update.learning_rate",
    "num_generations": "generation.group_size",
    "num_completions": "generation.group_size",
    "max_completion_length": "generation.max_new_tokens",
    "max_tokens": "generation.max_new_tokens",
    "generation_batch_size": "generation.questions_per_round",
    "beta": "update.reference_kl",
    "kl_coef": "update.reference_kl",
    "num_iterations": "update.epochs",
    "num_train_epochs": "rounds",
    "max_steps": "rounds",
    "loss_type": "update.objective",
    "scale_rewards": "update.advantage",
    "epsilon": "update.loss.clip_low",
    "epsilon_high": "update.loss.clip_high",
    "delta": "update.loss.dual_clip",
    "lr_scheduler_type": "update.schedule",
    "warmup_steps": "update.warmup_updates",
    "optim": "update.optimizer",
    "use_vllm": "generation.engine",
    "output_dir": "out",
    "save_steps": "checkpoint.every_rounds",
    "save_total_limit": "checkpoint.keep",
    "logging_steps": "telemetry.log_every_rounds",
    "eval_steps": "evaluation.every_rounds",
    "train_dataset": "tasks",
    "dataset": "tasks",
    "reward_funcs": "tasks",
    "reward_weights": "tasks",
    "report_to": "telemetry.sinks",
    "bf16": "policy.dtype",
    "lora_r": "policy.lora.rank",
    "lora_alpha": "policy.lora.alpha",
    "load_in_4bit": "policy.lora.frozen_dtype",
    "per_device_train_batch_size": "update.micro_batch_tokens",
    "gradient_accumulation_steps": "update.micro_batch_tokens",
    "steps_per_generation": "update.minibatches",
    "vllm_gpu_memory_utilization": "generation.vllm.gpu_memory_fraction",
    "importance_sampling_level": "update.objective",
    "log_completions": "telemetry.samples_per_outcome",
}
"""TRL's names, and some that are common elsewhere, for fields here; docs/faq.md has the table."""


def did_you_mean(root: type[BaseModel], path: Sequence[str | int]) -> str:
    """The field that is named most like the last part of a path that there is not; empty without one."""
    models: set[type[BaseModel]] = {root}
    for part in path[:-1]:
        named = [model.model_fields[str(part)] for model in models if str(part) in model.model_fields]
        if of_kind := {model for model in models if len(models) > 1 and part in _kinds(model)}:
            models = of_kind
        elif named:  # and otherwise an index or a key
            models = {model for field in named for model in _models_in(field.annotation)}
    here = nearest(str(path[-1]), [name for model in models for name in model.model_fields])
    near = [] if here is None else [joined((*path[:-1], here))]
    name = str(path[-1])
    found = near if here == name else named_fields(root, name) or near or similar_fields(root, name)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def joined(path: Sequence[str | int]) -> str:
    """A dotted path; within an item of a list only the field, since nobody writes the number of an item."""
    return str(path[-1]) if any(isinstance(part, int) for part in path) else ".".join(map(str, path))


def named_fields(root: type[BaseModel], name: str) -> list[str]:
    """Dotted paths of the fields that this last name, or another trainer's name for them, stands for."""
    leaf = name.replace("-", "_")
    if leaf in NAMES_ELSEWHERE:
        return [NAMES_ELSEWHERE[leaf]]
    return [path for path in field_paths(root) if path.rpartition(".")[2] == leaf][:NUM_NAMED]


def similar_fields(root: type[BaseModel], name: str) -> list[str]:
    """The same for a name that is written nearly like one of theirs."""
    here = nearest(name.replace("-", "_"), {path.rpartition(".")[2] for path in field_paths(root)})
    return [] if here is None else named_fields(root, here) or [here]


def _models_in(annotation: object) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    if isinstance(annotation, Kinds):
        return set(annotation.values())
    return {model for part in get_args(annotation) for model in _models_in(part)}


def _kinds(model: type[BaseModel]) -> tuple[object, ...]:
    """What decides for this model where there are several."""
    return get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
