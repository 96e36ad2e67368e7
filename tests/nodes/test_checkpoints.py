"""`swarm export` of what a node with adapters wrote."""

from __future__ import annotations

import json
import shutil
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from nodes.commands import exported
from nodes.commands.evaluate import Asked, evaluate
from nodes.commands.export import export_checkpoint
from nodes.commands.exported import exported_values
from swarm.config import NodeConfig, load_config
from swarm.errors import CheckpointError, ConfigError, TaskError
from swarm.policy.config import SYSTEM_PROMPT, LoraSettings, PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.sapo.mixing import MixSettings
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import CheckpointStore, TrainingState
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Sampling
from tests.example_groups import graded


@pytest.mark.parametrize("rank", [0, 4])
def test_what_is_exported_is_a_whole_model_that_says_the_same(policy: Policy, tmp_path: Path, rank: int) -> None:
    policy.save(tmp_path / "base")
    config = NodeConfig(policy=PolicySettings(model=str(tmp_path / "base"), lora=LoraSettings(rank=rank)))
    trained = load_policy(config.policy)
    updater = PolicyUpdater(trained, UpdateSettings(learning_rate=1e-3), MixSettings(), 1.0)
    assert not updater.update([], [graded(rewards=(1.0, 0.0))]).skipped
    state = TrainingState("12D3", "base", 1, 1, 8, [], Ledger().snapshot(), 99)
    CheckpointStore(tmp_path / "run").save(trained, updater, state, config.model_dump_json())
    export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor([policy.encode_prompt("Calculate 12 + 7.")])
    with torch.no_grad():
        torch.testing.assert_close(exported(ids).logits, trained.model(ids).logits, atol=1e-5, rtol=0)
        assert (exported(ids).logits - policy.model(ids).logits).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("model", "given", "expected"), [("tiny", None, ""), ("base", None, None), ("base", "Be.", "Be.")]
)
def test_what_is_exported_is_asked_as_it_was_trained(
    policy: Policy, tmp_path: Path, model: str, given: str | None, expected: str | None
) -> None:
    """An embedded policy answers hardly anything right after the prompt that others get by default."""
    policy.save(tmp_path / "base")
    trained = PolicySettings(model=model if model == "tiny" else str(tmp_path / "base"), system_prompt=given)
    updater = PolicyUpdater(policy, UpdateSettings(), MixSettings(), 1.0)
    state = TrainingState("12D3", model, 1, 1, 8, [], Ledger().snapshot(), 99)
    CheckpointStore(tmp_path / "run").save(policy, updater, state, NodeConfig(policy=trained).model_dump_json())
    export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    prompt = SYSTEM_PROMPT if expected is None else expected
    again = load_policy(PolicySettings(model=str(tmp_path / "model")))
    assert again.system_prompt == prompt
    boxed = [("policy.model", str(tmp_path / "model")), ("tasks", "[{kind: reasoning_gym, name: gcd, find: boxed}]")]
    assert load_config(command_line=boxed).config.policy.system_prompt is None, "the exported one stays"


def test_a_model_exported_by_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "swarm.json").write_text('{"format": 2}')
    with pytest.raises(ConfigError, match="has format 2, this version reads 1: update swarm"):
        load_config(
            command_line=[("policy.model", str(tmp_path)), ("tasks", "[{kind: reasoning_gym, name: gcd, find: boxed}]")]
        )


