"""Adapters beside matrices of 8 and 4 bits: what they store, compute, learn and hand on."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from swarm import torchao
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.engines.transformers.generating import GeneratingModel
from swarm.engines.vllm.delivery import make_work_directory, model_files
from swarm.errors import PolicyError
from swarm.policy.adapters import BLOCK, NF4, Adapters, FrozenLinear, frozen_layers
from swarm.policy.config import FrozenDtype, LoraSettings, PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.policy.ranks import Ranks
from swarm.sapo.mixing import MixSettings
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import Sampling
from tests.engines.models import make
from tests.example_groups import graded
from tests.policy.completions import completion_logprobs
from tests.policy.exact import exact

KINDS: tuple[FrozenDtype, ...] = ("int8", "nf4")
PROMPT = "Calculate 12 + 7."

pytest.importorskip("peft", reason="needs the extra lora")


def _layer(rows: int = 48, columns: int = 80, dtype: torch.dtype = torch.float32, bias: bool = False) -> nn.Linear:
    torch.manual_seed(1)
    layer = nn.Linear(columns, rows, bias=bias, dtype=dtype)
    layer.weight.requires_grad_(False)
    return layer


def test_eight_bits_are_right_to_half_a_step_of_their_row() -> None:
    layer = _layer()
    frozen = FrozenLinear(layer, "int8")
    step = layer.weight.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((frozen.weight - layer.weight).abs() <= step / 2 * 1.001).all())


@pytest.mark.parametrize("shape", [(48, 80), (3, 5), (1, 64), (7, 9)])
def test_four_bits_are_the_nearest_level_of_their_block(shape: tuple[int, int]) -> None:
    layer = _layer(*shape)
    with torch.no_grad():
        layer.weight[0, 0] = 0.0
    found = FrozenLinear(layer, "nf4").weight
    expected = torch.empty(layer.weight.numel())
    for start in range(0, len(expected), BLOCK):
        block = layer.weight.flatten()[start : start + BLOCK]
        scale = block.abs().max()
        nearest = (block[:, None] / scale - torch.tensor(NF4)).abs().argmin(dim=1)
        expected[start : start + BLOCK] = torch.tensor(NF4)[nearest] * scale
    torch.testing.assert_close(found, expected.view(shape))


def test_blocks_of_zeros_stay_zeros() -> None:
    layer = _layer()
    nn.init.zeros_(layer.weight)
    for kind in KINDS:
        assert torch.equal(FrozenLinear(layer, kind).weight, layer.weight)


def test_torchao_rounds_alike() -> None:
    """An independent implementation of the same format; its scales are rounded too."""
    torchao.show()
    quantization = pytest.importorskip("torchao.quantization", reason="needs the extra torchao")
    weight = _layer(256, 256).weight.detach()
    theirs = quantization.NF4Tensor.from_tensor(weight, BLOCK, 256).get_original_weight()
    ours = FrozenLinear(_layer(256, 256), "nf4").weight
    assert float((ours - weight).norm()) == pytest.approx(float((theirs - weight).norm()), rel=0.01)
    assert (ours - theirs).norm() <= 0.01 * weight.norm()


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8 + 32 / 80), ("nf4", 4 + 32 / 64)])
def test_it_takes_the_bits_that_are_documented(kind: FrozenDtype, bits: float) -> None:
    frozen = FrozenLinear(_layer(), kind)
    stored = frozen.codes.nbytes + frozen.scales.nbytes
    assert 8 * stored == pytest.approx(bits * 48 * 80)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_outputs_and_gradients_are_those_of_the_rounded_matrix(kind: FrozenDtype, bias: bool) -> None:
    layer = _layer(dtype=torch.float64, bias=bias)
    frozen = FrozenLinear(layer, kind)
    hidden = torch.randn(2, 3, 80, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 3, 48, dtype=torch.float64)
    expected = nn.functional.linear(hidden, frozen.weight, layer.bias)
    (wanted,) = torch.autograd.grad(expected, hidden, upstream)
    found = frozen(hidden)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(torch.autograd.grad(found, hidden, upstream)[0], wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_keeps_no_matrix(kind: FrozenDtype) -> None:
    frozen = FrozenLinear(_layer(), kind)
    own = {buffer.data_ptr() for buffer in frozen.buffers()}
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        frozen(torch.randn(4, 80, requires_grad=True))
    assert kept and all(each.data_ptr() in own for each in kept)


def test_under_autocast_it_computes_in_half_precision() -> None:
    frozen = FrozenLinear(_layer(), "nf4")
    hidden = torch.randn(4, 80, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = frozen(hidden)
    assert found.dtype is torch.bfloat16
    found.sum().backward()
    assert hidden.grad is not None and hidden.grad.dtype is torch.float32


@pytest.fixture
def base(policy: Policy, tmp_path: Path) -> Path:
    policy.save(tmp_path / "base")
    return tmp_path / "base"


def _load(base: Path, kind: FrozenDtype, **changes: object) -> Policy:
    settings = PolicySettings(model=str(base), system_prompt="", lora=LoraSettings(rank=4, frozen_dtype=kind))
    return load_policy(settings.model_copy(update=changes))


def _updater(policy: Policy) -> PolicyUpdater:
    return PolicyUpdater(policy, UpdateSettings(learning_rate=3e-3, micro_batch_tokens=64), MixSettings(), 1.0)


def _learn(policy: Policy, times: int = 2) -> None:
    updater = _updater(policy)
    for _ in range(times):
        assert not updater.update([], [graded("other", rewards=(1.0, 0.0, 0.0))]).skipped


@torch.no_grad()
def _likelihood(policy: Policy, text: str = "<answer>19</answer>") -> Tensor:
    return completion_logprobs(policy, [policy.encode_prompt(PROMPT)], [policy.tokenizer.encode(text)], 1.0)


def _thawed(policy: Policy) -> Policy:
    """The same policy in float64 with its rounded matrices in full, read from what the layers answer."""
    twin = copy.deepcopy(policy)
    for name, layer in list(frozen_layers(twin.model)):
        plain = nn.Linear(layer.in_features, layer.out_features, bias=False, dtype=torch.float64)
        unit = torch.eye(layer.in_features, dtype=torch.float64)
        plain.weight = nn.Parameter(layer(unit).T.contiguous(), requires_grad=False)
        twin.model.set_submodule(name, plain)
    return twin


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_of_adapters_beside_the_rounded_matrices(base: Path, kind: FrozenDtype) -> None:
    rounded = exact(_load(base, kind))
    plain = _thawed(rounded)
    torch.testing.assert_close(_likelihood(rounded), _likelihood(plain), atol=1e-12, rtol=0)
    before = {name: buffer.clone() for name, buffer in rounded.model.named_buffers()}
    _learn(rounded)
    _learn(plain)
    for name, value in rounded.weights.items():
        torch.testing.assert_close(value, plain.weights[name], atol=1e-6, rtol=0)
    assert all(torch.equal(buffer, before[name]) for name, buffer in rounded.model.named_buffers())
    head = rounded.model.get_output_embeddings()
    assert head.weight is rounded.model.get_input_embeddings().weight, "the head stays as it was"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_sampled_is_what_is_trained(base: Path, kind: FrozenDtype, dtype: str) -> None:
    policy = _load(base, kind, dtype=dtype)
    _learn(policy)
    engine = TransformersEngine(policy, GenerationSettings())
    groups = engine.generate([PROMPT], 4, Sampling(max_new_tokens=8), 3)
    prompt = policy.encode_prompt(PROMPT)
    for completion in groups[0]:
        with torch.no_grad():
            again = completion_logprobs(policy, [prompt], [list(completion.token_ids)], 1.0)[0]
        torch.testing.assert_close(
            torch.tensor(completion.logprobs), again, atol=1e-4 if dtype == "float32" else 0.05, rtol=0
        )


def test_generation_makes_no_copy_of_the_matrices(base: Path) -> None:
    policy = _load(base, "nf4", dtype="bfloat16")
    generating = GeneratingModel(policy)
    with policy.gate.use():
        generating.refresh()
    ours = {layer.codes.data_ptr() for _, layer in frozen_layers(policy.model)}
    assert ours and {layer.codes.data_ptr() for _, layer in frozen_layers(generating.model)} == ours


@pytest.mark.parametrize("kind", KINDS)
def test_merged_it_is_a_plain_model_that_says_the_same(base: Path, tmp_path: Path, kind: FrozenDtype) -> None:
    policy = _load(base, kind)
    _learn(policy)
    expected = _likelihood(policy)
    policy.merge()
    assert not list(frozen_layers(policy.model))
    policy.save(tmp_path / "merged")
    plain = load_policy(PolicySettings(model=str(tmp_path / "merged"), system_prompt=""))
    torch.testing.assert_close(_likelihood(plain), expected, atol=1e-5, rtol=0)


def test_checkpoints_hold_adapters_alone_and_load_again(base: Path, tmp_path: Path) -> None:
    policy = _load(base, "nf4")
    _learn(policy)
    policy.save(tmp_path / "adapters")
    settings = PolicySettings(model=str(base), system_prompt="", lora=LoraSettings(rank=4, frozen_dtype="nf4"))
    again = load_policy(settings, tmp_path / "adapters")
    assert torch.equal(_likelihood(again), _likelihood(policy))


@pytest.mark.parametrize("kind", KINDS)
def test_vllm_gets_the_rounded_matrices_in_full(base: Path, kind: FrozenDtype) -> None:
    policy, full = _load(base, kind), load_policy(PolicySettings(model=str(base)))
    work = make_work_directory(policy)
    with model_files(policy, work) as (directory, _):
        handed = load_file(directory / "model.safetensors")
        assert "quantization_config" not in json.loads((directory / "config.json").read_text())
    assert set(handed) == set(full.weights)
    for name, layer in frozen_layers(policy.model):
        key = f"{name.removesuffix('.base_layer')}.weight"
        assert torch.equal(handed[key], layer.weight)
        assert handed[key].shape == full.weights[key].shape and not torch.equal(handed[key], full.weights[key])


def test_models_without_linear_layers_and_several_processes_are_refused(base: Path) -> None:
    with pytest.raises(PolicyError, match="has no linear layers, got nf4"):
        Adapters(make("gpt2").model, LoraSettings(rank=4, frozen_dtype="nf4"))

    class Two(Ranks):
        size = 2

    settings = PolicySettings(model=str(base), lora=LoraSettings(rank=4, frozen_dtype="int8"))
    with pytest.raises(PolicyError, match="several processes, got int8"):
        load_policy(settings, ranks=Two())
