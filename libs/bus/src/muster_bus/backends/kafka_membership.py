"""A member of a Kafka consumer group that shares the partitions of a topic. It consumes nothing.

Kafka's group protocol decides who is a member; the group's leader shares the partitions out
(``partition_assignment.py``) and sends each member its share. Traps that this module avoids, in aiokafka 0.14:

- The protocol is eager: each change of the group revokes everything for a moment. Nothing here acts on that. An owner
  goes on until it hears that another member has its partition, or is fenced. So a change costs only what moves.
- aiokafka's sticky assignor keeps its memory in the class, for all members of a process, and knows no standbys. The
  assignor here is an object, and sends standbys as user data.
- A heartbeat must not wait for the event loop that decides, which may be busy for seconds with a large state. The
  member has a thread with a loop of its own. (A process that hangs is found by its liveness probe, not by the group.)
- A wish to join again that comes while a join is under way is lost. The assignor counts wishes.
- Brokers refuse session time-outs under ``group.min.session.timeout.ms``, 6 s by default. The member then takes 6 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import socket
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import structlog
from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from muster_bus import metrics
from muster_bus.backends.kafka_connection import KafkaLink, stop, text_of
from muster_bus.clock import Clock
from muster_bus.errors import LogUnavailable
from muster_bus.membership import Assignment, GroupTerms
from muster_bus.partition_assignment import MemberAssignment, MemberClaim, assign_partitions

log = structlog.get_logger(__name__)

PROTOCOL = "muster-1"  # all members of a group must know it; another way of sharing gets another name
_DATA_VERSION = 1
_BROKERS_MIN_SESSION_S = 6.0  # Kafka's default of group.min.session.timeout.ms
_POLL_S = 0.1  # aiokafka keeps errors until it is asked
_RETRY_MS = 50
_RETRY_MIN_S, _RETRY_MAX_S = 0.2, 5.0
_CLOSE_TIMEOUT_S = 3.0
_UNKNOWN_AFTER_S = 2.0  # without a coordinator


class _RebalanceLogFilter(logging.Filter):
    """Drops what every change of the group says; the scheduler logs the share."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or "rebalancing" not in str(record.msg)


logging.getLogger("aiokafka.consumer.group_coordinator").addFilter(_RebalanceLogFilter())


class _Assignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """Says what this member claims, shares out if it leads, and takes its share."""

    name = PROTOCOL

    def __init__(self, member: KafkaMembership, topic: str, partitions: int) -> None:
        self._member, self._topic, self._partitions = member, topic, partitions

    def metadata(self, topics: Iterable[str]) -> Any:
        return ConsumerProtocolMemberMetadata(0, list(topics), encode_claim(self._member.claimed()))

    def assign(self, cluster: object, members: Mapping[str, Any]) -> dict[str, Any]:
        claims = [decode_claim(member_id, data.user_data) for member_id, data in sorted(members.items())]
        shares = assign_partitions(self._partitions, claims)
        return {
            member_id: ConsumerProtocolMemberAssignment(
                0, [(self._topic, sorted(share.owned))], encode_share(share, len(claims))
            )
            for member_id, share in shares.items()
        }

    def on_assignment(self, assignment: Any) -> None:
        owned = frozenset(topic_partition.partition for topic_partition in assignment.partitions())
        self._member.took(owned, assignment.user_data)


