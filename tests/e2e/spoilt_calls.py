"""Generated bad calls of muster.v1 (Admin, Metrics, Events, Callbacks): see ``spoilt.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from e2e.spoilt import (
    BREAKER,
    LIMITS,
    NODE_ID,
    QUEUES,
    SECRET,
    VICTIM,
    WITNESS,
    bad_configurations,
    bad_names,
    bad_texts,
    big_tags,
    long_texts,
    unknown_names,
)
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st
from muster_proto.muster.v1 import admin_pb2 as admin
from muster_proto.muster.v1 import callbacks_pb2 as callbacks
from muster_proto.muster.v1 import events_pb2 as events
from muster_proto.muster.v1 import metrics_pb2 as metrics
from muster_proto.si.v1 import si_pb2 as si

INVALID, NOT_FOUND, NOT_NOW = "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"


@dataclass(frozen=True)
class BadCall:
    """A call that must be refused.

    :param statuses: one of them; OK: by an answer that says ``accepted`` false.
    :param says: what the status' text, or a problem of the answer, must have in it.
    """

    method: str
    raw: bytes
    statuses: tuple[str, ...]
    says: str
    answers_many: bool = False


def _readable(kind: type[Message], raw: bytes) -> bool:
    try:
        kind.FromString(raw)
    except DecodeError:
        return False
    return True


# Each method with a request that would change much, or show something, were it not spoilt.
_CONFIGURATION = {
    "rmID": VICTIM,
    "config": QUEUES.replace("vcore: 10", "vcore: 1"),
    "extraConfig": {"password": SECRET},
}
_METHODS: dict[str, Message] = {
    "Admin/UpdateConfiguration": si.UpdateConfigurationRequest(**_CONFIGURATION),  # type: ignore[arg-type]
    "Admin/ValidateConfiguration": si.UpdateConfigurationRequest(**_CONFIGURATION),  # type: ignore[arg-type]
    "Admin/ListResourceManagers": admin.ListResourceManagersRequest(rm_id=VICTIM),
    "Admin/PauseResourceManager": admin.PauseResourceManagerRequest(rm_id=VICTIM, reason="maintenance"),
    "Admin/ResumeResourceManager": admin.ResumeResourceManagerRequest(rm_id=VICTIM),
    "Admin/DrainNode": admin.DrainNodeRequest(rm_id=VICTIM, partition="default", node_id=NODE_ID),
    "Admin/EndApplication": admin.EndApplicationRequest(rm_id=VICTIM, application_id="app", reason="maintenance"),
    "Admin/DumpState": admin.DumpStateRequest(rm_id=VICTIM),
    "Admin/Explain": admin.ExplainRequest(rm_id=VICTIM, application_id="app"),
    "Metrics/Get": metrics.MetricsRequest(rm_id=VICTIM),
    "Metrics/Watch": metrics.WatchMetricsRequest(what=metrics.MetricsRequest(rm_id=VICTIM)),
    "Events/Batch": events.EventBatchRequest(rm_id=VICTIM),
    "Events/Watch": events.WatchEventsRequest(rm_id=VICTIM, request_events=True),
}
_STREAMING = {"Admin/DumpState", "Metrics/Watch", "Events/Watch"}
# Names that would be another path, or query, if somebody put them into a URL as they are.
_paths = st.sampled_from([".", "..", "a/b", "../x", "a%2Fb", "%", "%zz", "?rm=witness", "a?b", "#a", "a b", "ä", "🦆"])


def _call(method: str, changes: dict[str, Any], statuses: tuple[str, ...], says: str) -> BadCall:
    request = type(_METHODS[method])()
    request.CopyFrom(_METHODS[method])
    for field, value in changes.items():
        if isinstance(value, dict):
            getattr(request, field).update(value)
        elif isinstance(value, Message):
            getattr(request, field).CopyFrom(value)
        elif isinstance(value, list):
            getattr(request, field).extend(value)
        else:
            setattr(request, field, value)
    return BadCall(method, request.SerializeToString(), statuses, says, method in _STREAMING)


def _noise(method: str, raw: bytes) -> BadCall:
    kind = type(_METHODS[method])
    raw = b"\x0a\xff\x01" + raw if _readable(kind, raw) else raw
    return BadCall(method, raw, (INVALID,), kind.DESCRIPTOR.full_name, method in _STREAMING)


def spoilt(
    method: str, field: str, values: st.SearchStrategy[Any], *statuses: str, says: str = ""
) -> st.SearchStrategy[BadCall]:
    """The method's good request with one wrong value; without ``says`` the answer names the field."""
    return values.map(lambda value: _call(method, {field: value}, statuses or (INVALID,), says or field))


