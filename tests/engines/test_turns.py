"""The turns of episodes: read once, kept while they may go on, and the same samples whether they were kept or not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch

from swarm.engines import base
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers import layout
from swarm.engines.transformers.batch import Batch, PrefixCache
from swarm.engines.transformers.engine import Requests, TransformersEngine
from swarm.engines.transformers.scheduler import Room, SequenceState
from swarm.engines.transformers.slots import Prefix
from swarm.policy.loading import Policy
from swarm.types import Completion, NextTurn, Past, Sampling, Step
from tests.engines.flow import Flowing
from tests.engines.models import ARCHITECTURES, make
from tests.engines.play import PROMPTS, SAMPLING, SHOWN, Play
from tests.engines.reference import teacher_forced
from tests.engines.test_transformers import _watch_passes


class Once(Play):
    """A single turn of an episode, of which nothing was read before."""

    def __init__(self, turn: NextTurn) -> None:
        super().__init__(1)
        self._ready = [turn]


def alone(policy: Policy, turn: NextTurn, seed: int = 3) -> Completion:
    """What an engine says that reads the whole past again."""
    ((_, said),) = Once(turn).run(TransformersEngine(policy, GenerationSettings()), seed)
    return said


def engine_for(policy: Policy, **settings: object) -> TransformersEngine:
    return TransformersEngine(policy, GenerationSettings(**settings))


@pytest.mark.parametrize(
    ("architecture", "attention"), [*((each, "sdpa") for each in ARCHITECTURES), ("gemma3", "eager")]
)
def test_what_was_kept_gives_the_same_samples_as_reading_it_again(architecture: str, attention: str) -> None:
    policy = make(architecture, attention)
    for turn, said in Play(4).run(engine_for(policy, max_batch_sequences=3)):
        assert said.token_ids == alone(policy, turn).token_ids
        expected = teacher_forced(policy, turn.context, said, SAMPLING)
        assert said.logprobs == pytest.approx(expected, abs=1e-4)


def test_every_token_is_read_once(policy: Policy) -> None:
    engine, shapes = engine_for(policy), []
    _watch_passes(engine, shapes.append)
    answered = Play(4).run(engine)
    played = [(len(policy.encode(turn.context)), len(said.token_ids)) for turn, said in answered if turn.number == 4]
    read = sum(rows * width for rows, width in shapes)
    assert read <= sum(map(sum, played)) - len(played), "nobody reads an episode's last token"
    assert read > 0.9 * sum(map(sum, played)), "episodes of one prompt share it"


@pytest.mark.parametrize(
    ("attention", "dtype"), [("sdpa", torch.float32), ("sdpa", torch.bfloat16), ("eager", torch.float32)]
)
def test_observations_are_read_in_the_pass_that_decodes_the_other_rows(attention: str, dtype: torch.dtype) -> None:
    """Where the model's attention can be replaced; another model reads them in a pass of their own."""
    policy, steps, passes = make("llama", attention), count(), count()
    policy.dtype = dtype
    engine = TransformersEngine(policy, GenerationSettings(), lambda: next(steps) < 0)
    _watch_passes(engine, lambda shape: next(passes) < 0)
    Play(4).run(engine)
    extra = next(passes) - next(steps) - 1  # one pass reads both prompts
    assert extra == 0 if attention == "sdpa" else extra > 0


