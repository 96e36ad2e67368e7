"""Tiny random models of three families that read more than text, as directories that a policy is loaded from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, ProcessorMixin
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from swarm.policy.config import PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.policy.media.processor import as_array, waveform, without_videos
from swarm.types import Message, Text
from swarm.types.media import Audio, Image

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "smolvlm", "glmasr")
TOKENIZER = Path(__file__).parent.parent / "swarm" / "policy" / "tiny_tokenizer.json"
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
QWEN_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
QWEN_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<eos>{% endfor %}<assistant>"
)
SPECIAL = {
    "qwen2_5_vl": QWEN_TOKENS,
    "qwen3_vl": QWEN_TOKENS,
    "qwen3_vl_moe": QWEN_TOKENS,
    "smolvlm": ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"],
    "glmasr": ["<|pad|>"],
}
TEMPLATES = {
    "qwen2_5_vl": QWEN_TEMPLATE,
    "qwen3_vl": QWEN_TEMPLATE,
    "qwen3_vl_moe": QWEN_TEMPLATE,
    "smolvlm": "{% for m in messages %}{{ m['role'] }}: {% for c in m['content'] %}{% if c['type'] == 'image' %}<image>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}<eos>{% endfor %}assistant:",
    "glmasr": None,
}


def directory(family: str, place: Path, head_dim: int = 8) -> Path:
    """Write a model of a family, or of `qwen3_vl_moe`, with its processor; `head_dim` of its heads, of which there are
    four."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), pad_token="<pad>", eos_token="<eos>")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL[family]})
    tokenizer.chat_template = TEMPLATES[family]
    id_of = tokenizer.convert_tokens_to_ids
    text = {**TEXT, "vocab_size": len(tokenizer), "hidden_size": 4 * head_dim}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "initializer_range": 0.3}
    torch.manual_seed(5)
    match family:
        case "qwen2_5_vl":
            rope = {
                "rope_type": "default",
                "mrope_section": [head_dim // 8, head_dim // 8, head_dim // 4],
                "rope_theta": 10_000.0,
            }
            config = transformers.Qwen2_5_VLConfig(
                text_config={**text, "rope_parameters": rope},
                vision_config={
                    **vision,
                    "depth": 2,
                    "num_heads": 2,
                    "out_hidden_size": 4 * head_dim,
                    "fullatt_block_indexes": [1],
                },
                image_token_id=id_of("<|image_pad|>"),
                video_token_id=id_of("<|video_pad|>"),
                vision_start_token_id=id_of("<|vision_start|>"),
                vision_end_token_id=id_of("<|vision_end|>"),
            )
            model = transformers.Qwen2_5_VLForConditionalGeneration(config)
            pictures = Qwen2VLImageProcessorPil(
                size={"shortest_edge": 28 * 28, "longest_edge": 112 * 112}, patch_size=14
            )
            processor = _made(transformers.Qwen2_5_VLProcessor, pictures, tokenizer, None)
        case "qwen3_vl" | "qwen3_vl_moe":
            rope = {
                "rope_type": "default",
                "mrope_section": [head_dim // 4, head_dim // 8, head_dim // 8],
                "mrope_interleaved": True,
                "rope_theta": 10_000.0,
            }
            experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
            name = "Qwen3VL" if family == "qwen3_vl" else "Qwen3VLMoe"
            config = getattr(transformers, f"{name}Config")(
                text_config={
                    **text,
                    "rope_parameters": rope,
                    "head_dim": head_dim,
                    **(experts if family == "qwen3_vl_moe" else {}),
                },
                vision_config={
                    **vision,
                    "depth": 2,
                    "num_heads": 2,
                    "out_hidden_size": 4 * head_dim,
                    "num_position_embeddings": 16,
                    "deepstack_visual_indexes": [0],
                },
                image_token_id=id_of("<|image_pad|>"),
                video_token_id=id_of("<|video_pad|>"),
                vision_start_token_id=id_of("<|vision_start|>"),
                vision_end_token_id=id_of("<|vision_end|>"),
            )
            model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
            pictures = Qwen2VLImageProcessorPil(
                size={"shortest_edge": 32 * 32, "longest_edge": 128 * 128}, patch_size=16
            )
            processor = _made(transformers.Qwen3VLProcessor, pictures, tokenizer, None)
        case "smolvlm":
            config = transformers.SmolVLMConfig(
                text_config={**text, "model_type": "llama"},
                vision_config={**vision, "image_size": 32, "patch_size": 8, "num_hidden_layers": 2},
                image_token_id=id_of("<image>"),
                scale_factor=2,
                pad_token_id=0,
            )
            model = transformers.SmolVLMForConditionalGeneration(config)
            pictures = SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
            processor = _made(transformers.SmolVLMProcessor, pictures, tokenizer, None, image_seq_len=4)
        case _:
            audio = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
            config = transformers.GlmAsrConfig(
                text_config={**text, "model_type": "llama"},
                audio_config={**audio, "num_mel_bins": 16, "initializer_range": 0.3},
                audio_token_id=id_of("<|pad|>"),
            )
            model = transformers.GlmAsrForConditionalGeneration(config)
            sounds = transformers.WhisperFeatureExtractor(feature_size=16)
            processor = _made(transformers.GlmAsrProcessor, sounds, tokenizer)
    model.save_pretrained(place)
    processor.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def load(family: str, place: Path, head_dim: int = 8, **settings: Any) -> Policy:
    """The policy of a family in float32."""
    written = str(directory(family, place, head_dim))
    return load_policy(PolicySettings(model=written, dtype="float32", system_prompt="", **settings))


def medium(family: str, number: int = 0) -> Image | Audio:
    """A picture or sound that the family reads; another for each number."""
    random = np.random.default_rng(number)
    if family == "glmasr":
        return Audio(16_000, random.integers(-3_000, 3_000, 4_000 + 1_600 * number, np.int16).astype("<i2").tobytes())
    width, height = 56 + 28 * (number % 2), 56
    return Image(width, height, random.integers(0, 256, (height, width, 3), np.uint8).tobytes())


def question(family: str, number: int = 0, text: str = "Calculate 1 + 2") -> tuple[Message, ...]:
    """A question with something to read in the middle."""
    return (Message("user", (Text("Look: "), medium(family, number), Text(text))),)


def own_logprobs(policy: Policy, family: str, number: int, answer: Sequence[int]) -> Tensor:
    """Log-probabilities of an answer to a question, [T], by the processor and the model's own forward pass."""
    assert policy.media is not None
    processor: Any = policy.media.reader._processor
    part = medium(family, number)
    given: dict[str, Any] = (
        {"images": [as_array(part)]}
        if isinstance(part, Image)
        else {"audio": [waveform(part, 16_000)], "sampling_rate": 16_000}
    )
    content = [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "Calculate 1 + 2"}]
    if policy.tokenizer.chat_template:
        text = policy.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
    else:
        text = f"Look: \n{policy.media.reader.tokens()[0]}\nCalculate 1 + 2"
    inputs = processor(text=[text], return_tensors="pt", **given)
    ids = torch.cat([inputs["input_ids"], torch.tensor([list(answer)])], dim=1)
    inputs["input_ids"] = ids
    inputs["attention_mask"] = torch.ones_like(ids)
    if "mm_token_type_ids" in inputs:
        kinds = inputs["mm_token_type_ids"]
        inputs["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(1, len(answer))], dim=1)
    for name in ("pixel_values", "input_features"):
        if name in inputs:
            inputs[name] = inputs[name].to(policy.model.dtype)
    logits = policy.model(**inputs).logits[0, -len(answer) - 1 : -1]
    if hasattr(policy.model.base_model, "rope_deltas"):
        policy.model.base_model.rope_deltas = None
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(list(answer))[:, None])[:, 0]


def _made(processor: type[ProcessorMixin], *parts: object, **settings: object) -> ProcessorMixin:
    made: ProcessorMixin = without_videos(processor)(*parts, **settings)
    return made


def calls_of(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[object]:
    """Arguments of all calls of a method of one argument from now on."""
    seen: list[object] = []
    method = getattr(owner, name)

    def noted(argument: object) -> object:
        seen.append(argument)
        return method(argument)

    monkeypatch.setattr(owner, name, noted)
    return seen