def unknown(method: str, field: str, *statuses: str) -> st.SearchStrategy[BadCall]:
    """The same with a name that is nowhere known: the answer has the name in it."""
    return unknown_names.map(lambda name: _call(method, {field: name}, statuses, name))


_RM_ID = {"Admin/UpdateConfiguration": "rmID", "Admin/ValidateConfiguration": "rmID"}
_named = [method for method in _METHODS if method.startswith("Admin/") and method != "Admin/ListResourceManagers"]
_configuring = ("Admin/UpdateConfiguration", "Admin/ValidateConfiguration")

BAD_ADMIN_CALLS: list[st.SearchStrategy[BadCall]] = [
    st.builds(_noise, st.sampled_from([m for m in _METHODS if m.startswith("Admin/")]), st.binary(max_size=50)),
    *(spoilt(method, _RM_ID.get(method, "rm_id"), bad_names) for method in _named),
    *(unknown(method, _RM_ID.get(method, "rm_id"), NOT_NOW, NOT_FOUND) for method in _named),
    spoilt("Admin/ListResourceManagers", "rm_id", bad_texts),
    unknown("Admin/ListResourceManagers", "rm_id", NOT_NOW, NOT_FOUND),
    *(spoilt(method, "policyGroup", bad_texts) for method in _configuring),
    *(spoilt(method, "extraConfig", big_tags) for method in _configuring),
    *(spoilt(method, "config", bad_configurations, "OK", says="line") for method in _configuring),
    spoilt("Admin/PauseResourceManager", "reason", st.integers(257, 400).map(lambda length: "x" * length)),
    spoilt("Admin/PauseResourceManager", "reason", bad_texts.filter(lambda text: len(text) < 65)),
    spoilt("Admin/DrainNode", "partition", bad_texts),
    unknown("Admin/DrainNode", "partition", NOT_FOUND),
    spoilt("Admin/DrainNode", "node_id", bad_names),
    unknown("Admin/DrainNode", "node_id", NOT_FOUND),
    spoilt("Admin/EndApplication", "partition", bad_texts),
    unknown("Admin/EndApplication", "partition", NOT_FOUND),
    spoilt("Admin/EndApplication", "application_id", bad_names),
    unknown("Admin/EndApplication", "application_id", NOT_FOUND),
    spoilt("Admin/EndApplication", "reason", st.integers(257, 400).map(lambda length: "x" * length)),
    spoilt("Admin/Explain", "partition", bad_texts),
    unknown("Admin/Explain", "partition", NOT_FOUND),
    *(spoilt("Admin/Explain", field, bad_names) for field in ("application_id", "node_id")),
    spoilt("Admin/Explain", "queue", bad_names.map(lambda text: text * 2)),
    *(spoilt("Admin/Explain", field, _paths, NOT_FOUND, INVALID) for field in ("application_id", "node_id", "queue")),
    *(unknown("Admin/Explain", field, NOT_FOUND) for field in ("application_id", "node_id")),
    bad_names.map(
        lambda text: _call(
            "Admin/Explain",
            {"ask": admin.AskId(application_id="app", allocation_key=text)},
            (INVALID,),
            "allocation_key",
        )
    ),
    # (Without an application the key alone says which.)
    bad_names.filter(bool).map(
        lambda text: _call(
            "Admin/Explain",
            {"preemption": admin.AskId(application_id=text, allocation_key="k")},
            (INVALID,),
            "preemption",
        )
    ),
    st.just(BadCall("Admin/Explain", admin.ExplainRequest(rm_id=VICTIM).SerializeToString(), (INVALID,), "about")),
]

_sections = st.integers(5, 2**31 - 1) | st.just(0) | st.integers(-(2**31), -1)
_what: list[st.SearchStrategy[tuple[dict[str, Any], str]]] = [
    (long_texts | unknown_names).map(lambda text: ({"rm_id": text}, "rm_id" if len(text) > 64 else text)),
    st.just(({"rm_id": ""}, "rm")),  # there are three
    long_texts.map(lambda text: ({"partition": text}, "partition")),
    (unknown_names | _paths).map(lambda text: ({"partition": text}, "artition")),
    long_texts.map(lambda text: ({"queue": text * 2}, "queue")),
    (unknown_names | _paths).map(lambda text: ({"queue": text}, "ueue")),
    st.lists(_sections, min_size=1, max_size=3).map(lambda found: ({"sections": found}, "sections[0]")),
    st.integers(10_001, 2**32 - 1).map(lambda count: ({"nodes_max": count}, "nodes_max")),
]


