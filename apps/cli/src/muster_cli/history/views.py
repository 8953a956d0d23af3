"""The views over `events` that `muster history` has ready: SQL for duckdb.

`events` holds each tracked event once. How they are read (docs/events.md has each of them):

* An allocation begins with APP ADD APP_ALLOC and ends with APP REMOVE ALLOC_*; the node is named by the next event of
  the same key. The k-th end of (application, key, node) belongs to its k-th begin. A begin without an end runs; an end
  without a begin began before the history did.
* An application's life begins with APP ADD (APP_NEW, or without a detail); its id may have had a life before. Its queue
  is that of the last QUEUE ADD QUEUE_APP.
* An event names no partition: what has one id at one RM is taken for one thing.
"""

# ruff: noqa: S608 - statements are put together from words of this module only

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from muster_si.event_texts import REPORTED, REQUEST_CHANGED

# How an allocation ended, by the detail of its event.
ENDED: Mapping[str, str] = MappingProxyType(
    {
        "ALLOC_CANCEL": "released",
        "ALLOC_PREEMPT": "preempted",
        "ALLOC_TIMEOUT": "timed out",
        "ALLOC_REPLACED": "replaced",
        "ALLOC_NODEREMOVED": "node removed",
    }
)
# The RM changed the allocation's size or node: another row of the same key continues it.
CHANGED = "changed"

# It ended with its application, without an event of its own: this happens to an RM with very many allocations when it
# registers again.
DROPPED = "dropped"

# Details of APP events that name a state, and the final ones. (APP_EXPIRED only means that a finished application is
# forgotten, three days later.)
STATES = tuple(
    f"APP_{state}"
    for state in (
        "NEW", "ACCEPTED", "STARTING", "RUNNING", "COMPLETING", "COMPLETED", "FAILING", "FAILED", "RESUMING",
    )
)  # fmt: skip
FINISHED = ("APP_COMPLETED", "APP_FAILED")
# The submission was rejected. Of an application that is there it says nothing: the RM sent its id again.
REJECTED = "APP_REJECT"
# The state of an application that left without a final event: the RM removed it, or registered again.
REMOVED = "Removed"


def _among(words: Mapping[str, str] | tuple[str, ...]) -> str:
    return ", ".join(f"'{word}'" for word in words)


def _case(words: Mapping[str, str]) -> str:
    return " ".join(f"WHEN '{word}' THEN '{label}'" for word, label in words.items())


_REPLACED_BY = "replaced by "

