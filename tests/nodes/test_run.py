from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from nodes.boot.assemble import shown_address
from nodes.boot.directory import MANIFEST_FILE, best_address, claim_directory, remember, remembered
from nodes.boot.manifest import found_run, lacking_files, manifest_values, other_files, other_options
from nodes.boot.resolve import Notice, possible
from nodes.roles.runtime import NodeParts, RoleRuntime
from swarm.config import NodeConfig, load_config
from swarm.environments.specs import left_out
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import ConfigError, IdentityInUse, Refusal, TaskError
from swarm.net.config import NetworkSettings
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.membership.known_peers import CurrentRun
from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest, open_manifest, seal_manifest
from swarm.net.roster import build_roster
from swarm.net.services.usage import ask_usage
from swarm.net.trust.credit import statement
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import RoundEvent
from swarm.types import SCHEMA_VERSION, Estimate, MemberSummary, RunManifest, SwarmWorth, TaskSpec
from tests.net.records import of_version


def _config(out: Path, *pairs: tuple[str, str]):
    return load_config(command_line=[("out", str(out)), *pairs]).config


@pytest.mark.parametrize("mix", [("4", "4"), ("12", "0"), ("0", "3")])
def test_whoever_joins_with_nothing_but_the_manifest_can_train_its_mix(tmp_path: Path, mix: tuple[str, str]) -> None:
    pairs = [("mix.local", mix[0]), ("mix.external", mix[1]), ("generation.questions_per_round", "16")]
    founder = _config(tmp_path, *pairs, ("generation.group_size", "5"))
    manifest = found_run(founder, Identity.generate()).manifest
    joined = load_config(manifest=manifest_values(manifest)).config
    assert joined.mix == founder.mix
    assert joined.tasks == founder.tasks
    assert joined.generation.group_size == 5


def test_a_node_whose_groups_members_would_refuse_does_not_start(tmp_path: Path) -> None:
    founder = _config(tmp_path, ("generation.group_size", "4"))
    identity = Identity.generate()
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(founder, identity))
    verifier = InlineVerifier(founder.tasks)
    for size in ("2", "4"):
        runtime = RoleRuntime(
            NodeParts(_config(tmp_path, ("generation.group_size", size)), identity, transport, verifier)
        )
        assert runtime.max_group_size() == 4, "of others' groups, whatever its own are"
    with pytest.raises(ConfigError, match="at most 4 in run .*, got 8: members refuse larger groups"):
        RoleRuntime(NodeParts(_config(tmp_path, ("generation.group_size", "8")), identity, transport, verifier))
    alone = MemoryTransport(MemoryHub(), identity.peer_id)
    runtime = RoleRuntime(NodeParts(_config(tmp_path, ("generation.group_size", "8")), identity, alone, verifier))
    assert runtime.max_group_size() == 8


@pytest.mark.parametrize("shares", [True, False])
def test_what_groups_are_worth_is_said_only_by_those_who_want_to(tmp_path: Path, shares: bool) -> None:
    """Neither to all members, nor to the author, nor by the credit in the roster, which `swarm site` publishes."""
    stated: list[bytes] = []

    class Stating(MemoryTransport):
        def summarize(self, summary: MemberSummary | None, measured: bytes = b"") -> None:
            stated.append(measured)

    identity, hub = Identity.generate(), MemoryHub()
    receiver, author = Stating(hub, identity.peer_id), MemoryTransport(hub, "author")
    config = _config(tmp_path, ("share.worth", str(shares).lower()))
    runtime = RoleRuntime(NodeParts(config, identity, receiver, InlineVerifier(config.tasks)))
    receiver.start(), author.start()
    runtime.exchange.book.admit("author", 1, 100)
    worth = {"author": Estimate(0.5, 0.4, 0.6)}
    known = SwarmWorth(9, Estimate(1.0, 1.0, 1.0), Estimate(1.0, 1.0, 1.0), worth)
    runtime.record(
        RoundEvent(time=1.0, round=1, wall_s=1.0, reward=0.5, groups=Ledger().snapshot(), worth=known), None, worth
    )
    assert stated == [statement(worth) if shares else b""]
    assert ask_usage(author, identity.peer_id, 5.0).worth == (worth["author"] if shares else None)
    (row,) = build_roster(receiver, runtime.exchange.book, 1.0, runtime.measured).peers
    assert (row.credit is not None) == shares
    receiver.close(), author.close()


