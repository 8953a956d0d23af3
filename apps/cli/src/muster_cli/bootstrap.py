"""The commands that serve: from settings to running services. Only this module knows all services.

Each service class takes its settings, the log, the topics and the clock; services share nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import structlog
from muster_bus.backends.sqlite import SqliteLog
from muster_bus.backends.sqlite_mark import read_mark
from muster_bus.clock import Anchor, Clock, SystemClock
from muster_bus.errors import BusError, LogBehind, LogDamaged, LogUnavailable
from muster_bus.log import Log
from muster_bus.log_factory import make_log
from muster_bus.membership import GroupLog
from muster_core.external.errors import InvalidExternalSettings, NotSynced
from muster_event_publisher.errors import InvalidSinkSettings
from muster_rest import system_health as health
from muster_runtime import logs
from muster_runtime.addresses import listen
from muster_runtime.elapsed import elapsed_s
from muster_runtime.http_server import HttpServer
from muster_runtime.liveness import Liveness
from muster_runtime.optional_packages import require
from muster_runtime.private_files import make_private_directory, private_umask
from muster_runtime.systemd import READY, notify
from muster_runtime.terminal import Screen, marked

from muster_cli import addresses, config_check, gc_tuning, health_app
from muster_cli.errors import CommandError, ServiceDied, StartFailed, UsageError
from muster_cli.existing_log import with_existing_partitions
from muster_cli.followers_messages import socket_directory
from muster_cli.priority import lower_priority
from muster_cli.service_runner import ManagedResource, NamedService, run, signals
from muster_cli.settings import STANDALONE_DEFAULTS, MusterSettings, embedded_defaults, load
from muster_cli.settings_loader import ResolvedSettings

if TYPE_CHECKING:
    from muster_gateway.events_proxy import EventsEndpoint
    from muster_gateway.front_end import OtherFront
    from muster_gateway.http_front import HttpBackend
    from muster_gateway.service import Gateway
    from muster_runtime.child_process import ChildProcess

    from muster_cli.followers_messages import FromFollowers

log = structlog.get_logger(__name__)

# The services on the gRPC address.
_SERVICES = "si.v1.Scheduler; muster.v1 Callbacks, Admin, Metrics, Events; health and reflection"
# Errors if another process takes an address between the check and the start.
_ADDRESS_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
# More open files are of no use: connections are limited to 20,000, and a forwarded one uses two files.
_FILES = 1 << 16
# A thread that wants the interpreter gets it after so long (seconds; Python's own: 0.005). A busy loop lets go of it
# for a moment at each turn. Each time, the wait of the log's writer and of gRPC's poller begins anew, so with a value
# above a turn's length they get nothing as long as the loop has work.
_SWITCH_S = 0.0005

# How long a start waits for the port of a killed Muster, whose followers' process is ending.
_PORT_WAIT_S, _PORT_POLL_S = 3.0, 0.02

# Deriving's share of the processor if the followers have their own process; folding and exporting need the rest.
_OWN_PROCESSOR_SHARE = 0.3

ServiceName = Literal["gateway", "scheduler", "view", "event-publisher", "derive"]
# They decide nothing, and no deciding service waits for them.
_FOLLOWERS: Sequence[ServiceName] = ("view", "event-publisher", "derive")
Flags = Sequence[tuple[str, str, object]]


class ProcessPlan(NamedTuple):
    """The content of a process.

    :param resources: beside the log.
    :param checks: the process is ready when all are true.
    """

    resources: list[ManagedResource]
    services: list[NamedService]
    checks: list[health_app.HealthCheck]


Build = Callable[[MusterSettings, Log, Clock], ProcessPlan]


def up(data_dir: Path, config: Path | None, file: Path | None, assignments: Sequence[str], flags: Flags) -> int:
    """Runs ``muster up``: all services on this machine; the followers in a process of their own."""
    began_s = elapsed_s()
    overrides = [*_non_empty_flags(flags), *_queue_config(config)]
    settings = _paced(load(file, assignments, overrides, embedded_defaults(data_dir)))
    addresses.check_free("--grpc-address", settings.gateway.grpc_address)
    addresses.check_free("gateway.grpc_mtls_address", settings.gateway.grpc_mtls_address)
    listener = _front_listener(settings)
    first = _fork_followers(settings)
    _check_listeners(settings, "gateway", "view", "event-publisher")
    try:
        # Only for this user: the log holds RMs' registrations unmasked.
        make_private_directory(data_dir)
    except OSError as error:
        raise UsageError(f"--data-dir {data_dir}: cannot be created: {error.strerror}") from error

    def ready(plan: ProcessPlan) -> None:
        gateway = cast("Gateway", next(part.service for part in plan.services if part.name == "gateway"))
        grpc_address, http_address = bound_addresses(settings, gateway)
        console = Screen()
        console.print(
            marked("[bold green]Muster is ready[/] after {} s. Ctrl-C stops it.", f"{elapsed_s() - began_s:.1f}")
        )
        console.print(f"  gRPC   {grpc_address}   {_SERVICES}", soft_wrap=True)
        if http_address:
            scheme = "http" if settings.gateway.tls.certificate is None else "https"
            console.print(f"  REST   {scheme}://{http_address}/ws/v1/partitions", soft_wrap=True)
            console.print(f"  page   {scheme}://{http_address}/", soft_wrap=True)
        for line in data_lines(settings, data_dir):
            console.print(f"  {line}", soft_wrap=True)

    return _serve(settings, partial(_everything, first=first, listener=listener), ready)


def bound_addresses(settings: MusterSettings, gateway: Gateway) -> tuple[str, str]:
    """Returns the addresses of gRPC and HTTP, with the ports that the system chose where the settings have port 0."""
    bindings = (settings.gateway.grpc_address, gateway.grpc_port), (settings.gateway.http_address, gateway.http_port)
    grpc_address, http_address = (
        f"{address.removesuffix(':0')}:{port}" if address.endswith(":0") else address for address, port in bindings
    )
    return grpc_address, http_address


def _paced(composed: ResolvedSettings[MusterSettings]) -> MusterSettings:
    """Sets the followers' pace, unless the user did: in a process of their own, usage has a larger share of the
    processor; beside the scheduler, the view folds in short slices even while a read waits.
    """
    settings, origins = composed.values, composed.origins
    if settings.process.followers_own_process and ("derive", "processor_share") not in origins:
        share = max(settings.derive.processor_share, _OWN_PROCESSOR_SHARE)
        derive = settings.derive.model_copy(update={"processor_share": share})
        return settings.model_copy(update={"derive": derive})
    if not settings.process.followers_own_process and ("view", "fold_awaited_slice_ms") not in origins:
        view = settings.view.model_copy(update={"fold_awaited_slice_ms": settings.view.fold_slice_ms})
        return settings.model_copy(update={"view": view})
    return settings


def data_lines(settings: MusterSettings, data_dir: Path) -> list[str]:
    """Describes the directory's content and the stores elsewhere; of stores' options it shows only folders."""
    from muster_event_publisher.history.registry import configured_stores

    usual = embedded_defaults(data_dir)
    contents, elsewhere = [], []
    if settings.log.sqlite_path == usual["log.sqlite_path"]:
        contents.append("log.db")
    if settings.gateway.sessions_url.get_secret_value() == usual["gateway.sessions_url"]:
        contents.append("sessions.db")
    for name, (kind, options) in configured_stores(settings.publisher).items():
        location = str(options.get("location", ""))
        if kind == "parquet" and location == str(usual["publisher.parquet_dir"]):
            contents.append("history/**/*.parquet")
            continue
        shown = name if name == kind else f"{name} ({kind})"
        elsewhere.append(f"{shown} in {location}" if location and "://" not in location else shown)
    lines = [f"data   {data_dir}   {', '.join(contents)}"]
    return [*lines, f"history   {', '.join(elsewhere)}"] if elsewhere else lines


def run_service(
    name: ServiceName, file: Path | None, assignments: Sequence[str], flags: Flags, config: Path | None = None
) -> int:
    """Runs one service in a process of its own."""
    settings = load(file, assignments, [*_non_empty_flags(flags), *_queue_config(config)], STANDALONE_DEFAULTS).values
    if name == "derive":
        require("faust", "muster derive")
    if settings.log.backend == "kafka":
        require("aiokafka", "log.backend = kafka")
    else:
        raise UsageError(
            f"log.backend {settings.log.backend}: a service in a process of its own needs Kafka "
            "(MUSTER_LOG__BACKEND=kafka); muster up runs all services on one machine"
        )
    _check_listeners(settings, name)
    if name in _FOLLOWERS:
        lower_priority(settings.process.follower_nice)
    return _serve(settings, _BUILD[name], lambda _: log.info("ready", service=name))


def _check_listeners(settings: MusterSettings, *names: ServiceName) -> None:
    """Raises UsageError for an address that is open to others by mistake, before anything is created or opened."""
    from muster_gateway.authentication import Authenticator
    from muster_gateway.errors import InvalidGatewaySettings

    if "gateway" in names:
        try:
            Authenticator(settings.gateway)
        except InvalidGatewaySettings as error:
            raise UsageError(str(error)) from error
    inner: dict[ServiceName, list[tuple[str, str]]] = {
        "view": [("view.http_address", settings.view.http_address)],
        "event-publisher": [
            ("publisher.http_address", settings.publisher.http_address),
            ("publisher.grpc_address", settings.publisher.grpc_address),
        ],
        "scheduler": [("scheduler.http_address", settings.scheduler.http_address)],
        "derive": [("derive.http_address", settings.derive.http_address)],
    }
    for name in names:
        for setting, address in inner.get(name, ()):
            addresses.check_private(setting, address, trusted_network=settings.process.trusted_network)


# # --- composition


def _gateway(settings: MusterSettings, bus: Log, clock: Clock) -> ProcessPlan:
    from muster_gateway.service import Gateway
    from muster_gateway.sessions import make_sessions

    addresses.check_free("gateway.grpc_address", settings.gateway.grpc_address)
    addresses.check_free("gateway.http_address", settings.gateway.http_address)
    addresses.check_free("gateway.grpc_mtls_address", settings.gateway.grpc_mtls_address)
    topics = settings.log.topics()
    gateway = Gateway(settings.gateway, bus, topics, make_sessions(settings.gateway, clock), clock)
    return ProcessPlan([], [NamedService("gateway", gateway)], [gateway.is_ready])


def _scheduler(settings: MusterSettings, bus: Log, clock: Clock) -> ProcessPlan:
    from muster_scheduler.service import SchedulerService

    service = SchedulerService(settings.scheduler, bus, settings.log.topics(), clock)
    opened = _operations("scheduler", settings.scheduler.http_address, service.problems, service.healthy, service.facts)
    return ProcessPlan(opened, [NamedService("scheduler", service)], [service.healthy])


def _view(settings: MusterSettings, bus: Log, clock: Clock) -> ProcessPlan:
    from muster_view import ViewService

    addresses.check_free("view.http_address", settings.view.http_address)
    service = ViewService(settings.view, bus, settings.log.topics(), clock)
    return ProcessPlan([], [NamedService("view", service)], [service.healthy])


def _event_publisher(settings: MusterSettings, bus: Log, clock: Clock) -> ProcessPlan:
    from muster_event_publisher.service import PublisherService

    from muster_cli.followers import usage_of

    addresses.check_free("publisher.http_address", settings.publisher.http_address)
    addresses.check_free("publisher.grpc_address", settings.publisher.grpc_address)
    usage = usage_of(settings, bus)
    service = PublisherService(settings.publisher, bus, settings.log.topics(), clock, usage=usage)
    parts: list[NamedService] = [NamedService("usage", usage)] if usage else []
    return ProcessPlan([], [*parts, NamedService("event-publisher", service)], [service.healthy])


def _derive(settings: MusterSettings, bus: Log, clock: Clock) -> ProcessPlan:
    from muster_event_publisher.derive.faust_app import FaustDerive

    if not settings.log.derived_topics:
        raise UsageError("log.derived_topics is false: muster derive has no topics to write to")
    service = FaustDerive(settings.derive, settings.log, bus)
    opened = _operations("derive", settings.derive.http_address, service.problems, service.healthy)
    return ProcessPlan(opened, [NamedService("derive", service)], [service.healthy])


def _operations(
    name: str,
    address: str,
    problems: health_app.ProblemCheck,
    healthy: health_app.HealthCheck,
    facts: health_app.Facts | None = None,
) -> list[ManagedResource]:
    """Returns the ``/health`` and ``/metrics`` server of a service without HTTP of its own, if it has an address."""
    if not address:
        return []
    addresses.check_free(f"{name}.http_address", address)
    server = HttpServer(
        health_app.operations_app(
            {name: problems}, healthy={name: healthy}, facts={} if facts is None else {name: facts}
        ),
        address,
        health_app.STOP_TIMEOUT_S,
        programs_only=True,
    )
    return [ManagedResource("http", server.start, server.stop)]


def _front_listener(settings: MusterSettings) -> socket.socket | None:
    """Returns the bound socket of the HTTP front, if the followers' process will serve it. It does not listen yet.

    Raises UsageError. After a kill the followers' process of before may end a moment later than its parent, and has the
    port until then.
    """
    field, address = "--http-address", settings.gateway.http_address
    if not address or not settings.process.followers_own_process or settings.log.backend != "sqlite":
        addresses.check_free(field, address)
        return None
    was_killed = socket_directory(settings.log.sqlite_path).exists()
    until_s = elapsed_s() + (_PORT_WAIT_S if was_killed else 0.0)
    while True:
        try:
            return listen(field, address, at_once=False)
        except ValueError as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE or elapsed_s() >= until_s:
                raise UsageError(str(error.strerror)) from error
            time.sleep(_PORT_POLL_S)


def _fork_followers(settings: MusterSettings) -> ChildProcess[FromFollowers] | None:
    """Starts the followers' process as a copy of this one, if they have one and the system allows it."""
    if not settings.process.followers_own_process or settings.log.backend != "sqlite":
        return None
    from muster_cli.followers_fork import fork_followers

    _raise_open_file_limit()
    with contextlib.suppress(OSError), private_umask():  # without it, another process is started later
        return fork_followers()
    return None


