"""The page for everybody: what it has and what not, in a browser and without one, and the command that writes it."""

from __future__ import annotations

import functools
import http.server
import io
import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from msgspec.structs import replace
from rich.console import Console

from nodes.boot.directory import ADDRESS_FILE, MANIFEST_FILE
from nodes.commands.peers import STALE_AFTER_S
from nodes.commands.site import DATA, INDEX, SiteOptions, write_site
from nodes.page import site_folder, site_of
from swarm.errors import ConfigError, PeerUnreachable
from swarm.extras.page.public import MAX_POINTS, OpenRun, Points, _longer, _mean, command, make_site
from swarm.net.records.identity import Identity
from swarm.net.records.wire import seal_manifest
from swarm.net.roster import PeerRow, Roster, read_roster, write_roster
from swarm.net.trust.credit import Credit
from swarm.protocols import RECORDED
from swarm.telemetry.curves import Curve
from swarm.telemetry.nodes import NodeReader
from swarm.types import MemberSummary
from tests.extras.page.test_browser import CLIPPED, CONTRAST, WIDTHS, _picture, _text, _window
from tests.extras.page.test_report import embedded
from tests.net.records import make_manifest
from tests.telemetry.folders import HOSTILE, SCRIPT, ending_at, events, hostile, roster, row, swarm, until
from tests.telemetry.synthetic import write

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FOUNDER = Identity.generate()
AT = f"/ip4/203.0.113.7/tcp/4001/p2p/{FOUNDER.peer_id}"
SIDEWAYS = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


def in_a_run(folder: Path) -> Path:
    """The nodes in a folder, in a run, and with what members measured of their peers."""
    for home in (path.parent for path in folder.glob("*/peers.json")):
        (home / MANIFEST_FILE).write_bytes(seal_manifest(FOUNDER, make_manifest(FOUNDER, "sums")))
        (home / ADDRESS_FILE).write_text(f"{AT}\n")
        roster = read_roster(home)
        rows = [replace(row, credit=Credit(1.25 / (1 + place), 3)) for place, row in enumerate(roster.peers)]
        write_roster(home, replace(roster, peers=tuple(rows)))
    return folder


def site(out: Path, *folders: Path) -> str:
    """What the command says when it writes the files once."""
    console = Console(file=io.StringIO(), width=500)
    assert write_site(SiteOptions(out, (), folders, None, False), console) == 0
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def made(out: Path) -> dict[str, Any]:
    """The data in the page, which loads nothing, and is the same as in the other file."""
    page = (out / INDEX).read_text()
    data = embedded(page.replace('<link rel="icon" href="data:,">', ""))
    assert data == json.loads((out / DATA).read_text())
    return data


def run_of(node: NodeReader, **other: object) -> OpenRun:
    return replace(
        OpenRun("sums-0123", "founder", 1.0, ["gcd"], ["tiny"], 3, "4+4", ["swarm", "join", AT], nodes=[node]), **other
    )


def test_it_has_the_run_and_nothing_of_the_nodes_files_but_their_figures(tmp_path: Path) -> None:
    folder, out = in_a_run(swarm(tmp_path / "private-folder", time.time())), tmp_path / "www"
    assert site(out, folder) == f"written: {out / INDEX}\n"
    (run,) = made(out)["runs"]
    assert (run["name"], run["join"], run["members"]) == ("sums", f"swarm join {AT}", 4)
    assert run["give"] == f"swarm give {AT}"
    assert [row["worth"] for row in run["credit"]] == sorted((row["worth"] for row in run["credit"]), reverse=True)
    assert run["curves"]["reward"][-1][0] == 200 and {row["claimed"] for row in run["leaders"]} == {False}
    page = (out / INDEX).read_text()
    assert "private-folder" not in page and "greatest common divisor" not in page and "pool_full" not in page
    assert all((out / name).stat().st_mode & 0o777 == 0o644 for name in (INDEX, DATA))
    assert {path.name for path in out.iterdir()} == {INDEX, DATA}


def test_of_nodes_here_it_shows_what_the_network_sees(tmp_path: Path) -> None:
    home = tmp_path / "acme-secret"
    begin, *rest = ending_at(time.time(), events(1, 3, 0.0, name="acme-secret (eer1)"))
    begin = replace(begin, config={"name": None, "policy": {"model": "/srv/private-folder/m"}}, model="local:01234567")
    write(home, [begin, *rest])
    write_roster(home, roster(1, time.time(), []))
    in_a_run(tmp_path)
    site(tmp_path / "www", home)
    ((leader,),) = (run["leaders"] for run in made(tmp_path / "www")["runs"])
    assert (leader["name"], leader["model"]) == ("", "local:01234567")
    for path in (tmp_path / "www").iterdir():
        assert "secret" not in path.read_text() and "private-folder" not in path.read_text()


