"""A language model as the opponent of a task's games: what it changes of the task.

Nobody else can replay such games, because models round differently on other machines. So they are for suites, for a
learner whose workers are its owner's, and for a node that shares nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from pydantic import JsonValue

from swarm import torchao
from swarm.environments.config import Failures
from swarm.environments.episodes.source import EnvironmentTask
from swarm.errors import SwarmError, TaskError
from swarm.policy.config import OpponentSettings, check_model_path, is_on_hub, origin, prompt_of
from swarm.types import Observation

TURNS = "opponent_turns"
"""The counter of a model's turns, each once however often its game is replayed."""
UNREAD = "opponent_unread"
"""The counter of those in which it named no legal move, or failed."""


class Speaker(Protocol):
    """Who has a seat in one game."""

    def __call__(self, shown: Observation, seed: int, /) -> str:
        """What it says at its turn, where it is shown this; `seed` decides its draws."""

    def unread(self) -> None:
        """Note that what it said last is no legal move, or that it failed."""


OF_THE_PROCESSOR = (Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu"))
"""What torch reads before it computes; without, it takes its slowest kernels."""

MODEL_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


class OpponentTask(EnvironmentTask):
    """Games that a model may play against the policy."""

    model: OpponentSettings | None = None
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
            return self.model_copy(update={"model": by_directory(self.model)})
        except SwarmError as error:
            problem = str(error).removeprefix("policy.model: ")
            raise TaskError(f"task {self.name!r}: model.path: {problem}") from error

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
            self.player(Failures())

    def player(self, counts: Failures) -> Callable[[], Speaker] | None:
        """Makes what speaks for the model in one game; None without a model. `counts` gets `TURNS` and `UNREAD`.

        Raises `TaskError`.
        """
        if self.model is None:
            return None
        from swarm.policy.players import ModelPlayer, open_model

        model = open_model(self.name, self.model)

        def unread() -> None:
            counts.note(UNREAD, self.name, "its opponent named no legal move, and lost by that")

        def turn() -> None:
            counts[TURNS] += 1

        return lambda: ModelPlayer(model, turn, unread)


def by_directory(settings: OpponentSettings) -> OpponentSettings:
    """The same model by its directory, which is made or fetched if it is missing. Raises `SwarmError`."""
    from swarm.policy.loading import find_source
    from swarm.policy.reading import check_hub, foreign_files

    check_model_path(settings.policy)
    prompt = prompt_of(settings.policy) or ""
    place = find_source(settings.path)
    if is_on_hub(settings.path):
        from huggingface_hub import snapshot_download

        check_hub(settings.path)
        with foreign_files(settings.path):
            place = snapshot_download(settings.path, allow_patterns=MODEL_FILES)
    return settings.model_copy(update={"path": str(Path(place).expanduser().absolute()), "system_prompt": prompt})
