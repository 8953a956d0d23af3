"""Event records of any content, for tests that generate them."""

from __future__ import annotations

from hypothesis import strategies as st
from muster_proto.si.v1.si_pb2 import EventRecord, Quantity, Resource


def event_records(
    *,
    kinds: st.SearchStrategy[int],
    names: st.SearchStrategy[str],
    messages: st.SearchStrategy[str],
    times_ns: st.SearchStrategy[int],
    changes: st.SearchStrategy[int],
    details: st.SearchStrategy[int],
    references: st.SearchStrategy[str],
    quantities: st.SearchStrategy[dict[str, int] | None],
) -> st.SearchStrategy[EventRecord]:
    """Draw records with every field; quantities None: no resource."""
    return st.builds(
        EventRecord,
        type=kinds,
        objectID=names,
        message=messages,
        timestampNano=times_ns,
        eventChangeType=changes,
        eventChangeDetail=details,
        referenceID=references,
        resource=quantities.map(_resource),
    )


def _resource(quantities: dict[str, int] | None) -> Resource | None:
    if quantities is None:
        return None
    return Resource(resources={name: Quantity(value=value) for name, value in quantities.items()})
