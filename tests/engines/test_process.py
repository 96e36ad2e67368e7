"""Generation in another process: the same completions, weights that arrive in the middle, and every way it can end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import psutil
import pytest
import torch
from transformers import Qwen3ForCausalLM

from swarm.engines.config import GenerationSettings
from swarm.engines.process.engine import ProcessEngine
from swarm.engines.transformers.engine import TransformersEngine
from swarm.errors import EngineError, Interrupted, SamplingError, WeightsRefused
from swarm.policy.config import PolicySettings
from swarm.policy.loading import Policy
from swarm.policy.tiny import tiny_config, tiny_tokenizer
from swarm.types import NextTurn, Rejection, Sampling, Text
from tests.engines import flooding_worker
from tests.engines.flow import Flowing, Results, answered, tokens
from tests.engines.models import make
from tests.engines.play import Play
from tests.engines.reference import teacher_forced

pytestmark = pytest.mark.slow

PROMPTS = ["Calculate 12 + 7.", "Solve for x: 2*x = 4", "a much longer prompt than the others, in single letters"]
LONG_S = 300.0
SETTINGS = GenerationSettings(max_batch_sequences=8)


class Asked:
    """Whether to stop, as a test says."""

    stop = False

    def __call__(self) -> bool:
        return self.stop


def _random() -> Policy:
    torch.manual_seed(0)
    return Policy("random", Qwen3ForCausalLM(tiny_config()), tiny_tokenizer(), system_prompt=None)


@pytest.fixture(scope="module")
def trained() -> Policy:
    return _random()


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


@pytest.fixture(scope="module")
def engine(trained: Policy, asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessEngine]:
    """One for all tests: each process takes seconds to start."""
    directory: Path = tmp_path_factory.mktemp("policy")
    trained.save(directory)
    engine = ProcessEngine(trained, PolicySettings(model=str(directory), system_prompt="", threads=1), SETTINGS, asked)
    yield engine
    engine.close()
    assert not psutil.pid_exists(engine.pid)


def test_it_gives_what_an_engine_in_this_process_gives(engine: ProcessEngine, trained: Policy) -> None:
    sampling = Sampling(max_new_tokens=20, temperature=0.8)
    expected = TransformersEngine(trained, SETTINGS).generate([*PROMPTS, ""], 4, sampling, seed=3)
    assert engine.generate([*PROMPTS, ""], 4, sampling, seed=3) == expected


def test_it_takes_turns_as_they_become_ready(engine: ProcessEngine, trained: Policy) -> None:
    expected = [said for _, said in Play(4).run(TransformersEngine(trained, SETTINGS))]
    assert [said.token_ids for _, said in Play(4).run(engine)] == [said.token_ids for said in expected]
    unfinished = engine.stream((), 1, Sampling(max_new_tokens=8), 0, Play(4))
    next(unfinished)
    unfinished.close()
    assert [said.token_ids for _, said in Play(4).run(engine)] == [said.token_ids for said in expected]


def test_questions_flow_into_a_call_that_is_open(engine: ProcessEngine, trained: Policy) -> None:
    sampling, prompts = Sampling(max_new_tokens=20), PROMPTS * 5
    expected = Flowing(TransformersEngine(trained, SETTINGS), prompts, 2, sampling, slots=30).results()
    flowing = Flowing(engine, prompts, 2, sampling, slots=6)
    flowing.allowed = 7
    results: Results = {}
    with closing(flowing.flow.play()) as games:
        results |= [answered(*next(games))]
    flowing.allowed = 8
    for game in flowing.flow.play():
        results |= [answered(*game)]
        flowing.allowed = len(prompts)  # the bound moves while the call is open
    assert tokens(results) == tokens(expected)


def test_new_weights_enter_between_two_tokens(engine: ProcessEngine, trained: Policy) -> None:
    prompts, sampling = PROMPTS * 8, Sampling(max_new_tokens=64)
    other = _random()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.02)
    stream = engine.stream(prompts, 4, sampling, seed=1)
    answers = dict([next(stream)])
    engine.swap(other.weights, version=5)
    answers |= stream
    spans = {tuple(span.version for span in c.versions) for group in answers.values() for c in group}
    assert {(0,), (0, 5), (5,)} <= spans
    for prompt, group in zip(prompts, (answers[i] for i in range(len(prompts))), strict=True):
        for completion in group:
            if [span.version for span in completion.versions] == [5]:
                expected = teacher_forced(other, prompt, completion, sampling)
                assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    engine.swap(trained.weights, version=0)


def test_weights_of_another_model_are_refused_and_change_nothing(engine: ProcessEngine) -> None:
    sampling = Sampling(max_new_tokens=8)
    before = engine.generate(PROMPTS, 2, sampling, 0)
    with pytest.raises(WeightsRefused, match="belong to another model"):
        engine.swap(make("gpt2").weights, version=9)
    assert engine.generate(PROMPTS, 2, sampling, 0) == before


def test_it_can_be_stopped_in_the_middle_and_used_again(engine: ProcessEngine, asked: Asked) -> None:
    sampling = Sampling(max_new_tokens=400)
    expected = engine.generate(PROMPTS, 2, Sampling(max_new_tokens=8), 0)
    stream = engine.stream(PROMPTS * 50, 8, sampling, 0)
    next(stream)
    stream.close()
    assert engine.generate(PROMPTS, 2, Sampling(max_new_tokens=8), 0) == expected
    asked.stop = True
    with pytest.raises(Interrupted):
        engine.generate(PROMPTS * 50, 8, sampling, 0)
    asked.stop = False
    assert engine.generate(PROMPTS, 2, Sampling(max_new_tokens=8), 0) == expected


def test_it_can_be_stopped_while_the_process_reads_nothing(engine: ProcessEngine, asked: Asked) -> None:
    expected = engine.generate(PROMPTS, 2, Sampling(max_new_tokens=8), 0)
    psutil.Process(engine.pid).suspend()
    stream = Thread(target=lambda: engine.generate(["x" * 2**20] * 8, 2, Sampling(), 0), daemon=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("threading.excepthook", lambda raised: ended.append(raised.exc_type))
        ended: list[type[BaseException] | None] = []
        stream.start()
        asked.stop = True
        stream.join(LONG_S)
    psutil.Process(engine.pid).resume()
    asked.stop = False
    assert ended == [Interrupted]
    assert engine.generate(PROMPTS, 2, Sampling(max_new_tokens=8), 0) == expected


def test_errors_of_sampling_come_back_by_name(engine: ProcessEngine) -> None:
    with pytest.raises(SamplingError, match="im_end"):
        engine.generate(PROMPTS, 2, Sampling(stop_tokens=("<|im_end|>",)), 0)
    assert isinstance(engine.generate(["x" * 600], 2, Sampling(), 0)[0], Rejection)


def test_the_end_of_the_process_is_an_error_that_says_so(engine: ProcessEngine, trained: Policy) -> None:
    stream = engine.stream(PROMPTS * 50, 8, Sampling(max_new_tokens=400), 0)
    next(stream)
    psutil.Process(engine.pid).kill()
    with pytest.raises(EngineError, match="exited with -9"):
        list(stream)
    with pytest.raises(EngineError, match="exited with -9"):
        engine.swap(trained.weights, version=1)


@pytest.fixture
def flooding(trained: Policy, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessEngine]:
    monkeypatch.setattr("swarm.engines.process.engine.WORKER", flooding_worker.__name__)
    with closing(ProcessEngine(trained, PolicySettings(), SETTINGS)) as engine:
        yield engine


def at_length(turn: NextTurn) -> tuple[Text, ...]:
    return (Text("x" * 2**15),)


def test_many_long_answers_and_turns_at_once_hold_neither_side_up(flooding: ProcessEngine) -> None:
    episodes = Play(flooding_worker.NUM_TURNS, prompts=PROMPTS * 8, shown=at_length)
    playing = Thread(target=episodes.run, args=(flooding,), daemon=True)
    playing.start()
    playing.join(LONG_S)
    assert len(episodes.answered) == flooding_worker.NUM_TURNS * episodes.num_episodes


def test_new_weights_do_not_wait_for_whoever_reads_the_answers(flooding: ProcessEngine, trained: Policy) -> None:
    unread = flooding.stream((), 1, Sampling(), 0, Play(flooding_worker.NUM_TURNS, prompts=PROMPTS * 8))
    next(unread)
    swaps = Thread(target=lambda: [flooding.swap(trained.weights, version) for version in (1, 2, 3)], daemon=True)
    swaps.start()
    swaps.join(LONG_S)
    assert not swaps.is_alive()


def test_the_process_has_no_secret(trained: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, "secret")
    with closing(ProcessEngine(trained, PolicySettings(), SETTINGS)) as engine:
        assert "secret" not in psutil.Process(engine.pid).environ().values()