def test_members_have_valid_records_and_their_mean_accuracy_is_measured(tmp_path: Path) -> None:
    home, now = in_a_run(swarm(tmp_path / "run", time.time(), 1)) / "peer-1", time.time()
    boast = MemberSummary(rounds=9, given=9, used=9, correct=64, asked=64, evaluated_at=9)
    rows = [row(2, 5, summary=boast), row(3, 5, expires_at=now - 1, model="gone"), row(4, 5, expires_at=None)]
    write_roster(home, roster(1, now, [*rows, PeerRow(RECORDED, received=9, used=9, name=RECORDED)]))
    site(tmp_path / "www", home)
    data = made(tmp_path / "www")
    (run,), (history,) = data["runs"], data["history"].values()
    assert (run["members"], run["models"], history["members"][-1][1]) == (2, ["tiny-sparse"], 2.0)
    (measured,) = (each["accuracy"][0] for each in run["leaders"] if not each["claimed"])
    assert history["accuracy"][-1][1] == measured < 1
    visited = NodeReader(tmp_path)
    visited.roster = Roster(now, "sums-0123", "me", (row(2, 5, summary=boast),))
    history = json.loads(make_site([run_of(visited)], b"", now, None)[DATA])["history"]
    assert history["sums-0123"]["accuracy"] == []


def test_a_stopped_node_is_in_no_run(tmp_path: Path) -> None:
    folder = in_a_run(swarm(tmp_path / "run", time.time() - STALE_AFTER_S - 9, 1, control=False))
    console = Console(file=io.StringIO(), width=500)
    with pytest.raises(PeerUnreachable, match="is as it was"):
        write_site(SiteOptions(tmp_path / "www", (), (folder,), None, False), console)
    assert "peer-1: this node is not running" in console.file.getvalue()  # type: ignore[attr-defined]
    assert not (tmp_path / "www" / INDEX).exists()


def test_the_oldest_points_of_a_week_stay(tmp_path: Path) -> None:
    run = run_of(NodeReader(tmp_path))
    points: dict[str, Points] = {}
    for number in range(7 * 1_440):
        points = _longer(points, run.members, [], [], 60.0 * number)
    times = [at for at, _ in points["members"]]
    assert MAX_POINTS / 2 <= len(times) <= MAX_POINTS and times == sorted(times)
    assert sum(at < times[-1] / 2 for at in times) >= len(times) / 3


def test_a_long_run_id_has_its_history(tmp_path: Path) -> None:
    data = json.loads(make_site([run_of(NodeReader(tmp_path), run_id="r" * 40 + "-0123")], b"", 1.0, None)[DATA])
    assert data["runs"][0]["run"] in data["history"]


@pytest.mark.parametrize("lengths", [(1_000, 100), (500, 130), (7, 1)])
@pytest.mark.parametrize("every", [(1, 1), (20, 30)])
def test_the_mean_of_two_constants_has_one_step(lengths: tuple[int, int], every: tuple[int, int]) -> None:
    curves = [Curve(), Curve()]
    for value, (curve, num_rounds, step) in enumerate(zip(curves, lengths, every, strict=True)):
        for number in range(1, num_rounds + 1, step):
            curve.add(number, float(value))
    means = [value for _, value in _mean(curves)]
    assert means[0] == 0.5 and sum(one != two for one, two in itertools.pairwise(means)) <= 1


def test_a_folder_with_another_page_and_targets_of_no_use_are_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("mine")
    folder = swarm(tmp_path / "run", time.time(), 1, 3)
    with pytest.raises(ConfigError, match="is not of `swarm site`; choose another folder"):
        site(tmp_path, folder)
    with pytest.raises(ConfigError, match="is not of `swarm site`"), site_of(folder, tmp_path):
        pass
    assert (tmp_path / INDEX).read_text() == "mine"
    with pytest.raises(ConfigError, match="there is no directory"):
        site(tmp_path / "www", tmp_path / "nowhere")
    with pytest.raises(PeerUnreachable, match="nothing is known of any run"):
        site(tmp_path / "www", folder)
    assert not (tmp_path / "www" / INDEX).exists()


def test_a_folder_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    (folder := tmp_path / "ada").mkdir()
    with site_folder(tmp_path / "www"):
        with pytest.raises(ConfigError, match="kept up to date by another process; choose another folder"):
            site(tmp_path / "www", folder)
        with pytest.raises(ConfigError, match="by another process"), site_of(folder, tmp_path / "www"):
            pass
    with site_folder(tmp_path / "www"):
        pass


@pytest.mark.parametrize(
    "word", ["", "-x", "a b", "a;b", "$(a)", "`a`", "a\nb", "a|b", "a'b", 'a"b', "a\\b", "~a", "a*", "ä", *HOSTILE]
)
def test_a_command_of_anything_but_plain_words_is_not_shown(word: str) -> None:
    assert command(["swarm", "join", word]) == ""
    assert command(["swarm", "join", AT]) == f"swarm join {AT}"


