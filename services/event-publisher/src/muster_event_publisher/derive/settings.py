"""Settings of deriving: topics by kind of event, and usage."""

from __future__ import annotations

import re
import socket

from muster_runtime.addresses import OptionalListenAddress
from pydantic import BaseModel, ConfigDict, Field, field_validator

# The names that Kafka accepts for groups and members.
_NAME = re.compile(r"^[a-zA-Z0-9._-]{1,100}$")


class DeriveSettings(BaseModel):
    """Section ``derive``. On the embedded log ``muster up`` derives; on Kafka ``muster derive`` does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="muster up derives; false: it does not")
    fan_out: bool = Field(True, description="each event also goes to the topic of its kind (si.events.app.v1 …)")
    usage: bool = Field(True, description="usage is summed (si.usage.v1)")
    window_s: int = Field(
        60,
        ge=1,
        le=86_400,
        description="length of a window of usage; not to be changed while there is usage on the log",
    )
    refresh_windows: int = Field(
        60, ge=1, description="usage that continues is written again at least every so many windows"
    )
    batch_records_max: int = Field(500, ge=1, le=100_000, description="events in one batch")
    batch_wait_s: float = Field(0.5, ge=0, description="longest wait for further events of a batch that is not full")

    # REST.
    rest_windows_max: int = Field(
        1_440, ge=1, description="windows that /ws/v1/usage keeps, back from the newest event (1,440 of 60 s are a day)"
    )
    rest_root_windows_max: int = Field(
        10_080,
        ge=1,
        description="windows of the root queue that it keeps; the page draws them (10,080 of 60 s: a week)",
    )
    rest_records_max: int = Field(
        100_000, ge=1, description="records of usage that are kept in memory for it; the oldest windows go first"
    )
    rest_response_windows: int = Field(10_000, ge=1, description="most windows in one answer")

    # In muster up.
    processor_share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="of a processor, while it is behind: scheduling comes first (in `muster up`; 0.3 if by itself)",
    )
    retry_min_s: float = Field(0.2, gt=0, description="first wait after the log failed; doubled each time")
    retry_max_s: float = Field(30.0, gt=0, description="longest such wait")

    # muster derive.
    http_address: OptionalListenAddress = Field(
        "127.0.0.1:9084", description='/health and /metrics of muster derive; "": do not listen'
    )
    group: str = Field("muster-derive", description="consumer group of muster derive, after the topic prefix")
    member: str = Field(
        "0",
        description="name of this process in the group; each has its own, the same after a restart. Empty: the host's "
        "name, which differs for each container.",
    )
    session_timeout_s: float = Field(
        45.0,
        ge=6,
        le=300,
        description="a process that is silent for so long loses its partitions; longer than its start takes",
    )
    backlog_records_max: int = Field(
        5_000, ge=1, le=100_000, description="events in one batch of muster derive while more are waiting"
    )
    commit_interval_s: float = Field(2.0, gt=0, description="time between two commits of the position")
    stall_s: float = Field(
        60.0,
        gt=0,
        description="events are there and none was taken in so much time that the process could use: it ends, to be "
        "started again",
    )

    @field_validator("member")
    @classmethod
    def _of_host(cls, value: str) -> str:
        return value or re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())[:100]

    @field_validator("group", "member")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError(f"{value!r}: expected 1 to 100 letters, digits, '.', '_' and '-'")
        return value
