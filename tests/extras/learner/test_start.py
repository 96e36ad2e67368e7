"""What a learner and its workers ask of a run before they start."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import asdict, replace
from rich.console import Console

from nodes.boot.assemble import opened
from nodes.boot.directory import claim_directory, remember
from nodes.boot.manifest import found_run, manifest_values
from nodes.boot.resolve import resolve
from swarm.config import NodeConfig, load_config, overlay
from swarm.errors import ConfigError
from swarm.extras.learner.roles.learner import LearnerNode
from swarm.extras.learner.terms import check_only_learner, check_terms, sampling_of, terms_of
from swarm.net.records.identity import Identity
from swarm.policy.ranks import Ranks
from swarm.types import RunManifest, Terms


def _config(out: Path, *pairs: tuple[str, str]) -> NodeConfig:
    return load_config(command_line=[("out", str(out)), *pairs]).config


def _learner_s_run(config: NodeConfig) -> RunManifest:
    return found_run(config, Identity.generate(), terms=terms_of(config)).manifest


def test_a_worker_takes_the_learner_s_sampling_from_the_manifest(tmp_path: Path) -> None:
    learner = _config(tmp_path, ("generation.temperature", "0.7"), ("generation.top_k", "40"))
    manifest = _learner_s_run(learner)
    worker = load_config(manifest=overlay(manifest_values(manifest), sampling_of(manifest))).config
    assert (worker.generation.temperature, worker.generation.top_k) == (0.7, 40)
    check_terms(worker, manifest)
    peer = load_config(manifest=manifest_values(manifest)).config
    assert peer.generation.temperature == 1.0, "a peer samples as it likes"


@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [
        ("policy.model", "tiny-sparse", "set --policy.model tiny"),
        ("generation.temperature", "0.7", "set --generation.temperature 1.0"),
        ("generation.top_p", "0.9", "set --generation.top_p 1.0"),
        ("policy.system_prompt", "Be brief.", "set the same policy.system_prompt"),
        ("policy.lora.frozen_dtype", "nf4", "set --policy.lora.frozen_dtype compute"),
        ("policy.lora.alpha", "8", "rank 4, alpha 32, targets all, not rank 4, alpha 8, targets all: set"),
        ("policy.lora.targets", "[q_proj]", "alpha 32, targets all, not rank 4, alpha 32, targets q_proj: set"),
        ("policy.lora.rank", "0", "rank 4, alpha 32, targets all, not none: set --policy.lora.rank, --policy.lora"),
    ],
)
def test_a_worker_that_differs_does_not_start_and_says_what_to_do(
    tmp_path: Path, option: str, value: str, advice: str
) -> None:
    adapters = ("policy.lora.rank", "4")
    manifest = _learner_s_run(_config(tmp_path, adapters))
    worker = _config(tmp_path, adapters, (option, value))
    with pytest.raises(ConfigError, match=f"cannot use this worker: .*{advice}"):
        check_terms(worker, manifest)
    check_terms(worker, found_run(_config(tmp_path), Identity.generate()).manifest)
    elsewhere = _config(tmp_path, adapters, (option, value), ("follow.learner", "another"))
    check_terms(elsewhere, manifest)


def test_the_order_of_adapted_layers_is_no_difference_and_a_long_list_fits_into_a_manifest(tmp_path: Path) -> None:
    rank, many = ("policy.lora.rank", "4"), [f"layers.{index}.q_proj" for index in range(40)]
    listed, reversed_, fewer = (
        _config(tmp_path, rank, ("policy.lora.targets", f"[{', '.join(targets)}]"))
        for targets in (many, many[::-1], many[1:])
    )
    manifest = _learner_s_run(listed)
    check_terms(reversed_, manifest)
    with pytest.raises(ConfigError, match=r"set --policy\.lora"):
        check_terms(fewer, manifest)


def test_a_worker_with_adapters_may_start_for_a_learner_of_a_version_that_does_not_tell_its_own(tmp_path: Path) -> None:
    worker = _config(tmp_path, ("policy.lora.rank", "4"))
    manifest = _learner_s_run(worker)
    assert manifest.terms is not None
    told = {name: value for name, value in asdict(manifest.terms).items() if name not in ("adapters", "base")}
    check_terms(worker, replace(manifest, terms=msgspec.convert(told, Terms)))


def test_a_second_learner_of_a_run_is_refused_and_the_first_may_return(tmp_path: Path) -> None:
    config = _config(tmp_path / "first")
    first = Identity.generate()
    run = found_run(config, first, terms=terms_of(config))
    check_only_learner(first.peer_id, run.manifest)
    check_only_learner("another", found_run(config, first).manifest)
    config.out.mkdir()
    remember(config.out, run.sealed)
    loaded = load_config(command_line=[("out", str(config.out))])
    with (
        pytest.raises(ConfigError, match="has a learner already, its founder 12D3.* with another --out"),
        opened(LearnerNode, loaded, Console(), lambda: True, Ranks()),
    ):
        pass


def test_a_learner_has_terms_and_says_nothing_of_addresses(tmp_path: Path) -> None:
    loaded, notices = load_config(command_line=[("out", str(tmp_path / "member"))]), []
    directory = claim_directory(loaded.config, True)
    directory.identity.close()
    assert resolve(LearnerNode, loaded, directory, None, 1, notices).role is LearnerNode
    assert notices == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("advantage", "gdpo", "for nodes that train on own groups"), ("reference", "best", "is for peers")],
)
def test_what_needs_rewards_of_ones_own_is_refused(field: str, value: str, message: str, tmp_path: Path) -> None:
    from swarm.extras.learner.roles.ranks import LearnerRanks

    with pytest.raises(ConfigError, match=message):
        LearnerRanks(
            _config(tmp_path, (f"update.{field}", value), ("update.reference_kl", "0.1")), None, Ranks(), lambda: False
        )
