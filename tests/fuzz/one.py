"""Fuzzes one target, in a process of its own: `python -m tests.fuzz.one TARGET FOLDER SECONDS`.

FOLDER gets `reached/` with inputs that reach new code, and `crash-*`, `timeout-*` or `oom-*` for a defect.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

MAX_INPUT_BYTES = 20_000
SLOW_S = 5
"""Seconds for one input above which it counts as a defect."""
MAX_MB = 2_000


def main(name: str, folder: Path, seconds: int) -> None:
    """Does not return: the fuzzer ends the process."""
    with atheris.instrument_imports(include=["swarm", "nodes"]):
        from tests.fuzz.targets import targets

        target = targets()[name]
    from tests.fuzz.corpus import of_target

    reached, seeds = folder / "reached", folder / "seeds"
    reached.mkdir()
    seeds.mkdir()
    for number, content in enumerate([*target.seeds, *of_target(name)]):
        target(content)
        (seeds / str(number)).write_bytes(content)
    limits = [f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", f"-timeout={SLOW_S}"]
    limits += [f"-rss_limit_mb={MAX_MB}", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *limits, str(reached), str(seeds)], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
