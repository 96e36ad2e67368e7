"""The configuration of a node, composed from its components' models, and where each value came from.

Layers, in rising priority: defaults, defaults for the chosen model, the run's manifest, the YAML file, the environment
(`SWARM_MIX__LOCAL=3`), the command line (`--mix.local 3`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import isabstract
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, Field, JsonValue, ValidationError, model_validator
from pydantic_core import ErrorDetails

from swarm.endpoint import EndpointSettings
from swarm.engines.config import GenerationSettings
from swarm.environments.config import TASKS, TaskConfig, VerificationSettings
from swarm.environments.judge import JudgeSettings, Raters, RewardServiceSettings
from swarm.environments.tiny import TINY_TASKS
from swarm.errors import ConfigError
from swarm.following import FollowSettings, LearnerSettings
from swarm.net.config import NetworkSettings
from swarm.net.records.identity import is_peer_id
from swarm.policy.config import (
    EMBEDDED,
    SMOLLM2,
    SYSTEM_PROMPT_OF_FORMS,
    SYSTEM_PROMPT_WITH_FORMS,
    TINY,
    TINY_SEES,
    PolicySettings,
    exported_prompt,
)
from swarm.received.corroboration import CorroborationSettings
from swarm.received.plausibility import PlausibilitySettings
from swarm.received.pool import PoolSettings
from swarm.sapo.mixing import MixSettings
from swarm.sapo.round import ShareSettings
from swarm.sapo.watch import WatchSettings
from swarm.schedule import ScheduleSettings
from swarm.settings import Settings, in_words, leaves
from swarm.suggestions import did_you_mean, joined
from swarm.suites.config import SuiteName, SuiteSettings
from swarm.teaching import DistillSettings, TeachSettings
from swarm.telemetry.sinks import TelemetrySettings
from swarm.training.config import DemonstrationSettings, UpdateSettings
from swarm.types import HELD_OUT_STREAMS, MAX_TRUSTED
from swarm.yaml_file import UNREADABLE, YamlFile, check, read

ENVIRONMENT_PREFIX = "SWARM_"
TEST_PREFIX = "SWARM_TEST_"

CONFIG_VERSION = 1
"""Rises when a field is renamed, removed or gets another meaning; a configuration of another version is refused."""

_SERVICE = re.compile(r"SWARM_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_PORT = re.compile(r"SWARM_(\w+_)?PORT")

ID_CHARS = 4
"""Characters of a peer id in the default name: its end tells nodes apart whose directories have the same name."""
Values = dict[str, JsonValue]


def _known(peer_id: str) -> str:
    if not is_peer_id(peer_id):
        raise ValueError(f"it must be a peer id (12D3Koo...), got {peer_id!r:.100}")
    return peer_id


PeerId = Annotated[str, AfterValidator(_known)]


class CheckpointSettings(Settings):
    """When the node's state is written."""

    every_rounds: int = Field(50, ge=1)
    keep: int = Field(2, ge=1)
    """Checkpoints to keep; with 2, a torn newest checkpoint costs at most `every_rounds` rounds."""
    resume_changed: bool = False
    """Go on from a checkpoint although its objective, own tasks or role were others (`--resume`); otherwise the start
    is refused. Other changes are allowed, and said."""


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
    """Ask suites in a separate process with a copy of the model, while training continues. Otherwise training waits for
    them. Not with several processes (torchrun)."""

    @property
    def stream(self) -> int:
        """The stream's seed."""
        return HELD_OUT_STREAMS + self.seed


