"""History in PostgreSQL: COPY into a staging table, then INSERT of what is not there yet.

The table ``events`` is partitioned by day, so that old days go by dropping a table. Its key is (instance, rm, id,
timestamp_ns): a partitioned table's key must hold the partitioning column, and an event never changes its time. The
progress is a row in the same database, changed in the same transaction as the events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import structlog
from msgspec.json import encode
from pydantic import SecretStr

from muster_event_publisher.errors import SinkUnavailable, SinkUnfit
from muster_event_publisher.events import EventBatch, EventRun
from muster_event_publisher.history.columns import columns_of
from muster_event_publisher.history.sink import LastEvent, Progress

log = structlog.get_logger(__name__)

_DAY_NS = 24 * 60 * 60 * 1_000_000_000
# Two publishers that start at once migrate one after the other.
_MIGRATION_LOCK = 0x6D7573746572
# Rows between two chances for the event loop; about a millisecond.
_YIELD_EVERY = 250
# Pause of the decoding thread: long enough for a waiting event loop to take over.
_PAUSE_S = 0.0003

# Each entry is one version, applied in one transaction; {schema} is a checked plain name. Never changed, only added to.
_MIGRATIONS: tuple[str, ...] = (
    """
    create table {schema}.events (
        instance text not null,
        id bigint not null,
        rm text not null,
        timestamp_ns bigint not null,
        type text not null,
        type_number integer not null,
        change_type text not null,
        change_type_number integer not null,
        change_detail text not null,
        change_detail_number integer not null,
        object_id text not null,
        reference_id text not null,
        message text not null,
        resource jsonb not null,
        primary key (instance, rm, id, timestamp_ns)
    ) partition by range (timestamp_ns);
    create index events_object on {schema}.events (object_id, timestamp_ns);
    create index events_reference on {schema}.events (reference_id, timestamp_ns);
    create table {schema}.export_progress (
        source text not null,
        partition integer not null,
        end_position bigint not null,
        last_offset bigint not null,
        last_rm text not null,
        last_instance text not null,
        last_id bigint not null,
        updated_at timestamptz not null default now(),
        primary key (source, partition)
    );
    """,
)
_COLUMNS = (
    "instance", "id", "rm", "timestamp_ns", "type", "type_number", "change_type", "change_type_number",
    "change_detail", "change_detail_number", "object_id", "reference_id", "message", "resource",
)  # fmt: skip
_STAGING = "muster_event_staging"
_Row = tuple[Any, ...]


class PostgresSink:
    """See :class:`muster_event_publisher.history.sink.Sink`.

    :param source: whose progress this is: the topic's name (several Musters can share a database).
    :param transaction_records: a batch is stored in pieces of so many events, each with its progress.
    """

    name = "postgres"

    def __init__(
        self,
        dsn: SecretStr,
        source: str,
        *,
        schema: str = "muster",
        transaction_records: int = 5_000,
        timeout_s: float = 30.0,
    ) -> None:
        self._dsn, self._source, self._schema = dsn, source, schema
        self._transaction_records, self._timeout_s = transaction_records, timeout_s
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()  # partitions share the connection
        self._days: set[int] = set()

    async def start(self) -> None:
        async with self._guarded():
            return

    async def progress(self, partition: int) -> Progress | None:
        async with self._guarded() as connection:
            row = await connection.fetchrow(
                f"select * from {self._schema}.export_progress where source = $1 and partition = $2",  # noqa: S608
                self._source,
                partition,
            )
        if row is None:
            return None
        last = LastEvent(row["last_offset"], row["last_rm"], row["last_instance"], row["last_id"])
        return Progress(row["end_position"], last)

    async def write(self, batch: EventBatch) -> None:
        async with self._guarded() as connection:
            for piece in _pieces(batch, self._transaction_records):
                rows = await asyncio.to_thread(_rows, piece.runs)
                await self._ensure_days(connection, {row[3] // _DAY_NS for row in rows})
                async with connection.transaction():
                    await self._store(connection, piece, rows)

    async def close(self) -> None:
        async with self._lock:
            await self._drop_connection()

    async def _store(self, connection: asyncpg.Connection, piece: EventBatch, rows: list[_Row]) -> None:
        await connection.copy_records_to_table(_STAGING, records=_slowly(rows), columns=_COLUMNS)
        names = ", ".join(_COLUMNS)
        await connection.execute(
            f"insert into {self._schema}.events ({names}) select {names} from {_STAGING} on conflict do nothing"  # noqa: S608
        )
        run = piece.runs[-1]
        await connection.execute(
            f"""
            insert into {self._schema}.export_progress
                (source, partition, end_position, last_offset, last_rm, last_instance, last_id)
            values ($1, $2, $3, $4, $5, $6, $7)
            on conflict (source, partition) do update set
                end_position = excluded.end_position, last_offset = excluded.last_offset, last_rm = excluded.last_rm,
                last_instance = excluded.last_instance, last_id = excluded.last_id, updated_at = now()
            """,  # noqa: S608
            self._source, piece.partition, piece.end, run.offsets[-1], run.rm_id, run.instance, run.last_id,
        )  # fmt: skip

    async def _ensure_days(self, connection: asyncpg.Connection, days: set[int]) -> None:
        for day in sorted(days - self._days):
            name = f"events_{_day_name(day)}"
            exists = await connection.fetchval("select to_regclass($1)", f"{self._schema}.{name}")
            if exists is None:
                low, high = day * _DAY_NS, (day + 1) * _DAY_NS
                bounds = f"from ({low if day > -106752 else 'minvalue'}) to ({high if day < 106751 else 'maxvalue'})"
                try:
                    await connection.execute(
                        f"create table {self._schema}.{name} partition of {self._schema}.events for values {bounds}"
                    )
                except (asyncpg.DuplicateTableError, asyncpg.UniqueViolationError):
                    log.info("another publisher made the day's table first", day=name)
            self._days.add(day)

    @asynccontextmanager
    async def _guarded(self) -> AsyncIterator[asyncpg.Connection]:
        """The connection, alone; what goes wrong on it becomes a SinkUnavailable, and the connection is made anew."""
        async with self._lock:
            try:
                async with asyncio.timeout(self._timeout_s * 4):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await self._connect()
                    yield self._connection
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                await self._drop_connection()
                # The class and the server's words; never the DSN, which holds the password.
                raise SinkUnavailable(self.name, f"{type(error).__name__}: {_without(error, self._dsn)}") from None
            except BaseException:
                await self._drop_connection()
                raise

    async def _connect(self) -> asyncpg.Connection:
        try:
            connection = await asyncpg.connect(
                self._dsn.get_secret_value(),
                timeout=self._timeout_s,
                command_timeout=self._timeout_s,
                server_settings={"application_name": "muster event-publisher"},
            )
        except ValueError:
            # The error may quote the DSN, and its cause too.
            raise SinkUnfit(
                self.name, "postgres_dsn is not valid, expected postgresql://user:…@host/database"
            ) from None
        try:
            await self._migrate(connection)
            # INCLUDING nothing: no keys and no indexes, it is emptied at each commit.
            await connection.execute(
                f"create temporary table {_STAGING} (like {self._schema}.events) on commit delete rows"
            )
        except BaseException:
            connection.terminate()
            raise
        self._days.clear()
        return connection

    async def _migrate(self, connection: asyncpg.Connection) -> None:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
            await connection.execute(f"create schema if not exists {self._schema}")
            await connection.execute(
                f"create table if not exists {self._schema}.schema_version"
                " (version integer primary key, applied_at timestamptz not null default now())"
            )
            version = await connection.fetchval(f"select coalesce(max(version), 0) from {self._schema}.schema_version")  # noqa: S608
            if version > len(_MIGRATIONS):
                raise SinkUnfit(
                    self.name, f"schema {self._schema} has version {version}, this program knows {len(_MIGRATIONS)}"
                )
            for number, statements in enumerate(_MIGRATIONS[version:], start=version + 1):
                await connection.execute(statements.format(schema=self._schema))
                await connection.execute(f"insert into {self._schema}.schema_version (version) values ($1)", number)  # noqa: S608
                log.info("history schema migrated", schema=self._schema, version=number)

    async def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()


def _pieces(batch: EventBatch, size: int) -> list[EventBatch]:
    """The batch in pieces of at most ``size`` events; each ends where the next begins."""
    pieces: list[EventBatch] = []
    runs: list[EventRun] = []
    start, count = batch.start, 0
    for run in batch.runs:
        while run:
            part = EventRun(
                run.rm_id, run.instance, run.partition, run.first_id,
                run.offsets[: size - count], run.values[: size - count],
            )  # fmt: skip
            run = run.from_index(len(part))
            runs.append(part)
            count += len(part)
            if count == size:
                end = part.offsets[-1] + 1
                pieces.append(EventBatch(batch.partition, start, end, runs))
                start, runs, count = end, [], 0
    if runs:
        pieces.append(EventBatch(batch.partition, start, batch.end, runs))
    elif pieces:
        pieces[-1].end = batch.end
    return pieces


def _rows(runs: list[EventRun]) -> list[_Row]:
    rows: list[_Row] = []
    for run, first in [(whole, start) for whole in runs for start in range(0, len(whole), _YIELD_EVERY)]:
        columns = columns_of(run.values[first : first + _YIELD_EVERY])
        time.sleep(_PAUSE_S)
        for index, row in enumerate(zip(*columns, strict=True), start=first):
            (timestamp_ns, kind, kind_number, change, change_number, detail, detail_number,
             object_id, reference_id, message, resource) = row  # fmt: skip
            rows.append(
                (_text(run.instance), run.first_id + index, _text(run.rm_id), timestamp_ns, kind, kind_number, change,
                 change_number, detail, detail_number, _text(object_id), _text(reference_id), _text(message),
                 encode({_text(name): value for name, value in resource}).decode())
            )  # fmt: skip
    return rows


async def _slowly(rows: list[_Row]) -> AsyncIterator[_Row]:
    """The rows, with a chance for the event loop now and then: encoding them is done on it."""
    for number, row in enumerate(rows, start=1):
        yield row
        if number % _YIELD_EVERY == 0:
            await asyncio.sleep(0)


def _text(text: str) -> str:
    """PostgreSQL cannot store U+0000; it becomes the replacement character."""
    return text.replace("\0", "\ufffd") if "\0" in text else text


def _day_name(day: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).strftime("%Y%m%d")


def _without(error: BaseException, dsn: SecretStr) -> str:
    """The error's text; nothing when it quotes the DSN."""
    text = str(error)
    secret = dsn.get_secret_value()
    password = secret.split("@")[0].rpartition(":")[2] if "@" in secret else ""
    return "" if secret in text or (password and password in text) else text
