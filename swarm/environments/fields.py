"""Fields that several kinds of task have."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from swarm.foreign import NAME_CHARS, is_name

MAX_TASK_NAME_CHARS = 64
MAX_WEIGHT = 1e6
MAX_TARGET_CHARS = 512
MAX_HUB_ID_CHARS = 96
MAX_HUB_NAME_CHARS = 128

TaskName = Annotated[str, Field(max_length=MAX_TASK_NAME_CHARS, pattern=f"^[{NAME_CHARS}]+$")]
Weight = Annotated[float, Field(gt=0, le=MAX_WEIGHT)]
Target = Annotated[str, Field(max_length=MAX_TARGET_CHARS, pattern=r"^[^:]+(:[A-Za-z_]\w*)?$")]
"""Code of one's own, as in `swarm/environments/code.py`."""


def is_hub_id(path: str) -> bool:
    """Whether a path is `OWNER/NAME` by the hub's rules, and thus not a file, a URL or a packaged builder's name."""
    word = r"\w(?:[\w.-]*\w)?"
    plain = len(path) <= MAX_HUB_ID_CHARS and re.fullmatch(f"{word}/{word}", path, re.ASCII) is not None
    return plain and "--" not in path and ".." not in path and not path.endswith((".git", ".py"))


def is_hub_name(text: str) -> bool:
    """Whether a text is a name inside a repository on the hub, and thus not a file elsewhere."""
    return is_name(text, MAX_HUB_NAME_CHARS) and ".." not in text and not text.startswith(("/", "~"))
