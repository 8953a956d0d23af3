"""Ids of objects for history servers: each queue and application that ever existed has its own
(docs/history-servers.md).

An id is a ULID: 26 characters of Crockford's base 32 that begin with the time in milliseconds, so ids sort by age. It
is computed from recorded facts (RM, partition, name, time of creation), so it is the same after every restart and from
every view. A queue or application that ends and is created again has another id. A partition or a node keeps its id for
ever.
"""

from __future__ import annotations

from base64 import b32encode
from functools import lru_cache
from hashlib import blake2b

from muster_core.model.application import Application
from muster_core.model.node import Node
from muster_core.model.queue import Queue
from muster_core.model.states import AppState
from muster_core.partition import Partition

# Ids that are kept: those of 100,000 objects take some 30 MB.
_KEPT = 100_000
_TIME_MS_MAX = (1 << 48) - 1
_CROCKFORD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def of_partition(partition: Partition) -> str:
    """A partition's id, from its RM and its name alone, because YuniKorn's readers identify it by name."""
    return _ulid(partition.rm_id, partition.name, "partition", "", 0)


def of_queue(partition: Partition, queue: Queue) -> str:
    """A queue's id."""
    return _ulid(partition.rm_id, partition.name, "queue", queue.path, queue.created_ns)


def of_application(partition: Partition, app: Application) -> str:
    """An application's id, also of a rejected one."""
    return _ulid(partition.rm_id, partition.name, "application", app.app_id, application_created_ns(app))


def of_node(partition: Partition, node: Node) -> str:
    """A node's id, without a time, too, because history servers allow one row for each node name."""
    return _ulid(partition.rm_id, partition.name, "node", node.node_id, 0)


def of_queue_of(partition: Partition, app: Application) -> str:
    """The id of an application's queue; for a rejected application that of the requested queue, or else of root."""
    if app.state is AppState.REJECTED:
        return of_queue(partition, partition.queues.get(app.requested_queue) or partition.root)
    return of_queue(partition, app.queue)


def application_created_ns(app: Application) -> int:
    """The time when the scheduler first got the application."""
    return app.state_log[0][0] if app.state_log else app.submitted_ns


@lru_cache(maxsize=_KEPT)
def _ulid(rm_id: str, partition: str, kind: str, name: str, created_ns: int) -> str:
    time_ms = min(max(created_ns, 0) // 1_000_000, _TIME_MS_MAX)
    identity = "\0".join((rm_id, partition, kind, name, str(created_ns))).encode()
    # 30 unused bits and 130 bits for the ULID's 128: so base 32 has no remainder.
    bits = bytes(4) + time_ms.to_bytes(6) + blake2b(identity, digest_size=10).digest()
    return b32encode(bits)[6:].translate(_CROCKFORD).decode()
