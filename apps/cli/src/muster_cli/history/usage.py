"""Usage over time, from changes of allocated amounts: windows for a table, series for a plot. Times are ns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from muster_cli import numbers
from muster_cli.errors import CommandError, UsageError
from muster_cli.history.duckdb_store import HistoryDatabase

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

_NEAR_NAMES = 5
_WINDOWS = 24  # approximate number by default
_WINDOWS_MAX = 10_000
# Round lengths of windows, in seconds.
_NICE_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 7 * 86400)
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h|d|w)\s*").fullmatch


class StepSeries(NamedTuple):
    """A step function: ``values[i]`` holds from ``at_ns[i]`` on; 0 before the first."""

    at_ns: NDArray[np.int64]
    values: NDArray[np.int64]

    def at(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns its values at given times."""
        places = np.searchsorted(self.at_ns, times_ns, side="right") - 1
        values: NDArray[np.int64] = np.where(places >= 0, self.values[np.maximum(places, 0)], 0)
        return values


NO_LIMIT = -1
By = Literal["queue", "user", "application"]
EMPTY = StepSeries(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class UsageSubject:
    """The subject of the usage: exactly one of the first four fields is set.

    :ivar queue: includes the queues below it.
    :ivar by: the parts of a queue: the queues below it, or its users or applications.
    """

    queue: str = ""
    user: str = ""
    group: str = ""
    application: str = ""
    by: By = "queue"

    @property
    def kind(self) -> str:
        return next(name for name in ("queue", "user", "group", "application") if getattr(self, name))

    @property
    def name(self) -> str:
        name: str = getattr(self, self.kind)
        return name


class UsageWindow(NamedTuple):
    """Usage of one resource type in ``[begin_ns, end_ns)``."""

    begin_ns: int
    end_ns: int
    resource_type: str
    average: float
    peak: int
    resource_seconds: float


@dataclass(slots=True)
class UsageSeries:
    """A subject's usage over time.

    :ivar breakdown: by resource type, then by part: the first queues below a queue of which there are several, a
        queue's users or applications, the queues of a user or group, or the application itself.
    :ivar limits: by resource type, guaranteed and max of a queue, where they were set; :data:`NO_LIMIT`: not at that
        time.
    """

    subject: UsageSubject
    rm: str
    begin_ns: int
    end_ns: int
    window_ns: int
    breakdown: dict[str, dict[str, StepSeries]] = field(default_factory=dict)
    limits: dict[str, dict[str, StepSeries]] = field(default_factory=dict)

    def total(self, resource_type: str) -> StepSeries:
        """Returns the total usage of a resource type."""
        series = list(self.breakdown.get(resource_type, {}).values())
        if not series:
            return EMPTY
        times = np.unique(np.concatenate([part_series.at_ns for part_series in series]))
        return StepSeries(times, np.sum([part_series.at(times) for part_series in series], axis=0))

    def windows(self) -> list[UsageWindow]:
        """Returns one row per window and resource type. Windows begin at whole multiples of their length."""
        first = self.begin_ns // self.window_ns * self.window_ns
        edges = np.arange(first, self.end_ns + self.window_ns, self.window_ns, dtype=np.int64)
        edges = np.clip(edges, self.begin_ns, self.end_ns)
        edges = np.unique(edges)
        windows: list[UsageWindow] = []
        for resource_type in sorted(self.breakdown):
            total = self.total(resource_type)
            times = np.unique(
                np.concatenate([edges, total.at_ns[(total.at_ns > edges[0]) & (total.at_ns < edges[-1])]])
            )
            values = total.at(times[:-1])
            lasts = np.diff(times)
            which = np.searchsorted(edges, times[:-1], side="right") - 1
            for index in range(len(edges) - 1):
                inside = which == index
                begin, end = int(edges[index]), int(edges[index + 1])
                resource_seconds = float(np.dot(values[inside].astype(float), lasts[inside] / 1e9))
                windows.append(
                    UsageWindow(
                        begin,
                        end,
                        resource_type,
                        resource_seconds / ((end - begin) / 1e9),
                        int(values[inside].max(initial=0)),
                        resource_seconds,
                    )
                )
        windows.sort(key=lambda window: (window.begin_ns, window.resource_type))
        return windows


def read(
    history: HistoryDatabase, subject: UsageSubject, begin: str = "", end: str = "", window: str = "", rm: str = ""
) -> UsageSeries:
    """Reads a subject's usage.

    :param begin: ISO 8601 (UTC without a zone), or the time before the end: "2h"; "": the first usage.
    :param end: the same form; "": the newest event.
    :param window: a duration, such as "5min"; "": about a 24th of the time.

    Raises UsageError for invalid texts, CommandError if there is no such subject.
    """
    # 1. the RM and its subject
    rm = _rm_of(history, rm)
    spans = [span for span in history.spans if span.rm == rm]
    newest_ns = max(span.newest_ns for span in spans)
    rows = _steps(history.connection, subject, rm)
    if not rows and not _has_subject(history.connection, subject, rm):
        raise CommandError(_unknown_subject(history.connection, subject, rm))
    # 2. the time
    end_ns = _time(end, "--to", newest_ns) if end else newest_ns + 1
    first_ns = min((row[2] for row in rows), default=end_ns - 1)
    begin_ns = _time(begin, "--from", end_ns) if begin else min(first_ns, end_ns - 1)
    if begin_ns >= end_ns:
        raise UsageError(f"--from {format_time(begin_ns)} is not before --to {format_time(end_ns)}")
    window_ns = round(_duration(window, "--window") * 1e9) if window else _nice_window(end_ns - begin_ns)
    if (end_ns - begin_ns) / window_ns > _WINDOWS_MAX:
        raise UsageError(f"--window {window}: more than {_WINDOWS_MAX:,} windows; expected a longer one")
    # 3. the amounts
    usage = UsageSeries(subject, rm, begin_ns, end_ns, window_ns)
    raw: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for resource_type, part, at_ns, used in rows:
        times, values = raw.setdefault((resource_type, part), ([], []))
        times.append(at_ns)
        values.append(used)
    for (resource_type, part), (times, values) in sorted(raw.items()):
        usage.breakdown.setdefault(resource_type, {})[part] = StepSeries(np.array(times), np.array(values))
    if subject.queue:
        _read_limits(history.connection, usage)
    return usage


def _rm_of(history: HistoryDatabase, rm: str) -> str:
    rms = sorted({span.rm for span in history.spans})
    if rm:
        return rm
    if len(rms) > 1:
        raise UsageError(f"--rm: the history is of {len(rms)} RMs, expected one of {', '.join(rms)}")
    return rms[0]


# A subject's gains and losses: (resource type, part, ns, delta).
_STEPS = {
    "queue": """
        SELECT entry.key AS resource_type, array_to_string(split(queue, '.')[:$depth], '.') AS part,
            epoch_ns(time) AS ns, step * entry.value AS delta
        FROM parts.used
        WHERE rm = $rm AND (queue = $name OR starts_with(queue, $name || '.'))
    """,
    "queue by user": """
        SELECT resource_type, name AS part, epoch_ns(time) AS ns, delta
        FROM user_usage
        WHERE rm = $rm AND kind = 'user' AND (queue = $name OR starts_with(queue, $name || '.'))
    """,
    "queue by application": """
        SELECT entry.key AS resource_type, application AS part, epoch_ns(time) AS ns, step * entry.value AS delta
        FROM parts.used
        WHERE rm = $rm AND (queue = $name OR starts_with(queue, $name || '.'))
    """,
    "application": """
        SELECT entry.key AS resource_type, application AS part, epoch_ns(time) AS ns, step * entry.value AS delta
        FROM parts.used
        WHERE rm = $rm AND application = $name
    """,
    "user": """
        SELECT resource_type, queue AS part, epoch_ns(time) AS ns, delta
        FROM user_usage
        WHERE rm = $rm AND kind = 'user' AND name = $name
    """,
    "group": """
        SELECT resource_type, queue AS part, epoch_ns(time) AS ns, delta
        FROM user_usage
        WHERE rm = $rm AND kind = 'group' AND name = $name
    """,
}
# Its amount from each of these times on.
_SUMMED = """
    WITH summed AS (SELECT resource_type, part, ns, sum(delta) AS delta FROM ({steps}) GROUP BY ALL)
    SELECT resource_type, part, ns, (sum(delta) OVER (PARTITION BY resource_type, part ORDER BY ns))::BIGINT
    FROM summed ORDER BY resource_type, part, ns
"""


def _steps(
    connection: duckdb.DuckDBPyConnection, subject: UsageSubject, rm: str
) -> Sequence[tuple[str, str, int, int]]:
    parameters: dict[str, object] = {"rm": rm, "name": subject.name}
    if not subject.queue:
        return connection.execute(_SUMMED.format(steps=_STEPS[subject.kind]), parameters).fetchall()
    if subject.by != "queue":
        return connection.execute(_SUMMED.format(steps=_STEPS[f"queue by {subject.by}"]), parameters).fetchall()
    parameters["depth"] = _depth_of_parts(connection, subject.queue, rm)
    return connection.execute(_SUMMED.format(steps=_STEPS["queue"]), parameters).fetchall()


def _depth_of_parts(connection: duckdb.DuckDBPyConnection, queue: str, rm: str) -> int:
    """Returns the level of the first queues below a queue of which there are several; at least the next one."""
    rows = connection.execute(
        "SELECT DISTINCT queue FROM parts.used WHERE rm = $rm AND starts_with(queue, $name || '.')",
        {"rm": rm, "name": queue},
    ).fetchall()
    below = [str(row[0]).split(".") for row in rows]
    next_level = queue.count(".") + 2
    deepest = max(map(len, below), default=next_level)
    levels = (level for level in range(next_level, deepest) if len({tuple(path[:level]) for path in below}) > 1)
    return next(levels, max(deepest, next_level))


def _read_limits(connection: duckdb.DuckDBPyConnection, usage: UsageSeries) -> None:
    """Reads guaranteed and max at their settings. A type that a later setting omits has no limit from then on."""
    rows = connection.execute(
        "SELECT change_detail, timestamp_ns, resource FROM events WHERE type = 'QUEUE' AND change_type = 'SET' "
        "AND change_detail IN ('QUEUE_MAX', 'QUEUE_GUARANTEED') AND rm = $rm AND object_id = $queue "
        "ORDER BY timestamp_ns, id",
        {"rm": usage.rm, "queue": usage.subject.queue},
    ).fetchall()
    raw: dict[tuple[str, str], dict[int, int]] = {}
    for detail, at_ns, resource in rows:
        limit_kind = "max" if detail == "QUEUE_MAX" else "guaranteed"
        amounts: Mapping[str, int] = resource or {}
        for resource_type in {*amounts, *(name for name, kind in raw if kind == limit_kind)}:
            raw.setdefault((resource_type, limit_kind), {})[at_ns] = amounts.get(resource_type, NO_LIMIT)
    for (resource_type, limit_kind), steps in sorted(raw.items()):
        times = sorted(steps)
        series = StepSeries(np.array(times), np.array([steps[at_ns] for at_ns in times]))
        usage.limits.setdefault(resource_type, {})[limit_kind] = series


# ---- names ----------------------------------------------------------------------------------------------------------

_NAMES = {
    "queue": "SELECT DISTINCT object_id AS name FROM events WHERE type = 'QUEUE' AND rm = $rm",
    "user": "SELECT DISTINCT name FROM user_usage WHERE kind = 'user' AND rm = $rm",
    "group": "SELECT DISTINCT name FROM user_usage WHERE kind = 'group' AND rm = $rm",
    "application": "SELECT DISTINCT object_id AS name FROM events WHERE type = 'APP' AND rm = $rm",
}


def _has_subject(connection: duckdb.DuckDBPyConnection, subject: UsageSubject, rm: str) -> bool:
    row = connection.execute(
        f"SELECT count(*) FROM ({_NAMES[subject.kind]}) WHERE name = $name",  # noqa: S608 - of this module
        {"rm": rm, "name": subject.name},
    ).fetchone()
    return bool(row and row[0])


def _unknown_subject(connection: duckdb.DuckDBPyConnection, subject: UsageSubject, rm: str) -> str:
    rows = connection.execute(
        f"SELECT name FROM ({_NAMES[subject.kind]}) ORDER BY jaro_winkler_similarity(name, $name) DESC, name "  # noqa: S608
        "LIMIT $most",
        {"rm": rm, "name": subject.name, "most": _NEAR_NAMES},
    ).fetchall()
    near = f"; near to it: {', '.join(row[0] for row in rows)}" if rows else f"; it has no {subject.kind} at all"
    return f"the history of {rm} has no {subject.kind} {subject.name!r}{near}"


# ---- times ----------------------------------------------------------------------------------------------------------


def format_time(ns: int) -> str:
    """Returns a time in ISO 8601, UTC."""
    at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=ns // 1000)
    return f"{at:%Y-%m-%dT%H:%M:%S}{f'.{at.microsecond // 1000:03d}' if at.microsecond else ''}Z"


def _time(text: str, flag: str, end_ns: int) -> int:
    if _DURATION(text):
        return end_ns - round(_duration(text, flag) * 1e9)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{flag} {text!r}: expected a time such as 2026-11-22T04:30:00Z, or a duration such as 2h"
        ) from error
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


def _duration(text: str, flag: str) -> float:
    match = _DURATION(text)
    return numbers.DURATION_S.within(flag, float(match[1]) * _UNITS_S[match[2]] if match else None, text)


def _nice_window(length_ns: int) -> int:
    wanted_s = length_ns / 1e9 / _WINDOWS
    return round(next((nice for nice in _NICE_S if nice >= wanted_s), _NICE_S[-1]) * 1e9)
