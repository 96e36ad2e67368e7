"""The page in a real browser: what it shows, that nobody's text runs, and that it does not grow.

With PAGE_SCREENSHOTS=FOLDER it also leaves pictures there, for people to look at.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from swarm.extras.page.report import frozen
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE, EndEvent, encode
from tests.extras.page.served import Served, serving
from tests.telemetry.folders import PICTURE, crowd, events, hostile, swarm, until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.slow

WIDTHS = (390, 1280)
CLIPPED = """return [...document.querySelectorAll(".scroll")]
    .filter((box) => box.scrollWidth > box.clientWidth + 1)
    .map((box) => [box.id, box.scrollWidth, box.clientWidth])"""
SCHEMES = ("light", "dark")
# The luminance contrast of WCAG 2, of every element with a text of its own against the background behind it.
CONTRAST = """
const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = parts(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour.slice(0, 3);
  }
  return [255, 255, 255];
};
const low = [];
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  if (!own || node.closest("svg, option, noscript, .skip") || !node.getClientRects().length) continue;
  const pair = [luminance(parts(getComputedStyle(node).color)), luminance(behind(node))].sort((x, y) => y - x);
  if ((pair[0] + 0.05) / (pair[1] + 0.05) < 4.5) low.push(`${node.tagName} ${node.className}: ${node.textContent}`);
}
return low;
"""


def _window(browser: Chrome, width: int, scheme: str) -> None:
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


@contextmanager
def looking(browser: Chrome, folder: Path, width: int = 1280, scheme: str = "light") -> Iterator[Served]:
    """The page of `folder`, in a window of that width; without errors in the browser's console."""
    _window(browser, width, scheme)
    with serving(folder) as page:
        browser.get(page.url)
        connected = ("live", "all nodes have ended")
        until(
            lambda: _text(browser, "connection") in connected and _text(browser, "node-title") != "Node", "the stream"
        )
        yield page
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
        browser.get("about:blank")


def _text(browser: Chrome, name: str) -> str:
    return str(browser.execute_script("return document.getElementById(arguments[0])?.textContent ?? ''", name))


def _picture(browser: Chrome, name: str) -> None:
    if not (folder := os.environ.get("PAGE_SCREENSHOTS")):
        return
    import base64

    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(taken["data"]))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_what_it_shows(chromium: Chrome, width: int, scheme: str, tmp_path: Path) -> None:
    with looking(chromium, swarm(tmp_path, time.time()), width, scheme):
        assert _text(chromium, "answer-words") == "The swarm helps"
        assert re.fullmatch(
            r"per round×1\.\d95% interval.*in the same time×1\.\d95% interval.*", _text(chromium, "tiles")
        )
        assert chromium.execute_script("return document.getElementById('answer').className") == "helps"
        assert _text(chromium, "node-title") == "peer-1"
        shown = chromium.execute_script(
            "return [...document.querySelectorAll('figure')].filter((f) => !f.hidden).length"
        )
        assert shown >= 10
        ends = chromium.execute_script(
            "return [...document.querySelectorAll('figure')].filter((f) => !f.hidden).map((f) =>"
            " [...f.querySelectorAll('svg > text')].slice(2, 4).map((t) => t.textContent).join('-'))"
        )
        assert set(ends) == {"1-200"}, "all charts have the same rounds"
        sideways = chromium.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert sideways <= 0
        assert chromium.execute_script(CLIPPED) == [], "no table scrolls sideways either"
        assert chromium.execute_script(CONTRAST) == []
        chromium.execute_script("document.getElementById('samples-read').click()")
        until(lambda: "refused" in _text(chromium, "samples"), "samples")
        chromium.execute_script("document.querySelector('#samples summary').click()")
        until(lambda: "greatest common divisor" in _text(chromium, "samples"), "an opened sample")
        width_of = "return document.querySelector('#samples img')?.naturalWidth ?? 0"
        until(lambda: chromium.execute_script(width_of) == PICTURE.width, "the picture of the question")
        assert chromium.execute_script(CONTRAST) == []
        _picture(chromium, f"swarm-{width}-{scheme}")


