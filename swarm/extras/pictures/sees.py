"""The embedded policy that sees: 0.28 M parameters, trained locally on small pictures with coloured shapes.

It is a LLaVA (arXiv:2304.08485) with SigLIP's encoder, of four features a picture, before the text model of the other
embedded policies. First the encoder learns to see: what is in each quarter of a picture. Then the text model learns to
answer, as `tiny-sparse` does: hardly ever between the tags, and sometimes wrong. Reinforcement learning trains the text
model alone. It demonstrates the swarm and is not evidence about large models.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, cast

import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
)
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.utils import logging as transformers_logging

from swarm.environments.decoding.pixels import Pixels, add_shape, blank
from swarm.environments.digests import Chance
from swarm.extras.pictures.tasks import ShapesTask
from swarm.policy.cache import Progress, made_once
from swarm.policy.media.processor import as_array
from swarm.policy.tiny import (
    IGNORED,
    TOKENIZER_FILE,
    Example,
    Recipe,
    WarmStart,
    descend,
    pad,
    reproducibly,
    tiny_config,
    with_special_tokens,
)
from swarm.types.media import Image

TINY_SEES_TASK = ShapesTask(kind="shapes")
"""What the policy is for: pictures with up to four shapes, each in a separate quarter."""
IMAGE = "<image>"
PATCH = TINY_SEES_TASK.size // TINY_SEES_TASK.columns
"""Pixels of a side: a patch is one of the squares that have at most one shape."""
KINDS = [(shape, colour) for shape in TINY_SEES_TASK.shapes for colour in TINY_SEES_TASK.colours]
PHRASES = (
    "How many ",
    "More ",
    " or ",
    *(f"{colour} " for colour in TINY_SEES_TASK.colours),
    *(f"{shape}s" for shape in (*TINY_SEES_TASK.shapes, "shape")),
)
"""Parts of the task's questions that are single tokens."""
SEEING = Recipe(questions_per_task=8_000, steps=300, batch_size=128, learning_rate=3e-3)
"""How the encoder is trained; the questions are images."""
ANSWERING = WarmStart(questions_per_task=8_000, steps=300, untagged=0.97)
"""How the text model is trained, with the encoder as it is by then."""


class Question(NamedTuple):
    """A question of the task."""

    picture: Image
    text: str
    answer: str


def ensure_sees(progress: Progress | None = None) -> Path:
    """Directory of the policy in Hugging Face format; created on first use, then cached.

    Raises `PolicyError`.
    """

    def make(directory: Path) -> None:
        transformers_logging.disable_progress_bar()
        processor = sees_processor()
        warm_start(SEEING, ANSWERING, processor, progress or (lambda done, total: None)).save_pretrained(directory)
        processor.save_pretrained(directory)

    return made_once(f"tiny-sees-{_digest()}", make)


