"""A node's run: founds one, asks bootstraps for one, stores its manifest."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace
from pydantic import JsonValue
from rich.console import Console
from rich.text import Text

from swarm.central.workforce import NO_ADAPTERS, SAMPLED, differences, make_terms
from swarm.config import LoadedConfig, NodeConfig, Values
from swarm.environments.answering import TRUSTED_TOOL
from swarm.environments.config import CODE_FIELDS, DatasetTask, TaskConfig, code_of, own_tool_tasks
from swarm.environments.modalities import modalities
from swarm.environments.specs import (
    CODE,
    DIGEST,
    code_differs,
    differing_copy,
    files_digest,
    from_specs,
    has_code,
    is_founders_own,
    is_on_disk,
    lacks_code,
    left_out,
    to_specs,
)
from swarm.errors import ConfigError, IdentityInUse, OtherRun, PeerUnreachable, Refusal, TaskError
from swarm.files import private_directory, replace_file
from swarm.foreign import clean, clean_lines
from swarm.net.addresses.bootstrap import DNSADDR, Bootstraps
from swarm.net.addresses.dial import is_name, is_private_run
from swarm.net.addresses.listening import keep_ports, same_ports
from swarm.net.addresses.nat import most_reachable_first
from swarm.net.backends import fetch_manifest
from swarm.net.config import NetworkSettings
from swarm.net.records.identity import Identity
from swarm.net.records.wire import is_outdated, make_run_id, open_manifest, seal_manifest
from swarm.policy.config import LoraSettings, public_name
from swarm.types import RunManifest, TaskSpec, Terms
from swarm.types.media import Modality

if TYPE_CHECKING:
    from swarm.policy.loading import Policy

logger = logging.getLogger(__name__)

IDENTITY_FILE = "identity.key"
MANIFEST_FILE = "run.manifest"
PEERS_FILE = "peers.known"
ADDRESS_FILE = "multiaddrs"
LISTEN_FILE = "listen.last"
ASK_TIMEOUT_S = 20.0
OF_A_MEMBER = frozenset({"name", "kind", "weight", "public", "path", "revision", DIGEST, CODE, *CODE_FIELDS.values()})
"""Settings of a task in which members may differ, or which are compared otherwise."""
MAX_SHOWN_CHARS = 60
MAX_TARGETS_CHARS = 128
"""Longer lists of adapted layers are compared by a digest: what a manifest carries is bounded."""
NO_TASKS = "it lists none: its founder's use tools of its own, and it trusts nobody"


def found_run(config: NodeConfig, identity: Identity, kept: bytes | None = None, terms: Terms | None = None) -> bytes:
    """A run with this configuration's tasks, group size, limits and mix; sealed by its founder.

    `terms` are those of a founder that is a learner. It supersedes `kept`, the manifest of an earlier process, even if
    the clock is slightly slow. Raises `ConfigError` or `TaskError` if members would refuse it.
    """
    manifest = RunManifest(
        run_id=make_run_id(config.run_name, identity.peer_id),
        founder=identity.peer_id,
        created_at=time.time(),
        tasks=to_specs(config.tasks, config.trusted),
        group_size=config.generation.group_size,
        local=config.mix.local,
        external=config.mix.external,
        max_record_bytes=config.network.max_record_bytes,
        max_completion_chars=config.network.max_completion_chars,
        terms=terms,
        trusted=config.trusted,
    )
    if kept is not None and is_outdated(manifest, earlier := reopen(kept)):
        manifest = replace(manifest, created_at=math.nextafter(earlier.created_at, math.inf))
    sealed = seal_manifest(identity, manifest)
    try:
        open_manifest(sealed)
    except Refusal as refusal:
        raise ConfigError(f"members would refuse this run: {refusal.detail}") from refusal
    return sealed


def left_run(kept: bytes | None, sealed: bytes) -> str | None:
    """A warning where a directory leaves the run `kept` for one of another name; None: it has been in no other."""
    if kept is None or (earlier := reopen(kept)).run_id == (manifest := reopen(sealed)).run_id:
        return None
    return (
        f"this directory was in run {earlier.run_id} and now founds {manifest.run_id} (run_name): members of the "
        "earlier run stay there. Identity and checkpoints go on; --out with another directory starts anew"
    )


def reopen(sealed: bytes) -> RunManifest:
    """Open a manifest that was checked on arrival, regardless of the current time."""
    return open_manifest(sealed, now=math.inf)


def terms_of(config: NodeConfig, policy: Policy | None = None) -> Terms:
    """What a learner and its workers must share; without a loaded policy, as far as the configuration says."""
    return make_terms(
        public_name(config.policy.model),
        config.generation.sampling(),
        config.policy.system_prompt,
        policy.tokenizer_hash if policy is not None else "",
        policy.tokenizer.chat_template if policy is not None else None,
        config.policy.lora.quantized,
        policy.media.reader.digest if policy is not None and policy.media is not None else "",
        _adapters(config.policy.lora),
        policy.base if policy is not None else "",
    )


def _adapters(lora: LoraSettings) -> str:
    """What makes adapters of the same weights the same policy."""
    if not lora.rank:
        return NO_ADAPTERS
    targets = " ".join(sorted(set(lora.targets))) or "all"
    if len(targets) > MAX_TARGETS_CHARS:
        targets = hashlib.blake2b(targets.encode(), digest_size=8).hexdigest()
    return f"rank {lora.rank}, alpha {lora.alpha}, targets {targets}"


def check_terms(config: NodeConfig, manifest: RunManifest) -> None:
    """Raises `ConfigError` when a worker differs from the learner that founded the run in what both must share."""
    if manifest.terms is None or config.follow.learner not in (None, manifest.founder):
        return
    if lines := list(differences(terms_of(config), manifest.terms)):
        raise ConfigError(f"run {manifest.run_id} cannot use this worker: {'; '.join(lines)}")


def check_only_learner(peer_id: str, manifest: RunManifest) -> None:
    """Raises `ConfigError` for a learner `peer_id` in a run that another one founded: workers sample for that one."""
    if manifest.terms is not None and manifest.founder != peer_id:
        raise ConfigError(
            f"run {manifest.run_id} has a learner already, its founder {manifest.founder}: found a run of your own, "
            "without --bootstrap and with another --out, or work for it with swarm work"
        )


def check_group_size(group_size: int, manifest: RunManifest | None) -> None:
    """Raises `ConfigError` when members of the run would refuse all groups of this size."""
    if manifest is not None and group_size > manifest.group_size:
        raise ConfigError(
            f"generation.group_size must be at most {manifest.group_size} in run {manifest.run_id}, got {group_size}: "
            "members refuse larger groups; leave it out to take the run's"
        )


def manifest_values(manifest: RunManifest, own: LoadedConfig | None = None, follows: bool = False) -> Values:
    """The run's settings as a layer of its members' configuration, with the learner's sampling if it `follows` it.

    `own` is the member's configuration without this layer: tasks that it lists replace the run's, it may have copies of
    the founder's local files and code, and what it can hold or wants to ask bounds what the run sets. Raises
    `TaskError` if no task is left, or a copy differs.
    """
    own_config = own.config if own is not None else NodeConfig()
    network, questions = own_config.network, own_config.generation.questions_per_round
    values: Values = {
        "generation": {"group_size": manifest.group_size, **(_sampling(manifest) if follows else {})},
        "mix": {"local": min(manifest.local, questions or manifest.local), "external": manifest.external},
        "network": {
            "max_record_bytes": min(manifest.max_record_bytes, network.inbox_bytes, network.shelf_bytes),
            "max_completion_chars": manifest.max_completion_chars,
        },
        "trusted": list(manifest.trusted),
    }
    if own is not None and "tasks" in own.origins:
        return values
    files, code = own_config.files, own_config.code
    trusted = own.config.trusted if own is not None and "trusted" in own.origins else manifest.trusted
    _check_use("files", files, "on its founder's files", filter(is_founders_own, manifest.tasks), manifest)
    _check_use("code", code, "with code of its founder's own", filter(has_code, manifest.tasks), manifest)
    left = left_out(manifest.tasks, files, code, trusted)
    tasks = from_specs((spec for spec in manifest.tasks if spec.name not in left), files, code, trusted)
    if not tasks:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left.items()) or NO_TASKS
        raise TaskError(
            f"none of the tasks of run {manifest.run_id} can be set up here; use a configuration with your own tasks "
            f"({reasons})"
        )
    listed: list[JsonValue] = [task.model_dump(mode="json") for task in tasks]
    return {"tasks": listed, **values}


def other_options(manifest: RunManifest, tasks: Sequence[TaskConfig]) -> list[str]:
    """How a member's own tasks differ from the run's of the same names, apart from where their rows or code are."""
    specs = {spec.name: spec for spec in manifest.tasks}
    return [line for task in tasks if task.name in specs and (line := _other_option(specs[task.name], task))]


def _other_option(spec: TaskSpec, task: TaskConfig) -> str | None:
    if spec.kind != task.kind:
        return f"task {task.name}: it is of the kind {task.kind} here and {clean(spec.kind)} in the run"
    here: dict[str, object] = task.model_dump(mode="json", exclude_defaults=True)
    if own_tool_tasks([task]):
        here["tool"] = TRUSTED_TOOL
    differing = [
        name
        for name in sorted(here.keys() | spec.settings.keys())
        if name not in OF_A_MEMBER and here.get(name) != spec.settings.get(name)
    ]
    if not differing:
        return None
    shown = ", ".join(
        f"{clean(name)} is {clean(repr(here.get(name)), MAX_SHOWN_CHARS)} here and "
        f"{clean(repr(spec.settings.get(name)), MAX_SHOWN_CHARS)} in the run"
        for name in differing
    )
    return f"task {task.name}: {shown}"


def _check_use(
    field: str, given: Mapping[str, object], which: str, specs: Iterable[TaskSpec], manifest: RunManifest
) -> None:
    """Raises `TaskError` for a copy for which the run has no task."""
    for name in sorted(given.keys() - {spec.name for spec in specs}):
        raise TaskError(f"{field}.{name}: run {manifest.run_id} has no task of this name {which}")


def unreadable_tasks(manifest: RunManifest | None, readable: Collection[Modality]) -> frozenset[str]:
    """Names of the run's tasks with pictures, sounds or clips that a policy which reads these cannot read."""
    known = [task for spec in (manifest.tasks if manifest else ()) for task in _set_up(spec)]
    return frozenset(task.name for task in known if modalities(task) - set(readable))


