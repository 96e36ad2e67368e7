"""Tries a tokenizer: a script for `reading.py` only, which imports nothing of this project.

A `tokenizer.json` has regular expressions and replacements of whoever made the model, which no call of the library can
be stopped in. So one is tried in this process, which has little memory and time, before it is read in a node's.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from collections.abc import Iterator

from tokenizers import Tokenizer

LOAD_S = 60
"""Processor time for reading the file."""
LIMIT_S = 2.0
"""Processor time for one text of `LENGTH` characters."""
LENGTH = 8_192
MAX_MEMORY_BYTES = 6 * 2**30
MAX_FILE_BYTES = 2**28
MAX_GROWTH = 32
"""Most tokens of a byte."""
MAX_PATTERN_CHARS = 8_192
"""Most characters of all patterns and replacements together; those of the largest known models have 1,500."""
COMMON = "a1 \n!é"
MAX_WORDS = 24
MAX_ERROR_CHARS = 300


def patterns(part: object) -> Iterator[str]:
    """The patterns and replacements in a part of the file."""
    if isinstance(part, list):
        for each in part:
            yield from patterns(each)
    elif isinstance(part, dict):
        for name, value in part.items():
            if name in ("Regex", "String", "content", "prepend") and isinstance(value, str):
                yield value
            else:
                yield from patterns(value)


def texts(found: list[str]) -> Iterator[str]:
    """Long runs of common letters and of those that patterns name, after what patterns name before them, and with ends
    that fit, and that fit none."""
    words = list(dict.fromkeys(word for each in found for word in re.findall(r"[^\W_]+", each)))[:MAX_WORDS]
    for letter in COMMON:
        yield letter * LENGTH + "\0"
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        for start in {"", before}:
            for end in {"", "!", "\0", after}:
                yield start + word[-1] * LENGTH + end


def problem(path: str) -> str:
    """What is wrong with a tokenizer; empty if nothing is."""
    with open(path, "rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        return f"it has over {MAX_FILE_BYTES} bytes"
    parts = json.loads(content)
    found = [text for name in ("normalizer", "pre_tokenizer", "decoder") for text in patterns(parts.get(name))]
    if (num := sum(map(len, found))) > MAX_PATTERN_CHARS:
        return f"its patterns have {num} characters, more than {MAX_PATTERN_CHARS}"
    tokenizer = Tokenizer.from_str(content.decode())
    for text in texts(found):
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)  # which ends this process
        ids = tokenizer.encode(text).ids
        tokenizer.decode(ids)
        if len(ids) > MAX_GROWTH * len(text.encode()):
            return f"it makes {len(ids)} tokens of {len(text)} characters"
    return ""


def main() -> None:
    """Print what is wrong."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_PROF, LOAD_S)
    try:
        said = problem(sys.argv[1])
    except BaseException as error:  # the library's panics are no `Exception`
        said = f"{type(error).__name__}: {error}"
    print(json.dumps(said[:MAX_ERROR_CHARS]))


if __name__ == "__main__":
    main()
