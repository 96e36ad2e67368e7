"""The report of a run: `summary.json`, a self-contained page and one PNG.

It works with partial data: an interrupted run, a peer without a round, one peer or many.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path

import msgspec

from swarm.figures import LAG_MAX
from swarm.foreign import clean, clean_lines
from swarm.reasons import sentence
from swarm.telemetry import plots, worth
from swarm.telemetry.benefit import in_words
from swarm.telemetry.history import (
    PeerHistory,
    PeerSummary,
    drop_reasons,
    mean,
    mix_in_words,
    num_dropped,
    reward_window,
    used_of,
)
from swarm.telemetry.intervals import wilson_interval
from swarm.telemetry.records import EvaluationEvent, SuiteEvent
from swarm.telemetry.summary import SwarmSummary
from swarm.types import Sample, SwarmWorth

SUMMARY_FILE = "summary.json"
PAGE_FILE = "report.html"
PICTURE_FILE = "report.png"


def write_report(
    out_dir: Path, histories: Sequence[PeerHistory], summary: SwarmSummary, control: PeerHistory | None = None
) -> None:
    """Write the three files into `out_dir`; `control` is a lone node to compare with. Raises `OSError`."""
    out_dir.mkdir(parents=True, exist_ok=True)
    # Write the summary first: it is quick and remains if someone interrupts the drawing.
    text = msgspec.json.format(msgspec.json.encode(summary, enc_hook=str), indent=2) + b"\n"
    _replace(out_dir / SUMMARY_FILE, text)
    _replace(out_dir / PAGE_FILE, page(histories, summary, control).encode())
    plots.write_png(out_dir / PICTURE_FILE, histories, control)


def page(histories: Sequence[PeerHistory], summary: SwarmSummary, control: PeerHistory | None = None) -> str:
    """The whole page."""
    peers = summary["peers"]
    everyone = [*peers, summary["control"]] if summary["control"] else peers
    trained = plots.training(histories)
    sections = [
        _answer(summary, histories),
        _incomplete(everyone),
        _headlines(peers, summary),
        _picture(partial(plots.draw_rewards, control=control), trained, 3.3, "Reward per peer and mean, by round"),
        _section("The learner and its workers", _following(histories) if len(trained) < len(histories) else ""),
        _section("Peers", _peer_table(everyone)),
        _section("What others' groups do for a peer", _worth_table(histories)),
        _section("Held-out questions by task", _task_table(histories)),
        _section("Evaluation suites", _suite_table(histories)),
        _section("Answers before and after", _samples(histories)),
        _section(
            "Composition of updates",
            _picture(plots.draw_mix, trained, 2.6, "Groups in an update by origin, by round") + _mixing(trained),
        ),
        _section(
            "Outcomes of received groups",
            _picture(plots.draw_ledger, trained, plots.ledger_height_in(trained), "Received groups by outcome")
            + _ledger_table([peer for peer in peers if peer["role"] != "worker"]),
        ),
        _section("What happened", _moments(histories)),
        _section("Configuration", _pairs(_flattened(summary["config"]))),
        _section("Versions", _pairs(summary["versions"].items())),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>Swarm report</title>'
        f"<style>{STYLE}</style></head><body><main><h1>Swarm report</h1>{''.join(sections)}</main></body></html>\n"
    )


def _answer(summary: SwarmSummary, histories: Sequence[PeerHistory]) -> str:
    """Whether it helped: by a control if there is one, else by what a single node has measured."""
    found = summary["help"]
    answer = in_words(found) if found else ""
    if not found and len(histories) == 1 and (measured := histories[0].worth):
        answer = worth.in_words(measured)
    return f'<p class="answer">{escape(answer[:1].upper() + answer[1:])}</p>' if answer else ""


def _incomplete(peers: Sequence[PeerSummary]) -> str:
    words = {
        "waiting": "never started",
        "running": "did not end in an orderly way",
        "interrupted": "was interrupted",
        "error": "failed",
    }
    cut_short = [peer for peer in peers if peer["state"] != "done"]
    if not cut_short:
        return ""
    what = "; ".join(f"{peer['name']} {words[peer['state']]} after {peer['rounds']} rounds" for peer in cut_short[:6])
    more = f"; and {len(cut_short) - 6} more" if len(cut_short) > 6 else ""
    return f'<p class="notice"><strong>Incomplete run.</strong> {escape(what + more)}.</p>'


def _headlines(peers: Sequence[PeerSummary], summary: SwarmSummary) -> str:
    first, last = summary["mean_reward_first"], summary["mean_reward_last"]
    # Only peers with both evaluations: a peer that stopped early would distort the comparison.
    evaluated = [peer for peer in peers if peer["eval_before"] is not None and peer["eval_after"] is not None]
    before, after = mean(peer["eval_before"] for peer in evaluated), mean(peer["eval_after"] for peer in evaluated)
    used = sum(peer["groups"]["used_external"] for peer in peers)
    updates = used + sum(peer["groups"]["used_local"] for peer in peers)
    counts = [peer["groups"] for peer in peers]
    parts = [
        f"{part:.0%} of those {words}"
        for words, part in (
            ("received", used_of(counts, "received")),
            ("checked", used_of(counts, "checked")),
        )
        if part is not None
    ]
    knowing = sum(peer["reward_last"] is not None for peer in peers)
    longest = max((peer["rounds"] for peer in peers), default=0)
    cards = [
        (
            "Mean reward",
            f"{_figure(first)} → {_figure(last)}",
            (f"×{last / first:.2f}; " if first and last is not None else "")
            + f"first and last {reward_window(longest)} rounds, {knowing} of {len(peers)} peers",
        ),
        (
            "Held-out accuracy",
            f"{_percent(before)} → {_percent(after)}",
            f"before and after training, {len(evaluated)} of {len(peers)} peers",
        ),
        (
            "External groups trained on",
            f"{used:,}",
            "; ".join([f"{used / updates:.0%} of all groups trained on", *parts])
            if updates
            else "nothing was trained on",
        ),
        (
            "Rounds",
            f"{sum(peer['rounds'] for peer in peers):,}",
            f"by {_plural(len(peers), 'peer')}, {sum(peer['tokens_generated'] for peer in peers):,} tokens, "
            f"{_duration(max((peer['wall_s'] for peer in peers), default=0.0))} of training",
        ),
    ]
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><div class="what">{escape(what)}</div><div class="value">{escape(value)}</div>'
            f'<div class="detail">{escape(detail)}</div></div>'
            for what, value, detail in cards
        )
        + "</div>"
    )


def _peer_table(peers: Sequence[PeerSummary]) -> str:
    head = ("peer", "state", "rounds", "reward first", "last", "accuracy before", "after", "generated", "own used",
            "others' used", "restarts", "tokens", "time")  # fmt: skip
    rows = [
        (
            _peer_name(peer),
            "not ended" if peer["state"] == "running" else peer["state"],
            f"{peer['rounds']:,}",
            _figure(peer["reward_first"]),
            _figure(peer["reward_last"]),
            _percent(peer["eval_before"]),
            _percent(peer["eval_after"]),
            f"{peer['groups']['generated']:,}",
            f"{peer['groups']['used_local']:,}",
            f"{peer['groups']['used_external']:,}",
            str(peer["restarts"]),
            f"{peer['tokens_generated']:,}",
            _duration(peer["wall_s"]),
        )
        for peer in peers
    ]
    return _table(head, rows, text_columns=2)


def _worth_table(histories: Sequence[PeerHistory]) -> str:
    """What each peer has measured, in its last rounds."""
    known = [(history, measured) for history in histories if (measured := history.worth)]
    if not known:
        return ""
    names = {history.start.peer_id: history.name for history in histories if history.start}
    rows = [
        (
            escape(history.name),
            worth.in_short(found),
            _rewards_ratio(history, found),
            worth.figures(found.each) if found.each else worth.NOT_KNOWN,
            "; ".join(
                f"{escape(clean(names.get(sender, sender)))} {worth.figures(each)}"
                for sender, each in sorted(found.senders.items(), key=lambda item: -item[1].value)
            ),
            f"{found.rounds:,}",
        )
        for history, found in known
    ]
    note = (
        "Estimated without a control, from the gradients of the peer's own updates at the end of the run, with 95% "
        "intervals: progress of its updates over that of updates on its own groups alone; what follows for the rewards "
        "of all rounds, if it was so in every round; and the worth of an external group in own groups."
    )
    head = ("peer", "progress over alone", "rewards over alone", "an external group", "by sender", "rounds measured")
    return _table(head, rows, text_columns=5) + f'<p class="note">{note}</p>'


def _rewards_ratio(history: PeerHistory, found: SwarmWorth) -> str:
    rewards = [event.reward or 0.0 for event in history.series()]
    if found.help is None or not any(rewards):
        return worth.NOT_KNOWN
    return f"{worth.rewards_ratio(rewards, found.help.value):.2f}"


def _task_table(histories: Sequence[PeerHistory]) -> str:
    """Only peers with both evaluations, so that before and after are the same peers."""
    pairs = [(history.evaluation_before(), history.evaluation_after()) for history in histories]
    both = [(first, last) for first, last in pairs if first is not None and last is not None]
    if not both:
        return ""
    before, after = _by_task(pair[0] for pair in both), _by_task(pair[1] for pair in both)
    if not before and not after:
        return ""
    rows = [
        (escape(clean(task)), _interval(before.get(task, (0, 0))), _interval(after.get(task, (0, 0))))
        for task in sorted(before.keys() | after.keys())
    ]
    note = f"Answers of {_plural(len(both), 'peer')} together, with 95% intervals (Wilson)."
    return _table(("task", "before", "after"), rows, text_columns=1) + f'<p class="note">{note}</p>'


def _suite_table(histories: Sequence[PeerHistory]) -> str:
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
    return _table(head, rows, text_columns=2) + f'<p class="note">{note}</p>'


def _estimate(event: SuiteEvent | None, figure: str) -> str:
    found = event.scores.figures.get(figure) if event is not None else None
    return f"{found.value:.3f} <small>({found.low:.3f}–{found.high:.3f})</small>" if found else "–"


def _samples(histories: Sequence[PeerHistory]) -> str:
    """Answers of the first peer that has both evaluations to the same questions."""
    for history in histories:
        first, last = history.evaluation_before(), history.evaluation_after()
        if first is None or last is None:
            continue
        after = {sample.question: sample for sample in last.samples}
        both = [(sample, after[sample.question]) for sample in first.samples if sample.question in after]
        if both:
            rows = [(_words(before.question), _answered(before), _answered(now)) for before, now in both]
            note = f"The first held-out questions, answered by {history.name} before the first round and at the end."
            head = ("question", "before", "after")
            return _table(head, rows, text_columns=3) + f'<p class="note">{escape(note)}</p>'
    return ""


def _answered(sample: Sample) -> str:
    return f"{_words(sample.completion or '(nothing)')}<small>{'right' if sample.correct else 'wrong'}</small>"


def _words(text: str) -> str:
    return f'<span class="words">{escape(clean(" ".join(text.split())))}</span>'


def _following(histories: Sequence[PeerHistory]) -> str:
    """Versions and staleness, and the overlap model's prediction beside the measurement."""
    rows = []
    for history in plots.training(histories):
        steps = [event for event in history.series() if event.learning is not None]
        if not steps or steps[-1].learning is None:
            continue
        last = steps[-1].learning
        oldest = max(int(event.figures.get(LAG_MAX) or 0) for event in steps)
        rows += [
            ("staleness, versions", str(oldest), f"at most {last.max_staleness}"),
            ("learner waited", _percent(last.bubble), _percent(last.predicted_bubble)),
            ("rollouts per second", _figure(last.rate), f"{_figure(last.required_rate)} needed"),
            ("training seconds per step", _figure(last.train_s), ""),
            ("seconds per broadcast", _figure(last.broadcast_s), ""),
            ("workers active", f"{last.active} of {last.workers}", ""),
        ]
    if not rows:
        return ""
    note = "At the end of the run. Model: arXiv:2602.02192, eq. 1 and 2, which allows no sampling during a broadcast."
    return (
        _picture(plots.draw_versions, histories, 2.8, "Versions of learner and workers, over time")
        + _picture(plots.draw_staleness, histories, 2.4, "Age of the tokens trained on, by step")
        + _table(("", "measured", "predicted or allowed"), rows, text_columns=1)
        + f'<p class="note">{note}</p>'
    )


