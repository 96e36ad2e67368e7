"""Policies made once on a machine: the cache they are in, and SmolLM2 from its package."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from swarm.errors import ConfigError, PolicyError
from swarm.policy import smollm
from swarm.policy.cache import cached, made_once
from swarm.policy.config import PolicySettings, public_name
from swarm.policy.loading import load_policy

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_many_at_once_make_a_directory_once_and_all_get_it_whole() -> None:
    made: list[Path] = []
    ready = threading.Barrier(4)

    def make(directory: Path) -> None:
        made.append(directory)
        directory.mkdir()
        (directory / "a").write_text("1")
        time.sleep(0.05)
        (directory / "b").write_text("2")

    def ask(_: int) -> list[str]:
        ready.wait()
        return sorted(file.name for file in made_once("policy", make).iterdir())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [["a", "b"]] * 4
    assert len(made) == 1


def test_what_a_killed_process_left_is_not_used() -> None:
    def fail(directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "torn").write_text("")
        raise KeyboardInterrupt

    def make(directory: Path) -> None:
        directory.mkdir()
        (directory / "whole").write_text("")

    with pytest.raises(KeyboardInterrupt):
        made_once("policy", fail)
    assert not cached("policy").exists()
    assert [file.name for file in made_once("policy", make).iterdir()] == ["whole"]


def test_a_full_disk_is_a_clear_error() -> None:
    def make(directory: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(PolicyError, match="No space left on device; free disk space there, or set XDG_CACHE_HOME"):
        made_once("policy", make)


def test_the_public_name_is_the_same_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert public_name("smollm2") == "smollm2"


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm, "NEEDED", ("torch", "no_such_module", "llm_no_such_package"))
    for find in (smollm.check_smollm2, lambda: load_policy(PolicySettings(model="smollm2"))):
        with pytest.raises(ConfigError, match="no_such_module, llm_no_such_package is not .*make install-smollm"):
            find()
    assert not list(cached("x").parent.glob("smollm2*/*"))


def _package(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like the real one; importing it would be noticed."""
    package = folder / "llm_fake_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('the package was imported')")
    (package / smollm.FILE).write_bytes(content)
    monkeypatch.setattr(smollm, "PACKAGE", package.name)
    monkeypatch.setattr(smollm, "NEEDED", (package.name,))
    monkeypatch.syspath_prepend(str(folder))
    return package / smollm.FILE


def test_another_file_than_the_known_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(tmp_path, b"GGUF of someone else", monkeypatch)
    with pytest.raises(PolicyError, match=f"must have the SHA-256 {smollm.SHA256}, got"):
        smollm.ensure_smollm2()
    assert "llm_fake_smollm2" not in sys.modules


def test_a_file_that_is_no_gguf_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model" * 10)
    with pytest.raises(PolicyError, match="bad.gguf cannot be converted"):
        smollm.convert(tmp_path / "bad.gguf", tmp_path / "out", lambda done, total: None)


def _alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _write_gguf(file: Path, model: LlamaForCausalLM) -> None:
    """The model in the form of the real file: names and layout of llama.cpp, a byte-level tokenizer of kind smollm."""
    import gguf

    config = model.config
    tokens = [*SPECIAL, *_alphabet(), "12"]
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(100_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "model.layers": "blk",
    }
    for name, parameter in model.named_parameters():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        value = parameter.detach()
        for part, count in heads.items():
            if part in name:  # llama.cpp interleaves the halves that rotate together
                value = value.reshape(count, 2, -1, value.shape[-1]).transpose(1, 2).reshape(value.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, value.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_packages_file_becomes_a_policy_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason="needs the extra smollm")
    pytest.importorskip("accelerate", reason="needs the extra smollm")
    torch.manual_seed(0)
    vocabulary = len(SPECIAL) + len(_alphabet()) + 1
    original = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            rope_theta=100_000.0,
            tie_word_embeddings=True,
            initializer_range=0.3,
        )
    )
    file = _package(tmp_path, b"", monkeypatch)
    _write_gguf(file, original)
    monkeypatch.setattr(smollm, "SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    steps: list[tuple[int, int]] = []
    policy = load_policy(
        PolicySettings(model="smollm2", system_prompt=""), progress=lambda done, total: steps.append((done, total))
    )
    assert steps == [(k, 4) for k in range(5)], "and once is enough:"
    assert smollm.ensure_smollm2(lambda *_: pytest.fail("converted twice")).is_dir()
    file.unlink()
    smollm.check_smollm2()

    directory = smollm.ensure_smollm2()
    assert "Apache-2.0" in (directory / "NOTICE").read_text()
    assert "quantization" not in (directory / "config.json").read_text()
    assert str(tmp_path) not in (directory / "config.json").read_text()
    assert policy.name == "smollm2"
    ids = torch.arange(4, 40)[None]
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.copy_(parameter.bfloat16())
        ours, theirs = policy.model(ids).logits, original(ids).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)

    tokenizer = policy.tokenizer
    for text in ("What is 12 + 30?", "Größe: 7 €\n\tübrigens  — ok", "1212"):
        assert policy.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("12")) == 2, "numbers are split into digits, as the model learned them"
    assert tokenizer.encode("<|im_start|>a<|im_end|>")[::2] == [1, 2]
    assert policy.encode_prompt("Hi") == tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n")
    assert policy.stop_ids == frozenset({2}) and policy.pad_id == 2
    assert policy.decode([3, *tokenizer.encode("a")]) == "a" and policy.hides([3, 10]), "every special token counts"
    assert policy.model.config.eos_token_id == 2 and policy.model.generation_config.bos_token_id == 1
