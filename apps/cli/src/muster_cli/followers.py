"""The services of ``muster up`` that follow the log and decide nothing.

They run beside the others in one process, or in a process of their own (``followers_process.py``,
``followers_child.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from muster_bus.clock import Clock
from muster_bus.log import Log
from muster_event_publisher.derive.transactional_driver import PlainDerive
from muster_event_publisher.derive.usage_rest import UsageRest
from muster_event_publisher.service import PublisherService
from muster_rest.system_health import Part, ServiceCheck, ServiceFacts
from muster_view import ViewService

from muster_cli import service_runner
from muster_cli.settings import MusterSettings


@dataclass(frozen=True, slots=True)
class Followers:
    """All followers.

    :ivar services: in start order.
    :ivar checks: for the state of the whole.
    """

    view: ViewService
    publisher: PublisherService
    services: Sequence[service_runner.NamedService]
    checks: Mapping[Part, ServiceCheck]


def followers_of(settings: MusterSettings, bus: Log, clock: Clock) -> Followers:
    """Makes the followers. Raises InvalidSinkSettings."""
    topics = settings.log.topics()
    view = ViewService(settings.view, bus, topics, clock, with_others=True)
    usage = usage_of(settings, bus) if settings.derive.enabled else None
    publisher = PublisherService(
        settings.publisher,
        bus,
        topics,
        clock,
        usage=usage,
        view=view.asgi,
        default_rm=settings.gateway.default_rm,
        fills_beside=True,
    )
    view.asks(publisher.asgi, publisher.damaged)
    parts: list[service_runner.NamedService] = [
        service_runner.NamedService("view", view),
        service_runner.NamedService("event-publisher", publisher),
    ]
    checks: dict[Part, ServiceCheck] = {Part.VIEW: view.facts, Part.PUBLISHER: publisher.service_facts}
    derive = PlainDerive(settings.derive, bus, topics, clock, is_urgent=view.is_late) if derives(settings) else None
    parts += [service_runner.NamedService("derive", derive)] if derive else []
    parts += [service_runner.NamedService("usage", usage)] if usage else []
    derived = [service for service in (derive, usage) if service is not None]
    if derived:
        checks[Part.USAGE] = partial(_facts_of, derived)
    return Followers(view, publisher, parts, checks)


async def _facts_of(derived: Sequence[PlainDerive | UsageRest]) -> ServiceFacts:
    problems = [problem for service in derived for problem in await service.problems()]
    return ServiceFacts(serves=not problems, problems=problems)


def usage_of(settings: MusterSettings, bus: Log) -> UsageRest | None:
    """Returns the handler of ``/ws/v1/usage``; None if usage is not derived."""
    if not (settings.log.derived_topics and settings.derive.usage):
        return None
    return UsageRest(settings.derive, bus, settings.log.topics())


def derives(settings: MusterSettings) -> bool:
    """Tells whether ``muster up`` derives topics."""
    return settings.derive.enabled and settings.log.derived_topics
