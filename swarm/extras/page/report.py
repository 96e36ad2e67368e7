"""The page frozen to one file: the same assets with the data embedded, without a server and without the network."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping, Sequence

import msgspec

from swarm.extras.page.site import ASSETS, MAX_SAMPLES, detail, overview, samples
from swarm.sanitize import clean, clean_lines
from swarm.settings import leaves
from swarm.telemetry.benefit.verdict import verdict
from swarm.telemetry.curves import Curve
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.nodes import NodeReader
from swarm.telemetry.records import RoundEvent

SCRIPTS = ("dom.js", "chart.js", "picture.js", "members.js", "page.js")
"""In the order of their imports; joined, they are one module."""
POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'"
)
FOOTER = '<footer class="note">What each part means: <code>swarm docs page</code></footer>'
MAX_FIGURES = 120
"""Tasks and users' losses name figures as they like."""
MAX_VALUE_CHARS = 2_000
MIN_SAMPLES = 5

Points = list[tuple[int, float]]


def frozen(histories: Sequence[PeerHistory], config: Mapping[str, object], versions: Mapping[str, str]) -> bytes:
    """The page as these nodes, a control among them or not, have left it: one HTML file."""
    nodes = [NodeReader(history.path.parent, history=history) for history in histories]
    for node in nodes:
        node.read()
        node.free_bytes = None  # the disk now says nothing about the run
    now = max((history.alive_at or 0.0 for history in histories), default=0.0)
    most = max(MIN_SAMPLES, MAX_SAMPLES // max(1, len(nodes)))
    data = {
        "made": time.strftime("%d %B %Y, %H:%M"),
        "overview": overview(nodes, verdict(histories), now),
        "details": [{**detail(node, nodes, now), "figures": figures(node.history)} for node in nodes],
        "samples": [samples(node, nodes, most) for node in nodes],
        "config": _flattened(config),
        "versions": [(clean(name), clean(version)) for name, version in versions.items()],
    }
    page = re.sub(r"<link .*?>\n|<script .*?></script>\n", "", (ASSETS / "index.html").read_text())
    return in_one_file(re.sub(r"<footer .*?</footer>", FOOTER, page), SCRIPTS, data)


def in_one_file(page: str, scripts: Sequence[str], data: object) -> bytes:
    """A page with style, scripts and data inside, in order of the scripts' imports, which may load nothing else."""
    style = (ASSETS / "page.css").read_text()
    script = "\n".join(_without_modules((ASSETS / name).read_text()) for name in scripts)
    # The data block is no script for a browser; as text it can neither end its element nor begin another.
    embedded = msgspec.json.encode(data, enc_hook=str).decode().replace("<", "\\u003c")
    policy = POLICY.format(script=_hash(script), style=_hash(style))
    links = (
        f'<meta http-equiv="content-security-policy" content="{policy}">\n<style>{style}</style>\n'
        f'<script type="application/json" id="frozen">{embedded}</script>\n<script type="module">{script}</script>\n'
    )
    return page.replace("</head>", f"{links}</head>", 1).encode()


def _without_modules(script: str) -> str:
    """A module's text for a joint one: without imports and exports."""
    return re.sub(r"^export ", "", re.sub(r"^import .*?;\n", "", script, flags=re.MULTILINE), flags=re.MULTILINE)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def figures(history: PeerHistory) -> dict[str, Points]:
    """Every figure of the rounds by its name in `metrics.jsonl`; (round, value) pairs."""
    found: dict[str, Curve] = {}
    for event in history.series():
        for name, value in _of_round(event).items():
            found.setdefault(clean(name), Curve()).add(event.round, value)
    known = {name: found[name].points() for name in sorted(found)}
    return dict([(name, points) for name, points in known.items() if points][:MAX_FIGURES])


def _of_round(event: RoundEvent) -> dict[str, float | None]:
    tasks = {f"reward/{task}": total / count for task, (total, count) in event.tasks.items() if count}
    times = {f"time/{stage}_s": seconds for stage, seconds in event.timings.items()}
    own = {"reward/mean": event.reward, "generate/tokens_per_s": event.tokens_per_s, "peers/connected": event.peers}
    return {**own, **tasks, **event.figures, **times}


def _flattened(config: Mapping[str, object]) -> list[tuple[str, str]]:
    """(`mix.local`, `4`) pairs, without unset values."""
    pairs: list[tuple[str, str]] = []
    for path, value in leaves(config) if config else ():
        if value is not None:
            text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
            pairs.append((clean(path), clean_lines(text[:MAX_VALUE_CHARS])))
    return pairs