def _everything(
    settings: MusterSettings,
    bus: Log,
    clock: Clock,
    first: ChildProcess[FromFollowers] | None = None,
    listener: socket.socket | None = None,
) -> ProcessPlan:
    if settings.process.followers_own_process and isinstance(bus, SqliteLog):
        return _in_two(settings, bus, clock, first, listener)
    from muster_cli.followers import followers_of

    followers = followers_of(settings, bus, clock)
    gateway, scheduler = _deciding(
        settings,
        bus,
        clock,
        followers.checks,
        view=followers.view.asgi,
        publisher=followers.publisher.asgi,
        events=followers.publisher.events_service,
    )
    # The gateway starts last, so that its clients find everything ready, and stops first, so that no client is half
    # served.
    return ProcessPlan(
        [],
        [scheduler, *followers.services, NamedService("gateway", gateway)],
        [gateway.is_ready, followers.view.healthy],
    )


def _in_two(
    settings: MusterSettings,
    bus: SqliteLog,
    clock: Clock,
    first: ChildProcess[FromFollowers] | None,
    listener: socket.socket | None,
) -> ProcessPlan:
    """Plans the deciding services in this process, and the followers in another."""
    from muster_cli.followers_process import FollowersProcess

    # The child loads its modules while this process loads its own and opens the log.
    followers = FollowersProcess(settings, bus, clock, _following(settings), first=first, listener=listener)
    gateway, scheduler = _deciding(
        settings,
        bus,
        clock,
        followers.checks(),
        log_notes=followers.log_notes,
        view=followers.view,
        publisher=followers.publisher,
        events=followers.events,
        exposition=followers.exposition,
        listener=listener,
        other_front=followers.front if listener is not None else None,
    )
    opened = ManagedResource("followers", followers.open, followers.close)
    parts = [scheduler, NamedService("followers", followers), NamedService("gateway", gateway)]
    # When it is ready, no connection changes its process any more.
    return ProcessPlan([opened], parts, [gateway.is_ready, followers.healthy, followers.front.is_decided])


