"""TRL's side: its `GRPOTrainer`, trained by its own loop: `python -m benchmarks.updater.theirs SPEC`, then JSON lines.

commands  update (`parameters_to`: a file to write them to), quit
events    ready, and updated for each update

Completions come from TRL's `rollout_func`, which waits for the next command. The clock starts after the rewards, so
that decoding and padding are not counted, and stops after the optimizer's step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.common.children import commands, emit
from benchmarks.updater.spec import BETAS, CLIP, LEARNING_RATE, MAX_GRAD_NORM, Spec
from benchmarks.updater.stopwatch import Stopwatch
from benchmarks.updater.workload import GROUP_SIZE, MODEL, read_batch


class Rollouts(TrainerCallback):
    """Supplies the batch to the trainer on each update command, and times the update."""

    def __init__(self, spec: Spec, tokenizer) -> None:
        """Nothing is measured before the trainer is ready."""
        self.groups = {group.prompt: group for group in read_batch(Path(spec.folder))}
        self._spec = spec
        self._tokenizer = tokenizer
        self._stopwatch: Stopwatch | None = None
        self._parameters_to: object = None
        self._waiting = commands()

    def rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list]:
        """TRL's `RolloutFunc`: each prompt comes once for each of its completions."""
        if self._stopwatch is None:
            self._stopwatch = Stopwatch(self._spec, trainer.model)
            emit("ready")
        command = self._waiting.get()
        if command["do"] != "update":
            raise SystemExit
        self._parameters_to = command.get("parameters_to")
        remaining = {prompt: iter(group.group.completions) for prompt, group in self.groups.items()}
        completions = [next(remaining[prompt]) for prompt in prompts]
        return {
            "prompt_ids": [self._tokenizer.encode(prompt) for prompt in prompts],
            "completion_ids": [list(completion.token_ids) for completion in completions],
            "logprobs": [list(completion.logprobs) for completion in completions],
        }

    def rewards(self, prompts: list[str], **_: object) -> list[float]:
        """TRL's reward function; called once per batch, right before the advantages."""
        remaining = {prompt: iter(group.rewards) for prompt, group in self.groups.items()}
        given = [next(remaining[prompt]) for prompt in prompts]
        assert self._stopwatch is not None
        self._stopwatch.start()
        return given

    def on_step_end(self, args, state, control, model=None, **_: object) -> None:
        """After the optimizer's step."""
        assert self._stopwatch is not None
        self._stopwatch.stop(model, self._parameters_to)


def main(spec: Spec) -> None:
    """Load, then train on command."""
    torch.set_num_threads(spec.threads)
    directory = str(Path(spec.folder) / MODEL)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    rollouts = Rollouts(spec, tokenizer)
    sequences = GROUP_SIZE * len(rollouts.groups)
    settings = dict(spec.settings)
    batch_size = int(settings.pop("per_device_train_batch_size", 8))
    arguments = GRPOConfig(
        output_dir=str(Path(spec.folder) / "trl"),
        use_cpu=not spec.device.startswith("cuda"),
        bf16=spec.dtype == "bfloat16",
        loss_type="grpo",
        scale_rewards="none",
        epsilon=CLIP[0],
        epsilon_high=CLIP[1],
        learning_rate=LEARNING_RATE,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=MAX_GRAD_NORM,
        lr_scheduler_type="constant",
        num_generations=GROUP_SIZE,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=sequences // batch_size,
        max_completion_length=max(len(c.token_ids) for g in rollouts.groups.values() for c in g.group.completions),
        max_steps=1_000_000,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        logging_steps=1_000_000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32),
        reward_funcs=rollouts.rewards,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in rollouts.groups]),
        processing_class=tokenizer,
        callbacks=[rollouts],
        rollout_func=rollouts.rollout,
    )
    trainer.train()


if __name__ == "__main__":
    main(Spec.read(sys.argv[1]))
