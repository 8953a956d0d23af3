"""The topics. Only this module knows their names, keys, partitions and retention."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Cleanup = Literal["delete", "compact", "compact,delete"]
EventKind = Literal["app", "node", "queue", "request", "usergroup"]

# Each kind of event has a derived topic.
EVENT_KINDS: tuple[EventKind, ...] = ("app", "node", "queue", "request", "usergroup")

_DAY_MS = 24 * 60 * 60 * 1000
_PREFIX = re.compile(r"^[a-zA-Z0-9._-]{0,100}$")


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The required properties of a topic.

    :param cleanup: ``compact,delete`` keeps the newest record of a key until the record reaches the age limit.
    :param retention_ms: age at which records are deleted; -1: never.
    """

    name: str
    partitions: int
    cleanup: Cleanup
    retention_ms: int
    replication: int = 1


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one Muster.

    All topics have the same number of partitions. A record's partition depends only on its RM's id: partition p of the
    other topics answers partition p of the requests. So each RM has one total order, and one owner.

    :param prefix: precedes each name, for several Musters on one Kafka; includes a separator ("staging.").
    :param partitions: of each topic; must not change once there are records.
    :param derived: whether :meth:`specs` includes the derived topics (docs/usage.md).
    """

    prefix: str = ""
    partitions: int = 4
    replication: int = 1
    requests_retention_ms: int = 7 * _DAY_MS
    responses_retention_ms: int = 1 * _DAY_MS
    events_retention_ms: int = 30 * _DAY_MS
    dead_letters_retention_ms: int = 30 * _DAY_MS
    usage_retention_ms: int = 30 * _DAY_MS
    audit_retention_ms: int = 400 * _DAY_MS
    derived: bool = False

    def __post_init__(self) -> None:
        if not _PREFIX.match(self.prefix):
            raise ValueError(f"topic prefix {self.prefix!r}: letters, digits, '.', '_' and '-' only, at most 100")
        if self.partitions < 1:
            raise ValueError(f"partitions {self.partitions}: at least 1")
        if self.replication < 1:
            raise ValueError(f"replication {self.replication}: at least 1")

    @property
    def requests(self) -> str:
        """One SI request per record. Gateways write it; the scheduler reads it."""
        return f"{self.prefix}si.requests.v1"

    @property
    def responses(self) -> str:
        """One SI response per record, numbered per RM. The scheduler writes it in its transaction."""
        return f"{self.prefix}si.responses.v1"

    @property
    def events(self) -> str:
        """One si.v1.EventRecord per record. The scheduler writes it in its transaction."""
        return f"{self.prefix}si.events.v1"

    @property
    def state(self) -> str:
        """One object's whole new state per record, compacted. The scheduler writes it in its transaction."""
        return f"{self.prefix}si.state.v1"

    @property
    def dead_letters(self) -> str:
        """Records that could not be read, with the reason."""
        return f"{self.prefix}si.dead-letters.v1"

    @property
    def audit(self) -> str:
        """One muster.v1.AuditEntry per record. The scheduler writes those of outcomes in its transaction, gateways the
        others.
        """
        return f"{self.prefix}si.audit.v1"

    def events_of(self, kind: EventKind) -> str:
        """The events of one kind, as they are on ``si.events``. A derive process writes them at least once."""
        return f"{self.prefix}si.events.{kind}.v1"

    @property
    def usage(self) -> str:
        """Resource-seconds in windows, as JSON. A derive process writes them at least once."""
        return f"{self.prefix}si.usage.v1"

    @property
    def usage_state(self) -> str:
        """The state with which a derive process resumes after a restart. No other process reads it."""
        return f"{self.prefix}si.usage-state.v1"

    def specs(self) -> tuple[TopicSpec, ...]:
        """Returns every topic that must exist."""
        n, r = self.partitions, self.replication
        specs = (
            TopicSpec(self.requests, n, "delete", self.requests_retention_ms, r),
            TopicSpec(self.responses, n, "delete", self.responses_retention_ms, r),
            TopicSpec(self.events, n, "delete", self.events_retention_ms, r),
            TopicSpec(self.state, n, "compact", -1, r),
            TopicSpec(self.dead_letters, n, "delete", self.dead_letters_retention_ms, r),
            TopicSpec(self.audit, n, "delete", self.audit_retention_ms, r),
        )
        if not self.derived:
            return specs
        return (
            *specs,
            *(TopicSpec(self.events_of(kind), n, "delete", self.events_retention_ms, r) for kind in EVENT_KINDS),
            TopicSpec(self.usage, n, "compact,delete", self.usage_retention_ms, r),
            TopicSpec(self.usage_state, n, "compact", -1, r),
        )

    def partition_of(self, rm_id: str) -> int:
        """Returns the partition of an RM's records. Kafka's default partitioner gives the same one for the RM's id as
        key.
        """
        return self.partition_of_key(rm_id.encode())

    def partition_of_key(self, key: bytes) -> int:
        """Returns the partition of a record whose key is an RM's id."""
        return (_murmur2(key) & 0x7FFFFFFF) % self.partitions