def _set_up(spec: TaskSpec) -> tuple[TaskConfig, ...]:
    """The task as this node can set it up; empty if it cannot."""
    try:
        return from_specs([spec])
    except TaskError:
        return ()


def sharing_of_own_tools(config: NodeConfig, peer_id: str) -> str | None:
    """Whether others learn from episodes with this node's own tools, for people; None if it has none."""
    names = sorted(own_tool_tasks(config.tasks))
    if not names:
        return None
    line = f"tools of your own answer {', '.join(names)}: "
    if peer_id in config.trusted:
        return f"{line}this node shares these episodes, with what the tools said"
    nothing = ", and so nothing at all" if len(names) == len(config.tasks) else ""
    return (
        f"{line}nobody else could check these episodes, so this node shares none of them{nothing}. In a run that lists "
        f"{peer_id} in `trusted` it would"
    )


def lacking_files(sealed: bytes) -> list[str]:
    """The tasks of a run on local files or code that its founder did not have: the manifest lacks their digest."""
    return [
        spec.name
        for spec in reopen(sealed).tasks
        if (is_founders_own(spec) and files_digest(spec) is None) or lacks_code(spec)
    ]


def other_files(manifest: RunManifest, tasks: Sequence[TaskConfig]) -> list[str]:
    """How the local files and the code of a member's own tasks differ from those of the run's tasks of the same names.

    Their groups agree only where the rows do, and never with other code. Raises `TaskError` if files cannot be read.
    """
    targets = {task.name: target for task in tasks if (target := code_of(task)) is not None}
    ran = [spec for spec in manifest.tasks if spec.name in targets and CODE in spec.settings]
    code = [problem for spec in ran if (problem := code_differs(spec, targets[spec.name])) is not None]
    paths = {task.name: Path(task.path) for task in tasks if isinstance(task, DatasetTask) and is_on_disk(task)}
    both = [spec for spec in manifest.tasks if spec.name in paths and files_digest(spec) is not None]
    return code + [problem for spec in both if (problem := differing_copy(spec, paths[spec.name])) is not None]


