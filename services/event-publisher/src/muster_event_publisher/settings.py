"""The publisher's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from muster_runtime.addresses import OptionalListenAddress
from muster_runtime.positions import PositionSettings
from muster_runtime.store_credentials import ClientTls, check_pairs
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
_ADDRESS = "127.0.0.1:9082"
# A store's option. Any text may be a secret, so all texts are stored as secrets; only the store's factory sees them in
# clear.
SinkOption = bool | int | float | SecretStr


class PublisherSettings(BaseModel):
    """The publisher's settings. Their names follow the keys of the event history design and of YuniKorn's core
    (``event.*``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    http_address: OptionalListenAddress = Field(
        _ADDRESS, description='where REST listens, host:port; port 0: any free; "": do not listen'
    )
    grpc_address: OptionalListenAddress = Field(
        "", description='where muster.v1.Events listens, host:port; port 0: any free; "": do not listen'
    )
    trusted_proxies: tuple[str, ...] = Field(
        (), description="peers whose X-Forwarded-For names the client, for the limits per host (addresses)"
    )

    view_url: str = Field(
        "",
        description='the view, for states of objects in streamed events (history servers); "": without states',
    )

    # The ring and REST (service.event.* of the event history design).
    tracking_enabled: bool = Field(True, description="false: no ring, no REST answers (the log and history continue)")
    ring_capacity: int = Field(
        100_000, ge=0, le=2**32 - 1, description="newest events kept per RM (ringBufferCapacity)"
    )
    rest_response_size: int = Field(
        10_000, ge=1, le=2**32 - 1, description="most events in one batch answer (RESTResponseSize)"
    )
    serve_from_log: bool = Field(True, description="events older than the ring are looked up in the log")
    log_search_records_max: int = Field(
        1_000_000, ge=1, description="records that one look-up of an old event id may read"
    )
    # Two: while one read waits for the log or a store, the other is decoded and rendered. More would not be faster,
    # because one thread decodes and renders, also for answers from the ring. The line's length is what two reads handle
    # in a second or two.
    old_reads_max: int = Field(2, ge=1, description="answers that read events older than the ring at once")
    old_reads_waiting_max: int = Field(
        16, ge=0, description="batches that wait for that; more get a 503 (RESOURCE_EXHAUSTED). Streams wait separately"
    )
    old_reads_wait_s: float = Field(5.0, gt=0, description="longest wait of such a batch; then it gets a 503, too")

    # Streams.
    max_streams: int = Field(100, ge=0, description="open streams in total (maxStreams)")
    max_streams_per_host: int = Field(15, ge=0, description="open streams per peer address (maxStreamsPerHost)")
    keepalive_s: float = Field(30.0, ge=0, description="an idle stream gets a line this often; 0: never")
    stream_lag_records_max: int = Field(
        100_000, ge=1, description="a stream further behind is ended; its last line has the id to continue with"
    )
    stream_stall_s: float = Field(300.0, gt=0, description="a client that reads nothing for so long is dropped")

    # Request events: to those who watch them (muster.v1.Events).
    request_store_capacity: int = Field(
        1_000, ge=0, le=2**32 - 1, description="request events kept per RM until they are sent (requestStoreCapacity)"
    )
    request_push_interval_s: float = Field(2.0, gt=0, description="how often they are sent")

    # Following the log.
    read_records_max: int = Field(5_000, ge=1, description="records per read of the log")
    poll_s: float = Field(1.0, gt=0, description="longest wait of one read")
    tail_records: int = Field(
        20_000, ge=0, description="newest records that exporters take from memory instead of reading the log again"
    )
    backfill_records_max: int = Field(
        1_000_000, ge=0, description="most records per partition that are read backwards at start to fill the rings"
    )

    # History: any store, by name (history/registry.py).
    sinks: dict[str, dict[str, SinkOption]] = Field(
        default_factory=dict, description="stores by name, each with its options; kind, if it differs from the name"
    )

    # History: Parquet.
    parquet_dir: Path | None = Field(None, description="folder for Parquet files; none: off")
    parquet_roll_records: int = Field(100_000, ge=1, description="a file is written when so many events wait")
    parquet_roll_bytes: int = Field(64 * 1024 * 1024, ge=1, description="or so many bytes of serialised events")
    parquet_roll_s: float = Field(60.0, gt=0, description="or when the oldest has waited so long")

    # History: PostgreSQL.
    postgres_dsn: SecretStr | None = Field(None, description="postgresql://user:…@host/database; none: off")
    postgres_password: SecretStr | None = Field(None, description="password, if the DSN has none")
    postgres_password_file: Path | None = Field(None, description="or a file with it, read for each connection")
    postgres_sslmode: SslMode | None = Field(
        None, description="disable, allow, prefer, require, verify-ca or verify-full; default: the DSN's, or prefer"
    )
    postgres_ca_file: Path | None = Field(
        None, description="PEM file of the CAs to trust, with require or verify-… (default: the system's)"
    )
    postgres_client_cert_file: Path | None = Field(None, description="PEM file of the client's certificate")
    postgres_client_key_file: Path | None = Field(
        None, description="PEM file of the client's key (default: the certificate's file)"
    )
    postgres_schema: str = Field("muster", description="schema that holds the tables; made when absent")
    postgres_flush_records: int = Field(10_000, ge=1, description="a write is made when so many events wait")
    postgres_flush_s: float = Field(1.0, gt=0, description="or when the oldest has waited so long")
    postgres_transaction_records: int = Field(5_000, ge=1, description="events in one transaction")
    postgres_timeout_s: float = Field(30.0, gt=0, description="longest wait for one statement")
    postgres_retention_days: int = Field(0, ge=0, description="days of events that are kept; 0: all")

    # Several publishers.
    group: str = Field(
        "event-publisher",
        description='the publishers that share the exports out on Kafka; "": this one exports everything, to stores of '
        "its own (docs/scaling.md)",
    )
    session_timeout_s: float = Field(
        3.0, ge=0.5, le=300, description="a publisher that is silent for this long loses its exports to others"
    )

    rm_settings_timeout_s: float = Field(
        15.0, gt=0, description="longest wait at start for the RMs' own event settings; then these settings hold"
    )

    # Failure and stop.
    retry_min_s: float = Field(0.2, gt=0, description="first wait after a store or the log failed; doubled each time")
    retry_max_s: float = Field(30.0, gt=0, description="longest such wait")
    refusals_max: int = Field(
        5, ge=1, description="after so many refusals of a batch by a store, its events are tried separately"
    )
    dead_letters_in_a_row_max: int = Field(
        100,
        ge=0,
        description="limit of refused events in a row that are given up; 0: none is given up",
    )
    stop_timeout_s: float = Field(10.0, ge=0, description="at stop: time to write events that were read")

    @field_validator("postgres_schema")
    @classmethod
    def _schema(cls, value: str) -> str:
        return plain_schema(value)

    positions: PositionSettings = Field(
        default_factory=PositionSettings, description="reads that wait for a position (docs/consistency.md)"
    )

    @model_validator(mode="after")
    def _postgres(self) -> Self:
        tls = ClientTls(self.postgres_ca_file, self.postgres_client_cert_file, self.postgres_client_key_file)
        check_postgres(
            self.postgres_dsn, self.postgres_password, self.postgres_password_file, tls, self.postgres_sslmode,
            "postgres_",
        )  # fmt: skip
        return self


def check_postgres(
    dsn: SecretStr | None,
    password: SecretStr | None,
    password_file: Path | None,
    tls: ClientTls,
    sslmode: SslMode | None,
    prefix: str,
) -> None:
    """Raises ValueError for credentials that contradict each other, or would not be used.

    :param prefix: of the settings' names.
    """
    check_pairs(password, password_file, tls, f"{prefix}password", prefix)
    has_password = bool(password) or password_file is not None
    if has_password and dsn is not None and _has_password(dsn.get_secret_value()):
        raise ValueError(f"{prefix}dsn has a password, and {prefix}password or {prefix}password_file is set too")
    if dsn is None and (has_password or tls or sslmode):
        raise ValueError(f"{prefix}password, {prefix}sslmode or a file of TLS without {prefix}dsn")
    if tls and sslmode not in ("require", "verify-ca", "verify-full"):
        raise ValueError(
            f"{prefix}ca_file or {prefix}client_cert_file with {prefix}sslmode {sslmode}: expected verify-full, "
            "verify-ca or require"
        )


def _has_password(dsn: str) -> bool:
    account, at, _ = dsn.partition("://")[2].partition("?")[0].rpartition("@")
    return bool(at) and bool(account.partition(":")[2])


def plain_schema(value: str) -> str:
    """A schema's name that is safe in a statement, which takes no parameter there. Raises ValueError."""
    if not (value.isascii() and value.isidentifier() and value == value.lower() and len(value) <= 63):
        raise ValueError(f"schema {value!r}: expected lower-case letters, digits and '_', at most 63")
    return value
