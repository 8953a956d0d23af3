"""Compares the log with what the session store knows of it, and keeps the store's knowledge fresh.

A log that has less than the store knows has lost records, or is another one: the gateway does not start. If the
operator accepts the loss, the store's content is void (it belongs to the lost log), and each RM of the log gets a
notice, which the scheduler records as an event.
"""

from __future__ import annotations

import structlog
from muster_bus import log_mark
from muster_bus.errors import LogBehind
from muster_bus.log import Log
from muster_bus.log_mark import LogMark, MarkedLog

from muster_gateway.sessions.contract import SessionStore

log = structlog.get_logger(__name__)

_WITNESS = "the session store"


class LogLossDetector:
    """The watch of one gateway.

    :ivar loss: the accepted loss, in a sentence; "": the log lost nothing.
    """

    def __init__(self, bus: Log, sessions: SessionStore) -> None:
        self._bus = bus if isinstance(bus, MarkedLog) else None
        self._sessions = sessions
        self._stored_mark: LogMark | None = None
        self._compared = False
        self.loss = ""

    async def check(self) -> None:
        """Call this before the store's content is used; only the first call compares.

        Raises LogBehind, LogUnavailable, SessionStoreDown.
        """
        bus = self._bus
        if bus is None or self._compared:
            return
        self.loss = bus.loss
        present, text = await bus.mark(), await self._sessions.log_mark()
        try:
            stored_mark = LogMark.from_json(text) if text else None
        except ValueError as error:
            log.warning("the session store's mark of the log is unreadable", error=str(error))
            stored_mark = None
        try:
            loss = log_mark.check(bus.name, present, _WITNESS, stored_mark, bus.accepted_loss)
        except LogBehind:
            if not bus.loss:
                raise
            loss = bus.loss  # accepted already, by the word for the side file
        if loss:
            self.loss = self.loss or loss
            log.warning("the log lost records, which was accepted; sessions are read from it again", story=self.loss)
            await self._sessions.clear()
        self._compared = True

    async def mark_reported(self) -> None:
        """The RMs' histories know of the loss: their notices are on the log."""
        if self._bus is not None and self.loss:
            self.loss = ""
            await self._bus.mark_loss_reported()

    async def store_mark(self) -> None:
        """Stores the log's present mark. Raises LogUnavailable, LogClosed, SessionStoreDown."""
        if self._bus is None or not self._compared:
            return
        mark = await self._bus.mark()
        if mark != self._stored_mark:
            await self._sessions.store_log_mark(mark.to_json())
            self._stored_mark = mark
