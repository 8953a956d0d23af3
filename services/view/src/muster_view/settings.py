"""The view's settings."""

from __future__ import annotations

from urllib.parse import urlsplit

from muster_queue_config.settings import QueueConfigSettings
from muster_runtime.addresses import OptionalListenAddress
from muster_runtime.positions import PositionSettings
from muster_whatif.forecast.settings import ForecastSettings
from pydantic import BaseModel, ConfigDict, Field, field_validator


class ViewSettings(BaseModel):
    """The view's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    http_address: OptionalListenAddress = Field(
        "127.0.0.1:9081", description='where REST listens, host:port; port 0: any free; "": do not listen'
    )

    publisher_url: str = Field(
        "",
        description='the event publisher, for the open event streams in a state dump; "": dumps without them',
    )

    # Following the log. In `muster up` the scheduler shares the event loop: short slices, few wake-ups.
    read_records_max: int = Field(1_000, ge=1, description="records per read of the log")
    poll_s: float = Field(1.0, gt=0, description="longest wait of one read, and time between checks of the log's end")
    fold_slice_ms: float = Field(1.0, gt=0, description="longest time of folding without a turn for other tasks")
    fold_awaited_slice_ms: float = Field(
        10.0,
        gt=0,
        description="the same while a read waits for a position; in a muster up of one process as fold_slice_ms",
    )
    idle_after_s: float = Field(
        0.1, ge=0, description="without a request for so long, folding takes larger steps and yields more"
    )
    idle_interval_s: float = Field(0.1, ge=0, description="time between folds then; a request ends the wait at once")

    # Answers.
    fresh_wait_s: float = Field(
        0.05, ge=0, description="longest wait of a request for the records that are visible at its arrival"
    )
    whole_wait_s: float = Field(
        1.0, ge=0, description="longest wait for the rest of a transaction that is folded in part, behind fresh_wait_s"
    )
    render_slice_ms: float = Field(5.0, gt=0, description="longest time of rendering without a turn for other tasks")
    snapshot_hold_s: float = Field(
        0.5, ge=0, description="longest time for which folding waits for an answer that takes several slices"
    )
    snapshot_bytes_max: int = Field(
        32 << 20, ge=1 << 16, description="an answer larger than this is sent while it is rendered, record by record"
    )
    answers_bytes_max: int = Field(
        256 << 20, ge=1 << 20, description="large answers that are under way hold so much together; more get a 503"
    )
    dumps_max: int = Field(4, ge=1, description="state dumps under way at once; more get a 503")
    stalled_s: float = Field(30.0, gt=0, description="a client that reads nothing of its answer for so long is cut")

    queue_metrics_by_name: bool = Field(
        False,
        description="/ws/v1/metrics has queue_app and queue_resource also by a name for each queue, as cores up to 1.6",
    )

    queue_config: QueueConfigSettings = Field(
        default_factory=QueueConfigSettings,
        description="what a configuration that somebody has validated may cost; as gateway.queue_config",
    )

    forecast: ForecastSettings = Field(
        default_factory=ForecastSettings, description="what an estimate of when an ask will run may cost"
    )

    positions: PositionSettings = Field(
        default_factory=PositionSettings, description="reads that wait for a position (docs/consistency.md)"
    )

    # Health.
    health_interval_s: float = Field(5.0, ge=0, description="age at which the health checks are repeated")
    lag_records_max: int = Field(
        500_000, ge=0, description="behind by more records than this is not healthy (a large burst is less)"
    )
    lag_s_max: float = Field(30.0, ge=0, description="behind by more time than this is not healthy")

    # History.
    history_interval_s: float = Field(
        60.0, gt=0, description="time between two samples of /ws/v1/history; the last 1,440 are kept"
    )

    # Failure and stop.
    retry_min_s: float = Field(0.2, gt=0, description="first wait after the log failed; doubled each time")
    retry_max_s: float = Field(30.0, gt=0, description="longest such wait")
    stop_timeout_s: float = Field(5.0, gt=0, description="at stop: time for answers that are under way")

    @field_validator("publisher_url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if url and not usable:
            raise ValueError(f'{url!a}, expected http://host:port, or "": none')
        return url