def test_a_run_of_local_files_only_cannot_be_joined_without_tasks_of_ones_own(tmp_path: Path) -> None:
    founder = _config(tmp_path, ("tasks", "[{kind: dataset, name: mine, path: ./rows.jsonl}]"))
    with pytest.raises(TaskError, match="your own tasks"):
        manifest_values(found_run(founder, Identity.generate()).manifest)


def _rows(folder: Path, answer: int = 1) -> Path:
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text(f'{{"question": "a", "answer": "{answer}"}}\n')
    return folder / "rows.jsonl"


def _on_file(path: Path) -> tuple[str, str]:
    return "tasks", f"[{{kind: dataset, name: mine, path: {path}, match: numeric}}]"


def test_a_run_of_local_files_only_starts_and_is_joined_with_copies_and_with_own_tasks(tmp_path: Path) -> None:
    theirs, mine = _rows(tmp_path / "theirs"), _rows(tmp_path / "mine")
    founding = [("out", str(tmp_path / "founder")), _on_file(theirs)]
    loaded = load_config(command_line=founding)
    home = claim_directory(loaded.config, True, None)
    manifest = home.run.manifest
    started = load_config(manifest=manifest_values(manifest, loaded), command_line=founding)
    assert started.config.tasks == loaded.config.tasks and lacking_files(manifest) == []

    own = load_config(command_line=[("files.mine", str(mine))])
    joined = load_config(manifest=manifest_values(manifest, own), command_line=[("files.mine", str(mine))])
    assert joined.origins["tasks"] == "manifest" and joined.config.files == {"mine": mine}
    assert joined.config.tasks == (loaded.config.tasks[0].model_copy(update={"path": str(mine)}),)
    assert left_out(manifest.tasks, joined.config.files) == {}

    listed = load_config(command_line=[_on_file(mine)])
    assert manifest_values(manifest, listed)["mix"] == {"local": 4, "external": 4}
    assert "tasks" not in manifest_values(manifest, listed)
    assert other_files(manifest, listed.config.tasks) == []


def test_files_that_are_missing_changed_or_of_no_task_are_clear_errors(tmp_path: Path) -> None:
    theirs, changed = _rows(tmp_path / "theirs"), _rows(tmp_path / "changed", answer=2)
    manifest = found_run(_config(tmp_path / "founder", _on_file(theirs)), Identity.generate()).manifest
    with pytest.raises(TaskError, match=r"none of the tasks.*--files\.mine PATH"):
        manifest_values(manifest, load_config())
    with pytest.raises(TaskError, match="no such file or folder: /absent"):
        manifest_values(manifest, load_config(command_line=[("files.mine", "/absent")]))
    with pytest.raises(TaskError, match=r"files\.mein: run .* has no task of this name"):
        manifest_values(manifest, load_config(command_line=[("files.mein", str(theirs))]))
    digests = {str(spec.settings["digest"]) for spec in manifest.tasks}
    with pytest.raises(TaskError, match="digest") as error:
        manifest_values(manifest, load_config(environment={"SWARM_FILES__MINE": str(changed)}))
    assert all(digest in str(error.value) for digest in digests)
    [difference] = other_files(manifest, load_config(command_line=[_on_file(changed)]).config.tasks)
    assert difference == str(error.value)


def _on_code(path: Path) -> tuple[str, str]:
    return "tasks", f"[{{kind: python, name: mine, target: '{path}:Mine'}}]"


