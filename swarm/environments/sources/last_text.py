"""The last text of a prompt, which choices and the request for the answer's form follow."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from swarm.types import Prompt, Shown, Text


def last_text(prompt: Prompt) -> str:
    """The text that a question ends with; empty if its last message has only pictures, sounds and clips."""
    if isinstance(prompt, str):
        return prompt
    return next((part.text for part in reversed(prompt[-1].parts) if isinstance(part, Text)), "")


def with_last_text(prompt: Prompt, change: Callable[[str], str]) -> Prompt:
    """A prompt whose last text is changed, or added where its last message has none."""
    changed = change(last_text(prompt))
    if isinstance(prompt, str):
        return changed
    *before, last = prompt
    if isinstance(last.content, str):
        return (*before, replace(last, content=changed))
    return (*before, replace(last, content=_changed(last.content, changed)))


def _changed(parts: tuple[Shown, ...], text: str) -> tuple[Shown, ...]:
    places = [place for place, part in enumerate(parts) if isinstance(part, Text)]
    if not places:
        return (*parts, Text(text)) if text else parts
    return (*parts[: places[-1]], Text(text), *parts[places[-1] + 1 :])