def _sampling(manifest: RunManifest) -> Values:
    return {name: asdict(manifest.terms)[name] for name in SAMPLED} if manifest.terms else {}


def remember(out: Path, sealed: bytes) -> None:
    """Store the manifest for a restart without reachable bootstraps."""
    path = out / MANIFEST_FILE
    if path.exists() and path.read_bytes() == sealed:
        return
    replace_file(path, sealed)


def remembered(out: Path) -> bytes | None:
    """The manifest stored by an earlier process; None without a valid one, which is logged."""
    path = out / MANIFEST_FILE
    try:
        sealed = path.read_bytes()
        reopen(sealed)
    except FileNotFoundError:
        return None
    except Refusal as refusal:
        logger.warning("the run's manifest stored in %s is ignored: %s", path, refusal)
        return None
    return sealed


def ask_bootstraps(settings: NetworkSettings, console: Console) -> bytes | None:
    """The sealed manifest of the bootstraps' run; None when there are none or none answers.

    Raises `ConfigError` for a bootstrap address without a peer id, and when all are in another run than
    `network.run_id`.
    """
    bootstraps = Bootstraps(settings.bootstrap)
    for entry, problem in bootstraps.look_up().items():
        warn(f"{entry}: {problem}", console)
    multiaddrs = bootstraps.multiaddrs()
    if not multiaddrs:
        return None
    asked = "a member" if len(multiaddrs) == 1 else f"{len(multiaddrs)} members"
    console.print(f"asking {asked} for the run, at most {ASK_TIMEOUT_S:g} s", highlight=False)
    try:
        return fetch_manifest(multiaddrs, ASK_TIMEOUT_S, run_id=settings.run_id, transport=settings.transport)[1]
    except OtherRun as error:
        raise ConfigError(f"network.run_id is {settings.run_id}, but {error}") from error
    except PeerUnreachable as error:
        warn(f"{error}; training alone until one answers", console)
        return None


