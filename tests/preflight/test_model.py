"""A model's size by its configuration, against real tensors."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import Glm4MoeForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

import swarm.preflight.model
from swarm.engines.transformers.generating import GeneratingModel
from swarm.errors import PolicyError
from swarm.policy import attention, scoring
from swarm.policy.adapters import Adapters, frozen_layers
from swarm.policy.attention import Segments, packed_attention
from swarm.policy.config import FrozenDtype, LoraSettings
from swarm.policy.loading import Policy
from swarm.policy.scoring import selected_logprobs
from swarm.preflight.model import LiveBytes, ModelSize, PassSize, counted, head_bytes, measure, tracing
from swarm.training.forward import TrainingLayers
from tests.engines.models import ARCHITECTURES, make, make_published
from tests.gpu.test_memory import SHAPE
from tests.policy.ranges import in_ranges

MIB = 2**20
ROWS, WIDTH = 10, 12
"""Rows shorter than the window of any of the models: a longer one has a mask, as with real windows of thousands."""
NO_LORA = LoraSettings()


def _size(model: PreTrainedModel, dtype: torch.dtype = torch.float32, lora: LoraSettings = NO_LORA) -> ModelSize:
    return measure(model.config, lora, lambda _: dtype)


def _deeper(architecture: str) -> PreTrainedModel:
    """Of four layers: two of them are not run to find the size."""
    policy = make(architecture)
    config = copy.deepcopy(policy.model.config)
    config.num_hidden_layers = 4
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types * 2
    torch.manual_seed(0)
    return type(policy.model)(config).eval()


def _saved_bytes(model: PreTrainedModel, dtype: torch.dtype) -> int:
    """Tensors that a forward pass of the layers saves for the gradient."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    ids = torch.randint(0, 50, (ROWS, WIDTH))
    with (
        torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        model.base_model(input_ids=ids, use_cache=False)
    return sum(num_bytes for num_bytes, _ in saved.values())


@pytest.fixture
def without_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For sizes of the model alone: what its passes keep takes a second or two to find."""
    monkeypatch.setattr(swarm.preflight.model, "_measure_passes", lambda *_, **__: None)


@pytest.mark.usefixtures("without_passes")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_gradients_and_states_are_counted_exactly(architecture: str) -> None:
    model = _deeper(architecture)
    size = _size(model)
    model(input_ids=torch.zeros(1, 2, dtype=torch.long)).logits.sum().backward()
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    states = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert size.weight_bytes == sum(weight.nbytes for weight in model.parameters())
    assert 4 * size.trained == sum(weight.grad.nbytes for weight in model.parameters() if weight.grad is not None)
    assert 8 * size.trained == sum(state.nbytes for state in states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_activations_are_what_a_pass_saves(architecture: str, dtype: torch.dtype) -> None:
    model = _deeper(architecture)
    passes = _size(model, dtype).passes
    assert passes is not None
    assert passes.kept.at(ROWS * WIDTH) == pytest.approx(_saved_bytes(model, dtype), rel=0.1)


def _first_without_experts(num_dense: int, num_layers: int = 6) -> PreTrainedModel:
    config = copy.deepcopy(make_published("glm4_moe").model.config)
    config.num_hidden_layers, config.first_k_dense_replace = num_layers, num_dense
    config.mlp_layer_types = ["dense"] * num_dense + ["sparse"] * (num_layers - num_dense)
    torch.manual_seed(0)
    return Glm4MoeForCausalLM(config).eval()


@cache
def _dense_passes() -> PassSize | None:
    return _size(_first_without_experts(6)).passes


@pytest.mark.parametrize("num_dense", [0, 1, 2, 3, 6])
def test_layers_of_each_kind_count_as_they_are(num_dense: int) -> None:
    """Models of experts that begin with several layers without."""
    model = _first_without_experts(num_dense)
    passes = _size(model).passes
    assert passes is not None
    assert passes.kept.at(ROWS * WIDTH) == pytest.approx(_saved_bytes(model, torch.float32), rel=0.02)
    dense = _dense_passes()
    assert dense is not None and passes.cached_per_token == dense.cached_per_token
    assert (passes.layer.per_token > dense.layer.per_token) == (num_dense < 6)


def test_code_that_depends_on_values_is_said_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: torch.nn.Module, hidden: Tensor) -> Tensor:
        return hidden if hidden.sum() > 0 else -hidden

    monkeypatch.setattr(Qwen2MLP, "forward", forward)
    size = _size(_deeper("qwen2"))
    assert size.passes is None and "DataDependent" in size.problem


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "mixtral", "untied qwen2"])
@pytest.mark.usefixtures("without_passes")
def test_the_copy_that_generates_is_counted_exactly(architecture: str, rank: int) -> None:
    if architecture == "untied qwen2":
        plain = make("qwen2")
        plain.model.config.tie_word_embeddings = False
        policy = Policy("untied", type(plain.model)(plain.model.config), plain.tokenizer, None)
    else:
        policy = make_published(architecture) if architecture == "mixtral" else make(architecture)
    lora, config = LoraSettings(rank=rank), policy.model.config
    if rank:
        pytest.importorskip("peft", reason="needs the extra lora")
        policy.model.to(torch.bfloat16)
        policy.adapters = Adapters(policy.model, lora)
    policy.dtype = torch.bfloat16
    generating = GeneratingModel(policy)
    generating.refresh()
    own = {id(tensor) for tensor in policy.model.parameters()}
    copied = sum(each.nbytes for each in generating.model.parameters() if id(each) not in own)
    assert measure(config, lora, lambda _: torch.bfloat16).copied_bytes == copied


def test_experts_print_nothing_while_they_are_measured(capfd: pytest.CaptureFixture[str]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        passes = _size(_deeper("qwen3_moe"), dtype).passes
        assert passes is not None and passes.cached_per_token > 0
    assert "BF16" not in capfd.readouterr().err


def test_a_model_that_cannot_be_built_is_a_clear_error() -> None:
    with pytest.raises(PolicyError, match="the size of a PreTrainedConfig cannot be found: ValueError"):
        measure(PreTrainedConfig(), NO_LORA, lambda _: torch.float32)


def test_adapters_are_counted_exactly_and_their_passes_too() -> None:
    pytest.importorskip("peft", reason="needs the extra lora")
    model, lora = _deeper("qwen2"), LoraSettings(rank=4)
    size = _size(model, torch.bfloat16, lora)
    model = model.to(torch.bfloat16)
    Adapters(model, lora)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert size.trained == sum(weight.numel() for weight in trained)
    assert size.weight_bytes == sum(weight.nbytes for weight in model.parameters())
    assert size.passes is not None
    assert size.passes.kept.at(ROWS * WIDTH) == pytest.approx(_saved_bytes(model, torch.bfloat16), rel=0.1)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_rounded_weights_are_counted_exactly_and_the_matrix_in_use_too(kind: FrozenDtype) -> None:
    pytest.importorskip("peft", reason="needs the extra lora")
    model, lora = _deeper("qwen2"), LoraSettings(rank=4, frozen_dtype=kind)
    parameters = sum(weight.numel() for weight in model.parameters())
    size = _size(model, torch.bfloat16, lora)
    model = model.to(torch.bfloat16)
    Adapters(model, lora)
    layers = [layer for _, layer in frozen_layers(model)]
    codes = sum(buffer.nbytes for layer in layers for buffer in layer.buffers())
    assert size.parameters == parameters, "vLLM has them in full"
    assert size.weight_bytes == sum(weight.nbytes for weight in model.parameters()) + codes
    assert size.passes is not None
    assert size.passes.kept.at(ROWS * WIDTH) == pytest.approx(_saved_bytes(model, torch.bfloat16), rel=0.1)
    largest = max(layer.weight.nbytes for layer in layers)
    assert largest <= size.computed_bytes <= 4 * largest


def test_checkpointing_keeps_what_a_real_pass_keeps() -> None:
    model = _deeper("llama")
    passes = _size(model).passes
    assert passes is not None
    layers = TrainingLayers(model, compiled=False, checkpointed=True)
    with layers.active(), LiveBytes([*model.parameters(), *model.buffers()]) as live:
        hidden = model.base_model(input_ids=torch.zeros(ROWS, WIDTH, dtype=torch.long), use_cache=False)
        assert passes.kept_checkpointed.at(ROWS * WIDTH) == pytest.approx(live.now, rel=0.1)
    assert hidden is not None and passes.kept_checkpointed.at(ROWS * WIDTH) < 0.3 * passes.kept.at(ROWS * WIDTH)


@pytest.mark.parametrize(
    ("rank", "frozen", "checkpointed", "measured"),
    [
        (0, "compute", False, 2_933),
        (0, "compute", True, 597),
        (16, "compute", False, 2_264),
        (16, "compute", True, 122),
        (16, "nf4", False, 2_265),
        (16, "nf4", True, 121),
    ],
)
def test_plain_layers_keep_what_a_gpu_allocated(
    rank: int, frozen: FrozenDtype, checkpointed: bool, measured: int
) -> None:
    """MiB between the beginning of a pass of 3,018 tokens and its output head, on an H200 with torch 2.11."""
    if rank:
        pytest.importorskip("peft", reason="needs the extra lora")
    passes = measure(SHAPE, LoraSettings(rank=rank, frozen_dtype=frozen), lambda _: torch.bfloat16).passes
    assert passes is not None
    kept = passes.kept_checkpointed if checkpointed else passes.kept
    assert kept.at(3_018) / MIB == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("num_tokens", [16, 400])
def test_the_head_takes_what_it_really_takes(num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _deeper("qwen2")
    size = _size(model)
    monkeypatch.setitem(scoring.CHUNK_NUMBERS, "cpu", 20 * size.vocabulary)
    hidden = torch.randn(num_tokens, size.hidden, requires_grad=True)
    weight = model.get_output_embeddings().weight
    with LiveBytes([weight, hidden]) as live:
        targets = torch.zeros(num_tokens, dtype=torch.long)
        selected_logprobs(hidden, weight, None, targets, 1.0, 20)[0].sum().backward()
    assert head_bytes(size, num_tokens, "cpu") == pytest.approx(live.peak, rel=0.1)


@pytest.mark.parametrize(("rank", "frozen"), [(0, "compute"), (4, "nf4")])
def test_compiled_layers_keep_what_torch_chooses_to_keep(
    rank: int, frozen: FrozenDtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of real tensors on a CPU, with a stand-in for the GPU's kernel of attention. No matrix of few bits is kept."""
    if rank:
        pytest.importorskip("peft", reason="needs the extra lora")
    model, lora = _deeper("qwen2"), LoraSettings(rank=rank, frozen_dtype=frozen)
    found = measure(model.config, lora, lambda _: torch.bfloat16, compiled=lambda _: True).passes
    plain = _size(model, torch.bfloat16, lora).passes
    if rank:
        model = model.to(torch.bfloat16)
        Adapters(model, lora)
    monkeypatch.setattr(attention, "in_ranges", in_ranges)
    ids = torch.randint(50, (1, ROWS * WIDTH))
    packed = Segments([WIDTH] * ROWS, [None] * ROWS, in_ranges=True).inputs(ids.device)
    with (
        tracing() as traced,
        TrainingLayers(model, True, False, compile_code=traced).active(),
        packed_attention(model),
        counted(model) as kept,
        torch.autocast("cpu", torch.bfloat16),
    ):
        model.base_model(input_ids=ids, position_ids=ids, use_cache=False, **packed)
    assert found is not None and plain is not None
    assert found.kept.at(ROWS * WIDTH) == pytest.approx(kept(), rel=0.1)
    assert found.kept.per_token < 0.8 * plain.kept.per_token and found.kept.fixed <= 1.1 * plain.kept.fixed


def test_keys_and_values_are_counted_as_the_engine_stores_them() -> None:
    policy = make("qwen2")
    passes = _size(policy.model).passes
    shape = policy.model.config
    head_dim = shape.hidden_size // shape.num_attention_heads
    assert passes is not None
    assert passes.cached_per_token == 2 * shape.num_hidden_layers * shape.num_key_value_heads * head_dim * 4
