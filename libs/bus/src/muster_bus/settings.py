"""Settings of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from muster_runtime.store_credentials import ClientTls, Password, check_pairs
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from muster_bus.topics import Topics

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
# As many schedulers can share the work on Kafka. In one process more partitions serve nobody.
_PARTITIONS_ON_KAFKA, _PARTITIONS = 32, 4


class LogSettings(BaseModel):
    """The log's engine, its place and its limits. Fields that start with ``kafka_`` or ``sqlite_`` concern only that
    backend.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["kafka", "sqlite", "memory"] = Field(default="sqlite", description="The log's engine.")

    topic_prefix: str = Field(
        default="", description="Prefix of each topic's name, including a separator ('staging.')."
    )
    partitions: int = Field(
        default_factory=lambda given: _PARTITIONS_ON_KAFKA if given.get("backend") == "kafka" else _PARTITIONS,
        ge=1,
        le=4096,
        description="Partitions of each topic. Default: as many as the log has; a new one gets 32 on Kafka, otherwise "
        "4. muster topics grow changes it.",
    )
    replication: int = Field(default=1, ge=1, le=32, description="Copies of each partition (Kafka; 3 in production).")
    requests_retention_s: float = Field(default=7 * _DAY_S, gt=0, description="Age at which requests are deleted.")
    responses_retention_s: float = Field(default=1 * _DAY_S, gt=0, description="Age at which responses are deleted.")
    events_retention_s: float = Field(default=30 * _DAY_S, gt=0, description="Age at which events are deleted.")
    dead_letters_retention_s: float = Field(
        default=30 * _DAY_S, gt=0, description="Age at which dead letters are deleted."
    )

    audit_retention_s: float = Field(
        default=400 * _DAY_S, ge=0, description="Age at which audit entries are deleted; 0: never."
    )
    usage_retention_s: float = Field(default=30 * _DAY_S, gt=0, description="Age at which usage is deleted.")
    derived_topics: bool = Field(
        default=True, description="Whether si.events.app.v1 and the like, and si.usage.v1, are created (docs/usage.md)."
    )

    accept_loss: str = Field(
        default="",
        description="Accepts the loss that a refused start named: the word from its message (docs/backup.md).",
    )

    max_record_bytes: int = Field(
        default=1 << 20, ge=1024, le=1 << 30, description="Largest record (key, value, headers and framing)."
    )
    max_queued_bytes: int = Field(
        default=16 << 20,
        ge=1 << 16,
        description="Appended bytes of a process that are not yet durable; above this ready() waits.",
    )
    transaction_deadline_s: float = Field(
        default=8.0,
        gt=0,
        description="A commit without an answer in this time has failed; the partition is rebuilt from the log.",
    )
    health_timeout_s: float = Field(
        default=2.0, gt=0, description="A log that does not answer in this time is not healthy."
    )

    kafka_bootstrap_servers: str = Field(
        default="127.0.0.1:9092", description="host:port[,host:port...] of Kafka brokers."
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="Protocol of the brokers."
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="SASL mechanism, with a SASL protocol."
    )
    kafka_sasl_username: str = Field(default="", description="SASL user.")
    kafka_sasl_password: SecretStr = Field(default=SecretStr(""), description="SASL password.")
    kafka_sasl_password_file: Path | None = Field(
        default=None, description="Or a file with the SASL password, read for each client."
    )
    kafka_ca_file: Path | None = Field(
        default=None, description="PEM file with the CAs to trust, with SSL or SASL_SSL (default: the system's)."
    )
    kafka_client_cert_file: Path | None = Field(default=None, description="PEM file with the client's certificate.")
    kafka_client_key_file: Path | None = Field(
        default=None, description="PEM file with the client's key (default: the certificate's file)."
    )
    kafka_start_timeout_s: float = Field(default=20.0, gt=0, description="Start and take-over fail after this long.")
    kafka_transaction_timeout_s: float = Field(
        default=10.0,
        ge=1,
        description="The broker undoes a dead owner's transaction after this long; readers wait for it.",
    )
    kafka_linger_ms: float = Field(
        default=2.0, ge=0, le=1000, description="How long a writer collects records for one batch."
    )
    kafka_fetch_max_wait_ms: int = Field(
        default=250, ge=1, description="How long a broker holds a fetch without records."
    )
    kafka_fetch_max_bytes: int = Field(default=8 << 20, ge=1024, description="Largest fetch answer per partition.")
    kafka_min_insync_replicas: int = Field(
        default=1, ge=1, description="Set on topics at creation (2 with replication 3)."
    )

    kafka_silence_s: float = Field(
        default=15.0, gt=0, description="A reader fails after its broker was silent for this long."
    )

    sqlite_path: Path = Field(default=Path("muster-data/log.db"), description="The embedded log's file.")
    sqlite_synchronous: Literal["full", "normal"] = Field(
        default="full",
        description="'full' survives power loss; 'normal' may then lose the last commits, but stays consistent.",
    )
    sqlite_loop_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of its time in which the event loop may wait for small commits itself, which saves the way "
        "through the writer's thread; 0: never, for a disk that is slow or far away.",
    )
    sqlite_tail_bytes: int = Field(
        default=16 << 20,
        ge=0,
        description="Memory of the newest records for readers of this process; older ones are read from the file.",
    )
    sqlite_maintenance_interval_s: float = Field(
        default=30.0, gt=0, description="Time between retention and compaction runs."
    )
    sqlite_mark_interval_s: float = Field(
        default=1.0,
        gt=0,
        description="Time between writes of the side file, which notices a lost log (docs/backup.md); only when "
        "records came.",
    )
    sqlite_compaction_min_records: int = Field(
        default=10_000,
        ge=1,
        description="A state partition is compacted when this many records are new, and as many as it keeps.",
    )
    sqlite_tombstone_grace_s: float = Field(
        default=_HOUR_S,
        ge=0,
        description="Age at which tombstones may be removed; a slower follower must start afresh.",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> LogSettings:
        if self.transaction_deadline_s >= self.kafka_transaction_timeout_s:
            # Otherwise the broker would end a slow transaction first, and the owner would think that it was fenced.
            raise ValueError(
                f"transaction_deadline_s {self.transaction_deadline_s}: less than kafka_transaction_timeout_s "
                f"({self.kafka_transaction_timeout_s})"
            )
        if self.kafka_min_insync_replicas > self.replication:
            raise ValueError(
                f"kafka_min_insync_replicas {self.kafka_min_insync_replicas}: at most replication ({self.replication})"
            )
        self._check_security()
        return self

    def _check_security(self) -> None:
        """Raises ValueError for credentials that would not be used, and for a protocol that lacks them."""
        protocol, tls = self.kafka_security_protocol, self.kafka_tls()
        check_pairs(self.kafka_sasl_password, self.kafka_sasl_password_file, tls, "kafka_sasl_password", "kafka_")
        if protocol.startswith("SASL"):
            if not self.kafka_sasl_username or not self.kafka_password():
                raise ValueError(
                    f"kafka_security_protocol {protocol} without kafka_sasl_username, or without kafka_sasl_password "
                    "and kafka_sasl_password_file: expected user and password"
                )
        elif self.kafka_sasl_username or self.kafka_password():
            raise ValueError(
                f"kafka_sasl_username or its password with kafka_security_protocol {protocol}: expected SASL_SSL"
            )
        if tls and not protocol.endswith("SSL"):
            raise ValueError(
                f"kafka_ca_file or kafka_client_cert_file with kafka_security_protocol {protocol}: "
                "expected SSL or SASL_SSL"
            )

    def kafka_password(self) -> Password:
        """Returns the SASL password's place."""
        return Password(self.kafka_sasl_password, self.kafka_sasl_password_file, "log.kafka_sasl_password_file")

    def kafka_tls(self) -> ClientTls:
        """Returns the files of TLS."""
        return ClientTls(self.kafka_ca_file, self.kafka_client_cert_file, self.kafka_client_key_file)

    def topics(self) -> Topics:
        """Returns the topics that these settings define."""
        return Topics(
            prefix=self.topic_prefix,
            partitions=self.partitions,
            replication=self.replication,
            requests_retention_ms=round(self.requests_retention_s * 1000),
            responses_retention_ms=round(self.responses_retention_s * 1000),
            events_retention_ms=round(self.events_retention_s * 1000),
            dead_letters_retention_ms=round(self.dead_letters_retention_s * 1000),
            usage_retention_ms=round(self.usage_retention_s * 1000),
            audit_retention_ms=round(self.audit_retention_s * 1000) or -1,
            derived=self.derived_topics,
        )
