"""The routes of the event publisher."""

from __future__ import annotations

from muster_runtime.identity import Right

from muster_rest.parameters import (
    COUNT,
    ENDED_BEFORE,
    ENDED_COUNT,
    ENDED_EVENTS,
    ENDED_KIND,
    ENDED_NAME,
    ENDED_TEXT,
    FROM,
    KIND,
    NAME,
    RM,
    START,
    STATE,
    STREAM_COUNT,
    STREAM_START,
    STREAM_STATE,
    TO,
    WINDOW,
)
from muster_rest.process_routes import of_process
from muster_rest.route import Media, Route
from muster_rest.shapes import ended, events

_RM = (RM,)
BATCH = Route(
    "GET",
    "/ws/v1/events/batch",
    "events.batch",
    "Events from an id on",
    events.EventBatchDao,
    parameters=(RM, COUNT, START, STATE),
    statuses=(200, 400, 404, 500, 503),
    core=True,
    notes="rest-events.md",
)

STREAM = Route(
    "GET",
    "/ws/v1/events/stream",
    "events.stream",
    "New events, one in a line",
    events.EventDao,
    parameters=(RM, STREAM_COUNT, STREAM_START, STREAM_STATE),
    statuses=(200, 400, 404, 500, 503),
    media=Media.JSON_LINES,
    core=True,
    notes="rest-events.md. `state` of an event: history-servers.md",
    why="checked when the stream begins",
)

OPEN_STREAMS = Route(
    "GET",
    "/ws/v1/events/streams",
    "events.open_streams",
    "The event streams that are open",
    list[events.EventStreamDao],
    right=Right.ADMIN,
    parameters=_RM,
    statuses=(200,),
    notes="The view asks it for state dumps.",
    why="shows the clients' addresses",
)

USAGE = Route(
    "GET",
    "/ws/v1/usage",
    "usage.usage",
    "Usage in windows of time",
    events.WindowsDao,
    parameters=(RM, KIND, NAME, FROM, TO, WINDOW),
    notes="usage.md",
)

ENDED = Route(
    "GET",
    "/ws/v1/ended",
    "ended.ended",
    "What ended, from the history",
    ended.EndedDao,
    parameters=(RM, ENDED_KIND, ENDED_NAME, ENDED_TEXT, ENDED_COUNT, ENDED_BEFORE, ENDED_EVENTS),
    statuses=(200, 400, 404, 503),
    notes="ended.md",
)

PUBLISHER = (*of_process("process"), BATCH, STREAM, OPEN_STREAMS, USAGE, ENDED)
