"""What a judge behind an OpenAI-compatible server says."""

from __future__ import annotations

import json


def says(text: str, tokens: int = 30) -> tuple[int, bytes]:
    """A chat completion."""
    message = {"role": "assistant", "content": text}
    body = {"id": "1", "choices": [{"index": 0, "message": message}], "usage": {"total_tokens": tokens}}
    return 200, json.dumps(body).encode()
