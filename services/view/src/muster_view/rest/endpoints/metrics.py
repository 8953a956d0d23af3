"""Figures: metrics, snapshots of them, history, and health."""

from __future__ import annotations

from itertools import chain

from muster_bus.clock import Clock, recorded_ns
from muster_core.config.queue_config import partition_name
from muster_rest.shapes.measures import ProcessHealthDao
from muster_runtime.exposition import SharedExposition
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from muster_view.errors import HttpError
from muster_view.metrics import yunikorn_metrics
from muster_view.rest import json_render, snapshot
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup
from muster_view.rest.parameters import checked_path, nodes_max, quote, sections
from muster_view.rest.snapshot import SnapshotQuery, ViewLag
from muster_view.rest.state_source import StateSource
from muster_view.settings import ViewSettings


class MetricEndpoints:
    """Answers with figures.

    :param process_metrics: True: the process's metrics come with the core's; False: another service exposes them.
    """

    def __init__(
        self, lookup: Lookup, source: StateSource, settings: ViewSettings, clock: Clock, *, process_metrics: bool
    ) -> None:
        self._lookup, self._source, self._settings, self._clock = lookup, source, settings, clock
        self._process_metrics = process_metrics
        self._exposition = SharedExposition()
        # The rendered metrics, by requested RM.
        self._seen: dict[str | None, yunikorn_metrics.HistoricTypes] = {}

    async def snapshot(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.find_rm(call, in_parts=True)
        name = partition_name(call.query.get("partition", ""), state.info.rm_id)
        partition = state.core.partitions.get(name)
        if partition is None or not call.reach.can_read_partition(state.info.rm_id, name):
            raise HttpError(404, f"Partition not found: {quote(name)}")
        path = call.query.get("queue", "")
        queue = partition.queues.get(checked_path(path)) if path else partition.root
        if queue is None:
            raise HttpError(404, f"Queue not found: {quote(path)}")
        query = SnapshotQuery(sections(call), partition, queue, nodes_max(call))
        lag = ViewLag(self._source.lag_records(state.info.rm_id), self._source.lag_s(state.info.rm_id))
        recent = self._source.recent(state.info.rm_id)
        now_ns = recorded_ns(self._clock, state.info.clock)
        description = self._lookup.described(call, state, now_ns)
        return HttpAnswer(snapshot.snapshot(state, query, lag, recent, now_ns, description))

    async def core_metrics(self, call: HttpCall) -> HttpAnswer:
        # A scraper names no RM, so the answer has all RMs.
        state = self._lookup.rm(call) if call.query.get("rm") else None
        rm_id = state.info.rm_id if state is not None else None
        historic_types = self._seen.setdefault(rm_id, yunikorn_metrics.HistoricTypes())
        states = self._source.states()
        for gone in [key for key in self._seen if key is not None and key not in states]:
            del self._seen[gone]
        of_process_too = self._process_metrics
        by_name = self._settings.queue_metrics_by_name
        counted = self._source.rm_samples(rm_id)
        if not call.reach.is_all:
            counted = [sample for sample in counted if call.reach.can_read_all_of(sample.state.info.rm_id)]
            historic_types, of_process_too = yunikorn_metrics.HistoricTypes(), False
        text = yunikorn_metrics.exposition(counted, historic_types, by_name=by_name)
        of_process = (generate_latest() for _ in range(of_process_too))  # when its turn comes
        return HttpAnswer(chain(text, of_process), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def metrics(self, _call: HttpCall) -> HttpAnswer:
        async with self._exposition as text:
            return HttpAnswer(iter([text]), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def history_applications(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.rm(call)
        return HttpAnswer(
            json_render.body(self._source.history().applications(state.info.rm_id) if state is not None else [])
        )

    async def history_containers(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.rm(call)
        return HttpAnswer(
            json_render.body(self._source.history().containers(state.info.rm_id) if state is not None else [])
        )

    async def healthcheck(self, call: HttpCall) -> HttpAnswer:
        # A probe names no RM, so the answer covers all RMs.
        state = self._lookup.rm(call) if call.query.get("rm") or not call.reach.is_all else None
        health = await self._source.health(state.info.rm_id if state is not None else None)
        if health is None:
            raise HttpError(404, "Health check is not available")
        return HttpAnswer(json_render.body(health))

    async def live(self, _call: HttpCall) -> HttpAnswer:
        return HttpAnswer(json_render.body(ProcessHealthDao(healthy=True, problems=[])))

    async def health(self, _call: HttpCall) -> HttpAnswer:
        facts = await self._source.facts()
        body = ProcessHealthDao(healthy=not facts.problems, problems=list(facts.problems), behind=list(facts.behind))
        return HttpAnswer(json_render.body(body), 200 if facts.serves else 503)
