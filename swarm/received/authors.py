"""Whom a group counts as: its author, or the one author that all newcomers are together, because names cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from swarm.protocols import NEWCOMERS, GroupExchange

AuthorOf = Callable[[str], str]
"""The author that a peer counts as."""


def itself(peer_id: str) -> str:
    """Every peer is a separate author."""
    return peer_id


def author_of(exchange: GroupExchange) -> AuthorOf:
    """Established peers are authors, all others are newcomers; as of now."""
    established = exchange.established()
    return lambda peer_id: peer_id if peer_id in established else NEWCOMERS


def authors_of(peer_ids: Iterable[str], author_of: AuthorOf) -> dict[str, str]:
    """The author that each peer counts as. When only newcomers are available, each of them is a separate one."""
    authors = {peer_id: author_of(peer_id) for peer_id in peer_ids}
    return authors if set(authors.values()) != {NEWCOMERS} else {peer_id: peer_id for peer_id in authors}


def fair_part(count: int, num_authors: int) -> int:
    """The most that one of these authors gives of `count`."""
    return -(-count // max(1, num_authors))
