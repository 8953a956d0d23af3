"""The audit entries of calls that never reach the scheduler: refused attempts, failed calls, and reads.

The first call of its kind has its entry at once. Equal ones are counted for a window, which ends with one entry for
all of them. Kinds are limited in number, and entries per second: calls above the limits count in an entry without a
caller. So nobody fills the log.

While the log takes no record, entries wait, in order, up to a number. Those beyond it are lost; an entry with the
action ``lost`` stands in their place and has their number. A gateway that dies loses the counts of its last window and
the entries that it had not written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog
from muster_bus.clock import Clock, day_ns
from muster_bus.errors import BusError, InvalidRecord, RecordTooLarge
from muster_bus.log import LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_runtime.caller import Caller, calling, current
from muster_runtime.identity import NOBODY
from muster_runtime.secrets import masked_text

from muster_gateway import metrics
from muster_gateway.audit_codec import AuditAttempt, AuditResult, encode_entry
from muster_gateway.codec import ConfigurationAnswer
from muster_gateway.errors import GatewayError

log = structlog.get_logger(__name__)

WINDOW_S = 10.0
# Of each kind of result. Reads of identified callers do not take the places of refused attempts.
PER_WINDOW_MAX = 200
# About 5 MB: eight minutes of refused attempts, as fast as they are audited.
WAITING_MAX = 10_000
_RETRY_S = 0.5
_CHARACTERS_MAX = 256

Update = Callable[[bytes], Awaitable[ConfigurationAnswer]]


@dataclass(slots=True)
class _RepeatedCalls:
    """Equal calls since the window's first entry."""

    count: int = 0
    first_ns: int = 0


