"""A language model as the opponent of a task's games: its settings, and what they change of the task.

Nobody else can replay such games, because models round differently on other machines. So they are for suites, for a
learner whose workers are its owner's, and for a node that shares nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from pydantic import Field, JsonValue

from swarm import torchao
from swarm.environments.episodes.source import EnvironmentTask
from swarm.errors import SwarmError, TaskError
from swarm.policy.config import PolicySettings, check_model_path, is_on_hub, origin, prompt_of
from swarm.settings import Settings
from swarm.types import Observation

Speaker = Callable[[Observation, int], str]
"""(what a player is shown at its turn, seed of its draws) -> what it says; remembers one game."""
OF_THE_PROCESSOR = (Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu"))
"""What torch reads before it computes; without, it takes its slowest kernels."""
MODEL_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


class ModelSettings(Settings):
    """A language model as an opponent: it is asked as a policy in its seat would be, on one core, and gives up where it
    names no legal move. Weights are float32."""

    path: str = Field(min_length=1)
    """A directory in Hugging Face format, such as `swarm export` writes, a hub id, or a policy that is made here, such
    as `smollm2`."""
    system_prompt: str | None = None
    """Prompt before every question; default as for `policy.system_prompt`."""
    temperature: float = Field(0.0, ge=0, le=10)
    """0 is greedy."""
    max_new_tokens: int = Field(32, ge=1, le=4_096)
    """Longest turn."""

    def build(self, task: str) -> Callable[[], Speaker]:
        """Makes what speaks for the model in one game of a task. Raises `TaskError`."""
        from swarm.policy.players import ModelPlayer, Speaking, open_model

        model = open_model(task, Speaking(self.path, self.system_prompt, self.temperature, self.max_new_tokens))
        return lambda: ModelPlayer(model)

    def from_anywhere(self) -> ModelSettings:
        """The same model by its directory, which is made or fetched if it is missing. Raises `SwarmError`."""
        from swarm.policy.loading import find_source
        from swarm.policy.reading import check_hub, foreign_files

        policy = PolicySettings(model=self.path, system_prompt=self.system_prompt)
        check_model_path(policy)
        prompt = prompt_of(policy) or ""
        place = find_source(self.path)
        if is_on_hub(self.path):
            from huggingface_hub import snapshot_download

            check_hub(self.path)
            with foreign_files(self.path):
                place = snapshot_download(self.path, allow_patterns=MODEL_FILES)
        return self.model_copy(update={"path": str(Path(place).expanduser().absolute()), "system_prompt": prompt})


class OpponentTask(EnvironmentTask):
    """Games that a model may play against the policy."""

    model: ModelSettings | None = None
    """A language model as the opponent: `path`, a directory in Hugging Face format, a hub id or a policy that is made
    here; `system_prompt`; `temperature` (0, greedy); `max_new_tokens` (32). No other machine could replay such games:
    for suites, `swarm learn` and a node with `share.groups: none`."""

    @property
    def is_replayable(self) -> bool:
        """See `TaskSettings`."""
        return self.model is None

    @property
    def folders(self) -> frozenset[Path]:
        """See `TaskSettings`: the model's, where the hub's cache has its files, and what torch reads."""
        if self.model is None:
            return frozenset()
        place = Path(self.model.path)
        caches = {file.resolve().parent for file in place.iterdir()}
        return frozenset({place, *caches, *(path for path in OF_THE_PROCESSOR if path.exists())})

    def from_anywhere(self) -> Self:
        """See `TaskSettings`."""
        if self.model is None:
            return self
        try:
            return self.model_copy(update={"model": self.model.from_anywhere()})
        except SwarmError as error:
            raise TaskError(f"task {self.name!r}: {error}") from error

    @property
    def options(self) -> dict[str, JsonValue]:
        """See `EnvironmentTask`. A model is named by its content, since its place differs."""
        options = super().options
        if self.model is None:
            options.pop("model")
        else:
            options["model"] = {**self.model.model_dump(), "path": origin(self.model.path, None)}
        return options

    @property
    def library(self) -> str:
        """See `TaskSettings`. Where a model plays, other software and processors round differently."""
        if self.model is None:
            return super().library
        import torch

        return f"torch=={torch.__version__} on {torch.backends.cpu.get_cpu_capability()}"

    def import_libraries(self) -> None:
        """See `TaskSettings`. A model is loaded here, while its process has the rights to."""
        super().import_libraries()
        if self.model is not None:
            torchao.hide()
            from swarm.policy.turns import RENDERER

            RENDERER.stay()
            self.player()

    def player(self) -> Callable[[], Speaker] | None:
        """Makes what speaks for the model in one game; None without a model. Raises `TaskError`."""
        return None if self.model is None else self.model.build(self.name)
