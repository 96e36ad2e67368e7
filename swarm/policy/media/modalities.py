"""What a policy can read beside text, known before its weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from transformers import PreTrainedConfig
from transformers.utils import cached_file

from swarm.policy.config import MADE_HERE, TINY_SEES, PolicySettings
from swarm.policy.media.ids import Kind
from swarm.policy.reading import has_encoder, read_config
from swarm.types.media import Modality

TOKENS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {"image": ("image_token_id", "image_token_index"), "audio": ("audio_token_id", "audio_token_index")}
)
"""Where a model's configuration has the id that stands for a feature."""
FILES = ("processor_config.json", "preprocessor_config.json")
"""One of them is in every directory with a processor."""
SEEING = (TINY_SEES,)
"""Embedded policies that see."""


def feature_ids(config: PreTrainedConfig) -> dict[Kind, int]:
    """The ids that stand for features, by what they are of."""
    found = {}
    for kind, names in TOKENS.items():
        tokens = [token for name in names if (token := getattr(config, name, None)) is not None]
        if tokens:
            found[kind] = int(tokens[0])
    return found


def readable(kinds: Mapping[Kind, object]) -> frozenset[Modality]:
    """What a model with encoders of these kinds reads; a clip is read as its frames."""
    found: set[Modality] = set(kinds)
    return frozenset(found | {"video"} if "image" in found else found)


def has_processor(source: str, revision: str | None) -> bool:
    """Whether a directory, or a repository of the hub, has a processor beside its tokenizer."""
    if Path(source).is_dir():
        return any((Path(source) / name).is_file() for name in FILES)
    return any(
        cached_file(source, name, revision=revision, _raise_exceptions_for_missing_entries=False) is not None
        for name in FILES
    )


def modalities_of(settings: PolicySettings) -> frozenset[Modality]:
    """What a policy reads beside text. Raises `PolicyError` for a model whose configuration cannot be read."""
    if settings.model in MADE_HERE:
        return readable({"image": 0} if settings.model in SEEING else {})
    config = read_config(settings.model, settings.revision, settings.trust_remote_code)
    if not (has_encoder(config) and has_processor(settings.model, settings.revision)):
        return frozenset()
    return readable(feature_ids(config))
