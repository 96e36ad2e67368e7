"""The page of a node: what three open pages cost the node's rounds, and how soon a page is painted.

One `tiny` node with `--ui`. Its rounds are counted while nobody looks and while three pages are open, in turns.
Paints are those of headless Chromium, beside an empty page in the same browser.
"""

from __future__ import annotations

import http.client
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.common.children import ChildFailed, ChildProcesses, until
from benchmarks.common.live import Nodes
from benchmarks.common.report import Report, row
from benchmarks.common.running import Result, conclude, measure, option_parser, scratch, wide_console
from nodes.page import PORT_FILE
from swarm.telemetry.intervals import bootstrap_mean

NUM_PAGES = 3
LEAST_RATE = 0.98
LONGEST_PAINT_S = 0.5
SETTLE_S = 2.0
TIMEOUT_S = 60.0
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
EMPTY = "data:text/html,<p>nothing</p>"


class Plan(NamedTuple):
    """Sizes."""

    pairs: int
    window_s: float
    loads: int


def rounds(plan: Plan) -> Result:
    """The node's rounds with three pages open, over those with none."""
    ratios, costs = [], []
    with _node() as (nodes, port):
        process = nodes.children[0].process.pid
        for number in range(plan.pairs):
            found: dict[bool, tuple[float, float, float]] = {}
            for looked_at in (number % 2 == 0, number % 2 == 1):
                with _open_pages(port if looked_at else None):
                    time.sleep(SETTLE_S)
                    found[looked_at] = _window(nodes, process, plan.window_s)
            (rate, node_s, page_s), (alone, _, _) = found[True], found[False]
            ratios.append(rate / alone if alone else None)
            costs.append(100 * page_s / node_s if node_s else None)
    known = [ratio for ratio in ratios if ratio is not None]
    interval = bootstrap_mean(known)
    note = f"Mean ratio of rounds {sum(known) / max(1, len(known)):.3f}" + (
        f", 95% interval over pairs {interval[0]:.3f} to {interval[1]:.3f}." if interval else "."
    )
    return [
        row(f"rounds with {NUM_PAGES} pages open, over rounds with none", ratios, "x", target=LEAST_RATE),
        row(f"processor time of the page's process with {NUM_PAGES} pages, of the node's", costs, "%"),
    ], [note]


def paint(plan: Plan) -> Result:
    """Seconds until the first paint of the page, and of an empty page."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        raise ChildFailed("there is no chromium with its chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(argument)
    page, empty = [], []
    with _node() as (_, port):
        browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
        try:
            for _ in range(plan.loads):
                empty.append(_painted_s(browser, EMPTY))
                page.append(_painted_s(browser, f"http://127.0.0.1:{port}/"))
        finally:
            browser.quit()
    return [row("first paint of the page", page, "s", baseline=empty, target=LONGEST_PAINT_S, better="lower")], []


def _painted_s(browser: object, url: str) -> float | None:
    from selenium.webdriver import Chrome

    assert isinstance(browser, Chrome)
    browser.get(url)
    until(lambda: browser.execute_script(PAINT) is not None, TIMEOUT_S)
    found = browser.execute_script(PAINT)
    return float(found) / 1e3 if found is not None else None


@contextmanager
def _node() -> Iterator[tuple[Nodes, int]]:
    """A node that trains, and the port of its page."""
    with scratch() as folder, ChildProcesses(Path(folder)) as processes:
        nodes = Nodes(processes, None)
        nodes.start("join", "--ui", cores=1.0)
        nodes.warm_up(0)
        yield nodes, int((nodes.out(0) / PORT_FILE).read_text())


def _window(nodes: Nodes, pid: int, seconds: float) -> tuple[float, float, float]:
    """Rounds per minute; seconds of processor time of the node and of its page's process."""
    page = next(child for child in psutil.Process(pid).children(recursive=True) if "ui" in child.cmdline())
    before = _used_s(psutil.Process(pid)), _used_s(page)
    rate = nodes.pace(0, seconds)
    return rate, _used_s(psutil.Process(pid)) - before[0], _used_s(page) - before[1]


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _open_pages(port: int | None) -> Iterator[None]:
    """Streams as browsers open them, read to the end of the block; none without a port."""
    number = 0 if port is None else NUM_PAGES
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S) for _ in range(number)]
    ended = threading.Event()
    threads = [threading.Thread(target=_read, args=(each, ended), daemon=True) for each in connections]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(TIMEOUT_S)


def _read(connection: http.client.HTTPConnection, ended: threading.Event) -> None:
    connection.request("GET", "/events?node=0")
    answer = connection.getresponse()
    while not ended.is_set() and answer.readline():
        pass
    connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the results."""
    measurements = {"rounds": rounds, "paint": paint}
    options = option_parser("page", __doc__, measurements).parse_args(arguments)
    plan = Plan(1, 2.0, 1) if options.quick else Plan(16, 8.0, 12)
    report, console = Report("page", peer="an empty page"), wide_console()
    return conclude(
        lambda: measure(measurements, options.only, plan, report, console, quick=options.quick),
        report,
        options,
        console,
    )


if __name__ == "__main__":
    sys.exit(main())
