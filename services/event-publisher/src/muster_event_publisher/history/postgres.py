"""History in PostgreSQL: COPY into a staging table, then INSERT of the events that are not stored yet.

The table ``events`` is partitioned by day, so that an old day is removed by dropping a table. Its key is (instance, rm,
id, timestamp_ns): a partitioned table's key must contain the partitioning column, and an event's time never changes.
The progress is a row in the same database, written in the same transaction as the events.

Retention drops whole days. Late events of a day beyond the retention are skipped, so a dropped day does not come back.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import asyncpg
import structlog
from msgspec.json import encode
from muster_bus.clock import Clock, SystemClock, day_ns
from muster_runtime.store_credentials import ClientTls, Password
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from muster_event_publisher import metrics
from muster_event_publisher.errors import SinkRejected, SinkUnusable
from muster_event_publisher.event_runs import EventBatch, EventRun
from muster_event_publisher.history.columns import columns_of
from muster_event_publisher.history.pieces import pieces
from muster_event_publisher.history.postgres_schema import MIGRATIONS
from muster_event_publisher.history.postgres_server import PostgresAccess, PostgresServer
from muster_event_publisher.history.registry import SinkContext, SinkPlan, options_as
from muster_event_publisher.history.sink import FlushPolicy, LastEvent, SinkProgress
from muster_event_publisher.history.thread_yield import SLICE, pause
from muster_event_publisher.settings import SslMode, check_postgres, plain_schema

log = structlog.get_logger(__name__)

DAY_NS = 24 * 60 * 60 * 1_000_000_000
# Two publishers that start at once migrate one after the other.
_MIGRATION_LOCK = 0x6D7573746572
# Longest time for all migrations: an index on a large table takes minutes.
_MIGRATION_S = 6 * 3600.0
# How often the sink looks for days beyond the retention, and how long a drop waits for readers before it is postponed.
_RETENTION_EVERY_S = 600.0
_DROP_LOCK_TIMEOUT = "2s"
# Classes of errors that concern the written data, not the server: data, constraints, limits of a row.
_REFUSED = ("22", "23", "54")
# Limit of characters of a stored id: so many fit into an index, in any script.
_LONG_ID = 600

_COLUMNS = (
    "instance", "id", "rm", "timestamp_ns", "type", "type_number", "change_type", "change_type_number",
    "change_detail", "change_detail_number", "object_id", "reference_id", "message", "resource", "record",
)  # fmt: skip
_STAGING = "muster_event_staging"
_DAY_TABLE = re.compile(r"events_\d{8}").fullmatch
_Row = tuple[Any, ...]
_NO_ACCESS = PostgresAccess()


class PostgresOptions(BaseModel):
    """The options of ``[publisher.sinks.NAME]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=True)

    dsn: SecretStr = Field(description="postgresql://user:…@host/database")
    schema_: str = Field("muster", alias="schema", description="schema that holds the tables; made when absent")
    flush_records: int = Field(10_000, ge=1, description="a write is made when so many events wait")
    flush_s: float = Field(1.0, gt=0, description="or when the oldest has waited so long")
    transaction_records: int = Field(5_000, ge=1, description="events in one transaction")
    timeout_s: float = Field(30.0, gt=0, description="longest wait for one statement")
    retention_days: int = Field(0, ge=0, description="days of events that are kept; 0: all")
    password: SecretStr | None = Field(None, description="password, if the DSN has none")
    password_file: Path | None = Field(None, description="or a file with it, read for each connection")
    sslmode: SslMode | None = Field(None, description="as in libpq; default: the DSN's, or prefer")
    ca_file: Path | None = Field(None, description="PEM file of trusted CAs; default: the system's")
    client_cert_file: Path | None = Field(None, description="PEM file of the client's certificate")
    client_key_file: Path | None = Field(None, description="PEM file of its key; default: the certificate's file")

    @field_validator("schema_")
    @classmethod
    def _plain(cls, value: str) -> str:
        return plain_schema(value)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        check_postgres(self.dsn, self.password, self.password_file, self.tls, self.sslmode, "")
        return self

    @property
    def tls(self) -> ClientTls:
        """The files of TLS."""
        return ClientTls(self.ca_file, self.client_cert_file, self.client_key_file)

    def access(self, settings: str) -> PostgresAccess:
        """The credentials beside the DSN. Raises ValueError for a file that cannot be used.

        :param settings: the prefix of the settings' names, for messages.
        """
        password = Password(self.password, self.password_file, f"{settings}password_file")
        access = PostgresAccess(self.sslmode, password, self.tls, settings)
        access.check()
        return access


