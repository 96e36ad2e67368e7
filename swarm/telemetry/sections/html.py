"""Pieces of HTML that sections share, and the page's style. Everything foreign is escaped where it enters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from swarm.foreign import clean
from swarm.telemetry.history import PeerSummary
from swarm.telemetry.intervals import accuracy
from swarm.types.thumbnails import as_url

STYLE = """
:root {
  --ink: #1d2125; --faint: #6b7278; --paper: #fbfbfa;
  --panel: #ffffff; --edge: #e2e3e1; --notice: #fff4d6; --nothing: #dedfdd;
  --good: #00704f; --care: #a85f00; --bad: #b54400; --beyond: rgb(0 0 0 / .25);
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e6e3; --faint: #9aa0a6; --paper: #16181b;
    --panel: #1e2125; --edge: #33373c; --notice: #3a3117; --nothing: #3f454b;
    --good: #3fc79a; --care: #eeb04b; --bad: #ff8f4f; --beyond: rgb(0 0 0 / .7);
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.4rem 0 .7rem; }
h3 { font-size: .95rem; margin: 1.2rem 0 .5rem; }
.answer { border-left: 6px solid var(--faint); padding: .2rem 0 .2rem 1rem; margin: 0 0 1.4rem; }
.answer p { margin: .4rem 0; }
.answer .verdict { font-size: 1.35rem; font-weight: 600; margin: 0 0 .6rem; }
.answer .cards { grid-template-columns: repeat(auto-fit, minmax(8rem, 13rem)); margin-bottom: .6rem; }
.helps { border-color: var(--good); } .mixed { border-color: var(--care); } .hurts { border-color: var(--bad); }
.alarm { border-left: 6px solid var(--care); background: var(--notice); padding: .5rem 1rem; margin: 0 0 .8rem; }
.alarm.error { border-color: var(--bad); font-weight: 400; }
.alarm p { margin: 0; overflow-wrap: anywhere; }
code { font: .9em ui-monospace, monospace; }
.notice { background: var(--notice); padding: .6rem .9rem; border-radius: 6px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; }
.cards { margin-bottom: 1.4rem; }
.card { background: var(--panel); border: 1px solid var(--edge); border-radius: 8px; padding: .8rem 1rem; }
.what, .detail, .note { color: var(--faint); font-size: .85rem; }
.value { font-size: 1.55rem; font-weight: 600; font-variant-numeric: tabular-nums; }
/* What goes on beyond its box has a shadow there. */
.scroll { overflow-x: auto; background: linear-gradient(to right, var(--paper) 30%, transparent) 0 0 / 40px 100% local,
  linear-gradient(to left, var(--paper) 30%, transparent) 100% 0 / 40px 100% local,
  linear-gradient(to right, var(--beyond), transparent) 0 0 / 14px 100% scroll,
  linear-gradient(to left, var(--beyond), transparent) 100% 0 / 14px 100% scroll; background-repeat: no-repeat; }
figure { margin: 0 0 1rem; background: var(--panel); border: 1px solid var(--edge); border-radius: 8px; }
figure { padding: .6rem; }
.scroll svg { display: block; width: 100%; min-width: 34rem; height: auto; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .7rem; }
.curve { margin: 0; padding: .5rem .7rem; font-size: .8rem; overflow-wrap: anywhere; }
.curve svg { display: block; width: 100%; height: 3.5rem; margin: .3rem 0; }
.curve polyline { fill: none; stroke-width: 1.5px; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.legend span { margin-right: 1.2rem; }
.legend i { display: inline-block; width: 1.1em; height: .25em; margin-right: .4em; vertical-align: middle; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--edge); }
th { color: var(--faint); font-weight: 500; vertical-align: bottom; }
td { white-space: nowrap; }
.words { display: block; white-space: normal; overflow-wrap: anywhere; min-width: 10rem; max-width: 22rem; }
.picture { display: block; height: 6rem; max-width: 22rem; image-rendering: pixelated; margin-bottom: .3rem; }
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


def section(title: str, body: str) -> str:
    """A section, unless it is empty."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int, total: bool = False) -> str:
    """Cells are HTML already; all but the first `text_columns` are numbers."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        kinds = [' class="text"' if index < text_columns else "" for index in range(len(texts))]
        return "".join(f"<{tag}{kind}>{text}</{tag}>" for kind, text in zip(kinds, texts, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    heading = cells("th", [escape(text) for text in head])
    kind = ' class="total"' if total else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>'


def pairs(items: Iterable[tuple[str, str]]) -> str:
    """Pairs of texts as a list of definitions; empty without any."""
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in items)
    return f"<dl>{rows}</dl>" if rows else ""


def interval(counts: tuple[float, float]) -> str:
    """Accuracy with its 95% interval."""
    if (known := accuracy(*counts)) is None:
        return "–"
    value, low, high = known
    return f"{value:.1%} <small>({low:.0%}–{high:.0%})</small>"


def peer_name(peer: PeerSummary) -> str:
    """A peer with its id as a tooltip."""
    return f'<span title="{escape(peer["peer_id"] or "never started")}">{escape(peer["name"])}</span>'


def figure(value: float | None) -> str:
    """Three decimals; a dash for an unknown one."""
    return "–" if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """One decimal; a dash for an unknown one."""
    return "–" if value is None else f"{value:.1%}"


def plural(n: int, noun: str) -> str:
    """With its number."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def duration(seconds: float) -> str:
    """In hours, minutes or seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def words(text: str) -> str:
    """Foreign text of any length, in one paragraph."""
    return f'<span class="words">{escape(clean(" ".join(text.split())))}</span>'


def pictures(pngs: Iterable[bytes]) -> str:
    """Small pictures, each in the page itself."""
    urls = [url for png in pngs if (url := as_url(png))]
    return "".join(f'<img class="picture" src="{url}" alt="picture {k}">' for k, url in enumerate(urls, start=1))
