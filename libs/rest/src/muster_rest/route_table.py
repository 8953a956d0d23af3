"""The services with their routes: they tell the gateway where a request goes and which right it requires."""

from __future__ import annotations

from muster_runtime.identity import Right

from muster_rest import gateway_routes, publisher_routes, view_routes
from muster_rest.route import READS, Route, RoutedService

VIEW = RoutedService("view", view_routes.VIEW, ("/ws/v1/", "/debug/"))
PUBLISHER = RoutedService("publisher", publisher_routes.PUBLISHER, ("/ws/v1/events/",))
GATEWAY = RoutedService("gateway", gateway_routes.GATEWAY)

# The gateway comes last, so its own answers count for paths that several services have (/health, /metrics).
SERVICES = (VIEW, PUBLISHER, GATEWAY)

# Reads of the paths below without a route require these rights.
BELOW = {"/page/": Right.NONE, "/debug/": Right.ADMIN}


def through_the_gateway(services: tuple[RoutedService, ...] = SERVICES) -> list[Route]:
    """Every route that the gateway serves, once."""
    routes: dict[tuple[str, str], Route] = {}
    for route in (route for service in services for route in service.routes):
        routes.pop((route.method, route.path), None)
        routes[route.method, route.path] = route
    return list(routes.values())


class RouteTable:
    """Finds the service for a request.

    :param services: if several services have the same path without parameters, the last one answers it.
    """

    def __init__(self, services: tuple[RoutedService, ...] = SERVICES) -> None:
        self._by_path = {route.path: service for service in services for route in service.routes}
        folders = [(folder, service) for service in services for folder in service.folders]
        self._folders = sorted(folders, key=lambda pair: len(pair[0]), reverse=True)

    def of(self, path: str) -> RoutedService:
        """The service that answers a path: the one with exactly this path, else the one with the deepest folder.

        :param path: in lower case, with single slashes.
        """
        service = self._by_path.get(path)
        if service is not None:
            return service
        return next((service for folder, service in self._folders if path.startswith(folder)), GATEWAY)


def default_right(method: str) -> Right:
    """The right that a path without a route needs."""
    return Right.INSPECT if method in READS else Right.ADMIN
