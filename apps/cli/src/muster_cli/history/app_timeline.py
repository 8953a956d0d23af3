"""One life of an application, built from its events: plain data. Times are ns since the epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from muster_si.event_texts import REPORTED, REQUEST_CHANGED

from muster_cli.errors import CommandError, UsageError
from muster_cli.history import views
from muster_cli.history.duckdb_store import HistoryDatabase

if TYPE_CHECKING:
    import duckdb

_NEAR_NAMES = 5
_LIKENESS_MIN = 0.7
# How an ask ended without an allocation, by the detail of its event.
ASK_ENDED = {"REQUEST_CANCEL": "cancelled", "REQUEST_TIMEOUT": "timed out", "APP_REQUEST": "taken back"}


class StateSpan(NamedTuple):
    """A state and its duration; ``end_ns`` None: it still lasts."""

    state: str
    begin_ns: int
    end_ns: int | None
    message: str


class TimelineAllocation(NamedTuple):
    """An allocation.

    :ivar asked_ns: time of its ask; None: not known.
    :ivar begin_ns: None: before the history begins. ``end_ns`` None: it runs.
    :ivar ended: one of :data:`~muster_cli.history.views.ENDED` or CHANGED; "": it runs.
    """

    key: str
    node: str
    resource: dict[str, int]
    asked_ns: int | None
    begin_ns: int | None
    end_ns: int | None
    ended: str
    replaced_by: str
    replaces: str
    message: str


class TimelineAsk(NamedTuple):
    """An ask without an allocation.

    :ivar ended: one of :data:`ASK_ENDED`; "": it is pending.
    """

    key: str
    resource: dict[str, int]
    asked_ns: int
    end_ns: int | None
    ended: str
    message: str


class TimelineEvent(NamedTuple):
    """Another event of the application."""

    at_ns: int
    what: str
    message: str


@dataclass(slots=True)
class ApplicationTimeline:
    """A life of an application, as far as the history has it.

    :ivar life: number among ``lives``, from 1; 0: the history does not have its beginning.
    :ivar until_ns: the end of the life, or the newest event of its RM.
    """

    rm: str
    instance: str
    application: str
    life: int
    lives: int
    queue: str
    begin_ns: int
    until_ns: int
    finished: bool
    asks: int
    states: list[StateSpan] = field(default_factory=list)
    allocations: list[TimelineAllocation] = field(default_factory=list)
    waiting: list[TimelineAsk] = field(default_factory=list)
    happenings: list[TimelineEvent] = field(default_factory=list)

    @property
    def state(self) -> str:
        return self.states[-1].state if self.states else ""

    def resource_seconds(self) -> dict[str, float]:
        """Returns the usage of its allocations until they ended, or until the newest event."""
        used: dict[str, float] = {}
        for allocation in self.allocations:
            if allocation.begin_ns is not None:
                seconds = ((allocation.end_ns or self.until_ns) - allocation.begin_ns) / 1e9
                for name, value in allocation.resource.items():
                    used[name] = used.get(name, 0.0) + value * seconds
        return dict(sorted(used.items()))


def read(history: HistoryDatabase, application: str, life: int = 0) -> ApplicationTimeline:
    """Reads a life of an application.

    :param life: its number, from 1; 0: the last one.

    Raises UsageError if it is not clear which one is meant, CommandError if there is no such application.
    """
    connection = history.connection
    # 1. the RM
    owners = connection.execute(
        "SELECT rm, instance, min(id), max(timestamp_ns) FROM events WHERE type = 'APP' AND object_id = $app "
        "GROUP BY ALL ORDER BY max(timestamp_ns)",
        {"app": application},
    ).fetchall()
    if not owners:
        raise CommandError(_unknown(connection, application))
    rms = sorted({str(owner[0]) for owner in owners})
    if len(rms) > 1:
        raise UsageError(f"--rm: {application} is an application of {len(rms)} RMs, expected one of {', '.join(rms)}")
    rm, instance, first_known_id, _ = owners[-1]
    # 2. only the application's events: this makes the views fast
    _narrow(connection, application, rm, instance)
    # 3. the life
    begins = [row[0] for row in connection.execute("SELECT first_id FROM parts.lives ORDER BY ALL").fetchall()]
    if life > len(begins):
        raise UsageError(f"--life: must be from 1 to {len(begins)}, as many as {application} had, got {life}")
    chosen = life or len(begins)
    first_id = begins[chosen - 1] if chosen else first_known_id
    end_id = begins[chosen] if chosen < len(begins) else 2**63 - 1
    (newest_ns,) = (span.newest_ns for span in history.spans if (span.rm, span.instance) == (rm, instance))
    return _build_timeline(
        connection, (rm, instance, application), (chosen, len(begins)), (first_id, end_id), newest_ns
    )


def _narrow(connection: duckdb.DuckDBPyConnection, application: str, rm: str, instance: str) -> None:
    connection.execute(
        """
        CREATE TABLE narrowed AS
        WITH mine AS (FROM events WHERE rm = $rm AND instance = $instance),
            keys AS (SELECT DISTINCT reference_id FROM mine WHERE type = 'APP' AND object_id = $app)
        FROM mine
        WHERE (type = 'APP' AND object_id = $app) OR (type = 'QUEUE' AND reference_id = $app)
            OR (type = 'NODE' AND change_detail = 'NODE_ALLOC' AND reference_id IN (FROM keys))
        """,
        {"app": application, "rm": rm, "instance": instance},
    )
    # Another application may use the same allocation key, too: an allocation's node event follows its own event.
    connection.execute("CREATE OR REPLACE VIEW events AS FROM narrowed")


def _build_timeline(
    connection: duckdb.DuckDBPyConnection,
    name: tuple[str, str, str],
    life: tuple[int, int],
    ids: tuple[int, int],
    newest_ns: int,
) -> ApplicationTimeline:
    rm, instance, application = name
    rows = connection.execute(
        "SELECT id, timestamp_ns, change_type, change_detail, reference_id, resource, message FROM events "
        "WHERE type = 'APP' AND id >= $first AND id < $end ORDER BY id",
        {"first": ids[0], "end": ids[1]},
    ).fetchall()
    queue = connection.execute(
        "SELECT arg_max(queue, joined_id) FROM parts.joined WHERE joined_id < $end", {"end": ids[1]}
    ).fetchone()
    timeline = ApplicationTimeline(
        rm, instance, application, *life, (queue[0] if queue else "") or "", rows[0][1], newest_ns, False, 0
    )
    open_asks: dict[str, list[tuple[int, dict[str, int]]]] = {}
    changed: dict[str, int] = {}  # for changed allocations: time of the original ask
    removal: TimelineEvent | None = None
    existed = any(detail != views.REJECTED for _, _, _, detail, *_ in rows)  # it was there, whatever was rejected
    for _, at_ns, change, detail, key, resource, message in rows:
        if change == "SET" and detail in views.STATES:
            _enter(timeline, _state(detail), at_ns, message)
        elif detail == views.REJECTED and existed:
            timeline.happenings.append(TimelineEvent(at_ns, "sent again, rejected", message))
        elif detail == views.REJECTED:
            _enter(timeline, _state(detail), at_ns, message)
        elif change == "ADD" and detail == "APP_REQUEST":
            if message == REPORTED:
                continue  # an allocation that the RM reported; it has no ask
            if key in changed:
                at_ns = changed.pop(key)
            else:
                timeline.asks += 1
            open_asks.setdefault(key, []).append((at_ns, resource or {}))
        elif change == "REMOVE" and detail == "APP_REQUEST" and message == REQUEST_CHANGED:
            changed[key], _ = open_asks.pop(key, [(at_ns, {})])[-1]
        elif change == "REMOVE" and detail == "APP_REQUEST" and message == REPORTED:
            continue  # the ask ends here; its allocation shows what follows
        elif change == "REMOVE" and detail in ASK_ENDED:
            since_ns, amount = open_asks.pop(key, [(at_ns, resource or {})])[-1]
            timeline.waiting.append(TimelineAsk(key, amount, since_ns, at_ns, ASK_ENDED[detail], message))
        elif change == "REMOVE" and detail == "DETAILS_NONE":
            removal = TimelineEvent(at_ns, "left its queue", message)
            timeline.happenings.append(removal)
        elif detail == "APP_EXPIRED":
            continue  # the finished application is forgotten, three days after its end
        elif change == "NONE":
            timeline.happenings.append(
                TimelineEvent(at_ns, detail.removeprefix("APP_").lower().replace("_", " "), message)
            )
    if removal is not None and not any(span.state in _FINISHED for span in timeline.states):
        _enter(timeline, views.REMOVED, removal.at_ns, removal.message)
    timeline.finished = bool(timeline.states) and timeline.states[-1].state in (*_FINISHED, views.REMOVED)
    if timeline.finished:
        timeline.until_ns = max(at_ns for _, at_ns, _, detail, *_ in rows if detail != "APP_EXPIRED")
        timeline.states[-1] = timeline.states[-1]._replace(end_ns=timeline.until_ns)
    _allocations(connection, timeline, ids, open_asks)
    return timeline


def _enter(timeline: ApplicationTimeline, state: str, at_ns: int, message: str) -> None:
    if timeline.states:
        timeline.states[-1] = timeline.states[-1]._replace(end_ns=at_ns)
    timeline.states.append(StateSpan(state, at_ns, None, message))


def _allocations(
    connection: duckdb.DuckDBPyConnection,
    timeline: ApplicationTimeline,
    ids: tuple[int, int],
    open_asks: dict[str, list[tuple[int, dict[str, int]]]],
) -> None:
    rows: Sequence[Any] = connection.execute(
        """
        SELECT a.allocation_key, a.node, a.resource, b.timestamp_ns, e.timestamp_ns, a.ended, a.replaced_by,
            a.replaces, a.message
        FROM allocations AS a
        LEFT JOIN events AS b ON b.id = a.begin_id
        LEFT JOIN events AS e ON e.id = a.end_id
        WHERE coalesce(a.begin_id, a.end_id) >= $first AND coalesce(a.begin_id, a.end_id) < $end
        ORDER BY coalesce(a.begin_id, a.end_id)
        """,
        {"first": ids[0], "end": ids[1]},
    ).fetchall()
    changed: set[str] = set()
    for key, node, resource, begin_ns, end_ns, ended, replaced_by, replaces, message in rows:
        since = open_asks.get(key, []) if key not in changed else []  # a change has no ask
        asked_ns = max((at_ns for at_ns, _ in since if begin_ns is None or at_ns <= begin_ns), default=None)
        timeline.allocations.append(
            TimelineAllocation(
                key, node, resource or {}, asked_ns, begin_ns, end_ns, ended or "", replaced_by or "", replaces or "",
                message or "",
            )
        )  # fmt: skip
        changed.add(key) if ended == views.CHANGED else changed.discard(key)
    served = {allocation.key for allocation in timeline.allocations}
    for key, waits in open_asks.items():
        if key not in served:
            timeline.waiting += [TimelineAsk(key, resource, at_ns, None, "", "") for at_ns, resource in waits[-1:]]
    timeline.waiting.sort(key=lambda ask: ask.asked_ns)


def _state(detail: str) -> str:
    return "Rejected" if detail == views.REJECTED else detail.removeprefix("APP_").capitalize()


_FINISHED = tuple(map(_state, (*views.FINISHED, views.REJECTED)))


def _unknown(connection: duckdb.DuckDBPyConnection, application: str) -> str:
    rows = connection.execute(
        "SELECT object_id FROM (SELECT DISTINCT object_id FROM events WHERE type = 'APP') "
        "WHERE jaro_winkler_similarity(object_id, $app) >= $least "
        "ORDER BY jaro_winkler_similarity(object_id, $app) DESC, object_id LIMIT $most",
        {"app": application, "least": _LIKENESS_MIN, "most": _NEAR_NAMES},
    ).fetchall()
    near = f"; near to it: {', '.join(row[0] for row in rows)}" if rows else ""
    return f"the history has no application {application!r}{near}"
