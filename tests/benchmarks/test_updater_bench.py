"""The updater's benchmark: its batch, its memory, and one real update of both sides that must come to the same."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.updater import workload
from benchmarks.updater.__main__ import OURS, Plan, Run, Tried, gpu, largest_difference, trl
from benchmarks.updater.memory import PeakMemory
from benchmarks.updater.spec import Spec
from benchmarks.updater.workload import BATCH, MODEL, Workload, read_batch, write

MIB = 2**20
SHORT = Workload("0.13 M", sequences=16, median=12, longest=24)


def test_completions_are_long_tailed_and_a_larger_batch_is_only_larger() -> None:
    lengths = Workload("0.13 M").lengths
    assert len(lengths) == 64 and max(lengths) == 512
    assert statistics.median(lengths) == pytest.approx(96, rel=0.02)
    assert statistics.mean(lengths) > 1.2 * 96, "the tail is long"
    assert Workload("0.13 M", 128).lengths == 2 * lengths
    assert set(Workload("0.5 B", 64, 960, 960).lengths) == {960}


def test_a_workload_is_what_it_says_and_the_same_each_time(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    flops = [write(SHORT, folder) for folder in (first, again)]
    assert flops[0] == flops[1] > 0
    assert (first / BATCH).read_bytes() == (again / BATCH).read_bytes()
    weights = [(folder / MODEL / "model.safetensors").read_bytes() for folder in (first, again)]
    assert weights[0] == weights[1]
    groups = read_batch(first)
    completions = [completion for group in groups for completion in group.group.completions]
    assert [len(completion.token_ids) for completion in completions] == SHORT.lengths
    assert all(len(completion.logprobs) == len(completion.token_ids) for completion in completions)
    assert all(len(set(group.rewards)) == 2 for group in groups), "every group teaches"
    assert len({group.prompt for group in groups}) == 2


def test_the_operations_of_an_update_are_those_that_torch_counts() -> None:
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=96,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            tie_word_embeddings=True,
            attn_implementation="eager",
        )
    )
    tokens, completion = 40, 24
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, tokens, dtype=torch.long), logits_to_keep=completion).logits.sum().backward()
    masked = 6 * 2 * 32 * tokens**2  # the half of the attention that eager code computes in vain
    counted = counter.get_total_flops() - masked
    assert workload._flops(model, tokens - completion, completion) == pytest.approx(counted, rel=0.02)


def test_peak_memory_is_what_was_held_at_once_above_the_start() -> None:
    memory = PeakMemory("cpu")
    for _ in range(3):
        held = torch.ones(32 * MIB // 4)
        del held
    assert 30 * MIB < memory.bytes() < 48 * MIB


def test_the_fastest_and_the_leanest_setting_are_found_among_those_that_ran() -> None:
    quick, lean = trl(16, checkpointing=False), trl(1, checkpointing=True)
    tried = Tried({quick: Run(9.0, 1.0, 100 * MIB), lean: Run(3.0, 2.0, 10 * MIB)}, ["batch 64: out of memory"])
    assert (tried.fastest, tried.leanest) == (quick, lean)
    note = tried.note("this")
    assert "batch 1, checkpointing: 3 s (2 s of CPU), 10 MiB; batch 64: out of memory." in note


def test_a_spec_survives_the_command_line() -> None:
    spec = Spec("folder", threads=2, settings=dict(trl(4, checkpointing=True).settings))
    assert Spec.read(spec.as_argument()) == spec


def test_without_a_gpu_its_rows_say_so(tmp_path: Path) -> None:
    rows, notes = gpu(Plan(quick=True, repeats=1, threads=1, device="cpu", folder=tmp_path))
    assert [each.value for each in rows] == [None] and "--device cuda" in notes[0]


@pytest.mark.slow
def test_both_sides_come_to_the_same_parameters(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is part of the extra `dev`")
    folder = tmp_path / "workload"
    write(SHORT, folder)
    plan = Plan(quick=True, repeats=1, threads=1, device="cpu", folder=tmp_path)
    sides = [OURS, trl(4, checkpointing=False)]
    for side in sides:
        run = plan.run(side, folder, updates=1, parameters_to=folder / f"{side.name}.pt")
        assert run.seconds > 0 and run.cpu_seconds > 0 and run.peak_bytes > 0
    assert largest_difference(folder, sides) < 1e-5