@pytest.mark.parametrize(
    "before", [b"", b"{", b'{"history": 7}', b"[" * 9_999, b'{"history": {"sums-0123": {"members": [["x", 1]]}}}']
)
def test_its_history_grows_within_bounds_and_a_broken_one_begins_again(before: bytes, tmp_path: Path) -> None:
    node = NodeReader(tmp_path)
    for now in range(MAX_POINTS + 20):
        before = make_site([run_of(node)], before, float(now), 60.0)[DATA]
    points = json.loads(before)["history"]["sums-0123"]["members"]
    assert MAX_POINTS / 2 <= len(points) <= MAX_POINTS and points[-1] == [MAX_POINTS + 19, 3.0]
    assert points == sorted(points) and points[0][0] < 3
    gone = make_site([], before, 1e3, 60.0)[DATA]
    assert json.loads(gone)["history"] == json.loads(before)["history"], "a run that does not answer comes back"


def test_a_node_s_site_is_written_by_a_process_that_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = in_a_run(swarm(tmp_path / "run", time.time(), 1, 3, control=False))
    before = set(psutil.Process().children())
    with site_of(folder / "peer-1", Path("~/www")):
        until((tmp_path / "www" / INDEX).exists, "the site")
        (process,) = set(psutil.Process().children()) - before
    assert not process.is_running() and made(tmp_path / "www")["every"] == 60


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """The address of a folder on a web host that knows nothing of it."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_what_it_shows_from_a_file_and_below_a_path(chromium: Chrome, width: int, scheme: str, tmp_path: Path) -> None:
    out = tmp_path / "people" / "swarm"
    out.mkdir(parents=True)
    nodes = [NodeReader(each) for each in sorted(in_a_run(swarm(tmp_path / "run", time.time())).glob("peer-*"))]
    for node in nodes:
        node.read()
    other = run_of(nodes[0], run_id="words-4567", join=["swarm", "join", f"words-4567@{AT}"], nodes=[])
    content = b""
    for now in (time.time() - 300, time.time() - 240):
        files = make_site([run_of(nodes[0], nodes=nodes), other], content, now, 60.0)
        content = files[DATA]
    for name, each in files.items():
        (out / name).write_bytes(each)
    with hosted(tmp_path) as host:
        for address in ((out / INDEX).as_uri(), f"{host}people/swarm/"):
            _window(chromium, width, scheme)
            chromium.get(address)
            text = str(chromium.execute_script("return document.body.innerText"))
            assert _text(chromium, "title") == "Swarm: sums" and "renewed no more" in _text(chromium, "connection")
            assert text.count(f"swarm join {AT}") == 2 and f"swarm join words-4567@{AT}" in text
            assert "1.25 (3)" in text and "measured here" in text
            shown = "return [...document.querySelectorAll('figure')].map((each) => each.firstChild.textContent)"
            assert chromium.execute_script(shown) == [
                "Reward",
                "Members",
                "Mean accuracy of the nodes here",
                "Mean credit",
            ]
            assert chromium.execute_script(SIDEWAYS) <= 0 and chromium.execute_script(CLIPPED) == []
            assert chromium.execute_script(CONTRAST) == []
            selected = (
                "getSelection().selectAllChildren(document.querySelector('.command')); return String(getSelection())"
            )
            assert chromium.execute_script(selected).strip() == f"swarm join {AT}"
            loaded = chromium.execute_script("return performance.getEntriesByType('resource').map((each) => each.name)")
            assert [name for name in loaded if not name.startswith("data:")] == []
            assert chromium.get_log("browser") == []  # type: ignore[no-untyped-call]
    _picture(chromium, f"site-{width}-{scheme}")
    chromium.get("about:blank")


@pytest.mark.slow
def test_nobody_s_text_runs_on_it(chromium: Chrome, tmp_path: Path) -> None:
    node = NodeReader(in_a_run(hostile(tmp_path / "run", time.time())) / "peer-1")
    node.read()
    runs = [
        run_of(node, run_id=text, founder=text, tasks=[text] * 99, models=[text] * 99, terms=text,
               join=["swarm", "join", text], give=["swarm", "give", text])
        for text in HOSTILE
    ]  # fmt: skip
    files = make_site(runs, b"", time.time(), None)
    assert all(len(content) < 500_000 for content in files.values())
    (tmp_path / INDEX).write_bytes(files[INDEX])
    _window(chromium, 390, "light")
    chromium.get((tmp_path / INDEX).as_uri())
    text = str(chromium.execute_script("return document.body.textContent"))
    assert SCRIPT[:30] in text and "No address of this run is known." in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\ufeff\x00-\x08\x0b-\x1f]", text)
    assert chromium.execute_script("return window.attacked ?? null") is None
    assert chromium.execute_script("return document.querySelectorAll('body script, img, iframe, a').length") == 0
    assert chromium.execute_script(SIDEWAYS) <= 0
    assert chromium.get_log("browser") == []  # type: ignore[no-untyped-call]
    chromium.get("about:blank")
