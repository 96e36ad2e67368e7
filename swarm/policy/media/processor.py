"""Reads a model's processor: the tokens of an image or sound, the encoder's inputs, and the modalities of a policy.

The processor's parts are used one medium at a time: what a question's other parts are does not change how one is read.
Clips are read as their frames, each after its time, as models without an encoder for clips are given them. So no video
processor is needed; those of transformers need torchvision. Images are always resized by Pillow: torchvision would
give other pixels, and a policy would not be the same on two machines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils import cached_file

from swarm.distribution import how_to_install
from swarm.errors import PolicyError
from swarm.policy.config import MADE_HERE, TINY_SEES, PolicySettings
from swarm.policy.media.features import Kind, Known, Medium, TokenIds
from swarm.policy.reading import foreign_files, has_encoder, read_config
from swarm.types import Shown, Text
from swarm.types.media import Audio, Image, Modality, Video, media_digest

EXTRA = f"reading pictures and sounds needs Pillow and num2words: {how_to_install('media')}"

VIDEOS = "video_processor"


class Rope(Protocol):
    """A model's rule for positions of features."""

    def __call__(self, ids: Tensor, kinds: Tensor, **grids: Tensor) -> tuple[Tensor, Tensor]:
        """[3, 1, L] positions of ids [1, L]. See `get_rope_index` of Qwen2-VL."""


class Reader:
    """Makes media of parts."""

    def __init__(self, processor: ProcessorMixin, config: PreTrainedConfig, rope: Rope | None) -> None:
        """`config` is the model's; `rope` is None where positions are plain."""
        self._processor = processor
        self._tokenizer = cast(PreTrainedTokenizerBase, processor.tokenizer)
        self._rope = rope
        self._known = Known()
        self._feature_ids = {
            kind: token for kind, token in feature_ids(config).items() if getattr(processor, f"{kind}_token", None)
        }

    @property
    def modalities(self) -> frozenset[Modality]:
        """The modalities of the model."""
        return readable(self._feature_ids)

    @property
    def template(self) -> str | None:
        """The processor's chat template."""
        found: str | None = getattr(self._processor, "chat_template", None) or self._tokenizer.chat_template
        return found

    @property
    def digest(self) -> str:
        """Digest of all settings: samplers and trainers must preprocess images alike."""
        settings = json.dumps(_plain(self._processor.to_dict()), sort_keys=True, default=str)
        return hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of media that the model has encoders for."""
        return tuple(self._feature_ids)

    def feature_id(self, kind: Kind) -> int:
        """The token that stands for a feature."""
        return self._feature_ids[kind]

    def token(self, kind: Kind) -> str:
        """The text that stands for a medium in a prompt, before it is expanded."""
        return str(getattr(self._processor, f"{kind}_token"))

    def tokens(self) -> list[str]:
        """Tokens of all kinds."""
        return [self.token(kind) for kind in self._feature_ids]

    def escaped(self, text: str) -> str:
        """A text that spells no such token: a question may repeat text of untrusted peers."""
        for token in self.tokens():
            text = text.replace(token, f"{token[:1]} {token[1:]}")
        return text

    def ids(self, part: Image | Audio) -> TokenIds:
        """The tokens of an image or sound."""
        medium = self.medium(part)
        return TokenIds(medium.ids, [medium])

    def spread(self, parts: Sequence[Shown]) -> Iterator[Text | Image | Audio]:
        """The parts with each clip as its frames."""
        for part in parts:
            if isinstance(part, Video):
                yield from frames(part)
            else:
                yield part

    def save(self, directory: Path) -> None:
        """Write the processor's files."""
        self._processor.save_pretrained(directory)

    def medium(self, part: Image | Audio) -> Medium:
        """The medium of an image or sound; one object for equal content."""
        digest = media_digest([part])
        known = self._known.get(digest)
        return known if known is not None else self._read(part, digest)

    def __getitem__(self, number: int) -> Medium:
        """The medium with a number, which somebody holds."""
        return self._known[number]

    def _read(self, part: Image | Audio, digest: str) -> Medium:
        kind: Kind = "image" if isinstance(part, Image) else "audio"
        given: dict[str, Any] = {"images": [as_array(part)]} if isinstance(part, Image) else self._sound(part)
        found = self._processor(text=[self.token(kind)], return_tensors="pt", add_special_tokens=False, **given)
        ids: list[int] = found.pop("input_ids")[0].tolist()
        feature = self._feature_ids[kind]
        expanded = [None if each == feature else each for each in ids]
        if None not in expanded:
            raise PolicyError(f"the processor makes no tokens of {part}")
        inputs = {name: value for name, value in found.items() if isinstance(value, Tensor)}
        for name in ("attention_mask", "token_type_ids", "mm_token_type_ids"):
            inputs.pop(name, None)
        return self._known.add(digest, kind, expanded, inputs, self._grid(ids, feature, inputs))

    def _sound(self, part: Audio) -> dict[str, Any]:
        extractor = getattr(self._processor, "feature_extractor", None) or self._processor.audio_processor
        return {"audio": [waveform(part, int(extractor.sampling_rate))], "sampling_rate": int(extractor.sampling_rate)}

    def _grid(self, ids: Sequence[int], feature: int, inputs: dict[str, Tensor]) -> Tensor | None:
        """Positions of the features by the model's own rule."""
        if self._rope is None or "image_grid_thw" not in inputs:
            return None
        row = torch.tensor([ids])
        kinds = (row == feature).int()
        positions, _ = self._rope(row, kinds, image_grid_thw=inputs["image_grid_thw"])
        found = positions[:, 0][:, kinds[0].bool()]
        return found - found.min()


