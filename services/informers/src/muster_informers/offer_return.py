"""Gives unused offers back: from ``si.state`` to their source (the event handler framework: two-level scheduling).

The core records that an offer is RETURNED, and the outlet tells the source (:class:`~..contract.OfferTaker`). It reads
the RM's partition of ``si.state`` from the start, and gives nothing back before it is up to date: else it could give
back an offer that was made again since. If the source does not answer, it tries again with growing waits. The source
gets each record once: if it names a returned offer again, it is informed again that the offer is returned. After a
restart the source gets everything once more, which must do no harm.

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
from muster_bus.errors import LogUnavailable, OffsetOutOfRange
from muster_bus.log import Log, LogReader, Record
from muster_bus.topics import parse_state_key, state_key
from muster_core.external.errors import SourceError
from muster_core.external.model import ExternalKind, OfferState
from muster_core.external.validation import sanitize
from muster_runtime.backoff import backoff_s
from muster_runtime.secrets import masked_text
from muster_state import state_codec

from muster_informers import metrics
from muster_informers.contract import ListWatch, OfferTaker

log = structlog.get_logger(__name__)

BATCH_MAX = 100
_READ_RECORDS, _READ_S = 1_000, 1.0


def offer_target(source: ListWatch) -> OfferTaker | None:
    """Returns the source if it has offers; else None."""
    return cast("OfferTaker", source) if callable(getattr(source, "give_back", None)) else None


class OfferReturner:
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
        # The prefix of the keys of the source's offers; the last part is the offer's id.
        self._prefix = state_key(rm_id, "ext", partition, source, ExternalKind.OFFER.value) + b"/"
        self._due: dict[str, None] = {}
        self._is_due = asyncio.Event()

    @property
    def due(self) -> list[str]:
        """The returned offers of which the source is not informed yet."""
        return list(self._due)

    async def run(self) -> None:
        """Follows the topic and gives offers back, until cancelled. Raises LogClosed."""
        giving = asyncio.create_task(self._return_offers())
        try:
            failures = 0
            while True:
                try:
                    reader = await self._bus.reader(self._topic, self._log_partition)
                    try:
                        await self._follow(reader)
                    finally:
                        await reader.close()
                except OffsetOutOfRange:
                    failures = 0  # reads from the start again: deleted records were overwritten
                except LogUnavailable as error:
                    self.last_error = str(error)
                    await self._sleep(backoff_s(failures, self._wait_min_s, self._wait_max_s))
                    failures += 1
        finally:
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)

    async def _follow(self, reader: LogReader) -> None:
        # 1. read to the present end of the topic: only the offers that are returned there count
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
        # 2. follow the topic from there
        while True:
            if self._due:
                self._is_due.set()
            for record in await reader.read(_READ_RECORDS, _READ_S):
                if (read := self._offer(record)) is not None:
                    self._set_returned(*read)

    def _offer(self, record: Record) -> tuple[str, bool] | None:
        """(id, whether it is returned) of an offer of the source; None: another record."""
        if record.key is None or not record.key.startswith(self._prefix):
            return None
        offer_id = parse_state_key(record.key)[2][-1]
        if record.value is None:
            return offer_id, False
        try:
            return offer_id, state_codec.offer_state_of(record.value) is OfferState.RETURNED
        except (DecodeError, ValueError):
            return None  # recovery reports the problem

    def _set_returned(self, offer_id: str, is_returned: bool) -> None:
        if is_returned:
            self._due[offer_id] = None
        else:
            self._due.pop(offer_id, None)

    async def _return_offers(self) -> None:
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
                text = sanitize(masked_text(text))
                if text != self.last_error:
                    log.warning("offers cannot be given back", source=self._source, offers=len(self._due), why=text)
                self.last_error = text
                await self._sleep(backoff_s(failures, self._wait_min_s, self._wait_max_s))
                failures += 1
                continue
            self.last_error, failures = "", 0
            metrics.offers_returned.labels(self._source).inc(len(offer_ids))
            for offer_id in offer_ids:
                self._due.pop(offer_id, None)