def _report(run: Path, out: Path) -> str:
    """The address of a report of the nodes in `run`."""
    paths = sorted(run.glob(f"*/{METRICS_FILE}"), key=lambda path: (path.parent.name == "alone", path))
    out.write_bytes(
        frozen([PeerHistory.read(path, control=path.parent.name == "alone") for path in paths], {"seed": 7}, {"a": "1"})
    )
    return out.as_uri()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_is_the_page_without_a_server(chromium: Chrome, width: int, scheme: str, tmp_path: Path) -> None:
    _window(chromium, width, scheme)
    chromium.get(_report(swarm(tmp_path / "run", time.time()), tmp_path / "report.html"))
    assert _text(chromium, "answer-words") == "The swarm helps"
    assert _text(chromium, "connection").startswith("report of ") and "incomplete" in _text(chromium, "connection")
    assert _text(chromium, "title") == "Swarm report: demo-abc" and _text(chromium, "node-title") == "peer-1"
    assert "refused" in _text(chromium, "samples") and _text(chromium, "config") == "seed7"
    shown = "return [...document.querySelectorAll('figure')].filter((each) => each.getClientRects().length).length"
    assert chromium.execute_script(shown) >= 20
    chromium.execute_script("document.querySelector('[data-key=\"1\"]').click()")
    assert _text(chromium, "node-title") == "peer-2"
    chromium.execute_script("document.querySelector('#samples summary').click()")
    until(lambda: "greatest common divisor" in _text(chromium, "samples"), "an opened sample")
    sideways = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert chromium.execute_script(sideways) <= 0 and chromium.execute_script(CLIPPED) == []
    assert chromium.execute_script(CONTRAST) == []
    _picture(chromium, f"report-{width}-{scheme}")
    assert chromium.get_log("browser") == []  # type: ignore[no-untyped-call]
    chromium.get("about:blank")


def test_nobody_s_text_runs_in_a_report(chromium: Chrome, tmp_path: Path) -> None:
    _window(chromium, 1280, "light")
    chromium.get(_report(hostile(tmp_path / "run", time.time()), tmp_path / "report.html"))
    chromium.execute_script("document.querySelectorAll('#samples summary').forEach((each) => each.click())")
    until(lambda: "<script>" in _text(chromium, "samples"), "the hostile texts")
    assert chromium.execute_script("return window.attacked ?? null") is None
    assert chromium.execute_script("return document.querySelectorAll('body script, img, iframe, a[href]').length") == 1
    assert chromium.get_log("browser") == []  # type: ignore[no-untyped-call]
    chromium.get("about:blank")


def test_the_first_paint_is_soon_and_needs_no_data(chromium: Chrome, tmp_path: Path) -> None:
    with looking(chromium, swarm(tmp_path, time.time())):
        paint = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
        until(lambda: chromium.execute_script(paint) is not None, "the first paint")
        print(f"first paint after {chromium.execute_script(paint):.0f} ms")
        loaded = chromium.execute_script("return performance.getEntriesByType('resource').map((each) => each.name)")
        assert all(name.startswith("http://127.0.0.1:") for name in loaded)


@pytest.mark.parametrize("width", WIDTHS)
def test_from_a_red_alert_to_what_to_do_is_one_click(chromium: Chrome, width: int, tmp_path: Path) -> None:
    now = time.time()
    folder = swarm(tmp_path, now, num_nodes=1, control=False)
    with (folder / "peer-1" / METRICS_FILE).open("ab") as file:
        file.write(encode(EndEvent(time=now, round=200, reason="error")))
    with looking(chromium, folder, width):
        until(lambda: "serious" in _text(chromium, "alerts"), "the alert")
        assert "peer-1, serious: The node has stopped" in _text(chromium, "alarms"), "it comes before the verdict"
        assert _text(chromium, "connection") == "all nodes have ended"
        link = chromium.execute_script("return document.querySelector('.alert.error a').href")
        chromium.get(link)
        heading = "return document.querySelector(':target')?.textContent ?? ''"
        until(lambda: chromium.execute_script(heading) == "By message", "the section")
        assert chromium.execute_script("return document.querySelector(':target').getBoundingClientRect().top < 900")
        assert chromium.execute_script(CONTRAST) == []
        sideways = chromium.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert sideways <= 0
        _picture(chromium, f"document-{width}")


