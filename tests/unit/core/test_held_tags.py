"""Tags as objects hold them (muster_si.tag_interning): in the scheduler, and in its followers."""

from __future__ import annotations

from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler import ingest
from muster_si.tag_interning import intern_tags


def decoded(**tags: str) -> dict[str, str]:
    """The tags of an ask that came as a message of its own."""
    request = si.AllocationRequest(
        allocations=[si.Allocation(allocationKey="ask", applicationID="app", allocationTags=tags)]
    )
    (item,) = ingest.allocations(request.SerializeToString()).asks
    return item.tags


def test_messages_share_the_names_of_their_tags() -> None:
    first, second = decoded(zone="a"), decoded(zone="b")
    assert (first, second) == ({"zone": "a"}, {"zone": "b"})
    (name,), (same,) = first, second
    assert name is same


def test_asks_without_tags_share_one_dict() -> None:
    assert decoded() == {}
    assert decoded() is decoded() is intern_tags({})