def _get(what: tuple[dict[str, Any], str]) -> BadCall:
    return _call("Metrics/Get", what[0], (INVALID, NOT_FOUND), what[1])


def _watch(what: tuple[dict[str, Any], str]) -> BadCall:
    request = metrics.MetricsRequest.FromString(_get(what).raw)
    return _call("Metrics/Watch", {"what": request}, (INVALID, NOT_FOUND), what[1])


BAD_METRICS_CALLS: list[st.SearchStrategy[BadCall]] = [
    st.builds(_noise, st.sampled_from(["Metrics/Get", "Metrics/Watch"]), st.binary(max_size=50)),
    *(what.map(_get) for what in _what),
    *(what.map(_watch) for what in _what),
    spoilt("Metrics/Watch", "interval_ms", st.integers(1, 99)),
]


# ---- events ----------------------------------------------------------------------------------------------------------

OUT_OF_RANGE = "OUT_OF_RANGE"
_event_methods = st.sampled_from(["Events/Batch", "Events/Watch"])
_numbers = st.integers(1_000, 2**31 - 1) | st.integers(-(2**31), -1)
_filters: list[st.SearchStrategy[tuple[dict[str, Any], str]]] = [
    st.lists(_numbers, min_size=1, max_size=3).map(lambda found: ({"types": found}, "filter.types[0]")),
    st.lists(_numbers, min_size=1, max_size=3).map(lambda found: ({"change_types": found}, "filter.change_types[0]")),
    st.lists(_numbers, min_size=1, max_size=3).map(
        lambda found: ({"change_details": found}, "filter.change_details[0]")
    ),
    st.lists(unknown_names, min_size=101, max_size=103).map(lambda names: ({"object_ids": names}, "filter.object_ids")),
    st.integers(1_025, 2_000).map(lambda length: ({"object_ids": ["a", "x" * length]}, "filter.object_ids[1]")),
    st.just(({"object_ids": ["a", ""]}, "filter.object_ids[1]")),
    st.integers(1_025, 2_000).map(lambda length: ({"application_id": "x" * length}, "filter.application_id")),
    (_paths | unknown_names).map(lambda text: ({"queue": text}, "filter.queue")),
    st.integers(1_025, 2_000).map(lambda length: ({"queue": "root." + "x" * length}, "filter.queue")),
]
_places: list[st.SearchStrategy[tuple[dict[str, Any], str]]] = [
    st.integers(2**40, 2**64 - 1).map(lambda number: ({"id": number}, "from.id")),
    st.integers(-(2**63), -1).map(lambda number: ({"time_ns": number}, "from.time_ns")),
    st.just(({}, "from")),
]


def _filtered(method: str, found: tuple[dict[str, Any], str]) -> BadCall:
    return _call(method, {"filter": events.EventFilter(**found[0])}, (INVALID,), found[1])


def _placed(method: str, found: tuple[dict[str, Any], str]) -> BadCall:
    return _call(method, {"from": events.EventsFrom(**found[0])}, (INVALID, OUT_OF_RANGE), found[1])


BAD_EVENTS_CALLS: list[st.SearchStrategy[BadCall]] = [
    st.builds(_noise, _event_methods, st.binary(max_size=50)),
    st.builds(_filtered, _event_methods, st.one_of(_filters)),
    st.builds(_placed, _event_methods, st.one_of(_places)),
    *(unknown(method, "rm_id", NOT_FOUND) for method in ("Events/Batch", "Events/Watch")),
    *(spoilt(method, "rm_id", st.just(""), says="rm_id") for method in ("Events/Batch", "Events/Watch")),
    *(
        spoilt(method, field, st.integers(1_025, 2_000).map(lambda length: "x" * length))
        for method in ("Events/Batch", "Events/Watch")
        for field in ("rm_id", "instance")
    ),
    *(unknown(method, "instance", NOT_NOW) for method in ("Events/Batch", "Events/Watch")),
    spoilt("Events/Batch", "count", st.integers(10_001, 2**32 - 1)),
    st.builds(
        lambda after: BadCall(
            "Events/Watch",
            events.WatchEventsRequest(rm_id=VICTIM, request_events_after=after).SerializeToString(),
            (INVALID,),
            "request_events_after",
            answers_many=True,
        ),
        st.integers(0, 2**64 - 1),
    ),
    st.just(
        BadCall(
            "Events/Watch",
            events.WatchEventsRequest(rm_id=VICTIM, no_tracked_events=True).SerializeToString(),
            (INVALID,),
            "no_tracked_events",
            answers_many=True,
        )
    ),
]