def test_nobody_s_text_runs_or_becomes_markup(chromium: Chrome, tmp_path: Path) -> None:
    with looking(chromium, hostile(tmp_path, time.time())):
        chromium.execute_script("document.getElementById('samples-read').click()")
        until(
            lambda: chromium.execute_script("return document.querySelectorAll('#samples details').length") > 10,
            "samples",
        )
        chromium.execute_script("document.querySelectorAll('#samples summary').forEach((each) => each.click())")
        until(lambda: "<script>" in _text(chromium, "samples"), "the hostile texts")
        assert chromium.execute_script("return window.attacked ?? null") is None
        assert (
            chromium.execute_script("return document.querySelectorAll('body script, img, iframe, object').length") == 0
        )
        links = chromium.execute_script(
            "return [...document.querySelectorAll('a')].map((each) => each.getAttribute('href'))"
        )
        assert all(re.fullmatch(r"#answer|/docs/(?:extras/)?[a-z]+\.md(#[a-z-]+)?", link) for link in links)
        text = chromium.execute_script("return document.body.textContent")
        assert not re.search("[\u202a-\u202e\u2066-\u2069\ufeff\x00-\x08\x0b-\x1f]", text)
        sideways = chromium.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert sideways <= 0
        _picture(chromium, "hostile")


def test_the_keyboard_reaches_nodes_charts_and_samples(chromium: Chrome, tmp_path: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> None:
        for key in keys:
            ActionChains(chromium).send_keys(key).perform()

    def focused(what: str) -> str:
        return str(chromium.execute_script(f"return document.activeElement.{what} ?? ''"))

    with looking(chromium, swarm(tmp_path, time.time(), num_rounds=50)):
        press(Keys.TAB)
        assert focused("className") == "skip"
        reached = []
        for _ in range(40):
            press(Keys.TAB)
            reached.append(focused("id") or focused("textContent") or focused("tagName"))
        assert "peer-2" in reached and "samples-read" in reached and "samples-whose" in reached and "tasks" in reached
        chromium.execute_script("document.querySelector('[data-key=\"1\"]').focus()")
        press(Keys.ENTER)
        until(lambda: _text(chromium, "node-title") == "peer-2", "the other node")
        assert focused("textContent") == "peer-2", "what had the focus keeps it"
        chromium.execute_script("document.querySelector('figure svg').focus()")
        press(Keys.HOME, Keys.ARROW_RIGHT)
        assert "round 2" in chromium.execute_script("return document.querySelector('figure .readout').textContent")
        assert "round 2" in focused("getAttribute('aria-label')")


def test_two_hundred_peers(chromium: Chrome, tmp_path: Path) -> None:
    with looking(chromium, crowd(tmp_path, time.time())):
        assert chromium.execute_script("return document.querySelectorAll('#sharing circle').length") == 201
        assert chromium.execute_script("return document.querySelectorAll('#peers tbody tr').length") == 200
        assert "in quarantine" in _text(chromium, "legend")
        _picture(chromium, "crowd")


def test_an_open_page_does_not_grow(chromium: Chrome, tmp_path: Path) -> None:
    home = tmp_path / "peer-1"
    with looking(chromium, swarm(tmp_path, time.time(), 1, 600, control=False)):
        last = events(1, 599, 0.0)[-1]
        sizes = []
        for stage in range(6):
            with (home / METRICS_FILE).open("ab") as file:
                for number in range(601 + 500 * stage, 1_101 + 500 * stage):
                    event = structs.replace(last, round=number, wall_s=number / 2, time=time.time())  # type: ignore[call-arg]
                    file.write(encode(event))
            until(lambda stage=stage: f"{1_100 + 500 * stage:,}" in _text(chromium, "nodes"), "the rounds")  # type: ignore[misc]
            chromium.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
            found = chromium.execute_cdp_cmd("Memory.getDOMCounters", {})
            heap = chromium.execute_cdp_cmd("Runtime.getHeapUsage", {})
            sizes.append((found["nodes"], found["jsEventListeners"], heap["usedSize"]))
        elements, listeners, heaps = zip(*sizes, strict=True)
        assert max(elements[1:]) < 1.2 * elements[0] and max(listeners[1:]) <= listeners[0] + 4
        assert heaps[-1] < 1.3 * heaps[0]


def test_it_says_so_when_the_page_s_process_is_gone(chromium: Chrome, tmp_path: Path) -> None:
    folder = swarm(tmp_path, time.time(), 1, 5)
    with serving(folder) as page:
        chromium.get(page.url)
        until(lambda: _text(chromium, "node-title") == "peer-1", "the node")
    until(lambda: "does not answer" in _text(chromium, "connection"), "the news")
    assert _text(chromium, "node-title") == "peer-1", "what was known stays"
    chromium.get("about:blank")