def test_a_model_that_passes_nothing_on_to_its_attention_reads_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make("llama")
    expected = Play(2).run(engine_for(policy))
    forward = policy.model.model.forward
    monkeypatch.setattr(policy.model.model, "forward", lambda groups=None, **kwargs: forward(**kwargs))
    answered = Play(2).run(engine_for(policy))
    assert [said.token_ids for _, said in answered] == [said.token_ids for _, said in expected]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_long_observations_are_read_in_several_passes(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Play(3).run(engine_for(make("mistral", attention)))
    monkeypatch.setattr(layout, "READ_TOKENS", 20)
    answered = Play(3).run(engine_for(make("mistral", attention)))
    assert [said.token_ids for _, said in answered] == [said.token_ids for _, said in expected]


def test_only_what_is_new_of_a_past_is_tokenized(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"encode_prompt": 0, "encode_observation": 0}

    def counted(name: str) -> Callable[..., list[int]]:
        encode = getattr(policy, name)

        def call(*args: object) -> list[int]:
            calls[name] += 1
            return encode(*args)

        return call

    for name in calls:
        monkeypatch.setattr(policy, name, counted(name))
    Play(4).run(engine_for(policy))
    assert calls == {"encode_prompt": len(PROMPTS), "encode_observation": 4 * 3}


def test_a_past_that_is_another_is_tokenized_anew(policy: Policy) -> None:
    requests = Requests(policy, SAMPLING, 0, Room(4, 4096))
    pasts = [Past(prompt, (Step((7, 8), SHOWN),) * steps) for prompt, steps in (("a", 1), ("a", 3), ("b", 3), ("b", 1))]
    for number, past in enumerate(pasts):
        sequence = requests.turn(NextTurn(0, number + 2, past))
        assert isinstance(sequence, SequenceState) and sequence.prompt == policy.encode(past)


def test_episodes_of_one_prompt_share_its_reading(policy: Policy) -> None:
    engine, shapes = engine_for(policy), []
    _watch_passes(engine, shapes.append)
    Play(1).run(engine)
    assert [shape[0] for shape in shapes if shape[1] > 1] == [2]


def test_a_call_keeps_the_slots_busy_and_reads_several_prompts_at_a_time(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths are geometric: a batch of 16 in turn with the next leaves nearly half of the slots empty."""
    sampling, prompts, slots = Sampling(max_new_tokens=200, stop=("a", "b")), PROMPTS * 32, 16
    used: list[int] = []
    step = Batch.step

    def counting(batch: Batch) -> list[SequenceState]:
        finished = step(batch)
        used.append(len(batch._scheduler.rows))
        return finished

    monkeypatch.setattr(Batch, "step", counting)

    def busy(batches: int) -> float:
        size = len(prompts) // batches
        flowing = Flowing(engine_for(policy, max_batch_sequences=slots), prompts, 2, sampling, slots)
        used.clear()
        for batch in range(1, batches + 1):
            flowing.allowed = batch * size
            assert len(flowing.results()) == size
        most = len(used) if batches > 1 else max(k for k, rows in enumerate(used) if rows == slots)
        return sum(used[:most]) / (slots * most)

    shapes: list[tuple[int, ...]] = []
    flowing, drained = busy(1), busy(8)
    assert flowing > 0.98 and drained < 0.7, (flowing, drained)
    _watch_passes(engine := engine_for(policy, max_batch_sequences=slots), shapes.append)
    Flowing(engine, [f"{prompt} {k}" for k, prompt in enumerate(prompts)], 2, sampling, slots).results()
    reads = [shape for shape in shapes if shape[1] > 1]
    assert len(reads) <= len(prompts) / 2


def test_what_is_remembered_of_a_long_call_is_bounded(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_RECENT", 3)
    answered = Play(4).run(engine_for(policy))
    monkeypatch.undo()
    assert [said.token_ids for _, said in answered] == [said.token_ids for _, said in Play(4).run(engine_for(policy))]


def test_kept_reading_stays_within_the_budget_and_what_is_dropped_is_read_again(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    step = Batch.step

    def watched(batch: Batch) -> list[object]:
        finished = step(batch)
        slots = batch._cache.layers[0].keys
        sizes.append(batch._prefixes.num_tokens + slots.shape[0] * slots.shape[2])
        return finished

    free = Play(4).run(engine_for(policy))
    monkeypatch.setattr(Batch, "step", watched)
    tight = Play(4).run(engine_for(policy, max_batch_tokens=256))
    assert max(sizes) <= 256
    assert [said.token_ids for _, said in tight] == [said.token_ids for _, said in free]


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_after_a_change_of_weights_a_turn_reads_its_past_with_the_new_ones(policy: Policy, kv: str) -> None:
    """Also where the change came in the middle of the turn before."""
    torch.manual_seed(1)
    new = {name: value + 0.05 * torch.randn_like(value) for name, value in policy.model.state_dict().items()}
    steps = iter(range(10**6))

    def between_steps() -> bool:
        if next(steps) == 15:
            engine.swap(new, version=1)
        return False

    engine = TransformersEngine(policy, GenerationSettings(kv=kv), between_steps)
    answered = Play(4).run(engine)
    assert {len(said.versions) for _, said in answered} == {1, 2}
    late = [(turn, said) for turn, said in answered if said.versions[0].version == 1 and turn.number > 1]
    assert late and policy.version == 1
    for turn, said in late:
        assert said.logprobs == pytest.approx(teacher_forced(policy, turn.context, said, SAMPLING), abs=1e-4)


def test_memory_that_runs_out_drops_what_was_kept_and_changes_nothing(policy: Policy) -> None:
    engine = engine_for(policy)
    expected = [said.token_ids for _, said in Play(3).run(engine)]
    passes = count()

    def fail_once(shape: torch.Size) -> None:
        if next(passes) == 25:
            raise torch.OutOfMemoryError("injected")

    _watch_passes(engine, fail_once)
    assert [said.token_ids for _, said in Play(3).run(engine)] == expected
    assert next(passes) > 25


def prefix(length: int) -> Prefix:
    return Prefix([], length)


def test_the_oldest_is_dropped_first_and_only_what_continues_is_found() -> None:
    kept = PrefixCache()
    for episode in range(3):
        kept.put(episode, [episode, 7], prefix(2))
    assert kept.num_tokens == 6
    kept.shrink(5)
    assert 0 not in kept and kept.num_tokens == 4
    assert kept.take(1, [1, 8, 9]) is None and 1 not in kept, "other tokens are another past"
    assert kept.take(2, [2, 7, 9]) == prefix(2)
    assert kept.num_tokens == 0
    kept.put(4, [1], prefix(1))
    kept.put(4, [1, 2], prefix(2))
    kept.put(5, [1], prefix(1))
    kept.retain({5})
    assert kept.num_tokens == 1 and 5 in kept
    kept.clear()
    assert kept.num_tokens == 0
