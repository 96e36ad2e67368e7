"""What a model's publisher says beside its weights, read before these are: chat template and defaults of generation."""

from __future__ import annotations

import json
from pathlib import Path

from swarm.errors import PolicyError
from swarm.policy.config import MADE_HERE, PolicySettings, read_chat_template, template_values
from swarm.policy.reading import MAX_CONFIG_BYTES, find_file, foreign_files, read_config
from swarm.policy.thinking import Prompted, find_marks, named_marks, prompted
from swarm.policy.turns import QUESTION, RENDERER, always_the_same_day

THINKING_TOKENS = 4_096
"""Default of `generation.max_new_tokens` for a model that thinks, or half of its positions."""
SUGGESTED = ("temperature", "top_p", "top_k", "min_p")
"""Settings of sampling that publishers suggest and `generation` has."""
SWITCHES = ("enable_thinking", "thinking", "reasoning_effort")
"""Names by which templates ask whether, or how long, to think."""


def thinks(settings: PolicySettings) -> bool:
    """Whether the policy thinks before it answers, as it is asked. Raises `PolicyError` for unreadable files."""
    if settings.model in MADE_HERE:
        return False
    template = _template(settings)
    marks = named_marks(settings.thinking_marks) or find_marks(template)
    if marks is None or not template:
        return marks is not None
    values = {"messages": [{"role": "user", "content": QUESTION}], "add_generation_prompt": True}
    try:
        prompt = RENDERER.render(always_the_same_day(template), {**template_values(settings), **values})
    except PolicyError:  # loading it says what is wrong
        return False
    return prompted(marks, prompt) is not Prompted.OFF


def switch_of_thinking(settings: PolicySettings) -> str:
    """The template's own value that decides about thinking; empty where there is none that is known."""
    template = _template(settings)
    return next((name for name in SWITCHES if name in template), "")


def positions_of(settings: PolicySettings) -> int | None:
    """The longest sequence of the model; None where its configuration does not say. Raises `PolicyError`."""
    config = read_config(settings.model, settings.revision, settings.trust_remote_code).get_text_config()
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) else None


def suggested_sampling(settings: PolicySettings) -> dict[str, float]:
    """The publisher's defaults of generation, by the names of fields here. Raises `PolicyError` as above."""
    if settings.model in MADE_HERE:
        return {}
    found = _json(settings, "generation_config.json")
    if found.get("do_sample") is False:
        return {}
    return {name: float(value) for name in SUGGESTED if isinstance(value := found.get(name), int | float)}


def _template(settings: PolicySettings) -> str:
    """The chat template; empty without one."""
    if settings.chat_template is not None:
        return read_chat_template(settings.chat_template)
    with foreign_files(settings.model, "chat template"):
        if file := find_file(settings.model, "chat_template.jinja", settings.revision):
            return _text(file)
    found = _json(settings, "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # several by name
        found = next((each.get("template") for each in found if each.get("name") == "default"), None)
    return found if isinstance(found, str) else ""


def _json(settings: PolicySettings, name: str) -> dict[str, object]:
    """One of the model's files; empty where it has none of this name."""
    with foreign_files(settings.model, name):
        file = find_file(settings.model, name, settings.revision)
        found = json.loads(_text(file)) if file else {}
    return found if isinstance(found, dict) else {}


def _text(file: str) -> str:
    if Path(file).stat().st_size > MAX_CONFIG_BYTES:
        raise PolicyError(f"{Path(file).name} of the model has more than {MAX_CONFIG_BYTES} bytes")
    return Path(file).read_text(encoding="utf-8")
