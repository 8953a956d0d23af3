"""The routes that each service behind the gateway has at its own port."""

from __future__ import annotations

from dataclasses import replace

from muster_runtime.identity import Right

from muster_rest.route import Media, Route
from muster_rest.shapes.measures import ProcessHealthDao


def of_process(subject: str) -> tuple[Route, ...]:
    """Its health and its metrics.

    :param subject: the object with the handlers ``health``, ``live`` and ``metrics``.
    """
    health = Route(
        "GET",
        "/health",
        f"{subject}.health",
        "Whether the process works",
        ProcessHealthDao,
        Right.NONE,
        statuses=(200, 503),
    )
    return (
        health,
        replace(health, path="/readyz"),
        replace(
            health,
            path="/livez",
            handler=f"{subject}.live",
            summary="Whether the process answers",
            statuses=(200,),
        ),
        Route(
            "GET",
            "/metrics",
            f"{subject}.metrics",
            "The process's own metrics",
            right=Right.INSPECT,
            media=Media.PROMETHEUS,
            statuses=(200,),
        ),
    )
