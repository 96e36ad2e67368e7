"""What evaluations found: accuracy by task, suites, and answers before and after."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean

from swarm.foreign import clean
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.intervals import wilson_interval
from swarm.telemetry.records import EvaluationEvent, SuiteEvent
from swarm.telemetry.samples.records import why
from swarm.telemetry.sections.html import interval, percent, pictures, plural, table, words
from swarm.types import Sample

SHOWN_SAMPLES = 4


def accuracy_ranges(histories: Sequence[PeerHistory]) -> str:
    """Intervals, over the questions, of the mean accuracy of the peers that answered before and after."""
    found = []
    for events in zip(*_evaluated_twice(histories), strict=True):
        counts = _whole(events)
        if not counts[1]:
            return ""
        low, high = wilson_interval(*counts)
        found.append(f"{low:.1%} to {high:.1%}")
    return f"; 95% intervals {found[0]}, then {found[1]}" if found else ""


def _evaluated_twice(histories: Sequence[PeerHistory]) -> list[tuple[EvaluationEvent, EvaluationEvent]]:
    """The first and the last evaluation of those that have both, so that before and after are the same peers."""
    pairs = [(history.evaluation_before(), history.evaluation_after()) for history in histories]
    return [(first, last) for first, last in pairs if first is not None and last is not None]


def _whole(events: Sequence[EvaluationEvent]) -> tuple[float, float]:
    """(right, asked) of all tasks, mean over the peers."""
    counts = [count for event in events for count in event.tasks.values()]
    return sum(correct for correct, _ in counts) / len(events), sum(asked for _, asked in counts) / len(events)


def accuracy(event: EvaluationEvent | None) -> str:
    """With its interval where the questions are known."""
    counts = _whole([event]) if event is not None else (0, 0)
    return interval(counts) if counts[1] else percent(event.accuracy if event is not None else None)


def task_table(histories: Sequence[PeerHistory]) -> str:
    """Accuracy by task of the peers with both evaluations."""
    both = _evaluated_twice(histories)
    if not both:
        return ""
    before, after = _by_task([pair[0] for pair in both]), _by_task([pair[1] for pair in both])
    if not before and not after:
        return ""
    rows = [
        (escape(clean(task)), interval(before.get(task, (0, 0))), interval(after.get(task, (0, 0))))
        for task in sorted(before.keys() | after.keys())
    ]
    note = (
        f"{plural(len(both), 'peer')}; means over those that were asked a task's questions, "
        "with 95% intervals over the questions (Wilson)."
    )
    return table(("task", "before", "after"), rows, text_columns=1) + f'<p class="note">{note}</p>'


def _by_task(events: Sequence[EvaluationEvent]) -> dict[str, tuple[float, float]]:
    """(right, asked), mean over the peers that have the task: they are asked the same questions, which are no more than
    one peer's."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        for task, count in event.tasks.items():
            counts.setdefault(task, []).append(count)
    return {
        task: (fmean(correct for correct, _ in each), fmean(asked for _, asked in each))
        for task, each in counts.items()
    }


def suite_table(histories: Sequence[PeerHistory]) -> str:
    """Every figure of every suite, of each peer, before the first round and of the latest policy evaluated."""
    rows = [
        (
            escape(history.name),
            escape(clean(f"eval/{name}/{figure}")),
            _estimate(history.suite_before(name), figure),
            _estimate(latest, figure),
            f"{latest.round:,}",
            f"{latest.scores.num_questions:,}",
        )
        for history in histories
        for name in history.suites
        for latest in [history.suite_after(name)]
        for figure in latest.scores.figures
    ]
    if not rows:
        return ""
    note = (
        "avg@k: mean reward of k completions; pass@j: at least one of j is right, estimated without bias from all k "
        "(arXiv:2107.03374); with 95% intervals over the questions (bootstrap; Wilson where each is right or wrong)."
    )
    head = ("peer", "figure", "before", "latest", "after round", "questions")
    return table(head, rows, text_columns=2) + f'<p class="note">{note}</p>'


def _estimate(event: SuiteEvent | None, figure: str) -> str:
    found = event.scores.figures.get(figure) if event is not None else None
    return f"{found.value:.3f} <small>({found.low:.3f}–{found.high:.3f})</small>" if found else "–"


def sample_table(histories: Sequence[PeerHistory]) -> str:
    """Answers of the first peer that has both evaluations to the same questions."""
    for history in histories:
        first, last = history.evaluation_before(), history.evaluation_after()
        if first is None or last is None:
            continue
        after = {_asked(sample): sample for sample in last.samples}
        both = [(sample, after[_asked(sample)]) for sample in first.samples if _asked(sample) in after]
        if both:
            both.sort(key=lambda pair: (pair[0].correct == pair[1].correct, pair[0].completion == pair[1].completion))
            rows = [
                (
                    pictures(before.pictures) + words(before.question) + _expected(before),
                    _answered(before),
                    _answered(now),
                )
                for before, now in both[:SHOWN_SAMPLES]
            ]
            note = (
                f"{len(rows)} of the first {len(both)} held-out questions, answered by {history.name} before the first "
                "round and at the end; those first whose answers changed."
            )
            head = ("question", "before", "after")
            return table(head, rows, text_columns=3) + f'<p class="note">{escape(note)}</p>'
    return ""


def _asked(sample: Sample) -> tuple[str, tuple[bytes, ...]]:
    """What was asked: the same words about another picture are another question."""
    return sample.question, sample.pictures


def _expected(sample: Sample) -> str:
    return f"<small>expected: {words(sample.expected)}</small>" if sample.expected else ""


def _answered(sample: Sample) -> str:
    said = why(float(sample.correct), "", sample.found)
    right = f"{'right' if sample.correct else 'wrong'}{f': {said}' if said and not sample.correct else ''}"
    return f"{words(sample.completion or '(nothing)')}<small>{words(right)}</small>"