class NodeConfig(Settings):
    """Everything that decides what a node does."""

    version: int = CONFIG_VERSION
    """Version of the configuration's format; a file without it is of the current one."""
    name: str = ""
    """Name of this node in views and reports, and for the run's members; nodes in folders of one name need one to be
    distinguishable. Default, not shown to members: the last part of `out` with the end of the peer id, such as
    `peer-2 (kB9a)`."""
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
    trusted: tuple[PeerId, ...] = Field((), max_length=MAX_TRUSTED)
    """Peers whose episodes with custom tools count here, though nobody can replay them; by default those that the
    run's founder lists. A node that is among them shares such episodes, others keep theirs."""
    policy: PolicySettings = PolicySettings()
    generation: GenerationSettings = GenerationSettings()
    share: ShareSettings = ShareSettings()
    mix: MixSettings = MixSettings()
    pool: PoolSettings = PoolSettings()
    plausibility: PlausibilitySettings = PlausibilitySettings()
    corroboration: CorroborationSettings = CorroborationSettings()
    watch: WatchSettings = WatchSettings()
    update: UpdateSettings = UpdateSettings()
    demonstrations: DemonstrationSettings = DemonstrationSettings()
    learner: LearnerSettings = LearnerSettings()
    follow: FollowSettings = FollowSettings()
    teach: TeachSettings = TeachSettings()
    learn_from: tuple[PeerId, ...] = Field((), max_length=16)
    """Peer ids of this node's teachers: members that `teach`, and that read the answers of this node that they are
    asked about. With `swarm join`, and objectives with a ratio for each token: not `gspo`, `gepo`, `positive_only`."""
    distill: DistillSettings = DistillSettings()
    verification: VerificationSettings = VerificationSettings()
    judge: JudgeSettings = JudgeSettings()
    reward_service: RewardServiceSettings = RewardServiceSettings()
    endpoint: EndpointSettings = EndpointSettings()
    network: NetworkSettings = NetworkSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    def called(self, peer_id: str) -> str:
        """The name of the node with this identity in views on this machine."""
        return self.name or f"{self.out.absolute().name} ({peer_id[-ID_CHARS:]})"

    @property
    def raters(self) -> Raters:
        """Whom this node asks for rewards."""
        return self.judge, self.reward_service

    def num_questions(self, device: str) -> int:
        """P: questions per round on this type of torch device."""
        return self.generation.questions_per_round or max(self.generation.default_questions(device), self.mix.local)

    @model_validator(mode="after")
    def _the_mix_is_possible(self) -> NodeConfig:
        asked = self.generation.questions_per_round
        if asked is not None and self.mix.local > asked:
            raise ValueError(
                f"mix.local must be at most generation.questions_per_round, got {self.mix.local} > {asked}: a round "
                "cannot produce more local groups than it asks questions"
            )
        return self

    @model_validator(mode="after")
    def _teachers_can_be_learned_from(self) -> NodeConfig:
        loss = self.update.loss
        one_sided = getattr(loss, "positive_only", False)
        if self.learn_from and (one_sided or not loss.has_token_ratios):
            got = "update.loss.positive_only" if one_sided else f"update.objective {self.update.objective}"
            raise ValueError(
                "learn_from needs an objective with a ratio for each token and without positive_only, such as grpo, "
                f"got {got}: a teacher's advantages are those of single tokens, of either sign"
            )
        return self

    @model_validator(mode="after")
    def _who_is_named_is_a_peer(self) -> NodeConfig:
        for field, peer_ids in (("teach.students", self.teach.students), ("learner.workers", self.learner.workers)):
            for peer_id in peer_ids or ():
                if not is_peer_id(peer_id):
                    raise ValueError(f"{field} must be peer ids (12D3Koo...), got {peer_id!r:.100}")
        return self

    @model_validator(mode="after")
    def _task_names_differ(self) -> NodeConfig:
        names = [task.name for task in self.tasks]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"tasks must have different names, got {', '.join(doubled)} more than once")
        return self


@dataclass(frozen=True)
class LoadedConfig:
    """A valid configuration and the origin of every value that is not a default, by dotted path."""

    config: NodeConfig
    origins: dict[str, str]
    _own: Sequence[tuple[str, Values]]
    """The node's own layers: origin and values, lowest first."""
    _file: YamlFile | None
    _manifest: Values

    def above(self, values: Values, origin: str) -> LoadedConfig:
        """The same above further defaults. Raises `ConfigError`."""
        return _validated([(origin, values), *self._own], self._manifest, self._file)

    def in_run(self, manifest: Values, out: Path) -> LoadedConfig:
        """The same with the values that the run sets, in this directory. Raises `ConfigError`."""
        return _validated([*self._own, ("command line", {"out": str(out)})], manifest, self._file)