# Views that others are built from, in a schema of their own. Each begins with rm and instance, because an event's id is
# valid only within these.
_INTERNAL_VIEWS: dict[str, str] = {
    # A submission begins a life: one that was accepted, or one that was rejected after the application had left.
    "lives": f"""
        SELECT rm, instance, object_id AS application, id AS first_id, row_number() OVER life AS life
        FROM (
            SELECT rm, instance, object_id, id, change_type, change_detail,
                last_value(if(change_detail = '{REJECTED}', NULL, change_type) IGNORE NULLS) OVER before AS before
            FROM events
            WHERE type = 'APP' AND (change_type = 'ADD' AND change_detail IN ('APP_NEW', 'DETAILS_NONE')
                OR change_type = 'REMOVE' AND change_detail IN ('DETAILS_NONE', '{REJECTED}'))
            WINDOW before AS (
                PARTITION BY rm, instance, object_id ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        )
        WHERE change_type = 'ADD' OR (change_detail = '{REJECTED}' AND before = 'REMOVE')
        WINDOW life AS (PARTITION BY rm, instance, object_id ORDER BY id)
    """,
    "joined": """
        SELECT rm, instance, reference_id AS application, object_id AS queue, id AS joined_id
        FROM events
        WHERE type = 'QUEUE' AND change_type = 'ADD' AND change_detail = 'QUEUE_APP'
    """,
    "linked": """
        SELECT rm, instance, reference_id AS application, object_id AS user_group, id AS linked_id
        FROM events
        WHERE type = 'USERGROUP' AND change_detail = 'UG_APP_LINK' AND change_type <> 'REMOVE'
    """,
    "users": """
        SELECT rm, instance, object_id AS user_name, id AS used_id, timestamp_ns
        FROM events
        WHERE type = 'USERGROUP' AND change_type = 'ADD' AND change_detail = 'UG_USER_RESOURCE'
    """,
    # The begins and ends, each with the next events of its key: first its node's event, then a later one.
    "booked": f"""
        SELECT rm, instance, id, time, timestamp_ns, type, change_type, change_detail, object_id AS application,
            reference_id AS allocation_key, message, resource, change_type = 'ADD' AS begins,
            if(lead(type) OVER of_key = 'NODE', lead(object_id) OVER of_key, '') AS node,
            lead(struct_pack(
                begins := change_type = 'ADD', application := object_id, id := id, time := time, ns := timestamp_ns,
                detail := change_detail, message := message), 2) OVER of_key AS follows,
            lead(struct_pack(type := type, node := object_id), 3) OVER of_key AS its_node,
            lead(struct_pack(begins := change_type = 'ADD', application := object_id, ns := timestamp_ns), 4)
                OVER of_key AS then_follows,
            lead(type, 2) OVER of_key AS next_type, lag(type, 2) OVER of_key IS NULL AS is_first
        FROM events
        WHERE reference_id <> '' AND ((type = 'NODE' AND change_detail = 'NODE_ALLOC')
            OR (type = 'APP' AND change_type = 'ADD' AND change_detail = 'APP_ALLOC')
            OR (type = 'APP' AND change_type = 'REMOVE' AND change_detail IN ({_among(tuple(ENDED))})))
        WINDOW of_key AS (PARTITION BY rm, instance, reference_id ORDER BY id)
    """,
    "left": """
        SELECT rm, instance, object_id AS application, id, time, timestamp_ns, change_detail, message
        FROM events
        WHERE type = 'APP' AND change_type = 'REMOVE' AND change_detail = 'DETAILS_NONE'
    """,
    # Each begin with its end. For a key with one allocation at a time, the next event decides. Other keys (asks with
    # repeats share a key) are counted: the k-th end belongs to the k-th begin.
    "paired": f"""
        WITH told AS MATERIALIZED (
            SELECT *, node <> '' AND (next_type IS NULL OR (next_type = 'APP' AND CASE
                WHEN begins THEN NOT follows.begins AND follows.application = application
                    AND its_node.type = 'NODE' AND its_node.node = node
                ELSE follows.begins END)) AS is_plain
            FROM parts.booked WHERE type = 'APP'
        ), shared AS (
            SELECT DISTINCT rm, instance, allocation_key FROM told WHERE NOT is_plain
        ), plain AS (
            SELECT rm, instance, application, allocation_key, node, resource, message,
                if(begins, id, NULL) AS begin_id, if(begins, time, NULL) AS begin_time,
                if(begins, timestamp_ns, NULL) AS begin_ns,
                if(begins, follows, struct_pack(
                    begins := false, application := application, id := id, time := time, ns := timestamp_ns,
                    detail := change_detail, message := message)) AS ended,
                if(begins, then_follows, struct_pack(
                    begins := follows.begins, application := follows.application, ns := follows.ns)) AS later
            FROM told ANTI JOIN shared USING (rm, instance, allocation_key)
            WHERE begins OR is_first
        ), numbered AS (
            SELECT t.*, row_number() OVER each_way AS number, sum(if(begins, 1, -1)) OVER alike AS balance
            FROM told AS t SEMI JOIN shared USING (rm, instance, allocation_key)
            WINDOW alike AS (PARTITION BY rm, instance, application, allocation_key, node ORDER BY id),
                each_way AS (PARTITION BY rm, instance, application, allocation_key, node, begins ORDER BY id)
        ), counted AS (
            -- Ends that came before their begins have none: the begins after them are counted on behind them.
            SELECT *, number + if(begins, greatest(0, -min(balance) OVER alike), 0)::BIGINT AS pair
            FROM numbered
            WINDOW alike AS (PARTITION BY rm, instance, application, allocation_key, node ORDER BY id)
        ), matched AS (
            SELECT rm, instance, application, allocation_key, node,
                coalesce(any_value(resource) FILTER (begins), any_value(resource)) AS resource,
                coalesce(any_value(message) FILTER (begins), '') AS message,
                any_value(id) FILTER (begins) AS begin_id, any_value(time) FILTER (begins) AS begin_time,
                any_value(timestamp_ns) FILTER (begins) AS begin_ns,
                any_value(struct_pack(
                    begins := false, application := application, id := id, time := time, ns := timestamp_ns,
                    detail := change_detail, message := message)) FILTER (NOT begins) AS ended,
                any_value(struct_pack(
                    begins := follows.begins, application := follows.application, ns := follows.ns))
                    FILTER (NOT begins) AS later
            FROM counted GROUP BY rm, instance, application, allocation_key, node, pair
        ), complete AS (
            SELECT m.* REPLACE (coalesce(m.ended, if(l.id IS NULL, NULL, struct_pack(
                begins := false, application := l.application, id := l.id, time := l.time, ns := l.timestamp_ns,
                detail := l.change_detail, message := l.message))) AS ended)
            FROM (FROM plain UNION ALL FROM matched) AS m
            ASOF LEFT JOIN parts.left AS l
                ON m.rm = l.rm AND m.instance = l.instance AND m.application = l.application AND m.begin_id <= l.id
        )
        SELECT rm, instance, application, allocation_key, node, begin_time, ended.time AS end_time,
            (ended.ns - begin_ns) / 1e9 AS seconds,
            CASE WHEN ended.detail = 'ALLOC_REPLACED' AND NOT starts_with(ended.message, '{_REPLACED_BY}')
                    AND later.begins AND later.application = application AND later.ns = ended.ns
                THEN '{CHANGED}'
                ELSE CASE ended.detail {_case(ENDED)} WHEN 'DETAILS_NONE' THEN '{DROPPED}' END END AS ended,
            if(ended.detail = 'ALLOC_REPLACED' AND starts_with(ended.message, '{_REPLACED_BY}'),
                substr(ended.message, {len(_REPLACED_BY) + 1}), NULL) AS replaced_by,
            resource, coalesce(nullif(ended.message, ''), message) AS message, begin_id, ended.id AS end_id,
            coalesce(begin_id, ended.id) AS first_known_id
        FROM complete
    """,
    "used": """
        WITH held AS MATERIALIZED (FROM allocations WHERE begin_id IS NOT NULL), steps AS (
            SELECT rm, instance, application, queue, begin_time AS time, begin_id AS id, resource, 1 AS step
            FROM held
            UNION ALL
            SELECT rm, instance, application, queue, end_time, end_id, resource, -1
            FROM held WHERE end_id IS NOT NULL
        )
        SELECT rm, instance, application, queue, time, id, step, unnest(map_entries(resource)) AS entry
        FROM steps
    """,
}

