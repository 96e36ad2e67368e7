"""GGUF files of small random models, read back by transformers and by the package gguf."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from swarm.errors import ConfigError
from swarm.extras.export.gguf import FAMILIES, GgufType, check_family, write_gguf
from swarm.extras.export.tokenizer import RULES, SPACE

gguf = pytest.importorskip("gguf", reason="needs the extra gguf")
pytest.importorskip("accelerate", reason="transformers reads GGUF with it")

TEXTS = ("the then  other 12+345", "Größe 7 € — naïve\n\n\tok", "<|start|>user\nthe<|end|>", "a<think>then", "  the")
TEMPLATE = "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
VOCABULARY = 320
QWEN = RULES["qwen2"][0]["pattern"]["Regex"]


def _byte_level(rule: object) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["th", "the", "en", "then", "Ġthe"]
    merges = [("t", "h"), ("th", "e"), ("e", "n"), ("the", "n"), ("Ġ", "the")]
    tokenizer = Tokenizer(models.BPE({token: k for k, token in enumerate([*alphabet, *words])}, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = rule, decoders.ByteLevel()
    return tokenizer


def _smollm() -> Tokenizer:
    return _byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    )


def _qwen() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(QWEN), "isolated")
    parts = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    return _byte_level(pre_tokenizers.Sequence(parts))


def _gemma() -> Tokenizer:
    base = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    merged = [SPACE * 2, "th", "the", "en", "then", f"{SPACE}the"]
    letters = ["t", "h", "e", "n", SPACE]
    merges = [(SPACE, SPACE), ("t", "h"), ("th", "e"), ("e", "n"), ("the", "n"), ("th", "en"), (SPACE, "the")]
    merges.sort(key=lambda pair: merged.index("".join(pair)))
    vocabulary = {token: k for k, token in enumerate([*base, *merged, *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return tokenizer


def _llama(**more: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **{**SIZES, **more}))


def _qwen2() -> PreTrainedModel:
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, num_hidden_layers=2, tie_word_embeddings=True, **SIZES))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def _qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, num_hidden_layers=2, head_dim=128, **SIZES))


def _gemma3() -> PreTrainedModel:
    config = Gemma3TextConfig(vocab_size=VOCABULARY, num_hidden_layers=7, head_dim=256, sliding_window=8, **SIZES)
    return Gemma3ForCausalLM(config)


MADE: dict[str, tuple[Callable[[], PreTrainedModel], Callable[[], Tokenizer]]] = {
    "llama": (_llama, _smollm),
    "qwen2": (_qwen2, _qwen),
    "qwen3": (_qwen3, _qwen),
    "gemma3": (_gemma3, _gemma),
}


def _saved(folder: Path, model: PreTrainedModel, tokenizer: Tokenizer) -> PreTrainedModel:
    """A model's directory, its norms moved away from their initial values."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
        elif parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    ends = {} if "<eos>" in tokenizer.get_vocab() else {"eos_token": "<|end|>"}
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|start|>", "<|end|>")])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    marks = {"eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **(ends or marks))
    whole.chat_template = TEMPLATE
    end = whole.convert_tokens_to_ids("<|end|>")
    model.generation_config = GenerationConfig(eos_token_id=[whole.eos_token_id, end])
    model.eval().save_pretrained(folder)
    whole.save_pretrained(folder)
    return model


def _fields(file: Path) -> dict[str, object]:
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