class AuditWriter:
    """Writes entries. See the module's docstring. Never raises, and never waits.

    :param waiting_max: entries that wait for the log at most.
    :param series: begins the numbers of these entries, where several processes write a gateway's.
    """

    def __init__(
        self, topics: Topics, clock: Clock, gateway_id: str, waiting_max: int = WAITING_MAX, *, series: str = ""
    ) -> None:
        self._topics, self._clock, self._gateway_id, self._series = topics, clock, gateway_id, series
        self._waiting_max = waiting_max
        self._window: dict[AuditAttempt, _RepeatedCalls] = {}
        self._written = dict.fromkeys(AuditResult, 0)
        self._waiting: deque[tuple[OutRecord, str, bool]] = deque()
        self._gap = _RepeatedCalls()  # entries lost since the last one that had room
        self._down = False  # the log took no record at the last try
        self._wake = asyncio.Event()
        self._count = 0

    # ---- what happened ----------------------------------------------------------------------------------------------

    def record_refused(self, caller: Caller, action: str, rm_id: str, error: Exception) -> None:
        """Notes an attempt that was refused before anything was done."""
        self._note(_attempt(caller, action, rm_id, AuditResult.REFUSED, str(error).partition(": try again in ")[0]))

    def over_limit(self, method: str, peer: str, error: Exception) -> None:
        """Notes a gRPC call over a limit of its caller, who is not identified yet."""
        self.record_refused(Caller(NOBODY, peer, "grpc", method), "call", "", error)

    def connection_ended(self, peer: str, error: Exception) -> None:
        """Notes that a host lost gRPC connections over a limit."""
        self.record_refused(Caller(NOBODY, peer, "grpc", ""), "connect", "", error)

    def record_ended(self, caller: Caller, action: str, rm_id: str, result: AuditResult, reason: str = "") -> None:
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
                    self.record_ended(caller, "configure", rm_id, AuditResult.FAILED, str(error))
                    raise

        return audited

    def _note(self, attempt: AuditAttempt) -> None:
        repeated = self._window.get(attempt)
        if repeated is None and self._written[attempt.result] >= PER_WINDOW_MAX:
            attempt = AuditAttempt(
                "", "", "", attempt.door, "", "several", "", attempt.result, "too many kinds of calls"
            )
            repeated = self._window.setdefault(attempt, _RepeatedCalls())
        if repeated is None:
            self._window[attempt] = _RepeatedCalls()
            self._written[attempt.result] += 1
            self._put(attempt)
            return
        repeated.count += 1
        repeated.first_ns = repeated.first_ns or day_ns(self._clock)
        metrics.audit_coalesced.inc()

    def flush_window(self) -> None:
        """Ends the window: writes the counts."""
        window, self._window = self._window, {}
        self._written = dict.fromkeys(AuditResult, 0)
        for attempt, repeats in window.items():
            if repeats.count:
                self._put(attempt, repeats.count, repeats.first_ns)

    # ---- the log ----------------------------------------------------------------------------------------------------

    def _put(self, attempt: AuditAttempt, count: int = 1, first_ns: int = 0) -> None:
        if len(self._waiting) >= self._waiting_max:
            if not self._gap.count:
                log.error("audit entries are lost: no more may wait for the log", waiting=len(self._waiting))
            self._lost()
            return
        self._close_gap()
        self._append(attempt, count, first_ns)

    def _append(self, attempt: AuditAttempt, count: int, first_ns: int) -> None:
        self._count += 1
        now_ns = day_ns(self._clock)
        entry_id = f"{self._gateway_id}/{self._series}{self._count}"
        value = encode_entry(attempt, entry_id, self._gateway_id, now_ns, count, first_ns)
        partition = self._topics.partition_of(attempt.rm_id)
        record = OutRecord(self._topics.audit, partition, attempt.rm_id.encode(), value)
        self._waiting.append((record, attempt.result.name.lower(), attempt.action == "lost"))
        metrics.audit_waiting.set(len(self._waiting))
        self._wake.set()

    def _lost(self) -> None:
        self._gap.first_ns = self._gap.first_ns or day_ns(self._clock)
        self._gap.count += 1
        metrics.audit_lost.inc()

    def _close_gap(self) -> None:
        """Puts the entry about lost ones where they would be."""
        gap, self._gap = self._gap, _RepeatedCalls()
        if gap.count:
            reason = f"these entries are lost: the log took none, and {self._waiting_max} waited for it"
            self._append(
                AuditAttempt("", "", "", "internal", "", "lost", "", AuditResult.FAILED, reason),
                gap.count,
                gap.first_ns,
            )

    async def run(self, writer: LogWriter) -> None:
        """Writes until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._flush_windows(), name="audit windows")
            tasks.create_task(self._write_for_ever(writer), name="audit writer")

    async def _flush_windows(self) -> None:
        while True:
            await asyncio.sleep(WINDOW_S)
            self.flush_window()

    async def _write_for_ever(self, writer: LogWriter) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self._write(writer):
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def finish(self, writer: LogWriter, timeout_s: float) -> None:
        """Writes what is left, at the gateway's end."""
        self.flush_window()
        written = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                written = await self._write(writer)
        if not written and self._waiting:
            log.error("audit entries are lost: the gateway ends, and the log took no record", lost=len(self._waiting))
            metrics.audit_lost.inc(len(self._waiting))

    async def _write(self, writer: LogWriter) -> bool:
        """Writes what waits. Returns False if the log takes no record; then everything stays in its order."""
        while self._waiting or self._gap.count:
            if not self._waiting:
                self._close_gap()
            entry = self._waiting.popleft()
            record, result, is_gap = entry
            try:
                await writer.wait_writable()
            except BaseException as error:
                self._waiting.appendleft(entry)
                if not isinstance(error, BusError):
                    raise
                self._refused_by_log(error)
                return False
            # The writer has it from here on, even if this task is cancelled.
            try:
                await writer.append(record)
            except (InvalidRecord, RecordTooLarge) as error:
                log.error("audit entry not written", error=str(error))
                if not is_gap:
                    self._lost()
                continue
            except BusError as error:
                self._waiting.appendleft(entry)
                self._refused_by_log(error)
                return False
            metrics.audit_entries.labels(result).inc()
            metrics.audit_waiting.set(len(self._waiting))
            if self._down:
                self._down = False
                log.info("the log takes audit entries again", waiting=len(self._waiting))
        return True

    def _refused_by_log(self, error: BusError) -> None:
        if not self._down:
            self._down = True
            log.warning("audit entries wait for the log", error=str(error), waiting=len(self._waiting))


def _attempt(caller: Caller, action: str, rm_id: str, result: AuditResult, reason: str) -> AuditAttempt:
    identity = caller.identity
    return AuditAttempt(
        identity.name if identity != NOBODY else "",
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
