"""Scores hostile answers on data sets and tells what the interpreter was asked to do meanwhile.

    python -m tests.environments.tripwire [--library] [DATASET ...]      JSON on the standard output's last line

Audit hooks cannot be removed again, so this is a process of its own. `--library` hands the answers to the library
itself, which shows that the tripwire trips.
"""

from __future__ import annotations

import io
import json
import random
import signal
import sys
import time
from contextlib import redirect_stdout

from swarm.environments.sources.reasoning_gym import ReasoningGymSource, ReasoningGymTask, make_dataset
from tests.environments.hostile_answers import ESCAPES, HOSTILE

WATCHED = ("exec", "compile", "import", "open", "os.", "subprocess.", "ctypes.", "socket.", "pickle.", "shutil.")
EVALUATED_QUESTIONS = {"bitwise_arithmetic": "problem", "number_sorting": "answer"}
"""Data sets whose scorers evaluate a text of the question, which the library made from a seed."""
ALARM_S = 60


class Tripwire:
    """Notes the watched events while it is armed, but those of evaluating a text that is no answer."""

    def __init__(self) -> None:
        self.armed = False
        self.own_text = ""
        self.noted: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.armed or not event.startswith(WATCHED):
            return
        source = arguments[0] if arguments else None
        if self.own_text and (
            (event == "compile" and source in (self.own_text, self.own_text.encode()))
            or (event == "exec" and getattr(source, "co_filename", "") == "<string>")
        ):
            return
        self.noted.append(f"{event} {source!r:.120}")


def try_all(dataset: str, answers: list[str], wire: Tripwire, through_library: bool) -> dict[str, object]:
    """What came of a data set's hostile answers: events, rewards above 0, the longest processor time."""
    task = ReasoningGymTask(name=dataset)
    source = ReasoningGymSource(task)
    questions = [source.question(11, index) for index in range(2)]
    slowest, rewarded = (0.0, ""), []
    for question in questions:
        entry = source._entry(question.ref.seed, question.ref.index)  # type: ignore[attr-defined]
        scorer = make_dataset(dataset, 0, {})
        metadata = {**entry, **entry["metadata"]}  # type: ignore[dict-item]
        own_text = str(metadata.get(EVALUATED_QUESTIONS.get(dataset, ""), ""))
        for warm in (str(entry["answer"]), "1, 2", "[1]", "", "\n"):  # whatever it imports late
            source.score(question.ref, f"<answer>{warm}</answer>")
        for answer in answers:
            started = time.thread_time()
            wire.own_text, wire.armed = own_text, True
            try:
                if through_library:
                    scorer.score_answer(answer, entry)
                    reward = 0.0
                else:
                    reward = source.score(question.ref, f"<answer>{answer}</answer>")
            except Exception as error:
                reward = 0.0
                wire.noted.append(f"raised {error!r:.120}") if not through_library else None
            wire.armed = False
            slowest = max(slowest, (time.thread_time() - started, answer[:60]))
            if reward > 0 and answer.strip().casefold() != str(entry["answer"]).casefold():
                rewarded.append((answer[:60], reward, str(entry["answer"])[:60]))
    noted, wire.noted = wire.noted[:5], []
    return {"events": noted, "rewarded": rewarded, "slowest_s": slowest[0], "slowest": slowest[1]}


def main() -> None:
    """Try every hostile answer, or with `--library` the escapes, on the data sets named."""
    arguments = sys.argv[1:]
    through_library = "--library" in arguments
    names = [argument for argument in arguments if argument != "--library"]
    wire = Tripwire()
    random.seed(0)
    outcome = {}
    for name in names:
        signal.alarm(ALARM_S)
        with redirect_stdout(io.StringIO()):
            outcome[name] = try_all(name, ESCAPES if through_library else HOSTILE, wire, through_library)
        print(name, json.dumps(outcome[name]), file=sys.stderr, flush=True)
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
