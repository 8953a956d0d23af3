"""REST: ``/ws/v1/*`` as YuniKorn's core answers it (core-features §2.19), over what the followers have folded.

Bodies, statuses and headers are the real core's. What Muster adds is in headers, in parameters and in fields that are
named in the README. ``?rm=`` names the resource manager; needed only where several are registered.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import structlog
from muster_bus.clock import Clock
from muster_service.go_json import error_body, go_json
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.types import Receive, Scope, Send

from muster_scheduler.core.acl import GROUP_NAME, QUEUE_NAME, USER_NAME
from muster_scheduler.core.config import partition_name
from muster_scheduler.core.external import ExternalKind
from muster_scheduler.core.external_books import ExternalBooks
from muster_scheduler.core.objects import Application, Queue
from muster_scheduler.core.partition import Partition
from muster_scheduler.follower import RmState
from muster_scheduler.queue_yaml import TEXT_BYTES_MAX
from muster_scheduler.view import (
    configured,
    core_metrics,
    dao,
    explain,
    explain_node,
    explain_preemption,
    explain_queue,
    external,
    go,
    inside,
    metrics,
    object_states,
    placement_rules,
    render,
    resource_managers,
    snapshot,
    state_dump,
    usage,
    utilization,
)
from muster_scheduler.view.errors import ReaderStalled, RequestRefused
from muster_scheduler.view.history import History
from muster_scheduler.view.limits import Held, Limits
from muster_scheduler.view.render import Pieces
from muster_scheduler.view.routes import Match, Routes
from muster_scheduler.view.settings import ViewSettings
from muster_scheduler.view.snapshot import NODES_DEFAULT, NODES_MAX, Lag, Section, Wanted
from muster_scheduler.view.turns import FoldGate, Slice

log = structlog.get_logger(__name__)
T = TypeVar("T")

_JSON = "application/json; charset=UTF-8"
_HEADERS = {
    "Content-Type": _JSON,
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, OPTIONS",
    "Access-Control-Allow-Headers": "X-Requested-With,Content-Type,Accept,Origin",
}
# Beside GET's.
_HEADERS_OF = {
    "GET": _HEADERS,
    "POST": {**_HEADERS, "Access-Control-Allow-Methods": "OPTIONS, POST"},
    "PUT": {**_HEADERS, "Access-Control-Allow-Methods": "OPTIONS, PUT"},
}
_ALLOW = {"GET": {"Allow": "GET, OPTIONS"}, "POST": {"Allow": "OPTIONS, POST"}, "PUT": {"Allow": "OPTIONS, PUT"}}
_TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
# The core compresses from this size on.
_GZIP_FROM_BYTES = 1400
# Pieces are gathered to about this much before they are compressed or sent: half a millisecond of compressing.
_CHUNK_BYTES = 32 * 1024
# A larger answer is sent chunk by chunk, and compressed beside the event loop.
_SEND_BYTES = 256 * 1024
_GZIP_LEVEL = 1  # JSON of this kind shrinks to a tenth already; more takes the scheduler's time
_GZIP_WBITS = 31

# The real core has none of these.
_OWN_PATHS = ("/ws/v1/explain/", "/ws/v1/external/")
_TRY_AGAIN = 503
_ACTIVE_STATES = {"new", "accepted", "running", "completing", "failing", "resuming"}
# The rest of a message that names what came in is cut here.
_SHOWN_CHARACTERS = 200
_NUMBER = re.compile(r"[0-9]{1,18}")


class Snapshot(Protocol):
    """What REST needs of the service."""

    def states(self) -> Mapping[str, RmState]:
        """The RMs, by id; sorted."""
        ...

    def external(self) -> Mapping[str, ExternalBooks]:
        """What sources outside of the RMs said, by the RM's id; sorted."""
        ...

    def departed(self, rm_id: str) -> object_states.Departed:
        """What those of an RM's objects were like that are gone."""
        ...

    def lag_records(self, rm_id: str | None) -> int:
        """Of an RM's partition; None: of all."""
        ...

    def lag_s(self, rm_id: str | None) -> float:
        """Of an RM's partition; None: the largest of all."""
        ...

    def version(self) -> int:
        """The same number: the same state."""
        ...

    def torn(self, rm_id: str | None) -> bool:
        """Whether a transaction is folded in part, of an RM's partition; None: of any."""
        ...

    async def fresh(self) -> None:
        """Returns between two folds (bounded)."""
        ...

    def counted(self, rm_id: str | None) -> list[core_metrics.Counted]:
        """What metrics are made of; None: of all RMs."""
        ...

    def history(self) -> History:
        """How many applications and allocations there were."""
        ...

    async def health(self, rm_id: str | None) -> dao.HealthDao | None:
        """Health checks; None: there is nothing to look at yet."""
        ...

    async def problems(self) -> list[str]:
        """What does not work, one sentence each."""
        ...


@dataclass(slots=True)
class Call:
    """One request.

    :ivar path: its parameters from the path.
    :ivar query: its parameters from the query; of a name the first counts, as in Go.
    :ivar raw_query: the same as it came.
    :ivar accept: the header, as it came.
    :ivar body: of a POST; one that is too large is cut behind the limit.
    """

    path: dict[str, str]
    query: dict[str, str]
    rm_id: str | None = None
    raw_query: str = ""
    accept: str = ""
    body: bytes = b""


