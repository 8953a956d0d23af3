"""The routes of the view."""

from __future__ import annotations

from functools import partial

from muster_runtime.identity import Right

from muster_rest.parameters import (
    AFTER,
    LIMIT,
    NODES,
    NOT_OLDER,
    OF_PARTITION,
    QUEUE,
    REASON,
    RM,
    SECONDS,
    SECTIONS,
    SOURCE_KIND,
    STATUS,
    SUBTREE,
)
from muster_rest.process_routes import of_process
from muster_rest.route import Media, Route
from muster_rest.shapes import (
    configuration,
    explain,
    external,
    figures,
    managers,
    measures,
    objects,
    state,
    state_dump,
    usage,
)
from muster_rest.shapes.base import many

_PARTITION = "/ws/v1/partition/{partition}"
_INSIDE = "shows the process's own state, and takes processor time"
# Most routes read something of one RM. YuniKorn's core has the first ones, too.
_own = partial(Route, "GET", parameters=(RM,))
_core = partial(_own, core=True)
_why = partial(_own, parameters=(RM, OF_PARTITION), notes="explain.md")

_CLUSTER = (
    _core(
        "/ws/v1/clusters",
        "partitions.clusters",
        "The cluster of each partition",
        list[state.ClusterDao],
        notes=(
            "The partitions of one RM. `startTime` is the RM's registration (YuniKorn: the start of the process), "
            "so a restart does not change it. `rmBuildInformation` always has `rmId`, which the web UI shows; its "
            "secrets are masked."
        ),
    ),
    _core(
        "/ws/v1/partitions",
        "partitions.partitions",
        "All partitions",
        list[state.PartitionDao],
        notes="The partitions of one RM.",
    ),
    _core(
        f"{_PARTITION}/queues",
        "queues.queues",
        "All queues, as a tree",
        state.QueueDao,
        notes=(
            "Children: in the order of the configuration, then those that placement made. Secrets in properties "
            "are masked."
        ),
    ),
    _core(
        f"{_PARTITION}/queue/{{queue}}",
        "queues.queue",
        "One queue",
        state.QueueDao,
        parameters=(RM, SUBTREE),
        notes="Queue names are compared in lower case.",
    ),
    _core(
        f"{_PARTITION}/queue/{{queue}}/applications",
        "applications.queue_applications",
        "The applications of a queue",
        many(state.ApplicationDao),
        notes="In the order of submission.",
    ),
    _core(
        f"{_PARTITION}/queue/{{queue}}/applications/{{state}}",
        "applications.queue_applications_in",
        "The applications of a queue that are in a state",
        many(state.ApplicationDao),
        parameters=(RM, STATUS),
        notes="In the order of submission.",
    ),
    _core(
        f"{_PARTITION}/queue/{{queue}}/application/{{application}}",
        "applications.queue_application",
        "One application of a queue",
        state.ApplicationDao,
    ),
    _core(
        f"{_PARTITION}/applications/{{state}}",
        "applications.applications",
        "The applications of a partition that are active, completed or rejected",
        many(state.ApplicationDao),
        parameters=(RM, STATUS),
        notes="In the order of submission.",
    ),
    _core(
        f"{_PARTITION}/application/{{application}}", "applications.application", "One application", state.ApplicationDao
    ),
    _core(
        f"{_PARTITION}/nodes",
        "nodes.nodes",
        "All nodes with their allocations",
        many(state.NodeDao),
        notes=(
            "In the order of registration. `attributes` always has the full name of the partition, "
            "`[rm]partition`, as in YuniKorn."
        ),
    ),
    _core(f"{_PARTITION}/node/{{node}}", "nodes.node", "One node with its allocations", state.NodeDao),
    _core(
        f"{_PARTITION}/placementrules",
        "partitions.placement_rules",
        "The placement rules, in their order",
        list[configuration.RuleDao],
    ),
    _core(
        f"{_PARTITION}/usage/users",
        "usage.users",
        "The usage and limits of each user",
        list[usage.UserUsageDao],
        notes=(
            "By name, of this partition (YuniKorn: of all partitions together, whichever is named). A user whom a "
            "limit names is listed without applications too, as in YuniKorn; a user who has no applications and "
            "only a limit for `*` is not. As in YuniKorn, an unknown partition gives `[]`; the 404 is for an "
            "unknown `rm`."
        ),
    ),
    _core(
        f"{_PARTITION}/usage/user/{{user}}",
        "usage.user",
        "The usage and limits of one user",
        usage.UserUsageDao,
        notes="Of this partition, as for all users.",
    ),
    _core(
        f"{_PARTITION}/usage/groups",
        "usage.groups",
        "The usage and limits of each group",
        list[usage.GroupUsageDao],
        notes="Of this partition, as for all users.",
    ),
    _core(
        f"{_PARTITION}/usage/group/{{group}}",
        "usage.group",
        "The usage and limits of one group",
        usage.GroupUsageDao,
        notes="Of this partition, as for all users.",
    ),
    _core(
        "/ws/v1/scheduler/healthcheck",
        "figures.healthcheck",
        "The health checks",
        measures.HealthDao,
        statuses=(200, 404),
        notes=(
            "Without `rm`: of all RMs, because a probe names none. Some checks more than YuniKorn. Each check "
            "looks at the state itself, so an allocation that was refused once does not make it unhealthy for "
            "ever."
        ),
    ),
    _core(
        "/ws/v1/scheduler/node-utilizations",
        "nodes.utilizations",
        "The use of nodes, in ten buckets for each resource type",
        list[measures.UtilizationDao],
        notes=(
            "Types by name, nodes in the order of registration. An over-committed node stays in the last bucket. "
            "An empty `utilizations` is shown, because the web UI reads it without a check."
        ),
    ),
    _core(
        "/ws/v1/config",
        "managers.config",
        "The queue configuration in force",
        configuration.ConfigDao,
        media=Media.YAML,
        notes=(
            "JSON for exactly `Accept: application/json`. Of one RM; without an RM: 404. Secrets in properties "
            "and in Extra are masked. No detection of deadlocks; `DeadlockTimeoutSeconds` is YuniKorn's default "
            "of 60. JSON has its keys by name; YAML has no anchors, as in YuniKorn."
        ),
    ),
    Route(
        "POST",
        "/ws/v1/validate-conf",
        "managers.validate",
        "Whether a queue configuration would be accepted",
        configuration.ValidatedDao,
        statuses=(200,),
        core=True,
        notes=(
            "`reason` has every error with its place, one in a line. An error that YuniKorn finds at activation "
            "only is found here too (differences.md). A text over 1 MiB is not allowed."
        ),
        why="checks the given text; changes nothing",
        body=str,
    ),
    _core(
        "/ws/v1/history/apps",
        "figures.history_applications",
        "How many applications ran, minute by minute",
        list[measures.ApplicationsSampleDao],
        notes=(
            "The first sample is taken at the start; before it: `[]`. Never switched off, so never 500. The view "
            "keeps the samples in memory, so they start again with its process."
        ),
    ),
    _core(
        "/ws/v1/history/containers",
        "figures.history_containers",
        "How many allocations there were, minute by minute",
        list[measures.ContainersSampleDao],
        notes=(
            "As for applications. Counts the present allocations, also those before the start (YuniKorn: "
            "allocated minus released since its start)."
        ),
    ),
    _core(
        "/ws/v1/metrics",
        "figures.core_metrics",
        "The metrics of YuniKorn's core",
        statuses=(200, 404),
        media=Media.PROMETHEUS,
        notes=(
            "metrics.md has the differences. Without `rm`: all RMs added up, because a scraper names none. The "
            "metrics of the view's process follow (with `muster up`: at `/metrics`). Compressed once (YuniKorn: "
            "twice, which no reader can read). Always the text format 0.0.4, whatever `Accept` says."
        ),
    ),
)