class KafkaMembership:
    """See :class:`muster_bus.membership.Membership`."""

    def __init__(self, link: KafkaLink, terms: GroupTerms, clock: Clock) -> None:
        self._link, self._terms, self._clock = link, terms, clock
        self._group = f"{link.settings.topic_prefix}{terms.group}"
        self._session_s = terms.session_timeout_s
        self._assignment: Assignment | None = None
        self._changed = asyncio.Event()
        self._home: asyncio.AbstractEventLoop | None = None  # of the caller
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the thread
        self._closing: asyncio.Event | None = None
        self._coordinator: Any = None
        self._problem = "it has not joined yet"
        self._unknown_since_s: float | None = None
        # The caller writes these; the thread reads them.
        self._warm: frozenset[int] = frozenset()
        self._retires = False
        self._wishes = 0
        self._wishes_sent = 0

    # ---- for the caller ----------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> Assignment | None:
        return self._assignment

    async def start(self) -> None:
        self._home = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="group-member", daemon=True)
        self._thread.start()

    async def changed(self, after: Assignment | None) -> Assignment:
        while True:
            self._changed.clear()
            current = self._assignment
            if current is not None and current is not after:
                return current
            await self._changed.wait()

    def report_warm(self, warm: Collection[int]) -> None:
        """The group hears of it when it shares out again. A standby that shall move makes it do so at once."""
        before, self._warm = self._warm, frozenset(warm)
        share = self._assignment
        if share is not None and share.moving & (self._warm - before):
            self.rejoin()

    def rejoin(self) -> None:
        self._wishes += 1
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the thread has ended
                self._loop.call_soon_threadsafe(self._wish)

    def retire(self) -> None:
        self._retires = True
        self.rejoin()

    def error_text(self) -> str:
        return f"group {self._group}: {self._problem}" if self._problem else ""

    async def close(self) -> None:
        thread, loop, closing = self._thread, self._loop, self._closing
        if thread is None:
            return
        if loop is not None and closing is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(closing.set)
        await asyncio.to_thread(thread.join, 2 * _CLOSE_TIMEOUT_S)
        if thread.is_alive():
            log.warning("group.not_left", group=self._group)
        self._thread = None

    # ---- for the assignor, in the thread -----------------------------------------------------------------------------

    def claimed(self) -> MemberClaim:
        """Returns what this member claims now."""
        self._wishes_sent = self._wishes
        share = self._assignment
        if share is None:
            return MemberClaim("", standbys_max=self._terms.standbys_max, retires=self._retires)
        return MemberClaim(
            "",
            share.generation,
            share.owned,
            share.standbys,
            self._warm & share.standbys,
            share.moving,
            self._terms.standbys_max,
            self._retires,
        )

    def took(self, owned: frozenset[int], data: bytes) -> None:
        """Takes the share that the leader sent."""
        standbys, moving, members = decode_share(data)
        assignment = Assignment(self._coordinator.generation, owned, standbys, moving, members)
        self._problem, self._unknown_since_s = "", None
        metrics.group_generations.labels(self._terms.group).inc()
        log.info(
            "group.shared",
            group=self._group,
            generation=assignment.generation,
            owned=sorted(owned),
            standbys=sorted(standbys),
            members=members,
        )
        assert self._home is not None, "start comes first"
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed
            self._home.call_soon_threadsafe(self._apply_assignment, assignment)
        if self._wishes != self._wishes_sent or moving & self._warm:
            self._wish()

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _apply_assignment(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._changed.set()

    def _wish(self) -> None:
        if self._coordinator is not None:
            self._coordinator.request_rejoin()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except Exception as error:  # the caller sees that it is no member any more
            self._problem = text_of(error)
            log.exception("group.ended", group=self._group)

    async def _live(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        wait_s = _RETRY_MIN_S
        while not self._closing.is_set():
            try:
                await self._be_member()
                wait_s = _RETRY_MIN_S
            except errors.InvalidSessionTimeoutError:
                self._lengthen_session()
            except Exception as error:  # whatever it is, a member that gave up for ever would be worse
                self._problem = text_of(error)
                is_known = isinstance(error, (errors.KafkaError, OSError, LogUnavailable))
                log.warning("group.unreachable", group=self._group, error=self._problem, exc_info=not is_known)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._closing.wait()
                wait_s = min(2 * wait_s, _RETRY_MAX_S)

    def _lengthen_session(self) -> None:
        if self._session_s >= _BROKERS_MIN_SESSION_S:
            raise LogUnavailable(
                f"Kafka refuses a session time-out of {self._session_s:g} s: expected group.min.session.timeout.ms and "
                "group.max.session.timeout.ms of the brokers around it"
            )
        log.warning(
            "group.session_too_short",
            group=self._group,
            wanted_s=self._session_s,
            taken_s=_BROKERS_MIN_SESSION_S,
            expected="group.min.session.timeout.ms of the brokers at most the wanted time (docs/scaling.md)",
        )
        self._session_s = _BROKERS_MIN_SESSION_S

    async def _be_member(self) -> None:
        """Joins, and stays a member until it shall close or something fails."""
        assert self._closing is not None, "it is set by the thread"
        terms = self._terms
        client = AIOKafkaClient(
            **self._link.connection(),
            client_id=f"muster-{terms.group}-{_process_name()}",
            retry_backoff_ms=_RETRY_MS,
            request_timeout_ms=round(max(2 * self._session_s, self._link.settings.kafka_start_timeout_s) * 1000),
        )
        try:
            await client.bootstrap()
            subscription = SubscriptionState(loop=asyncio.get_running_loop())
            subscription.register_fetch_waiters(set())  # a fetcher does it; an error of the group fails without it
            self._coordinator = GroupCoordinator(
                client,
                subscription,
                group_id=self._group,
                session_timeout_ms=round(self._session_s * 1000),
                heartbeat_interval_ms=round(terms.heartbeat_s * 1000),
                retry_backoff_ms=_RETRY_MS,
                enable_auto_commit=False,
                assignors=(_Assignor(self, terms.topic, terms.partitions),),
                max_poll_interval_ms=math.inf,  # there is no fetcher whose silence would mean anything
                # A member that does not join again in this time is dropped; joining does not wait for its work.
                rebalance_timeout_ms=round(self._session_s * 1000),
            )
            try:
                subscription.subscribe({terms.topic})
                await client.set_topics({terms.topic})
                await self._stay(self._closing)
            finally:
                coordinator, self._coordinator = self._coordinator, None
                await stop(coordinator.close())
        finally:
            await stop(client.close())

    async def _stay(self, closing: asyncio.Event) -> None:
        while not closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await closing.wait()
            self._coordinator.check_errors()
            self._check_coordinator()

    def _check_coordinator(self) -> None:
        """Notes that the group's coordinator is unknown for long."""
        now_s = self._clock.monotonic()
        if self._coordinator.coordinator_id is not None:
            if self._unknown_since_s is not None and self._assignment is not None:
                self._problem = ""
            self._unknown_since_s = None
        elif self._unknown_since_s is None:
            self._unknown_since_s = now_s
        elif now_s - self._unknown_since_s >= _UNKNOWN_AFTER_S:
            self._problem = "no broker coordinates it now; the partitions stay where they are"


# ---- what members send -----------------------------------------------------------------------------------------------


def encode_claim(claim: MemberClaim) -> bytes:
    """Returns a claim as user data of a join."""
    return json.dumps(
        {
            "v": _DATA_VERSION,
            "generation": claim.generation,
            "owned": sorted(claim.owned),
            "standbys": sorted(claim.standbys),
            "warm": sorted(claim.warm),
            "moving": sorted(claim.moving),
            "max": claim.standbys_max,
            "retires": claim.retires,
        }
    ).encode()


def decode_claim(member_id: str, data: bytes | None) -> MemberClaim:
    """Returns a member's claim. What cannot be read claims nothing: the member gets a share all the same."""
    try:
        content = json.loads(data or b"{}")
        if not isinstance(content, dict) or content.get("v") != _DATA_VERSION:
            return MemberClaim(member_id)
        return MemberClaim(
            member_id,
            int(content["generation"]),
            frozenset(map(int, content["owned"])),
            frozenset(map(int, content["standbys"])),
            frozenset(map(int, content["warm"])),
            frozenset(map(int, content["moving"])),
            int(content["max"]),
            bool(content["retires"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return MemberClaim(member_id)


def encode_share(share: MemberAssignment, members: int) -> bytes:
    """Returns a share's standbys as user data of an assignment; the owned partitions are the assignment itself."""
    return json.dumps(
        {"v": _DATA_VERSION, "standbys": sorted(share.standbys), "moving": sorted(share.moving), "members": members}
    ).encode()


def decode_share(data: bytes | None) -> tuple[frozenset[int], frozenset[int], int]:
    """Returns standbys, those that move when they are warm, and the number of members."""
    try:
        content = json.loads(data or b"{}")
        return frozenset(map(int, content["standbys"])), frozenset(map(int, content["moving"])), int(content["members"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset(), frozenset(), 1


def _process_name() -> str:
    """Returns host and process, for Kafka's own tools."""
    host = "".join(sign if sign.isalnum() or sign == "-" else "-" for sign in socket.gethostname())
    return f"{host}-{os.getpid()}"
