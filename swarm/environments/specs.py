"""Tasks in a run's manifest: converts the founder's configuration, and reads it on other nodes.

A manifest never makes a node open a local file: its data sets are public repositories of the hub. A task on local files
is listed with their digest and without their path. A member with a copy gives its path, which is opened only
if the digest agrees; other members go without the task and count its groups as `unknown_task`. The same holds for code,
of which a manifest can only name what packages offer as tasks, nothing else that is installed. Custom tools never get
into a manifest: where a run trusts peers, it says that those have one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import cast

from pydantic import ValidationError

from swarm.environments.code import code_digest, is_offered, resolved
from swarm.environments.config import TASKS, TaskConfig, custom_tool_tasks
from swarm.environments.digests import content_digest
from swarm.environments.sources.dataset import RowsTask, is_hub_id, looks_local
from swarm.environments.tools.base import TOOLS, TRUSTED_TOOL
from swarm.errors import TaskError
from swarm.files import at_home
from swarm.kinds import FOREIGN, offered
from swarm.sanitize import clean
from swarm.settings import problems
from swarm.types import TaskSpec

LOCAL = "local"
"""Replaces the path of local files, and the location of code or of a custom kind, wherever others can see it."""
DIGEST = "digest"
"""The setting of a specification that holds the digest of local files."""
CODE = "code"
"""The setting of a specification that holds the digest of code."""
MAX_PROBLEM_CHARS = 1_000

OF_BROWSERS = frozenset({"Thumbs.db", "desktop.ini"})
"""Files that Windows adds to folders, and does not call hidden by their names."""

_STAND_IN = "owner/name"
"""A path with which the other settings of a task on local files are checked as strictly as those of a public one."""


def to_specs(configs: Iterable[TaskConfig], trusted: Collection[str] = ()) -> tuple[TaskSpec, ...]:
    """Tasks in the form of a manifest; those with custom tools only if the run has `trusted` peers, and none whose
    episodes others cannot replay.

    Raises `TaskError` for one that members would refuse.
    """
    configs = tuple(configs)
    own = custom_tool_tasks(configs)
    listed = [config for config in configs if config.is_replayable and (trusted or config.name not in own)]
    return tuple(_to_spec(config, config.name in own) for config in listed)


def from_specs(
    specs: Iterable[TaskSpec],
    files: Mapping[str, Path] | None = None,
    code: Mapping[str, str] | None = None,
    trusted: Collection[str] = (),
) -> tuple[TaskConfig, ...]:
    """The manifest's tasks that this node can try to set up, without those for which `why_left_out` has a reason.

    `files` and `code` are this node's copies of the founder's local files and code, by task, and `trusted` the peers
    that it trusts. Raises `TaskError` for a specification that is not a valid configuration, and for a copy that
    differs.
    """
    kept = [spec for spec in specs if why_left_out(spec, files, code, trusted) is None]
    return tuple(_from_spec(spec, (files or {}).get(spec.name), (code or {}).get(spec.name)) for spec in kept)


def why_left_out(
    spec: TaskSpec,
    files: Mapping[str, Path] | None = None,
    code: Mapping[str, str] | None = None,
    trusted: Collection[str] = (),
) -> str | None:
    """Why a task of a run cannot be this node's, though nothing is wrong with it; None when it can."""
    if (reason := _why_unknown(spec.kind)) is not None:
        return reason
    tools = _tools(spec)
    if not all(isinstance(tool, str) and _is_plugged_in(tool) for tool in tools):
        return "it uses a tool that this version of swarm does not know, or one of the run's founder alone"
    if TRUSTED_TOOL in tools and not trusted:
        return "it uses tools of peers that this node would have to believe, and it trusts none (`trusted`)"
    if lacks_code(spec):
        return "it runs code of the run's founder, without its digest"
    if has_code(spec) and spec.name not in (code or {}) and (reason := _why_without_code(spec)) is not None:
        return reason
    if not is_founders_own(spec):
        return None
    if files_digest(spec) is None:
        return "it is on local files of the run's founder, without their digest"
    if spec.name not in (files or {}):
        return f"it is on local files of the run's founder; if you have a copy, give its path: --files.{spec.name} PATH"
    return None