# The process's own state.
_DEBUG = (
    Route(
        "GET",
        "/ws/v1/stack",
        "",
        "Moved to /debug/stack",
        right=Right.ADMIN,
        statuses=(301,),
        media=Media.HTML,
        core=True,
        moved_to="/debug/stack",
        notes="To `/debug/stack`, with the query.",
        why=_INSIDE,
    ),
    _core(
        "/ws/v1/fullstatedump",
        "",
        "Moved to /debug/fullstatedump",
        right=Right.OPERATE,
        statuses=(301,),
        media=Media.HTML,
        moved_to="/debug/fullstatedump",
        notes="To `/debug/fullstatedump`, with the query.",
        why="has the whole state",
    ),
    Route(
        "GET",
        "/debug/stack",
        "process.stack",
        "The stacks of all threads and tasks",
        right=Right.ADMIN,
        statuses=(200,),
        media=Media.TEXT_AS_JSON,
        core=True,
        notes=(
            "Threads and tasks in place of goroutines: of the view's process, with `muster up` of the process "
            "that schedules."
        ),
    ),
    _core(
        "/debug/fullstatedump",
        "states.state_dump",
        "The whole state of a resource manager",
        state_dump.StateDumpDao,
        right=Right.OPERATE,
        statuses=(200, 400, 404, 503),
        dump=True,
        notes=(
            "Without indentation, and streamed. At most `view.dumps_max` at a time; more get 503. The RM is not "
            "asked: `muster admin dump` asks it (admin.md). `eventStreams` are those of the RM, `Name` is the "
            "client's address; they are left out when the event publisher does not answer within 2 s or is not "
            "configured (`view.publisher_url`)."
        ),
    ),
    Route(
        "GET",
        "/debug/pprof",
        "",
        "Moved to /debug/pprof/",
        right=Right.ADMIN,
        statuses=(301,),
        media=Media.HTML,
        core=True,
        moved_to="/debug/pprof/",
        notes="To `/debug/pprof/`.",
    ),
    Route(
        "GET",
        "/debug/pprof/",
        "process.pprof",
        "The list of profiles",
        right=Right.ADMIN,
        statuses=(200,),
        media=Media.HTML,
        core=True,
        notes="Lists the profiles that exist here.",
    ),
    _core(
        "/debug/pprof/{profile}",
        "process.pprof",
        "One profile of the process",
        right=Right.ADMIN,
        parameters=(SECONDS,),
        statuses=(200, 400, 404, 501, 503),
        media=Media.TEXT,
        notes=(
            "`cmdline`, `goroutine` (as `/debug/stack`) and `profile` (stacks with counts, as flame graph tools "
            "read them; not the format of pprof). The other profiles are about Go: 501 says why. One `profile` at "
            "a time; a second one gets 503."
        ),
    ),
    Route(
        "GET",
        "/ws/v1/loglevel",
        "process.level",
        "The log level",
        str,
        right=Right.INSPECT,
        statuses=(200,),
        notes="Of the view's process, with `muster up` of the process that schedules. Older YuniKorn cores had it.",
    ),
    Route(
        "PUT",
        "/ws/v1/loglevel/{level}",
        "process.set_level",
        "Sets the log level",
        str,
        right=Right.ADMIN,
        statuses=(200, 400),
        notes="Until the process ends; with `muster up` for both processes.",
        why="changes the process",
    ),
)

