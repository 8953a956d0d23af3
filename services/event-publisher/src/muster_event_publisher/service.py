"""The event publisher as a service: it builds the followers, rings, REST, gRPC and exporters, and runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import structlog
from muster_bus.clock import Clock
from muster_bus.damage import DamagedParts, PassingReaders
from muster_bus.log import Log, end_of
from muster_bus.membership import FixedMembership, GroupLog, GroupTerms, Membership
from muster_bus.topics import Topics
from muster_rest.publisher_routes import USAGE
from muster_rest.system_health import ServiceFacts
from muster_runtime.backoff import aligned_s
from muster_runtime.http_server import HttpServer
from muster_runtime.positions import PositionWaits
from muster_runtime.service_lifecycle import ServiceLifecycle, gather_all
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from muster_event_publisher import metrics
from muster_event_publisher.derive.usage_rest import UsageRest
from muster_event_publisher.ended.rest import EndedRest
from muster_event_publisher.ended.search import EndedSearch
from muster_event_publisher.event_source import EventSource
from muster_event_publisher.feed import PartitionFeed
from muster_event_publisher.grpc_events import EventsServer, EventsService
from muster_event_publisher.grpc_watch import EventHub, WatchLimits
from muster_event_publisher.history.dead_letters import DeadLetters
from muster_event_publisher.history.exporter import ExportBackoff, Exporter
from muster_event_publisher.history.exports import ExportManager
from muster_event_publisher.history.registry import SinkPlan, readers_of, sinks_of
from muster_event_publisher.log_search import LogSearch
from muster_event_publisher.object_states import ObjectStates
from muster_event_publisher.old_read_limiter import OldReadLimiter
from muster_event_publisher.request_store import RequestStores
from muster_event_publisher.rest import EventsRest
from muster_event_publisher.rest_streams import EventStreams, StreamLimits
from muster_event_publisher.ring import EventRing, Rings
from muster_event_publisher.rm_settings import RmSettings
from muster_event_publisher.settings import PublisherSettings
from muster_event_publisher.shown import ShownEvents, ShownUsage
from muster_event_publisher.startup_gate import StartupFill

log = structlog.get_logger(__name__)

# At stop, open REST answers get this long to end. Event streams are stopped before and end at once.
_HTTP_STOP_S = 5.0
_HEALTH_INTERVAL_S = 1.0
# Others of the process open their doors meanwhile: each step of the filling would delay each step of theirs.
_OTHERS_FIRST_S = 0.1
_BEATS = 10  # signs of life in a session


class _Closable(Protocol):
    async def close(self) -> None: ...


class PublisherService:
    """Follows every partition of ``si.events`` and publishes each event.

    Each partition has one plain reader, without a consumer group. The publisher stores no offsets: it fills the rings
    from the log at start, and each sink knows its own progress. Any number of publishers can run on one log: REST and
    gRPC of each are complete, and they share the exports out (``history/exports.py``).

    :param log: started by the caller, who also closes it.
    :param sinks: stores for history with their policies; None: those that the settings name.
    :param usage: answers ``/ws/v1/usage``; started by the caller. None: nobody does.
    :param extra_routes: routes that REST serves beside those of the events.
    :param view: an application in this process that answers in place of ``settings.view_url``.
    :param default_rm: ``gateway.default_rm``, where callers of muster.v1.Events reach this process directly; None: the
        gateway sends it with each call.
    :param fills_beside: :meth:`start` does not wait for the rings; requests for events do.
    :ivar old_reads: the reads of events older than the rings: those that run, and those that wait.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        log: Log,
        topics: Topics,
        clock: Clock,
        *,
        sinks: Sequence[SinkPlan] | None = None,
        usage: UsageRest | None = None,
        extra_routes: Sequence[BaseRoute] = (),
        view: ASGIApp | None = None,
        default_rm: str | None = None,
        fills_beside: bool = False,
    ) -> None:
        self.settings = settings
        self._log, self._topics, self._clock = log, topics, clock
        self._damage = DamagedParts("the events in them are not shown, exported or counted")
        readers = PassingReaders(log, self._damage)
        self.rm_settings = RmSettings(readers, topics, settings, self._settings_changed)
        self.rings = Rings(self.rm_settings.ring_capacity)
        self._filling = StartupFill(over=not fills_beside)
        self._fills: asyncio.Task[None] | None = None
        partitions = range(topics.partitions)
        self.requests = RequestStores(lambda rm_id: self.rm_settings.settings_for(rm_id).request_store_capacity)
        self._feeds = [
            PartitionFeed(
                p,
                readers,
                topics.events,
                self.rings,
                settings,
                self.requests.add,
                partial(self.rm_settings.registered, p),
            )
            for p in partitions
        ]
        self.rm_settings.event_progress = shown = [ShownEvents(feed, self.rings) for feed in self._feeds]
        self._waits = PositionWaits(
            "the event publisher",
            settings.positions,
            shown,
            log.identity,
            lambda partition: end_of(log, topics.requests, partition),
        )
        self._searches = [LogSearch(readers, topics.events, p, settings.log_search_records_max) for p in partitions]
        limits = StreamLimits(
            settings.max_streams, settings.max_streams_per_host, settings.stream_lag_records_max,
            settings.stream_stall_s, settings.keepalive_s,
        )  # fmt: skip
        self._streams = EventStreams(limits, clock, self._stream_limits)
        old = settings.serve_from_log
        self._readers = readers_of(settings, topics, clock) if old else []
        self.old_reads = OldReadLimiter(
            settings.old_reads_max, settings.old_reads_waiting_max, settings.old_reads_wait_s
        )
        searches = self._searches if old else []
        source = EventSource(self.rings, searches, topics, self._readers, self.rm_settings, self.old_reads)
        target = view or settings.view_url
        self._states = ObjectStates(target, clock, lambda: self._streams.stopping) if target else None
        ended = EndedRest(source, EndedSearch(self.rings, self._readers))
        routes, waits_at = [*extra_routes, *ended.routes], {}
        if usage is not None:
            usage.stopped_by_rm = self.rm_settings.stopped_by_rm
            routes += usage.routes
            shown_usage = [
                ShownUsage(events, partial(self._rings_of, p), usage.table) for p, events in enumerate(shown)
            ]
            waits_at[USAGE.path] = self._waits.of("usage", shown_usage)
        self._rest = EventsRest(
            source, self._streams, settings, self.service_facts, routes, self._states, self.facts, self._filling,
            self._waits, waits_at,
        )  # fmt: skip
        self.asgi = self._rest.app
        watch_limits = WatchLimits(
            settings.stream_lag_records_max, settings.stream_stall_s, settings.keepalive_s,
            settings.request_push_interval_s,
        )  # fmt: skip
        self._hub = EventHub(source, self.requests, watch_limits, clock, self.rm_settings.app_queues)
        self.events_service = EventsService(self._hub, settings.trusted_proxies, default_rm, self._filling, self._waits)
        self._grpc_server: EventsServer | None = None
        plans = sinks if sinks is not None else sinks_of(settings, topics, clock)
        retry = ExportBackoff(
            settings.retry_min_s, settings.retry_max_s, settings.refusals_max, settings.dead_letters_in_a_row_max
        )
        self._dead_letters = DeadLetters(log, topics)
        self._sinks = [sink for sink, _ in plans]

        def exporters_of(partition: int) -> list[Exporter]:
            feed = self._feeds[partition]
            return [
                Exporter(sink, feed, readers, topics.events, policy, retry, clock, self._dead_letters, self._damage)
                for sink, policy in plans
            ]

        self._exports = ExportManager(self._membership(), self._sinks, exporters_of)
        self._follow_tasks: list[asyncio.Task[None]] = []
        self._server: HttpServer | None = None
        self._lifecycle = ServiceLifecycle("event publisher")

    @property
    def http_port(self) -> int | None:
        """The port of REST; None: REST does not listen."""
        return self._server.port if self._server is not None else None

    @property
    def grpc_port(self) -> int | None:
        """The port of muster.v1.Events; None: it does not listen."""
        return self._grpc_server.port if self._grpc_server is not None else None

    @property
    def open_watches(self) -> int:
        """How many calls of muster.v1.Events/Watch are open."""
        return len(self._hub.open)

    @property
    def open_streams(self) -> int:
        """How many event streams are open."""
        return len(self._streams.open)

    async def start(self) -> None:
        """Fills the rings and begins to follow; REST answers when this returns. Raises LogError and OSError.

        With ``fills_beside`` both go on after this returns.
        """
        self._lifecycle.start()
        if self._filling.over:
            await self._follow()
            self._lifecycle.spawn(self._measure(), "measure")
        else:
            self._fills = self._lifecycle.spawn(self._follow_and_measure(), "measure")
        # gRPC and REST open last
        if self.settings.grpc_address:
            self._grpc_server = EventsServer(self.events_service, self.settings.grpc_address, self.healthy)
            await self._grpc_server.start()
            self._lifecycle.spawn(self._grpc_server.watch_health(_HEALTH_INTERVAL_S), "health")
        if self.settings.http_address:
            self._server = HttpServer(self.asgi, self.settings.http_address, _HTTP_STOP_S, programs_only=True)
            self._lifecycle.spawn(self._server.serve(), "http")
            await self._server.wait_started()
        log.info("event publisher started", rms=self.rings.rm_ids(), sinks=[sink.name for sink in self._sinks])

    async def _follow_and_measure(self) -> None:
        await asyncio.sleep(_OTHERS_FIRST_S)
        began_s = self._clock.monotonic()
        await self._follow()
        took_s = round(self._clock.monotonic() - began_s, 2)
        log.info("events are served", rms=self.rings.rm_ids(), filled_in_s=took_s)
        self._filling.end()
        await self._measure()

    async def _follow(self) -> None:
        # 1. first fill the rings, in the size that each RM wants, so that the first callers get the history
        await self.rm_settings.start()
        await gather_all(feed.start() for feed in self._feeds)
        # 2. then the tasks that follow the log
        self._follow_tasks = [self._lifecycle.spawn(feed.follow(), f"follow-{feed.partition}") for feed in self._feeds]
        await self._exports.start()
        self._lifecycle.spawn(self._exports.run(), "exports")
        for feed in self._feeds:
            self._lifecycle.spawn(self.rm_settings.follow(feed.partition), f"settings-{feed.partition}")
        self._lifecycle.spawn(self._streams.watch(), "streams")
        self._lifecycle.spawn(self._hub.run_watchdog(), "watches")

    async def wait(self) -> None:
        """Returns when the service has stopped. Raises the error that ended it."""
        await self._lifecycle.wait()

    async def stop(self) -> None:
        """Exports the events that are on the log now, within ``stop_timeout_s``; the next start reads the rest."""
        if not self._lifecycle.begin_stop():
            return
        if self._filling.over:
            await self._finish()
        else:
            await self._stop_filling()
        # 2. gRPC and REST close last, so that streams can take the last events
        self._streams.stopping = True
        self._hub.stop()
        self.rings.wake_all()
        if self._grpc_server is not None:
            await self._grpc_server.stop()
        if self._server is not None:
            await self._server.stop()
        await self._close()
        self._lifecycle.finish()

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self.settings.stop_timeout_s):
                # 1. the followers read to the log's end, then the exporters write it
                await gather_all(map(self._stop_following, self._feeds, self._follow_tasks))
                await self._exports.finish()
        except TimeoutError:
            log.warning("stopped before everything was exported; the rest will be read from the log")
        except Exception as error:
            log.warning("stopped with an error", error=str(error))

    async def _stop_filling(self) -> None:
        """Ends the filling. The next start exports what is on the log now."""
        self._filling.stop()
        if self._fills is not None:
            self._fills.cancel()
            await asyncio.gather(self._fills, return_exceptions=True)

    async def abandon(self) -> None:
        """Ends at once without writing anything, like a crash. For tests."""
        self._lifecycle.begin_stop()
        self._streams.stopping = True
        if self._server is not None:
            self._server.kill()
        if self._grpc_server is not None:
            await self._grpc_server.kill()
        await self._close()

    async def healthy(self) -> bool:
        """Whether everything works, if only behind a damaged part of the log; :meth:`problems` names each fault."""
        return not await self._hindrances()

    async def problems(self) -> list[str]:
        """The faults of this moment, one sentence each."""
        return await self._hindrances() + self.damaged()

    async def service_facts(self) -> ServiceFacts:
        """Whether everything works, and the problems."""
        hindrances = await self._hindrances()
        problems = [*hindrances, *self.damaged()]
        return ServiceFacts(serves=not hindrances, problems=problems, behind=self._exports.problems)

    def damaged(self) -> list[str]:
        """The damaged parts of the log that were passed over, one sentence each."""
        return self._damage.problems()

    async def _hindrances(self) -> list[str]:
        problems = [] if await self._log.healthy() else ["the log does not answer"]
        if not self._filling.over:  # requests for events wait: nothing is wrong
            return problems
        problems += [f"partition {feed.partition} is not followed" for feed in self._feeds if not feed.healthy]
        problems += self.rm_settings.problems
        return problems + self._exports.problems

    def facts(self) -> dict[str, object]:
        """What this publisher exports, for people; without a store nothing."""
        if not self._sinks:
            return {}
        exports = self._exports
        return {"event-publisher": {"exports": exports.partitions, "publishers": exports.publishers}}

    def _membership(self) -> Membership:
        settings, log, topics = self.settings, self._log, self._topics
        if not settings.group or not isinstance(log, GroupLog):
            return FixedMembership(range(topics.partitions))
        timeout_s = settings.session_timeout_s
        terms = GroupTerms(settings.group, topics.events, topics.partitions, 0, timeout_s, timeout_s / _BEATS)
        return log.membership(terms, self._clock)

    async def _stop_following(self, feed: PartitionFeed, task: asyncio.Task[None]) -> None:
        if await feed.stop_at_end():
            task.cancel()  # the service waits for events that are not written any more
        await asyncio.wait({task})

    async def _close(self) -> None:
        await self._lifecycle.cancel_tasks()
        parts: list[_Closable] = [
            self._exports, *self._feeds, *self._searches, *self._readers, *self._sinks,
            self._dead_letters, self.rm_settings,
        ]  # fmt: skip
        if self._states is not None:
            parts.append(self._states)
        for part in parts:
            try:
                await part.close()
            except Exception as error:
                log.warning("could not close", part=type(part).__name__, error=str(error))

    def _rings_of(self, partition: int) -> list[EventRing]:
        return [ring for ring in self.rings.all() if self._topics.partition_of(ring.rm_id) == partition]

    def _settings_changed(self, rm_id: str) -> None:
        self.rings.resize(rm_id)
        self.requests.resize(rm_id)

    def _stream_limits(self, rm_id: str) -> tuple[int, int]:
        settings = self.rm_settings.settings_for(rm_id)
        return settings.max_streams, settings.max_streams_per_host

    async def _measure(self) -> None:
        """Measures the lag every 5 s only: the end offset costs a round trip to the log."""
        while True:
            await asyncio.sleep(aligned_s(5.0))
            for feed in self._feeds:
                metrics.FOLLOW_LAG.labels(str(feed.partition)).set(await feed.lag())
            for ring in self.rings.all():
                metrics.RING_BYTES.labels(ring.rm_id).set(ring.size_bytes)
