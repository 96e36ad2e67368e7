"""Offers: descriptions of groups. A member that wants a group fetches its record by id.

    author     hold the records ─▶ sign many offers in one record ─▶ gossip
    others     offer ─▶ choose ─▶ fetch from the author, or from another holder ─▶ is it what was offered?

An offer is a signed claim: a group that differs from it counts against its author. It commits its author to the
completions, so that a copy under another name comes too late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, pstdev
from typing import Annotated

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from swarm.errors import Refusal
from swarm.net.records.envelope import MAX_CHUNK_BYTES, Kind, SignedRecord, check_kind, decode, decompress, seal_payload
from swarm.net.records.feed import FOLLOWED_AT_ONCE, OTHERS_BYTES
from swarm.net.records.identity import Identity
from swarm.net.records.stores import record_id
from swarm.net.records.wire import MAX_TASK_NAME_CHARS
from swarm.reasons import Reason
from swarm.sanitize import is_name
from swarm.types import Offer, OfferedGroup, OfferedGroups, PolicyId, VerifiedGroup, complete
from swarm.types.commitments import DIGEST_BYTES, MAX_COMMITMENT_BYTES, agrees, commitment, num_digests

OFFERS: Kind = "offers"
"""The kind of these records."""
MAX_OFFERS = 64
"""Per record."""
MAX_OFFER_BYTES = 160
"""Without its commitment."""
MAX_OFFERS_BYTES = 256 + MAX_OFFERS * (MAX_OFFER_BYTES + MAX_COMMITMENT_BYTES)
"""Largest payload before compression."""
SENT_BYTES = 10_240
"""Offers in a record that is made here: members of earlier versions accept no more."""
POLICY_ID_BYTES = 8
TYPICAL_OFFER_BYTES = 150
"""With its part of the record around it, and a commitment to eight completions."""
REQUEST_BYTES = 600
"""A request for one record and the frames of its answer."""
NAMED_BYTES = 60
"""An id in a feed, on the connection."""
KNOWING = 2 / 3
"""Fraction of the members that must know offers before a node makes any: the others learn of the groups by repair."""


class Offers(Struct, frozen=True, omit_defaults=True):
    """A signed list of offers."""

    run_id: str
    peer_id: str
    offers: Annotated[tuple[Offer, ...], Meta(min_length=1, max_length=MAX_OFFERS)]
    per_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Offers that the author makes each second at present; 0 of an author that does not know this field."""


def describe(group: VerifiedGroup, life_s: float) -> Offer | None:
    """The offer of a sealed group; None for one that is too large to be fetched in one piece, or to be described."""
    if not 0 < len(group.record) <= MAX_CHUNK_BYTES:
        return None
    offer = Offer(
        record_id=record_id(group.record),
        content_id=bytes.fromhex(group.content_id),
        num_bytes=len(group.record),
        task=group.group.question.task,
        num_completions=len(group.group.completions),
        mean_reward=fmean(group.group.rewards),
        reward_std=pstdev(group.group.rewards),
        policy=policy_digest(group.group.policy),
        life_s=max(1, min(3_600, int(life_s))),
        commitment=commitment(group.group),
    )
    return offer if not _problem(offer) else None


def check_offer(offered: OfferedGroup, found: VerifiedGroup) -> None:
    """Raises `Refusal`, attributed to the author of the offer, for another group than the one on offer."""
    offer, group = offered.offer, found.group
    if not (
        group.peer_id == offered.peer_id
        and offer.content_id.hex() == found.content_id
        and offer.task == group.question.task
        and offer.num_completions == len(group.completions)
        and offer.policy == policy_digest(group.policy)
        and (not offer.commitment or agrees(offer.commitment, group))
        and math.isclose(offer.mean_reward, fmean(group.rewards), rel_tol=1e-6, abs_tol=1e-6)
        and math.isclose(offer.reward_std, pstdev(group.rewards), rel_tol=1e-6, abs_tol=1e-6)
    ):
        raise Refusal(Reason.FALSE_OFFER, "the group is not what its author said", offered.peer_id)


