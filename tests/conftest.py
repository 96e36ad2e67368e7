from __future__ import annotations

import signal

import pytest
import torch
from hypothesis import settings

from swarm import torchao
from swarm.machine import num_cores
from tests import libp2p_process

torchao.hide()  # as the command does

MAX_ID_CHARS = 80
DONE_BY = (1.0, 0.7, 0.3, 0.8, 1.0)
"""By rank: the part of all tests after which the last of the rank has begun, where several processes run them."""

# In the background of a script SIGINT is ignored, and SIGHUP under `nohup`: so they would be by processes that tests
# interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A machine that is busy with something else may take any time for an example.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def policy():
    """A small random policy with the embedded tokenizer: real architecture, nothing learned."""
    from tests.engines.models import random_policy

    return random_policy()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Long values are named by their length: the names of all tests go between processes, megabytes of them."""
    if isinstance(val, str | bytes) and len(val) > MAX_ID_CHARS:
        return f"{len(val)} {'bytes' if isinstance(val, bytes) else 'characters'}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast tests first: a mistake shows within seconds. Among those that start processes of their own, long ones first.

    Tests that share something stay together in one of several processes. These get all kinds in turn: while some tests
    wait, for a network or for other processes, others keep the cores busy. At the end there are short ones of each
    kind: no process is left with a long one.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        groups.setdefault(group or item.nodeid, []).append(item)
    if not hasattr(config, "workerinput"):
        items.sort(key=_rank)
        return
    by_rank: list[list[list[pytest.Item]]] = [[] for _ in DONE_BY]
    for group_items in groups.values():
        by_rank[max(map(_rank, group_items))].append(group_items)
    places = [
        (end * (number + 1) / len(together), together[number])
        for end, together in zip(DONE_BY, by_rank, strict=True)
        for number in range(len(together))
    ]
    items[:] = [item for _, group_items in sorted(places, key=lambda each: each[0]) for item in group_items]


def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: while tests wait, another runs."""
    return num_cores() + 1


def pytest_configure(config: pytest.Config) -> None:
    """Without groups every process makes anew what tests share, and runs all of libp2p's tests. xdist would begin with
    the groups of the most tests, and so end with all that start processes."""
    config.option.loadscopereorder = False
    if config.getoption("dist", "no") == "loadgroup" and not hasattr(pytest.Item, "_nodeid"):
        raise pytest.UsageError("pytest-xdist does not group tests under this pytest: see pyproject.toml")
    config.pluginmanager.register(libp2p_process)


def _group(item: pytest.Item) -> str | None:
    """Which tests stay together; None for one that goes wherever there is room."""
    file = item.location[0]
    if item.get_closest_marker("libp2p"):
        return "libp2p"
    if _shares(item):
        return file
    if item.get_closest_marker("network"):
        return None
    return f"{file}, slow" if item.get_closest_marker("slow") else file


def _shares(item: pytest.Item) -> bool:
    """Whether it uses a fixture that is made once for its module."""
    assert isinstance(item, pytest.Function)
    return any(found[-1].scope == "module" for found in item._fixtureinfo.name2fixturedefs.values())


def _rank(item: pytest.Item) -> int:
    slow = item.get_closest_marker("slow") is not None
    if not item.get_closest_marker("network"):
        return 1 if slow else 0
    if item.get_closest_marker("xdist_group"):
        return 2
    return 3 if slow else 4