def left_out(
    specs: Iterable[TaskSpec],
    files: Mapping[str, Path] | None = None,
    code: Mapping[str, str] | None = None,
    trusted: Collection[str] = (),
) -> dict[str, str]:
    """Why this node omits tasks, by name, with these copies of the founder's files and code and this trust."""
    reasons = {spec.name: why_left_out(spec, files, code, trusted) or why_invalid(spec, code) for spec in specs}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def why_invalid(spec: TaskSpec, code: Mapping[str, str] | None = None) -> str | None:
    """Why a task of a run, for which `why_left_out` has no reason, is none that this version of swarm can set up.

    A founder makes mistakes, or has a later version: that must not keep members from the run's other tasks.
    """
    try:
        copy = (code or {}).get(spec.name)
        _config_of(spec, {"kind": resolved(copy)} if copy is not None and _code_field(spec) == "kind" else {})
    except TaskError as error:
        return str(error)
    except Exception as error:  # validators on an untrusted peer's values: whatever they raise, the task is left out
        return f"its settings cannot be read: {type(error).__name__}"
    return None


def _why_unknown(kind: str) -> str | None:
    """Why this version of swarm has no such kind of task; None if it has, or a copy of its code may be named."""
    if kind in TASKS or kind == LOCAL or offered(kind, TASKS.group) is not None:
        return None
    if TASKS.is_built_in(kind):
        return f"tasks of the kind {kind} need an extra that this installation of swarm lacks"
    return f"this version of swarm knows no tasks of the kind {kind}; a later one may"


def _tools(spec: TaskSpec) -> list[object]:
    """What a task names as its tools."""
    listed = spec.settings.get("tools")
    several = listed if isinstance(listed, list) else []
    found = [spec.settings.get("tool"), *(each.get("tool") if isinstance(each, dict) else each for each in several)]
    return [tool for tool in found if tool is not None]


def _is_plugged_in(tool: str) -> bool:
    return tool in TOOLS or (":" not in tool and offered(tool, TOOLS.group) is not None)


def _code_field(spec: TaskSpec) -> str:
    """The setting that names custom code: `kind` itself for a kind that is not swarm's own."""
    return TASKS[spec.kind].code_field if spec.kind in TASKS else "kind"


def _target(spec: TaskSpec) -> object:
    """The code that a task names; None for one that runs none."""
    field = _code_field(spec)
    return spec.kind if field == "kind" else spec.settings.get(field)


def kind_in_run(config: TaskConfig) -> str:
    """The kind of a task in a manifest."""
    return LOCAL if config.is_custom and offered(config.kind, TASKS.group) is None else config.kind


def has_code(spec: TaskSpec) -> bool:
    """Whether a task runs code of its founder, or of a package."""
    return not TASKS.is_built_in(spec.kind) or _target(spec) is not None


def lacks_code(spec: TaskSpec) -> bool:
    """Whether a task runs code that its founder did not have."""
    return has_code(spec) and not isinstance(spec.settings.get(CODE), str)


def _why_without_code(spec: TaskSpec) -> str | None:
    """Why a task whose code this node's user does not name cannot be set up; None if a package offers it."""
    target = _offered(spec)
    if target is None:
        return f"it runs code of the run's founder; if you have a copy, name it: --code.{spec.name} tasks.py:Name"
    try:
        return code_differs(spec, target)
    except TaskError as error:
        return str(error)


def _offered(spec: TaskSpec) -> str | None:
    """The code of a task, if an installed package offers it."""
    target = _target(spec)
    if not isinstance(target, str):
        return None
    if _code_field(spec) == "kind":
        return offered(target, TASKS.group)
    return target if is_offered(target) else None


def code_differs(spec: TaskSpec, target: str) -> str | None:
    """How this node's code differs from the founder's; None when it does not. Raises `TaskError`."""
    here, wanted = code_digest(target), spec.settings.get(CODE)
    if here == wanted:
        return None
    text = f"task {spec.name!r}: {target} has the digest {here}, but the run's code has {wanted}; get the same code"
    return clean(text, MAX_PROBLEM_CHARS)


def files_digest(spec: TaskSpec) -> str | None:
    """The digest of the founder's local files; None for other tasks, and if the founder did not have the files."""
    found = spec.settings.get(DIGEST)
    return found if is_founders_own(spec) and isinstance(found, str) else None


def differing_copy(spec: TaskSpec, path: Path) -> str | None:
    """How the local files at `path` differ from the founder's; None when they do not.

    Raises `TaskError` if they cannot be read.
    """
    here, wanted = _digest_at(path, spec.name), files_digest(spec)
    if here == wanted:
        return None
    text = f"task {spec.name!r}: {path} has the digest {here}, but the run's file has {wanted}; get the same file"
    return clean(text, MAX_PROBLEM_CHARS)


def is_founders_own(spec: TaskSpec) -> bool:
    """Whether a task uses the founder's local files. Does not check this node's disk, which would reveal its
    content."""
    path = spec.settings.get("path")
    return _has_path(spec.kind) and isinstance(path, str) and (path == LOCAL or looks_local(path))


