"""Why something is refused: one list, the same words everywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from nodes.cli import app
from nodes.commands.reference import TITLES
from swarm.errors import Refusal
from swarm.net.trust.accounts import FORFEITS, OFFENCES
from swarm.reasons import OF_GRADING, Reason, sentence
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import GroupCounts
from swarm.types import Rejection

ROOT = Path(__file__).parent.parent

ON_DISK = (
    "oversized malformed schema_version wrong_run bad_signature wrong_peer clock stale limits "
    "unknown_kind unknown_question "
    "quarantined replayed rate verify_budget slow_holder bad_gift withheld corrupt_chunk flood bad_request bad_gossip "
    "false_offer duplicate peer_quota repeated copied too_long too_many verifier_overflow unknown_task "
    "other_task options_differ question_mismatch media_mismatch cannot_perceive episode_mismatch untrusted held_out "
    "verifier_timeout verifier_crash judge_skipped judge_budget judge_timeout judge_failed "
    "zero_advantage pool_full not_needed expired improbable "
    "harmful update_skipped lost_in_restart not_invited wrong_version stale_version buffer_full other_policy "
    "other_sampling no_tokens hidden_tokens wrong_tokens wrong_logprobs unlike_samples not_sampled "
    "not_finished prompt_empty prompt_too_long unanswered engine_refused"
)
"""As ledgers in checkpoints, metrics and rosters have them; one that is renamed there is another one."""


def test_the_table_in_the_documents_is_the_one_of_the_code() -> None:
    printed = CliRunner().invoke(app, ["reasons"], obj=[]).output
    assert (ROOT / "docs" / "reasons.md").read_text() == printed, "run: swarm reasons > docs/reasons.md"
    for reason in Reason:
        assert printed.count(f"| `{reason}` | {reason.sentence} |") == 1
    weights = {line.split("`")[1]: line.split("|")[3] for line in printed.splitlines() if line.startswith("| `")}
    assert {reason for reason, against in weights.items() if against.strip()} == OFFENCES.keys() | FORFEITS
    assert float(weights["copied"]) == OFFENCES[Reason.COPIED]


def test_every_reason_has_its_key_its_subject_and_a_sentence() -> None:
    assert " ".join(Reason) == ON_DISK
    for reason in Reason:
        assert reason.name == reason.upper()
        assert reason.subject in TITLES
        assert reason.sentence[0].isupper() and reason.sentence.endswith(".")
    assert len({reason.sentence for reason in Reason}) == len(Reason)


def test_no_module_names_a_reason_otherwise() -> None:
    for path in (ROOT / "swarm").rglob("*.py"):
        if path.name != "reasons.py":
            texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
            assert not texts & set(Reason), f"{path.relative_to(ROOT)} must name them as members of Reason"


def test_a_reason_is_stored_and_sent_as_its_key() -> None:
    ledger = Ledger()
    ledger.dropped(Reason.COPIED, 2)
    stored = msgspec.json.encode(ledger.snapshot())
    assert b'"dropped":{"copied":2}' in stored
    ledger.restore(msgspec.json.decode(stored, type=GroupCounts))
    ledger.dropped(Reason.COPIED)
    assert ledger.snapshot()["dropped"] == {"copied": 3}, "a key that was read is the member that is counted"
    sent = msgspec.msgpack.encode(Rejection(Reason.VERIFIER_CRASH))
    assert msgspec.msgpack.decode(sent)["reason"] == "verifier_crash"
    assert msgspec.msgpack.decode(sent, type=Rejection).reason is Reason.VERIFIER_CRASH
    assert str(Refusal(Reason.CLOCK, "in a year")) == "clock: in a year"


def test_a_reason_that_does_not_exist_is_not_taken_from_a_worker_but_shown_from_a_file() -> None:
    invented = msgspec.msgpack.encode({"reason": "invented"})
    with pytest.raises(msgspec.ValidationError, match="invented"):
        msgspec.msgpack.decode(invented, type=Rejection)
    assert sentence("copied") == Reason.COPIED.sentence
    assert "does not know" in sentence("invented")


def test_every_reason_for_which_grading_refuses_is_believed_of_its_process() -> None:
    """Whoever is refused for another one would pay for a process that has broken the rules."""
    environments = ROOT / "swarm" / "environments"
    graders = {"dispatcher.py", "pool.py"}  # they give their own reasons, in the node
    named = {
        Reason[node.attr]
        for path in environments.rglob("*.py")
        if path.name not in graders
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason"
    }
    assert named == OF_GRADING