# Explanations (docs/explain.md).
_EXPLAIN = (
    _own(
        "/ws/v1/explain/pending",
        "explanations.pending",
        "Why each ask is pending",
        explain.AllPendingDao,
        notes="explain.md",
    ),
    _own(
        "/ws/v1/explain/summary",
        "explanations.summary",
        "How many asks are pending for which reason",
        explain.SummaryDao,
        notes="explain.md",
    ),
    _why("/ws/v1/explain/ask/{application}/{key}", "explanations.ask", "Why one ask is pending", explain.PendingDao),
    _why(
        "/ws/v1/explain/when/{application}/{key}",
        "explanations.when",
        "When one ask will run",
        explain.WhenDao,
        statuses=(200, 400, 404, 503),
    ),
    _own(
        "/ws/v1/explain/when/{application}",
        "explanations.row_when",
        "When the first and the last of an application's asks will run",
        explain.RowWhenDao,
        parameters=(RM, OF_PARTITION, REASON, NOT_OLDER),
        statuses=(200, 400, 404, 503),
        notes="explain.md",
    ),
    Route(
        "POST",
        "/ws/v1/explain/futures",
        "explanations.futures",
        "When the waiting asks would start under another queue configuration",
        explain.FuturesDao,
        right=Right.OPERATE,
        parameters=(RM, OF_PARTITION),
        statuses=(200, 400, 404, 503),
        notes="The body is the configuration. Nothing is changed. Without `partition`: the first one. explain.md",
        why="takes seconds of processor time, at the lowest priority",
        body=str,
    ),
    _why(
        "/ws/v1/explain/application/{application}",
        "explanations.application",
        "Why an application's asks are pending, and the state of its gang",
        explain.ApplicationDao,
    ),
    _why(
        "/ws/v1/explain/queue/{queue}",
        "explanations.queue",
        "The guarantees, limits and pending asks of a queue",
        explain.QueueDao,
    ),
    _why(
        "/ws/v1/explain/node/{node}",
        "explanations.node",
        "Whether a node takes allocations, and which pending asks fit",
        explain.NodeDao,
    ),
    _own(
        "/ws/v1/explain/preempted",
        "explanations.preempted",
        "Allocations that are being preempted",
        explain.AllPreemptedDao,
        notes="explain.md",
    ),
    _why(
        "/ws/v1/explain/preemption/{application}/{key}",
        "explanations.preemption",
        "Why one allocation is preempted",
        explain.PreemptedDao,
    ),
    _why(
        "/ws/v1/explain/preemption/{allocation}",
        "explanations.preempted_allocation",
        "Why one allocation is preempted, by its key or UUID alone",
        explain.PreemptedDao,
    ),
)

