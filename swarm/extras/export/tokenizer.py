"""A tokenizer in a GGUF file.

llama.cpp has the rules for splitting text in its own code and finds them by a name, so that the tokenizer's rules must
be among those known here. Two kinds: byte-level BPE with merges (Llama 3, Qwen, SmolLM), and SentencePiece's BPE with a
score for each token (Gemma).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from swarm.errors import ConfigError

if TYPE_CHECKING:
    from gguf import GGUFWriter

SPACE = "\u2581"
"""SentencePiece's space."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}


def _split(numbers: str) -> dict[str, Any]:
    pattern = {"Regex": f"{_WORDS}{numbers}{_REST}"}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


RULES: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_byte_level(True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, _byte_level(True)],
    "qwen2": [_split(r"\p{N}"), _byte_level(False)],
    "llama-bpe": [_split(r"\p{N}{1,3}"), _byte_level(False)],
}
"""llama.cpp's name of a byte-level tokenizer's rules, and the same rules in `tokenizer.json`."""
IGNORED = frozenset({"trim_offsets"})
"""Fields of a rule that change no tokens."""


def refused(why: str) -> ConfigError:
    """The error of a model that no GGUF file is written of."""
    return ConfigError(f"no GGUF is written, because {why}")


def write_tokenizer(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, size: int, directory: Path) -> None:
    """Write tokens for the `size` rows of the embeddings, special tokens and chat template.

    `directory` has the model's `generation_config.json`. Raises `ConfigError` for a tokenizer that llama.cpp lacks.
    """
    if not tokenizer.is_fast:
        raise refused("this model's tokenizer has no tokenizer.json")
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    model = described["model"]
    if model["type"] != "BPE" or not model["merges"]:
        raise refused("llama.cpp needs a BPE tokenizer with merges, and this one is not")
    vocabulary = tokenizer.get_vocab()
    if beyond := [token for token, index in vocabulary.items() if index >= size]:
        raise refused(f"the token {beyond[0]!r} is beyond the model's {size} embeddings")
    is_sentencepiece = bool(model["byte_fallback"])
    tokens, types = _tokens(vocabulary, described["added_tokens"], size, is_sentencepiece, model["unk_token"])
    merges = [_pair(merge) for merge in model["merges"]]
    if is_sentencepiece:
        _check_sentencepiece(described)
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(_scores(merges, vocabulary, size))
        writer.add_add_space_prefix(False)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_rule(described))
        writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    _write_special(writer, tokenizer, directory)


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _tokens(
    vocabulary: Mapping[str, int],
    added: Sequence[Mapping[str, Any]],
    size: int,
    is_sentencepiece: bool,
    unknown: str | None,
) -> tuple[list[str], list[int]]:
    """Text and type of each token; rows without a token are unused ones."""
    from gguf import TokenType

    texts, types = [f"[PAD{number}]" for number in range(size)], [int(TokenType.UNUSED)] * size
    for token, index in vocabulary.items():
        texts[index], types[index] = token, int(TokenType.NORMAL)
        if is_sentencepiece and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            types[index] = int(TokenType.BYTE)
    for each in added:
        index = each["id"]
        types[index] = int(TokenType.CONTROL if each["special"] else TokenType.USER_DEFINED)
        if is_sentencepiece and not each["special"]:
            texts[index] = texts[index].replace(SPACE, " ")  # found in the text before spaces are replaced
    if is_sentencepiece and unknown is not None:
        types[vocabulary[unknown]] = int(TokenType.UNKNOWN)
    return texts, types


def _rule(described: Mapping[str, Any]) -> str:
    """The name of a byte-level tokenizer's rules. Raises `ConfigError`."""
    stated = described["pre_tokenizer"] or {}
    parts = [
        {name: value for name, value in part.items() if name not in IGNORED}
        for part in stated.get("pretokenizers", [stated])
    ]
    normalizer = (described["normalizer"] or {"type": "NFC"})["type"]
    found = next((name for name, rule in RULES.items() if rule == parts), None)
    if found is None or normalizer != "NFC":
        raise refused(
            f"this tokenizer splits text by other rules than {', '.join(RULES)}, the ones "
            "whose names in llama.cpp are known here"
        )
    return found


def _check_sentencepiece(described: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for other rules than Gemma's: spaces become U+2581, and none is added."""
    normalizer = described["normalizer"] or {}
    if normalizer != {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}:
        raise refused("this tokenizer treats spaces in another way than Gemma's")


def _scores(merges: Sequence[tuple[str, str]], vocabulary: Mapping[str, int], size: int) -> list[float]:
    """Minus the place of each token's merge: the pair whose token has the highest score is merged first.

    Raises `ConfigError` where scores of tokens cannot express the order of the merges.
    """
    places: dict[str, int] = {}
    last = ""
    for left, right in merges:
        if (merged := left + right) != last and merged in places:
            raise refused(f"the merges of the token {merged!r} do not follow each other")
        places.setdefault(merged, len(places) + 1)
        last = merged
    scores = [0.0] * size
    for token, place in places.items():
        scores[vocabulary[token]] = -float(place)
    return scores


def _write_special(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "unk", "pad")}
    for name, index in ids.items():
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    has_ends = (directory / "generation_config.json").is_file()
    ends = GenerationConfig.from_pretrained(directory).eos_token_id if has_ends else None
    others = [index for index in (ends if isinstance(ends, list) else [ends]) if index not in (None, ids["eos"])]
    if others:
        writer.add_eot_token_id(others[-1])
    around = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(ids["bos"] is not None and around[0] == ids["bos"])
    writer.add_add_eos_token(ids["eos"] is not None and around[-1] == ids["eos"])
    template = tokenizer.chat_template
    if template := template.get("default") if isinstance(template, dict) else template:
        writer.add_chat_template(template)
