"""A worker imports nothing that draws."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import sys
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
ReasoningGymTask(name="game_of_life").import_libraries()
from reasoning_gym import create_dataset
entry = create_dataset("game_of_life", seed=1, size=1)[0]
print([name for name in sys.modules if name.startswith(("matplotlib", "mpl"))], entry["answer"][:2])
import matplotlib
print(matplotlib.__version__ > "3")
"""


def test_a_data_set_that_could_draw_is_made_without_matplotlib() -> None:
    found = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["[] [[", "True"]
