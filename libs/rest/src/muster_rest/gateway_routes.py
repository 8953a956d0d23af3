"""The routes that the gateway answers itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster_runtime.identity import Right

from muster_rest.parameters import ACTION, AFTER, ENTRIES, IDENTITY, OF_RM, RESULT, RM, SINCE, UNTIL
from muster_rest.route import Media, Parameter, Route
from muster_rest.shapes.audit import AuditPageDao
from muster_rest.shapes.health import SystemHealthDao
from muster_rest.shapes.measures import HealthDao
from muster_rest.shapes.operate import ConfiguredDao, OperatedDao, WhoamiDao

_PROBES = "probes have no token; without the role read they get only the first line"
_PAGE = "these files have no data; the page requests its data with its reader's token"

_READY = Route(
    "GET",
    "/readyz",
    "front.ready",
    "Whether this process can serve, and why not",
    right=Right.NONE,
    statuses=(200, 503),
    media=Media.TEXT,
    notes="For orchestrators. health.md",
    why=_PROBES,
)

_OPERATED = Parameter("rm", "The resource manager's id.", required=True)
_REASON = Parameter("reason", "Why, for people; explanations show it.")
_NODE = (
    _OPERATED,
    Parameter("node", "The node's id.", required=True),
    Parameter("partition", "The node's partition; `default` if it is missing."),
)

_APPLICATION = (
    _OPERATED,
    Parameter("application", "The application's id.", required=True),
    Parameter("partition", "The application's partition; `default` if it is missing."),
    Parameter("reason", "Why, for people; the resource manager gets it, and explanations show it."),
)


def _operation(action: str, summary: str, parameters: tuple[Parameter, ...] = (_OPERATED,)) -> Route:
    return Route(
        "POST",
        f"/ws/v1/operate/{action}",
        "front.operate",
        summary,
        OperatedDao,
        right=Right.OPERATE,
        parameters=parameters,
        statuses=(200, 400, 404, 409, 503),
        notes="Needs the header `X-Muster-Operate`, with any value. admin-http.md",
        why="the call of muster.v1.Admin; refused to pages of other hosts",
    )


def _configuration(action: str, summary: str, reason: str) -> Route:
    return Route(
        "POST",
        f"/ws/v1/operate/{action}",
        "front.operate",
        summary,
        ConfiguredDao,
        right=Right.CONFIGURE,
        parameters=(_OPERATED,),
        statuses=(200, 400, 404, 409, 503),
        notes=(
            "The text is the body, in UTF-8. A text that is refused gets 200 with `accepted` false and its problems. "
            "Needs the header `X-Muster-Operate`, with any value. admin-http.md"
        ),
        why=reason,
        body=str,
    )


_LIVE = replace(_READY, path="/livez", handler="front.live", summary="Whether this process works")

GATEWAY = (
    replace(
        _READY,
        path="/health",
        handler="front.health",
        summary="Whether the whole works, and what does not",
        notes="503 if a part has failed. View and publisher answer JSON about themselves at their own ports. health.md",
    ),
    _LIVE,
    _READY,
    replace(_LIVE, path="/health/live", notes="`/livez`"),
    replace(_READY, path="/health/ready", notes="`/readyz`"),
    Route(
        "GET",
        "/ws/v1/health",
        "front.system_health",
        "The state of the whole, by part",
        SystemHealthDao,
        right=Right.NONE,
        statuses=(200,),
        notes="health.md",
        why="without the role read in general words; without a right to read the grade alone",
    ),
    Route(
        "GET",
        "/ws/v1/scheduler/healthcheck",
        "front.healthcheck",
        "The health checks",
        HealthDao,
        parameters=(RM,),
        statuses=(200, 404),
        core=True,
        notes=(
            "Without `rm`: of all RMs, because a probe names none. Some checks more than YuniKorn: one for each part "
            "of `/ws/v1/health`. Each check looks at the state itself, so an allocation that was refused once does "
            "not make it unhealthy for ever."
        ),
    ),
    Route(
        "GET",
        "/metrics",
        "front.metrics",
        "The process's own metrics",
        right=Right.INSPECT,
        statuses=(200,),
        media=Media.PROMETHEUS,
        notes="Each process has it at its own port; this is the gateway's.",
        why="names queues, users and nodes",
    ),
    Route(
        "GET",
        "/ws/v1/openapi.json",
        "front.openapi",
        "This interface as an OpenAPI 3.1 document",
        dict[str, Any],
        statuses=(200,),
    ),
    Route(
        "GET",
        "/ws/v1/audit",
        "front.audit",
        "The audit trail, in pages",
        AuditPageDao,
        right=Right.ADMIN,
        parameters=(OF_RM, IDENTITY, ACTION, RESULT, SINCE, UNTIL, AFTER, ENTRIES),
        statuses=(200, 400, 503),
        notes="security.md",
        why="names every caller of every RM",
    ),
    Route(
        "GET",
        "/ws/v1/whoami",
        "front.whoami",
        "The caller's identity and rights",
        WhoamiDao,
        right=Right.NONE,
        parameters=(Parameter("rm", "A resource manager, for `mayOperate` and `mayConfigure`."),),
        statuses=(200, 400),
        notes="page-access.md",
        why="tells callers about themselves only",
    ),
    _operation("pause", "Pauses a resource manager", (_OPERATED, _REASON)),
    _operation("resume", "Ends an operator's pause"),
    _operation("drain", "Makes a node unschedulable", _NODE),
    _operation("undrain", "Makes a node schedulable", _NODE),
    _operation("forget", "Forgets a stopped resource manager"),
    _operation("end-application", "Ends an application, if its resource manager declared that it can", _APPLICATION),
    _configuration(
        "validate",
        "What a queue configuration would change, and its problems",
        "shows how the configuration in force differs",
    ),
    _configuration(
        "configure",
        "Replaces a resource manager's queue configuration",
        "the call of muster.v1.Admin; refused to pages of other hosts",
    ),
    Route("GET", "/", "front.page", "The page", right=Right.NONE, statuses=(200, 304), media=Media.HTML, why=_PAGE),
    Route(
        "GET",
        "/favicon.ico",
        "front.page",
        "The page's icon",
        right=Right.NONE,
        statuses=(200, 304),
        media=Media.FILE,
        why=_PAGE,
    ),
    Route(
        "GET",
        "/page/{file}",
        "front.page",
        "A file of the page",
        right=Right.NONE,
        statuses=(200, 304, 404),
        media=Media.FILE,
        why=_PAGE,
    ),
)
