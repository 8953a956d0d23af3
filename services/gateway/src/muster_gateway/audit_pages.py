"""GET /ws/v1/audit: the audit trail in pages, as JSON. The same entries and filters as muster.v1.Audit."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from datetime import datetime
from decimal import Decimal, InvalidOperation
from urllib.parse import parse_qsl

import msgspec
from muster_rest.shapes.audit import AuditEntryDao, AuditPageDao

from muster_gateway.audit_codec import AuditResult, ReadAuditRequest, entry_dao, fits, make_read
from muster_gateway.audit_reader import AuditLogReader, merged
from muster_gateway.errors import InvalidRequest, quote

LIMIT, _LIMIT_MAX = 200, 1_000
# Entries that one page looks at: a filter that fits few of them does not keep a reader's place for long.
_EXAMINED_MAX = 50_000
_RESULTS = {result.name.lower(): result for result in AuditResult}
_OFFSET_MAX = 2**63 - 1
_SECONDS_MAX = 10**10


class AuditPages:
    """Answers the route."""

    def __init__(self, trail: AuditLogReader, examined_max: int = _EXAMINED_MAX) -> None:
        self._trail, self._examined_max = trail, examined_max

    async def answer(self, query: bytes) -> bytes:
        """Returns a page as JSON. Raises InvalidRequest, OverLimit, ViewUnavailable, BusError."""
        parameters, request, limit = read_query(query)
        positions = self._positions(parameters.get("after", ""))
        await self._trail.wait_for_position()
        with self._trail.reader_slot():
            return msgspec.json.encode(await self._page(request, limit, positions))

    async def _page(self, request: ReadAuditRequest, limit: int, positions: list[int]) -> AuditPageDao:
        matches: list[AuditEntryDao] = []
        examined = 0
        async with AsyncExitStack() as stack:
            parts = await self._trail.partition_cursors(stack, positions)
            async with aclosing(merged(parts)) as entries:
                async for entry in entries:
                    examined += 1
                    if fits(entry, request):
                        matches.append(entry_dao(entry))
                    if len(matches) >= limit or examined >= self._examined_max:
                        break
            more = any([await part.peek() is not None for part in parts])
            return AuditPageDao(entries=matches, next=".".join(str(part.position) for part in parts), more=more)

    def _positions(self, after: str) -> list[int]:
        """Returns the offsets that a page's ``next`` names; empty: all from the beginning."""
        if not after:
            return []
        parts = after.split(".")
        good = len(parts) == self._trail.partitions and all(
            part.isascii() and part.isdigit() and len(part) < 20 and int(part) <= _OFFSET_MAX for part in parts
        )
        if not good:
            raise InvalidRequest(f"after {quote(after)}: expected the next of a page")
        return [int(part) for part in parts]


def read_query(query: bytes) -> tuple[dict[str, str], ReadAuditRequest, int]:
    """Returns a query's parameters, which entries it wants, and how many. Raises InvalidRequest."""
    parameters = dict(reversed(parse_qsl(query.decode("latin-1"), keep_blank_values=True)))  # the first one counts
    if (result := parameters.get("result", "")) and result not in _RESULTS:
        raise InvalidRequest(f"result {quote(result)}: expected one of {', '.join(_RESULTS)}")
    request = make_read(
        _text(parameters, "rm"),
        _text(parameters, "identity"),
        _text(parameters, "action"),
        _RESULTS.get(result),
        _time(parameters, "from"),
        _time(parameters, "to"),
    )
    return parameters, request, _limit(parameters)


def _text(parameters: dict[str, str], name: str) -> str:
    """Returns a parameter's text. (What is no UTF-8 is in no entry.)"""
    return parameters.get(name, "").encode("utf-8", errors="replace").decode("utf-8")


def _limit(parameters: dict[str, str]) -> int:
    text = parameters.get("limit", "")
    if not text:
        return LIMIT
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= _LIMIT_MAX):
        raise InvalidRequest(f"limit {quote(text)}: expected a number from 1 to {_LIMIT_MAX:,}")
    return int(text)


def _time(parameters: dict[str, str], name: str) -> int:
    """Returns a parameter's time in ns since the epoch; 0: it is not given."""
    text = parameters.get(name, "")
    if not text:
        return 0
    try:
        seconds = Decimal(_instant(text) if text[4:5] == "-" else text)
        # (An integer of a million digits takes its time.)
        time_ns = int(seconds * 1_000_000_000) if seconds.is_finite() and abs(seconds) < _SECONDS_MAX else -1
    except (InvalidOperation, ValueError, OverflowError):
        time_ns = -1
    if not 0 <= time_ns <= _OFFSET_MAX:
        raise InvalidRequest(f"{name} {quote(text)}: expected seconds since 1970 or RFC 3339 (2026-01-31T08:00:00Z)")
    return time_ns


def _instant(text: str) -> str:
    """Returns an instant of RFC 3339 in seconds since 1970. Raises ValueError."""
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError("without a zone")
    return f"{instant.timestamp():.6f}"