# ---- callbacks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BrokenCallbacks:
    """Messages of a callback stream of the breaker, the last of which ends it."""

    messages: tuple[bytes, ...]
    statuses: tuple[str, ...]
    says: str


HELLO = callbacks.FromResourceManager(hello=callbacks.Hello(rm_id=BREAKER, predicates=True, state_dump=True))
_ids = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


def _hello(**fields: Any) -> bytes:
    return callbacks.FromResourceManager(hello=callbacks.Hello(**fields)).SerializeToString()


def _no_callbacks(raw: bytes, first: bool) -> BrokenCallbacks:
    raw = b"\x12\xff\x01" + raw if _readable(callbacks.FromResourceManager, raw) else raw
    opening = () if first else (HELLO.SerializeToString(),)
    return BrokenCallbacks((*opening, raw), (INVALID,), "muster.v1.FromResourceManager")


predicates = st.builds(
    lambda number, fits, reason: callbacks.PredicatesAnswer(id=number, fits=fits, reason=reason),
    _ids,
    st.booleans(),
    st.text(max_size=5) | st.integers(1, 2_000).map(lambda length: "x" * length),
)
preemption_predicates = st.builds(
    lambda number, success, index: callbacks.PreemptionPredicatesAnswer(
        id=number, response=si.PreemptionPredicatesResponse(success=success, index=index)
    ),
    _ids,
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
)
state_dumps = st.builds(
    lambda number, size, error: callbacks.StateDumpAnswer(id=number, json="{" * size, error=error),
    bad_names | unknown_names,
    st.integers(0, 1_000),
    st.text(max_size=5),
)
# Nobody asked: nothing of it may have an effect.
unasked_answers = st.builds(
    lambda some, others, dumps: callbacks.FromResourceManager(
        predicates=some, preemption_predicates=others, state_dumps=dumps
    ),
    st.lists(predicates, max_size=4),
    st.lists(preemption_predicates, max_size=4),
    st.lists(state_dumps, max_size=3),
)
broken_callbacks = st.one_of(
    st.builds(_no_callbacks, st.binary(max_size=100), st.booleans()),
    # no hello first, in nobody's name, a second one
    unasked_answers.map(lambda message: BrokenCallbacks((message.SerializeToString(),), (INVALID,), "hello")),
    bad_names.map(lambda name: BrokenCallbacks((_hello(rm_id=name),), (INVALID,), "hello.rm_id")),
    unknown_names.map(lambda name: BrokenCallbacks((_hello(rm_id=name, events=True),), (NOT_NOW,), name)),
    st.sampled_from([BREAKER, WITNESS, ""]).map(
        lambda name: BrokenCallbacks((HELLO.SerializeToString(), _hello(rm_id=name)), (INVALID,), "hello")
    ),
)


@dataclass(frozen=True)
class BadUpdate:
    """A configuration for the victim's callback stream, and the text that its result must have."""

    update: callbacks.ConfigurationUpdate
    says: str


def _update(id: str = "mine", says: str = "", **changes: Any) -> BadUpdate:  # noqa: A002 - the field's name
    request = si.UpdateConfigurationRequest(**{**_CONFIGURATION, **changes})  # type: ignore[arg-type]
    return BadUpdate(callbacks.ConfigurationUpdate(id=id, request=request), says)


bad_updates = st.one_of(
    st.sampled_from(["", "x" * (LIMITS["max_id_chars"] + 1)]).map(lambda name: _update(id=name, says="id")),
    (bad_names | unknown_names | st.just(WITNESS)).map(lambda name: _update(rmID=name, says="request.rmID")),
    bad_texts.map(lambda text: _update(policyGroup=text, says="policyGroup")),
    big_tags.map(lambda tags: _update(extraConfig=tags, says="extraConfig")),
    bad_configurations.map(lambda text: _update(config=text, says="line")),
)
