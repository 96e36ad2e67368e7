"""Prompts with pictures and sounds, on every engine and family: sampled from the policy that is trained."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
import torch

from swarm.engines.config import GenerationSettings, VllmSettings
from swarm.engines.transformers.batch import Batch
from swarm.engines.transformers.engine import TransformersEngine
from swarm.engines.vllm.engine import VllmEngine
from swarm.engines.vllm.service import VllmService
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.protocols import StreamingEngine
from swarm.reasons import Reason
from swarm.types import Answers, Completion, Context, Message, Observation, Past, Rejection, Sampling, Step, Text
from swarm.types.media import Audio, Media
from tests import readers
from tests.engines.models import random_policy
from tests.engines.play import Play
from tests.engines.test_contract import PATIENT, VLLM, tokens
from tests.policy.completions import completion_logprobs

SHORT = Sampling(max_new_tokens=8)


@pytest.fixture(scope="module", params=["transformers", VLLM])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=readers.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def opened(
    engine_name: str, family: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Policy, VllmService | None]]:
    """A policy of the family, and the process that samples from it, if any: it takes a while to start."""
    if engine_name == "transformers":
        yield readers.load(family, tmp_path_factory.mktemp(family)), None
        return
    if (
        family.startswith("qwen")
        and subprocess.run([PATIENT.python, "-c", "import torchvision"], capture_output=True).returncode
    ):
        pytest.skip(
            "vLLM's code for this family imports torchvision, which vLLM's Python cannot: no build for its torch"
        )
    policy = readers.load(family, tmp_path_factory.mktemp(family), head_dim=32)  # the smallest that vLLM can
    service = VllmService(policy, GenerationSettings(vllm=PATIENT))
    yield policy, service
    service.close()


@pytest.fixture(scope="module")
def original(opened: tuple[Policy, VllmService | None]) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in opened[0].weights.items()}


@pytest.fixture
def policy(opened: tuple[Policy, VllmService | None], original: dict[str, torch.Tensor]) -> Policy:
    """The same weights for every test."""
    if opened[0].version:
        swap_weights(opened[0], original, version=0)
    return opened[0]


@pytest.fixture
def engine(opened: tuple[Policy, VllmService | None], policy: Policy) -> StreamingEngine:
    return open_engine(opened)


def open_engine(opened: tuple[Policy, VllmService | None], **settings: object) -> StreamingEngine:
    policy, service = opened
    if service is None:
        return TransformersEngine(policy, GenerationSettings(**settings))
    return VllmEngine(policy, GenerationSettings(vllm=PATIENT, **settings), service)


def expected(policy: Policy, context: Context, completions: Sequence[Completion]) -> list[list[float]]:
    """Log-probabilities of the completions of one context, by one forward pass over each whole sequence."""
    prompts = [policy.encode(context)] * len(completions)
    found = completion_logprobs(policy, prompts, [list(each.token_ids) for each in completions], 1.0)
    return [row[: len(each.token_ids)].tolist() for row, each in zip(found, completions, strict=True)]


def assert_sampled_from(policy: Policy, context: Context, answers: Answers) -> None:
    assert not isinstance(answers, Rejection), answers
    for completion, logprobs in zip(answers, expected(policy, context, answers), strict=True):
        assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)


def pictures_and_text(family: str) -> list[Context]:
    """Two differ in nothing but their picture, and one has two, twice the same."""
    medium = readers.medium(family, 0)
    twice = (Message("user", (medium, Text("and"), medium, Text("Same?"))),)
    return [readers.question(family, 0), "1 + 1", readers.question(family, 2), readers.question(family, 1), twice]


def test_a_mixed_batch_is_sampled_from_the_policy_and_a_picture_is_encoded_once(
    engine: StreamingEngine, policy: Policy, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert policy.media is not None
    encoded, contexts = readers.calls_of(monkeypatch, policy.media.encoder, "_computed"), pictures_and_text(family)
    held = [policy.encode(context) for context in contexts]
    answers = engine.generate(contexts, 3, SHORT, seed=1)
    assert len(encoded) <= 3, "one for each of three contents"
    for context, group in zip(contexts, answers, strict=True):
        assert not isinstance(group, Rejection) and len(group) == 3
        assert_sampled_from(policy, context, group)
    assert len(encoded) <= 3
    del held


def test_a_completion_does_not_depend_on_the_prompts_around_it(
    engine: StreamingEngine, policy: Policy, family: str
) -> None:
    contexts = pictures_and_text(family)
    whole = engine.generate(contexts, 2, SHORT, seed=5)
    assert tokens(engine.generate(contexts[:1], 2, SHORT, seed=5)) == tokens(whole[:1])


def test_an_episode_goes_on_from_its_past_with_new_pictures(
    engine: StreamingEngine, policy: Policy, family: str
) -> None:
    question = readers.question(family, 0)
    observation = (Text("and now"), readers.medium(family, 1))
    (first,) = engine.generate([question], 2, SHORT, seed=1)
    assert not isinstance(first, Rejection)
    contexts = [Past(question, (Step(each.token_ids, observation),)) for each in first]
    for context, group in zip(contexts, engine.generate(contexts, 2, SHORT, seed=2), strict=True):
        assert_sampled_from(policy, context, group)


def test_turns_show_pictures_as_they_become_ready(engine: StreamingEngine, policy: Policy, family: str) -> None:
    def shown(turn: object) -> Observation:
        return (Text("seen"), readers.medium(family, getattr(turn, "number", 0)))

    play = Play(3, prompts=("Guess!", readers.question(family, 0)), shown=shown)
    answered = play.run(engine)
    assert not play.refused and len(answered) == 4 * 3
    for turn, said in answered:
        assert_sampled_from(policy, turn.context, (said,))


def test_new_weights_enter_in_the_middle_and_the_encoder_stays(
    opened: tuple[Policy, VllmService | None], policy: Policy, original: dict[str, torch.Tensor], family: str
) -> None:
    torch.manual_seed(1)
    trained = {name for name, value in policy.model.named_parameters() if value.requires_grad}
    new = {n: v + 0.05 * torch.randn_like(v) if n in trained else v for n, v in original.items()}
    engine = open_engine(opened, kv="recompute", max_batch_sequences=2)
    # So many that vLLM's process, which waits for nobody, is still at work when it gets the weights.
    contexts = pictures_and_text(family) * 100
    _, service = opened
    process = service and service.running(lambda: False)[0]
    changed: list[tuple[Context, Sequence[Completion]]] = []
    swapped = False
    with closing(engine.stream(contexts, 2, Sampling(max_new_tokens=24), seed=3)) as stream:
        for index, group in stream:
            if not swapped:
                engine.swap(new, version=1)
                swapped = True
            assert not isinstance(group, Rejection)
            if any(span.version == 1 for said in group for span in said.versions):
                changed.append((contexts[index], group))
            if len(changed) == 5:
                break
    assert changed and policy.version == 1
    for context, group in changed:
        for said, logprobs in zip(group, expected(policy, context, group), strict=True):
            old = sum(span.num_tokens for span in said.versions if span.version == 0)
            # Larger weights than in the other tests: vLLM's rounding was 2.3e-4 for one token of 23.
            assert said.logprobs[old:] == pytest.approx(logprobs[old:], abs=1e-3)
    assert process is None or process.alive, "a crash is mended, and would not be seen otherwise"


def test_new_weights_enter_where_a_prefix_cache_held_the_pictures(
    opened: tuple[Policy, VllmService | None], policy: Policy, original: dict[str, torch.Tensor], family: str
) -> None:
    """Of many completions of a prompt only the first reads its pictures, and it is over when the weights come."""
    trained = {name for name, value in policy.model.named_parameters() if value.requires_grad}
    new = {name: 1.01 * value if name in trained else value for name, value in original.items()}
    engine = open_engine(opened, kv="recompute", max_batch_sequences=2)
    _, service = opened
    if service is None:
        pytest.skip("this engine keeps no prompts")
    process = service.running(lambda: False)[0]
    contexts = [readers.question(family, number % 3) for number in range(6)]
    for number, (_, group) in enumerate(engine.stream(contexts, 12, Sampling(max_new_tokens=24), seed=3)):
        assert not isinstance(group, Rejection)
        engine.swap(new, version=number + 1)
    assert process.alive, "a crash is mended, and would not be seen otherwise"


def test_what_a_policy_cannot_read_is_refused_and_the_others_go_on(
    engine: StreamingEngine, policy: Policy, family: str
) -> None:
    other = readers.medium("smolvlm" if family == "glmasr" else "glmasr")
    answers = engine.generate([(Message("user", (other, Text("What?"))),), "1 + 1"], 2, SHORT, seed=1)
    _assert_cannot_read(answers[0], other)
    assert len(answers[1]) == 2


def _assert_cannot_read(answer: Answers, medium: Media) -> None:
    assert isinstance(answer, Rejection) and answer.reason == Reason.CANNOT_PERCEIVE
    assert answer.detail.endswith("cannot read " + ("audio" if isinstance(medium, Audio) else "image"))


@pytest.mark.parametrize("engine_name", ["transformers"], scope="module")
def test_rows_that_lost_their_room_read_their_picture_again(
    opened: tuple[Policy, VllmService | None], policy: Policy, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts, long = pictures_and_text(family), Sampling(max_new_tokens=40)
    longest = max(len(policy.encode(context)) for context in contexts) + 40
    free = open_engine(opened).generate(contexts, 3, long, seed=1)
    admitted: list[int] = []
    step = Batch.step

    def watched(batch: Batch) -> list[object]:
        finished = step(batch)
        admitted.append(len(batch._scheduler.rows))
        return finished

    monkeypatch.setattr(Batch, "step", watched)
    tight = open_engine(opened, max_batch_tokens=max(2 * longest, 192)).generate(contexts, 3, long, seed=1)
    assert not any(isinstance(answers, Rejection) for answers in tight)
    assert any(after < before for before, after in zip(admitted, admitted[1:], strict=False))
    assert tokens(tight) == tokens(free)


def test_a_policy_that_reads_text_only_refuses_pictures() -> None:
    engine = TransformersEngine(random_policy(), GenerationSettings(vllm=VllmSettings()))
    question = readers.question("smolvlm", 0)
    answers = engine.generate([question, "1 + 1"], 2, SHORT, seed=1)
    _assert_cannot_read(answers[0], readers.medium("smolvlm", 0))
    assert len(answers[1]) == 2
