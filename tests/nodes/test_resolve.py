"""What a node is to be is resolved without a console and without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.boot.directory import RunDirectory, claim_directory
from nodes.boot.manifest import found_run
from nodes.boot.resolve import Notice, ResolvedNode, resolve
from nodes.roles.peer import PeerNode
from swarm.config import LoadedConfig, load_config
from swarm.errors import ConfigError
from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest

FOUNDER = load_config(command_line=[("mix.local", "3"), ("mix.external", "5"), ("generation.group_size", "4")]).config


def _member(out: Path, *pairs: tuple[str, str]) -> LoadedConfig:
    return load_config(command_line=[("out", str(out)), *pairs])


def _resolved(
    loaded: LoadedConfig, asked: SealedManifest | None, notices: list[Notice]
) -> tuple[RunDirectory, ResolvedNode]:
    directory = claim_directory(loaded.config, True, asked)
    directory.identity.close()
    return directory, resolve(PeerNode, loaded, directory, asked, 1, notices)


def test_a_member_takes_what_its_run_sets_below_its_own_values(tmp_path: Path) -> None:
    run, notices = found_run(FOUNDER, Identity.generate()), []
    directory, resolved = _resolved(_member(tmp_path, ("mix.external", "2")), run, notices)
    assert resolved.manifest == run.manifest == directory.run.manifest and resolved.tasks_of_the_run
    assert (resolved.config.mix.local, resolved.config.mix.external) == (3, 2)
    assert resolved.config.generation.group_size == 4 and resolved.config.out == tmp_path
    assert [notice.text for notice in notices] == [
        f"no address was given: this node goes on in the run {run.manifest.run_id}, in which its directory was before"
    ]
    assert list(resolved.differences()) == []


def test_a_node_alone_founds_its_run_and_says_so(tmp_path: Path) -> None:
    notices: list[Notice] = []
    directory, resolved = _resolved(_member(tmp_path), None, notices)
    assert resolved.manifest.founder == directory.identity.peer_id
    (notice,) = notices
    assert notice.text.startswith("no address was given: this node founds a run") and not notice.is_warning


def test_a_member_s_own_tasks_are_compared_with_the_run_s(tmp_path: Path) -> None:
    gcd = "[{kind: reasoning_gym, name: gcd}]"
    founder = load_config(command_line=[("tasks", gcd)]).config
    own = ("tasks", "[{kind: reasoning_gym, name: gcd, find: last_number}]")
    _, resolved = _resolved(_member(tmp_path, own), found_run(founder, Identity.generate()), [])
    assert not resolved.tasks_of_the_run
    (difference,) = resolved.differences()
    assert difference.startswith("task gcd: find is 'last_number' here and None in the run: groups of members that")


def test_what_was_noticed_before_a_refusal_is_kept(tmp_path: Path) -> None:
    founder = Identity.generate()
    older = found_run(FOUNDER, founder)
    newer = found_run(FOUNDER, founder, older.manifest)
    claim_directory(_member(tmp_path).config, True, newer).identity.close()
    notices: list[Notice] = []
    judged = "[{kind: reasoning_gym, name: gcd, rewards: [{kind: judge, model: wise, rubric: Be kind.}]}]"
    with pytest.raises(ConfigError, match="task gcd: its rewards need a judge"):
        _resolved(_member(tmp_path, ("tasks", judged)), older, notices)
    assert notices[0] == Notice("the bootstrap sent an older manifest of this run; keeping the stored one")


def test_a_file_is_read_once_and_its_lines_are_named_with_the_run_s_values(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("name: me\ngeneration:\n  questions_per_round: 8\n")
    loaded = load_config(file)
    file.unlink()
    joined = loaded.in_run({"mix": {"local": 1}}, tmp_path)
    assert joined.config.mix.local == 1 and joined.config.name == "me" and joined.config.out == tmp_path
    assert (joined.origins["mix.local"], joined.origins["name"]) == ("manifest", str(file))
    with pytest.raises(ConfigError, match="mix.local must be at most generation.questions_per_round, got 9 > 8"):
        loaded.in_run({"mix": {"local": 9}}, tmp_path)
