"""Applications, of a partition or of a queue."""

from __future__ import annotations

from muster_core.model.application import Application
from muster_core.partition import Partition

from muster_view.errors import HttpError
from muster_view.rest import dao, json_render
from muster_view.rest.http_messages import HttpAnswer, HttpCall
from muster_view.rest.lookup import Lookup
from muster_view.rest.parameters import queue_path, quote, status, unescaped_queue


class ApplicationEndpoints:
    """Answers about applications."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def queue_applications(self, call: HttpCall) -> HttpAnswer:
        queue_path(call)  # (Here YuniKorn checks the name before the partition.)
        partition, queue = self._lookup.leaf(call)
        return _applications(partition, partition.apps_in(queue))

    async def queue_applications_in(self, call: HttpCall) -> HttpAnswer:
        partition, queue = self._lookup.leaf(call)
        if call.path["state"].lower() != "active":
            raise HttpError(400, f"Application state {quote(call.path['state'])} is not known: expected active")
        has_status = status(call)
        return _applications(partition, [app for app in partition.apps_in(queue) if has_status(app)])

    async def applications(self, call: HttpCall) -> HttpAnswer:
        partition = self._lookup.partition(call)
        match call.path["state"].lower():
            case "active":
                has_status = status(call)
                apps = [app for app in partition.apps.values() if dao.is_active(app) and has_status(app)]
            case "completed":
                apps = [app for app in partition.apps.values() if dao.is_completed(app)]
            case "rejected":
                apps = list(partition.rejected.values())
            case _:
                raise HttpError(
                    400,
                    f"Application state {quote(call.path['state'])} is not known: "
                    "expected active, completed or rejected",
                )
        return _applications(partition, apps)

    async def queue_application(self, call: HttpCall) -> HttpAnswer:
        unescaped_queue(call)  # (Here YuniKorn checks first whether the name can be unescaped.)
        partition, queue = self._lookup.leaf(call)
        app_id = call.path["application"]
        return _application(partition, partition.apps[app_id] if app_id in queue.applications else None)

    async def application(self, call: HttpCall) -> HttpAnswer:
        partition = self._lookup.partition(call)
        return _application(partition, partition.live_application(call.path["application"]))


def _applications(partition: Partition, apps: list[Application]) -> HttpAnswer:
    return HttpAnswer(json_render.listing(apps, lambda app: json_render.application(partition, app)))


def _application(partition: Partition, app: Application | None) -> HttpAnswer:
    if app is None:
        raise HttpError(404, "Application not found")
    return HttpAnswer(json_render.line(json_render.application(partition, app)))
