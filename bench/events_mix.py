"""Serialised events in the mix of the event history design: 3,000 gangs of 100 pods a day."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from muster_proto.si.v1.si_pb2 import EventRecord, Quantity, Resource

START_NS = 1_750_000_000 * 10**9
DAY_NS = 86_400 * 10**9
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Mix:
    """The numbers of the mix. The waits set the distance between one pod's events, and so their compression.

    :param applications: new applications in a day.
    :param pods: of each application; each has six events, and its application seven.
    :param asked_s: seconds in which all of an application's placeholders are submitted.
    :param placed_s: mean wait of a placeholder until it is placed.
    :param replaced_s: mean wait of a placeholder until a pod replaces it.
    """

    applications: int = 3_000
    pods: int = 100
    nodes: int = 2_000
    asked_s: float = 2.0
    placed_s: float = 10.0
    replaced_s: float = 60.0
    seed: int = 2


def events(mix: Mix) -> Iterator[bytes]:
    """Yield the events of day after day, in order of time, without end. All UUIDs differ.

    A pod has the events of a placeholder's ask, its allocation (at application and node), the pod's ask, and the
    replacement (at both again). UUIDs, names and quantities have the sizes of Kubernetes.
    """
    random = Random(mix.seed)
    nodes = [
        "ip-10-{}-{}-{}.eu-west-1.compute.internal".format(*(random.randrange(256) for _ in range(3)))
        for _ in range(mix.nodes)
    ]
    shapes = [
        Resource(resources={n: Quantity(value=v) for n, v in (("memory", g * _GIB), ("vcore", c), ("pods", 1))})
        for c in (500, 1_000, 2_000, 4_000, 8_000)
        for g in (1, 2, 4, 8, 16, 32)
    ]
    due: list[tuple[int, int, EventRecord]] = []
    number = 0
    app, node = EventRecord.APP, EventRecord.NODE
    add, change, remove = EventRecord.ADD, EventRecord.SET, EventRecord.REMOVE

    def later(at_ns: int, *fields: object) -> None:
        nonlocal number
        number += 1
        kind, name, how, detail, reference, resource = fields
        record = EventRecord(
            type=kind,  # type: ignore[arg-type]
            objectID=name,  # type: ignore[arg-type]
            timestampNano=at_ns,
            eventChangeType=how,  # type: ignore[arg-type]
            eventChangeDetail=detail,  # type: ignore[arg-type]
            referenceID=reference,  # type: ignore[arg-type]
            resource=resource,  # type: ignore[arg-type]
        )
        heapq.heappush(due, (at_ns, number, record))

    def wait_ns(mean_s: float) -> int:
        return int(random.expovariate(1 / mean_s) * 1e9)

    now_ns = START_NS
    while True:
        now_ns += int(random.expovariate(mix.applications / DAY_NS))
        while due and due[0][0] <= now_ns:
            yield heapq.heappop(due)[2].SerializeToString()
        name = f"spark-{random.getrandbits(128):032x}"
        later(now_ns, app, name, add, EventRecord.DETAILS_NONE, "", None)
        for wait_s, detail in (
            (0.0, EventRecord.APP_NEW),
            (0.5, EventRecord.APP_ACCEPTED),
            (10.0, EventRecord.APP_STARTING),
            (20.0, EventRecord.APP_RUNNING),
        ):
            later(now_ns + int(wait_s * 1e9), app, name, change, detail, "", None)
        kinds, end_ns = random.sample(shapes, 3), now_ns
        for _ in range(mix.pods):
            resource, placeholder, pod = random.choice(kinds), _uuid(random), _uuid(random)
            where = random.choice(nodes)
            asked_ns = now_ns + int(random.random() * mix.asked_s * 1e9)
            placed_ns = asked_ns + wait_ns(mix.placed_s)
            replaced_ns = placed_ns + wait_ns(mix.replaced_s)
            later(asked_ns, app, name, add, EventRecord.APP_REQUEST, placeholder, resource)
            later(placed_ns, app, name, add, EventRecord.APP_ALLOC, placeholder, resource)
            later(placed_ns, node, where, add, EventRecord.NODE_ALLOC, placeholder, resource)
            later(replaced_ns - random.randrange(10**8), app, name, add, EventRecord.APP_REQUEST, pod, resource)
            later(replaced_ns, app, name, remove, EventRecord.ALLOC_REPLACED, placeholder, resource)
            later(replaced_ns, node, where, remove, EventRecord.NODE_ALLOC, placeholder, resource)
            end_ns = max(end_ns, replaced_ns)
        later(end_ns + 10 * 10**9, app, name, change, EventRecord.APP_COMPLETING, "", None)
        later(end_ns + 40 * 10**9, app, name, change, EventRecord.APP_COMPLETED, "", None)


def _uuid(random: Random) -> str:
    digits = f"{random.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