MOST_SHOWN = 200
"""Characters of a wrong value in a message."""


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
    yaml_file = YamlFile(file) if file is not None else None
    own = [(str(file), yaml_file.values)] if yaml_file is not None else []
    own.append(("environment", environment_values(environment or {})))
    own.append(("command line", _nest((*pair, "command line") for pair in command_line)))
    return _validated(own, manifest or {}, yaml_file)


def _validated(own: Sequence[tuple[str, Values]], manifest: Values, yaml_file: YamlFile | None) -> LoadedConfig:
    merged: Values = {}
    origins: dict[str, str] = {}
    preset = _preset(_chosen_model(values for _, values in own))
    for origin, values in [preset, ("manifest", manifest), *own]:
        _check_characters(values, origin)
        _check_version(origin, values)
        _merge(merged, values, origin, origins, "")
    _ask_for_other_forms(merged, origins)
    try:
        try:
            config = NodeConfig.model_validate(merged)
        except ValidationError as error:
            if yaml_file is None or not _write_out(merged, error, yaml_file):
                raise
            config = NodeConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_describe(error, merged, origins, yaml_file)) from error
    return LoadedConfig(config, origins, own, yaml_file, manifest)


def _write_out(merged: Values, error: ValidationError, yaml_file: YamlFile) -> bool:
    """Put the text that stands in the file where YAML made something else of what must be text: of `off` False, of 007
    a number. Whether there was any."""
    found = False
    for item in error.errors():
        holder: Any = None
        key: Any = None
        value: Any = merged
        part: Any
        for part in item["loc"]:  # some are names of kinds and types
            if (isinstance(value, dict) and part in value) or (isinstance(value, list) and part in range(len(value))):
                holder, key, value = value, part, value[part]
        text = yaml_file.text(item["loc"])
        if text is None or holder is None or isinstance(value, str | dict | list) or value is not item["input"]:
            continue
        if item["type"] in ("string_type", "literal_error", "path_type"):
            holder[key] = text
            found = True
    return found


def _check_version(origin: str, values: Values) -> None:
    """Raises `ConfigError`, instead of one for every field that another version has."""
    found = values.get("version", CONFIG_VERSION)
    if str(found) == str(CONFIG_VERSION):
        return
    later = isinstance(found, int) and found > CONFIG_VERSION
    fix = "update swarm" if later else "write it again: `swarm config show` prints today's fields"
    raise ConfigError(f"version (from {origin}): must be {CONFIG_VERSION}, got {found!r}; {fix}")


def environment_values(environment: Mapping[str, str]) -> Values:
    """The layer of the environment. Raises `ConfigError`."""
    return _nest(_named_fields(environment))


def overlay(*layers: Values) -> Values:
    """Layers merged as `load_config` does, the last above the others."""
    merged: Values = {}
    for values in layers:
        _merge(merged, values, "", {}, "")
    return merged


def describe_config(loaded: LoadedConfig) -> list[tuple[str, str, str]]:
    """(dotted path, value as YAML, origin) of every field, in the models' order."""
    rows = []
    for path, value in leaves(loaded.config.model_dump(mode="json")):
        text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("\n...").strip()
        rows.append((path, text, _origin(path, loaded.origins) or "default"))
    return rows


def describe_tasks(config: NodeConfig) -> str:
    """The tasks as YAML, one a line, without what is at its default."""
    found = [
        {"kind": task.kind, "name": task.name, **task.model_dump(mode="json", exclude_defaults=True)}
        for task in config.tasks
    ]
    return "\n".join(
        yaml.safe_dump(task, default_flow_style=True, sort_keys=False, width=10**6).strip() for task in found
    )


def _preset(model: str) -> tuple[str, Values]:
    """Defaults for this model where they differ from those for any."""
    if model == SMOLLM2:
        return f"default for {model}", {"update": {"learning_rate": 1e-5}}
    if model not in EMBEDDED:
        return "", {}
    values: Values = {
        "generation": {"max_new_tokens": 16, "max_batch_sequences": 1024},
        "update": {"learning_rate": 3e-4},
        "demonstrations": {"learning_rate": 1e-3},
        "policy": {"threads": 1, "device": "cpu"},  # a GPU is slower for so small a model
    }
    if model == TINY_SEES:
        values["tasks"] = [{"kind": "shapes"}]
    return f"default for {model}", values


