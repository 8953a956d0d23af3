"""Explanations of pending asks, applications, nodes and preemption: ``/ws/v1/explain/*`` (docs/explain.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from muster_bus.clock import Clock, recorded_ns
from muster_core.model.application import Application, Ask
from muster_core.partition import Partition
from muster_state import snapshot
from muster_state.snapshot import Entry
from muster_state.state_folder import RmEntry
from muster_whatif.errors import ForecastBusy, ForecastUnavailable
from muster_whatif.forecast.forecaster import AskName, Forecaster, ForecastInput, ForecastReply

from muster_view.errors import HttpError
from muster_view.explain import (
    asks,
    forecast,
)
from muster_view.explain import (
    futures as explain_futures,
)
from muster_view.explain import (
    node as explain_node,
)
from muster_view.explain import (
    preemption as explain_preemption,
)
from muster_view.explain import (
    queue as explain_queue,
)
from muster_view.fold_gate import FoldGate, TimeSlice
from muster_view.rest import json_render
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup
from muster_view.rest.parameters import queue_path, since
from muster_view.rest.state_source import StateSource
from muster_view.settings import ViewSettings


@contextmanager
def _refusals() -> Iterator[None]:
    """Answers 503 where a forecaster refuses. Raises HttpError."""
    try:
        yield
    except (ForecastBusy, ForecastUnavailable) as error:
        raise HttpError(503, str(error)) from None


class ExplainEndpoints:
    """The endpoints of explanations. Without a partition in the request they search all partitions."""

    def __init__(
        self, lookup: Lookup, source: StateSource, settings: ViewSettings, clock: Clock, gate: FoldGate
    ) -> None:
        self._lookup, self._source, self._settings, self._clock, self._gate = lookup, source, settings, clock, gate
        self._forecaster = Forecaster(settings.forecast)

    async def close(self) -> None:
        """Ends the process that makes a forecast."""
        await self._forecaster.close()

    def _now_ns(self, state: RmEntry) -> int:
        """Returns the recorded time of the RM's scheduler: objects have its times."""
        return recorded_ns(self._clock, state.info.clock)

    async def pending(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.find_rm(call)
        return HttpAnswer(asks.pending(state, self._now_ns(state)))

    async def summary(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.find_rm(call)
        description = self._lookup.described(call, state, self._now_ns(state))
        return HttpAnswer(json_render.body(asks.summary(state, description)))

    async def ask(self, call: HttpCall) -> HttpAnswer:
        state, partition, ask = self._ask(call)
        return HttpAnswer(json_render.body(asks.ask(state, partition, ask, self._now_ns(state))))

    async def when(self, call: HttpCall) -> HttpAnswer:
        state, partition, ask = self._ask(call)
        pause, now_ns = asks.pause_of(state), self._now_ns(state)
        if pause is not None:
            return HttpAnswer(json_render.body(forecast.paused(partition.name, ask, now_ns, pause.clause())))
        reply = await self._forecast(state.info.rm_id, ask.created_ns)
        # (The ask may have started, or ended with its application or its RM, while the forecast was made.)
        state, partition, ask = self._ask(call)
        now_ns = self._now_ns(state)
        if reply is None or reply.at_ns < ask.created_ns:
            return HttpAnswer(json_render.body(forecast.not_ready(partition.name, ask, now_ns)))
        return HttpAnswer(json_render.body(forecast.answer(partition.name, ask, reply, now_ns)))

    async def _forecast(self, rm_id: str, since_ns: int) -> ForecastReply | None:
        """The forecast of an RM; None: it is still being made. Raises HttpError."""
        with _refusals():
            return await self._forecaster.forecast(rm_id, lambda: self._present(rm_id), since_ns=since_ns)

    async def row_when(self, call: HttpCall) -> HttpAnswer:
        state, row = self._row(call, since(call))
        pause, now_ns = asks.pause_of(state), self._now_ns(state)
        if pause is not None:
            return HttpAnswer(json_render.body(forecast.row_unknown(row, now_ns, pause.clause())))
        reply = await self._forecast(state.info.rm_id, row.since_ns)
        # (The application may have changed, or ended, while the forecast was made.)
        state, row = self._row(call, row.since_ns, reply)
        now_ns = self._now_ns(state)
        if reply is None:
            return HttpAnswer(json_render.body(forecast.row_making(row, now_ns)))
        return HttpAnswer(json_render.body(forecast.row_explained(row, reply, now_ns)))

    def _row(self, call: HttpCall, since_ns: int, reply: ForecastReply | None = None) -> tuple[RmEntry, forecast.Row]:
        """The asks that a request is about. If their application is not there any more: those that a forecast has.

        :param since_ns: 0: the newest of the asks.
        """
        app_id, reason = call.path["application"], call.query.get("reason", "")
        try:
            state, partition, app = self._explained(call, ended=True)
        except HttpError:
            state = self._lookup.find_rm(call, in_parts=True)
            partitions = [candidate.name for candidate in self._lookup.partitions_of(call, state)]
            had = [
                candidate
                for candidate in partitions
                if reply is not None and any(reply.of_application(candidate, app_id))
            ]
            if (reply is not None and not had) or not since_ns or not partitions:
                raise
            return state, forecast.Row((had or partitions)[0], app_id, None, reason, since_ns)
        if not since_ns:
            codes = list(asks.reasons(app, pause=asks.pause_of(state), turns=asks.turns_of(state)))
            since_ns = forecast.row_since_ns(app, codes, reason)
        return state, forecast.Row(partition.name, app_id, app, reason, since_ns)

    async def futures(self, call: HttpCall) -> HttpAnswer:
        state, partition = self._compared(call)
        most = self._settings.queue_config.max_bytes
        if len(call.body) > most:
            raise HttpError(400, f"body: over {most:,} bytes, expected a queue configuration")
        try:
            config = call.body.decode()
        except UnicodeDecodeError as error:
            raise HttpError(400, f"body: no UTF-8 at byte {error.start}") from None
        pause = asks.pause_of(state)
        if pause is not None:
            return HttpAnswer(json_render.body(explain_futures.paused(partition, self._now_ns(state), pause.clause())))
        rm_id = state.info.rm_id
        with _refusals():
            reply = await self._forecaster.futures(rm_id, config, lambda: self._present(rm_id))
        state, partition = self._compared(call)  # (either may have ended meanwhile)
        if reply is None:
            return HttpAnswer(json_render.body(explain_futures.not_ready(partition, self._now_ns(state))))
        return HttpAnswer(json_render.body(explain_futures.answer(partition, reply)))

    def _compared(self, call: HttpCall) -> tuple[RmEntry, str]:
        """The RM and the partition whose futures a request compares."""
        state = self._lookup.find_rm(call, in_parts=True)
        partition = next((candidate.name for candidate in self._lookup.partitions_of(call, state)), "")
        if not partition:
            raise HttpError(404, "Partition not found")
        return state, partition

    async def _present(self, rm_id: str) -> ForecastInput | None:
        """Takes a snapshot of an RM, in slices; folding waits meanwhile, up to its limit. None: there is no such RM.

        It runs when a forecast has its turn, perhaps long after the answer that began it: the RM may be another one
        then, or forgotten. What the fold drops stays whole, as for an answer.
        """
        await self._source.wait_fresh()
        with self._gate.answering(), self._gate.block_folding():
            state = self._source.states().get(rm_id)
            if state is None:
                return None
            now_ns = max(self._now_ns(state), state.info.last_decided_ns)
            taken: list[Entry] = []
            remaining_bytes = self._settings.forecast.state_bytes_max
            slice_ = TimeSlice(self._clock, self._settings.render_slice_ms / 1000)
            for entry in snapshot.entries(state):
                taken.append(entry)
                remaining_bytes -= len(entry[0]) + len(entry[1])
                if remaining_bytes < 0:
                    return ForecastInput(now_ns, None)
                if slice_.is_over():
                    await slice_.yield_loop()
            reasons = await self._reasons(state, slice_)
        return ForecastInput(now_ns, taken, self._source.run_time_history(rm_id), reasons)

    async def _reasons(self, state: RmEntry, slice_: TimeSlice) -> dict[AskName, str]:
        """Why each ask of an RM is pending."""
        pause, turns = asks.pause_of(state), asks.turns_of(state)
        reasons: dict[AskName, str] = {}
        for partition in list(state.core.partitions.values()):  # (folding may go on beside this)
            for app in [app for app in partition.apps.values() if app.asks]:
                for ask, code in asks.reasons(app, pause=pause, turns=turns):
                    reasons[partition.name, app.app_id, ask.key] = code
                if slice_.is_over():
                    await slice_.yield_loop()
        return reasons

    async def application(self, call: HttpCall) -> HttpAnswer:
        state, partition, app = self._explained(call, ended=True)
        return HttpAnswer(asks.application(state, partition, app, self._now_ns(state)))

    async def queue(self, call: HttpCall) -> HttpAnswer:
        path = queue_path(call)
        state = self._lookup.find_rm(call, in_parts=True)
        for partition in self._lookup.partitions_of(call, state):
            queue = partition.queues.get(path)
            if queue is not None:
                pause, pauses = asks.pause_of(state), asks.past_pauses(state)
                now_ns, turns = self._now_ns(state), asks.turns_of(state)
                explanation = explain_queue.explain(partition, queue, now_ns, pause=pause, pauses=pauses, turns=turns)
                return HttpAnswer(json_render.body(explanation))
        raise HttpError(404, "Queue not found")

    async def node(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.find_rm(call, in_parts=True)
        for partition in self._lookup.partitions_of(call, state):
            node = partition.nodes.get(call.path["node"])
            if node is not None:
                pause, books = asks.pause_of(state), state.core.external
                now_ns = self._now_ns(state)
                turns = asks.turns_of(state)
                return HttpAnswer(
                    explain_node.explain(partition, node, now_ns, pause=pause, external=books, turns=turns)
                )
        raise HttpError(404, "Node not found")

    async def preempted(self, call: HttpCall) -> HttpAnswer:
        state = self._lookup.find_rm(call)
        ended = self._source.removed_objects(state.info.rm_id).preempted(state.info.rm_id)
        return HttpAnswer(asks.preempted(state, self._now_ns(state), ended))

    async def preemption(self, call: HttpCall) -> HttpAnswer:
        state, partition, app = self._explained(call)
        allocation = app.allocations.get(call.path["key"])
        if allocation is None:
            raise HttpError(404, "Allocation not found")
        explanation = asks.preemption(partition, allocation, self._now_ns(state))
        if explanation is None:
            raise HttpError(404, explain_preemption.no_preemption(allocation))
        return HttpAnswer(json_render.body(explanation))

    async def preempted_allocation(self, call: HttpCall) -> HttpAnswer:
        """Finds a preempted allocation by its key or UUID alone: few allocations are preempted at a time."""
        state, name = self._lookup.find_rm(call, in_parts=True), call.path["allocation"]
        partitions = self._lookup.partitions_of(call, state)
        matches = [
            (candidate, allocation) for candidate in partitions for allocation in asks.preempted_named(candidate, name)
        ]
        if not matches:
            raise HttpError(404, "Allocation not found among those that were preempted and are still there")
        if len(matches) > 1:
            apps = sorted({allocation.app_id for _, allocation in matches})
            hint = "say which: /ws/v1/explain/preemption/{application}/{key}, ?partition="
            raise HttpError(400, f"Allocation {name!r} is in {len(matches)} applications, {', '.join(apps)}: {hint}")
        ((partition, allocation),) = matches
        return HttpAnswer(json_render.body(asks.preemption(partition, allocation, self._now_ns(state))))

    def _ask(self, call: HttpCall) -> tuple[RmEntry, Partition, Ask]:
        """The pending ask that the path names."""
        state, partition, app = self._explained(call)
        ask = app.asks.get(call.path["key"])
        if ask is None:
            raise HttpError(404, asks.no_ask(app, call.path["key"], self._now_ns(state)))
        return state, partition, ask

    def _explained(self, call: HttpCall, *, ended: bool = False) -> tuple[RmEntry, Partition, Application]:
        """The application that the path names, in the partition that ``?partition=`` names, else in any.

        :param ended: if there is no other, an application that has ended or was rejected, as long as it is remembered.
        """
        state, app_id = self._lookup.find_rm(call, in_parts=True), call.path["application"]
        partitions = self._lookup.partitions_of(call, state)
        for partition in partitions:
            app = partition.live_application(app_id)
            if app is not None:
                return state, partition, app
        for partition in partitions:
            app = asks.find_finished(partition, app_id)
            if app is not None and not ended:
                raise HttpError(404, f"Application not found: it {asks.end_clause(app, self._now_ns(state))}")
            if app is not None:
                return state, partition, app
        raise HttpError(404, "Application not found")
