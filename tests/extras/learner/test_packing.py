from __future__ import annotations

import errno
import math
import os
import resource
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, strategies as st

from swarm.errors import EngineError, SnapshotError, WeightsRefused
from swarm.extras.learner.packing import (
    DTYPES,
    SCALE,
    Precision,
    SnapshotWeights,
    pack_weights,
    read_snapshot,
    whole_weights,
)
from swarm.extras.learner.snapshots import store
from swarm.extras.learner.snapshots.store import apply_delta
from swarm.files import RandomAccessFile
from swarm.policy import weights as weights_module
from swarm.policy.adapters import quantize_int8
from swarm.policy.loading import Policy
from swarm.policy.weights import check_weights, swap_weights
from tests.extras.learner.hostile_snapshots import HOSTILE
from tests.extras.learner.snapshot_files import applied, delta_of, held, packed, unpacked


def weights(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}
    return {**made, "steps": torch.tensor([3, 4])}


SHAPES = {"embed": (50, 16), "layer.weight": (16, 48), "layer.bias": (48,), "odd": (7,)}


@pytest.mark.parametrize("precision", ["native", "bfloat16", "int8"])
def test_a_snapshot_has_the_bytes_that_safetensors_writes(precision: Precision) -> None:
    made = {**weights(), "empty": torch.zeros(0), "one": torch.tensor(1.5), "flags": torch.tensor([True, False])}
    made |= {str(dtype): torch.ones(3, 2).to(dtype) for dtype in DTYPES.values()} | {'"\u00e9\n': torch.zeros(1)}
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in made.items():
        if precision == "native" or not tensor.is_floating_point():
            stored[name] = tensor
        elif precision == "int8" and tensor.ndim >= 2:
            stored[name], stored[name + SCALE] = quantize_int8(tensor)
        else:
            stored[name] = tensor.bfloat16()
    assert packed(made, precision) == safetensors.torch.save(stored)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_native_snapshots_keep_every_bit(dtype: torch.dtype) -> None:
    before = weights(dtype=dtype)
    after = unpacked(packed(before))
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) and after[name].dtype == before[name].dtype for name in before)


def test_equal_weights_have_equal_bytes_whatever_their_order_and_ties() -> None:
    made = weights()
    tied = {**made, "head": made["embed"]}
    untied = {"head": made["embed"].clone(), **dict(reversed(made.items()))}
    assert packed(tied) == packed(untied)
    transposed = {**made, "layer.weight": made["layer.weight"].t().contiguous().t()}
    assert packed(transposed) == packed(made)


def test_bfloat16_rounds_floats_and_leaves_the_rest() -> None:
    before = weights()
    after = unpacked(packed(before, "bfloat16"))
    assert torch.equal(after["steps"], before["steps"])
    assert all(torch.equal(after[name], before[name].bfloat16()) for name in SHAPES)


def test_int8_is_within_half_a_step_of_each_row_and_a_quarter_of_the_size() -> None:
    before = {
        "big": torch.randn(64, 512) * torch.logspace(-3, 3, 64)[:, None],
        "zero": torch.zeros(3, 3),
        "bias": torch.randn(5),
    }
    content = packed(before, "int8")
    after = unpacked(content)
    step = before["big"].abs().amax(dim=1, keepdim=True) / 127
    assert ((after["big"] - before["big"]).abs() <= step / 2 * 1.0001).all()
    assert torch.equal(after["zero"], before["zero"]) and after["bias"].dtype == torch.bfloat16
    assert len(content) < 0.3 * len(packed(before))


@given(st.binary(min_size=1, max_size=100), st.randoms(use_true_random=False))
def test_any_bytes_come_back_from_their_delta(new: bytes, random: object) -> None:
    parent = bytes((byte + 3) % 256 for byte in new)
    change = delta_of(new, parent)
    assert change is not None and applied(change, parent, 8) == applied(change, parent, 7) == new


def test_a_small_step_makes_a_small_delta() -> None:
    before = {"w": torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).bfloat16()}
    after = {"w": (before["w"].float() * (1 + 1e-3 * torch.randn(512, 512))).bfloat16()}
    change = delta_of(packed(after), packed(before))
    assert change is not None and applied(change, packed(before)) == packed(after)
    assert len(change) < 0.4 * len(packed(after))
    assert len(delta_of(packed(before), packed(before)) or b"") < 200


def test_a_step_of_1e_6_takes_a_thirtieth_of_the_bytes_in_bfloat16() -> None:
    """Weights and step as in training: most steps are below the spacing of bfloat16, and none below that of float32."""
    generator = torch.Generator().manual_seed(0)
    before = {"w": 0.02 * torch.randn(512, 1024, generator=generator)}
    after = {"w": before["w"] - 1e-6 * torch.randn(512, 1024, generator=generator).sign()}
    taken = {}
    for precision in ("native", "bfloat16"):
        change = delta_of(packed(after, precision), packed(before, precision))
        assert change is not None
        taken[precision] = len(change) / before["w"].numel()
    assert taken["bfloat16"] < 0.1 and taken["native"] > 1.5


