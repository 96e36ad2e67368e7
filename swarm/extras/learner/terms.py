"""What a worker must share with its learner, which drops all that it samples otherwise.

The learner names its terms in the manifest of the run that it founds and in its answers to heartbeats, a worker in
heartbeats; each side says what differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from swarm.config import NodeConfig, Values
from swarm.errors import ConfigError
from swarm.policy.config import LoraSettings, public_name, template_values
from swarm.sanitize import clean
from swarm.types import RunManifest, Sampling, Terms

if TYPE_CHECKING:
    from swarm.policy.loading import Policy

SAMPLED = ("temperature", "top_p", "top_k", "min_p")
"""Settings that change the distribution of a token."""
LOCAL = "local:"
"""Begins the public name of a model in a directory, which may be the same as one of the hub."""
UNROUNDED = "compute"
"""The default of the setting, and like `float32` the model's own weights."""
NO_ADAPTERS = "none"
MAX_SHOWN_CHARS = 100
MAX_TARGETS_CHARS = 128
"""Longer lists of adapted layers are compared by a digest: what a manifest carries is bounded."""


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
    template_kwargs: Mapping[str, object] | None = None,
) -> Terms:
    """A node's terms. `model` is its public name; without a loaded model, `tokenizer_hash` is empty. `processor` is the
    digest of what makes a model's inputs of images and sounds, `base` that of the weights beneath `adapters`;
    `template_kwargs` are values of the chat template."""
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
        template_kwargs=_as_json(template_kwargs or {}),
    )


def differences(worker: Terms, learner: Terms) -> Iterator[str]:
    """Changes that let a worker work for the learner, a line for each."""
    ours, theirs = asdict(worker), asdict(learner)
    by_name = not (worker.model.startswith(LOCAL) or learner.model.startswith(LOCAL))
    if by_name and worker.model != learner.model:
        model = clean(learner.model, MAX_SHOWN_CHARS)
        yield f"the learner trains {model}, not {clean(worker.model, MAX_SHOWN_CHARS)}: set --policy.model {model}"
    elif worker.tokenizer_hash and learner.tokenizer_hash and worker.tokenizer_hash != learner.tokenizer_hash:
        yield "the learner's tokenizer is another: get the same files of the model (policy.revision)"
    for name in SAMPLED:
        if (own := ours[name]) != (wanted := theirs[name]):
            yield f"the learner samples with {name} {wanted}, not {own}: set --generation.{name} {wanted}"
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
        yield (
            "the learner's chat template is another: get the same files of the model (policy.revision), and the same "
            "policy.chat_template"
        )
    if worker.template_kwargs and learner.template_kwargs and worker.template_kwargs != learner.template_kwargs:
        own, wanted = (clean(each.template_kwargs, MAX_SHOWN_CHARS) for each in (worker, learner))
        yield (
            f"the learner's chat template has the values {wanted}, not {own}: set --policy.chat_template_kwargs "
            f"'{wanted}'"
        )
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


def _as_json(values: Mapping[str, object]) -> str:
    """The values if they are short, else a digest: what a manifest carries is bounded."""
    text = json.dumps(values, sort_keys=True)
    return text if len(text) <= MAX_SHOWN_CHARS else _digest(text)


def _digest(text: str | None) -> str:
    """Digest of a text, or of its absence."""
    return hashlib.blake2b(b"" if text is None else b"=" + text.encode(), digest_size=8).hexdigest()


def terms_of(config: NodeConfig, policy: Policy | None = None) -> Terms:
    """What a learner and its workers must share; without a loaded policy, as far as the configuration says."""
    return make_terms(
        public_name(config.policy.model),
        config.generation.sampling(),
        config.policy.system_prompt,
        policy.tokenizer_hash if policy is not None else "",
        policy.tokenizer.chat_template if policy is not None else None,
        config.policy.lora.quantized,
        policy.media.reader.digest if policy is not None and policy.media is not None else "",
        _adapters(config.policy.lora),
        policy.base if policy is not None else "",
        template_values(config.policy),
    )


def _adapters(lora: LoraSettings) -> str:
    """What makes adapters of the same weights the same policy."""
    if not lora.rank:
        return NO_ADAPTERS
    targets = " ".join(sorted(set(lora.targets))) or "all"
    if len(targets) > MAX_TARGETS_CHARS:
        targets = hashlib.blake2b(targets.encode(), digest_size=8).hexdigest()
    return f"rank {lora.rank}, alpha {lora.alpha}, targets {targets}"


def check_terms(config: NodeConfig, manifest: RunManifest) -> None:
    """Raises `ConfigError` when a worker differs from the learner that founded the run in what both must share."""
    if manifest.terms is None or config.follow.learner not in (None, manifest.founder):
        return
    if lines := list(differences(terms_of(config), manifest.terms)):
        raise ConfigError(f"run {manifest.run_id} cannot use this worker: {'; '.join(lines)}")


def check_only_learner(peer_id: str, manifest: RunManifest) -> None:
    """Raises `ConfigError` for a learner `peer_id` in a run that another one founded: workers sample for that one."""
    if manifest.terms is not None and manifest.founder != peer_id:
        raise ConfigError(
            f"run {manifest.run_id} has a learner already, its founder {manifest.founder}: found a run of your own, "
            "without --bootstrap and with another --out, or work for it with swarm work"
        )


def sampling_of(manifest: RunManifest) -> Values:
    """The learner's sampling as a layer of a worker's configuration."""
    terms = manifest.terms
    return {"generation": {name: asdict(terms)[name] for name in SAMPLED}} if terms is not None else {}