@pytest.mark.parametrize(("kind", "atol"), [("F16", 1e-3), ("BF16", 1e-3), ("Q8_0", 0.2)])
@pytest.mark.parametrize("family", MADE)
def test_what_is_read_back_says_the_same(tmp_path: Path, family: str, kind: GgufType, atol: float) -> None:
    make, tokens = MADE[family]
    model = _saved(tmp_path, make(), tokens())
    alone = tmp_path / "alone"
    alone.mkdir()
    write_gguf(tmp_path, alone / "model.gguf", kind)
    read = AutoModelForCausalLM.from_pretrained(alone, gguf_file="model.gguf", dtype=torch.float32).eval()
    ours = AutoTokenizer.from_pretrained(tmp_path)
    theirs = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf")
    for text in TEXTS:
        assert theirs(text)["input_ids"] == ours(text)["input_ids"]
        assert theirs.decode(theirs(text)["input_ids"]) == ours.decode(ours(text)["input_ids"])
    assert theirs.chat_template == TEMPLATE and theirs.eos_token == ours.eos_token
    if kind != "Q8_0":  # what the type rounds is not the file's mistake
        dtype = {"F16": torch.float16, "BF16": torch.bfloat16}[kind]
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data = parameter.data.to(dtype).float()
    ids = torch.randint(4, 260, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = model(ids).logits, read(ids).logits
    assert (found - expected).abs().max() < atol * max(1.0, float(expected.abs().max()))
    assert expected.std() > 0.1


def test_the_file_has_what_llama_cpp_reads(tmp_path: Path) -> None:
    _saved(tmp_path, _gemma3(), _gemma())
    write_gguf(tmp_path, tmp_path / "model.gguf", "Q8_0")
    fields = _fields(tmp_path / "model.gguf")
    ours = AutoTokenizer.from_pretrained(tmp_path)
    expected = {
        "general.architecture": "gemma3",
        "general.file_type": 7,
        "gemma3.attention.key_length": 256,
        "gemma3.attention.sliding_window": 8,
        "gemma3.rope.freq_base": 1_000_000.0,
        "gemma3.rope.freq_base_swa": 10_000.0,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eot_token_id": ours.convert_tokens_to_ids("<|end|>"),
        "tokenizer.chat_template": TEMPLATE,
    }
    assert {name: fields[name] for name in expected} == expected
    tokens, types, scores = (fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "scores"))
    kinds = {token: kind for token, kind in zip(tokens, types, strict=True)}
    named = {"<unk>": 2, "<pad>": 3, "<0x0A>": 6, "<think>": 4, "<|end|>": 3, "the": 1, f"[PAD{VOCABULARY - 1}]": 5}
    assert {token: kinds[token] for token in named} == named
    ranks = dict(zip(tokens, scores, strict=True))
    assert ranks[SPACE * 2] > ranks["th"] > ranks["the"] > ranks["en"] > ranks["then"] > ranks[f"{SPACE}the"]
    kept = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kept["blk.0.attn_norm.weight"] == "F32" and kept["blk.0.attn_q.weight"] == "Q8_0"
    assert "output.weight" not in kept, "tied weights are there once"


def test_llama_3s_rope_is_in_the_file(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    model = _saved(tmp_path, _llama(rope_parameters=scaling, max_position_embeddings=512), _smollm())
    write_gguf(tmp_path, tmp_path / "model.gguf", "F16")
    (factors,) = (t.data for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors if t.name == "rope_freqs.weight")
    plain = 5e5 ** -(torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(plain / torch.tensor(factors), model.model.rotary_emb.inv_freq)
    assert factors.min() == 1 and factors.max() == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["MistralForCausalLM"]},
            r"supports Llama \(SmolLM2\), Qwen2, Qwen3 and Gemma 3 \(text\), not MistralForC",
        ),
        ({"hidden_act": "gelu"}, "support the hidden_act of"),
        ({"attention_bias": True}, "support the attention_bias of"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "support the rope_type yarn of"),
    ],
)
def test_what_llama_cpp_would_compute_differently_is_refused(change: dict[str, object], message: str) -> None:
    config = LlamaConfig(architectures=["LlamaForCausalLM"], **SIZES)
    assert check_family(config) is FAMILIES["LlamaForCausalLM"]
    for name, value in change.items():
        setattr(config, name, value)
    with pytest.raises(ConfigError, match=message):
        check_family(config)


def test_a_gemma_with_other_layers_is_refused() -> None:
    layers = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(num_hidden_layers=2, layer_types=layers, architectures=["Gemma3ForCausalLM"], **SIZES)
    with pytest.raises(ConfigError, match="support the layer_types of"):
        check_family(config)


def test_an_unknown_family_and_other_tokenizers_are_refused(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=VOCABULARY)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="not GPT2LMHeadModel"):
        write_gguf(tmp_path, tmp_path / "model.gguf", "F16")
    odd = _byte_level(pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(False)]))
    _saved(tmp_path / "odd", _llama(), odd)
    with pytest.raises(ConfigError, match="by other rules than gpt-2, smollm, qwen2, llama-bpe"):
        write_gguf(tmp_path / "odd", tmp_path / "model.gguf", "F16")
    file = tmp_path / "odd" / "tokenizer.json"
    without = json.loads(file.read_text())
    without["model"]["merges"] = []
    file.write_text(json.dumps(without))
    with pytest.raises(ConfigError, match="BPE tokenizer with merges"):
        write_gguf(tmp_path / "odd", tmp_path / "model.gguf", "F16")


def test_weights_that_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    model = _llama()
    _saved(tmp_path, model, _smollm())
    model.model.embed_tokens.weight.data[0, 0] = 1e6
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="token_embd.* choose --gguf BF16"):
        write_gguf(tmp_path, tmp_path / "model.gguf", "F16")
