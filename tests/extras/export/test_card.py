"""The model card of an export, and how it is sent to the hub."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import httpx
import huggingface_hub
import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError
from rich.console import Console

from nodes.commands.export import Wanted, export_checkpoint
from swarm.config import load_config
from swarm.errors import ConfigError
from swarm.extras.export import card, hub
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import METRICS_FILE, EvaluationEvent, StartEvent, SuiteEvent, SuiteScores, encode
from swarm.training.checkpoint import CheckpointStore, TrainingState
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Estimate

PEER = "12D3KooWPrivatePrivatePrivate"
LOSS = Path(__file__).parents[3] / "examples" / "own_loss.py"


def _run(policy: Policy, out: Path, others: int) -> None:
    """A node's directory after 30 rounds, with its metrics."""
    base = out.parent / "base"
    policy.save(base)
    (base / "README.md").write_text("---\nbase_model: org/first\nlicense: other\nlicense_name: mine\n---\nA model.\n")
    fields = [
        ("policy.model", str(base)),
        ("update.objective", f"{LOSS}:Topr"),
        ("update.loss.weight_cap", "0.5"),
        ("update.advantage", "rloo"),
        ("tasks", "[{kind: reasoning_gym, name: gcd}, {kind: dataset, name: gsm8k, path: openai/gsm8k, subset: main}]"),
    ]
    config = load_config(command_line=fields).config
    ledger = Ledger().snapshot() | {"used_local": 90, "used_external": others}
    state = TrainingState(PEER, "base", 30, 31, 8, [], ledger, 99, num_passed_over=1, role="peer")
    updater = PolicyUpdater(policy, UpdateSettings(), MixSettings(), 1.0)
    CheckpointStore(out / "checkpoints").save(policy, updater, state, config.model_dump_json())
    figures = {"avg@4": Estimate(0.5, 0.4, 0.6)}
    accuracies = ((0, 0.2), (30, 0.4), (40, 0.9))
    events = [
        StartEvent(time=1.0, peer_id=PEER, name="my-host", versions={"torch": "2.13.0"}),
        *(EvaluationEvent(time=2.0, round=n, accuracy=a, num_questions=100) for n, a in accuracies),
        SuiteEvent(time=3.0, round=30, suite="math", k=4, scores=SuiteScores(50, figures)),
    ]
    (out / METRICS_FILE).write_bytes(b"".join(encode(event) for event in events))


def _export(out: Path, directory: Path, **wanted: object) -> str:
    console = Console(file=StringIO(), width=300)
    export_checkpoint(out, directory, console, Wanted(**wanted))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("others", [0, 1200])
def test_a_card_says_what_was_trained_on_what_and_nothing_of_the_machine(
    policy: Policy, tmp_path: Path, others: int
) -> None:
    _run(policy, tmp_path / "run", others)
    _export(tmp_path / "run", tmp_path / "model")
    written = ModelCard.load(tmp_path / "model" / "README.md")
    assert written.data.to_dict() == {
        "base_model": "org/first",
        "library_name": "transformers",
        "license": "other",
        "license_name": "mine",
        "pipeline_tag": "text-generation",
        "datasets": ["openai/gsm8k"],
        "tags": ["swarm", "reinforcement-learning", "Topr"],
    }
    text = written.content
    for said in (
        "gcd, gsm8k",
        "Rounds: 30, with 30 updates",
        "of its own and 1,200 of other members" if others else "Alone: on 90 groups of its own",
        "| accuracy, 0 rounds | 0.200 (0.133 to 0.289) | 100 |",
        "| accuracy, 30 rounds | 0.400 (0.309 to 0.498) | 100 |",
        "| math: avg@4, 30 rounds | 0.500 (0.400 to 0.600) | 50 |",
        "| `update.advantage` | `rloo` |",
        "| `update.loss.weight_cap` | `0.5` |",
        "| `update.objective` | `Topr` |",
        "torch 2.13.0",
    ):
        assert said in text
    for private in (str(tmp_path), str(LOSS.parent), PEER, "my-host", "0.9"):
        assert private not in text


def test_a_card_says_how_the_model_thought() -> None:
    long = ("generation.max_new_tokens", "100")
    fields = [("policy.chat_template_kwargs.enable_thinking", "false"), ("generation.max_thinking_tokens", "64")]
    with_thoughts, plain = (
        dict(card._settings(load_config(command_line=[long, *given]).config)) for given in (fields, [])
    )
    more = {"`generation.max_thinking_tokens`": "`64`", "`policy.chat_template_kwargs.enable_thinking`": "`False`"}
    assert with_thoughts.items() - plain.items() == more.items()


def test_without_a_card_of_the_base_and_without_metrics_nothing_is_claimed(policy: Policy, tmp_path: Path) -> None:
    _run(policy, tmp_path / "run", 0)
    (tmp_path / "base" / "README.md").unlink()
    (tmp_path / "run" / METRICS_FILE).unlink()
    _export(tmp_path / "run", tmp_path / "model")
    written = ModelCard.load(tmp_path / "model" / "README.md")
    assert written.data.license is None and written.data.base_model is None
    assert "recorded no evaluation" in written.content