# name → (description, SQL), in an order in which they can be created.
VIEWS: dict[str, tuple[str, str]] = {
    "allocations": (
        "an allocation, from its begin to its end; two rows for one whose size or node the RM changed",
        """
        WITH p AS MATERIALIZED (FROM parts.paired), replacing AS (
            SELECT rm, instance, application, replaced_by AS allocation_key, min(allocation_key) AS replaces
            FROM p WHERE replaced_by IS NOT NULL GROUP BY ALL
        )
        SELECT p.rm, p.instance, p.application, p.allocation_key, p.node, j.queue, p.begin_time, p.end_time,
            p.seconds, p.ended, p.replaced_by, r.replaces, p.resource, p.message,
            p.begin_id, p.end_id
        FROM p
        ASOF LEFT JOIN parts.joined AS j
            ON p.rm = j.rm AND p.instance = j.instance AND p.application = j.application
                AND p.first_known_id >= j.joined_id
        LEFT JOIN replacing AS r
            ON p.rm = r.rm AND p.instance = r.instance AND p.application = r.application
                AND p.allocation_key = r.allocation_key
        """,
    ),
    "applications": (
        "a life of an application: its states, and sums over its allocations",
        f"""
        WITH told AS (
            SELECT e.*, e.object_id AS application, coalesce(l.life, 0) AS life
            FROM (FROM events WHERE type = 'APP') AS e
            ASOF LEFT JOIN parts.lives AS l
                ON e.rm = l.rm AND e.instance = l.instance AND e.object_id = l.application AND e.id >= l.first_id
        ), lived AS (
            SELECT rm, instance, application, life, min(id) AS first_id, max(id) AS last_id,
                min(time) FILTER (life > 0) AS submitted_time,
                min(time) FILTER (change_detail = 'APP_ACCEPTED') AS accepted_time,
                min(time) FILTER (change_detail = 'APP_RUNNING') AS started_time,
                arg_max(change_detail, id) FILTER (change_detail IN ({_among(STATES)})) AS entered,
                coalesce(entered, max(change_detail) FILTER (change_detail = '{REJECTED}')) AS state,
                coalesce(min(time) FILTER (change_detail IN ({_among(FINISHED)})),
                    if(state = '{REJECTED}', min(time) FILTER (change_detail = '{REJECTED}'), NULL)) AS ended_time,
                max(time) FILTER (change_type = 'REMOVE' AND change_detail = 'DETAILS_NONE') AS left_time,
                coalesce(ended_time, left_time) AS finished_time,
                count(*) FILTER (change_type = 'ADD' AND change_detail = 'APP_REQUEST' AND message <> '{REPORTED}')
                    - count(*) FILTER (change_type = 'REMOVE' AND change_detail = 'APP_REQUEST'
                        AND message = '{REQUEST_CHANGED}') AS asks,
                min(id) FILTER (change_type = 'ADD' AND change_detail = 'APP_ALLOC') AS allocated_id,
                coalesce(arg_max(message, id) FILTER (change_detail IN ({_among(STATES)}) AND message <> '' OR
                    change_type = 'REMOVE' AND change_detail = 'DETAILS_NONE' AND message <> ''),
                    if(state = '{REJECTED}', arg_max(message, id) FILTER (change_detail = '{REJECTED}'), NULL), ''
                    ) AS message
            FROM told GROUP BY ALL
        ), held AS (
            SELECT a.*, coalesce(l.life, 0) AS life
            FROM allocations AS a
            ASOF LEFT JOIN parts.lives AS l
                ON a.rm = l.rm AND a.instance = l.instance AND a.application = l.application
                    AND coalesce(a.begin_id, a.end_id) >= l.first_id
        ), counted AS (
            SELECT rm, instance, application, life,
                count(*) FILTER (ended IS DISTINCT FROM '{CHANGED}') AS allocations,
                count(*) FILTER (end_id IS NULL) AS running, count(*) FILTER (ended = 'preempted') AS preempted
            FROM held GROUP BY ALL
        ), summed AS (
            SELECT rm, instance, application, life, entry.key AS resource_type, sum(entry.value * seconds) AS used
            FROM (SELECT rm, instance, application, life, seconds, unnest(map_entries(resource)) AS entry
                FROM held WHERE seconds IS NOT NULL)
            GROUP BY ALL
        ), mapped AS (
            SELECT rm, instance, application, life,
                map_from_entries(list({{k: resource_type, v: used}} ORDER BY resource_type)) AS resource_seconds
            FROM summed GROUP BY ALL
        ), complete AS (
            SELECT *
            FROM lived
            LEFT JOIN counted USING (rm, instance, application, life)
            LEFT JOIN mapped USING (rm, instance, application, life)
        )
        SELECT v.rm, v.instance, v.application, v.life, j.queue,
            -- With each allocation, behind its two events, comes that of what its user has.
            if(u.used_id <= v.allocated_id + 3, u.user_name, NULL) AS user_name, l.user_group,
            CASE WHEN v.ended_time IS NULL AND v.left_time IS NOT NULL THEN '{REMOVED}'
                WHEN v.state = '{REJECTED}' THEN 'Rejected'
                ELSE upper(v.state[5]) || lower(v.state[6:]) END AS state,
            v.submitted_time, v.accepted_time, v.started_time, v.finished_time, v.asks,
            coalesce(v.allocations, 0) AS allocations,
            coalesce(v.running, 0) AS running, coalesce(v.preempted, 0) AS preempted, v.resource_seconds, v.message,
            v.first_id, v.last_id
        FROM complete AS v
        ASOF LEFT JOIN parts.joined AS j
            ON v.rm = j.rm AND v.instance = j.instance AND v.application = j.application AND v.last_id >= j.joined_id
        ASOF LEFT JOIN parts.linked AS l
            ON v.rm = l.rm AND v.instance = l.instance AND v.application = l.application AND v.last_id >= l.linked_id
        ASOF LEFT JOIN parts.users AS u
            ON v.rm = u.rm AND v.instance = u.instance AND v.allocated_id < u.used_id
        """,
    ),
    "queue_usage": (
        "the amounts allocated in a queue and its descendants: a row for each change",
        """
        SELECT rm, instance, above AS queue, entry.key AS resource_type, time, step * entry.value AS delta,
            sum(step * entry.value) OVER (
                PARTITION BY rm, instance, above, entry.key ORDER BY id ROWS UNBOUNDED PRECEDING)::BIGINT AS used, id
        FROM (
            SELECT *, unnest([array_to_string(parts[:depth], '.') FOR depth IN range(1, len(parts) + 1)]) AS above
            FROM (SELECT *, split(queue, '.') AS parts FROM parts.used)
        )
        """,
    ),
    "user_usage": (
        "the amounts allocated in a queue to a user's or a group's applications: a row for each change",
        """
        SELECT rm, instance, kind, name, queue, entry.key AS resource_type, time, step * entry.value AS delta,
            sum(step * entry.value) OVER (
                PARTITION BY rm, instance, kind, name, queue, entry.key
                ORDER BY id ROWS UNBOUNDED PRECEDING)::BIGINT AS used, id
        FROM (
            SELECT rm, instance, if(change_detail = 'UG_USER_RESOURCE', 'user', 'group') AS kind, object_id AS name,
                reference_id AS queue, time, id, if(change_type = 'ADD', 1, -1) AS step,
                unnest(map_entries(resource)) AS entry
            FROM events
            WHERE type = 'USERGROUP' AND change_detail IN ('UG_USER_RESOURCE', 'UG_GROUP_RESOURCE')
                AND change_type IN ('ADD', 'REMOVE')
        )
        """,
    ),
    "node_timeline": (
        "the changes of a node, and each begin and end of an allocation on it",
        """
        SELECT rm, instance, object_id AS node, time,
            CASE change_type || ' ' || change_detail
                WHEN 'ADD DETAILS_NONE' THEN 'added' WHEN 'REMOVE NODE_DECOMISSION' THEN 'removed'
                WHEN 'SET NODE_READY' THEN 'readiness' WHEN 'SET NODE_SCHEDULABLE' THEN 'schedulability'
                WHEN 'SET NODE_CAPACITY' THEN 'capacity' WHEN 'SET NODE_OCCUPIED' THEN 'occupied'
                WHEN 'ADD NODE_ALLOC' THEN 'allocation begins' WHEN 'REMOVE NODE_ALLOC' THEN 'allocation ends'
                WHEN 'ADD NODE_RESERVATION' THEN 'reserved' WHEN 'REMOVE NODE_RESERVATION' THEN 'reservation ends'
                ELSE lower(change_type || ' ' || change_detail) END AS what,
            reference_id AS key, resource,
            sum(CASE WHEN change_detail <> 'NODE_ALLOC' OR reference_id = '' THEN 0
                WHEN change_type = 'ADD' THEN 1 ELSE -1 END) OVER (
                PARTITION BY rm, instance, object_id ORDER BY id ROWS UNBOUNDED PRECEDING)::BIGINT AS allocations,
            message, id
        FROM events
        WHERE type = 'NODE'
        """,
    ),
}


