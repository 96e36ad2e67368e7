"""The report of a run: `summary.json`, a self-contained page and one PNG.

It works with partial data: an interrupted run, a peer without a round, one peer or many.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from itertools import zip_longest
from pathlib import Path

import msgspec

from swarm.files import replace_file
from swarm.foreign import clean, clean_lines
from swarm.telemetry import plots
from swarm.telemetry.alerts.checks import alerts_at_end
from swarm.telemetry.history import (
    PeerHistory,
    PeerSummary,
    mean,
    mix_in_words,
    reward_window,
    used_of,
)
from swarm.telemetry.intervals import bootstrap_mean
from swarm.telemetry.sections.answer import alarms, answer
from swarm.telemetry.sections.curves import curves
from swarm.telemetry.sections.evaluations import accuracy, accuracy_ranges, sample_table, suite_table, task_table
from swarm.telemetry.sections.html import STYLE, duration, figure, pairs, peer_name, percent, plural, section, table
from swarm.telemetry.sections.outcomes import dropped_in_words, ledger_table
from swarm.telemetry.sections.traffic import traffic_table
from swarm.telemetry.summary import SwarmSummary
from swarm.telemetry.verdict import worth
from swarm.telemetry.verdict.verdict import verdict
from swarm.types import SwarmWorth

SUMMARY_FILE = "summary.json"
PAGE_FILE = "report.html"
PICTURE_FILE = "report.png"
MAX_TASKS = 12
MAX_ABOUT_CHARS = 600


def write_report(
    out_dir: Path, histories: Sequence[PeerHistory], summary: SwarmSummary, control: PeerHistory | None = None
) -> None:
    """Write the three files into `out_dir`; `control` is a lone node to compare with. Raises `OSError`."""
    out_dir.mkdir(parents=True, exist_ok=True)
    # Write the summary first: it is quick and remains if someone interrupts the drawing.
    text = msgspec.json.format(msgspec.json.encode(summary, enc_hook=str), indent=2) + b"\n"
    replace_file(out_dir / SUMMARY_FILE, text)
    replace_file(out_dir / PAGE_FILE, page(histories, summary, control).encode())
    plots.write_png(out_dir / PICTURE_FILE, histories, control)


def page(histories: Sequence[PeerHistory], summary: SwarmSummary, control: PeerHistory | None = None) -> str:
    """The whole page."""
    title, about = _title(histories)
    peers = summary["peers"]
    everyone = [*peers, summary["control"]] if summary["control"] else peers
    trained = plots.training(histories)
    sections = [
        alarms(alerts_at_end(histories, control)),
        _incomplete(everyone),
        answer(verdict(histories, control)) if any(history.rounds for history in histories) else "",
        _headlines(peers, summary, histories),
        _picture(partial(plots.draw_rewards, control=control), trained, 3.3, "Reward per peer and mean, by round"),
        section("The learner and its workers", _following(histories) if len(trained) < len(histories) else ""),
        section("Peers", _peer_table(everyone, [*histories, *([control] if control else [])])),
        section("What others' groups do for a peer", _worth_table(histories)),
        section("Held-out questions by task", task_table(histories)),
        section("Evaluation suites", suite_table(histories)),
        section("Answers before and after", sample_table(histories)),
        section(
            "Composition of updates",
            _picture(plots.draw_mix, trained, 2.6, "Groups in an update by origin, by round") + _mixing(trained),
        ),
        section(
            "Outcomes of received groups",
            _picture(plots.draw_ledger, trained, plots.ledger_height_in(trained), "Received groups by outcome")
            + ledger_table([peer for peer in peers if peer["role"] != "worker"]),
        ),
        section("Bandwidth", traffic_table(histories)),
        section("All figures", curves(trained)),
        section("What happened", _moments(histories)),
        section("Configuration", pairs(_flattened(summary["config"]))),
        section("Versions", pairs(summary["versions"].items())),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><main><h1>{title}</h1>{about}{''.join(sections)}</main></body></html>\n"
    )


def _title(histories: Sequence[PeerHistory]) -> tuple[str, str]:
    """The page's title, and a line on run, date, model and tasks, as far as they are known."""
    start = next((history.start for history in histories if history.start is not None), None)
    if start is None:
        return "Swarm report", ""
    policy, tasks = start.config.get("policy"), start.config.get("tasks")
    names = [task.get("name") for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []
    listed = [*map(str, names[:MAX_TASKS]), *(["and more"] if len(names) > MAX_TASKS else [])]
    facts = [
        time.strftime("%d %B %Y, %H:%M", time.localtime(start.time)),
        f"model {policy.get('model')}" if isinstance(policy, dict) else "",
        f"tasks {', '.join(listed)}" if names else "",
    ]
    about = clean(" · ".join(filter(None, facts)), MAX_ABOUT_CHARS)
    name = clean(start.run_id or (histories[0].name if len(histories) == 1 else ""))
    return escape(f"Swarm report: {name}" if name else "Swarm report"), f'<p class="note">{escape(about)}</p>'


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
    what = "; ".join(
        f"{peer['name']} {words[peer['state']]} after {plural(peer['rounds'], 'round')}" for peer in cut_short[:6]
    )
    more = f"; and {len(cut_short) - 6} more" if len(cut_short) > 6 else ""
    return f'<p class="notice"><strong>Incomplete run.</strong> {escape(what + more)}.</p>'


def _headlines(peers: Sequence[PeerSummary], summary: SwarmSummary, histories: Sequence[PeerHistory]) -> str:
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
            f"{figure(first)} → {figure(last)}",
            (f"×{last / first:.2f}; " if first and last is not None else "")
            + f"first and last {reward_window(longest)} rounds, {knowing} of {len(peers)} peers"
            + _reward_ranges(histories),
        ),
        (
            "Held-out accuracy",
            f"{percent(before)} → {percent(after)}",
            f"before and after training, {len(evaluated)} of {len(peers)} peers{accuracy_ranges(histories)}",
        ),
        (
            "Groups of others trained on",
            f"{used:,}",
            (
                "; ".join([f"{used / updates:.0%} of all groups trained on", *parts])
                if updates
                else "nothing was trained on"
            )
            + dropped_in_words(counts),
        ),
        (
            "Rounds",
            f"{sum(peer['rounds'] for peer in peers):,}",
            f"by {plural(len(peers), 'peer')}, {sum(peer['tokens_generated'] for peer in peers):,} tokens, "
            f"{duration(max((peer['wall_s'] for peer in peers), default=0.0))} of training",
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


def _reward_ranges(histories: Sequence[PeerHistory]) -> str:
    """Intervals over rounds, each the mean over the peers that trained in it."""
    trained = [history.series() for history in plots.training(histories) if history.rounds]
    shares = [reward_window(len(series)) for series in trained]
    ends = (
        [[event.reward for event in series[:share]] for series, share in zip(trained, shares, strict=True)],
        [[event.reward for event in series[-share:]] for series, share in zip(trained, shares, strict=True)],
    )
    found = []
    for rewards in ends:
        rounds = [mean(each) for each in zip_longest(*rewards)]
        interval = bootstrap_mean([value for value in rounds if value is not None])
        if interval is None:
            return ""
        found.append(f"{interval[0]:.3f} to {interval[1]:.3f}")
    return f"; 95% of means over rounds: {found[0]}, then {found[1]}"


def _peer_table(peers: Sequence[PeerSummary], histories: Sequence[PeerHistory]) -> str:
    head = ("peer", "state", "rounds", "reward first", "last", "accuracy before", "after", "generated", "own used",
            "others' used", "restarts", "tokens", "time")  # fmt: skip
    rows = [
        (
            peer_name(peer),
            "not ended" if peer["state"] == "running" else peer["state"],
            f"{peer['rounds']:,}",
            figure(peer["reward_first"]),
            figure(peer["reward_last"]),
            accuracy(history.evaluation_before()),
            accuracy(history.evaluation_after()),
            f"{peer['groups']['generated']:,}",
            f"{peer['groups']['used_local']:,}",
            f"{peer['groups']['used_external']:,}",
            str(peer["restarts"]),
            f"{peer['tokens_generated']:,}",
            duration(peer["wall_s"]),
        )
        for peer, history in zip(peers, histories, strict=True)
    ]
    return table(head, rows, text_columns=2)


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
            worth.in_short_by_the_clock(found),
            _rewards_ratio(history, found),
            worth.in_own_groups(found.each) if found.each else worth.NOT_KNOWN,
            "; ".join(
                f"{escape(clean(names.get(sender, sender)))} {worth.in_own_groups(each)}"
                for sender, each in sorted(found.senders.items(), key=lambda item: -item[1].value)
            ),
            f"{found.rounds:,}",
        )
        for history, found in known
    ]
    note = (
        "Estimated without a control, from the gradients of the peer's own updates at the end of the run, with 95% "
        "intervals: progress of its updates over that of updates on its own groups alone, in as many rounds and in the "
        "same time; what follows for the rewards of all rounds, if it was so in every round; and the worth of a group "
        "of others in own groups."
    )
    head = (
        "peer",
        "progress per round",
        "in the same time",
        "rewards of all rounds",
        "a group of others, in own groups",
        "by sender",
        "rounds measured",
    )
    return table(head, rows, text_columns=6) + f'<p class="note">{note}</p>'