def _mixing(histories: Sequence[PeerHistory]) -> str:
    """The last decision of each peer whose mix is not fixed."""
    decided = [(history.name, mix_in_words(history.latest)) for history in histories if history.latest is not None]
    return _pairs((name, clean(words)) for name, words in decided if words)


def _ledger_table(peers: Sequence[PeerSummary]) -> str:
    reasons = [reason for reason, _ in drop_reasons(peer["groups"] for peer in peers)]
    head = ["peer", "shared", "received", "= used", *(f"+ dropped: {reason}" for reason in reasons)]
    head += ["+ in pool", "+ waiting or being verified"]
    counts = [
        [
            peer["groups"]["shared"],
            peer["groups"]["received"],
            peer["groups"]["used_external"],
            *(peer["groups"]["dropped"].get(reason, 0) for reason in reasons),
            peer["pool"],
            peer["pending"],
        ]
        for peer in peers
    ]
    missing = [
        peer["groups"]["received"]
        - peer["groups"]["used_external"]
        - num_dropped(peer["groups"])
        - peer["pool"]
        - peer["pending"]
        for peer in peers
    ]
    if any(missing):
        head.append("+ unaccounted for")
        for row, n in zip(counts, missing, strict=True):
            row.append(n)
    rows = [(_peer_name(peer), *(f"{n:,}" for n in row)) for peer, row in zip(peers, counts, strict=True)]
    if len(peers) > 1:
        rows.append(("all", *(f"{sum(column):,}" for column in zip(*counts, strict=True))))
    note = (
        "One shared group counts once at its sender and once at every peer it reached. A received group counts once: "
        "as used if any update used it, else under its drop reason, else as still held."
    )
    table = _table(head, rows, text_columns=1, total=len(peers) > 1)
    return table + f'<p class="note">{note}</p>' + _pairs((reason, sentence(reason)) for reason in reasons)