def _has_path(kind: str) -> bool:
    """Whether tasks of a kind read a data set of the hub or local files."""
    return kind in TASKS and issubclass(TASKS[kind], RowsTask)


def _to_spec(config: TaskConfig, has_own_tool: bool) -> TaskSpec:
    dumped = config.model_dump(mode="json", exclude_defaults=True, exclude={"name", "kind", "weight", "public"})
    settings = cast(dict[str, object], dumped)
    if own := [part.kind for part in config.rewards if ":" in part.kind]:
        raise TaskError(
            f"task {config.name!r}: members would refuse the reward {own[0]}, which is code of this node alone: let a "
            "package offer it as an entry point of the group swarm.rewards"
        )
    if has_own_tool:
        _hide_functions(settings)
    if isinstance(config, RowsTask) and config.is_on_disk:
        settings["path"] = LOCAL
        with suppress(TaskError):  # a founder that only serves the run may lack the files
            settings[DIGEST] = _digest_at(Path(config.path), config.name)
    elif isinstance(config, RowsTask) and not is_hub_id(config.path):
        raise TaskError(
            f"task {config.name!r}: a run's data set must be OWNER/NAME on the hub, got {config.path!r}; members would "
            "refuse it"
        )
    if (target := config.code) is not None:
        if not config.is_custom:
            settings[config.code_field] = target if is_offered(target) else LOCAL
        with suppress(TaskError):  # as above
            settings[CODE] = code_digest(target)
    return TaskSpec(name=config.name, kind=kind_in_run(config), weight=config.weight, settings=settings)


def _hide_functions(settings: dict[str, object]) -> None:
    """Name custom functions as what trusted peers have."""
    if settings.get("tool") is not None:
        settings["tool"] = TRUSTED_TOOL
    for each in cast(list[dict[str, object]], settings.get("tools", [])):
        if ":" in str(each["tool"]):
            each["tool"] = TRUSTED_TOOL


def _digest_at(path: Path, task: str) -> str:
    """Digest of a file, or of the data of a folder. Raises `TaskError`."""
    try:
        place = at_home(path)
        if not place.exists():
            raise TaskError(f"task {task!r}: no such file or folder: {path}")
        return content_digest(data_files(place))
    except (OSError, ValueError) as error:
        raise TaskError(f"task {task!r}: cannot read {path}: {error}") from error


def data_files(place: Path) -> list[Path]:
    """A file, or those of a folder in the order of their paths, without those that a system or an editor added."""
    if not place.is_dir():
        return [place]
    files = [file for file in sorted(place.rglob("*")) if file.is_file() and file.name not in OF_BROWSERS]
    return [file for file in files if not any(part.startswith(".") for part in file.relative_to(place).parts)]


def _config_of(spec: TaskSpec, code: Mapping[str, object] = MappingProxyType({})) -> TaskConfig:
    """The settings of a specification, as strict as those of a public task, with this node's own `code`.

    Raises `TaskError`.
    """
    settings = {**spec.settings, "name": spec.name, "kind": spec.kind, "weight": spec.weight, **code}
    if has_code(spec):
        settings.pop(CODE, None)
    if _has_path(spec.kind):
        settings["public"] = True
    if is_founders_own(spec):
        settings.pop(DIGEST, None)
        settings["path"] = _STAND_IN
    try:
        parsed: TaskConfig = TASKS.parse(settings, FOREIGN)
        if not parsed.is_replayable:
            raise ValueError("a run must not list it, because members cannot replay its episodes")
        return parsed
    except ValueError as error:
        if not isinstance(error, ValidationError):
            raise TaskError(clean(f"task {spec.name!r}: {error}", MAX_PROBLEM_CHARS)) from error
        text = clean(f"the manifest's task {spec.name!r} cannot be set up here: {problems(error)}", MAX_PROBLEM_CHARS)
        raise TaskError(text) from error


def _from_spec(spec: TaskSpec, copy: Path | None, target: str | None) -> TaskConfig:
    code: dict[str, object] = {}
    if has_code(spec):
        if target is not None and (problem := code_differs(spec, target)):
            raise TaskError(problem)
        field = _code_field(spec)
        if target is not None:
            code[field] = resolved(target)
        elif field == "kind":
            code[field] = spec.kind
        else:
            code[field] = resolved(str(spec.settings[field]))
    config = _config_of(spec, code)
    if not is_founders_own(spec):
        return config
    assert copy is not None  # otherwise `why_left_out` has a reason
    if problem := differing_copy(spec, copy):
        raise TaskError(problem)
    return config.model_copy(update={"path": str(at_home(copy).absolute()), "public": False})