def test_a_full_disk_is_said_and_leaves_no_part_of_a_model(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updater = PolicyUpdater(policy, UpdateSettings(), MixSettings(), 1.0)
    state = TrainingState("12D3", "tiny", 1, 1, 8, [], Ledger().snapshot(), 99)
    CheckpointStore(tmp_path / "run").save(policy, updater, state, NodeConfig().model_dump_json())

    def full(source: str, target: str, **_: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device", target)

    monkeypatch.setattr(shutil, "copytree", partial(shutil.copytree, copy_function=full))
    with pytest.raises(CheckpointError, match="No space left on device"):
        export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    assert not (tmp_path / "model").exists()


def saved(out: Path, *fields: tuple[str, str]) -> None:
    """A node's checkpoint of an untrained policy, with the configuration that a command line gives."""
    config = load_config(command_line=fields).config
    policy = load_policy(config.policy)
    updater = PolicyUpdater(policy, config.update, MixSettings(), 1.0)
    state = TrainingState("12D3", policy.name, 1, 1, 8, [], Ledger().snapshot(), 99)
    CheckpointStore(out).save(policy, updater, state, config.model_dump_json())


def evaluated(capsys: pytest.CaptureFixture[str], model: Path, *overrides: tuple[str, str]) -> dict[str, object]:
    assert evaluate(Asked(str(model), None, overrides, (), 60), True, Console(quiet=True)) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    del found["weights"]
    return found


@pytest.mark.parametrize("fields", [("tiny",), ("tiny", "--lora"), ("tiny-sees",)], ids=" ".join)
def test_what_is_exported_is_evaluated_as_it_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: tuple[str, ...]
) -> None:
    lora = [("policy.lora.rank", "4")] if "--lora" in fields else []
    saved(tmp_path / "run", ("policy.model", fields[0]), ("generation.temperature", "0.7"), *lora)
    export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    before, after = (evaluated(capsys, tmp_path / name) for name in ("run", "model"))
    assert before == after, "the same questions, sampled in the same way from the same policy"
    assert after["all"]["correct"] > 0 or fields == ("tiny-sees",), "which hardly ever answers in the right form yet"  # type: ignore[index]


def test_an_export_keeps_what_equals_the_defaults_of_the_wire(tmp_path: Path) -> None:
    """Those of configurations are others."""
    tokens = Sampling().max_new_tokens
    assert tokens != NodeConfig().generation.max_new_tokens
    saved(tmp_path / "run", ("policy.model", "tiny"), ("generation.max_new_tokens", str(tokens)))
    export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    values, left = exported_values(tmp_path / "model", load_config())
    assert not left and values["generation"]["max_new_tokens"] == tokens  # type: ignore[call-overload, index]


def test_what_fills_the_chat_template_travels(tmp_path: Path) -> None:
    fields = (
        ("policy.chat_template_kwargs", "{enable_thinking: false}"),
        ("policy.thinking_marks", "[<think>, </think>]"),
    )
    for name, given in (("plain", ()), ("thinks", fields)):
        (tmp_path / name).mkdir()
        config = load_config(command_line=[("policy.model", "tiny"), *given]).config
        exported.write_trained(tmp_path / name, None, config)
        values, _ = exported_values(tmp_path / name, load_config())
        again = load_config(None, values).config
        assert again.policy.chat_template_kwargs == config.policy.chat_template_kwargs
        assert again.policy.thinking_marks == config.policy.thinking_marks
        assert again.generation.sampling() == config.generation.sampling()


def test_a_suite_without_a_task_that_can_travel_does_not_become_one_of_all_tasks(tmp_path: Path) -> None:
    poker = {"kind": "kuhn_poker", "opponents": ["model"], "model": {"path": "tiny"}}
    values = {"evaluation": {"suites": {"earlier": {"tasks": [poker]}, "mixed": {"tasks": [poker, "gcd"]}}}}
    config = load_config(None, values).config
    lines = exported.write_trained(tmp_path, None, config)
    assert lines == ["suite earlier is left out: none of its tasks can be described to others"]
    found, _ = exported_values(tmp_path, load_config())
    suites = load_config(None, found).config.evaluation.suites
    assert {name: suite.tasks for name, suite in suites.items()} == {"mixed": ("gcd",)}


def test_whose_tasks_and_sampling_are_asked_is_said(tmp_path: Path) -> None:
    saved(tmp_path / "run", ("policy.model", "tiny"))
    export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    for overrides, named in (
        ((), ("tasks as trained: ", "sampling as trained: temperature 1, at most 16 new tokens")),
        (
            (("generation.max_new_tokens", "8"),),
            ("tasks as trained: ", "sampling: temperature 1, at most 8 new tokens"),
        ),
        ((("tasks", "[{kind: reasoning_gym, name: gcd}]"),), ("tasks: gcd", "sampling as trained: ")),
    ):
        console = Console(file=StringIO(), width=200)
        assert evaluate(Asked(str(tmp_path / "model"), None, overrides, (), 2), False, console) == 0
        assert all(each in console.file.getvalue() for each in named)  # type: ignore[attr-defined]


def test_own_rows_are_asked_of_an_exported_model_once_they_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "sums.jsonl"
    rows.write_text("".join(json.dumps({"question": f"1 + {n}?", "answer": str(n + 1)}) + "\n" for n in range(8)))
    task = {"kind": "dataset", "name": "sums", "path": str(rows), "find": "whole"}
    saved(tmp_path / "run", ("policy.model", "tiny"), ("tasks", json.dumps([task])))
    export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    assert str(tmp_path) not in (tmp_path / "model" / "swarm.json").read_text(), "paths are nobody's business"
    with pytest.raises(TaskError, match="--files.sums PATH"):
        evaluated(capsys, tmp_path / "model")
    assert list(evaluated(capsys, tmp_path / "model", ("files.sums", str(rows)))) == ["sums", "all"]
    rows.write_text("")
    with pytest.raises(TaskError, match="has the digest"):
        evaluated(capsys, tmp_path / "model", ("files.sums", str(rows)))


def test_a_model_cannot_bring_code_or_read_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "run", ("policy.model", "tiny"))
    export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    file = tmp_path / "model" / "swarm.json"
    for settings in (
        {"path": "/etc/passwd"},
        {"path": "a/b", "scorer": "os:system"},
        {"path": "a/b", "scorer": "x.py:f"},
    ):
        spec = {"name": "evil", "kind": "dataset", "weight": 1.0, "settings": settings}
        file.write_text(json.dumps({**json.loads(file.read_text()), "tasks": [spec]}))
        with pytest.raises(TaskError, match="task evil is left out"):
            evaluated(capsys, tmp_path / "model")
    for tasks in ("x", [1], [{"name": "a"}]):
        file.write_text(json.dumps({**json.loads(file.read_text()), "tasks": tasks}))
        with pytest.raises(ConfigError, match="cannot be read"):
            evaluated(capsys, tmp_path / "model")


