"""Offers on their way back: from ``si.state`` to the source that lent them (seed 004: two-level scheduling).

The core records that an offer is RETURNED; this tells the source so (:class:`~..contract.OfferTaker`). It reads the
RM's partition of ``si.state`` from the start, and gives nothing back before it is up to date: an offer that was lent
anew since is not given back for what it was before. What the source does not take is told again, with growing waits. It
is told once for each record: a source that names a returned offer again hears again that it is returned, and after a
restart it hears everything once more; that is nothing new to it.

========  =========================================================================================
record    becomes
========  =========================================================================================
RETURNED  due
another   not due
none      not due: the source forgot it
========  =========================================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import structlog
from google.protobuf.message import DecodeError
from muster_bus.errors import LogUnavailable, OffsetGone
from muster_bus.log import Log, LogReader, Record
from muster_bus.topics import parse_state_key, state_key
from muster_service.secrets import masked_text
from muster_service.waits import growing_s

from muster_scheduler import state_codec
from muster_scheduler.core.external import ExternalKind, OfferState
from muster_scheduler.external import metrics
from muster_scheduler.external.checks import plain
from muster_scheduler.external.contract import ListWatch, OfferTaker
from muster_scheduler.external.errors import SourceError

log = structlog.get_logger(__name__)

BATCH_MAX = 100
_READ_RECORDS, _READ_S = 1_000, 1.0


def taker_of(source: ListWatch) -> OfferTaker | None:
    """The source, if it lends."""
    return cast("OfferTaker", source) if callable(getattr(source, "give_back", None)) else None


class OfferOutlet:
    """Gives offers back to one source. ``run`` in a task.

    :param topic: of states; ``log_partition`` is the RM's.
    """

    def __init__(
        self,
        *,
        rm_id: str,
        partition: str,
        source: str,
        topic: str,
        log_partition: int,
        log: Log,
        taker: OfferTaker,
        wait_min_s: float = 0.2,
        wait_max_s: float = 10.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.last_error = ""
        self._source = source
        self._topic, self._log_partition = topic, log_partition
        self._bus = log
        self._taker = taker
        self._wait_min_s, self._wait_max_s = wait_min_s, wait_max_s
        self._sleep = sleep
        # Keys of the source's offers begin so; the last part is the offer's id.
        self._prefix = state_key(rm_id, "ext", partition, source, ExternalKind.OFFER.value) + b"/"
        self._due: dict[str, None] = {}
        self._is_due = asyncio.Event()

    @property
    def due(self) -> list[str]:
        """Offers that are returned, and whose source was not told so yet."""
        return list(self._due)

    async def run(self) -> None:
        """Follows and gives back until it is cancelled. Raises LogClosed."""
        giving = asyncio.create_task(self._give_back())
        try:
            failures = 0
            while True:
                try:
                    reader = await self._bus.reader(self._topic, self._log_partition)
                    try:
                        await self._follow(reader)
                    finally:
                        await reader.close()
                except OffsetGone:
                    failures = 0  # read from the start again: what is gone was overwritten
                except LogUnavailable as error:
                    self.last_error = str(error)
                    await self._sleep(growing_s(failures, self._wait_min_s, self._wait_max_s))
                    failures += 1
        finally:
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)

    async def _follow(self, reader: LogReader) -> None:
        # 1. to where the topic ends now; what is returned there counts, not what was on the way
        returned: dict[str, None] = {}
        end = await reader.end_offset()
        while reader.position < end:
            for record in await reader.read(_READ_RECORDS, _READ_S):
                if (read := self._offer(record)) is not None:
                    offer_id, is_returned = read
                    if is_returned:
                        returned[offer_id] = None
                    else:
                        returned.pop(offer_id, None)
            await asyncio.sleep(0)
        self._due = returned
        # 2. on from there
        while True:
            if self._due:
                self._is_due.set()
            for record in await reader.read(_READ_RECORDS, _READ_S):
                if (read := self._offer(record)) is not None:
                    self._take(*read)

    def _offer(self, record: Record) -> tuple[str, bool] | None:
        """(id, whether it is returned) of an offer of the source; None: the record is of something else."""
        if record.key is None or not record.key.startswith(self._prefix):
            return None
        offer_id = parse_state_key(record.key)[2][-1]
        if record.value is None:
            return offer_id, False
        try:
            return offer_id, state_codec.offer_state_of(record.value) is OfferState.RETURNED
        except (DecodeError, ValueError):
            return None  # recovery says what is wrong with it

    def _take(self, offer_id: str, is_returned: bool) -> None:
        if is_returned:
            self._due[offer_id] = None
        else:
            self._due.pop(offer_id, None)

    async def _give_back(self) -> None:
        failures = 0
        while True:
            await self._is_due.wait()
            offer_ids = list(self._due)[:BATCH_MAX]
            if not offer_ids:
                self._is_due.clear()
                continue
            try:
                await self._taker.give_back(offer_ids)
            except Exception as error:
                text = str(error) if isinstance(error, SourceError) else f"{type(error).__name__}: {error}"
                text = plain(masked_text(text))
                if text != self.last_error:
                    log.warning("offers cannot be given back", source=self._source, offers=len(self._due), why=text)
                self.last_error = text
                await self._sleep(growing_s(failures, self._wait_min_s, self._wait_max_s))
                failures += 1
                continue
            self.last_error, failures = "", 0
            metrics.offers_returned.labels(self._source).inc(len(offer_ids))
            for offer_id in offer_ids:
                self._due.pop(offer_id, None)
