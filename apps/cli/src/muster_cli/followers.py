"""The services of ``muster up`` that follow the log and decide nothing.

They run beside the others in one process, or in a process of their own (``followers_process.py``,
``followers_child.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster_bus.clock import Clock
from muster_bus.log import Log
from muster_event_publisher.app import PublisherService
from muster_event_publisher.derive.plain import PlainDerive
from muster_event_publisher.derive.rest import UsageRest
from muster_view import ViewService

from muster_cli.operations import ProblemCheck
from muster_cli.running import Part
from muster_cli.settings import MusterSettings

VIEW, PUBLISHER, DERIVE, USAGE = "view", "event publisher", "derive", "usage"


@dataclass(frozen=True, slots=True)
class Followers:
    """All followers.

    :ivar parts: in start order.
    :ivar problems: by name: returns the present problems of that service.
    """

    view: ViewService
    publisher: PublisherService
    parts: Sequence[Part]
    problems: Mapping[str, ProblemCheck]


def followers_of(settings: MusterSettings, bus: Log, clock: Clock) -> Followers:
    """Makes the followers. Raises SinkSettingsWrong."""
    topics = settings.log.topics()
    view = ViewService(settings.view, bus, topics, clock, with_others=True)
    usage = usage_of(settings, bus) if settings.derive.enabled else None
    routes = usage.routes if usage else ()
    publisher = PublisherService(
        settings.publisher,
        bus,
        topics,
        clock,
        extra_routes=routes,
        view=view.asgi,
        default_rm=settings.gateway.default_rm,
        fills_beside=True,
    )
    view.asks(publisher.asgi, publisher.damaged)
    if usage:
        usage.lives = publisher.rm_settings.lives
    parts, problems = [Part("view", view), Part("event-publisher", publisher)], {
        VIEW: view.problems, PUBLISHER: publisher.problems
    }  # fmt: skip
    if derives(settings):
        derive = PlainDerive(settings.derive, bus, topics, clock)
        parts.append(Part("derive", derive))
        problems[DERIVE] = derive.problems
    if usage:
        parts.append(Part("usage", usage))
        problems[USAGE] = usage.problems
    return Followers(view, publisher, parts, problems)


def usage_of(settings: MusterSettings, bus: Log) -> UsageRest | None:
    """Returns the handler of ``/ws/v1/usage``; None if usage is not derived."""
    if not (settings.log.derived_topics and settings.derive.usage):
        return None
    return UsageRest(settings.derive, bus, settings.log.topics())


def derives(settings: MusterSettings) -> bool:
    """Tells whether ``muster up`` derives topics."""
    return settings.derive.enabled and settings.log.derived_topics
