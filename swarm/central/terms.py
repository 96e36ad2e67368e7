"""What a learner's workers must share with it: otherwise it drops all that they sample.

The learner names its terms in the manifest of the run that it founds and in its answers to heartbeats; a worker names
its own in heartbeats. Each side says what differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from msgspec.structs import asdict

from swarm.foreign import clean
from swarm.types import Sampling, Terms

SAMPLED = ("temperature", "top_p", "top_k", "min_p")
"""What changes the distribution of a token."""
LOCAL = "local:"
"""Begins the public name of a model in a directory, which may be the same as one of the hub."""
UNROUNDED = "compute"
"""The default of the setting, and like `float32` the model's own weights."""
NO_ADAPTERS = "none"
MAX_SHOWN_CHARS = 100


def make_terms(
    model: str,
    sampling: Sampling,
    system_prompt: str | None,
    tokenizer_hash: str,
    chat_template: object,
    rounded: str = "",
    processor: str = "",
    adapters: str = NO_ADAPTERS,
    base: str = "",
) -> Terms:
    """A node's terms. `model` is its public name; without a loaded model, `tokenizer_hash` is empty. `processor` is the
    digest of what makes a model's inputs of pictures and sounds, `base` that of the weights beneath `adapters`."""
    return Terms(
        model=model,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        system_prompt=_digest(system_prompt),
        tokenizer_hash=tokenizer_hash,
        template=_digest(None if chat_template is None else str(chat_template)) if tokenizer_hash else "",
        rounded=rounded,
        processor=processor,
        adapters=adapters,
        base=base,
    )


def differences(worker: Terms, learner: Terms) -> Iterator[str]:
    """What a worker must change to work for the learner, a line for each."""
    ours, theirs = asdict(worker), asdict(learner)
    by_name = not (worker.model.startswith(LOCAL) or learner.model.startswith(LOCAL))
    if by_name and worker.model != learner.model:
        model = clean(learner.model, MAX_SHOWN_CHARS)
        yield f"the learner trains {model}, not {clean(worker.model, MAX_SHOWN_CHARS)}: set --policy.model {model}"
    elif worker.tokenizer_hash and learner.tokenizer_hash and worker.tokenizer_hash != learner.tokenizer_hash:
        yield "the learner's tokenizer is another: get the same files of the model (policy.revision)"
    for field in SAMPLED:
        if (own := ours[field]) != (wanted := theirs[field]):
            yield f"the learner samples with {field} {wanted}, not {own}: set --generation.{field} {wanted}"
    if worker.adapters and learner.adapters and worker.adapters != learner.adapters:
        yield _other_adapters(worker.adapters, learner.adapters)
    elif worker.base and learner.base and worker.base != learner.base:
        yield "the learner's frozen weights are another model's: get the same files of the model (policy.revision)"
    if worker.rounded != learner.rounded:
        own, wanted = (clean(each, MAX_SHOWN_CHARS) or UNROUNDED for each in (worker.rounded, learner.rounded))
        yield f"the learner's frozen weights are {wanted}, not {own}: set --policy.lora.frozen_dtype {wanted}"
    if worker.system_prompt != learner.system_prompt:
        yield "the learner's system prompt is another: set the same policy.system_prompt"
    if worker.template and learner.template and worker.template != learner.template:
        yield "the learner's chat template is another: get the same files of the model (policy.revision)"
    if worker.processor and learner.processor and worker.processor != learner.processor:
        yield "the learner's processor reads pictures or sounds otherwise: get the same files of the model"


def _other_adapters(own: str, wanted: str) -> str:
    if wanted == NO_ADAPTERS:
        return "the learner trains all weights, without adapters: set --policy.lora.rank 0"
    own, wanted = clean(own, MAX_SHOWN_CHARS), clean(wanted, MAX_SHOWN_CHARS)
    return (
        f"the learner's adapters are {wanted}, not {own}: set --policy.lora.rank, --policy.lora.alpha and "
        "--policy.lora.targets as it does"
    )


def _digest(text: str | None) -> str:
    """Of a text, or of its absence."""
    return hashlib.blake2b(b"" if text is None else b"=" + text.encode(), digest_size=8).hexdigest()