def test_a_run_on_own_code_is_joined_with_copies_of_it(tmp_path: Path) -> None:
    theirs, mine, changed = (tmp_path / f"{name}.py" for name in ("theirs", "mine", "changed"))
    for path, content in ((theirs, "Mine = 1"), (mine, "Mine = 1"), (changed, "Mine = 2")):
        path.write_text(content)
    manifest = found_run(_config(tmp_path / "founder", _on_code(theirs)), Identity.generate()).manifest
    assert str(tmp_path) not in repr(manifest) and lacking_files(manifest) == []
    copy = [("code.mine", f"{mine}:Mine")]
    joined = load_config(manifest=manifest_values(manifest, load_config(command_line=copy)), command_line=copy)
    assert joined.config.tasks == load_config(command_line=[_on_code(mine)]).config.tasks
    assert left_out(manifest.tasks, code=joined.config.code) == {}

    with pytest.raises(TaskError, match=r"none of the tasks.*--code\.mine tasks\.py:Name"):
        manifest_values(manifest, load_config())
    with pytest.raises(TaskError, match=r"code\.mein: run .* has no task of this name with code"):
        manifest_values(manifest, load_config(command_line=[("code.mein", f"{mine}:Mine")]))
    with pytest.raises(TaskError, match="get the same code") as error:
        manifest_values(manifest, load_config(environment={"SWARM_CODE__MINE": f"{changed}:Mine"}))
    [difference] = other_files(manifest, load_config(command_line=[_on_code(changed)]).config.tasks)
    assert difference == str(error.value)
    assert other_files(manifest, load_config(command_line=[_on_code(mine)]).config.tasks) == []
    without = found_run(_config(tmp_path / "other", _on_code(tmp_path / "absent.py")), Identity.generate()).manifest
    assert lacking_files(without) == ["mine"]


def test_a_founder_hears_which_files_nobody_can_join_with(tmp_path: Path) -> None:
    manifest = found_run(_config(tmp_path, _on_file(tmp_path / "absent.jsonl")), Identity.generate()).manifest
    assert lacking_files(manifest) == ["mine"]


def test_a_stored_manifest_that_cannot_be_used_is_ignored_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert remembered(tmp_path) is None
    run = found_run(_config(tmp_path), Identity.generate())
    remember(tmp_path, sealed := run.sealed)
    assert remembered(tmp_path) == run and caplog.messages == []
    for unusable, reason in ((sealed[:-3], "malformed"), (of_version(sealed, SCHEMA_VERSION - 1), "schema_version")):
        caplog.clear()
        remember(tmp_path, unusable)
        assert remembered(tmp_path) is None
        (line,) = caplog.messages
        assert str(tmp_path / MANIFEST_FILE) in line and f"is ignored: {reason}" in line


def test_several_peers_of_one_command_get_directories_of_their_own_and_find_them_again(tmp_path: Path) -> None:
    config = _config(tmp_path / "peer")
    run = found_run(config, Identity.generate())
    first, second = claim_directory(config, False, run), claim_directory(config, False, run)
    assert (first.out.name, second.out.name) == ("peer", "peer-2")
    first.identity.close()
    again = claim_directory(config, False, run)
    assert again.out == first.out and again.identity.peer_id == first.identity.peer_id
    with pytest.raises(IdentityInUse):
        claim_directory(config, True, run)


def test_what_no_directory_can_mend_is_not_tried_in_others(tmp_path: Path) -> None:
    config = _config(tmp_path / "peer", ("mix.local", "2000"), ("generation.questions_per_round", "2000"))
    with pytest.raises(ConfigError, match="members would refuse"):
        claim_directory(config, False)
    assert [path.name for path in tmp_path.iterdir()] == ["peer"]


def test_a_peer_with_another_model_does_not_take_the_directory_that_was_free_first(tmp_path: Path) -> None:
    """Restarted in another order, two nodes of one folder go on as themselves."""
    small, large = (_config(tmp_path / "peer", ("policy.model", model)) for model in ("tiny", "org/large"))
    homes = []
    for config in (large, small):
        homes.append(claim_directory(config, False, None))
        state = homes[-1].out / "checkpoints" / "round-00000050" / "state.msgpack"
        state.parent.mkdir(parents=True)
        state.write_bytes(msgspec.msgpack.encode({"model": config.policy.model, "round": 50}))
    for home in homes:
        home.identity.close()
    again = claim_directory(small, False, None)
    assert again.out.name == "peer-2" and again.identity.peer_id == homes[1].identity.peer_id
    assert claim_directory(large, False, None).out.name == "peer"


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    config = _config(tmp_path / "peer")
    home = claim_directory(config, True, found_run(config, Identity.generate()))
    home.identity.close()
    other = found_run(config, Identity.generate())
    with pytest.raises(ConfigError, match="belongs to run"):
        claim_directory(config, True, other)
    assert claim_directory(config, False, other).out.name == "peer-2"


