"""The audit entries of calls that never reach the scheduler: refused attempts, failed calls, and reads.

The first call of its kind has its entry at once. Equal ones are counted for a window, which ends with one entry for
all of them. Kinds are limited in number, and entries per second: calls above the limits count in an entry without a
caller. So nobody fills the log. A gateway that dies loses the counts of its last window and what it had not written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog
from muster_bus.clock import Clock
from muster_bus.errors import BusError
from muster_bus.log import LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_runtime.caller import Caller, calling, current
from muster_runtime.identity import NOBODY
from muster_runtime.secrets import masked_text

from muster_gateway import metrics
from muster_gateway.audit_codec import Attempt, Result, encode_entry
from muster_gateway.codec import ConfigurationAnswer
from muster_gateway.errors import GatewayError

log = structlog.get_logger(__name__)

WINDOW_S = 10.0
# Of each kind of result. Reads of identified callers do not take the places of refused attempts.
PER_WINDOW_MAX = 200
_WAITING_MAX = 2_000
_CHARACTERS_MAX = 256

Update = Callable[[bytes], Awaitable[ConfigurationAnswer]]


@dataclass(slots=True)
class _Repeats:
    """Equal calls since the window's first entry."""

    count: int = 0
    first_ns: int = 0


class AuditWriter:
    """Writes entries. See the module's docstring. Never raises, and never waits."""

    def __init__(self, topics: Topics, clock: Clock, gateway_id: str) -> None:
        self._topics, self._clock, self._gateway_id = topics, clock, gateway_id
        self._window: dict[Attempt, _Repeats] = {}
        self._written = dict.fromkeys(Result, 0)
        self._waiting: deque[OutRecord] = deque()
        self._wake = asyncio.Event()
        self._count = 0

    # ---- what happened ----------------------------------------------------------------------------------------------

    def refused(self, caller: Caller, action: str, rm_id: str, error: Exception) -> None:
        """Notes an attempt that was refused before anything was done."""
        self._note(_attempt(caller, action, rm_id, Result.REFUSED, str(error).partition(": try again in ")[0]))

    def over_limit(self, method: str, peer: str, error: Exception) -> None:
        """Notes a gRPC call over a limit of its caller, who is not identified yet."""
        self.refused(Caller(NOBODY, peer, "grpc", method), "call", "", error)

    def ended(self, caller: Caller, action: str, rm_id: str, result: Result, reason: str = "") -> None:
        """Notes a call that ended, unless the scheduler writes its entry."""
        if not caller.carried:
            self._note(_attempt(caller, action, rm_id, result, reason))

    def of_updates(self, update: Update) -> Update:
        """Wraps the configuration updates of callback streams, each of which is a call of its own."""

        async def audited(raw: bytes) -> ConfigurationAnswer:
            with calling(replace(current(), carried=False)) as caller:
                try:
                    return await update(raw)
                except GatewayError as error:
                    rm_id = next((rm_id for _, rm_id in caller.claims if rm_id), "")
                    self.ended(caller, "configure", rm_id, Result.FAILED, str(error))
                    raise

        return audited

    def _note(self, attempt: Attempt) -> None:
        known = self._window.get(attempt)
        if known is None and self._written[attempt.result] >= PER_WINDOW_MAX:
            attempt = Attempt("", "", "", attempt.door, "", "several", "", attempt.result, "too many kinds of calls")
            known = self._window.setdefault(attempt, _Repeats())
        if known is None:
            self._window[attempt] = _Repeats()
            self._written[attempt.result] += 1
            self._put(attempt)
            return
        known.count += 1
        known.first_ns = known.first_ns or self._clock.now_ns()
        metrics.audit_coalesced.inc()

    def turn(self) -> None:
        """Ends the window: writes the counts."""
        window, self._window = self._window, {}
        self._written = dict.fromkeys(Result, 0)
        for attempt, repeats in window.items():
            if repeats.count:
                self._put(attempt, repeats.count, repeats.first_ns)

    # ---- the log ----------------------------------------------------------------------------------------------------

    def _put(self, attempt: Attempt, count: int = 1, first_ns: int = 0) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            metrics.audit_lost.inc()
            return
        self._count += 1
        now_ns = self._clock.now_ns()
        value = encode_entry(attempt, f"{self._gateway_id}/{self._count}", self._gateway_id, now_ns, count, first_ns)
        partition = self._topics.partition_of(attempt.rm_id)
        self._waiting.append(OutRecord(self._topics.audit, partition, attempt.rm_id.encode(), value))
        metrics.audit_entries.labels(attempt.result.name.lower()).inc()
        self._wake.set()

    async def run(self, writer: LogWriter) -> None:
        """Writes until it is cancelled."""
        due_s = self._clock.monotonic() + WINDOW_S
        while True:
            try:
                async with asyncio.timeout(max(0.0, due_s - self._clock.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                self.turn()
                due_s = self._clock.monotonic() + WINDOW_S
            self._wake.clear()
            await self._write(writer)

    async def finish(self, writer: LogWriter, timeout_s: float) -> None:
        """Writes what is left, at the gateway's end."""
        self.turn()
        try:
            async with asyncio.timeout(timeout_s):
                await self._write(writer)
        except TimeoutError:
            metrics.audit_lost.inc(len(self._waiting))

    async def _write(self, writer: LogWriter) -> None:
        while self._waiting:
            try:
                await writer.ready()
            except BusError as error:
                self._lost(error)
                self._waiting.popleft()
                continue
            # The writer has it from here on, even if this task is cancelled.
            try:
                await writer.append(self._waiting.popleft())
            except BusError as error:
                self._lost(error)

    def _lost(self, error: BusError) -> None:
        log.error("audit entry not written", error=str(error))
        metrics.audit_lost.inc()


def _attempt(caller: Caller, action: str, rm_id: str, result: Result, reason: str) -> Attempt:
    identity = caller.identity
    return Attempt(
        identity.name,
        str(identity.proof),
        caller.peer,
        caller.door,
        _clean(caller.method),
        action,
        _clean(rm_id),
        result,
        _clean(reason),
    )


def _clean(text: str) -> str:
    """Returns a caller's text without secrets, of a bounded length."""
    # (A lone surrogate, which JSON may have, is in no protobuf text.)
    return masked_text(text[: 4 * _CHARACTERS_MAX])[:_CHARACTERS_MAX].encode(errors="replace").decode()