def _following(settings: MusterSettings) -> list[health.Part]:
    """Returns the followers' parts, as in ``followers.py``. This process does not load that module, which imports them
    all.
    """
    usage = settings.derive.enabled and settings.log.derived_topics
    return [health.Part.VIEW, health.Part.PUBLISHER, *([health.Part.USAGE] if usage else [])]


def _deciding(
    settings: MusterSettings,
    bus: Log,
    clock: Clock,
    following: Mapping[health.Part, health.ServiceCheck],
    *,
    log_notes: Callable[[], Sequence[str]] = tuple,
    view: HttpBackend,
    publisher: HttpBackend,
    events: EventsEndpoint,
    exposition: Callable[[], Awaitable[bytes]] | None = None,
    listener: socket.socket | None = None,
    other_front: OtherFront | None = None,
) -> tuple[Gateway, NamedService]:
    """Returns the gateway and the scheduler."""
    from muster_gateway.service import Gateway
    from muster_gateway.sessions import make_sessions
    from muster_scheduler.service import SchedulerService

    topics = settings.log.topics()
    scheduler = SchedulerService(settings.scheduler, bus, topics, clock)
    gateway = Gateway(
        settings.gateway,
        bus,
        topics,
        make_sessions(settings.gateway, clock),
        clock,
        view=view,
        publisher=publisher,
        events=events,
        ready_when=[scheduler.healthy],
        services=following,
        scheduler=None if isinstance(bus, GroupLog) else scheduler.health_facts,
        one_process=True,
        log_notes=log_notes,
        exposition=exposition,
        listener=listener,
        other_front=other_front,
    )
    return gateway, NamedService("scheduler", scheduler)