def sums(path: Path, first: int) -> dict[str, object]:
    """A task on twenty rows of sums, written to `path`."""
    rows = ({"question": f"{first} + {n}?", "answer": str(first + n)} for n in range(20))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "dataset", "name": path.stem, "path": str(path), "find": "whole"}


def with_suites(tmp_path: Path) -> tuple[str, str]:
    """What `saved` and exported says of a run on `trained.jsonl` with a suite on `own.jsonl`, and the suites."""
    suites = json.dumps({"mine": {"tasks": ["trained", sums(tmp_path / "own.jsonl", 5)], "k": 2}})
    tasks = json.dumps([sums(tmp_path / "trained.jsonl", 1), {"kind": "reasoning_gym", "name": "gcd"}])
    saved(tmp_path / "run", ("policy.model", "tiny"), ("tasks", tasks), ("evaluation.suites", suites))
    console = Console(file=StringIO(), width=300)
    export_checkpoint(tmp_path / "run", tmp_path / "model", console)
    return console.file.getvalue(), suites  # type: ignore[attr-defined]


def asked_suites(model: Path, *overrides: tuple[str, str]) -> str:
    console = Console(file=StringIO(), width=300)
    assert evaluate(Asked(str(model), None, overrides, ("all",)), False, console) == 0
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_suite_travels_with_an_export_and_its_rows(tmp_path: Path) -> None:
    said, _ = with_suites(tmp_path)
    assert [line for line in said.splitlines() if "is copied" in line and "who has the model can read it" in line]
    before = asked_suites(tmp_path / "run").splitlines()
    moved = (tmp_path / "model").rename(tmp_path / "elsewhere")
    for name in ("own.jsonl", "trained.jsonl"):
        (tmp_path / name).unlink()
    after = asked_suites(moved).splitlines()
    assert after == before, "the same questions of the same policy"
    assert any(line.startswith("suite mine as trained: trained, own; 2 completions a question") for line in after)
    assert str(tmp_path) not in (moved / "swarm.json").read_text()
    assert "suite mine: own" in asked_suites(
        moved, ("evaluation.suites", json.dumps({"mine": {"tasks": [sums(tmp_path / "own.jsonl", 5)]}}))
    ), "one's own is not called the trained one"


def test_rows_of_a_suite_that_were_changed_are_refused_and_large_ones_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, _ = with_suites(tmp_path)
    (copied,) = (path for path in (tmp_path / "model" / "data").iterdir() if "5 + 3" in path.read_text())
    copied.write_text("")
    with pytest.raises(TaskError, match="task 'own': .* has the digest"):
        asked_suites(tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    monkeypatch.setattr(exported, "MAX_DATA_BYTES", (tmp_path / "own.jsonl").stat().st_size)
    said, _ = with_suites(tmp_path)
    assert "own.jsonl is not copied, because suites may have" in said
    found = asked_suites(tmp_path / "model")
    assert (
        "suite mine: task own is left out: it is on local files" in found and "suite mine as trained: trained;" in found
    )


@pytest.mark.parametrize("target", ["/dev/zero", "/"])
def test_data_of_a_model_that_leads_elsewhere_or_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    with_suites(tmp_path)
    data = tmp_path / "model" / "data"
    (copied,) = (path for path in data.iterdir() if "5 + 3" in path.read_text())
    size = copied.stat().st_size
    left_out = "suite mine: task own is left out: it is on local files"
    monkeypatch.setattr(exported, "MAX_DATA_BYTES", size - 1)
    assert left_out in asked_suites(tmp_path / "model")
    monkeypatch.undo()
    copied.unlink()
    copied.symlink_to(target)
    assert left_out in asked_suites(tmp_path / "model")


def test_names_of_a_foreign_model_reach_no_terminal(tmp_path: Path) -> None:
    saved(tmp_path / "run", ("policy.model", "tiny"))
    export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    file = tmp_path / "model" / "swarm.json"
    evil = {"name": "a\x1b[2J", "kind": "b\nc\x1b[2J", "weight": 1.0, "settings": {}}
    known = json.loads(file.read_text())
    suites = {"mine": {"tasks": [evil], "settings": {"questions": 1}}}
    file.write_text(json.dumps({**known, "system_prompt": "\x1b[2Jplease", "suites": suites}))
    console = Console(file=StringIO(), width=300)
    assert evaluate(Asked(str(tmp_path / "model"), None, (), questions=1), False, console) == 0
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "please" in said and "suite mine: task a?[2J is left out" in said
    assert all(line.isprintable() and not line.startswith("c") for line in said.splitlines())