# Headers of si.events.v1.
HEADER_EVENT_ID = "id"  # decimal, from 0, gap-free per RM
HEADER_RM_ID = "rm"
HEADER_INSTANCE = "instance"  # the RM's InstanceUUID
HEADER_TRACKING = "tracking"  # b"1": for history, REST and streams; b"0": for the shim only (the event history design)
# On the first event of an outcome: the stamp of all of them, as muster_si.positions encodes it.
HEADER_STAMP = "stamp"
HEADER_STORE_CAPACITY = "store"  # on untracked events: how many of them the RM wants kept; decimal

# Stores keep ids as signed 64-bit numbers. A decimal that is too long for one is not converted.
_EVENT_ID_LIMIT, _EVENT_ID_DIGITS_MAX = 2**63, 19

# Headers of si.dead-letters.v1. The derived topics of events have the origin, too.
HEADER_ERROR = "error"  # one sentence; never the record's content
HEADER_ORIGIN = "origin"  # topic/partition/offset


def event_id_of(header: bytes | None) -> int | None:
    """Returns the number in HEADER_EVENT_ID; None if the header holds no valid number."""
    if header is None or len(header) > _EVENT_ID_DIGITS_MAX or not header.isdigit():
        return None
    number = int(header)
    return number if number < _EVENT_ID_LIMIT else None


def response_number_of(value: bytes | None) -> tuple[bytes, int]:
    """Returns an RM's id, and the number of a response to it, from a record of ``si.responses``; 0: it has none.

    They are the first two fields of muster.bus.v1.ResponseEnvelope, and written in this order. (The bus knows no other
    part of any message.)
    """
    content = value or b""
    if content[:1] != b"\x0a":
        return b"", 0
    length, at = _varint(content, 1)
    rm_id, at = content[at : at + length], at + length
    return rm_id, _varint(content, at + 1)[0] if content[at : at + 1] == b"\x10" else 0


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Returns a number in protobuf's form, and where it ends."""
    number = shift = 0
    for index in range(at, len(content)):
        number |= (content[index] & 0x7F) << shift
        if content[index] < 0x80:
            return number, index + 1
        shift += 7
    return 0, len(content)


def state_key(rm_id: str, kind: str, *parts: str) -> bytes:
    """Returns the key of an object on ``si.state``: rmID/kind/part/part, with '%' and '/' in each part
    percent-encoded.
    """
    key = "/".join((rm_id, kind, *parts))
    if "%" in key or key.count("/") > len(parts) + 1:  # rare; this function runs for every object of every transaction
        key = "/".join((_escape(rm_id), kind, *map(_escape, parts)))
    return key.encode()


def state_key_in(rm_id: str, kind: str, group: tuple[str, ...], last: str) -> bytes:
    """Returns :func:`state_key` of the parts ``(*group, last)``. Many keys share a group, such as a partition."""
    return _beginning(rm_id, kind, group) + _escape(last).encode()


@lru_cache(maxsize=1024)
def _beginning(rm_id: str, kind: str, group: tuple[str, ...]) -> bytes:
    return state_key(rm_id, kind, *group, "")


def rm_state_key(rm_id: str) -> bytes:
    """Returns the key of an RM's own object on ``si.state``: the first record of every transaction that concerns the
    RM.
    """
    return state_key(rm_id, "rm", "-")


def is_forgotten_state_key(key: bytes | None) -> bool:
    """Tells whether a key is that of the record kept for an RM that an operator has removed."""
    return key is not None and key.endswith(b"/forgotten/-") and key.count(b"/") == 2


def is_rm_state_key(key: bytes | None) -> bool:
    """Tells whether a key is that of an RM's own object."""
    return key is not None and key.endswith(b"/rm/-") and key.count(b"/") == 2  # ids have no bare '/'


def is_registration_key(key: bytes | None) -> bool:
    """Tells whether a key is that of an RM's registration."""
    return key is not None and key.endswith(b"/reg/-") and key.count(b"/") == 2


def parse_state_key(key: bytes) -> tuple[str, str, tuple[str, ...]]:
    """Inverse of :func:`state_key`: rmID, kind, parts. Raises ValueError for fewer than two parts."""
    rm_id, kind, *parts = key.decode().split("/")
    if b"%" not in key:  # nearly always
        return rm_id, kind, tuple(parts)
    return _unescape(rm_id), kind, tuple(_unescape(part) for part in parts)


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F") if "/" in text or "%" in text else text


def _unescape(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%") if "%" in text else text


def _murmur2(data: bytes) -> int:
    """Returns Kafka's partitioning hash (murmur2, seed 0x9747b28c), so that any Kafka producer finds the same
    partition.
    """
    length, m, r = len(data), 0x5BD1E995, 24
    h = (0x9747B28C ^ length) & 0xFFFFFFFF
    whole = length - length % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little")
        k = k * m & 0xFFFFFFFF
        k ^= k >> r
        k = k * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ k
    tail = data[whole:]
    if len(tail) >= 3:
        h ^= tail[2] << 16
    if len(tail) >= 2:
        h ^= tail[1] << 8
    if len(tail) >= 1:
        h = (h ^ tail[0]) * m & 0xFFFFFFFF
    h ^= h >> 13
    h = h * m & 0xFFFFFFFF
    return h ^ (h >> 15)
