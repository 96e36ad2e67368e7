"""`swarm samples`: what a node and its peers have answered, and what became of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.text import Text

from swarm.errors import ConfigError
from swarm.foreign import clean, clean_lines
from swarm.reasons import Reason
from swarm.settings import nearest
from swarm.telemetry.samples import SAMPLES_FILE, Outcome, SampledCompletion, SampleRecord, folded, read, why

STYLES = {"used_local": "green", "used_external": "green", "refused": "yellow"}
OUTCOMES: tuple[str, ...] = get_args(Outcome)
INDENT = "    "


class SampleFilter(Struct, frozen=True):
    """Which samples to show; None: any."""

    task: str | None = None
    sender: str | None = None
    """The beginning or the end of a peer id."""
    outcome: str | None = None
    """An outcome or a reason."""
    last: int = 10
    """Of those that match."""

    def __call__(self, record: SampleRecord) -> bool:
        """Whether a sample matches."""
        return (
            self.task in (None, record.task)
            and (self.sender is None or record.sender.startswith(self.sender) or record.sender.endswith(self.sender))
            and self.outcome in (None, record.outcome, record.reason)
        )


def show_samples(folder: Path, wanted: SampleFilter, as_json: bool, console: Console) -> None:
    """Print the last samples of a node that match, oldest first. Raises `ConfigError` for a directory without any."""
    if wanted.outcome not in (None, *OUTCOMES, *Reason):
        near = nearest(wanted.outcome or "", [*OUTCOMES, *Reason])
        raise ConfigError(
            f"--outcome must be {', '.join(OUTCOMES)}, or a reason (docs/reasons.md), got {wanted.outcome!r}"
            f"{f'; did you mean {near}?' if near else ''}"
        )
    records = read(folder)
    if not records:
        raise ConfigError(f"{folder} has no {SAMPLES_FILE}{_elsewhere(folder)}")
    chosen = [record for record in records if wanted(record)][-wanted.last :]
    if as_json:
        # In ASCII, every control character but the last one is escaped.
        print(json.dumps(msgspec.to_builtins(chosen), indent=1).replace("\x7f", "\\u007f"))
        return
    for record in chosen:
        console.print(_in_words(record), soft_wrap=True)
    if not chosen:
        console.print(f"none of the {len(records)} samples kept matches")


def _elsewhere(folder: Path) -> str:
    """Where else the user may have meant, for a directory with several nodes."""
    found = sorted(str(path.parent) for path in folder.glob(f"*/{SAMPLES_FILE}"))
    return f"; choose one of {', '.join(found)}" if found else ": name a node's directory, its --out"


def _in_words(record: SampleRecord) -> Text:
    """A sample as a few lines; everything in it may come from strangers."""
    text = Text()
    outcome = f"{record.outcome}: {record.reason}" if record.outcome in ("unused", "refused") else record.outcome
    sender = "this node" if record.own else record.sender
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))
    text.append(f"round {record.round}  {clean(record.task)}  ", "bold")
    text.append(clean(outcome), STYLES.get(record.outcome, ""))
    text.append(clean(f"  from {sender}  {record.policy} version {record.version}  {when}"), "dim").append("\n")
    text.append(_indented(record.question if record.question is not None else "(question not made here)"))
    if record.expected:
        text.append(f"  expected: {clean(record.expected)}\n")
    for completion, count in folded(record.completions):
        said = why(completion.reward, record.expected, completion.found)
        text.append(f"  {count} x " if count > 1 else "  ").append(_rewards(completion), "cyan")
        text.append(f"{f'; {clean(said)}' if said else ''}\n", "cyan")
        for line in _turns(completion):
            text.append(line)
    if record.num_completions > len(record.completions):
        text.append(f"  and {record.num_completions - len(record.completions)} more completions\n", "dim")
    return text


def _rewards(completion: SampledCompletion) -> str:
    own = "not graded" if completion.reward is None else f"reward {completion.reward:g}{in_words(completion.parts)}"
    claimed = completion.claimed
    says = "" if claimed is None or claimed == completion.reward else f", its sender says {claimed:g}"
    return f"{own}{says}, ended by {clean(completion.finish_reason)}"


def in_words(parts: Mapping[str, float]) -> str:
    """Named rewards after their weighted mean; empty without any."""
    return f" ({', '.join(f'{clean(name)} {value:.3g}' for name, value in parts.items())})" if parts else ""


def _turns(completion: SampledCompletion) -> Iterator[str]:
    several = len(completion.turns) > 1
    for turn in completion.turns:
        cut = turn.num_chars - len(turn.text)
        more = f"... ({cut:,} more characters)" if cut > 0 else ""
        yield _indented(f"{f'{turn.role}: ' if several else ''}{turn.text}{more}")


def _indented(text: str) -> str:
    return "".join(f"{INDENT}{line}\n" for line in clean_lines(text).split("\n"))
