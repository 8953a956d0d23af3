"""Reads events by id from the tables of :mod:`muster_event_publisher.history.postgres`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import asyncpg
from msgspec.json import decode
from pydantic import SecretStr

from muster_event_publisher.ended.events import Mark, Selection, Stretch
from muster_event_publisher.history.postgres import PostgresOptions, storable
from muster_event_publisher.history.postgres_past import past
from muster_event_publisher.history.postgres_server import PostgresAccess, PostgresServer
from muster_event_publisher.history.rebuild import serialised
from muster_event_publisher.history.registry import SinkContext, options_as
from muster_event_publisher.history.thread_yield import SLICE, pause
from muster_event_publisher.log_search import OldEvents

T = TypeVar("T")

_NO_ACCESS = PostgresAccess()
# Nothing has been written yet, or not by this version.
_NOTHING_YET = (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.InvalidSchemaNameError)


def make_reader(options: Mapping[str, object], context: SinkContext) -> PostgresReader:
    """The factory of ``muster.history_readers``."""
    store_options = options_as(PostgresOptions, options, context)
    access = store_options.access(context.settings_prefix)
    return PostgresReader(
        context.name, store_options.dsn, schema=store_options.schema_, timeout_s=store_options.timeout_s, access=access
    )


class PostgresReader:
    """See :class:`muster_event_publisher.history.reader.HistoryReader`. A connection of its own, one read at a time."""

    def __init__(
        self,
        name: str,
        dsn: SecretStr,
        *,
        schema: str = "muster",
        timeout_s: float = 30.0,
        access: PostgresAccess = _NO_ACCESS,
    ) -> None:
        self.name = name
        self._server, self._schema = PostgresServer(name, dsn, timeout_s, access), schema
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()

    async def read(self, rm_id: str, instance: str, start: int, count: int) -> OldEvents | None:
        rows = await self._alone(lambda: self._rows(storable(rm_id), storable(instance), start, count))
        return await asyncio.to_thread(_consecutive, rows)

    async def past(self, rm_id: str, below: Mark | None, selection: Selection, most: int) -> Stretch:
        """See :class:`muster_event_publisher.ended.events.PastReader`. It returns what one statement does."""
        return await self._alone(lambda: self._past(rm_id, below, selection, most))

    async def _alone(self, read: Callable[[], Awaitable[T]]) -> T:
        """One read at a time, on one connection. Raises SinkError."""
        async with self._lock:
            try:
                return await read()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                await self._drop()
                raise self._server.error_for(error) from None
            except BaseException:
                await self._drop()
                raise

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._server.connect("muster event-publisher, reading")
        return self._connection

    async def _past(self, rm_id: str, below: Mark | None, selection: Selection, most: int) -> Stretch:
        connection = await self._connected()
        try:
            return await past(connection, self._schema, rm_id, below, selection, most)
        except _NOTHING_YET:
            return Stretch([], None)

    async def _rows(self, rm_id: str, instance: str, start: int, count: int) -> Sequence[Any]:
        connection = await self._connected()
        try:
            # Each day is read in the order of its key; the days are merged as far as needed.
            rows: list[Any] = await connection.fetch(
                f"""
                select id, timestamp_ns, type_number, change_type_number, change_detail_number, object_id, reference_id,
                    message, resource, record
                from {self._schema}.events
                where instance = $1 and rm = $2 and id >= $3 order by id limit $4
                """,  # noqa: S608
                instance,
                rm_id,
                start,
                count,
            )
            return rows
        except _NOTHING_YET:
            return []

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()


def _consecutive(rows: Sequence[Any]) -> OldEvents | None:
    """The rows until the first gap."""
    old_events: OldEvents | None = None
    for number, row in enumerate(rows, start=1):
        if old_events is None:
            old_events = OldEvents(row["id"], [])
        elif row["id"] != old_events.first_id + len(old_events.values):
            return old_events
        _, at_ns, kind, change, detail, object_id, reference_id, message, resource, record = row
        if record is None:
            quantities = list(decode(resource).items())
            record = serialised(at_ns, kind, change, detail, object_id, reference_id, message, quantities)
        old_events.values.append(record)
        if number % SLICE == 0:
            pause()
    return old_events
