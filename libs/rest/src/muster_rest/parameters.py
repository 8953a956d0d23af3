"""Parameters of queries."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from muster_rest.route import Parameter

_Unsigned = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]
_State = Literal["true", "false"]

RM = Parameter("rm", "The resource manager's id. Needed only where several are registered and none is the default.")
SUBTREE = Parameter("subtree", "If present with any value: shows the queues below it, too.")
STATUS = Parameter(
    "status",
    "Only active applications in this state.",
    Literal["new", "accepted", "running", "completing", "failing", "resuming"],
)
SECONDS = Parameter("seconds", "Of `profile`: its duration.", _Positive)
OF_PARTITION = Parameter("partition", "Only in this partition.")
REASON = Parameter("reason", "Only asks that wait for this reason.")
NOT_OLDER = Parameter("since", "The `since` of an answer MAKING; the newest of the asks by default.", _Unsigned)
QUEUE = Parameter("queue", "The queue that is shown, with those below it; root by default.")
SECTIONS = Parameter(
    "sections", "Some of `scheduler`, `queues`, `nodes`, `runtime`, with commas between; all by default."
)
NODES = Parameter("nodes", "How many nodes, the fullest first.", Annotated[int, Meta(ge=1, le=10_000)])
SOURCE_KIND = Parameter(
    "kind", "Only objects of this kind.", Literal["pool", "queue", "node", "offer", "application", "allocation"]
)
AFTER = Parameter("after", "The `next` of the page before.")
LIMIT = Parameter("limit", "Objects in a page.", Annotated[int, Meta(ge=1, le=10_000)])
COUNT = Parameter("count", "Events at most; RESTResponseSize by default.", _Positive)
START = Parameter("start", "The id of the first event; 0 by default.", _Unsigned)
STATE = Parameter("state", "Whether each event has its object's present state; false by default.", _State)
STREAM_COUNT = Parameter("count", "How many of the newest events in memory come first; 0 by default.", _Unsigned)
STREAM_START = Parameter("start", "In place of `count`: the id of the first event.", _Unsigned)
STREAM_STATE = Parameter("state", "Whether each event has its object's present state; true by default.", _State)
KIND = Parameter("kind", "Whose usage.", Literal["application", "queue", "user", "group"], required=True)
NAME = Parameter("name", "One application, queue, user or group; all by default.")
FROM = Parameter(
    "from", "Seconds since 1970 or RFC 3339; windows that begin from then on. 60 windows before `to` by default."
)
TO = Parameter("to", "Seconds since 1970 or RFC 3339; windows that begin before it. All known windows by default.")
WINDOW = Parameter("window", "A window's seconds, a multiple of `derive.window_s`.", _Positive)
OF_RM = Parameter("rm", "Only entries about this resource manager.")
IDENTITY = Parameter("identity", "Only entries of this identity.")
ACTION = Parameter("action", "Only entries with this action, such as `register`.")
RESULT = Parameter("result", "Only entries with this result.", Literal["accepted", "refused", "failed"])
SINCE = Parameter("from", "Seconds since 1970 or RFC 3339; entries recorded from then on.")
UNTIL = Parameter("to", "Seconds since 1970 or RFC 3339; entries recorded before it.")
ENTRIES = Parameter("limit", "Entries in a page; 200 by default.", Annotated[int, Meta(ge=1, le=1_000)])
ENDED_KIND = Parameter("kind", "What ended; application by default.", Literal["application", "node", "queue"])
ENDED_NAME = Parameter("name", "The lives of the object of this name, with its allocations.")
ENDED_TEXT = Parameter("q", "Only objects whose name has this text, in any letter case.")
ENDED_COUNT = Parameter("count", "Lives at most; 100 by default.", Annotated[int, Meta(ge=1, le=1_000)])
ENDED_BEFORE = Parameter("before", "The `next` of the answer before: what is older.")
ENDED_EVENTS = Parameter("events", "With `name`: each life has its events; false by default.", _State)
