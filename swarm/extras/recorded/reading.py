"""Demonstrations and groups in files: this project's samples, and for the former the layouts of TRL and verl.

    {"prompt": ..., "completion": ...}      each a text, or a list of messages
    {"prompt": ..., "chosen": ...}          the same; what was rejected is not read
    {"chosen": [...]}, {"messages": [...]}  a conversation, each answer of which is a demonstration
    a line of `samples.jsonl`               its right completions of one turn that were kept whole

A row that is none of these is passed over. Nothing is evaluated; a line is bounded before it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from swarm.environments.sources.columns import MalformedRow, conversation, describe
from swarm.errors import ConfigError
from swarm.groups.credit import has_signal
from swarm.protocols import RECORDED
from swarm.telemetry.samples import MAX_QUESTION_CHARS, OLDER_FILE, SAMPLES_FILE, SampledCompletion, SampleRecord
from swarm.training.imitation import Demonstration
from swarm.types import Completion, PolicyId, RolloutGroup, Sampling
from swarm.types.thoughts import CLOSE, OPEN

MAX_LINE_BYTES = 2**24
MAX_TEXT_CHARS = 2**20
MAX_DEMONSTRATIONS = 2**20
"""Further ones are not read."""
MAX_GROUPS = 2**14
MAX_GROUPS_CHARS = 2**28
"""Nor are further groups, beyond this number or so many characters in all."""
MAX_REASONS = 16
MAX_LINE_READ = 2**30
"""Bytes of a line that are looked at for its end."""


class Found(Struct, frozen=True):
    """What a file has."""

    demonstrations: Sequence[Demonstration]
    num_rows: int
    passed_over: Sequence[str]
    """Why a row was, for each."""


def read(path: Path, min_reward: float) -> Found:
    """All demonstrations of a file, or of a node's directory; `min_reward` is that of samples. Raises `ConfigError`."""
    try:
        rows = list(islice(_rows(path), MAX_DEMONSTRATIONS))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"demonstrations.path: cannot read {path}: {reason}") from error
    found: list[Demonstration] = []
    passed_over: list[str] = []
    for number, row in enumerate(rows, 1):
        try:
            found += list(_demonstrations(row, min_reward))
        except MalformedRow as error:
            passed_over.append(f"row {number}: {error}")
    if not found:
        why = (
            f"; {passed_over[0]}"
            if passed_over
            else ": it has no rows"
            if not rows
            else ": no completion reaches demonstrations.min_reward"
        )
        raise ConfigError(f"demonstrations.path: there is no demonstration in {path}{why}")
    return Found(found[:MAX_DEMONSTRATIONS], len(rows), passed_over)


def read_groups(path: Path) -> tuple[list[RolloutGroup], int, list[str]]:
    """The groups with signal among the samples of a file or a node's directory, the number of rows, and why the first
    of the others are left out. Raises `OSError`, `ValueError`."""
    found: list[RolloutGroup] = []
    why: list[str] = []
    number = num_chars = 0
    for number, row in enumerate(islice(_rows(path), MAX_DEMONSTRATIONS), 1):
        try:
            group = _group(_sample(_columns(row)))
            num_chars += sum(len(each.text) for each in group.completions)
            if len(found) == MAX_GROUPS or num_chars > MAX_GROUPS_CHARS:
                why.append(
                    f"rows from {number} on: a file may have {MAX_GROUPS} groups and {MAX_GROUPS_CHARS} characters"
                )
                break
            found.append(group)
        except MalformedRow as error:
            if len(why) < MAX_REASONS:
                why.append(f"row {number}: {error}")
    return found, number, why


def _rows(path: Path) -> Iterator[object]:
    """The rows, decoded or not yet. Raises `OSError`, `ValueError`."""
    if path.is_dir():
        files = [path / name for name in (OLDER_FILE, SAMPLES_FILE) if (path / name).exists()]
        if not files:
            raise FileNotFoundError(f"it has no {SAMPLES_FILE}")
        for each in files:
            yield from _rows(each)
    elif path.suffix == ".parquet":
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as opened:
            for batch in opened.iter_batches(batch_size=64):
                yield from batch.to_pylist()
    else:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if line.strip():
                    yield line
                num_bytes = len(line)
                while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES + 1)
                    num_bytes += len(line)
                    if num_bytes > MAX_LINE_READ:
                        raise ValueError(f"a line has no end within {MAX_LINE_READ} bytes")


