"""Builds the service from followers, health and REST."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog
from muster_bus.clock import Clock, day_ns
from muster_bus.log import Log, end_of
from muster_bus.topics import Topics
from muster_core.external.reports import ExternalReports
from muster_rest.shapes.events import EventStreamDao
from muster_rest.shapes.measures import HealthDao
from muster_rest.system_health import ServiceFacts
from muster_runtime.http_server import HttpServer
from muster_runtime.positions import PositionWaits
from muster_runtime.service_lifecycle import ServiceLifecycle
from muster_state.state_folder import RmEntry
from muster_whatif.forecast.run_time_model import RunTimeHistory
from starlette.types import ASGIApp

from muster_view.fold_gate import FoldGate, cooperate
from muster_view.health import HealthCheck
from muster_view.metrics import metrics
from muster_view.metrics.object_counts import ObjectCounts
from muster_view.metrics.recent import RecentAllocations
from muster_view.metrics.yunikorn_metrics import RmSample
from muster_view.partition_follower import PartitionFollower
from muster_view.rest import external
from muster_view.rest.event_streams import EventStreamLister
from muster_view.rest.history import CountHistory
from muster_view.rest.object_states import RemovedObjects
from muster_view.rest.rest import ViewRest
from muster_view.settings import ViewSettings

log = structlog.get_logger(__name__)

# With enough processors, reads wait for some hundredths of a second.
_LATE_S = 0.1


class ViewService:
    """Follows every partition of ``si.state`` and answers REST. The view decides nothing and writes nothing.

    :param bus: started by the caller, who also closes it.
    :param with_others: the view shares its process with other services, and one of them exposes the process's metrics.
    :ivar asgi: the endpoints as an ASGI application, for another service that serves them.
    :ivar waits: of reads that name a position.
    """

    def __init__(
        self,
        settings: ViewSettings,
        bus: Log,
        topics: Topics,
        clock: Clock,
        *,
        with_others: bool = False,
    ) -> None:
        self.settings = settings
        self._log, self._topics, self._clock = bus, topics, clock
        self._gate = FoldGate(clock, settings.snapshot_hold_s)
        self._followers = [
            PartitionFollower(bus, topics, partition, settings, clock, self._gate)
            for partition in range(topics.partitions)
        ]
        self.waits = PositionWaits(
            "the view",
            settings.positions,
            self._followers,
            bus.identity,
            lambda partition: end_of(bus, topics.requests, partition),
        )
        self.asgi = ViewRest(self, settings, clock, self._gate, process_metrics=not with_others, waits=self.waits)
        self._history = CountHistory()
        self._streams = EventStreamLister(settings.publisher_url) if settings.publisher_url else None
        self._damaged: Callable[[], list[str]] = list
        self._health: dict[str | None, tuple[float, HealthDao]] = {}
        self._checking = asyncio.Lock()
        self._server: HttpServer | None = None
        self._rm_states = metrics.RmStateCollector(
            lambda: {rm_id: (state.info.life, state.info.paused) for rm_id, state in self.states().items()}
        )
        self._life = ServiceLifecycle("view")

    def is_late(self) -> bool:
        """Whether reads have waited for long for what is not folded yet."""
        return self._gate.is_awaited(_LATE_S)

    def asks(self, publisher: ASGIApp, damaged: Callable[[], list[str]]) -> None:
        """Uses the event publisher of this process instead of ``settings.publisher_url``.

        :param damaged: returns the damaged parts of the log that it passed over, one sentence each.
        """
        self._streams, self._damaged = EventStreamLister(publisher), damaged

    # ---- life ------------------------------------------------------------------------------------------------------

    @property
    def http_port(self) -> int | None:
        """The port that REST listens on; None when it does not."""
        return self._server.port if self._server is not None else None

    async def start(self) -> None:
        """Folds the present state and begins to follow; REST answers when this returns.

        Raises LogError; CodecError and DecodeError for a state that cannot be read; OSError for the port.
        """
        self._life.start()
        try:
            # 1. the present state
            await asyncio.gather(*(follower.start() for follower in self._followers))
            # 2. the HTTP server
            if self.settings.http_address:
                self._server = HttpServer(
                    self.asgi, self.settings.http_address, self.settings.stop_timeout_s, programs_only=True
                )
        except BaseException:
            await self._close()
            raise
        # 3. later records
        for follower in self._followers:
            self._life.spawn(follower.follow(), f"follow-{follower.partition}")
        self._life.spawn(self._sample(), "history")
        if self._server is not None:
            self._life.spawn(self._server.serve(), "http")
            await self._server.wait_started()
        self._rm_states.expose()
        log.info("view.started", rms=list(self.states()))

    async def wait(self) -> None:
        """Returns when the service has stopped. Raises the error that ended it."""
        await self._life.wait()

    async def stop(self) -> None:
        """Answers open requests, then ends."""
        if not self._life.begin_stop():
            return
        if self._server is not None:
            await self._server.stop()
        await self._close()
        self._life.finish()

    async def healthy(self) -> bool:
        """Whether everything works, if only up to a damaged part of the log; :meth:`facts` names each fault."""
        return not await self._hindrances()

    async def facts(self) -> ServiceFacts:
        """Whether the view works, and its problems."""
        hindrances = await self._hindrances()
        damaged = [follower.problem for follower in self._followers if follower.met_damage and follower.problem]
        behind = list(filter(None, [self._lagging(None)]))
        return ServiceFacts(serves=not hindrances, problems=[*damaged, *hindrances], behind=behind)

    async def _hindrances(self) -> list[str]:
        problems = [] if await self._log.healthy() else ["the log does not answer"]
        for follower in self._followers:
            if not follower.is_ready:
                problems.append(f"partition {follower.partition} is not folded yet")
            elif follower.problem and not follower.met_damage:
                problems.append(follower.problem)
        return [*problems, *filter(None, [self._lagging(None)])]

    async def _close(self) -> None:
        self._rm_states.hide()
        await self._life.cancel_tasks()
        if self._streams is not None:
            await self._streams.close()
        await self.asgi.close()
        for follower in self._followers:
            try:
                await follower.close()
            except Exception as error:
                log.warning("view.not_closed", partition=follower.partition, error=str(error))

    async def _sample(self) -> None:
        """Takes a sample of the history at once, and then every ``history_interval_s`` (a minute by default)."""
        while True:
            self._history.take(self.states(), day_ns(self._clock))
            await asyncio.sleep(self.settings.history_interval_s)

    # ---- for REST --------------------------------------------------------------------------------------------------

    def states(self) -> Mapping[str, RmEntry]:
        """The registered RMs, by id, sorted."""
        entries = [entry for follower in self._followers for entry in follower.rms.items()]
        return dict(sorted(entries)) if len(entries) > 1 else dict(entries)

    def external(self) -> Mapping[str, ExternalReports]:
        """The objects of external sources, sorted by RM id; also for RMs that have not registered."""
        reports = [
            rm_reports for follower in self._followers for rm_reports in follower.external.items() if rm_reports[1]
        ]
        return dict(sorted(reports))

    async def event_streams(self, rm_id: str) -> list[EventStreamDao]:
        """The open event streams of an RM, if the view knows an event publisher and it answers."""
        return await self._streams.of(rm_id) if self._streams is not None else []

    def rm_samples(self, rm_id: str | None = None) -> list[RmSample]:
        """The figures for metrics, of one RM; None: of all RMs, sorted by id."""
        samples = []
        for follower in self._of(rm_id):
            census = follower.census
            for candidate_id, state in follower.rms.items():
                if rm_id in (None, candidate_id):
                    partitions = tuple(
                        (partition, census.counts_of(partition)) for partition in state.core.partitions.values()
                    )
                    samples.append(RmSample(state, census.counts.get(candidate_id) or ObjectCounts(), partitions))
        return sorted(samples, key=lambda sample: sample.state.info.rm_id)

    def removed_objects(self, rm_id: str) -> RemovedObjects:
        """The last states of removed objects, in an RM's partition."""
        return self._of(rm_id)[0].departed

    def run_time_history(self, rm_id: str) -> RunTimeHistory | None:
        """An RM's allocations that ended since this process began to follow; None: none did."""
        return self._of(rm_id)[0].lengths.get(rm_id)

    def recent(self, rm_id: str) -> RecentAllocations:
        """An RM's allocations of the last minute."""
        return self._of(rm_id)[0].recent.get(rm_id) or RecentAllocations()

    def lag_records(self, rm_id: str | None = None) -> int:
        """The number of written records that are not folded yet, in an RM's partition; None: in all partitions."""
        return sum(follower.lag_records for follower in self._of(rm_id))

    def lag_s(self, rm_id: str | None = None) -> float:
        """The age of the newest folded record while there are newer ones: in an RM's partition; None: the highest of
        all.
        """
        now_ns = self._clock.now_ns()
        return max((follower.lag_s(now_ns) for follower in self._of(rm_id)), default=0.0)

    def log_partition(self, rm_id: str) -> int:
        """The log partition of an RM."""
        return self._topics.partition_of(rm_id)

    def history(self) -> CountHistory:
        """The numbers of applications and allocations over time."""
        return self._history

    def version(self) -> int:
        """A number that changes with the state: equal numbers mean an equal state."""
        return sum(follower.version for follower in self._followers)

    def is_partial(self, rm_id: str | None = None) -> bool:
        """Whether a transaction is only partly folded: in an RM's partition; None: in any."""
        return any(follower.is_partial for follower in self._of(rm_id))

    async def wait_fresh(self) -> None:
        """Returns between two folds, once all records that are visible now are folded. Returns after ``fresh_wait_s``
        at the latest; if a transaction is folded in part then, after another ``whole_wait_s``.
        """
        for follower in self._followers:
            follower.note_request()
        # A read that has its records finishes first, so records that were written before the request are included.
        await asyncio.sleep(0)
        ends = [(follower, follower.known_end()) for follower in self._followers]
        if all(follower.is_fresh(end) for follower, end in ends):
            return
        try:
            async with asyncio.timeout(self.settings.fresh_wait_s):
                for follower, end in ends:
                    await follower.wait_fresh(end)
        except TimeoutError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.whole_wait_s):
                    for follower in self._followers:
                        await follower.wait_whole()

    async def health(self, rm_id: str | None = None) -> HealthDao | None:
        """The health checks of one RM, or (None) of all; at most as old as configured. None: nothing is folded yet."""
        if not all(follower.is_ready for follower in self._followers):
            return None
        async with self._checking:
            made_s, result = self._health.get(rm_id, (float("-inf"), None))
            if result is None or self._clock.monotonic() - made_s >= self.settings.health_interval_s:
                result = await self._check(rm_id)
                self._health[rm_id] = (self._clock.monotonic(), result)
        return result

    async def _check(self, rm_id: str | None) -> HealthDao:
        states = self.states()
        chosen = list(states.values()) if rm_id is None else [states[rm_id]] if rm_id in states else []
        problems = [follower.problem for follower in self._of(rm_id) if follower.problem]
        lost = [
            sentence
            for candidate_id, books in self.external().items()
            if rm_id in (None, candidate_id)
            for sentence in external.lost(candidate_id, books)
        ]
        check = HealthCheck(chosen, problems, self._lagging(rm_id), lost, self._damaged())
        with self._gate.answering(), self._gate.block_folding():
            await cooperate(check.steps(), self._clock, self.settings.render_slice_ms / 1000)
        return check.result()

    def _lagging(self, rm_id: str | None) -> str:
        records, lag_s = self.lag_records(rm_id), self.lag_s(rm_id)
        if records <= self.settings.lag_records_max and lag_s <= self.settings.lag_s_max:
            return ""
        return f"the view is {records} records and {lag_s:.1f} s behind"

    def _of(self, rm_id: str | None) -> list[PartitionFollower]:
        if rm_id is None:
            return self._followers
        return [self._followers[self._topics.partition_of(rm_id)]]
