"""Ids of objects, as history servers need them: of each queue and application that ever was, its own
(docs/history-servers.md).

An id is a ULID: 26 characters of Crockford's base 32, the time in milliseconds first, so that ids sort by age. It is
made from what is recorded (whose, where, name, when it came), so it is the same after every restart and from every
view; a queue or application that goes and comes again has another one. A partition or a node keeps its own for ever.
"""

from __future__ import annotations

from base64 import b32encode
from functools import lru_cache
from hashlib import blake2b

from muster_scheduler.core.objects import Application, Node, Queue
from muster_scheduler.core.partition import Partition
from muster_scheduler.core.states import AppState

# Ids that are kept: those of 100,000 objects take some 30 MB.
_KEPT = 100_000
_TIME_MS_MAX = (1 << 48) - 1
_CROCKFORD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def of_partition(partition: Partition) -> str:
    """A partition's: of its RM and its name alone, because the real core's readers know it by its name."""
    return _ulid(partition.rm_id, partition.name, "partition", "", 0)


def of_queue(partition: Partition, queue: Queue) -> str:
    """A queue's."""
    return _ulid(partition.rm_id, partition.name, "queue", queue.path, queue.created_ns)


def of_application(partition: Partition, app: Application) -> str:
    """An application's, also of one that was refused."""
    return _ulid(partition.rm_id, partition.name, "application", app.app_id, application_created_ns(app))


def of_node(partition: Partition, node: Node) -> str:
    """A node's: as a partition's, because history servers allow one row for each name of a node."""
    return _ulid(partition.rm_id, partition.name, "node", node.node_id, 0)


def of_queue_of(partition: Partition, app: Application) -> str:
    """The id of an application's queue; of one that was refused the queue's that it asked for, else root's."""
    if app.state is AppState.REJECTED:
        return of_queue(partition, partition.queues.get(app.requested_queue) or partition.root)
    return of_queue(partition, app.queue)


def application_created_ns(app: Application) -> int:
    """When the scheduler first heard of it."""
    return app.story[0][0] if app.story else app.submitted_ns


@lru_cache(maxsize=_KEPT)
def _ulid(rm_id: str, partition: str, kind: str, name: str, created_ns: int) -> str:
    time_ms = min(max(created_ns, 0) // 1_000_000, _TIME_MS_MAX)
    known = "\0".join((rm_id, partition, kind, name, str(created_ns))).encode()
    # 30 bits of nothing, 2 + 128 bits of the ULID: so base 32 has no rest.
    bits = bytes(4) + time_ms.to_bytes(6) + blake2b(known, digest_size=10).digest()
    return b32encode(bits)[6:].translate(_CROCKFORD).decode()
