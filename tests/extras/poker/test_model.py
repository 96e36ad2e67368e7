"""A language model as an opponent: as a scripted one would play, in a confined process, and where it is refused."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import huggingface_hub.constants
import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from nodes.boot.directory import claim_directory
from nodes.boot.resolve import resolve
from nodes.roles.peer import PeerNode
from nodes.roles.role import RoleNode
from nodes.roles.suites import suite_run, suites_of
from swarm.config import NodeConfig, load_config
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.environments.mixture import TaskMixture
from swarm.environments.specs import from_specs, to_specs
from swarm.errors import ConfigError, TaskError
from swarm.extras.poker.games import HeadsUp, Holdem, Kuhn
from swarm.extras.poker.tasks import HoldemTask, KuhnTask
from swarm.kinds import extra
from swarm.opponents import OF_THE_PROCESSOR, by_directory
from swarm.policy.config import OpponentSettings, PolicySettings
from swarm.policy.loading import load_policy
from swarm.policy.players import Model, ModelPlayer, open_model
from swarm.types import (
    Answers,
    Completion,
    Observation,
    Past,
    Rejection,
    Sampling,
    Step,
    Terminal,
    Text,
    observation_text,
)
from tests.extras.poker.test_poker import CHIPS, play
from tests.following_model import save_following
from tests.sapo.test_round import FakeEngine
from tests.thinking_models import write_qwen3

CALLS = {"GO": "2", "2": "[EOS]", "[UNK]": "[EOS]"}
TEMPLATE = (
    "{% for m in messages %}{{ m.role + ' ' + m.content + ' ' }}{% endfor %}{% if add_generation_prompt %}GO{% endif %}"
)
"""Its last word makes the model call; without the template it says nothing."""


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caller")
    save_following(folder, CALLS, chat_template=TEMPLATE)
    return folder


class Varied(FakeEngine):
    """Says a number that depends on what it is shown."""

    def generate(self, prompts: object, num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        assert isinstance(prompts, list | tuple)
        return [(Completion(self._says(each), "stop"),) for each in prompts]

    def _says(self, prompt: object) -> str:
        shown = observation_text(prompt.steps[-1].observation) if isinstance(prompt, Past) else str(prompt)
        return str(1 + (zlib.crc32(shown.encode()) % 7) // 2)


def against(name: str, opponent: str, folder: Path | None = None, kind: str = "holdem") -> dict[str, object]:
    """A task."""
    given: dict[str, object] = {"model": {"path": str(folder)}} if folder is not None else {}
    return {"kind": kind, "name": name, "opponents": [opponent], **given}


def test_in_a_suite_a_model_that_always_says_the_same_plays_as_the_scripted_player_does(caller: Path) -> None:
    """In the confined process, by its own chat template, and with all cards, seats and answers of the policy alike."""
    tasks = [
        against("scripted", "caller"),
        against("played", "model", caller),
        against("scripted-kuhn", "aggressive", kind="kuhn_poker"),
        against("played-kuhn", "model", caller, "kuhn_poker"),
    ]
    config = NodeConfig.model_validate({"evaluation": {"suites": {"poker": {"questions": 12, "tasks": tasks}}}})
    with suite_run(suites_of(config, None)["poker"], Varied(), config) as run:
        while not run.done:
            run.step()
        found = run.scores_by_task()
    for game in ("", "-kuhn"):
        scripted, played = found[f"scripted{game}"], found[f"played{game}"]
        assert played.figures == scripted.figures and played.num_questions == 12 and played.num_ungraded == 0
        assert 0.2 < played.figures["avg@1"].value < 0.8


class Says:
    """Speaks by a function, and counts what named no move."""

    def __init__(self, says: Callable[[Observation, int], str]) -> None:
        self._says, self.num_unread = says, 0

    def __call__(self, shown: Observation, seed: int, /) -> str:
        return self._says(shown, seed)

    def unread(self) -> None:
        self.num_unread += 1


def by(says: Callable[[Observation, int], str]) -> HeadsUp:
    """A game against it."""
    return Holdem(["model"], CHIPS, model=lambda: Says(says))


def test_it_is_asked_what_a_policy_in_its_seat_would_be() -> None:
    asked: list[str] = []

    def calls(shown: Observation, seed: int) -> str:
        asked.append(observation_text(shown))
        return "2"

    game, seats = by(calls), set()
    for index in range(4):
        asked.clear()
        game.reset(0, index)
        seats.add(game.seat)
        theirs = "".join(map(repr, game.state.hole_cards[1 - game.seat]))
        while not isinstance(game.step("2"), Terminal):
            pass
        blind = "small" if game.seat == 0 else "big"
        assert asked[0].startswith("Heads-up no-limit Texas hold'em") and f"You are the {blind} blind." in asked[0]
        assert all(f"Hand {theirs}, " in text for text in asked) and len(asked) == 4, "a decision a street"
        assert not any("Heads-up" in text for text in asked[1:])
        assert ("They call 1." in asked[0]) == (blind == "big") and "They check." in asked[1] + asked[2]
    assert seats == {0, 1}


def fails(shown: Observation, seed: int) -> str:
    """A model whose code raises."""
    raise RuntimeError("no memory")


@pytest.mark.parametrize("says", [lambda shown, seed: "raise to 1000", lambda shown, seed: "", fails])
def test_a_model_that_names_no_legal_move_or_fails_loses_what_it_has_put_in(
    says: Callable[[Observation, int], str],
) -> None:
    for index in range(6):
        assert play(by(says), 3, index, ["raise to 6"])[1] == 2, "its blind; it never opens the hand"
    speaker = Says(says)
    kuhn = Kuhn({"model": {}}, model=lambda: speaker)
    assert play(kuhn, 3, 1, ["check"])[1] == 1, "its ante"
    assert speaker.num_unread


def test_its_tokens_are_those_of_a_policy_s_engine(tmp_path: Path) -> None:
    path = str(write_qwen3(tmp_path / "model"))
    settings = by_directory(OpponentSettings(path=path, max_new_tokens=8))
    player = ModelPlayer(open_model("holdem", settings), lambda: None, lambda: None)
    policy = load_policy(PolicySettings(model=path, device="cpu", dtype="float32"))
    engine, greedy = TransformersEngine(policy, GenerationSettings()), Sampling(top_k=1, max_new_tokens=8)
    questions = [(Text(f"Hand {cards}, board empty. Choose: 1 fold, 2 call 1."),) for cards in ("7d9h", "AsAh", "2c3c")]
    context: str | Past = questions[0][0].text
    for question, following in pairwise([*questions, questions[0]]):
        player(question, 0)
        (found,) = engine.generate([context], 1, greedy, 0)
        assert not isinstance(found, Rejection) and player.said == found[0].token_ids
        steps = context.steps if isinstance(context, Past) else ()
        context = Past(questions[0][0].text, (*steps, Step(player.said, following)))


def test_draws_depend_on_the_seed_alone(tmp_path: Path) -> None:
    path = str(write_qwen3(tmp_path / "model"))
    settings = by_directory(OpponentSettings(path=path, max_new_tokens=8, temperature=1))
    first, second = (Model(settings) for _ in range(2))
    drawn = [first.answer("Choose.", seed)[0] for seed in range(4)]
    assert [second.answer("Choose.", seed)[0] for seed in (3, 2, 1, 0)] == drawn[::-1] and len(set(drawn)) > 1
    assert first.answer("Choose.", 0)[0] is drawn[0], "kept, because every later turn replays it"


def test_a_node_that_would_share_hands_against_a_model_is_refused_and_says_what_is_possible(
    caller: Path, tmp_path: Path
) -> None:
    def resolved(role: type[RoleNode], share: str) -> object:
        pairs = [("tasks", json.dumps([against("earlier", "model", caller)])), ("share.groups", share)]
        loaded = load_config(command_line=[("out", str(tmp_path / "node")), *pairs])
        directory = claim_directory(loaded.config, True)
        directory.identity.close()
        return resolve(role, loaded, directory, None, 1, [])

    with pytest.raises(ConfigError, match="tasks earlier: no other machine could .*evaluation.suites") as found:
        resolved(PeerNode, "informative")
    assert len(str(found.value).splitlines()) == 1
    assert resolved(PeerNode, "none") and resolved(extra("learner.roles.learner").LearnerNode, "informative")


def test_no_manifest_names_a_model(caller: Path) -> None:
    plain, model = HoldemTask(kind="holdem"), HoldemTask.model_validate(against("earlier", "model", caller))
    assert to_specs([plain, model]) == to_specs([plain])
    (spec,) = to_specs([plain])
    with pytest.raises(TaskError, match="members cannot replay"):
        from_specs([replace(spec, settings={"opponents": ["model"], "model": {"path": str(caller)}})])


def test_a_task_without_a_model_is_the_one_it_was() -> None:
    assert "model" not in HoldemTask(kind="holdem").options | KuhnTask(kind="kuhn_poker").options


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"opponents": ["model"]}, "model must be set where opponents name it"),
        ({"model": {"path": "x"}}, "model must be set where opponents name it"),
        ({"opponents": ["model"], "model": {"path": ""}}, "at least 1 character"),
        ({"opponents": ["model"], "model": {"path": "x", "max_new_tokens": 5_000}}, "less than or equal to 4096"),
    ],
)
def test_settings_are_checked_before_a_run(change: dict[str, object], problem: str) -> None:
    for task, kind in ((HoldemTask, "holdem"), (KuhnTask, "kuhn_poker")):
        with pytest.raises(ValidationError, match=problem):
            task.model_validate({"kind": kind, **change})


def test_a_model_that_cannot_be_opened_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"task 'earlier': model.path: there is no directory"):
        HoldemTask.model_validate(against("earlier", "model", tmp_path / "none")).from_anywhere()
    (tmp_path / "empty").mkdir()
    task = HoldemTask.model_validate(against("earlier", "model", tmp_path / "empty"))
    with pytest.raises(TaskError, match="cannot play: .*no config.json"):
        TaskMixture([task.from_anywhere()])


def test_a_model_of_the_hub_is_read_where_the_cache_keeps_its_files(
    caller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, commit = tmp_path / "models--owner--caller", "0" * 40
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    for file in caller.iterdir():
        shutil.copy(file, repository / "blobs" / file.name)
        (repository / "snapshots" / commit / file.name).symlink_to(f"../../blobs/{file.name}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    task = HoldemTask.model_validate(against("hub", "model") | {"model": {"path": "owner/caller"}}).from_anywhere()
    assert task.folders - {*OF_THE_PROCESSOR} == {repository / "snapshots" / commit, repository / "blobs"}
    here = HoldemTask.model_validate(against("here", "model", caller)).from_anywhere()
    assert task.options["model"] == here.options["model"], "members with the same model in another place agree"