def frames(clip: Video) -> Iterator[Text | Image]:
    """The frames of a clip, each after its time."""
    size = clip.width * clip.height * 3
    for number in range(clip.num_frames):
        yield Text(f"{number / clip.frames_per_s:.1f} s:")
        yield Image(clip.width, clip.height, clip.frames[number * size : (number + 1) * size])


def as_array(part: Image) -> npt.NDArray[np.uint8]:
    """[height, width, 3]"""
    return np.frombuffer(part.pixels, np.uint8).reshape(part.height, part.width, 3)


def waveform(part: Audio, rate: int) -> npt.NDArray[np.float32]:
    """[N] samples in [-1, 1) at another rate."""
    samples: npt.NDArray[np.float32] = (np.frombuffer(part.samples, "<i2") / 2**15).astype(np.float32)
    if part.rate == rate:
        return samples
    from scipy.signal import resample_poly

    return np.asarray(resample_poly(samples, rate, part.rate), np.float32)


def read_processor(source: str, config: PreTrainedConfig, **options: object) -> ProcessorMixin:
    """The processor in a directory or on the hub, without its video processor. Raises `PolicyError`."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # imports all kinds of processors

    name = PROCESSOR_MAPPING_NAMES.get(config.model_type)
    if name is None:
        raise PolicyError(f"there is no processor for models of the type {config.model_type}")
    with foreign_files(source, "processor"):
        try:
            made: ProcessorMixin = without_videos(getattr(transformers, name)).from_pretrained(
                source, backend="pil", **options
            )
        except ImportError as error:
            raise PolicyError(f"{EXTRA} ({' '.join(str(error).split())})") from error
    return made


def without_videos(processor: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """The same class, whose video processor is None."""
    attributes = processor.get_attributes()
    if VIDEOS not in attributes:
        return processor

    class WithoutVideos(processor):  # type: ignore[misc]
        @classmethod
        def get_attributes(cls) -> list[str]:
            return [name for name in attributes if name != VIDEOS]

        @classmethod
        def _get_arguments_from_pretrained(cls, *path: object, **options: object) -> list[object]:
            parts: list[object] = super()._get_arguments_from_pretrained(*path, **options)
            parts.insert(attributes.index(VIDEOS), None)
            return parts

    WithoutVideos.__name__ = processor.__name__  # files name the class
    return WithoutVideos


def _plain(settings: object) -> object:
    """Settings without paths of this machine and versions of libraries."""
    if isinstance(settings, dict):
        left_out = ("name_or_path", "_name_or_path", "transformers_version", "processor_class")
        return {key: _plain(value) for key, value in settings.items() if key not in left_out}
    return settings


TOKENS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {"image": ("image_token_id", "image_token_index"), "audio": ("audio_token_id", "audio_token_index")}
)
"""Fields of a model's configuration with the id that stands for a feature."""
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
    """The modalities of a model with encoders of these kinds; a clip is read as its frames."""
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
    """The modalities of a policy beside text. Raises `PolicyError` for a model whose configuration cannot be read."""
    if settings.model in MADE_HERE:
        return readable({"image": 0} if settings.model in SEEING else {})
    config = read_config(settings.model, settings.revision, settings.trust_remote_code)
    if not (has_encoder(config) and has_processor(settings.model, settings.revision)):
        return frozenset()
    return readable(feature_ids(config))
