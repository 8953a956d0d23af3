"""Settings of a partition worker."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class WorkerSettings(BaseModel):
    """Limits of a partition worker's batches, waits and retries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_records_batch: int = Field(
        default=1000, ge=1, description="Limit of the input records that one transaction answers."
    )
    max_records_apply: int = Field(
        default=128, ge=1, description="Input records per call of the machine; other tasks run between calls."
    )
    max_bytes_apply: int = Field(
        default=8 << 10,
        ge=1,
        description="Input bytes per call of the machine, but at least one record.",
    )
    max_output_records: int = Field(
        default=20_000, ge=1, description="A transaction with this many output records takes no more input."
    )
    max_output_bytes: int = Field(
        default=8 << 20, ge=1024, description="A transaction with this many output bytes takes no more input."
    )
    max_record_bytes: int = Field(
        default=1 << 20,
        ge=1024,
        description="Largest output record; the log's own limit (LogSettings.max_record_bytes).",
    )
    gather_records: int = Field(
        default=1500, ge=1, description="With fewer output records, and more input waiting, a transaction gathers more."
    )
    gather_s: float = Field(default=0.01, ge=0, description="A transaction gathers for so much processor time at most.")
    recommit_after_s: float = Field(
        default=3600.0,
        gt=0,
        description="The input position is committed again after so long without a commit: Kafka forgets a group's "
        "offsets after a week without.",
    )
    idle_wait_s: float = Field(
        default=1.0, gt=0, description="Longest wait for input before the worker checks its other duties."
    )
    empty_tick_wait_s: float = Field(
        default=0.005, gt=0, description="Pause after a tick without output whose deadline has still passed."
    )
    max_records_fold: int = Field(default=2000, ge=1, description="State records per read while folding.")
    fold_stall_s: float = Field(
        default=30.0,
        gt=0,
        description="A fold that reads nothing in so much time that the process could use has failed.",
    )
    backoff_first_s: float = Field(
        default=0.1, ge=0, description="Wait before the first rebuild; doubles with each failure."
    )
    backoff_limit_s: float = Field(default=10.0, ge=0, description="Longest wait before a rebuild.")
    quarantine_after: int = Field(
        default=2,
        ge=1,
        description="An input record goes to the dead letters after the machine has failed on it alone this often.",
    )
    max_machine_failures: int = Field(
        default=5,
        ge=1,
        description="The worker ends after this many failures in a row that no input record caused.",
    )
    stall_after_s: float = Field(
        default=15.0,
        gt=0,
        description="The worker is not serving after so much time that the process could use without progress, while "
        "input waits.",
    )
