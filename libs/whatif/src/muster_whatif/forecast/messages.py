"""Messages between a service and the process that makes one forecast (``forecaster.py``, ``forecast_main.py``).

parent   ForecastRequest                                         once
child    ForecastResult | ComparisonResult | ForecastFailed      once; then the child ends
"""

from __future__ import annotations

from muster_runtime.message_channel import Message


class RunTimeMessage(Message):
    """The lengths known of one key; see ``run_time_model.RunTimeSamples``."""

    queue: str
    user: str
    task_group: str
    ended: int
    lengths: list[tuple[float, str]]


class ForecastRequest(Message):
    """:param entries: key and value of each record of the RM's state.
    :param came: past asks as of ``durations.PastAsk``, the key's fields in the place of the key.
    :param config: another queue configuration: the answer is Compared; None: it is Made.
    """

    now_ns: int
    seed: int
    cpu_s: float
    memory_bytes: int
    entries: list[tuple[bytes, bytes]]
    learnt: list[RunTimeMessage]
    came: list[tuple[int, str, str, str, str, dict[str, int], int, bool, bool]]
    since_ns: int
    config: str | None = None


class AskEstimate(Message):
    """See ``forecast.Estimate``."""

    partition: str
    application_id: str
    key: str
    earliest_ns: int
    likely_ns: int
    latest_ns: int
    started: int


class ForecastResult(Message):
    """See ``forecast.Forecast``."""

    asks: list[AskEstimate]
    runs: int
    unknown: dict[str, int]
    declared: dict[str, int]
    learnt: dict[str, int]


class QueueComparison(Message):
    """The asks of a queue: when they start as it is, and under the other configuration (:class:`StartOutlook`)."""

    partition: str
    queue: str
    asks: int
    present: tuple[float, float | None, float | None]
    other: tuple[float, float | None, float | None]


class PartitionComparison(Message):
    """See ``futures.StartCurve``."""

    partition: str
    moments_s: list[float]
    present: list[float]
    other: list[float]


class ComparisonResult(Message):
    """See ``futures.ConfigComparison``."""

    queues: list[QueueComparison]
    rises: list[PartitionComparison]
    runs: int


class ForecastFailed(Message):
    """:param why: a sentence for people; ``problems``: of the other configuration."""

    why: str
    problems: tuple[str, ...] = ()


ToParent = ForecastResult | ComparisonResult | ForecastFailed
ToChild = ForecastRequest