def test_a_founder_refounds_with_its_present_configuration_and_a_member_remembers(tmp_path: Path) -> None:
    home = claim_directory(_config(tmp_path / "founder"), True, None)
    home.identity.close()
    again = claim_directory(_config(tmp_path / "founder", ("mix.local", "2")), True, None)
    assert again.run.manifest.run_id == home.run.manifest.run_id
    assert again.run.manifest.local == 2
    member = claim_directory(_config(tmp_path / "member"), True, home.run)
    member.identity.close()
    assert claim_directory(_config(tmp_path / "member"), True, None).run == home.run


def test_a_founder_who_renames_its_run_is_told_that_members_do_not_follow(tmp_path: Path) -> None:
    first = claim_directory(_config(tmp_path, ("run_name", "apples")), True, None)
    first.identity.close()
    again = claim_directory(_config(tmp_path, ("run_name", "apples")), True, None)
    again.identity.close()
    assert first.warnings == again.warnings == ()
    renamed = claim_directory(_config(tmp_path, ("run_name", "pears")), True, None)
    earlier, now = (home.run.manifest.run_id for home in (first, renamed))
    assert earlier != now and renamed.identity.peer_id == first.identity.peer_id
    (warning,) = renamed.warnings
    assert f"was in run {earlier} and now founds {now}" in warning
    stored = remembered(tmp_path)
    assert stored and stored.manifest.run_id == earlier  # until the node is sure to start: a refusal changes nothing


def test_an_older_manifest_does_not_replace_the_one_remembered(tmp_path: Path) -> None:
    founder = Identity.generate()
    older = found_run(_config(tmp_path), founder)
    newer = found_run(_config(tmp_path, ("mix.local", "2")), founder, older.manifest)
    assert newer.manifest.created_at > older.manifest.created_at
    config = _config(tmp_path / "member")
    for asked, kept in [(older, older), (newer, newer), (older, newer), (newer, newer)]:
        home = claim_directory(config, True, asked)
        home.identity.close()
        assert home.run == kept == remembered(config.out)


def test_a_run_remembered_while_the_clock_was_ahead_is_known_and_locks_nothing_out(tmp_path: Path) -> None:
    founder = Identity.generate()
    plain = found_run(_config(tmp_path), founder).manifest
    ahead = SealedManifest.reopen(seal_manifest(founder, replace(plain, created_at=time.time() + 86_400)))
    config = _config(tmp_path / "member")
    config.out.mkdir()
    remember(config.out, ahead.sealed)
    assert remembered(config.out) == ahead
    present = SealedManifest.reopen(seal_manifest(founder, plain))
    home = claim_directory(config, True, present)
    home.identity.close()
    assert home.run == present
    again = found_run(_config(tmp_path), founder, ahead.manifest).manifest
    assert again.created_at <= time.time(), "a founder's wrong clock is not inherited"


def test_a_founder_whose_clock_went_back_still_outranks_what_it_said(tmp_path: Path) -> None:
    founder = Identity.generate()
    plain = found_run(_config(tmp_path), founder).manifest
    before = replace(plain, created_at=time.time() + 300)
    assert found_run(_config(tmp_path), founder, before).manifest.created_at > before.created_at


@pytest.mark.parametrize("pair", [("mix.local", "2000"), ("network.max_completion_chars", "100000000")])
def test_a_founder_cannot_ask_what_members_would_refuse(pair: tuple[str, str], tmp_path: Path) -> None:
    config = _config(tmp_path, pair, ("generation.questions_per_round", "2000"))
    with pytest.raises(ConfigError, match="members would refuse"):
        found_run(config, Identity.generate())


def test_a_running_node_takes_no_older_manifest(tmp_path: Path) -> None:
    founder = Identity.generate()
    first = found_run(_config(tmp_path), founder)
    older, newer = first.sealed, found_run(_config(tmp_path, ("mix.local", "2")), founder, first.manifest).sealed
    run = CurrentRun(None, first)
    run.adopt(newer)
    with pytest.raises(Refusal, match="stale"):
        run.adopt(older)
    assert run.sealed == newer