def _rewards_ratio(history: PeerHistory, found: SwarmWorth) -> str:
    rewards = [event.reward or 0.0 for event in history.series()]
    if found.help is None or not any(rewards):
        return worth.NOT_KNOWN
    return f"{worth.rewards_ratio(rewards, found.help.value):.2f}"


def _following(histories: Sequence[PeerHistory]) -> str:
    """Versions and staleness, and the overlap model's prediction beside the measurement."""
    rows = []
    for history in plots.training(histories):
        steps = [event for event in history.series() if event.learning is not None]
        if not steps or steps[-1].learning is None:
            continue
        last = steps[-1].learning
        rows += [
            ("staleness, versions", str(history.max_lag), f"at most {last.max_staleness}"),
            ("learner waited", percent(last.bubble), percent(last.predicted_bubble)),
            ("rollouts per second", figure(last.rate), f"{figure(last.required_rate)} needed"),
            ("training seconds per step", figure(last.train_s), ""),
            ("seconds per broadcast", figure(last.broadcast_s), ""),
            ("workers active", f"{last.active} of {last.workers}", ""),
        ]
    if not rows:
        return ""
    note = "At the end of the run. Model: arXiv:2602.02192, eq. 1 and 2, which allows no sampling during a broadcast."
    return (
        _picture(plots.draw_versions, histories, 2.8, "Versions of learner and workers, over time")
        + _picture(plots.draw_staleness, histories, 2.4, "Age of the tokens trained on, by step")
        + table(("", "measured", "predicted or allowed"), rows, text_columns=1)
        + f'<p class="note">{note}</p>'
    )


def _mixing(histories: Sequence[PeerHistory]) -> str:
    """The last decision of each peer whose mix is not fixed."""
    decided = [(history.name, mix_in_words(history.latest)) for history in histories if history.latest is not None]
    return pairs((name, clean(words)) for name, words in decided if words)


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


def _flattened(config: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """(`mix.local`, `4`) pairs."""
    pairs: list[tuple[str, str]] = []
    for key, value in config.items():
        if value is None:
            continue  # not set
        if isinstance(value, Mapping) and value:
            pairs += _flattened(value, f"{prefix}{key}.")
        else:
            shown = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
            pairs.append((clean(f"{prefix}{key}"), clean_lines(shown)))
    return pairs
