"""Finds the quotas of identities and RMs, and takes them to the scheduler.

The scheduler counts nodes, queues, applications and the like of an RM, and refuses what is over a limit. It gets the
limits with the registration. When the settings or the policy give an RM other limits, the gateway that serves it writes
a note; a gateway that has just opened its first stream of an RM writes one, too, because it does not know what another
gateway wrote. The same limits again change nothing.

Rates are the gateway's own (``rates.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import structlog
from muster_bus.clock import Clock
from muster_runtime.caller import current
from muster_runtime.identity import Identity, Proof
from muster_runtime.read_scope import matches_glob

from muster_gateway.errors import GatewayError
from muster_gateway.quota_settings import QuotaRule, QuotaSettings
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.sessions.contract import SessionStore

log = structlog.get_logger(__name__)

# The other gateways' registrations are seen after so long.
_COUNTED_S = 5.0
_COUNTED = (
    "nodes",
    "queues",
    "applications",
    "asks",
    "allocations",
    "users",
    "text_bytes",
)


@dataclass(frozen=True, slots=True)
class RmLimits:
    """The limits of an RM that the scheduler counts; 0: no limit."""

    nodes: int = 0
    queues: int = 0
    applications: int = 0
    asks: int = 0
    allocations: int = 0
    users: int = 0
    text_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Messages and bytes in a second; 0: no limit."""

    requests_per_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RegistrationQuotas:
    """The limits that go with a registration.

    :param identity: its name.
    :param resource_managers: of the identity; ``all_resource_managers``: of all identities.
    :param elsewhere: the identity's RMs in other partitions of the log; ``all_elsewhere``: all RMs there.
    """

    identity: str = ""
    rm: RmLimits = RmLimits()
    resource_managers: int = 0
    all_resource_managers: int = 0
    elsewhere: int = 0
    all_elsewhere: int = 0


class QuotaBook:
    """The limits in force.

    :param more: returns further overrides, which come after those of the settings.
    """

    def __init__(self, settings: QuotaSettings, more: Callable[[], tuple[QuotaRule, ...]] = tuple) -> None:
        self._settings, self._more = settings, more

    @property
    def burst_s(self) -> float:
        """Returns for how long a quiet caller saves what it may send."""
        return self._settings.burst_s

    @property
    def all_resource_managers(self) -> int:
        return self._settings.all_resource_managers

    def rm(self, identity: Identity, rm_id: str) -> RmLimits:
        """Returns the counted limits of an RM."""
        own = self._settings.rm
        limits = {name: getattr(own, name) for name in _COUNTED}
        for rule in self._rules(identity, rm_id):
            limits |= {name: value for name in _COUNTED if (value := getattr(rule, name)) is not None}
        return RmLimits(**limits)

    def rm_rate(self, identity: Identity, rm_id: str) -> RateLimit:
        """Returns how much the streams of an RM may send."""
        own = self._settings.rm
        requests, size = own.requests_per_s, own.bytes_per_s
        for rule in self._rules(identity, rm_id):
            requests = requests if rule.requests_per_s is None else rule.requests_per_s
            size = size if rule.bytes_per_s is None else rule.bytes_per_s
        return RateLimit(requests, size)

    def identity_rate(self, identity: Identity) -> RateLimit:
        """Returns how much an identity may send. Without credentials, nobody in particular calls: no limit."""
        own = self._settings.identity
        requests, size = (own.requests_per_s, own.bytes_per_s) if has_credentials(identity) else (0.0, 0.0)
        for rule in self._rules(identity, None):
            requests = requests if rule.identity_requests_per_s is None else rule.identity_requests_per_s
            size = size if rule.identity_bytes_per_s is None else rule.identity_bytes_per_s
        return RateLimit(requests, size)

    def resource_managers(self, identity: Identity) -> int:
        """Returns how many RMs an identity may have; see :meth:`identity_rate`."""
        limit = self._settings.identity.resource_managers if has_credentials(identity) else 0
        for rule in self._rules(identity, None):
            if rule.identity_resource_managers is not None:
                limit = rule.identity_resource_managers
        return limit

    def _rules(self, identity: Identity, rm_id: str | None) -> Iterable[QuotaRule]:
        for rule in (*self._settings.overrides, *self._more()):
            if rule.identities and not any(matches_glob(glob, identity.name) for glob in rule.identities):
                continue
            if not rule.rms or (rm_id is not None and any(matches_glob(glob, rm_id) for glob in rule.rms)):
                yield rule


def has_credentials(identity: Identity) -> bool:
    """Tells whether an identity is somebody in particular."""
    return identity.proof in (Proof.TOKEN, Proof.CERTIFICATE, Proof.JWT)