def _columns(row: object) -> Mapping[str, object]:
    """A row, of JSON if it is bytes. Raises `MalformedRow`."""
    if isinstance(row, bytes):
        if len(row) > MAX_LINE_BYTES:
            raise MalformedRow(f"it is longer than {MAX_LINE_BYTES} bytes")
        try:
            row = msgspec.json.decode(row)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedRow(f"it is no JSON: {error}") from error
    if not isinstance(row, Mapping):
        raise MalformedRow(f"it must have columns, got {describe(row)}")
    return row


def _demonstrations(row: object, min_reward: float) -> Iterator[Demonstration]:
    """Those of a row. Raises `MalformedRow`."""
    row = _columns(row)
    if "completions" in row:
        yield from _of_sample(row, min_reward)
        return
    answers = [row[name] for name in ("completion", "chosen", "messages") if row.get(name) is not None]
    if not answers:
        raise MalformedRow(f"it must have completion, chosen or messages, got {describe(row)}")
    answer = answers[0]
    is_whole = isinstance(answer, list) and bool(answer) and _role(answer[0]) != "assistant"
    if row.get("prompt") is None or is_whole:
        yield from _of_conversation(answer)
        return
    prompt = row["prompt"]
    asked = conversation(prompt) if isinstance(prompt, list) else _text(prompt, "the prompt")
    yield Demonstration(asked, _answer(answer))


def _of_conversation(messages: object) -> Iterator[Demonstration]:
    """Each answer after what was said before it."""
    if not isinstance(messages, list):
        raise MalformedRow("without a prompt, there must be a list of messages")
    places = [place for place, each in enumerate(messages) if _role(each) == "assistant"]
    if not places:
        raise MalformedRow("no message is the assistant's")
    for place in places:
        yield Demonstration(conversation(messages[:place]), _answer(messages[place : place + 1]))


def _answer(value: object) -> str:
    """A text, or the content of the only message."""
    if isinstance(value, list):
        if len(value) != 1 or _role(value[0]) != "assistant":
            raise MalformedRow("a completion must be one message of the assistant")
        value = value[0].get("content")
    return _text(value, "the completion")


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, Mapping) else None


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise MalformedRow(f"{what} must be a text, got {describe(value)}")
    if len(value) > MAX_TEXT_CHARS:
        raise MalformedRow(f"{what} has {len(value)} characters, more than {MAX_TEXT_CHARS}")
    return value


def _sample(row: Mapping[str, object]) -> SampleRecord:
    try:
        return msgspec.convert(row, SampleRecord)
    except msgspec.ValidationError as error:
        raise MalformedRow(f"it is no sample: {error}") from error


def _of_sample(row: Mapping[str, object], min_reward: float) -> Iterator[Demonstration]:
    sample = _sample(row)
    if not sample.question or len(sample.question) >= MAX_QUESTION_CHARS or sample.pictures:
        raise MalformedRow("a sample must have a whole question of text")
    for completion in sample.completions:
        said = _said(completion) if completion.finish_reason == "stop" else None
        is_answer = bool(said) and completion.turns[-1].role == "policy"
        if said and is_answer and completion.reward is not None and completion.reward >= min_reward:
            yield Demonstration(sample.question, said)


def _said(completion: SampledCompletion) -> str | None:
    """What was said in a single turn that was kept whole; None for any other."""
    turns = completion.turns
    if any(turn.num_chars != len(turn.text) for turn in turns):
        return None
    match [turn.role for turn in turns]:
        case ["policy"]:
            return turns[0].text
        case ["thought", "policy"]:
            return f"{OPEN}{turns[0].text}{CLOSE}{turns[1].text}"
        case ["thought"]:
            return f"{OPEN}{turns[0].text}"
    return None


def _group(sample: SampleRecord) -> RolloutGroup:
    """The group of a sample. Raises `MalformedRow`."""
    if sample.ref is None:
        raise MalformedRow("it does not say which question it is, as samples of earlier versions do not")
    if sample.outcome == "refused":
        raise MalformedRow(f"it was refused as {sample.reason or 'unusable'} where it was recorded")
    texts = [_said(each) for each in sample.completions]
    completions = tuple(
        Completion(text, each.finish_reason)  # type: ignore[arg-type]  # as all of it, it is checked when it joins
        for text, each in zip(texts, sample.completions, strict=True)
        if text is not None
    )
    known = tuple(each.reward for each in sample.completions if each.reward is not None)
    if not len(completions) == len(known) == sample.num_completions:
        raise MalformedRow("its completions must be graded, of one turn, and kept whole")
    if not has_signal(known):
        raise MalformedRow("all its completions have the same reward")
    policy = PolicyId(sample.policy, "", sample.version)
    return RolloutGroup("", RECORDED, 0, sample.time, policy, Sampling(), sample.ref, completions, known)