def _ask_for_other_forms(merged: Values, origins: dict[str, str]) -> None:
    """The default system prompt asks for tags; replace it where questions ask for another form of answer."""
    policy, tasks = merged.setdefault("policy", {}), merged.get("tasks")
    if not isinstance(policy, dict) or not isinstance(tasks, list) or policy.get("system_prompt") is not None:
        return
    forms = {_form(task) for task in tasks if isinstance(task, dict)}
    model = str(policy.get("model", TINY))
    if forms - {"tags"} and model not in EMBEDDED and exported_prompt(model) is None:
        policy["system_prompt"] = SYSTEM_PROMPT_OF_FORMS if "tags" not in forms else SYSTEM_PROMPT_WITH_FORMS
        origins["policy.system_prompt"] = "default for the tasks' `find`"


def _form(task: Values) -> str:
    """The form of answer that a task's questions ask for; an environment and custom code read whole texts."""
    try:
        reads_whole = TASKS.find(str(task.get("kind", "reasoning_gym"))).reads_whole
    except ValueError:
        reads_whole = True
    return str(task.get("find") or ("whole" if reads_whole or task.get("scorer") is not None else "tags"))


def _chosen_model(layers: Iterable[Values]) -> str:
    chosen = TINY
    for values in layers:
        policy = values.get("policy")
        if isinstance(policy, dict) and isinstance(policy.get("model"), str):
            chosen = str(policy["model"])
    return chosen


def _named_fields(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """`SWARM_MIX__LOCAL=3` names `mix.local`; other variables with the prefix are an error, as in a file.

    Those for tests are none of a node's.
    """
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX) and not (name.startswith(TEST_PREFIX) or _is_of_a_service(name, value)):
            path = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            yield path, value, f"the variable {name}"


def _is_of_a_service(name: str, value: str) -> bool:
    """Whether Kubernetes or Docker tells every container about a service that is called `swarm` or `swarm-...`."""
    return _SERVICE.fullmatch(name) is not None or (_SERVICE_PORT.fullmatch(name) is not None and "://" in value)


def _nest(fields: Iterable[tuple[str, str, str]]) -> Values:
    """Nest (dotted path, text, where it is from); a repeated list field collects its values."""
    nested: Values = {}
    for path, text, origin in fields:
        *parents, leaf = path.split(".")
        kind = _kind_of(path, origin)
        level = nested
        for parent in parents:
            below = level.setdefault(parent, {})
            assert isinstance(below, dict)  # `_kind_of` refuses paths through leaves
            level = below
        value = text if text in get_args(kind) else _parse(text, path, origin)
        if _is_list(kind) and value is not None and not isinstance(value, list):
            earlier = level.get(leaf)
            value = [*(earlier if isinstance(earlier, list) else []), value]
        level[leaf] = value
    return nested


def _is_list(kind: object) -> bool:
    """Whether a field of this type holds a list, or a list or nothing."""
    options = [each for each in get_args(kind) if each is not NoneType] if NoneType in get_args(kind) else [kind]
    return all(get_origin(each) in (tuple, list) for each in options)


def _parse(text: str, path: str, origin: str) -> JsonValue:
    """Text stays text (pydantic parses numbers later); lists, mappings and null are parsed as YAML."""
    if text in ("null", "none", "~") or text.startswith(("[", "{")):
        try:
            root, value = (None, None) if text == "none" else read(text)
        except UNREADABLE as error:
            raise ConfigError(f"{path} (from {origin}): not valid YAML: {text[:MOST_SHOWN]}") from error
        check(root, value, f"{path} (from {origin})")
        return value
    return text