def make_sink(options: Mapping[str, object], context: SinkContext) -> SinkPlan:
    """The factory of ``muster.event_sinks``."""
    store_options = options_as(PostgresOptions, options, context)
    sink = PostgresSink(
        store_options.dsn,
        context.source,
        name=context.name,
        schema=store_options.schema_,
        transaction_records=store_options.transaction_records,
        timeout_s=store_options.timeout_s,
        retention_days=store_options.retention_days,
        clock=context.clock,
        access=store_options.access(context.settings_prefix),
    )
    # Here the number of records bounds the bytes: a write follows within a second anyway.
    return sink, FlushPolicy(store_options.flush_records, 64 << 20, store_options.flush_s)


class PostgresSink:
    """See :class:`muster_event_publisher.history.sink.Sink`.

    :param source: the topic's name, for the progress (several Musters can share a database).
    :param transaction_records: events per transaction: a batch is stored in pieces, each with its progress.
    :param retention_days: how many whole days before today are kept; 0: all.
    :param access: credentials beside the DSN.
    """

    def __init__(
        self,
        dsn: SecretStr,
        source: str,
        *,
        name: str = "postgres",
        schema: str = "muster",
        transaction_records: int = 5_000,
        timeout_s: float = 30.0,
        retention_days: int = 0,
        clock: Clock | None = None,
        access: PostgresAccess = _NO_ACCESS,
    ) -> None:
        self.name = name
        self._retention_days, self._clock = retention_days, clock if clock is not None else SystemClock()
        self._retention_looked_at: float | None = None
        self._server = PostgresServer(self.name, dsn, timeout_s, access)
        self._source, self._schema = source, schema
        self._transaction_records, self._timeout_s = transaction_records, timeout_s
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()  # partitions share the connection
        self._days: set[int] = set()

    async def start(self) -> None:
        async with self._guarded() as connection:
            await self._drop_old_days(connection)

    async def progress(self, partition: int) -> SinkProgress | None:
        async with self._guarded() as connection:
            row = await connection.fetchrow(
                f"select * from {self._schema}.export_progress where source = $1 and partition = $2",  # noqa: S608
                self._source,
                partition,
            )
        if row is None:
            return None
        last = LastEvent(row["last_offset"], row["last_rm"], row["last_instance"], row["last_id"])
        return SinkProgress(row["end_position"], last)

    async def new_log(self, partition: int) -> None:
        async with self._guarded() as connection:
            await connection.execute(
                f"delete from {self._schema}.export_progress where source = $1 and partition = $2",  # noqa: S608
                self._source,
                partition,
            )

    async def write(self, batch: EventBatch) -> None:
        async with self._guarded() as connection:
            await self._drop_old_days(connection)
            for piece in pieces(batch, self._transaction_records):
                rows = self._young(await asyncio.to_thread(_rows, piece.runs))
                await self._ensure_days(connection, {row[3] // DAY_NS for row in rows})
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
            where {self._schema}.export_progress.end_position < excluded.end_position
            """,  # noqa: S608
            self._source, piece.partition, piece.end, run.offsets[-1], run.rm_id, run.instance, run.last_id,
        )  # fmt: skip

    @property
    def _first_day(self) -> int | None:
        """The oldest day that is kept."""
        return day_ns(self._clock) // DAY_NS - self._retention_days if self._retention_days else None

    def _young(self, rows: list[_Row]) -> list[_Row]:
        """The rows that are within the retention."""
        first = self._first_day
        if first is None:
            return rows
        kept = [row for row in rows if row[3] // DAY_NS >= first]
        metrics.EXPORT_EXPIRED.labels(self.name).inc(len(rows) - len(kept))
        return kept

    async def _drop_old_days(self, connection: asyncpg.Connection) -> None:
        now, first = self._clock.monotonic(), self._first_day
        if first is None:
            return
        if self._retention_looked_at is not None and now - self._retention_looked_at < _RETENTION_EVERY_S:
            return
        self._retention_looked_at = now
        rows = await connection.fetch(
            "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
            " where i.inhparent = $1::text::regclass",
            f"{self._schema}.events",
        )
        for name in sorted(row["relname"] for row in rows):
            day = day_of(name)
            if day is None or day >= first:
                continue
            try:
                async with connection.transaction():
                    await connection.execute(f"set local lock_timeout = '{_DROP_LOCK_TIMEOUT}'")
                    await connection.execute(f"drop table if exists {self._schema}.{name}")
            except asyncpg.LockNotAvailableError:
                log.info("a day over its time is being read; dropped later", day=name)
                return
            self._days.discard(day)
            log.info("day over its time dropped", day=name, retention_days=self._retention_days)

    async def _ensure_days(self, connection: asyncpg.Connection, days: set[int]) -> None:
        for day in sorted(days - self._days):
            name = f"events_{_day_name(day)}"
            exists = await connection.fetchval("select to_regclass($1)", f"{self._schema}.{name}")
            if exists is None:
                low, high = day * DAY_NS, (day + 1) * DAY_NS
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
        """Exclusive use of the connection. An error on it becomes SinkUnavailable, and the next use connects again."""
        async with self._lock:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._connect()
                async with asyncio.timeout(self._timeout_s * 4):
                    yield self._connection
            except asyncpg.PostgresError as error:
                state = error.sqlstate or ""
                await self._drop_connection()
                if state[:2] in _REFUSED:
                    # Without the server's text, which quotes the refused values.
                    subject = " of ".join(str(name) for name in (error.constraint_name, error.table_name) if name)
                    reason = f"{type(error).__name__} {state}{f' ({subject})' if subject else ''}"
                    raise SinkRejected(self.name, reason) from None
                raise self._server.error_for(error) from None
            except (OSError, TimeoutError, asyncpg.InterfaceError) as error:
                await self._drop_connection()
                raise self._server.error_for(error) from None
            except BaseException:
                await self._drop_connection()
                raise

    async def _connect(self) -> asyncpg.Connection:
        connection = await self._server.connect("muster event-publisher")
        try:
            await self._migrate(connection)
            # Without keys and indexes (no INCLUDING): it is emptied at each commit.
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
            if version > len(MIGRATIONS):
                raise SinkUnusable(
                    self.name, f"schema {self._schema} has version {version}, this program knows {len(MIGRATIONS)}"
                )
            for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
                await connection.execute(statements.format(schema=self._schema), timeout=_MIGRATION_S)
                await connection.execute(f"insert into {self._schema}.schema_version (version) values ($1)", number)  # noqa: S608
                log.info("history schema migrated", schema=self._schema, version=number)

    async def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()


def _rows(runs: list[EventRun]) -> list[_Row]:
    rows: list[_Row] = []
    for run, first in [(whole, start) for whole in runs for start in range(0, len(whole), SLICE)]:
        values = run.values[first : first + SLICE]
        columns = columns_of(values)
        pause()
        rm_id, instance = storable(run.rm_id), storable(run.instance)
        for index, (value, row) in enumerate(
            zip(values, zip(*columns, strict=True), strict=True), run.first_id + first
        ):
            (timestamp_ns, kind, kind_number, change, change_number, detail, detail_number,
             object_id, reference_id, message, resource) = row  # fmt: skip
            record = None
            if b"\0" in value or len(value) > _LONG_ID:
                # If the text cannot be stored unchanged, the whole record is stored, too.
                kept = (_short(object_id), _short(reference_id), storable(message))
                names = [(storable(name), quantity) for name, quantity in resource]
                if kept != (object_id, reference_id, message) or names != resource:
                    record = value
                    (object_id, reference_id, message), resource = kept, names
            rows.append(
                (instance, index, rm_id, timestamp_ns, kind, kind_number, change, change_number, detail, detail_number,
                 object_id, reference_id, message, encode(dict(resource)).decode(), record)
            )  # fmt: skip
    return rows


async def _slowly(rows: list[_Row]) -> AsyncIterator[_Row]:
    """The rows, with pauses for the event loop, which encodes them."""
    for number, row in enumerate(rows, start=1):
        yield row
        if number % SLICE == 0:
            await asyncio.sleep(0)


def storable(text: str) -> str:
    """PostgreSQL cannot store U+0000; it becomes the replacement character."""
    return text.replace("\0", "\ufffd") if "\0" in text else text


def _short(text: str) -> str:
    """Cuts a value for an index, which takes at most about 2,700 bytes."""
    return storable(text[:_LONG_ID])


def _day_name(day: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).strftime("%Y%m%d")


def day_of(name: str) -> int | None:
    """The day of a table, as days since 1970; None: the table is no day's."""
    if not _DAY_TABLE(name):
        return None
    return (datetime.strptime(name, "events_%Y%m%d").replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days