def test_a_run_names_the_tasks_that_a_member_goes_without(tmp_path: Path) -> None:
    tasks = "[{kind: dataset, name: mine, path: ./rows.jsonl}, {kind: reasoning_gym, name: gcd}]"
    manifest = found_run(_config(tmp_path, ("tasks", tasks)), Identity.generate()).manifest
    assert left_out(manifest.tasks) == {"mine": "it is on local files of the run's founder, without their digest"}
    later = replace(manifest, tasks=(*manifest.tasks, TaskSpec("mate-in-2", "chess", 1.0, {"depth": 2})))
    assert "no tasks of the kind chess" in left_out(later.tasks)["mate-in-2"]
    assert manifest_values(later)["tasks"] == manifest_values(manifest)["tasks"], "it can take part in the others"
    with pytest.raises(TaskError, match="kind chess"):
        manifest_values(replace(later, tasks=later.tasks[-1:]))
    assert "rows.jsonl" not in repr(manifest)


def test_the_address_to_give_to_others_is_not_of_this_machine_only() -> None:
    peer = "p2p/12D3KooWPUFG7LgTsqXWNMvANWTgnePBAFbS3Y6PaCK7REDSPvU4"
    addresses = (
        f"/ip4/127.0.0.1/tcp/1/{peer}",
        f"/ip4/203.0.113.5/udp/1/quic-v1/{peer}",
        f"/ip4/203.0.113.5/tcp/1/{peer}",
    )
    assert best_address(addresses) == addresses[2]
    assert best_address(addresses[:1]) == addresses[0]


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ("find: last_number", "find is 'last_number' here and None in the run"),
        ("options: {max_value: 9}", "options is {'max_value': 9} here and None in the run"),
        ("rewards: [{kind: answer}]", "rewards is [{'kind': 'answer'}] here and None in the run"),
        ("reward: {threshold: 0.5}", "reward is {'threshold': 0.5} here and None in the run"),
    ],
)
def test_own_tasks_that_differ_from_the_run_s_are_named(tmp_path: Path, own: str, line: str) -> None:
    run = found_run(_config(tmp_path, ("tasks", "[{kind: reasoning_gym, name: gcd}]")), Identity.generate()).manifest
    tasks = "[{kind: reasoning_gym, name: gcd, weight: 2}, {kind: reasoning_gym, name: lcm}]"
    same = _config(tmp_path, ("tasks", tasks))
    assert other_options(run, same.tasks) == []
    other = _config(tmp_path, ("tasks", f"[{{kind: reasoning_gym, name: gcd, {own}}}]"))
    assert other_options(run, other.tasks) == [f"task gcd: {line}"]


def test_a_task_of_another_kind_is_named(tmp_path: Path) -> None:
    run = found_run(_config(tmp_path), Identity.generate()).manifest
    other = _config(tmp_path, ("tasks", "[{kind: number_guessing, name: gcd}]"))
    assert other_options(run, other.tasks) == [
        "task gcd: it is of the kind number_guessing here and reasoning_gym in the run"
    ]


def test_a_node_without_a_judge_goes_without_the_run_s_tasks_that_need_one(tmp_path: Path) -> None:
    judged = "{kind: reasoning_gym, name: gcd, rewards: [{kind: judge, model: wise, rubric: Be kind.}]}"
    both = _config(tmp_path, ("tasks", f"[{judged}, {{kind: reasoning_gym, name: lcm}}]"))
    notices: list[Notice] = []
    assert [task.name for task in possible(both, True, notices).tasks] == ["lcm"]
    (notice,) = notices
    assert notice.text.startswith("omitting the run's task gcd: its rewards need a judge, wise: set judge.model")
    for config, of_the_run in ((both, False), (_config(tmp_path, ("tasks", f"[{judged}]")), True)):
        with pytest.raises(ConfigError, match="task gcd: its rewards need a judge"):
            possible(config, of_the_run, [])
    other = _config(tmp_path, ("tasks", f"[{judged}]"), ("judge.model", "cheap"))
    assert possible(other, True, notices) == other
    assert "task gcd: its judge is wise, but judge.model is cheap" in notices[-1].text