def _check_characters(values: object, origin: str) -> None:
    """Raises `ConfigError` for text that cannot be written: YAML can name half of a character."""
    waiting, visited = [values], set()  # an alias may name a value many times
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            if id(value) not in visited:
                visited.add(id(value))
                waiting += [*value, *value.values()] if isinstance(value, dict) else value
        elif isinstance(value, str) and not _can_be_written(value):
            shown = value.encode("ascii", "backslashreplace").decode()
            raise ConfigError(f"{shown[:MOST_SHOWN]} (from {origin}) is no text: it has half of a character")


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind_of(path: str, origin: str) -> object:
    """The type of the field at `path`, None if another field decides it. Raises `ConfigError` where there is none."""
    model: type[BaseModel] = NodeConfig
    parts = path.split(".")
    for depth, part in enumerate(parts):
        field = model.model_fields.get(part)
        if field is None:
            raise ConfigError(
                f"{path} (from {origin}): there is no such field{did_you_mean(NodeConfig, parts[: depth + 1])}"
            )
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if isabstract(annotation):
                return None  # the fields depend on another field's value: `model_validate` checks them
            model = annotation
        elif get_origin(annotation) is dict and depth + 2 >= len(parts):
            return None  # any key
        elif depth + 1 < len(parts):
            named = ".".join(parts[: depth + 1])
            why = "is a list, which is given as a whole" if get_origin(annotation) is tuple else "has no fields"
            raise ConfigError(f"{path} (from {origin}): {named} {why}")
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
    """Origin of a path, of the nearest list or mapping that contains it, or of what a group of one origin contains."""
    below = {origin for known, origin in origins.items() if known.startswith(f"{path}.")}
    if len(below) == 1:
        return below.pop()
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return None


def _describe(error: ValidationError, values: Values, origins: Mapping[str, str], yaml_file: YamlFile | None) -> str:
    lines = []
    for item in _causes(error.errors()):
        path = ".".join(str(part) for part in item["loc"])
        origin = _origin(path, origins)
        if yaml_file is not None and origin == str(yaml_file.path) and (number := yaml_file.line(item["loc"])):
            origin = f"{origin}, line {number}"
        where = f" (from {origin})" if origin else ""
        lines.append(f"{_place(item['loc'], values)}{where}: {_problem(item)}" if path else _problem(item))
    return "\n".join(lines)


def _place(path: Sequence[str | int], values: JsonValue) -> str:
    """A path for people: a task by its name, without its kind, which is no part of what a file says."""
    place = ""
    for before, part in pairwise(("", *path)):
        if isinstance(before, int) and isinstance(values, dict) and part == values.get("kind", "reasoning_gym"):
            continue
        if isinstance(values, list) and isinstance(part, int):
            values = values[part] if part < len(values) else None
        else:
            values = values.get(str(part)) if isinstance(values, dict) else None
        if before == "tasks" and isinstance(values, dict) and isinstance(name := values.get("name"), str):
            place = f"{place.removesuffix('tasks').removesuffix('.')} task {name[:MOST_SHOWN]}:".lstrip()
        else:
            place += f"{'' if not place else ' ' if place.endswith(':') else '.'}{part}"
    return place.removesuffix(":")


def _causes(errors: Sequence[ErrorDetails]) -> Iterable[ErrorDetails]:
    """The errors, without what only follows from others: a list without its wrong items is too short."""
    for item in errors:
        path = item["loc"]
        if item["type"] != "too_short" or not any(each["loc"][:-1][: len(path)] == path for each in errors):
            yield item


def _problem(item: ErrorDetails) -> str:
    if item["type"] == "extra_forbidden":
        return f"there is no such field{_nested(item) or did_you_mean(NodeConfig, item['loc'])}"
    seen = "" if isinstance(item["input"], dict) or item["type"] == "value_error" else f", got {item['input']!r}"
    return f"{in_words(item['msg'])}{seen}"


def _nested(item: ErrorDetails) -> str:
    """How to write a dotted name in a file."""
    above, (*groups, field) = item["loc"][:-1], str(item["loc"][-1]).split(".")
    group = (*above, groups[0]) if groups else ()
    if not group or did_you_mean(NodeConfig, group) != f"; did you mean {joined(group)}?":
        return ""
    return f"; in a file it is written {': {'.join((*groups, field))}: ...{'}' * len(groups)}"
