"""The upkeep loops of a session: repair, downloads and peer exchange, once the run is known.

repair          one random member: what it holds -> missing records -> inbox    (every `repair_every_s`; at once when
                                                                                 the first peer appears)
download        announced large records <- holders, one after another -> inbox  (two at a time, one of newcomers)
pull            chosen records on offer <- authors, those whom they name, or other holders -> inbox
                                                                                 (eight at a time, four of newcomers)
exchange_peers  signed peer records <- random members -> dialling, file         (every `announce_every_s`; on new peers)

Independent of asyncio and trio: the session provides the runtime.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Protocol

from swarm.errors import NoConnection, PeerUnreachable
from swarm.net.addresses.dial import Backoff
from swarm.net.bandwidth import LinkLimit, SlowHolder, paced
from swarm.net.membership.member import Member
from swarm.net.records.large import SENT_ITSELF, Download, DownloadQueue, holders
from swarm.net.records.repair import ROUND_TIMEOUT_S, Repair
from swarm.net.runtime import AsyncRuntime
from swarm.net.services.requests import ask_peers
from swarm.reasons import Reason

logger = logging.getLogger(__name__)

SILENCE_S = 10.0
DOWNLOADS_AT_ONCE = 2
DOWNLOADS_OF_NEWCOMERS = 1
"""The part from authors that have not been useful here: the least rate may take minutes for one record."""
PULLS_AT_ONCE = 8
PULLS_OF_NEWCOMERS = 4
"""The part from authors that have not been useful here: silent ones cannot take all slots."""
PULLS_OF_ONE = 4
"""The part from one author; 1 if it lately began an answer after more than `PROMPT_S`."""
PROMPT_S = 1.0
ANSWER_S = 4.0
"""An author that has sent nothing by then is left alone for a while, longer each time."""
MAX_SILENT_PAUSE_S = 60.0
DOWNLOAD_PAUSE_S = 1.0
SLOW_PAUSE_S = 30.0
MAX_SLOW_PAUSE_S = 600.0
"""Back-off of a holder that was too slow for large records."""
HEARD_S = 5.0
"""A silent peer is charged only if another was heard within this time; else this node's own link may be down."""
REFERRAL_S = 5.0
"""Time for all members that an author names instead of sending a record; then it is asked again, and must send it."""
REMEMBER_EVERY_S = 60.0
PEERS_ASKED = 2
PEERS_TIMEOUT_S = 10.0
PEERS_PAUSE_S = 1.0
"""Peers that appear within this time cause one request."""