OBJECT_STATES = Route(
    "POST",
    "/ws/v1/object-states",
    "states.object_states",
    "The present state of up to 1,000 objects",
    objects.ObjectStatesDao,
    parameters=(RM,),
    notes="The event publisher asks it (history-servers.md).",
    why="reads many objects at once; changes nothing",
    body=list[objects.WantedObject],
)

# Muster's own.
_OWN = (
    OBJECT_STATES,
    _own(
        "/ws/v1/external",
        "external.sources",
        "The external sources of a resource manager",
        list[external.SourceDao],
        notes="external-rest.md",
    ),
    _own(
        "/ws/v1/external/{source}",
        "external.objects",
        "The objects of an external source, in pages",
        external.ObjectsDao,
        parameters=(RM, OF_PARTITION, SOURCE_KIND, AFTER, LIMIT),
        notes="external-rest.md",
    ),
    _own(
        f"{_PARTITION}/external",
        "external.sources",
        "The external sources of a partition",
        list[external.SourceDao],
        notes="external-rest.md. An unknown partition gives `[]`.",
    ),
    _own(
        "/ws/v1/metrics/snapshot",
        "figures.snapshot",
        "The state in figures",
        figures.SnapshotDao,
        parameters=(RM, OF_PARTITION, QUEUE, SECTIONS, NODES),
        notes="metrics.md",
    ),
    _own(
        "/ws/v1/resource-managers",
        "managers.resource_managers",
        "The resource managers",
        list[managers.ResourceManagerDao],
        statuses=(200, 404),
        notes="admin-http.md. Without `rm`: all of them.",
        why="secrets in the registrations are masked",
    ),
    _own(
        "/ws/v1/resource-manager/configuration",
        "managers.configuration",
        "A resource manager's queue configuration, as it wrote it",
        managers.ConfigurationDao,
        notes="admin-http.md. The text as the RM wrote it, secrets masked.",
        why="secrets are masked",
    ),
)

VIEW = (*of_process("figures"), *_CLUSTER, *_DEBUG, *_EXPLAIN, *_OWN)