def check_pulled(offered: OfferedGroup, found: VerifiedGroup, complain: Callable[[str, Reason], object]) -> None:
    """Check a group that was fetched because it was on offer.

    Another author's group is accepted, and the peer that offered it is complained of: refused, it would count as known,
    and its author's own offer would be in vain. Raises `Refusal` for other mismatches.
    """
    try:
        check_offer(offered, found)
    except Refusal as refusal:
        if found.group.peer_id == offered.peer_id:
            raise
        complain(offered.peer_id, refusal.reason)


def policy_digest(policy: PolicyId) -> bytes:
    """A short digest of a policy with its version."""
    return blake3(msgspec.msgpack.encode(policy)).digest(length=POLICY_ID_BYTES)


def seal_offers(identity: Identity, run_id: str, offers: Sequence[Offer], per_s: float = 0.0) -> bytes:
    """A signed record of at most `MAX_OFFERS` offers; `per_s`: how many the author makes each second."""
    content = Offers(run_id, identity.peer_id, tuple(offers), per_s)
    return seal_payload(identity, run_id, OFFERS, msgspec.msgpack.encode(content))


def in_records(offers: Sequence[Offer]) -> Iterator[list[Offer]]:
    """The offers of each record, in order."""
    some: list[Offer] = []
    room = SENT_BYTES
    for offer in offers:
        size = len(msgspec.msgpack.encode(offer))
        if some and (len(some) == MAX_OFFERS or size > room):
            yield some
            some, room = [], SENT_BYTES
        some.append(offer)
        room -= size
    if some:
        yield some


def open_offers(signed: SignedRecord, run_id: str) -> OfferedGroups:
    """The offers in a record, signed by the author of the groups. Raises `Refusal`, attributed to the signer."""
    body = signed.body
    try:
        check_kind(body, OFFERS)
        offers = decode(decompress(signed, MAX_OFFERS_BYTES), Offers)
        if not offers.run_id == body.run_id == run_id:
            raise Refusal(Reason.WRONG_RUN, f"expected run {run_id!r}, got {offers.run_id!r}")
        if offers.peer_id != body.peer_id:
            raise Refusal(Reason.WRONG_PEER, f"signed by {body.peer_id}, but says it is from {offers.peer_id!r}")
        for offer in offers.offers:
            if problem := _problem(offer):
                raise Refusal(Reason.LIMITS, problem)
    except Refusal as refusal:
        raise Refusal(refusal.reason, refusal.detail, body.peer_id) from refusal
    return OfferedGroups(offers.peer_id, offers.offers, offers.per_s)


def pulling_is_cheaper(num_bytes: float, num_members: int, wanted: float) -> bool:
    """Whether members receive fewer bytes when a group of this size is offered than when it is broadcast.

    Offers, and small groups, are in each feed that a member reads; of larger ones it receives one copy and the ids.
    `wanted` is the fraction of the members that use a group.
    """
    feeds = min(num_members, FOLLOWED_AT_ONCE)
    sent = feeds * num_bytes if num_bytes <= OTHERS_BYTES else num_bytes + feeds * NAMED_BYTES
    return feeds * TYPICAL_OFFER_BYTES + wanted * (num_bytes + REQUEST_BYTES) < sent


def _problem(offer: Offer) -> str:
    if not is_name(offer.task, MAX_TASK_NAME_CHARS):
        return f"names of tasks must be 1 to {MAX_TASK_NAME_CHARS} characters, got {offer.task!r:.100}"
    if offer.num_bytes > MAX_CHUNK_BYTES:
        return f"a record on offer has at most {MAX_CHUNK_BYTES} bytes, got {offer.num_bytes}"
    size = len(msgspec.msgpack.encode(offer)) - len(offer.commitment)
    if size > MAX_OFFER_BYTES:
        return f"an offer has at most {MAX_OFFER_BYTES} bytes besides its commitment, got {size}"
    if len(offer.commitment) % DIGEST_BYTES or num_digests(offer.commitment) > offer.num_completions:
        return f"a commitment is a tag and a digest for each completion, got {len(offer.commitment)} bytes"
    return ""


complete(globals())
