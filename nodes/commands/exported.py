"""What `swarm export` writes beside a model of how it was trained, and what evaluations read of it.

Tasks are in the form of a run's manifest, without paths and custom code: who downloads a model trusts it no more than a
run's founder. The local data of suites is copied into the model's directory, and found there by its digest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct, structs
from pydantic import JsonValue

from swarm.config import LoadedConfig, NodeConfig, Values
from swarm.environments.config import TaskConfig
from swarm.environments.sources.dataset import RowsTask
from swarm.environments.specs import data_files, files_digest, from_specs, left_out, to_specs
from swarm.errors import ConfigError, TaskError
from swarm.files import at_home
from swarm.policy.config import EXPORTED, read_exported, template_values, write_exported
from swarm.sanitize import clean
from swarm.types import Sampling, TaskSpec

DATA = "data"
"""The folder of a model's directory with the data of its suites: files and folders named by their digests."""
MAX_DATA_BYTES = 2**26
"""Most bytes of all suites together."""


class ExportedSuite(Struct, frozen=True):
    """A suite of the run."""

    tasks: tuple[TaskSpec | str, ...]
    """Tasks that are only asked here, and names of the run's; none: all of the run's."""
    settings: dict[str, object]
    """The other fields of `SuiteSettings` that differ from their defaults."""


class Trained(Struct, frozen=True):
    """How a policy was trained."""

    sampling: Sampling
    tasks: tuple[TaskSpec, ...]
    suites: dict[str, ExportedSuite] = {}
    chat_template_kwargs: dict[str, object] = {}
    thinking_marks: tuple[str, ...] = ()
    tool_calls: str = "auto"


def write_trained(directory: Path, prompt: str | None, config: NodeConfig) -> list[str]:
    """Write beside a model `prompt`, what fills its chat template, sampling, tasks and suites with their local data.

    Returns a line for each suite that is left out, and for each task of a suite on local data: what was copied, or why
    it was not. Tasks that no manifest could name are left out. Raises `OSError`.
    """
    suites, lines = {}, []
    for name, suite in config.evaluation.suites.items():
        named = tuple(spec for task in suite.tasks for spec in ([task] if isinstance(task, str) else _spec(task)))
        if named or not suite.tasks:  # without tasks it would have all of the run's
            settings = suite.model_dump(mode="json", exclude={"tasks"}, exclude_defaults=True)
            suites[name] = ExportedSuite(named, settings)
        else:
            lines.append(clean(f"suite {name} is left out: none of its tasks can be described to others"))
    tasks = tuple(spec for task in config.tasks for spec in _spec(task))
    policy = config.policy
    trained = Trained(
        config.generation.sampling(),
        tasks,
        suites,
        {**template_values(policy)},
        policy.thinking_marks,
        policy.tool_calls,
    )
    write_exported(directory, prompt, msgspec.to_builtins(trained))
    return [*lines, *_copy_data(directory / DATA, config)]


def _spec(task: TaskConfig) -> tuple[TaskSpec, ...]:
    try:
        return to_specs([task])
    except TaskError:
        return ()


def _copy_data(folder: Path, config: NodeConfig) -> Iterator[str]:
    """Copy the local data of the suites' tasks into `folder`, and yield a line for each."""
    known = {task.name: task for task in config.tasks}
    room = MAX_DATA_BYTES
    for name, suite in config.evaluation.suites.items():
        for each in suite.tasks or tuple(known):
            task = known.get(each) if isinstance(each, str) else each
            if not isinstance(task, RowsTask) or not task.is_on_disk:
                continue
            place, label = at_home(task.path), f"suite {name}, task {task.name}"
            files = data_files(place)
            size = sum(file.stat().st_size for file in files)
            digest = next((files_digest(spec) for spec in _spec(task)), None)
            if digest is None:
                yield f"{label}: {task.path} is not copied, because it cannot be read"
            elif task.media and not place.is_dir():
                yield f"{label}: {task.path} is not copied, because only folders bring their media"
            elif not (target := folder / f"{digest}{'' if place.is_dir() else place.suffix}").exists() and size > room:
                yield f"{label}: {task.path} is not copied, because suites may have {MAX_DATA_BYTES >> 20} MiB of data"
            else:
                room -= 0 if target.exists() else size
                for file in files:
                    copy = target / file.relative_to(place) if place.is_dir() else target
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)
                yield f"{label}: {task.path} is copied ({size:,} bytes): who has the model can read it"


def exported_values(model: Path, own: LoadedConfig) -> tuple[Values, list[str]]:
    """The layer of configuration that a model directory brings, and a line for each task and suite that is left out.

    `own` is the configuration without it, whose tasks replace the exported ones. Empty for a model that `swarm export`
    did not write, or that it wrote before it kept these. Raises `ConfigError`, and `TaskError` if no task is left.
    """
    known = read_exported(str(model)) or {}
    if "tasks" not in known:
        return {}, []
    try:
        trained = msgspec.convert(known, Trained)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{model / EXPORTED} cannot be read: {error}; export the checkpoint again") from error
    generation: Values = structs.asdict(trained.sampling)  # all of it: the defaults here are others
    template = {
        "chat_template_kwargs": trained.chat_template_kwargs,
        "thinking_marks": list(trained.thinking_marks),
        "tool_calls": trained.tool_calls,
    }
    values: Values = {"generation": generation, "policy": cast(Values, template)}
    copies = {path.stem: path for path in _data(model / DATA)}
    run, lines = own.config.tasks, list[str]()
    if "tasks" not in own.origins:
        run, lines = _tasks(trained.tasks, copies, own.config)
        if not run:
            why = "; ".join(lines) or "no task could be exported"
            raise TaskError(f"{model} cannot be asked what it was trained on ({why}); name tasks by --config FILE")
        values["tasks"] = [task.model_dump(mode="json") for task in run]
    suites: Values = {}
    for name, suite in trained.suites.items():
        tasks, problems = _tasks((task for task in suite.tasks if not isinstance(task, str)), copies, own.config)
        named = [task.name for task in run if task.name in suite.tasks]
        lines += [clean(f"suite {name}: {line}") for line in problems]
        if tasks or named or not suite.tasks:
            listed: list[JsonValue] = [*named, *(task.model_dump(mode="json") for task in tasks)]
            suites[name] = {**cast(Values, suite.settings), "tasks": listed}
        else:
            lines.append(clean(f"suite {name} is left out: none of its tasks is here"))
    return {**values, "evaluation": {"suites": suites}}, lines


def _data(folder: Path) -> Iterator[Path]:
    """Files and folders of data that a model brings: none that an export could not have written."""
    for path in () if folder.is_symlink() else folder.glob("*"):
        if not (path.is_dir() and path.is_symlink()):
            files = data_files(path)
            if all(file.is_file() for file in files) and sum(file.stat().st_size for file in files) <= MAX_DATA_BYTES:
                yield path


def _tasks(
    specs: Iterable[TaskSpec], copies: Mapping[str, Path], own: NodeConfig
) -> tuple[tuple[TaskConfig, ...], list[str]]:
    """Those that can be set up here, and a line for each other one; `copies` of data by digest. Raises `TaskError`."""
    specs = tuple(specs)
    digests = {spec.name: files_digest(spec) for spec in specs}
    brought = {name: copies[digest] for name, digest in digests.items() if digest is not None and digest in copies}
    files, code = {**brought, **own.files}, own.code
    left = left_out(specs, files, code)
    tasks = from_specs((spec for spec in specs if spec.name not in left), files, code)
    return tasks, [clean(f"task {name} is left out: {reason}") for name, reason in left.items()]
