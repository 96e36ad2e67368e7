"""Fuzz for as long as asked, guided by coverage: `make fuzz ARGS='--seconds 600 configuration "payload group"'`.

Each target runs in a process of its own, one after another, because a defect may end it. The input that did is kept in
`tests/fuzz/corpus`, where the tests find it, and so are inputs that reach new code, as far as `--keep` allows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.corpus import keep
from tests.fuzz.targets import targets


def main() -> int:
    """Returns 1 if there was a defect."""
    options = _options()
    names = options.targets or list(targets())
    defects = 0
    for number, name in enumerate(names, 1):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            command = [sys.executable, "-m", "tests.fuzz.one", name, folder, str(round(options.seconds / len(names)))]
            subprocess.run(command, check=False, stderr=None if options.verbose else subprocess.DEVNULL)
            fresh = sorted((Path(folder) / "reached").glob("*"), key=lambda file: file.stat().st_size)
            found = [file for kind in ("crash", "timeout", "oom") for file in Path(folder).glob(f"{kind}-*")]
            seconds = time.monotonic() - began
            said = f"{len(fresh)} inputs reach new code, {len(found)} defects"
            print(f"{number}/{len(names)} {name}, {seconds:.0f} s: {said}", flush=True)
            for file in found:
                print(f"  kept as {keep(name, file.read_bytes())}")
            for file in fresh[: options.keep]:
                keep(name, file.read_bytes())
            defects += len(found)
    return 1 if defects else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="; ".join(targets()))
    parser.add_argument("--seconds", type=float, default=300, help="for all targets together")
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="N inputs of each target that reach new code")
    parser.add_argument("--verbose", action="store_true", help="what the fuzzer itself says")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(targets()):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(targets())}")
    return options


if __name__ == "__main__":
    sys.exit(main())