_BUILD: dict[ServiceName, Build] = {
    "gateway": _gateway,
    "scheduler": _scheduler,
    "view": _view,
    "event-publisher": _event_publisher,
    "derive": _derive,
}


# --- running --------------------------------------------------------------------------------------------------------


def _raise_open_file_limit() -> None:
    """Raises the limit of open files as far as allowed, up to a bound: each connection uses one."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _FILES if most == resource.RLIM_INFINITY else min(_FILES, most)
    if files != resource.RLIM_INFINITY and files < target:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, most))


def _serve(settings: MusterSettings, build: Build, on_ready: Callable[[ProcessPlan], None]) -> int:
    logs.configure(settings.process.log_level, settings.process.log_format, brief_start=True)
    gc_tuning.collect_young()
    sys.setswitchinterval(_SWITCH_S)
    _raise_open_file_limit()

    def ready(plan: ProcessPlan) -> None:
        gc_tuning.freeze()
        gc_tuning.collect_in_time()
        if any(part.name in _FOLLOWERS for part in plan.services):
            gc_tuning.collect_when_grown()
        on_ready(plan)
        logs.end_startup()
        notify(READY)

    try:
        with private_umask():  # for what libraries create; Muster's own files are private in any case
            asyncio.run(_run(settings, build, ready))
    except ServiceDied as error:
        if isinstance(error.cause, NotSynced):  # Muster works; a source is away or wrong
            raise CommandError(str(error.cause)) from error
        if isinstance(error.cause, LogDamaged):  # an operator must decide
            raise UsageError(str(error.cause)) from error
        log.error("died", service=error.service, exc_info=error.cause)
        raise
    except StartFailed as error:
        if isinstance(error.cause, UsageError):
            raise error.cause from error
        if isinstance(error.cause, LogBehind | LogDamaged):  # an operator must decide
            raise UsageError(str(error.cause)) from error
        if isinstance(error.cause, OSError) and error.cause.errno in _ADDRESS_ERRORS:
            raise UsageError(error.cause.strerror or str(error.cause)) from error
        log.error("could not start", service=error.service, exc_info=error.cause)
        raise
    return 0


async def _run(settings: MusterSettings, build: Build, on_ready: Callable[[ProcessPlan], None]) -> None:
    from muster_gateway.errors import InvalidGatewaySettings

    clock = SystemClock()
    if settings.log.backend == "sqlite":
        clock.resume(*_last_time(settings))
    settings = settings.model_copy(update={"log": await with_existing_partitions(settings.log, clock)})
    bus = make_log(settings.log, clock)
    stop = asyncio.Event()
    with signals(stop):
        try:
            plan = build(settings, bus, clock)
        except (InvalidSinkSettings, InvalidExternalSettings) as error:
            raise UsageError("\n".join(error.problems)) from error
        except InvalidGatewaySettings as error:
            raise UsageError(str(error)) from error
        await run(
            [*_liveness(settings), ManagedResource("log", lambda: _open(bus, settings), bus.close), *plan.resources],
            plan.services,
            stop=stop,
            stop_timeout_s=settings.process.stop_timeout_s,
            checks=plan.checks,
            on_ready=lambda: on_ready(plan),
        )


def _liveness(settings: MusterSettings) -> list[ManagedResource]:
    """Returns the thread that answers liveness probes, if it has an address."""
    address = settings.process.live_address
    if not address:
        return []
    addresses.check_free("process.live_address", address)
    liveness = Liveness(address, settings.process.stall_s, field="process.live_address")
    return [ManagedResource("liveness", liveness.start, liveness.stop)]


def _last_time(settings: MusterSettings) -> tuple[Anchor, int]:
    """Returns the clock's anchor and recorded time of the last process that had the embedded log."""
    try:
        side = read_mark(settings.log.sqlite_path)
    except OSError:  # opening the log reports it
        return Anchor(), 0
    return side.clock, side.recorded_ns


async def _open(bus: Log, settings: MusterSettings) -> None:
    try:
        await bus.start()
    except LogUnavailable as error:
        if settings.log.backend == "kafka":  # Kafka may come back; the supervisor tries again
            raise CommandError(str(error)) from error
        raise UsageError(str(error)) from error  # the file is in use, or cannot be opened
    except BusError as error:
        raise UsageError(str(error)) from error


def _non_empty_flags(flags: Flags) -> Flags:
    return [(name, flag, value) for name, flag, value in flags if value is not None]


def _queue_config(config: Path | None) -> Flags:
    """Checks a queue configuration before anything starts, so that the caller sees its errors at once."""
    if config is None:
        return []
    config_check.refuse_if_wrong(config)
    return [("scheduler.default_queue_config", "--config", config.absolute())]
