"""The configuration of a node, composed from its components' models, and where each value came from.

Layers, in rising priority: defaults, defaults for the chosen model, the run's manifest, the YAML file, the environment
(`SWARM_MIX__LOCAL=3`), the command line (`--mix.local 3`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from inspect import isabstract
from pathlib import Path
from typing import get_args, get_origin

import yaml
from pydantic import BaseModel, Field, JsonValue, ValidationError, model_validator

from swarm.central.follower import FollowSettings
from swarm.central.learner import LearnerSettings
from swarm.engines.config import GenerationSettings
from swarm.environments.config import TaskConfig, VerificationSettings
from swarm.environments.tiny import TINY_TASKS
from swarm.errors import ConfigError
from swarm.groups.plausibility import PlausibilitySettings
from swarm.judging.config import JudgeSettings
from swarm.net.config import NetworkSettings
from swarm.policy.config import (
    EMBEDDED,
    SMOLLM2,
    SYSTEM_PROMPT_OF_FORMS,
    SYSTEM_PROMPT_WITH_FORMS,
    TINY,
    PolicySettings,
)
from swarm.sapo.mixing import MixSettings
from swarm.sapo.pool import PoolSettings
from swarm.sapo.round import ShareSettings
from swarm.sapo.watch import WatchSettings
from swarm.settings import Settings
from swarm.suites.config import SuiteName, SuiteSettings
from swarm.telemetry.config import TelemetrySettings
from swarm.training.config import UpdateSettings
from swarm.types import HELD_OUT_STREAMS

ENVIRONMENT_PREFIX = "SWARM_"

Values = dict[str, JsonValue]


class CheckpointSettings(Settings):
    """When the node's state is written."""

    every_rounds: int = Field(50, ge=1)
    keep: int = Field(2, ge=1)
    """Checkpoints to keep; with 2, a torn newest checkpoint costs at most `every_rounds` rounds."""


class EvaluationSettings(Settings):
    """Accuracy on held-out questions of the run's tasks, sampled as in training, with its own random stream; and
    evaluation suites."""

    num_questions: int = Field(256, ge=0)
    """0 disables evaluation."""
    every_rounds: int | None = Field(None, ge=1)
    """Rounds between evaluations; by default a node evaluates only before the first round and after the last."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Selects one of the streams of held-out questions; no node trains on any of them."""
    suites: dict[SuiteName, SuiteSettings] = {}
    """Named evaluations; `swarm evaluate --suite NAME` asks them as well."""
    beside: bool = False
    """Ask suites in a separate process with a copy of the model, while training goes on. Otherwise training waits for
    them. Not with several processes (torchrun)."""

    @property
    def stream(self) -> int:
        """The stream's seed."""
        return HELD_OUT_STREAMS + self.seed


class NodeConfig(Settings):
    """Everything that decides what a node does."""

    name: str = "peer"
    """Name of this node in views and reports."""
    run_name: str = Field("swarm", pattern=r"^[a-z0-9-]{1,40}$")
    """Name of the run this node founds when it joins none."""
    out: Path = Path("runs/peer")
    """Directory for identity, checkpoints, metrics and reports."""
    rounds: int | None = Field(None, ge=1)
    """Stop after this many rounds; default: never."""
    seed: int | None = Field(None, ge=0, lt=HELD_OUT_STREAMS)
    """Seed of this node's questions and samples; default: derived from the peer id, so that peers ask different
    questions."""
    tasks: tuple[TaskConfig, ...] = Field(TINY_TASKS, min_length=1)
    files: dict[str, Path] = {}
    """This node's copies of files that tasks of the run are on, by the task's name: `--files.sums ~/sums.jsonl`."""
    code: dict[str, str] = {}
    """This node's copies of code that tasks of the run are on, by the task's name: `--code.halve tasks.py:Halve`."""
    policy: PolicySettings = PolicySettings()
    generation: GenerationSettings = GenerationSettings()
    share: ShareSettings = ShareSettings()
    mix: MixSettings = MixSettings()
    pool: PoolSettings = PoolSettings()
    plausibility: PlausibilitySettings = PlausibilitySettings()
    watch: WatchSettings = WatchSettings()
    update: UpdateSettings = UpdateSettings()
    learner: LearnerSettings = LearnerSettings()
    follow: FollowSettings = FollowSettings()
    verification: VerificationSettings = VerificationSettings()
    judge: JudgeSettings = JudgeSettings()
    network: NetworkSettings = NetworkSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @model_validator(mode="after")
    def _the_mix_is_possible(self) -> NodeConfig:
        if self.mix.local > self.generation.questions_per_round:
            raise ValueError(
                f"mix.local must be at most generation.questions_per_round, got {self.mix.local} > "
                f"{self.generation.questions_per_round}: a round cannot produce more local groups than it asks "
                f"questions"
            )
        return self

    @model_validator(mode="after")
    def _task_names_differ(self) -> NodeConfig:
        names = [task.name for task in self.tasks]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"tasks must have different names, got {', '.join(doubled)} more than once")
        return self