def _moments(histories: Sequence[PeerHistory]) -> str:
    found = sorted(
        ((moment.time, history.name, moment) for history in histories for moment in history.moments),
        key=lambda item: item[:2],
    )
    items = [
        f'<li class="{escape(moment.level)}">{escape(name)}: {escape(clean_lines(moment.text))}</li>'
        for _, name, moment in found
        if moment.level != "debug"
    ]
    return f'<ul class="moments">{"".join(items)}</ul>' if items else ""


def _picture(draw: plots.Draw, histories: Sequence[PeerHistory], height_in: float, label: str) -> str:
    return f'<figure class="scroll">{plots.as_svg(draw, histories, height_in, label)}</figure>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int, total: bool = False) -> str:
    """Cells are HTML already; all but the first `text_columns` are numbers."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        kinds = [' class="text"' if index < text_columns else "" for index in range(len(texts))]
        return "".join(f"<{tag}{kind}>{text}</{tag}>" for kind, text in zip(kinds, texts, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    heading = cells("th", [escape(text) for text in head])
    kind = ' class="total"' if total else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>'


def _pairs(items: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in items)
    return f"<dl>{rows}</dl>" if rows else ""


def _flattened(config: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """(`mix.local`, `4`) pairs."""
    pairs: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            pairs += _flattened(value, f"{prefix}{key}.")
        else:
            shown = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
            pairs.append((clean(f"{prefix}{key}"), clean_lines(shown)))
    return pairs


def _by_task(events: Iterable[EvaluationEvent]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = {}
    for event in events:
        for task, (correct, asked) in event.tasks.items():
            so_far = total.get(task, (0, 0))
            total[task] = (so_far[0] + correct, so_far[1] + asked)
    return total


def _interval(counts: tuple[int, int]) -> str:
    """Accuracy with its 95% interval."""
    correct, asked = counts
    if asked == 0:
        return "–"
    low, high = wilson_interval(correct, asked)
    return f"{correct / asked:.1%} <small>({low:.0%}–{high:.0%})</small>"


def _peer_name(peer: PeerSummary) -> str:
    return f'<span title="{escape(peer["peer_id"] or "never started")}">{escape(peer["name"])}</span>'


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _replace(path: Path, content: bytes) -> None:
    """Replace the file atomically: an earlier report stays until the new one is complete."""
    unfinished = path.with_name(path.name + ".partial")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


STYLE = """
:root {
  --ink: #1d2125; --faint: #6b7278; --paper: #fbfbfa;
  --panel: #ffffff; --edge: #e2e3e1; --notice: #fff4d6; --nothing: #dedfdd;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e6e3; --faint: #9aa0a6; --paper: #16181b;
    --panel: #1e2125; --edge: #33373c; --notice: #3a3117; --nothing: #3f454b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 1rem; }
h2 { font-size: 1.1rem; margin: 2.4rem 0 .7rem; }
.answer { font-size: 1.15rem; font-weight: 600; }
.notice { background: var(--notice); padding: .6rem .9rem; border-radius: 6px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; }
.cards { margin-bottom: 1.4rem; }
.card { background: var(--panel); border: 1px solid var(--edge); border-radius: 8px; padding: .8rem 1rem; }
.what, .detail, .note { color: var(--faint); font-size: .85rem; }
.value { font-size: 1.55rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
figure { margin: 0 0 1rem; background: var(--panel); border: 1px solid var(--edge); border-radius: 8px; }
figure { padding: .6rem; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--edge); }
th { color: var(--faint); font-weight: 500; vertical-align: bottom; }
td { white-space: nowrap; }
.words { display: block; white-space: normal; overflow-wrap: anywhere; min-width: 10rem; max-width: 22rem; }
.text { text-align: left; }
.total tr:last-child td { font-weight: 600; border-top: 2px solid var(--edge); }
small { color: var(--faint); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; margin: 0; }
dl { font: .85rem/1.6 ui-monospace, monospace; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
.moments { margin: 0; padding-left: 1.2rem; font-size: .9rem; max-height: 22rem; overflow-y: auto; }
.error { font-weight: 600; }
"""