# The queries of `muster history queues` and `muster history nodes`.
QUEUES = """
    WITH held AS MATERIALIZED (FROM allocations), above AS (
        SELECT *, unnest([array_to_string(parts[:depth], '.') FOR depth IN range(1, len(parts) + 1)]) AS above
        FROM (SELECT *, split(queue, '.') AS parts FROM held WHERE queue IS NOT NULL)
    ), counted AS (
        SELECT rm, above AS queue, count(DISTINCT application) AS applications, count(*) AS allocations,
            count(*) FILTER (end_id IS NULL) AS running, count(*) FILTER (ended = 'preempted') AS preempted
        FROM above GROUP BY ALL
    ), peaks AS (
        SELECT rm, queue, resource_type, max(used) AS peak FROM queue_usage GROUP BY ALL
    ), mapped AS (
        SELECT rm, queue, map_from_entries(list({k: resource_type, v: peak} ORDER BY resource_type)) AS peak
        FROM peaks GROUP BY ALL
    )
    FROM counted LEFT JOIN mapped USING (rm, queue) ORDER BY rm, queue
"""
NODES = """
    SELECT rm, node, min(time) FILTER (what = 'added') AS added,
        if(arg_max(what, id) FILTER (what IN ('added', 'removed')) = 'removed', max(time) FILTER (what = 'removed'),
            NULL) AS removed,
        arg_max(resource, id) FILTER (what IN ('added', 'capacity')) AS capacity,
        count(*) FILTER (what = 'allocation begins') AS allocations, arg_max(allocations, id) AS running,
        max(allocations) AS most_at_a_time
    FROM node_timeline GROUP BY rm, node ORDER BY rm, node
"""


def statements() -> list[str]:
    """Returns the statements that create the views over `events`."""
    statements = ["CREATE SCHEMA parts"]
    statements += [f"CREATE VIEW parts.{name} AS {sql}" for name, sql in _INTERNAL_VIEWS.items() if name != "used"]
    for name, (_, sql) in VIEWS.items():
        statements.append(f"CREATE VIEW {name} AS {sql}")
        if name == "allocations":
            statements.append(f"CREATE VIEW parts.used AS {_INTERNAL_VIEWS['used']}")
    return statements
