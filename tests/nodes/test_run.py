from __future__ import annotations

from pathlib import Path

import pytest

from nodes.home import claim_home
from nodes.run import best_address, found_run, manifest_values, remember, remembered
from swarm.config import load_config
from swarm.errors import ConfigError, IdentityInUse, TaskError
from swarm.net.identity import Identity
from swarm.net.wire import open_manifest


def _config(out: Path, *pairs: tuple[str, str]):
    return load_config(command_line=[("out", str(out)), *pairs]).config


@pytest.mark.parametrize("mix", [("4", "4"), ("12", "0"), ("0", "3")])
def test_whoever_joins_with_nothing_but_the_manifest_can_train_its_mix(tmp_path: Path, mix: tuple[str, str]) -> None:
    pairs = [("mix.local", mix[0]), ("mix.external", mix[1]), ("generation.questions_per_round", "16")]
    founder = _config(tmp_path, *pairs, ("generation.group_size", "5"))
    manifest = open_manifest(found_run(founder, Identity.generate()))
    joined = load_config(manifest=manifest_values(manifest)).config
    assert joined.mix == founder.mix
    assert joined.tasks == founder.tasks
    assert joined.generation.group_size == 5


def test_a_run_of_local_files_only_cannot_be_joined_without_tasks_of_ones_own(tmp_path: Path) -> None:
    founder = _config(tmp_path, ("tasks", "[{kind: dataset, name: mine, path: ./rows.jsonl}]"))
    with pytest.raises(TaskError, match="tasks of your own"):
        manifest_values(open_manifest(found_run(founder, Identity.generate())))


def test_a_damaged_memory_of_the_run_is_no_memory(tmp_path: Path) -> None:
    sealed = found_run(_config(tmp_path), Identity.generate())
    remember(tmp_path, sealed)
    assert remembered(tmp_path) == sealed
    remember(tmp_path, sealed[:-3])
    assert remembered(tmp_path) is None


def test_several_peers_of_one_command_get_directories_of_their_own_and_find_them_again(tmp_path: Path) -> None:
    config = _config(tmp_path / "peer")
    sealed = found_run(config, Identity.generate())
    first, second = claim_home(config, False, sealed), claim_home(config, False, sealed)
    assert (first.out.name, second.out.name) == ("peer", "peer-2")
    first.identity.close()
    again = claim_home(config, False, sealed)
    assert again.out == first.out and again.identity.peer_id == first.identity.peer_id
    with pytest.raises(IdentityInUse):
        claim_home(config, True, sealed)


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    config = _config(tmp_path / "peer")
    home = claim_home(config, True, found_run(config, Identity.generate()))
    home.identity.close()
    other = found_run(config, Identity.generate())
    with pytest.raises(ConfigError, match="belongs to run"):
        claim_home(config, True, other)
    assert claim_home(config, False, other).out.name == "peer-2"


def test_a_founder_refounds_with_its_present_configuration_and_a_member_remembers(tmp_path: Path) -> None:
    home = claim_home(_config(tmp_path / "founder"), True, None)
    home.identity.close()
    again = claim_home(_config(tmp_path / "founder", ("mix.local", "2")), True, None)
    assert open_manifest(again.sealed).run_id == open_manifest(home.sealed).run_id
    assert open_manifest(again.sealed).local == 2
    member = claim_home(_config(tmp_path / "member"), True, home.sealed)
    member.identity.close()
    assert claim_home(_config(tmp_path / "member"), True, None).sealed == home.sealed


def test_the_address_to_give_to_others_is_not_of_this_machine_only() -> None:
    peer = "p2p/12D3KooWPUFG7LgTsqXWNMvANWTgnePBAFbS3Y6PaCK7REDSPvU4"
    addresses = (
        f"/ip4/127.0.0.1/tcp/1/{peer}",
        f"/ip4/203.0.113.5/udp/1/quic-v1/{peer}",
        f"/ip4/203.0.113.5/tcp/1/{peer}",
    )
    assert best_address(addresses) == addresses[2]
    assert best_address(addresses[:1]) == addresses[0]
