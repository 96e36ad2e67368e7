"""`swarm bootstrap` and `swarm join` as people run them: real processes, real network, real faults."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from nodes.commands.export import export_checkpoint
from swarm.net.roster import read_roster
from swarm.telemetry.history import PeerHistory
from tests.nodes.processes import DEADLINE_S, LOOPBACK, Swarm, address_of, gone, summary, swarm, until

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture
def stack() -> ExitStack:
    with ExitStack() as stack:
        yield stack


def _join(stack: ExitStack, out: Path, *arguments: str) -> Swarm:
    everything = [*LOOPBACK, "--checkpoint.every_rounds=10", "--evaluation.num_questions=0", *arguments]
    return stack.enter_context(swarm(out, "join", "--out", str(out), *everything))


def _bootstrap(stack: ExitStack, out: Path, *arguments: str) -> Swarm:
    return stack.enter_context(swarm(out, "bootstrap", "--out", str(out), *LOOPBACK, *arguments))


def _used_external(peer: Swarm) -> int:
    return peer.history().groups["used_external"]


def test_two_peers_with_nothing_but_an_address_find_each_other_and_train(tmp_path: Path, stack: ExitStack) -> None:
    """And nobody else can use the directory of one."""
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"run_name": "testing", "mix": {"local": 3, "external": 5}}))
    address = address_of(_bootstrap(stack, tmp_path / "b", str(config)))
    peers = [_join(stack, tmp_path / name, address) for name in ("one", "two")]
    for peer in peers:
        until(lambda peer=peer: _used_external(peer) > 0, peer, "external groups in an update")
        start = peer.history().start
        assert start.run_id.startswith("testing-")
        assert start.config["mix"]["local"] == 3, "the manifest's mix"
    twin = _join(stack, peers[0].out)
    assert twin.wait() == 2
    assert "in use by another process" in twin.text()
    assert peers[0].process.poll() is None
    for peer in peers:
        everything = peer.tree()
        assert peer.stop() == 130
        assert gone(everything)
        used = summary(peer.out)["peers"][0]["groups"]["used_external"]
        assert sum(row.used for row in read_roster(peer.out).peers) == used > 0, "the report's figures by sender"
        assert "3 local + 5 external" in peer.text(), "what will be done is shown before it starts"


def test_other_users_of_the_machine_cannot_read_a_node_s_directory(tmp_path: Path, stack: ExitStack) -> None:
    """Nor what an earlier version has left readable there."""
    before = tmp_path / "p"
    before.mkdir(mode=0o755)
    for name in ("metrics.jsonl", "samples.jsonl", "peers.json"):
        (before / name).touch(0o644)
    bootstrap = _bootstrap(stack, tmp_path / "b")
    peer = _join(stack, before, address_of(bootstrap), "--rounds=2", "--ui")
    assert peer.wait() == 0, peer.text()
    for node in (bootstrap, peer):
        assert node.out.stat().st_mode & 0o777 == 0o700
    found = {path.name: path.stat().st_mode & 0o777 for path in peer.out.iterdir() if path.is_file()}
    del found["test-log.txt"]
    assert {"samples.jsonl", "metrics.jsonl", "peers.json", "ui.log", "report.html", "identity.key"} < found.keys()
    assert {name for name, mode in found.items() if mode != 0o600} == set()


def test_a_bootstrap_that_is_killed_comes_back_at_its_address_and_no_second_one_takes_it(
    tmp_path: Path, stack: ExitStack
) -> None:
    first = _bootstrap(stack, tmp_path / "b")
    address = address_of(first)
    until(lambda: "is open" in first.text(), first, "its line")
    listen = f"--network.listen={address.partition('/p2p/')[0]}"
    second = stack.enter_context(swarm(tmp_path / "c", "bootstrap", "--out", str(tmp_path / "c"), listen))
    assert second.wait() == 3
    assert "it is taken" in second.text() and "is open" not in second.text()
    first.kill()
    again = _bootstrap(stack, tmp_path / "b")
    until(lambda: again.text().count("is open") == 2, again, "its line again")
    assert address_of(again) == address


def test_a_killed_peer_goes_on_as_itself_and_survives_a_torn_checkpoint(tmp_path: Path, stack: ExitStack) -> None:
    """What it has saved is then evaluated per task."""
    out = tmp_path / "peer"
    often = "--checkpoint.every_rounds=3"
    first = _join(stack, out, often)
    until(lambda: len(_checkpoints(out)) > 1, first, "two checkpoints")
    everything = first.tree()
    first.kill()
    assert gone(everything), "daemon and verifiers do not outlive a killed node"
    checkpoints = _checkpoints(out)
    torn = checkpoints[-1] / "model" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:1000])
    before = int(checkpoints[-2].name.removeprefix("round-"))
    second = _join(stack, out, often)
    until(lambda: second.round() > before and (second.history().start.resumed_from is not None), second, "a resume")
    starts = [event for event in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]
    starts = [event for event in starts if event["event"] == "start"]
    assert starts[0]["peer_id"] == starts[1]["peer_id"]
    assert starts[1]["resumed_from"] == before
    assert "torn" in second.text()
    assert second.stop() == 130

    with swarm(tmp_path / "evaluation", "evaluate", str(out), "--questions", "180", "--json") as evaluation:
        assert evaluation.wait() == 0, evaluation.text()
    result = json.loads(evaluation.text()[evaluation.text().index("{") :])
    assert set(result) == {"weights", "all", *(task["name"] for task in _tiny_tasks())}
    low, high = result["all"]["interval"]
    assert 0 < low < result["all"]["accuracy"] < high < 1
    assert result["all"]["asked"] == 180


def test_an_unreachable_bootstrap_means_alone_until_it_appears(tmp_path: Path, stack: ExitStack) -> None:
    home = tmp_path / "b"
    first = _bootstrap(stack, home)
    address = address_of(first)
    assert first.stop() == 130
    peer = _join(stack, tmp_path / "peer", address)
    until(lambda: peer.round() >= 3, peer, "rounds alone")
    assert "training alone" in peer.text() and address.split("/p2p/")[0] in peer.text(), "what was tried is said"
    assert peer.history().latest.alone_since is not None
    port = address.split("/")[4]
    (home / "multiaddrs").unlink()
    again = stack.enter_context(
        swarm(home, "bootstrap", "--out", str(home), *LOOPBACK, f"--network.listen=/ip4/127.0.0.1/tcp/{port}")
    )
    assert address_of(again).split("/p2p/")[1] == address.split("/p2p/")[1], "the same identity"
    until(lambda: peer.history().latest.alone_since is None, peer, "company")
    assert peer.stop() == 130


def test_a_member_of_another_run_is_not_joined(tmp_path: Path, stack: ExitStack) -> None:
    address = address_of(_bootstrap(stack, tmp_path / "b"))
    lost = _join(stack, tmp_path / "peer", address, "--network.run_id=elsewhere-0123456789abcdef0123")
    assert lost.wait() == 2
    assert "network.run_id is elsewhere-" in lost.text() and lost.round() == 0


def test_a_closed_terminal_stops_a_node_as_ctrl_c_does(tmp_path: Path, stack: ExitStack) -> None:
    peer = _join(stack, tmp_path / "peer")
    until(lambda: peer.round() >= 3, peer, "rounds")
    assert peer.stop(signal.SIGHUP) == 130
    end = peer.history().end
    assert end is not None and end.reason == "interrupted" and (peer.out / "checkpoints").is_dir()


def test_when_nobody_reads_its_output_any_more_a_node_stops_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nodes.cli", "join", "--out", str(tmp_path), *LOOPBACK]
    with subprocess.Popen(
        [*command, "--evaluation.num_questions=0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None and node.stderr is not None
        for line in node.stdout:
            if "round 3" in line:
                break
        node.stdout.close()
        assert node.wait(DEADLINE_S) == 130
        assert "Traceback" not in node.stderr.read()
    end = PeerHistory.read(tmp_path / "metrics.jsonl").end
    assert end is not None and end.reason == "interrupted" and any((tmp_path / "checkpoints").iterdir())


def test_models_tokenizers_and_task_lists_may_differ(tmp_path: Path, stack: ExitStack) -> None:
    model = _foreign_model(tmp_path / "gpt2")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{k} plus 1?", "answer": str(k + 1)}) + "\n" for k in range(50)))
    config = tmp_path / "foreign.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "policy": {"model": str(model)},
                "generation": {"max_new_tokens": 6},
                "tasks": [
                    {"kind": "dataset", "name": "plus-one", "path": str(rows), "match": "numeric"},
                    *[task for task in _tiny_tasks() if task["name"] in ("gcd", "products", "lcm")],
                ],
            }
        )
    )
    address = address_of(_bootstrap(stack, tmp_path / "b"))
    tiny = _join(stack, tmp_path / "tiny", address)
    foreign = _join(stack, tmp_path / "foreign", str(config), "--bootstrap", address)
    until(lambda: _used_external(foreign) > 0, foreign, "external groups in an update of the foreign model")
    until(lambda: foreign.history().groups["dropped"].get("unknown_task", 0) > 0, foreign, "a task it does not have")
    assert tiny.process.poll() is None
    assert foreign.stop() == 130
    exported = tmp_path / "exported"
    export_checkpoint(foreign.out, exported, Console(quiet=True))
    assert isinstance(AutoModelForCausalLM.from_pretrained(exported), GPT2LMHeadModel)


def _checkpoints(out: Path) -> list[Path]:
    return sorted((out / "checkpoints").glob("round-*"))


def _tiny_tasks() -> list[dict]:
    from swarm.environments.tiny import TINY_TASKS

    return [task.model_dump(mode="json") for task in TINY_TASKS]


def _foreign_model(directory: Path) -> Path:
    """Another architecture with another tokenizer: untrained, so that all its lessons come from others."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    tokenizer = Tokenizer(models.BPE({char: k for k, char in enumerate([*alphabet, "<end>"])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.save_pretrained(directory)
    config = GPT2Config(vocab_size=len(fast), n_positions=512, n_embd=32, n_layer=1, n_head=2, eos_token_id=256)
    GPT2LMHeadModel(config).save_pretrained(directory)
    return directory
