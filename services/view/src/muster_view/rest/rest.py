"""REST: answers ``/ws/v1/*`` like YuniKorn's core, from the state that the followers have folded.

Bodies, statuses and headers are those of YuniKorn's core; docs/rest.md says where they differ. The routes are those of
``muster_rest.view_routes``; here each gets its endpoint. ``?rm=`` names the resource manager; it is needed only when
    several
are possible (``muster_runtime.default_rm``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster_bus.clock import Clock
from muster_queue_config.sandboxed_parser import SandboxedParser
from muster_rest.route import Route
from muster_rest.view_routes import VIEW
from muster_runtime.positions import PositionWaits

from muster_view.fold_gate import FoldGate
from muster_view.rest.endpoints.applications import ApplicationEndpoints
from muster_view.rest.endpoints.explanations import ExplainEndpoints
from muster_view.rest.endpoints.external import ExternalEndpoints
from muster_view.rest.endpoints.metrics import MetricEndpoints
from muster_view.rest.endpoints.nodes import NodeEndpoints
from muster_view.rest.endpoints.partitions import PartitionEndpoints
from muster_view.rest.endpoints.process import ProcessEndpoints, moved
from muster_view.rest.endpoints.queues import QueueEndpoints
from muster_view.rest.endpoints.resource_managers import RmEndpoints
from muster_view.rest.endpoints.states import StateEndpoints
from muster_view.rest.endpoints.usage import UsageEndpoints
from muster_view.rest.http_engine import HttpEngine
from muster_view.rest.http_messages import Endpoint
from muster_view.rest.lookup import Lookup
from muster_view.rest.state_source import StateSource
from muster_view.rest.yaml_executor import YamlExecutor
from muster_view.settings import ViewSettings


class ViewRest(HttpEngine):
    """The endpoints, as one ASGI application.

    :param process_metrics: True: the process's metrics come with the core's; False: another service exposes them.
    :param routes: the routes that it answers.
    :param more: endpoints beside the view's own, by the handler that a route names.
    :param waits: of reads that name a position; None: positions are passed over.
    """

    def __init__(
        self,
        source: StateSource,
        settings: ViewSettings,
        clock: Clock,
        gate: FoldGate,
        *,
        process_metrics: bool = True,
        routes: Iterable[Route] = VIEW,
        more: Mapping[str, Endpoint] | None = None,
        waits: PositionWaits | None = None,
    ) -> None:
        lookup, yaml = Lookup(source), YamlExecutor()
        self._judge = SandboxedParser(settings.queue_config)
        self._explanations = ExplainEndpoints(lookup, source, settings, clock, gate)
        subjects = {
            "applications": ApplicationEndpoints(lookup),
            "explanations": self._explanations,
            "external": ExternalEndpoints(lookup, source),
            "figures": MetricEndpoints(lookup, source, settings, clock, process_metrics=process_metrics),
            "managers": RmEndpoints(lookup, source, yaml, self._judge, clock),
            "nodes": NodeEndpoints(lookup),
            "partitions": PartitionEndpoints(lookup),
            "process": ProcessEndpoints(),
            "queues": QueueEndpoints(lookup),
            "states": StateEndpoints(lookup, source, yaml, clock),
            "usage": UsageEndpoints(lookup),
        }

        def endpoint(route: Route) -> Endpoint:
            if route.moved_to:
                return moved(route.moved_to)
            if more is not None and route.handler in more:
                return more[route.handler]
            subject, _, name = route.handler.partition(".")
            handler: Endpoint = getattr(subjects[subject], name)
            return handler

        super().__init__([(route, endpoint(route)) for route in routes], source, settings, clock, gate, waits)

    async def close(self) -> None:
        """Ends the processes that read configurations and make forecasts."""
        await self._explanations.close()
        await self._judge.close()