class OpenStream(Protocol):
    """Opens a stream through the session. Raises `PeerUnreachable`."""

    def __call__(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Chunks of a peer's answer; `timeout_s` limits the silence between chunks."""


class Silent(PeerUnreachable):
    """A peer was asked for a record on offer and began no answer in time."""


class Upkeep:
    """Repair, downloads and peer exchange of a node in one session."""

    def __init__(self, member: Member, ask: OpenStream, runtime: AsyncRuntime) -> None:
        """Maintain `member` through requests to other peers."""
        self._member = member
        self._ask = ask
        self._runtime = runtime
        self._found_first = runtime.signal()
        self._found_new = runtime.signal()
        self._announced = runtime.signal()
        self._chosen = runtime.signal()
        self._repair = Repair(
            member.records.store,
            self._fetch,
            member.records.receive_repaired,
            every_s=member.settings.repair_every_s,
            backfill_s=member.settings.backfill_s,
        )
        self._unhelpful = Backoff(member.settings.repair_every_s)
        self._fetch_paced = paced(self._fetch, LinkLimit(member.settings.download_bytes_per_s), runtime)
        self._slow = Backoff(SLOW_PAUSE_S, MAX_SLOW_PAUSE_S)
        self._misleading = Backoff(SLOW_PAUSE_S, MAX_SLOW_PAUSE_S)
        """Authors whose named members did not give the record: asked for the record itself for a while."""
        self._silent = Backoff(DOWNLOAD_PAUSE_S, MAX_SILENT_PAUSE_S)
        self._tardy = Backoff(SLOW_PAUSE_S, MAX_SLOW_PAUSE_S)
        """Authors of records on offer that let this node wait; being prompt again costs little at one at a time."""
        self._pulling_from: Counter[str] = Counter()
        """Authors of current downloads of records on offer."""
        self._downloads_of_newcomers = 0
        self._downloading_from: set[str] = set()
        """Holders of current downloads; at most one download from each."""
        self._remembered_at = 0.0
        member.records.on_announcement = self._announced.set
        member.records.on_pull = self._chosen.set

    def members_changed(self, *, first: bool) -> None:
        """New members of the run are connected; `first`: there were none before."""
        self._found_new.set()
        if first:
            self._found_first.set()

    async def repair(self) -> None:
        """Ask one member after another for missing records, forever."""
        while True:
            self._found_first.clear()
            now = time.monotonic()
            helpful = [peer_id for peer_id in self._member.peers.in_run if self._unhelpful.wait_s(peer_id, now) <= 0]
            if helpful:
                await self._repair_from(random.choice(helpful))
            # Random, so that nodes that started together do not stay in step.
            await self._found_first.wait_for(self._member.settings.repair_every_s * random.uniform(0.8, 1.2))

    async def _repair_from(self, peer_id: str) -> None:
        try:
            async with self._runtime.timeout(ROUND_TIMEOUT_S):
                await self._repair.round(peer_id)
        except (PeerUnreachable, TimeoutError) as error:
            self._member.counters.add("repair_failures")
            self._unhelpful.failed(peer_id, time.monotonic())
            logger.debug("repair from %s failed: %s", peer_id, error)
        else:
            self._unhelpful.succeeded(peer_id)

    async def download(self) -> None:
        """Fetch announced records in turn, forever."""
        waiting, queued = self._member.records.large, self._announced
        while True:
            queued.clear()
            if (taken := waiting.take(self._may_download)) is None:
                await queued.wait_for(math.inf)
                continue
            is_new = not self._is_proven(taken[1].announcement.peer_id)
            self._downloads_of_newcomers += is_new
            try:
                await self._try(waiting, *taken)
            finally:
                self._downloads_of_newcomers -= is_new
                queued.set()

    def _may_download(self, give_up_at: float, download: Download) -> bool:
        """Whether to fetch an announced record now."""
        new = self._downloads_of_newcomers
        return self._is_proven(download.announcement.peer_id) or new < DOWNLOADS_OF_NEWCOMERS

    async def pull(self) -> None:
        """Fetch chosen records on offer in turn, forever."""
        waiting, queued = self._member.records.pulls, self._chosen
        while True:
            queued.clear()
            if (taken := waiting.take(self._may_pull)) is None:
                # Authors in a pause may be tried again soon.
                await queued.wait_for(DOWNLOAD_PAUSE_S if len(waiting) else math.inf)
                continue
            give_up_at, download = taken
            author = download.announcement.peer_id
            if author in self._member.peers.banned:
                continue
            if time.monotonic() > give_up_at:
                self._gave_up(download)
                continue
            self._pulling_from[author] += 1
            try:
                await self._try(waiting, give_up_at, download)
            finally:
                self._pulling_from[author] -= 1
                self._pulling_from += Counter()  # without those at zero

    def _may_pull(self, give_up_at: float, download: Download) -> bool:
        """Whether to fetch a record on offer, or give it up, now."""
        author, now = download.announcement.peer_id, time.monotonic()
        if now > give_up_at or author in self._member.peers.banned:
            return True
        most_of_one = PULLS_OF_ONE if self._tardy.wait_s(author, now) <= 0 else 1
        if self._silent.wait_s(author, now) > 0 or self._pulling_from[author] >= most_of_one:
            return False
        of_newcomers = sum(num for each, num in self._pulling_from.items() if not self._is_proven(each))
        return self._is_proven(author) or of_newcomers < PULLS_OF_NEWCOMERS

    def _is_proven(self, author: str) -> bool:
        return self._member.records.admission.is_proven(author, self._member.peers.connected)

    async def _try(self, waiting: DownloadQueue, give_up_at: float, download: Download) -> None:
        """One attempt at a download that was taken from its queue, and goes back there unless it is settled."""
        settled, had_asked, began = False, download.asked, time.monotonic()
        try:
            settled = await self._download(download)
            if download.offered is not None and download.asked and not had_asked:
                give_up_at = began + download.patience_s
            if not settled and time.monotonic() > give_up_at:
                self._gave_up(download)
                settled = True
            elif not settled:
                await self._runtime.sleep(DOWNLOAD_PAUSE_S)
        finally:
            # Also when the session dies: the next one continues with the fetched bytes.
            if settled:
                waiting.forget(download)
            else:
                waiting.put_back(give_up_at, download)

    def _gave_up(self, download: Download) -> None:
        self._member.counters.add("fetch_failures")
        # An author that was not asked, because this node was busy, is not to blame; nor one that was banned or
        # restarted meanwhile: a new process does not have the offers of the one before it.
        author, peers = download.announcement.peer_id, self._member.peers
        excused = author in peers.banned or peers.returns.excuse(author, time.monotonic())
        if download.asked and self._hears() and not excused:
            self._member.records.withheld(download)

    def _hears(self) -> bool:
        return time.monotonic() - self._member.records.heard_at <= HEARD_S

    async def _download(self, download: Download) -> bool:
        """Whether the download is settled: complete, or impossible."""
        for peer_id in holders(download, self._member.peers.in_run):
            now = time.monotonic()
            if self._slow.wait_s(peer_id, now) > 0 or (download.offered and self._silent.wait_s(peer_id, now) > 0):
                continue
            # Records on offer are small, so several may come from one author.
            if download.offered is None and peer_id in self._downloading_from:
                continue
            if not await self._get_from(peer_id, download):
                continue
            try:
                self._member.records.receive_fetched(download)
            except PeerUnreachable as error:
                self._member.counters.add("fetch_failures")
                logger.debug("%s announced a record that does not exist: %s", download.announcement.peer_id, error)
            return True
        return False

    async def _get_from(self, peer_id: str, download: Download) -> bool:
        """Whether one holder delivered the rest."""
        fetch = self._fetch_paced
        if download.offered is None:
            self._downloading_from.add(peer_id)
        else:
            fetch = self._fetch_answered
        try:
            referral = await download.fetch_from(fetch, peer_id, self._asker(peer_id, download))
        except SlowHolder as error:
            download.asked |= peer_id == download.announcement.peer_id
            self._slow.failed(peer_id, time.monotonic())
            if self._hears():
                self._member.complaints.add(peer_id, Reason.SLOW_HOLDER)
            logger.debug("%s", error)
            return False
        except PeerUnreachable as error:
            if isinstance(error, Silent):
                self._silent.failed(peer_id, time.monotonic())
            # A peer that is still being dialled has not been asked.
            was_sent = peer_id in self._member.peers.connected or not isinstance(error, NoConnection | Silent)
            download.asked |= was_sent and peer_id == download.announcement.peer_id
            if was_sent and self._hears():
                self._answered(peer_id, download, gave=False)
            self._member.counters.add("holders_failed")
            logger.debug("fetching a record from %s failed: %s", peer_id, error)
            return False
        finally:
            if download.offered is None:
                self._downloading_from.remove(peer_id)
        self._slow.succeeded(peer_id)
        self._silent.succeeded(peer_id)
        self._answered(peer_id, download, gave=True)
        if referral:
            return await self._get_from_named(referral, peer_id, download) or await self._get_from(peer_id, download)
        return True

    def _answered(self, peer_id: str, download: Download, *, gave: bool) -> None:
        """Record whether the author of an offer gave the group when asked, or named others."""
        if download.offered is not None and peer_id == download.announcement.peer_id:
            self._member.records.offer_rate.asked(peer_id, gave)

    def _asker(self, peer_id: str, download: Download) -> bytes:
        """This node's own record for an author that may name others instead of sending what it offered."""
        member, offered = self._member, download.offered
        if offered is None or peer_id != offered.peer_id or download.referred or not member.own.profile.listed:
            return b""
        # In a swarm this small no author sends a record more often than that.
        if len(member.peers.known) <= SENT_ITSELF or self._misleading.wait_s(peer_id, time.monotonic()) > 0:
            return b""
        return member.own.sealed()[0]

    async def _get_from_named(self, referral: Sequence[bytes], author: str, download: Download) -> bool:
        """Whether one of the members that the author names gave the record; each is asked once, in random order.

        They are not blamed: only the author says that they have it.
        """
        peers = self._member.peers
        named = {record.peer_id: (record, sealed) for sealed in referral if (record := peers.read(sealed)) is not None}
        for known in (author, self._member.identity.peer_id, *peers.banned):
            named.pop(known, None)
        peers.learn(list(named.values()), author)
        with suppress(TimeoutError):
            async with self._runtime.timeout(REFERRAL_S):
                for peer_id in random.sample(sorted(named), len(named)):
                    with suppress(PeerUnreachable):
                        await download.fetch_from(self._fetch_paced, peer_id)
                        self._member.counters.add("referred")
                        self._misleading.succeeded(author)
                        return True
                    self._member.counters.add("holders_failed")
        self._misleading.failed(author, time.monotonic())
        return False

    async def exchange_peers(self) -> None:
        """Learn peers' addresses from members and write them to the file, forever."""
        peers = self._member.peers
        while True:
            self._found_new.clear()
            for peer_id in random.sample(sorted(peers.in_run), min(PEERS_ASKED, len(peers.in_run))):
                await self._ask_for_peers(peer_id)
            if time.monotonic() - self._remembered_at > REMEMBER_EVERY_S or peers.in_run - peers.remembered.keys():
                self._remembered_at = time.monotonic()
                peers.remember()
            await self._found_new.wait_for(self._member.settings.announce_every_s)
            await self._runtime.sleep(PEERS_PAUSE_S)

    async def _ask_for_peers(self, peer_id: str) -> None:
        member, manifest = self._member, self._member.run.manifest
        assert manifest is not None
        try:
            async with self._runtime.timeout(PEERS_TIMEOUT_S):
                member.peers.learn(await ask_peers(self._fetch, peer_id, manifest.run_id, member.clock()), peer_id)
        except (PeerUnreachable, TimeoutError) as error:
            member.counters.add("peer_exchange_failures")
            logger.debug("asking %s for its known peers failed: %s", peer_id, error)

    async def _fetch_answered(
        self, peer_id: str, protocol: str, payload: bytes, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """`_fetch_paced`; raises `Silent` if no answer begins in time."""
        began = time.monotonic()
        async with aclosing(self._fetch_paced(peer_id, protocol, payload, max_bytes)) as chunks:
            try:
                async with self._runtime.timeout(ANSWER_S):
                    first = await anext(chunks, b"")
            except TimeoutError as error:
                raise Silent(f"{peer_id} sent nothing for {ANSWER_S:g} s") from error
            finally:
                now = time.monotonic()
                if now - began > PROMPT_S:
                    self._tardy.failed(peer_id, now)
                elif self._tardy.wait_s(peer_id, now) <= 0:
                    self._tardy.succeeded(peer_id)
            yield first
            async for chunk in chunks:
                yield chunk

    async def _fetch(self, peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._ask(peer_id, protocol, payload, SILENCE_S, max_bytes)) as chunks:
            async for chunk in chunks:
                if chunk:
                    self._member.records.heard()
                yield chunk