class LoadedConfig(Settings):
    """A valid configuration and the origin of every value that is not a default, by dotted path."""

    config: NodeConfig
    origins: dict[str, str]


def load_config(
    file: Path | None = None,
    manifest: Values | None = None,
    environment: Mapping[str, str] | None = None,
    command_line: Sequence[tuple[str, str]] = (),
) -> LoadedConfig:
    """Merge the layers and validate.

    Raises `ConfigError` with the path and the origin of every wrong field. `manifest` holds the values that the run
    sets, `command_line` (dotted path, text) pairs.
    """
    own: list[tuple[str, Values]] = []
    if file is not None:
        own.append((str(file), _read_yaml(file)))
    own.append(("environment", _nest(_environment_pairs(environment or {}), "environment")))
    own.append(("command line", _nest(command_line, "command line")))
    merged: Values = {}
    origins: dict[str, str] = {}
    preset = _preset(_chosen_model(values for _, values in own))
    for origin, values in [preset, ("manifest", manifest or {}), *own]:
        _merge(merged, values, origin, origins, "")
    _ask_for_other_forms(merged, origins)
    try:
        return LoadedConfig(config=NodeConfig.model_validate(merged), origins=origins)
    except ValidationError as error:
        raise ConfigError(_describe(error, origins)) from error


def describe_config(loaded: LoadedConfig) -> list[tuple[str, str, str]]:
    """(dotted path, value as YAML, origin) of every field, in the models' order."""
    rows = []
    for path, value in _leaves(loaded.config.model_dump(mode="json"), ""):
        text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("\n...").strip()
        rows.append((path, text, _origin(path, loaded.origins) or "default"))
    return rows


def _preset(model: str) -> tuple[str, Values]:
    """Defaults for this model where they differ from those for any."""
    if model == SMOLLM2:
        return f"default for {model}", {"update": {"learning_rate": 1e-5}}
    if model not in EMBEDDED:
        return "", {}
    return f"default for {model}", {
        "generation": {"max_new_tokens": 16, "max_batch_sequences": 1024},
        "update": {"learning_rate": 3e-4},
        "policy": {"threads": 1},
    }


def _ask_for_other_forms(merged: Values, origins: dict[str, str]) -> None:
    """The default system prompt asks for tags; replace it where questions ask for another form of answer."""
    policy, tasks = merged.setdefault("policy", {}), merged.get("tasks")
    if not isinstance(policy, dict) or not isinstance(tasks, list) or policy.get("system_prompt") is not None:
        return
    forms = {_form(task) for task in tasks if isinstance(task, dict)}
    if forms - {"tags"} and policy.get("model", TINY) not in EMBEDDED:
        policy["system_prompt"] = SYSTEM_PROMPT_OF_FORMS if "tags" not in forms else SYSTEM_PROMPT_WITH_FORMS
        origins["policy.system_prompt"] = "default for the tasks' `find`"