def check_no_twin(settings: NetworkSettings, peer_id: str, kept: Path) -> None:
    """Raises `IdentityInUse` when a bootstrap has this node's own key, which is `kept` there: this node does not listen
    yet, so it is another one."""
    own = [f"{address}/p2p/{peer_id}" for address in Bootstraps(settings.bootstrap).by_peer().get(peer_id, ())]
    if not own:
        return
    try:
        fetch_manifest(own, ASK_TIMEOUT_S, transport=settings.transport)
    except PeerUnreachable:
        return
    raise IdentityInUse(
        f"this node's own key is at {own[0]}: a copied directory? Two nodes must not have the key in {kept}: give this "
        "one a directory of its own with --out, or end the other"
    )


def warn_of_readers(out: Path, console: Console) -> None:
    """Make a node's directory private; say so where other users of the machine can read it all the same."""
    if not private_directory(out):
        warn(
            f"other users of this machine may read {out}, which is not this user's alone: choose a directory of your "
            "own with --out",
            console,
        )


def warn(text: str, console: Console) -> None:
    """Print a line that contains foreign text."""
    console.print(Text(clean_lines(text), style="yellow"), soft_wrap=True)


def on_same_ports(network: NetworkSettings, out: Path, console: Console) -> NetworkSettings:
    """Settings with the ports that this directory's last process listened on: others have its address.

    Says which of them are taken meanwhile. Raises `TransportError` when a port that is configured is taken.
    """
    listen, lost = same_ports(network.listen, out / LISTEN_FILE)
    keep_ports(listen, out / LISTEN_FILE)
    for line in lost:
        warn(line, console)
    return network.model_copy(update={"listen": listen})


def shown_address(network: NetworkSettings, multiaddrs: Sequence[str]) -> str | None:
    """A line for members of a public run, which a bootstrap's name counts as; None in a private run.

    `multiaddrs` are this node's.
    """
    named = Bootstraps(network.bootstrap).multiaddrs()
    by_name = any(map(is_name, named)) or any(entry.startswith(DNSADDR) for entry in network.bootstrap)
    if not by_name and is_private_run((*named, *network.announce, *network.listen), multiaddrs, {}):
        return None
    return (
        "other members of a public run will see this machine's public address, and pass it on to further members; "
        "addresses of its own network are not sent (swarm docs questions.md#who-sees-my-ip-address)"
    )


def write_addresses(out: Path, multiaddrs: Sequence[str], for_others: Path | None = None) -> None:
    """Write this node's addresses into its directory and `for_others`, the best first."""
    best = best_address(multiaddrs)
    best_first = sorted(multiaddrs, key=lambda each: each != best)
    lines = "".join(f"{address}\n" for address in best_first).encode()
    replace_file(out / ADDRESS_FILE, lines)
    if for_others is not None:
        try:
            replace_file(for_others, lines, mode=0o644)
        except OSError as error:
            raise ConfigError(f"network.address_file: cannot write {for_others}: {error.strerror or error}") from error


def best_address(multiaddrs: Sequence[str]) -> str:
    """The address to give to others: one that other machines can reach, if there is any."""
    reachable = [address for address in multiaddrs if "/127.0.0.1/" not in address and "/::1/" not in address]
    over_tcp = [address for address in reachable if "/tcp/" in address]
    return (*most_reachable_first(over_tcp or reachable), *multiaddrs, "(no address yet)")[0]