def test_what_a_hub_or_a_broken_card_says_of_the_licence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, name: str, **_: object) -> str:
        if repo == "org/gone":
            raise httpx.ConnectError("no route")
        (tmp_path / name).write_text("---\nlicense: apache-2.0\nbase_model: org/earlier\n---\n")
        return str(tmp_path / name)

    monkeypatch.setattr(card, "hf_hub_download", download)
    assert card.base_of("org/model", None) == card.Base("org/model", {"license": "apache-2.0"})
    assert card.base_of("org/gone", None) == card.Base(), "it may be a path, seen from another directory"
    monkeypatch.setattr(card, "try_to_load_from_cache", lambda *_, **__: "/cache/config.json")
    assert card.base_of("org/gone", None) == card.Base("org/gone")
    assert card.base_of("runs/secret-client/base", None) == card.Base(), "what cannot be on the hub is not asked for"
    (tmp_path / "README.md").write_text("---\n: [\n---\n")
    assert card.base_of(str(tmp_path), None) == card.Base()
    assert card.base_of("smollm2", None).licence == {"license": "apache-2.0"}
    assert card.base_of("tiny", None).name is None


class FakeHub:
    """The hub at the seam of huggingface_hub."""

    def __init__(self, status: int | None = None, private: bool = True) -> None:
        self.sent: list[tuple[object, ...]] = []
        self._status, self._private = status, private

    def create_repo(self, name: str, private: bool, exist_ok: bool) -> None:
        if self._status == 0:
            raise httpx.ConnectError("no route to host")
        if self._status is not None:
            request = httpx.Request("POST", "https://hub.invalid")
            raise HfHubHTTPError("refused", response=httpx.Response(self._status, request=request))
        self.sent.append((name, private, exist_ok))

    def model_info(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(private=self._private)

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> SimpleNamespace:
        self.sent.append((repo_id, *sorted(file.name for file in folder_path.iterdir())))
        return SimpleNamespace(repo_url=f"https://hub.invalid/{repo_id}")


def _fake(monkeypatch: pytest.MonkeyPatch, fake: FakeHub, token: str | None = "hf_x") -> FakeHub:
    monkeypatch.setattr(hub, "HfApi", lambda: fake)
    monkeypatch.setattr(hub, "get_token", lambda: token)
    return fake


def test_an_export_is_sent_as_a_private_repository(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(policy, tmp_path / "run", 0)
    fake = _fake(monkeypatch, FakeHub())
    said = _export(tmp_path / "run", tmp_path / "dry", push="me/model", dry_run=True)
    assert not fake.sent and sorted(path.name for path in tmp_path.iterdir()) == ["base", "run"]
    assert "would be sent to me/model (private):" in said
    listed = sorted(line.split()[0] for line in said.splitlines() if line.endswith(" bytes"))
    said = _export(tmp_path / "run", tmp_path / "model", push="me/model")
    assert fake.sent == [("me/model", True, True), ("me/model", *listed)]
    assert {"README.md", "config.json", "model.safetensors", "swarm.json"} <= {*listed}
    assert said.endswith("sent to https://hub.invalid/me/model\n")
    assert ModelCard.load(tmp_path / "model" / "README.md").content.count('from_pretrained("me/model")') == 2


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        (FakeHub(401), "does not accept the token; log in with `hf auth login`, or set HF_TOKEN"),
        (FakeHub(403), "has no right to write to me; use one that has"),
        (FakeHub(500), "the hub answered 500: refused"),
        (FakeHub(0), "cannot be reached .ConnectError"),
        (FakeHub(private=False), "me/model exists and is public; add --public, or choose another name"),
    ],
    ids=["token", "rights", "server", "away", "public"],
)
def test_what_the_hub_refuses_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeHub, message: str
) -> None:
    _fake(monkeypatch, fake)
    with pytest.raises(ConfigError, match=message) as caught:
        hub.push(tmp_path, "me/model", public=False)
    assert "\n" not in str(caught.value)
    assert not any(len(each) != 3 for each in fake.sent), "nothing was uploaded"


@pytest.mark.parametrize("name", ["model", "me/../x", "a/b/c", ""])
def test_a_name_that_is_none_is_refused_before_anything_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(monkeypatch, FakeHub())
    with pytest.raises(ConfigError, match="--push takes OWNER/NAME"):
        hub.check_push(name, False)


def test_without_a_token_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(monkeypatch, FakeHub(), token=None)
    with pytest.raises(ConfigError, match="--push needs a token of the Hugging Face hub: log in"):
        hub.check_push("me/model", False)
    hub.check_push("me/model", True)


def test_the_calls_are_those_of_huggingface_hub() -> None:
    for name in ("create_repo", "model_info", "upload_folder"):
        assert hasattr(huggingface_hub.HfApi, name)