def _form(task: Values) -> str:
    """The form of answer that a task's questions ask for; an environment and code of one's own read whole texts."""
    kind = task.get("kind", "reasoning_gym")
    reads_all = kind not in ("reasoning_gym", "dataset") or task.get("scorer") is not None
    return str(task.get("find") or ("whole" if reads_all else "tags"))


def _chosen_model(layers: Iterable[Values]) -> str:
    chosen = TINY
    for values in layers:
        policy = values.get("policy")
        if isinstance(policy, dict) and isinstance(policy.get("model"), str):
            chosen = str(policy["model"])
    return chosen


def _read_yaml(file: Path) -> Values:
    try:
        values = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read configuration {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration {file} is not valid YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"configuration {file} must be a mapping of fields, got {type(values).__name__}")
    return values


def _environment_pairs(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """`SWARM_MIX__LOCAL=3` names `mix.local`; other variables with the prefix are an error, as in a file."""
    return [
        (name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."), value)
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    ]


def _nest(pairs: Iterable[tuple[str, str]], origin: str) -> Values:
    """Nest the texts by their dotted paths; a repeated list field collects its values."""
    nested: Values = {}
    for path, text in pairs:
        *parents, leaf = path.split(".")
        kind = _kind_of(path, origin)
        level = nested
        for parent in parents:
            below = level.setdefault(parent, {})
            assert isinstance(below, dict)  # `_kind_of` refuses paths through leaves
            level = below
        value = text if text in get_args(kind) else _parse(text, path, origin)
        if get_origin(kind) in (tuple, list) and not isinstance(value, list):
            earlier = level.get(leaf)
            value = [*(earlier if isinstance(earlier, list) else []), value]
        level[leaf] = value
    return nested


def _parse(text: str, path: str, origin: str) -> JsonValue:
    """Text stays text (pydantic parses numbers later); lists, mappings and null are parsed as YAML."""
    if text in ("null", "none", "~") or text.startswith(("[", "{")):
        try:
            return None if text == "none" else yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} (from {origin}): not valid YAML: {text}") from error
    return text


def _kind_of(path: str, origin: str) -> object:
    """The type of the field at `path`, None if another field decides it. Raises `ConfigError` where there is none."""
    model: type[BaseModel] = NodeConfig
    parts = path.split(".")
    for depth, part in enumerate(parts):
        field = model.model_fields.get(part)
        if field is None:
            near = difflib.get_close_matches(part, list(model.model_fields), n=1)
            hint = f"; did you mean {'.'.join([*parts[:depth], near[0]])}?" if near else ""
            raise ConfigError(f"{path} (from {origin}): there is no such field{hint}")
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if isabstract(annotation):
                return None  # the fields depend on another field's value: `model_validate` checks them
            model = annotation
        elif get_origin(annotation) is dict and depth + 2 >= len(parts):
            return None  # any key
        elif depth + 1 < len(parts):
            raise ConfigError(f"{path} (from {origin}): {'.'.join(parts[: depth + 1])} has no fields")
        else:
            return annotation
    raise ConfigError(
        f"{path} (from {origin}): this is a group of fields; name one of them: {', '.join(model.model_fields)}"
    )


def _merge(target: Values, values: Values, origin: str, origins: dict[str, str], prefix: str) -> None:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            below = target.get(key)
            if not isinstance(below, dict):
                below = target[key] = {}
            _merge(below, value, origin, origins, f"{path}.")
        else:
            target[key] = value
            origins[path] = origin


def _origin(path: str, origins: Mapping[str, str]) -> str | None:
    """Origin of a path, or of the nearest list or mapping that contains it."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return None


def _describe(error: ValidationError, origins: Mapping[str, str]) -> str:
    lines = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        origin = _origin(path, origins)
        message = item["msg"].removeprefix("Value error, ")
        seen = "" if isinstance(item["input"], dict) or item["type"] == "value_error" else f", got {item['input']!r}"
        where = f" (from {origin})" if origin else ""
        lines.append(f"{path}{where}: {message}{seen}" if path else message)
    return "\n".join(lines)


def _leaves(values: JsonValue, prefix: str) -> Iterable[tuple[str, JsonValue]]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, values