def test_other_shapes_have_no_delta_and_false_ones_are_refused() -> None:
    first, second = packed(weights()), packed({**weights(), "more": torch.zeros(3)})
    assert delta_of(first, second) is None
    change = delta_of(first, first)
    assert change is not None
    for bad, parent in ((change, second), (b"noise", first), (change[:-3], first), (b"", first)):
        with pytest.raises(SnapshotError):
            applied(bad, parent)
    for bad in (b"", b"noise", first[:-5]):
        with pytest.raises(SnapshotError):
            unpacked(bad)


def test_a_delta_that_holds_more_than_it_says_takes_no_more_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BLOCK_BYTES", 4_096)
    num_bytes, zeros = 3 * 4_096, ((1_024 << 3) | 2).to_bytes(3, "little") + b"\0"  # a block of 1 KiB
    frame = b"\x28\xb5\x2f\xfd\x80\0" + num_bytes.to_bytes(4, "little") + 500 * zeros + (1).to_bytes(3, "little")
    written = list[int]()
    write = RandomAccessFile.write

    def counted(file: RandomAccessFile, start: int, content: bytes) -> None:
        written.append(len(content))
        write(file, start, content)

    change, parent = held(frame), held(bytes(num_bytes))
    monkeypatch.setattr(RandomAccessFile, "write", counted)
    with pytest.raises(SnapshotError):
        list(apply_delta(change, parent, 1_024))
    assert sum(written) <= num_bytes


@pytest.mark.parametrize("what", HOSTILE)
def test_whatever_a_snapshot_says_is_a_refusal_in_one_line(what: str) -> None:
    """The first ended a follower; the second and the third would be 3.6 GB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SnapshotError) as refused:
        unpacked(HOSTILE[what])
    assert str(refused.value).isprintable() and len(str(refused.value)) < 700
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, "kB"


def test_a_snapshot_of_another_model_is_refused_before_it_is_read(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = whole_weights(policy)
    name, value = next((name, value) for name, value in own.items() if value.ndim == 2)
    others = {
        "must have the shape": {**own, name: value[:-1].clone()},
        "belong to another model": {**own, "more": torch.zeros(2)},
        f"lack {name}": {each: value for each, value in own.items() if each != name},
    }
    tied = {each: torch.zeros(3, 3, 3) for each in policy.model.state_dict() if each not in own}
    others |= {f"{each} must have the shape": {**own, each: value} for each, value in tied.items()}
    contents = {said: packed(weights, "int8") for said, weights in others.items()}
    monkeypatch.setattr(SnapshotWeights, "__getitem__", lambda *name: pytest.fail("it was read"))
    for said, content in contents.items():
        with pytest.raises(WeightsRefused, match=said):
            read_snapshot(policy, held(content))


def test_a_file_that_shrinks_while_it_is_installed_leaves_no_policy_of_two_versions_in_use(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {name: value.clone() for name, value in whole_weights(policy).items()}
    file = held(packed(own), tmp_path)

    def check(checked: Policy, weights: SnapshotWeights) -> None:
        check_weights(checked, weights)
        os.truncate(file.path, file.size // 2)

    monkeypatch.setattr(weights_module, "check_weights", check)
    with pytest.raises(EngineError, match="only a part of version 1: .* its file ends in") as failed:
        swap_weights(policy, read_snapshot(policy, file), 1)
    assert not isinstance(failed.value, WeightsRefused), "which would leave the policy in use"


@pytest.mark.parametrize("precision", ["native", "bfloat16", "int8"])
def test_a_snapshot_of_this_model_is_read_and_one_that_is_not_finite_refused(
    policy: Policy, precision: Precision
) -> None:
    own = {name: value.clone() for name, value in whole_weights(policy).items()}
    swap_weights(policy, read_snapshot(policy, held(packed(own, precision))), 1)
    name = next(name for name, value in own.items() if value.ndim == 2)
    own[name][0, 0] = math.inf
    with pytest.raises(WeightsRefused, match="finite"):
        swap_weights(policy, read_snapshot(policy, held(packed(own, precision))), 2)
    assert policy.version == 1


def test_a_full_disk_leaves_no_file_and_no_rank_waiting(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[torch.Tensor] = []
    monkeypatch.setattr(policy.ranks, "whole", lambda tensor: gathered.append(tensor) or tensor, raising=False)
    write = RandomAccessFile.write

    def full(file: RandomAccessFile, start: int, content: bytes) -> None:
        if start > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, start, content)

    monkeypatch.setattr(RandomAccessFile, "write", full)
    with pytest.raises(OSError, match="No space left on device"):
        pack_weights(policy, tmp_path / "snapshot", "bfloat16")
    assert not list(tmp_path.iterdir()) and len(gathered) == len(policy.weights), "every rank gives all of its shards"


def test_weights_are_read_from_a_deleted_file_as_long_as_they_are_used(policy: Policy, tmp_path: Path) -> None:
    pack_weights(policy, tmp_path / "snapshot", "native")
    read = read_snapshot(policy, RandomAccessFile(tmp_path / "snapshot"))
    (tmp_path / "snapshot").unlink()
    assert all(torch.equal(read[name], value) for name, value in policy.weights.items())
