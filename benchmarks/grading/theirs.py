"""Math-Verify in a process that confines itself as a verification worker does; run by an interpreter that has it.

Reads lines `[reference, completion]` as JSON and writes `[right, seconds]`; only LaTeX is extracted, because for plain
expressions Math-Verify calls sympy's `parse_expr`, which evaluates them.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

from math_verify import LatexExtractionConfig, parse, verify

from swarm.environments.sandbox.confinement import Confinement

LATEX = [LatexExtractionConfig(boxed_match_priority=0)]


def is_right(reference: str, completion: str) -> bool:
    """What it says, without its alarms: who reads the lines ends a process that takes long."""
    wanted = reference if "$" in reference or "\\boxed" in reference else f"${reference}$"
    found = [parse(text, LATEX, parsing_timeout=None) for text in (wanted, completion)]
    return bool(verify(*found, timeout_seconds=None))


def main() -> None:
    """Answer line by line."""
    is_right("$1$", r"\boxed{\frac{2}{2}}")  # what is imported late is imported now
    confinement = Confinement()
    confinement.enclose([], [], network=False)
    confinement.seal()
    print(json.dumps([version("math-verify")]), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        try:
            right = is_right(*json.loads(line))
        except Exception:  # of a library that is being measured: no answer
            right = False
        print(json.dumps([right, time.perf_counter() - began]), flush=True)


if __name__ == "__main__":
    main()
