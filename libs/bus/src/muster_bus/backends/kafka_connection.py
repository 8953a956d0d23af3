"""The parts of the Kafka log share this: the connection to the brokers, deadlines, and stopping clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

import structlog
from aiokafka import AIOKafkaProducer, errors
from aiokafka.admin import AIOKafkaAdminClient
from muster_runtime.store_credentials import StoreFileUnusable, StoreNames

from muster_bus.backends.kafka_replication import ReplicaShortage, shortage
from muster_bus.backends.kafka_security import BrokerRefusal, KafkaSecurity
from muster_bus.backends.record_limits import RecordRules
from muster_bus.clock import Clock
from muster_bus.errors import LogClosed, LogUnavailable
from muster_bus.settings import LogSettings
from muster_bus.topics import TopicSpec

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 3.0
RETRY_MS = 50  # pause between tries of plain writers and readers

# The names of the settings of :class:`muster_bus.settings.LogSettings`, for messages.
_NAMES = StoreNames.prefixed(
    "log.kafka_",
    "Kafka",
    account="sasl_username sasl_password",
    protocol="security_protocol",
    tls="SSL or SASL_SSL",
    address="bootstrap_servers",
)

T = TypeVar("T")


class Closable(Protocol):
    """A writer, a reader or an owner. The log closes each that is still open."""

    async def close(self) -> None: ...


class KafkaLink:
    """The settings of the Kafka log and the connection options of its clients.

    :ivar stores_notes: whether the brokers store texts as long as notes with offsets.
    """

    def __init__(self, specs: Sequence[TopicSpec], settings: LogSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.security = KafkaSecurity(
            settings.kafka_bootstrap_servers,
            settings.kafka_security_protocol,
            _NAMES,
            mechanism=settings.kafka_sasl_mechanism,
            username=settings.kafka_sasl_username,
            password=settings.kafka_password(),
            tls=settings.kafka_tls(),
        )
        self.rules = RecordRules(specs, settings.max_record_bytes)
        self.shortage = ReplicaShortage()
        self.topic_names = [spec.name for spec in specs]
        self.admin: AIOKafkaAdminClient | None = None  # set while the log is open
        self.closed = False
        self.children: set[Closable] = set()
        self.stores_notes = True

    @property
    def name(self) -> str:
        """The log in messages."""
        return f"the log at Kafka {self.settings.kafka_bootstrap_servers}"

    def check_open(self) -> None:
        """Raises LogClosed."""
        if self.closed or self.admin is None:
            raise LogClosed("the log is not started" if not self.closed else "the log is closed")

    def forget(self, child: Closable) -> None:
        self.children.discard(child)

    def connection(self) -> dict[str, Any]:
        """Returns the connection options of every aiokafka client. Raises LogUnavailable for an unusable file."""
        try:
            return self.security.connection()
        except StoreFileUnusable as error:
            raise LogUnavailable(str(error)) from error

    async def check_replicas(self) -> str:
        """Asks Kafka for the copies of all partitions. Returns what is short, in a sentence; "": nothing is, or Kafka
        does not say. The caller sets the deadline.
        """
        if self.admin is None:
            return ""
        cluster, topics = await asyncio.gather(
            self.admin.describe_cluster(), self.admin.describe_topics(self.topic_names)
        )
        topics.sort(key=lambda topic: self.topic_names.index(topic["topic"]))
        self.shortage = shortage(topics, len(cluster["brokers"]), self.settings.kafka_min_insync_replicas)
        return self.shortage.sentence

    async def silence_reason(self) -> str:
        """Returns why Kafka may not have answered a write, in a sentence; "": it does not say."""
        try:
            async with asyncio.timeout(self.settings.health_timeout_s):
                return await self.check_replicas()
        except (TimeoutError, errors.KafkaError, OSError):
            return ""

    async def refusal_of_credentials(self) -> BrokerRefusal | None:
        """Tells why the brokers refuse this process's clients, if they do."""
        return await self.security.refusal()

    async def bounded(self, work: Awaitable[T], operation: str) -> T:
        """Awaits ``work`` for at most the start time-out. Raises LogUnavailable for Kafka's errors."""
        timeout_s = self.settings.kafka_start_timeout_s
        where = f"Kafka at {self.settings.kafka_bootstrap_servers}"
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError as error:
            raise LogUnavailable(f"{where}: {operation} not done in {timeout_s} s") from error
        except (errors.KafkaError, OSError) as error:
            refusal = await self.refusal_of_credentials() if isinstance(error, errors.KafkaConnectionError) else None
            reason = refusal.sentence if refusal is not None else text_of(error)
            raise LogUnavailable(f"{where}: {operation} failed: {reason}") from error


def retrieve(future: asyncio.Future[Any]) -> None:
    """Marks a future's exception as retrieved, for an exception that is reported elsewhere or not needed."""
    if not future.cancelled():
        future.exception()


def text_of(error: BaseException) -> str:
    """Returns an error in one line that begins with the error's name."""
    text = str(error)
    name = type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}" if text else name


async def stop(stopping: Awaitable[None]) -> None:
    """Stops a client in bounded time. Ignores the errors of stopping."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await stopping
    except asyncio.CancelledError as error:
        # aiokafka cancels its own fetches and waits for them. It may raise their CancelledError here.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        log.debug("client.stop_failed", error=text_of(error))
    except Exception as error:
        log.debug("client.stop_failed", error=text_of(error))


async def stop_producer(producer: AIOKafkaProducer) -> None:
    """Stops a producer in any state. If its sender task is dead, ``stop`` raises or never returns."""
    await stop(producer.stop())
    sender = producer._sender.sender_task
    if sender is not None:
        if not sender.done():
            sender.cancel()
            await asyncio.wait({sender}, timeout=STOP_TIMEOUT_S)
        if sender.done():
            retrieve(sender)
    waiter = producer._txn_manager.wait_for_transaction_end() if producer._txn_manager is not None else None
    if waiter is not None and waiter.done():
        retrieve(waiter)
    await stop(producer.client.close())
