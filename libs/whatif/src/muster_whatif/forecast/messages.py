"""Messages between a service and the process that makes one forecast (``forecaster.py``, ``forecast_main.py``).

parent   Situation                   once
child    Made | Compared | Failed    once; then the child ends
"""

from __future__ import annotations

from muster_runtime.message_channel import Message


class LearntLengths(Message):
    """The lengths known of one key; see ``durations.Known``."""

    queue: str
    user: str
    task_group: str
    ended: int
    lengths: list[tuple[float, str]]


class Situation(Message):
    """:param entries: key and value of each record of the RM's state.
    :param came: past asks as of ``durations.Came``, the key's fields in the place of the key.
    :param config: another queue configuration: the answer is Compared; None: it is Made.
    """

    now_ns: int
    seed: int
    cpu_s: float
    memory_bytes: int
    entries: list[tuple[bytes, bytes]]
    learnt: list[LearntLengths]
    came: list[tuple[int, str, str, str, str, dict[str, int], int, bool, bool]]
    since_ns: int
    config: str | None = None


class OfAsk(Message):
    """See ``forecast.Estimate``."""

    partition: str
    application_id: str
    key: str
    earliest_ns: int
    likely_ns: int
    latest_ns: int
    started: int


class Made(Message):
    """See ``forecast.Forecast``."""

    asks: list[OfAsk]
    runs: int
    unknown: dict[str, int]
    declared: dict[str, int]
    learnt: dict[str, int]


class OfQueue(Message):
    """The asks of a queue: when they start as it is, and under the other configuration; see ``futures.Outlook``."""

    partition: str
    queue: str
    asks: int
    present: tuple[float, float | None, float | None]
    other: tuple[float, float | None, float | None]


class OfPartition(Message):
    """See ``futures.Rise``."""

    partition: str
    moments_s: list[float]
    present: list[float]
    other: list[float]


class Compared(Message):
    """See ``futures.Futures``."""

    queues: list[OfQueue]
    rises: list[OfPartition]
    runs: int


class Failed(Message):
    """:param why: a sentence for people; ``problems``: of the other configuration."""

    why: str
    problems: tuple[str, ...] = ()


ToParent = Made | Compared | Failed
ToChild = Situation