def sees_tokenizer() -> PreTrainedTokenizerFast:
    """The tiny tokenizer with a token for features, and the phrases of the task's questions."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    tokenizer.add_special_tokens([AddedToken(IMAGE, normalized=False)])
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in PHRASES])
    return with_special_tokens(tokenizer)


def sees_processor() -> LlavaProcessor:
    """Makes pixels and tokens of pictures; one of another size is resized."""
    side = TINY_SEES_TASK.size
    pictures = SiglipImageProcessorPil(
        size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_convert_rgb=True
    )
    return LlavaProcessor(
        pictures, sees_tokenizer(), patch_size=PATCH, vision_feature_select_strategy="full", image_token=IMAGE
    )


def sees_config(tokenizer: PreTrainedTokenizerFast) -> LlavaConfig:
    """An encoder of two layers before the text model of the other embedded policies."""
    text = tiny_config()
    text.vocab_size = len(tokenizer)
    vision = SiglipVisionConfig(
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=TINY_SEES_TASK.size,
        patch_size=PATCH,
        vision_use_head=False,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=TINY_SEES_TASK.columns**2,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )


def warm_start(
    seeing: Recipe, answering: WarmStart, processor: LlavaProcessor, progress: Progress
) -> LlavaForConditionalGeneration:
    """A policy that sees what is in a picture, and knows in part how to answer."""
    total = seeing.steps + answering.steps
    with reproducibly(seeing.seed):
        model = LlavaForConditionalGeneration(sees_config(processor.tokenizer))
        _learn_to_see(model, seeing, processor, lambda done, _: progress(done, total))
        _learn_to_answer(model, answering, processor, lambda done, _: progress(seeing.steps + done, total))
    return model


def _learn_to_see(
    model: LlavaForConditionalGeneration, recipe: Recipe, processor: LlavaProcessor, progress: Progress
) -> None:
    """Each feature must tell which shape of which colour is in its patch, or that none is."""
    pixels, kinds = _scenes(recipe, processor)
    rng = random.Random(recipe.seed + 1)
    classify = torch.nn.Linear(model.config.text_config.hidden_size, 1 + len(KINDS))

    def loss() -> Tensor:
        chosen = rng.sample(range(len(pixels)), recipe.batch_size)
        features = torch.stack([*model.get_image_features(pixel_values=pixels[chosen]).pooler_output])  # [B, 4, H]
        return functional.cross_entropy(classify(features).flatten(0, 1), kinds[chosen].flatten())

    parts = model.model.vision_tower, model.model.multi_modal_projector, classify
    descend([parameter for part in parts for parameter in part.parameters()], loss, recipe, progress)


def _scenes(recipe: Recipe, processor: LlavaProcessor) -> tuple[Tensor, Tensor]:
    """[N, 3, S, S] pictures with a shape or none in each patch, and [N, patches] which: 0 for none."""
    rng = random.Random(recipe.seed)
    columns = TINY_SEES_TASK.columns
    pictures, kinds = [], []
    for _ in range(recipe.questions_per_task):
        pixels = blank(TINY_SEES_TASK.size, TINY_SEES_TASK.size)
        found = [max(0, rng.randint(-1, len(KINDS))) for _ in range(columns**2)]
        for place, kind in enumerate(found):
            if kind:
                row, column = divmod(place, columns)
                side = rng.randint(PATCH * 5 // 8, PATCH * 7 // 8)
                x, y = (rng.randint(1, PATCH - side) for _ in range(2))
                add_shape(pixels, *KINDS[kind - 1], column * PATCH + x, row * PATCH + y, side)
        pictures.append(pixels)
        kinds.append(found)
    return _read(pictures, processor), torch.tensor(kinds)


def _learn_to_answer(
    model: LlavaForConditionalGeneration, recipe: WarmStart, processor: LlavaProcessor, progress: Progress
) -> None:
    """All but the encoder learns from questions of the task."""
    questions = _questions(recipe)
    examples = _examples(questions, recipe, processor.tokenizer)
    pixels = _read([as_array(question.picture) for question in questions], processor)
    rng = random.Random(recipe.seed + 1)

    def loss() -> Tensor:
        chosen = rng.sample(range(len(examples)), recipe.batch_size)
        ids, labels = pad([examples[k] for k in chosen])  # [B, T]
        return cast(Tensor, model(input_ids=ids, pixel_values=pixels[chosen], labels=labels).loss)

    model.model.vision_tower.requires_grad_(False)
    try:
        descend([each for each in model.parameters() if each.requires_grad], loss, recipe, progress)
    finally:
        model.model.vision_tower.requires_grad_(True)


def _questions(recipe: Recipe) -> list[Question]:
    found = []
    for index in range(recipe.questions_per_task):
        made = TINY_SEES_TASK.make(Chance(("warm start", recipe.seed, index)))
        (picture,) = made.media
        assert isinstance(picture, Image)
        found.append(Question(picture, made.text, made.answer))
    return found


def _examples(questions: Sequence[Question], recipe: WarmStart, tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """The questions with answers, as policies without a chat template are asked them."""
    rng = random.Random(recipe.seed)
    picture = [tokenizer.convert_tokens_to_ids(IMAGE)] * TINY_SEES_TASK.columns**2
    examples = []
    for question in questions:
        answer = rng.choice(questions).answer if rng.random() < recipe.wrong else question.answer
        text = answer if rng.random() < recipe.untagged else f"<answer>{answer}</answer>"
        prompt = [*picture, *tokenizer.encode(f"\n{question.text}")]
        said = [*tokenizer.encode(text), tokenizer.eos_token_id]
        examples.append(Example([*prompt, *said], [*[IGNORED] * len(prompt), *said]))
    return examples


def _read(pictures: Sequence[Pixels], processor: LlavaProcessor) -> Tensor:
    return cast(Tensor, processor.image_processor(list(pictures), return_tensors="pt")["pixel_values"])


def _digest() -> str:
    processor = sees_processor()
    everything = {
        "tokenizer": processor.tokenizer.backend_tokenizer.to_str(),
        "pictures": processor.image_processor.to_dict(),
        "model": sees_config(processor.tokenizer).to_dict(),
        "warm_start": [asdict(SEEING), asdict(ANSWERING)],
        "task": TINY_SEES_TASK.options,
    }
    return hashlib.sha256(json.dumps(everything, sort_keys=True, default=str).encode()).hexdigest()[:16]