class RmCounts:
    """The registered RMs by identity, as the session store and this gateway's own registrations say.

    A registration that waits for its answer counts, so that many at once in several partitions stay below a limit.
    """

    def __init__(self, sessions: SessionStore, partition_of: Callable[[str], int], clock: Clock) -> None:
        self._sessions, self._partition_of, self._clock = sessions, partition_of, clock
        # By RM: its identity, and its partition of the log.
        self._registered: dict[str, tuple[str, int]] = {}
        self._under_way: dict[str, tuple[str, int]] = {}
        self._since: dict[str, tuple[str, int]] = {}  # accepted since the last read began
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()

    async def elsewhere(self, rm_id: str, identity: str) -> tuple[int, int]:
        """Returns the numbers of an identity's RMs and of all RMs in other partitions of the log. Raises
        SessionStoreDown.
        """
        await self._read()
        own = self._partition_of(rm_id)
        registrations = [
            *self._registered.values(),
            *(registration for name, registration in self._under_way.items() if name not in self._registered),
        ]
        others = [name for name, partition in registrations if partition != own]
        self._under_way[rm_id] = (identity, own)
        return others.count(identity), len(others)

    async def _read(self) -> None:
        """Reads the other gateways' registrations, now and then. One reads, the others wait."""
        async with self._reading:
            now_s = self._clock.monotonic()
            if now_s - self._read_s < _COUNTED_S:
                return
            # The session of an accepted registration that has not ended may come after this read.
            self._since = {rm_id: named for rm_id, named in self._since.items() if rm_id in self._under_way}
            sessions = await self._sessions.all()
            self._read_s = now_s
            stored = [session for session in sessions if session.state is not RmLifecycleState.INIT]
            self._registered = {
                session.rm_id: (session.identity, self._partition_of(session.rm_id)) for session in stored
            } | self._since

    def on_registered(self, rm_id: str, identity: str) -> None:
        """The scheduler has accepted a registration."""
        self._registered[rm_id] = self._since[rm_id] = (identity, self._partition_of(rm_id))

    def on_answered(self, rm_id: str) -> None:
        """A registration that was counted by :meth:`elsewhere` has its answer, or gets none."""
        self._under_way.pop(rm_id, None)


class QuotaNotifier:
    """Writes a note when an RM has other limits than this gateway knows.

    :param write: writes it. Raises LogDown.
    """

    def __init__(self, book: QuotaBook, write: Callable[[str, RmLimits], Awaitable[None]]) -> None:
        self._book, self._write = book, write
        self._sent: dict[str, RmLimits] = {}

    def registered(self, rm_id: str, limits: RmLimits) -> None:
        """An RM was registered with these limits."""
        self._sent[rm_id] = limits

    async def review(self, rms: Iterable[tuple[str, Identity]]) -> None:
        """Writes notes about those of these RMs that have other limits. Never raises: the next review tries again."""
        for rm_id, identity in dict(rms).items():
            limits = self._book.rm(identity, rm_id)
            if self._sent.get(rm_id) == limits:
                continue
            try:
                await self._write(rm_id, limits)
            except GatewayError as error:
                log.warning("quotas not told", rm_id=rm_id, error=str(error))
                continue
            self._sent[rm_id] = limits


class CallerQuotas:
    """The quotas of a gateway's callers.

    :param counts: of the registered RMs; None: the log has one partition, and the scheduler counts alone.
    """

    def __init__(self, book: QuotaBook, notes: QuotaNotifier, counts: RmCounts | None) -> None:
        self._book, self._notes, self._counts = book, notes, counts

    async def for_registration(self, rm_id: str) -> RegistrationQuotas:
        """Returns the limits that go with a registration by the present caller. Raises SessionStoreDown."""
        identity, book = current().identity, self._book
        elsewhere = await self._counts.elsewhere(rm_id, identity.name) if self._counts is not None else (0, 0)
        return RegistrationQuotas(
            identity.name,
            book.rm(identity, rm_id),
            book.resource_managers(identity),
            book.all_resource_managers,
            *elsewhere,
        )

    def on_registered(self, rm_id: str, quotas: RegistrationQuotas) -> None:
        """The scheduler accepted a registration with these limits."""
        self._notes.registered(rm_id, quotas.rm)
        if self._counts is not None:
            self._counts.on_registered(rm_id, quotas.identity)

    def on_answered(self, rm_id: str) -> None:
        """A registration has its answer, or gets none."""
        if self._counts is not None:
            self._counts.on_answered(rm_id)

    async def on_stream_opened(self, rm_id: str, identity: Identity) -> None:
        """A stream of an RM has its seat."""
        await self._notes.review([(rm_id, identity)])

    async def on_policy_changed(self, rms: Iterable[tuple[str, Identity]]) -> None:
        """The policy has changed; these RMs have streams."""
        await self._notes.review(rms)
