"""``/ws/v1/usage``: usage in windows, from the topic ``si.usage``. An endpoint of Muster's own (docs/usage.md).

Each parameter is checked by name. Errors have the same form as those of the events' endpoints.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import structlog
from muster_bus.damage import DamagedParts, PassingReaders
from muster_bus.errors import LogUnavailable, OffsetOutOfRange
from muster_bus.log import Log, LogReader
from muster_bus.topics import Topics
from muster_rest.publisher_routes import USAGE
from muster_runtime.backoff import aligned_s
from muster_runtime.default_rm import default_from_headers, resolve_rm
from muster_runtime.read_scope import ReadScope, scope_from_headers
from muster_runtime.service_lifecycle import ServiceLifecycle
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from muster_event_publisher import metrics
from muster_event_publisher.derive.settings import DeriveSettings
from muster_event_publisher.derive.usage_fold import S_IN_NS, SubjectKind, seconds
from muster_event_publisher.derive.usage_table import CoveredPeriod, UsageTable, WindowSum
from muster_event_publisher.errors import HttpError, quote, rm_list_clause
from muster_event_publisher.rest import answer_json, get_endpoint, routes_of

log = structlog.get_logger(__name__)

_PARAMETERS = tuple(each.name for each in USAGE.parameters)
_KINDS = ", ".join(SubjectKind)
_READ_RECORDS = 1_000
_POLL_S = 1.0
# The latest time that a Python date can express, in seconds since 1970 (the year 9999).
_TIME_MAX_S = 253_402_300_799
# Subjects, or records, between two pauses for other tasks.
_SLICE = 50


class UsageRest:
    """Follows ``si.usage`` and answers from memory.

    :ivar routes: the routes for the publisher's REST.
    :ivar stopped_by_rm: gives, for each RM that is not forgotten, whether it is stopped. The publisher sets it.
    """

    stopped_by_rm: Callable[[Sequence[str]], Mapping[str, bool]]

    def __init__(self, settings: DeriveSettings, bus: Log, topics: Topics) -> None:
        self.settings = settings
        self.stopped_by_rm = lambda rm_ids: dict.fromkeys(rm_ids, False)
        self.routes: list[BaseRoute] = routes_of({USAGE.handler: get_endpoint(self._usage)})
        self.table = UsageTable(
            settings.rest_windows_max,
            settings.rest_records_max,
            settings.refresh_windows,
            settings.rest_root_windows_max,
        )
        self._damage, self._topics = DamagedParts("the usage in them is not shown"), topics
        self._readers = PassingReaders(bus, self._damage)
        self._lifecycle = ServiceLifecycle("usage")
        self._open: list[LogReader] = []
        self._silent: set[int] = set()

    async def start(self) -> None:
        """Begins to follow the topic; the records that are on the log already are read soon after."""
        self._lifecycle.start()
        for partition in range(self._topics.partitions):
            reader = await self._readers.reader(self._topics.usage, partition)
            self._open.append(reader)
            self._lifecycle.spawn(self._follow(partition, reader), f"partition-{partition}")

    async def wait(self) -> None:
        """Returns when the service was stopped; raises the error that ended it."""
        await self._lifecycle.wait()

    async def stop(self) -> None:
        """Stops following."""
        if self._lifecycle.begin_stop():
            await self._lifecycle.cancel_tasks()
            for reader in self._open:
                await reader.close()
            self._lifecycle.finish()

    async def healthy(self) -> bool:
        """Whether every partition of usage is followed, if only behind a damaged part of the log."""
        return not self._silent

    async def problems(self) -> list[str]:
        """The faults of this moment, one sentence each."""
        problems = [f"usage of partition {partition} is not followed" for partition in sorted(self._silent)]
        return problems + self._damage.problems()

    async def _follow(self, partition: int, reader: LogReader) -> None:
        start: int | None = None
        while True:
            try:
                # 1. find the beginning, as far back as memory allows: usage before the first record may be missing
                if start is None:
                    first, end = await reader.first_offset(), await reader.end_offset()
                    start = max(first, end - self.settings.rest_records_max)
                    reader.seek(start)
                records = await reader.read(_READ_RECORDS, aligned_s(_POLL_S))
            except OffsetOutOfRange as gone:
                reader.seek(gone.first)
                continue
            except LogUnavailable as error:
                self._silent.add(partition)
                log.warning("usage cannot be read", partition=partition, error=str(error))
                await asyncio.sleep(self.settings.retry_min_s * 5)
                continue
            self._silent.discard(partition)
            # 2. put the records into the table
            for number, record in enumerate(records, start=1):
                try:
                    self.table.fold(record, start > 0)
                except (ValueError, KeyError, TypeError, ArithmeticError, AttributeError):
                    metrics.USAGE_UNREADABLE.inc()
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
            # 3. keep the table within its bounds
            for _ in self.table.evict():
                await asyncio.sleep(0)
            metrics.USAGE_RECORDS.set(len(self.table))
            if records:
                self.table.changed.notify()

    async def _usage(self, request: Request) -> ASGIApp:
        # 1. the request
        query = _query(request)
        kind = _kind(query)
        headers = request.headers.raw
        rm_id, period = self._rm(query, default_from_headers(headers), scope_from_headers(headers))
        name = query.get("name", "")
        if name and not self.table.has(rm_id, kind, name):
            raise HttpError(404, f'parameter "name": no usage of {kind} {quote(name)}')
        if period is None:
            return await answer_json(request, b'{"usage":[]}\n')
        window_s = period.window_ns // S_IN_NS
        step_s = _window(query, window_s)
        until_s = -(-period.until_ns // S_IN_NS)
        to_s = _time(query, "to", until_s)
        from_s = _time(query, "from", max(to_s - 60 * window_s, 0))
        if from_s >= to_s:
            raise HttpError(400, f'parameter "from": {from_s} is not before "to", which is {to_s}')
        from_s -= from_s % step_s
        names = [name] if name else self.table.names(rm_id, kind)
        # 2. check the size of the answer
        windows = -(-(min(to_s, until_s) - from_s) // step_s)
        most = self.settings.rest_response_windows
        if windows * len(names) > most:
            raise HttpError(
                400,
                f"{windows} windows of {len(names)} {kind}s are asked for, at most {most} fit in an answer: name one "
                f'with "name", bring "from" and "to" nearer to each other, or ask for a larger "window"',
            )
        # 3. render, name by name
        usage = []
        for index, name in enumerate(names):
            sums = self.table.windows(rm_id, kind, name, from_s * S_IN_NS, to_s * S_IN_NS, step_s * S_IN_NS)
            if sums:
                usage.append(f'{{"name":{json.dumps(name)},"windows":[{",".join(_texts(sums, step_s, period))}]}}')
            if index % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        head = {
            "rm": rm_id,
            "kind": kind,
            "from": _date(from_s * S_IN_NS),
            "to": _date(to_s * S_IN_NS),
            "window": step_s,
            "complete_from": _date(period.from_ns) if period.from_ns else None,
            "known_until": _date(period.until_ns),
        }
        body = json.dumps(head, separators=(",", ":"))[:-1] + f',"usage":[{",".join(usage)}]}}\n'
        return await answer_json(request, body.encode())

    def _rm(self, query: dict[str, str], default_rm: str, reach: ReadScope) -> tuple[str, CoveredPeriod | None]:
        requested_id = query.get("rm", "")
        visible = [rm_id for rm_id in self.table.rm_ids() if reach.can_read_all_of(rm_id)]
        listed = rm_list_clause(visible, "usage")
        if requested_id and requested_id not in visible:
            raise HttpError(404, f'parameter "rm": no usage of {quote(requested_id)}{listed}')
        lives = self.stopped_by_rm(visible)
        meant = requested_id or resolve_rm(lives, default_rm)
        if meant is None and lives:
            raise HttpError(400, f'parameter "rm" is needed{rm_list_clause(list(lives), "usage")}')
        rm_id = meant or ""
        return rm_id, self.table.covered_period(rm_id)


def _texts(windows: list[WindowSum], step_s: int, period: CoveredPeriod) -> Iterator[str]:
    for window in windows:
        quantities = ",".join(
            f"{json.dumps(name)}:{seconds(value)}" for name, value in window.quantity_ns.items() if value
        )
        peak = json.dumps(window.peak, separators=(",", ":"))
        final = window.start_ns + step_s * S_IN_NS <= period.until_ns
        yield (
            f'{{"start":"{_date(window.start_ns)}","resource_seconds":{{{quantities}}},"peak":{peak},'
            f'"allocations":{window.allocations},"final":{"true" if final else "false"}}}'
        )


def _query(request: Request) -> dict[str, str]:
    """Parameters; the first of a name counts, as in Go. Unknown ones are errors, so that no client believes that they
    have an effect.
    """
    query: dict[str, str] = {}
    for name, value in parse_qsl(request.url.query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise HttpError(400, f"parameter {name[:40]!r} is unknown, expected {', '.join(_PARAMETERS)}")
        query.setdefault(name, value)
    return query


def _kind(query: dict[str, str]) -> SubjectKind:
    text = query.get("kind", "")
    if not text:
        raise HttpError(400, f'parameter "kind" is needed, expected one of {_KINDS}')
    try:
        return SubjectKind(text)
    except ValueError:
        raise HttpError(400, f'parameter "kind": {text[:40]!r} is not valid, expected one of {_KINDS}') from None


def _window(query: dict[str, str], base_s: int) -> int:
    text = query.get("window", "")
    if not text:
        return base_s
    if text.isascii() and text.isdigit() and len(text) <= 9 and int(text) and int(text) % base_s == 0:
        return int(text)
    raise HttpError(
        400, f'parameter "window": {text[:40]!r} is not valid, expected seconds, a whole multiple of {base_s}'
    )


def _time(query: dict[str, str], name: str, default_s: int) -> int:
    """A time in seconds since 1970; given so, or as RFC 3339."""
    text = query.get(name, "")
    if not text:
        return default_s
    if text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= _TIME_MAX_S:
        return int(text)
    try:
        # (A plus sign in a query is a blank.)
        time = datetime.fromisoformat(text.replace(" ", "+") if text.count(" ") == 1 and "T" in text else text)
        if time.tzinfo is not None and time.timestamp() >= 0:
            return int(time.timestamp())
    except (ValueError, OverflowError):
        pass
    raise HttpError(
        400,
        f'parameter "{name}": {text[:40]!r} is not valid, expected seconds since 1970 or a time with its zone such as '
        "2026-01-31T12:00:00Z",
    )


def _date(time_ns: int) -> str:
    time_s, part_ns = divmod(min(time_ns, _TIME_MAX_S * S_IN_NS), S_IN_NS)
    text = datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{part_ns:09d}".rstrip("0") + "Z" if part_ns else f"{text}Z"