BAD = (
    TaskSpec("later-kind", "telepathy", 1.0, {}),
    TaskSpec("later-field", "reasoning_gym", 1.0, {"dataset": "gcd", "clairvoyance": 3}),
    TaskSpec("bad-number", "dataset", 1.0, {"path": "owner/name", "shuffle": 2**40}),
    TaskSpec("bad-pattern", "reasoning_gym", 1.0, {"dataset": "gcd", "find": "regex", "find_pattern": "("}),
    TaskSpec("bad-find", "reasoning_gym", 1.0, {"dataset": "gcd", "find": "json", "find_pattern": "x"}),
    TaskSpec("bad-game", "textarena", 1.0, {"game": "../../etc"}),
    TaskSpec("bad-type", "dataset", 1.0, {"path": ["owner/name"]}),
    TaskSpec("no-path", "dataset", 1.0, {}),
)
GOOD = TaskSpec("gcd", "reasoning_gym", 1.0, {})


def run_with(*tasks: TaskSpec, **changes: object) -> RunManifest:
    founder = Identity.generate()
    manifest = found_run(NodeConfig(), founder).manifest
    return open_manifest(seal_manifest(founder, replace(manifest, tasks=tasks, **changes)))


def test_tasks_of_a_later_version_and_bad_ones_are_left_out_and_the_others_stay() -> None:
    manifest = run_with(*BAD[:4], GOOD, *BAD[4:])
    config = load_config(manifest=manifest_values(manifest)).config
    assert [task.name for task in config.tasks] == ["gcd"]
    reasons = left_out(manifest.tasks)
    assert reasons.keys() == {spec.name for spec in BAD}
    assert all(len(reason) < 1_100 and "\n" not in reason for reason in reasons.values())
    assert "clairvoyance" in reasons["later-field"] and "a later one may" in reasons["later-kind"]


def test_a_run_of_bad_tasks_alone_is_a_clear_error() -> None:
    with pytest.raises(
        TaskError, match="none of the tasks of run swarm-.* can be set up here; .*own tasks .*telepathy"
    ):
        manifest_values(run_with(*BAD))


def test_what_a_member_can_hold_and_wants_to_ask_bounds_what_its_run_sets() -> None:
    manifest = run_with(GOOD, local=1_024, external=1_024, group_size=256, max_record_bytes=64 * 2**20)
    own = {"SWARM_GENERATION__QUESTIONS_PER_ROUND": "8", "SWARM_NETWORK__INBOX_BYTES": str(2**21)}
    loaded = load_config(manifest=manifest_values(manifest, load_config(environment=own)), environment=own)
    assert loaded.config.mix.local == 8 == loaded.config.num_questions("cpu")
    assert loaded.config.network.max_record_bytes == 2**21
    assert load_config(manifest=manifest_values(manifest)).config.mix.local == 1_024


PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


@pytest.mark.parametrize(
    ("network", "own", "said"),
    [
        ({"bootstrap": [f"/ip4/8.8.8.8/tcp/1/p2p/{PEER}"]}, "/ip4/192.168.1.5/tcp/1", True),
        ({"bootstrap": [f"/dns4/boot.example/tcp/1/p2p/{PEER}"]}, "/ip4/192.168.1.5/tcp/1", True),
        ({"bootstrap": ["/dnsaddr/boot.example"]}, "/ip4/192.168.1.5/tcp/1", True),
        ({"announce": ["/ip4/8.8.8.8/tcp/1"]}, "/ip4/8.8.8.8/tcp/1", True),
        ({}, "/ip4/8.8.8.8/tcp/1", True),
        ({"bootstrap": [f"/ip4/192.168.1.9/tcp/1/p2p/{PEER}"]}, "/ip4/192.168.1.5/tcp/1", False),
        ({}, "/ip4/192.168.1.5/tcp/1", False),
    ],
)
def test_a_member_of_a_public_run_is_told_who_sees_its_address(
    network: dict[str, list[str]], own: str, said: bool
) -> None:
    line = shown_address(NetworkSettings.model_validate(network), [f"{own}/p2p/{PEER}"])
    assert (line is not None and "other members of a public run will see this machine's public address" in line) == said