@dataclass(slots=True)
class Answer:
    """What goes back: a status, headers, and the body's pieces."""

    pieces: Pieces
    status: int = 200
    headers: Mapping[str, str] | None = None


Endpoint = Callable[[Call], Awaitable[Answer]]


class Action(NamedTuple):
    """What a path does, and with which method."""

    endpoint: Endpoint
    method: str = "GET"
    is_dump: bool = False


class ViewRest:
    """The endpoints, as one ASGI application.

    :param process_metrics: whether this process's metrics come with the core's; else somebody else exposes them.
    :ivar limits: what readers hold now, and may.
    """

    def __init__(
        self, source: Snapshot, settings: ViewSettings, clock: Clock, gate: FoldGate, *, process_metrics: bool = True
    ) -> None:
        self._source, self._settings, self._clock, self._gate = source, settings, clock, gate
        self._process_metrics = process_metrics
        partition = "/ws/v1/partition/{partition}"
        self.limits = Limits(settings)
        self._reading_yaml = asyncio.Lock()
        self._profiling = asyncio.Lock()
        # Of the metrics, by the RM that was asked for.
        self._seen: dict[str | None, core_metrics.Seen] = {}
        gets: list[tuple[str, Endpoint]] = [
            ("/ws/v1/clusters", self._clusters),
            ("/ws/v1/partitions", self._partitions),
            (f"{partition}/queues", self._queues),
            (f"{partition}/queue/{{queue}}", self._queue),
            (f"{partition}/queue/{{queue}}/applications", self._queue_applications),
            (f"{partition}/queue/{{queue}}/applications/{{state}}", self._queue_applications_in),
            (f"{partition}/queue/{{queue}}/application/{{application}}", self._queue_application),
            (f"{partition}/applications/{{state}}", self._applications),
            (f"{partition}/application/{{application}}", self._application),
            (f"{partition}/nodes", self._nodes),
            (f"{partition}/node/{{node}}", self._node),
            (f"{partition}/placementrules", self._placement_rules),
            (f"{partition}/usage/users", self._users),
            (f"{partition}/usage/user/{{user}}", self._user),
            (f"{partition}/usage/groups", self._groups),
            (f"{partition}/usage/group/{{group}}", self._group),
            ("/ws/v1/scheduler/healthcheck", self._healthcheck),
            ("/ws/v1/explain/pending", self._explain_pending),
            ("/ws/v1/explain/summary", self._explain_summary),
            ("/ws/v1/explain/ask/{application}/{key}", self._explain_ask),
            ("/ws/v1/explain/application/{application}", self._explain_application),
            ("/ws/v1/explain/queue/{queue}", self._explain_queue),
            ("/ws/v1/explain/node/{node}", self._explain_node),
            ("/ws/v1/explain/preempted", self._explain_preempted),
            ("/ws/v1/explain/preemption/{application}/{key}", self._explain_preemption),
            ("/ws/v1/explain/preemption/{allocation}", self._explain_preempted_allocation),
            ("/ws/v1/external", self._external),
            ("/ws/v1/external/{source}", self._external_source),
            (f"{partition}/external", self._external),
            ("/ws/v1/metrics/snapshot", self._snapshot),
            ("/ws/v1/resource-managers", self._resource_managers),
            ("/ws/v1/resource-manager/configuration", self._configuration),
            ("/ws/v1/metrics", self._core_metrics),
            ("/metrics", self._metrics),
            ("/health", self._health),
            ("/ws/v1/config", self._config),
            ("/ws/v1/history/apps", self._history_applications),
            ("/ws/v1/history/containers", self._history_containers),
            ("/ws/v1/scheduler/node-utilizations", self._utilizations),
            ("/ws/v1/loglevel", self._level),
            ("/ws/v1/stack", self._moved("/debug/stack")),
            ("/ws/v1/fullstatedump", self._moved("/debug/fullstatedump")),
            ("/debug/stack", self._stack),
            ("/debug/pprof", self._moved("/debug/pprof/")),
            ("/debug/pprof/", self._pprof),
            ("/debug/pprof/{profile}", self._pprof),
        ]
        self._routes: Routes[Action] = Routes(
            [
                *((pattern, Action(endpoint)) for pattern, endpoint in gets),
                ("/debug/fullstatedump", Action(self._state_dump, is_dump=True)),
                ("/ws/v1/validate-conf", Action(self._validate, "POST")),
                ("/ws/v1/object-states", Action(self._object_states, "POST")),
                ("/ws/v1/loglevel/{level}", Action(self._set_level, "PUT")),
            ]
        )

    # ---- one request -----------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        started_s = self._clock.monotonic()
        match = self._find(scope, path)
        if match is None:
            await _send(send, *self._unknown(scope, path))
            return
        action = match.endpoint
        if scope["method"] != action.method:
            await _send(send, *_other_method(scope["method"], action.method))
            return
        call = Call(
            match.parameters,
            _query(scope),
            raw_query=scope.get("query_string", b"").decode("latin-1"),
            accept=_header(scope, b"accept"),
            body=await _body(receive, TEXT_BYTES_MAX) if action.method == "POST" else b"",
        )
        status = 500
        send = self.limits.sending(scope, send)
        try:
            with self.limits.holding() as held:
                status = await self._answer(action, call, scope, send, match.pattern, started_s, held)
        except ReaderStalled:
            pass  # it is cut
        finally:
            metrics.REQUESTS.labels(match.pattern, str(status)).inc()

    async def _answer(
        self, action: Action, call: Call, scope: Scope, send: Send, pattern: str, started_s: float, held: Held
    ) -> int:
        # 1. what is visible is folded
        torn = False
        await self._source.fresh()
        # 2. what is asked, 3. rendered, as far as it is held in memory
        try:
            if action.is_dump:
                held.take_dump()
            answer = await action.endpoint(call)
            version, torn = self._source.version(), self._source.torn(call.rm_id)
            chunks, complete = await self._render(answer.pieces, held)
        except RequestRefused as refused:
            answer, version = _refusal(refused), self._source.version()
            chunks, complete = list(answer.pieces), True
        except Exception:
            log.exception("view.request_failed", route=pattern)
            failed = RequestRefused(500, "the view failed on this request; its log says why")
            answer, version = _refusal(failed), self._source.version()
            chunks, complete = list(answer.pieces), True
        metrics.RENDER_SECONDS.labels(pattern).observe(self._clock.monotonic() - started_s)
        # 4. sent
        headers = dict(answer.headers if answer.headers is not None else _HEADERS_OF[action.method])
        headers["X-Muster-Lag-Records"] = str(self._source.lag_records(call.rm_id))
        headers["X-Muster-Consistency"] = (
            "snapshot" if complete and not torn and version == self._source.version() else "object"
        )
        headers["Vary"] = "Accept-Encoding"
        size = sum(map(len, chunks))
        gzip = _accepts_gzip(scope) and (size >= _GZIP_FROM_BYTES or not complete)
        if complete and gzip:
            headers["Content-Encoding"] = "gzip"
            chunks = await self._compress(chunks, size)
        if complete:
            await _send_chunks(send, answer.status, headers, chunks)
        else:
            size += await self._stream(send, answer, headers, chunks, gzip=gzip)
        metrics.ANSWER_BYTES.labels(pattern).inc(size)
        return answer.status

    async def _render(self, pieces: Pieces, held: Held) -> tuple[list[bytes], bool]:
        """The first chunks, and whether they are all. Folding waits meanwhile, within its limit."""
        limit = self._settings.snapshot_bytes_max
        chunks: list[bytes] = []
        slice_ = Slice(self._clock, self._settings.render_slice_ms / 1000)
        gathered = _gather(pieces, slice_.used_up)
        size = 0
        with self._gate.hold():
            for chunk in gathered:
                chunks.append(chunk)
                size += len(chunk)
                held.take(len(chunk))
                if size > limit:
                    return chunks, False
                if slice_.used_up():
                    await slice_.rest()
        return chunks, True

    async def _compress(self, chunks: list[bytes], size: int) -> list[bytes]:
        """The same, compressed; what takes long, beside the event loop (zlib lets others have the interpreter)."""
        if size > _SEND_BYTES:
            return await asyncio.to_thread(_compressed, chunks)
        return _compressed(chunks)

    async def _stream(
        self, send: Send, answer: Answer, headers: dict[str, str], chunks: list[bytes], *, gzip: bool
    ) -> int:
        """Sends what is rendered, then the rest as it is rendered; gives the size of the rest."""
        compress = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS) if gzip else None
        if gzip:
            headers["Content-Encoding"] = "gzip"
        await send({"type": "http.response.start", "status": answer.status, "headers": _raw(headers)})
        slice_ = Slice(self._clock, self._settings.render_slice_ms / 1000)
        size = 0

        async def part(chunk: bytes, *, more: bool = True) -> None:
            if compress is not None:
                chunk = compress.compress(chunk) + (b"" if more else compress.flush())
            if chunk or not more:
                await send({"type": "http.response.body", "body": chunk, "more_body": more})
            if slice_.used_up():
                await slice_.rest()

        for chunk in chunks:
            await part(chunk)
        chunks.clear()
        for chunk in _gather(answer.pieces, slice_.used_up):
            size += len(chunk)
            await part(chunk)
        await part(b"", more=False)
        return size

    def _find(self, scope: Scope, path: str) -> Match[Action] | None:
        """Of a path as the real core's router sees it, unescaped; where that is none of ours, of its parts, each
        unescaped by itself: so an id may have a slash in it. Our own paths are seen so from the first.
        """
        if path.startswith(_OWN_PATHS):
            return self._routes.find(path, _parts(scope))
        return self._routes.find(path) or self._routes.find(path, _parts(scope))

    def _unknown(self, scope: Scope, path: str) -> tuple[int, Mapping[str, str], bytes]:
        """The core's router: nearly right paths are sent to the right one; the rest is unknown."""
        near = self._routes.canonical(path)
        if near is None or near.endpoint.method != scope["method"]:
            return 404, _TEXT, b"404 page not found\n"
        status = 301 if scope["method"] == "GET" else 308  # (the latter keeps the method, and the body)
        return _redirect(near.path, scope.get("query_string", b"").decode("latin-1"), status)

    # ---- whose -----------------------------------------------------------------------------------------------------

    def _rm(self, call: Call) -> RmState | None:
        """The RM that the request names, or the only one; None: there is none at all. Raises RequestRefused."""
        states = self._source.states()
        named = call.query.get("rm", "")
        if named:
            state = states.get(named)
            if state is None:
                raise RequestRefused(404, f"Resource manager not found: {_shown(named)}")
        elif len(states) > 1:
            raise RequestRefused(400, f'Several resource managers are registered, name one with "rm": {_names(states)}')
        else:
            state = next(iter(states.values()), None)
        if state is not None:
            call.rm_id = state.info.rm_id
        return state

    def _partition(self, call: Call) -> Partition:
        partition = self._partition_or_none(call)
        if partition is None:
            raise RequestRefused(404, "Partition not found")
        return partition

    def _partition_or_none(self, call: Call) -> Partition | None:
        """For usage, where the real core does not look at the partition: in an unknown one nobody uses anything."""
        state = self._rm(call)
        return state.core.partitions.get(call.path["partition"]) if state is not None else None

    def _leaf(self, call: Call) -> tuple[Partition, Queue]:
        """The queue that the path names. Of several errors the partition's is told, as in the real core."""
        partition = self._partition(call)
        queue = partition.queues.get(_queue_path(call))
        if queue is None:
            raise RequestRefused(404, "Queue not found")
        return partition, queue

    # ---- endpoints -------------------------------------------------------------------------------------------------

    async def _clusters(self, call: Call) -> Answer:
        state = self._rm(call)
        partitions = state.core.partitions.values() if state is not None else ()
        return Answer(render.body([dao.cluster(state.info, each) for each in partitions] if state else []))

    async def _partitions(self, call: Call) -> Answer:
        state = self._rm(call)
        partitions = state.core.partitions.values() if state is not None else ()
        return Answer(render.body([dao.partition_info(state.info, each) for each in partitions] if state else []))

    async def _queues(self, call: Call) -> Answer:
        partition = self._partition(call)
        tree = render.queue(partition, partition.root, tree=True, shown_partition=partition.name)
        return Answer(render.line(tree))

    async def _queue(self, call: Call) -> Answer:
        partition, queue = self._leaf(call)
        return Answer(render.line(render.queue(partition, queue, tree="subtree" in call.query)))

    async def _queue_applications(self, call: Call) -> Answer:
        _queue_path(call)  # (Here the real core looks at the name before the partition.)
        partition, queue = self._leaf(call)
        return _applications(partition, list(queue.applications.values()))

    async def _queue_applications_in(self, call: Call) -> Answer:
        partition, queue = self._leaf(call)
        if call.path["state"].lower() != "active":
            raise RequestRefused(400, f"Application state {_shown(call.path['state'])} is not known: expected active")
        wanted = _status(call)
        return _applications(partition, [app for app in queue.applications.values() if wanted(app)])

    async def _applications(self, call: Call) -> Answer:
        partition = self._partition(call)
        match call.path["state"].lower():
            case "active":
                status = _status(call)
                found = [app for app in partition.apps.values() if dao.is_active(app) and status(app)]
            case "completed":
                found = [app for app in partition.apps.values() if dao.is_completed(app)]
            case "rejected":
                found = list(partition.rejected.values())
            case _:
                raise RequestRefused(
                    400,
                    f"Application state {_shown(call.path['state'])} is not known: "
                    "expected active, completed or rejected",
                )
        return _applications(partition, found)

    async def _queue_application(self, call: Call) -> Answer:
        _unescaped_queue(call)  # (And here whether it can be unescaped.)
        partition, queue = self._leaf(call)
        return _application(partition, queue.applications.get(call.path["application"]))

    async def _application(self, call: Call) -> Answer:
        partition = self._partition(call)
        return _application(partition, partition.live_application(call.path["application"]))

    async def _nodes(self, call: Call) -> Answer:
        partition = self._partition(call)
        nodes = list(partition.nodes.values())
        return Answer(render.listing(nodes, lambda node: render.node(partition, node)))

    async def _node(self, call: Call) -> Answer:
        partition = self._partition(call)
        node = partition.nodes.get(call.path["node"])
        if node is None:
            raise RequestRefused(404, "Node not found")
        return Answer(render.line(render.node(partition, node)))

    async def _placement_rules(self, call: Call) -> Answer:
        return Answer(render.body(placement_rules.rules(self._partition(call))))

    async def _users(self, call: Call) -> Answer:
        partition = self._partition_or_none(call)
        if partition is None:
            return Answer(render.body([]))
        found = usage.by_user(partition)
        return Answer(_each(sorted(found), lambda user: usage.of_user(partition, user, found[user])))

    async def _groups(self, call: Call) -> Answer:
        partition = self._partition_or_none(call)
        if partition is None:
            return Answer(render.body([]))
        found = usage.by_group(partition)
        return Answer(_each(sorted(found), lambda group: usage.of_group(partition, group, found[group])))

    async def _user(self, call: Call) -> Answer:
        user = _name(call.path["user"], USER_NAME, "user")
        partition = self._partition_or_none(call)
        apps = usage.by_user(partition).get(user) if partition is not None else None
        if partition is None or apps is None:
            raise RequestRefused(404, "User not found")
        return Answer(render.body(usage.of_user(partition, user, apps)))

    async def _group(self, call: Call) -> Answer:
        group = _name(call.path["group"], GROUP_NAME, "group")
        partition = self._partition_or_none(call)
        apps = usage.by_group(partition).get(group) if partition is not None else None
        if partition is None or apps is None:
            raise RequestRefused(404, "Group not found")
        return Answer(render.body(usage.of_group(partition, group, apps)))

    async def _healthcheck(self, call: Call) -> Answer:
        # A probe names no RM: without one it is asked of all.
        state = self._rm(call) if call.query.get("rm") else None
        health = await self._source.health(state.info.rm_id if state is not None else None)
        if health is None:
            raise RequestRefused(404, "Health check is not available")
        return Answer(render.body(health))

    async def _explain_pending(self, call: Call) -> Answer:
        return Answer(explain.pending(self._known(call), self._clock.now_ns()))

    async def _explain_summary(self, call: Call) -> Answer:
        return Answer(render.body(explain.summary(self._known(call))))

    async def _explain_ask(self, call: Call) -> Answer:
        state, partition, app = self._explained(call)
        wanted, now_ns = app.asks.get(call.path["key"]), self._clock.now_ns()
        if wanted is None:
            raise RequestRefused(404, explain.no_ask(app, call.path["key"], now_ns))
        return Answer(render.body(explain.ask(state, partition, wanted, now_ns)))

    async def _explain_application(self, call: Call) -> Answer:
        return Answer(explain.application(*self._explained(call, ended=True), self._clock.now_ns()))

    async def _explain_queue(self, call: Call) -> Answer:
        path = _queue_path(call)
        state = self._known(call)
        for partition in self._partitions_of(call, state):
            queue = partition.queues.get(path)
            if queue is not None:
                halt, halts = explain.halt_of(state), explain.halts_of(state)
                found = explain_queue.explained(partition, queue, self._clock.now_ns(), halt=halt, halts=halts)
                return Answer(render.body(found))
        raise RequestRefused(404, "Queue not found")

    async def _explain_node(self, call: Call) -> Answer:
        state = self._known(call)
        for partition in self._partitions_of(call, state):
            node = partition.nodes.get(call.path["node"])
            if node is not None:
                halt, books = explain.halt_of(state), state.core.external
                now_ns = self._clock.now_ns()
                return Answer(explain_node.explained(partition, node, now_ns, halt=halt, external=books))
        raise RequestRefused(404, "Node not found")

    async def _explain_preempted(self, call: Call) -> Answer:
        return Answer(explain.preempted(self._known(call), self._clock.now_ns()))

    async def _explain_preemption(self, call: Call) -> Answer:
        _, partition, app = self._explained(call)
        held = app.allocations.get(call.path["key"])
        if held is None:
            raise RequestRefused(404, "Allocation not found")
        found = explain.preemption(partition, held, self._clock.now_ns())
        if found is None:
            raise RequestRefused(404, explain_preemption.no_preemption(held))
        return Answer(render.body(found))

    async def _explain_preempted_allocation(self, call: Call) -> Answer:
        """By its key or its UUID alone: the allocations that were told to go are few."""
        state, name = self._known(call), call.path["allocation"]
        partitions = self._partitions_of(call, state)
        found = [(each, held) for each in partitions for held in explain.preempted_named(each, name)]
        if not found:
            raise RequestRefused(404, "Allocation not found among those that were preempted and are still there")
        if len(found) > 1:
            apps = sorted({held.app_id for _, held in found})
            ask = "say which: /ws/v1/explain/preemption/{application}/{key}, ?partition="
            raise RequestRefused(400, f"Allocation {name!r} is in {len(found)} applications, {', '.join(apps)}: {ask}")
        ((partition, held),) = found
        return Answer(render.body(explain.preemption(partition, held, self._clock.now_ns())))

    def _explained(self, call: Call, *, ended: bool = False) -> tuple[RmState, Partition, Application]:
        """The application that the path names, in the partition that ``?partition=`` names, else in any.

        :param ended: also one that has ended, or was rejected, as long as it is remembered, if there is no other.
        """
        state, app_id = self._known(call), call.path["application"]
        partitions = self._partitions_of(call, state)
        for partition in partitions:
            app = partition.live_application(app_id)
            if app is not None:
                return state, partition, app
        for partition in partitions:
            app = explain.remembered(partition, app_id)
            if app is not None and not ended:
                raise RequestRefused(404, f"Application not found: it {explain.ended(app, self._clock.now_ns())}")
            if app is not None:
                return state, partition, app
        raise RequestRefused(404, "Application not found")

    def _partitions_of(self, call: Call, state: RmState) -> list[Partition]:
        named = call.query.get("partition", "")
        if not named:
            return list(state.core.partitions.values())
        if named not in state.core.partitions:
            raise RequestRefused(404, "Partition not found")
        return [state.core.partitions[named]]

    def _known(self, call: Call) -> RmState:
        state = self._rm(call)
        if state is None:
            raise RequestRefused(404, "No resource manager is registered")
        return state

    async def _snapshot(self, call: Call) -> Answer:
        state = self._known(call)
        name = partition_name(call.query.get("partition", ""))
        partition = state.core.partitions.get(name)
        if partition is None:
            raise RequestRefused(404, f"Partition not found: {_shown(name)}")
        path = call.query.get("queue", "")
        queue = partition.queues.get(_checked_path(path)) if path else partition.root
        if queue is None:
            raise RequestRefused(404, f"Queue not found: {_shown(path)}")
        wanted = Wanted(_sections(call), partition, queue, _nodes_max(call))
        lag = Lag(self._source.lag_records(state.info.rm_id), self._source.lag_s(state.info.rm_id))
        return Answer(snapshot.snapshot(state, wanted, lag, self._clock.now_ns()))

    async def _resource_managers(self, call: Call) -> Answer:
        states = [self._known(call)] if call.query.get("rm") else list(self._source.states().values())
        return Answer(render.listing(states, lambda state: iter([go_json(resource_managers.shown(state.info))])))

    async def _configuration(self, call: Call) -> Answer:
        return Answer(render.body(resource_managers.configuration(self._known(call).info)))

    async def _external(self, call: Call) -> Answer:
        rm_id, books = self._books(call)
        partition = call.path.get("partition")
        found = [each for each in books.all_sources() if partition in (None, each.partition)]
        return Answer(external.sources(rm_id, found))

    async def _external_source(self, call: Call) -> Answer:
        _, books = self._books(call)
        name, partition = call.path["source"], call.query.get("partition", "")
        found = [each for each in external.named(books, name) if partition in ("", each.partition)]
        if not found:
            raise RequestRefused(404, f"Source not found: {_shown(name)}")
        if len(found) > 1:
            partitions = ", ".join(each.partition for each in found)
            raise RequestRefused(400, f'Several partitions have this source, name one with "partition": {partitions}')
        kind, after, limit = _external_kind(call), _after(call), _limit(call, external.OBJECTS_DEFAULT)
        return Answer(external.objects(found[0], kind, after, limit))

    def _books(self, call: Call) -> tuple[str, ExternalBooks]:
        """What sources said for the RM that the request names, or for the only one; it need not have registered."""
        books, states = self._source.external(), self._source.states()
        named = call.query.get("rm", "")
        known = sorted({*books, *states})
        if not named and len(known) > 1:
            raise RequestRefused(400, f'Several resource managers are known, name one with "rm": {", ".join(known)}')
        if named and named not in known:
            raise RequestRefused(404, f"Resource manager not found: {_shown(named)}")
        call.rm_id = named or next(iter(known), "") or None
        return call.rm_id or "", books.get(call.rm_id or "") or ExternalBooks()

    async def _config(self, call: Call) -> Answer:
        info = self._known(call).info
        # Only exactly this: readers that take JSON among others got YAML from the real core, too.
        if call.accept == "application/json":
            return Answer(render.body(await self._read(configured.shown, info.config, info.extra_config, go=True)))
        text = await self._read(configured.as_yaml, info.config, info.extra_config)
        return Answer(iter([text]), headers={**_HEADERS, "Content-Type": "application/x-yaml; charset=UTF-8"})

    async def _validate(self, call: Call) -> Answer:
        return Answer(render.body(await self._read(configured.validated, call.body)))

    async def _read(self, read: Callable[..., T], *given: Any, **more: Any) -> T:
        """Reads YAML, which may take seconds: one text at a time, beside the event loop."""
        async with self._reading_yaml:
            return await asyncio.to_thread(read, *given, **more)

    async def _history_applications(self, call: Call) -> Answer:
        state = self._rm(call)
        return Answer(render.body(self._source.history().applications(state.info.rm_id) if state is not None else []))

    async def _history_containers(self, call: Call) -> Answer:
        state = self._rm(call)
        return Answer(render.body(self._source.history().containers(state.info.rm_id) if state is not None else []))

    async def _utilizations(self, call: Call) -> Answer:
        state = self._rm(call)
        if state is None:
            return Answer(render.body([]))
        rm_id, partitions = state.info.rm_id, list(state.core.partitions.values())
        return Answer(render.listing(partitions, lambda each: utilization.pieces(rm_id, each)))

    async def _state_dump(self, call: Call) -> Answer:
        state = self._rm(call)
        config = configured.NOTHING
        if state is not None:
            config = await self._read(configured.shown, state.info.config, state.info.extra_config, go=True)
            state = self._source.states().get(state.info.rm_id)  # it may have registered anew meanwhile
        return Answer(state_dump.pieces(state, self._source.history(), config, self._clock.now_ns()))

    async def _stack(self, _call: Call) -> Answer:
        # (The content type is JSON's though it is none: so the real core has it.)
        return Answer(inside.stacks(list(asyncio.all_tasks())))

    async def _pprof(self, call: Call) -> Answer:
        name = call.path.get("profile", "")
        if name in inside.MISSING:
            raise RequestRefused(501, f"Profile {name} has no meaning here: {inside.MISSING[name]}")
        match name:
            case "":
                return Answer(iter([inside.index()]), headers={"Content-Type": "text/html; charset=utf-8"})
            case "cmdline":
                return Answer(iter([inside.command_line()]), headers=_TEXT)
            case "goroutine":
                return Answer(inside.stacks(list(asyncio.all_tasks())), headers=_TEXT)
            case "profile":
                return Answer(iter([await self._profile(_seconds(call))]), headers=_TEXT)
        raise RequestRefused(404, f"Profile not found: {_shown(name)}")

    async def _profile(self, seconds: int) -> bytes:
        if self._profiling.locked():
            raise RequestRefused(503, "A profile is being made already: try again")
        async with self._profiling:
            return await asyncio.to_thread(inside.profile, seconds)

    async def _object_states(self, call: Call) -> Answer:
        state = self._known(call)
        # (What is asked for is stored: half of a transaction would be wrong for ever.)
        if self._source.torn(state.info.rm_id):
            raise RequestRefused(503, "A transaction is being taken in: try again")
        departed = self._source.departed(state.info.rm_id)
        return Answer(object_states.pieces(state, departed, object_states.read(call.body)))

    async def _level(self, _call: Call) -> Answer:
        return Answer(render.body(inside.level()))

    async def _set_level(self, call: Call) -> Answer:
        level = call.path["level"].lower()
        if level not in inside.LEVELS:
            raise RequestRefused(400, f"Level {_shown(level)} is not known: expected one of {', '.join(inside.LEVELS)}")
        log.warning("view.log_level", was=inside.level(), now=level)
        inside.set_level(level)
        return Answer(render.body(inside.level()))

    @staticmethod
    def _moved(path: str) -> Endpoint:
        async def moved(call: Call) -> Answer:
            status, headers, body = _redirect(path, call.raw_query)
            return Answer(iter([body]), status, headers)

        return moved

    async def _core_metrics(self, call: Call) -> Answer:
        # A scraper names no RM: without one it is asked of all.
        state = self._rm(call) if call.query.get("rm") else None
        rm_id = state.info.rm_id if state is not None else None
        seen = self._seen.setdefault(rm_id, core_metrics.Seen())
        for gone in self._seen.keys() - self._source.states().keys() - {None}:
            del self._seen[gone]
        by_name = self._settings.queue_metrics_by_name
        text = core_metrics.exposition(self._source.counted(rm_id), seen, by_name=by_name)
        of_process = (generate_latest() for _ in range(self._process_metrics))  # when it is its turn
        return Answer(chain(text, of_process), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _metrics(self, _call: Call) -> Answer:
        return Answer(iter([generate_latest()]), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _health(self, _call: Call) -> Answer:
        problems = await self._source.problems()
        body = {"healthy": not problems, "problems": problems}
        return Answer(render.body(body), 503 if problems else 200)


# ---- parts of answers ------------------------------------------------------------------------------------------------


def _applications(partition: Partition, found: list[Application]) -> Answer:
    return Answer(render.listing(found, lambda app: render.application(partition, app)))


def _application(partition: Partition, app: Application | None) -> Answer:
    if app is None:
        raise RequestRefused(404, "Application not found")
    return Answer(render.line(render.application(partition, app)))


def _parts(scope: Scope) -> list[str] | None:
    """What stands between a path's slashes, each part unescaped by itself; None: nothing there is escaped."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%" not in raw:
        return None
    return [unquote(part) for part in raw.decode("latin-1").partition("?")[0].split("/")[1:]]


def _queue_path(call: Call) -> str:
    """A queue's path in a path, as it is looked for."""
    return _checked_path(_unescaped_queue(call))


def _unescaped_queue(call: Call) -> str:
    """The same as it was written: unescaped once more than the path, as in the real core."""
    name = go.query_unescape(call.path["queue"])
    if name is None:
        raise RequestRefused(400, f"Queue name {_shown(call.path['queue'])} is not escaped as a query is")
    return name


def _checked_path(name: str) -> str:
    for part in name.split("."):
        if not QUEUE_NAME.fullmatch(part):
            raise RequestRefused(
                400,
                f"Invalid queue name {_shown(name)}: each part between dots takes 1 to 64 of letters, digits and "
                "_ : # / @ -",
            )
    return name.lower()


def _sections(call: Call) -> frozenset[Section]:
    """Names with commas between; none: all."""
    named = [name for name in call.query.get("sections", "").split(",") if name]
    for name in named:
        if name not in set(Section):
            raise RequestRefused(400, f"Section {_shown(name)} is not known: expected some of {', '.join(Section)}")
    return frozenset(map(Section, named)) or frozenset(Section)


def _nodes_max(call: Call) -> int:
    text = call.query.get("nodes", "")
    if not text:
        return NODES_DEFAULT
    number = int(text) if _NUMBER.fullmatch(text) else 0
    if not 0 < number <= NODES_MAX:
        raise RequestRefused(400, f"Number of nodes {_shown(text)}: expected 1 to {NODES_MAX}")
    return number


def _limit(call: Call, default: int) -> int:
    text = call.query.get("limit", "")
    if not text:
        return default
    number = int(text) if _NUMBER.fullmatch(text) else 0
    if not 0 < number <= external.OBJECTS_MAX:
        raise RequestRefused(400, f"Limit {_shown(text)}: expected 1 to {external.OBJECTS_MAX}")
    return number


def _seconds(call: Call) -> int:
    text = call.query.get("seconds", "")
    if not text:
        return inside.PROFILE_S
    number = int(text) if _NUMBER.fullmatch(text) else 0
    if not 0 < number <= inside.PROFILE_S_MAX:
        raise RequestRefused(400, f"Seconds {_shown(text)}: expected 1 to {inside.PROFILE_S_MAX}")
    return number


def _external_kind(call: Call) -> ExternalKind | None:
    text = call.query.get("kind", "")
    if text and text not in set(ExternalKind):
        raise RequestRefused(400, f"Kind {_shown(text)} is not known: expected one of {', '.join(ExternalKind)}")
    return ExternalKind(text) if text else None


def _after(call: Call) -> external.Place | None:
    """Where the last page ended, as that page said."""
    text = call.query.get("after", "")
    kind, slash, object_id = text.partition("/")
    if text and (not slash or kind not in set(ExternalKind)):
        raise RequestRefused(400, f'After {_shown(text)}: expected what the last page has as "next"')
    return (kind, object_id) if text else None


def _each(names: list[str], make: Callable[[str], Any]) -> Pieces:
    return render.listing(names, lambda name: iter([go_json(make(name))]))


def _name(escaped: str, rule: re.Pattern[str], what: str) -> str:
    """A user's or group's name in a path, which is unescaped once more than the path, as in the real core."""
    name = go.query_unescape(escaped)
    if name is None or not rule.match(name):
        raise RequestRefused(400, f"Invalid {what} name")
    return name


def _status(call: Call) -> Callable[[Application], bool]:
    wanted = call.query.get("status", "").lower()
    if not wanted:
        return lambda _: True
    if wanted not in _ACTIVE_STATES:
        raise RequestRefused(
            400,
            f"Application status {_shown(wanted)} is not known: expected one of {', '.join(sorted(_ACTIVE_STATES))}",
        )
    return lambda app: app.state.value.lower() == wanted


def _refusal(refused: RequestRefused) -> Answer:
    headers = {**_HEADERS, "Retry-After": "1"} if refused.status == _TRY_AGAIN else None
    return Answer(iter([error_body(refused.status, refused.message)]), refused.status, headers)


def _other_method(method: str, right: str) -> tuple[int, Mapping[str, str], bytes]:
    if method == "OPTIONS":
        return 200, _ALLOW[right], b""
    return 405, {**_ALLOW[right], **_TEXT}, b"Method Not Allowed\n"


def _redirect(path: str, query: str, status: int = 301) -> tuple[int, Mapping[str, str], bytes]:
    target = quote(path, safe="/:@!$&'()*+,;=~-._") + (f"?{query}" if query else "")
    link = target.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
    headers = {"Location": target, "Content-Type": "text/html; charset=utf-8"}
    return status, headers, f'<a href="{link}">{HTTPStatus(status).phrase}</a>.\n\n'.encode()


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def _names(states: Mapping[str, RmState]) -> str:
    return ", ".join(states)


# ---- HTTP ------------------------------------------------------------------------------------------------------------


def _gather(pieces: Pieces, used_up: Callable[[], bool]) -> Iterator[bytes]:
    """Pieces as chunks: of a useful size, or what there is when others must get a turn."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= _CHUNK_BYTES or used_up():
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def _query(scope: Scope) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True):
        query.setdefault(name, value)
    return query


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")


async def _body(receive: Receive, most: int) -> bytes:
    """A request's body, up to a byte more than ``most``: who reads it sees that it is too large."""
    gathered = bytearray()
    while len(gathered) <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        gathered += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(gathered[: most + 1])


def _accepts_gzip(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            for coding in value.decode("latin-1").split(","):
                what, _, quality = coding.partition(";")
                if what.strip().lower() in ("gzip", "*"):
                    return quality.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _compressed(chunks: list[bytes]) -> list[bytes]:
    compress = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    return [*(compress.compress(chunk) for chunk in chunks), compress.flush()]


async def _send_chunks(send: Send, status: int, headers: Mapping[str, str], chunks: list[bytes]) -> None:
    """A whole answer; a large one as its reader takes it."""
    size = sum(map(len, chunks))
    if size <= _SEND_BYTES:
        await _send(send, status, headers, b"".join(chunks))
        return
    raw = _raw({**headers, "Content-Length": str(size)})
    await send({"type": "http.response.start", "status": status, "headers": raw})
    for number, chunk in enumerate(chunks):
        chunks[number] = b""  # (it is not held any more)
        if chunk:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    raw = _raw({**headers, "Content-Length": str(len(body))})
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def cooperate(steps: Iterator[None], clock: Clock, slice_s: float) -> None:
    """Exhausts steps of work, with turns for others in between."""
    slice_ = Slice(clock, slice_s)
    for _ in steps:
        if slice_.used_up():
            await slice_.rest()
