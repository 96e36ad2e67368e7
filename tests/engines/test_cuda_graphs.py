"""Recorded decode steps, on a recorder that repeats operations on the same memory as a CUDA graph does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.batch import LOST_SHARE
from swarm.engines.transformers.cuda_graphs import Record, Work
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.engine import TransformersEngine, logit_copies
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import release_unused
from swarm.policy.weights import swap_weights
from swarm.types import Completion, Rejection, Sampling
from tests.engines.models import make, random_policy

PROMPTS = ["3 * 5", "What is the greatest common divisor of 12 and 18?", "Calculate 12 + 7.", "9 - 4"]
SAMPLING = Sampling(max_new_tokens=70, temperature=0.8)
"""More than a block of the cache."""
NUM_ROWS = 5


class Tape(TorchDispatchMode):
    """What was computed, by which operations, from and into which memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., object], tuple[object, ...], dict[str, object], list[object]]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tree_leaves(out)))
        return out

    def replay(self) -> None:
        for func, args, kwargs, before in self.calls:
            for old, new in zip(before, tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@dataclass
class Recorder:
    """Starts recordings, and counts."""

    tapes: list[weakref.ref[Tape]] = field(default_factory=list)
    num_replays: int = 0

    def __call__(self) -> Record:
        return self._record

    def _record(self, work: Work) -> Work:
        tape = Tape()
        with tape:
            work()
        self.tapes.append(weakref.ref(tape))

        def replay() -> None:
            self.num_replays += 1
            tape.replay()

        return replay


def refusing() -> Record:
    """As CUDA refuses a model that looks at its numbers."""

    def record(work: Work) -> Work:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\n")

    return record


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """What engines record with, as if they were on a GPU."""
    recorder = Recorder()
    with monkeypatch.context() as patch:
        _record_with(patch, recorder)
        yield recorder


def _record_with(patch: pytest.MonkeyPatch, recorder: Callable[[], Record]) -> None:
    patch.setattr("swarm.engines.transformers.engine.cuda_recorder", lambda device: recorder)
    patch.setattr(GenerationSettings, "records", lambda self, device: self.cuda_graphs)


def engine_of(
    policy: Policy, recorded: bool = True, cancelled: Callable[[], bool] = lambda: False
) -> TransformersEngine:
    settings = GenerationSettings(max_batch_sequences=NUM_ROWS, cuda_graphs=recorded)
    return TransformersEngine(policy, settings, cancelled)


def generated(engine: TransformersEngine) -> list[Completion]:
    answers = engine.generate(PROMPTS, 3, SAMPLING, seed=5)
    return [completion for group in answers if not isinstance(group, Rejection) for completion in group]


def move(policy: Policy, version: int) -> None:
    """Change the weights, as an update does."""
    swap_weights(policy, {name: value + 0.01 for name, value in policy.weights.items()}, version)


@dataclass
class Moving:
    """What an engine asks whether it is cancelled: never, but the weights change at one of the times."""

    policy: Policy
    at: int
    times: int = 0

    def __call__(self) -> bool:
        self.times += 1
        if self.times == self.at:
            move(self.policy, 1)
        return False


def assert_same(found: list[Completion], expected: list[Completion]) -> None:
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2", "mistral", "gemma3"])
def test_replayed_steps_sample_what_the_model_would(architecture: str, recorder: Recorder) -> None:
    """Rows of unequal length, refilled, fewer at the end, over the border of a block."""
    policy = make(architecture)
    found = generated(engine_of(policy))
    assert len(found) == 3 * len(PROMPTS)
    assert recorder.num_replays > 100 > 2 * len(recorder.tapes)
    assert_same(found, generated(engine_of(policy, recorded=False)))


def test_in_half_precision_the_copy_for_generation_is_recorded(recorder: Recorder) -> None:
    policy = make("llama")
    policy.dtype = torch.bfloat16
    found = generated(engine_of(policy))
    assert recorder.num_replays > 100
    expected = generated(engine_of(policy, recorded=False))
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs[0] == pytest.approx(other.logprobs[0], abs=0.1), "batches of other sizes round otherwise"


@pytest.mark.parametrize("at_step", [1, 2, 30])
def test_weights_that_change_between_steps_are_followed(
    at_step: int, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.engines.transformers.decoder.MOST_STEPS", 1)  # so that both change at the same token

    def completions(recorded: bool) -> list[Completion]:
        policy = make("llama")
        return generated(engine_of(policy, recorded, cancelled=Moving(policy, at_step)))

    found = completions(recorded=True)
    assert any(span.version == 1 for each in found for span in each.versions)
    assert_same(found, completions(recorded=False))


def test_several_steps_follow_one_another_and_end_where_completions_do(recorder: Recorder) -> None:
    """A completion has no token beyond its end, and the weights change only between such sequences of steps."""
    policy = make("llama")
    moving = Moving(policy, at=5)
    found = generated(engine_of(policy, cancelled=moving))
    assert moving.times < 3 * 70 / 2, "several tokens between two looks at the world"
    assert {len(each.token_ids) for each in found if each.finish_reason == "length"} == {70}
    first = [each.versions[0].num_tokens for each in found if len(each.versions) > 1]
    assert first and all(num % (1 + 70 // LOST_SHARE) == 0 for num in first)


def test_recordings_are_of_use_for_the_next_round_after_an_update(recorder: Recorder) -> None:
    policy = make("llama")
    engine, rounds = engine_of(policy), []
    for version in range(1, 4):
        rounds.append(generated(engine))
        num_tapes = len(recorder.tapes)
        move(policy, version)
        if version == 2:
            few = num_tapes
    assert num_tapes == few, "the third round needs no new ones"
    other = make("llama")
    for version, found in enumerate(rounds, start=1):
        assert_same(found, generated(engine_of(other, recorded=False)))
        move(other, version)


def test_recordings_are_of_one_distribution(recorder: Recorder) -> None:
    policy = make("llama")
    engine, plain = engine_of(policy), engine_of(policy, recorded=False)
    for sampling in (SAMPLING, Sampling(max_new_tokens=20, top_k=3), Sampling(max_new_tokens=30, top_p=0.5), SAMPLING):
        both = [each.generate(PROMPTS, 3, sampling, 7) for each in (engine, plain)]
        ids = [[one.token_ids for group in answers for one in group] for answers in both]  # type: ignore[union-attr]
        assert ids[0] == ids[1]


@pytest.mark.parametrize("how", ["the engine ends", "memory is needed"])
def test_recordings_and_their_memory_go_with_the_cache(recorder: Recorder, how: str) -> None:
    engine = engine_of(make("llama"))
    generated(engine)
    gc.collect()
    assert any(tape() for tape in recorder.tapes)
    if how == "memory is needed":
        release_unused()
    else:
        del engine
    gc.collect()
    assert recorder.tapes and not any(tape() for tape in recorder.tapes)


def test_a_large_cache_is_not_kept(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(make("llama"))
    monkeypatch.setattr("swarm.engines.transformers.decoder.free_bytes", lambda device: 10_000)
    generated(engine)
    gc.collect()
    assert recorder.tapes and not any(tape() for tape in recorder.tapes)


def test_a_model_that_cannot_be_recorded_is_decoded_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = make("qwen3_moe")
    _record_with(monkeypatch, refusing)
    found = generated(engine_of(policy))
    assert [record.getMessage() for record in caplog.records if "CUDA graphs" in record.getMessage()] == [
        "qwen3_moe decodes without CUDA graphs: CUDA error: operation not permitted when stream is capturing"
    ]
    assert_same(found, generated(engine_of(policy, recorded=False)))


def test_a_model_whose_replayed_step_differs_is_decoded_without(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tape, "replay", lambda self: None)
    assert Decoder(make("llama"), recorder)._recorded_step is None


def test_without_memory_for_a_recording_fewer_rows_are_decoded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make("llama")
    engine = engine_of(policy)
    record, widths = Recorder._record, []

    def without_memory(self: Recorder, work: Work) -> Work:
        widths.append(work.args[1].layout.ids.shape[0])  # type: ignore[attr-defined]
        if widths[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return record(self, work)

    monkeypatch.setattr(Recorder, "_record", without_memory)
    found = generated(engine)
    assert widths[0] > 2 and min(widths) <= 2
    assert_same(found, generated(engine_of(policy, recorded=False)))


def test_the_fused_step_is_for_devices_that_do_not_record(recorder: Recorder) -> None:
    assert Decoder(random_policy(), recorder)._fused is None
    assert Decoder(random_policy())._fused is not None


def test_memory_for_recordings_is_set_aside_where_they_are_made() -> None:
    settings = GenerationSettings()
    assert logit_copies(settings, "cpu") == logit_copies(GenerationSettings(cuda_graphs=False), "cuda")
    assert logit_copies(settings, "cuda") > logit_copies(settings, "cpu")
