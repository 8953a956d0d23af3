"""Requests of si.v1.Scheduler with something wrong in them, generated: what is sent, and what the answer must say.

Each item is good but for one field. Nothing of it may be taken, so a message has bad items only, and every item has to
be rejected once. Limits are the small ones of :data:`LIMITS`, so that a message which is over one stays small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from muster_gateway.stream_kind import StreamKind
from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import FOREIGN, NODE_PARTITION

VICTIM, WITNESS, BREAKER = "victim", "witness", "breaker"
LIMITS = {
    "max_id_chars": 64,
    "max_queue_chars": 128,
    "max_items": 100,
    "max_resource_types": 8,
    "max_tags": 16,
    "max_tags_bytes": 2_000,
    "max_groups": 4,
    "max_repeats": 1_000,
    "max_record_bytes": 20_000,
}
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
ALLOCATION, APPLICATION, NODE = StreamKind.ALLOCATION, StreamKind.APPLICATION, StreamKind.NODE
REQUESTS: dict[StreamKind, Any] = {
    ALLOCATION: si.AllocationRequest,
    APPLICATION: si.ApplicationRequest,
    NODE: si.NodeRequest,
}
# What the victim has.
APP, NODE_ID, RUNS, WAITS = "app", "n1", "runs", "waits"
SECRET = "hunter2-of-the-victim"


@dataclass(frozen=True)
class Spoilt:
    """One bad item.

    :param where: the list of the request that it belongs to.
    :param says: what the rejection must have in it: the field, and where it is short the value.
    """

    kind: StreamKind
    where: str
    item: Any
    says: tuple[str, ...]


def resource(**quantities: int) -> si.Resource:
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


# ---- good items, each of which would be taken as it is -----------------------------------------------------------


def allocation(**changes: Any) -> si.Allocation:
    fields = {
        "allocationKey": "new",
        "applicationID": APP,
        "partitionName": "default",
        "resourcePerAlloc": resource(vcore=1, memory=1),
        "allocationTags": {"token": SECRET},
    }
    return si.Allocation(**{**fields, **changes})


def old_ask(**changes: Any) -> si.AllocationAsk:
    fields = {
        "allocationKey": "new",
        "applicationID": APP,
        "partitionName": "default",
        "resourceAsk": resource(vcore=1, memory=1),
        "maxAllocations": 2,
        "tags": {"token": SECRET},
    }
    return si.AllocationAsk(**{**fields, **changes})


def release(**changes: Any) -> si.AllocationRelease:
    fields = {
        "partitionName": "default",
        "applicationID": APP,
        "allocationKey": RUNS,
        "terminationType": si.STOPPED_BY_RM,
    }
    return si.AllocationRelease(**{**fields, **changes})


def ask_release(**changes: Any) -> si.AllocationAskRelease:
    fields = {"partitionName": "default", "applicationID": APP, "allocationKey": WAITS}
    return si.AllocationAskRelease(**{**fields, **changes})


def application(**changes: Any) -> si.AddApplicationRequest:
    owner = si.UserGroupInformation(user="alice", groups=["users"])
    fields = {"applicationID": "new", "queueName": "root.a", "partitionName": "default", "ugi": owner}
    return si.AddApplicationRequest(**{**fields, "tags": {"token": SECRET}, **changes})


def removal(**changes: Any) -> si.RemoveApplicationRequest:
    return si.RemoveApplicationRequest(**{"applicationID": APP, "partitionName": "default", **changes})


def node(**changes: Any) -> si.NodeInfo:
    capacity = resource(vcore=10, memory=100)
    fields = {"nodeID": "new", "action": si.NodeInfo.CREATE, "schedulableResource": capacity}
    return si.NodeInfo(**{**fields, "attributes": {"token": SECRET}, **changes})


# ---- bad values ----------------------------------------------------------------------------------------------------

long_texts = st.integers(65, 400).map(lambda length: "x" * length)
broken_texts = st.builds(
    lambda before, control, after: before + control + after,
    st.text("ab", max_size=3),
    st.sampled_from(["\0", "\n", "\r\n", "\t", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u2029"]),
    st.text("cd", max_size=3),
)
bad_texts = long_texts | broken_texts
bad_names = bad_texts | st.just("")
unknown_names = st.text("ghost-0123456789", min_size=3, max_size=12).map(lambda text: f"ghost-{text}")
negatives = st.integers(INT64_MIN, -1)
huge = st.integers(2**53 + 1, INT64_MAX)
bad_resources = (
    st.builds(lambda value: resource(vcore=1, memory=value), negatives | huge)
    | st.builds(lambda name: resource(**{"vcore": 1, name: 1}), bad_names)
    | st.integers(9, 20).map(lambda count: resource(**{f"type-{number}": 1 for number in range(count)}))
)
no_resources = st.sampled_from([None, si.Resource(), resource(vcore=0), resource(vcore=0, memory=0)])
big_tags = (
    st.integers(17, 40).map(lambda count: {f"key-{number}": "" for number in range(count)})
    | st.integers(2_000, 4_000).map(lambda length: {"key": "v" * length})
    | st.integers(2_001, 4_000).map(lambda length: {"k" * length: ""})
)


def texts(field: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[dict[str, Any], tuple[str, ...]]]:
    return values.map(lambda value: ({field: value}, (field,)))


def of(field: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[dict[str, Any], tuple[str, ...]]]:
    return values.map(lambda value: ({field: value}, (field,)))


def unknown(field: str) -> st.SearchStrategy[tuple[dict[str, Any], tuple[str, ...]]]:
    """A well-formed, unknown name, which the answer must name."""
    return unknown_names.map(lambda name: ({field: name}, (name,)))


def _branches(
    kind: StreamKind, where: str, make: Callable[..., Any], *changes: st.SearchStrategy[Any]
) -> list[st.SearchStrategy[Spoilt]]:
    def spoil(change: tuple[dict[str, Any], tuple[str, ...]]) -> Spoilt:
        return Spoilt(kind, where, make(**change[0]), change[1])

    return [change.map(spoil) for change in changes]


bad_allocations = _branches(
    ALLOCATION,
    "allocations",
    allocation,
    texts("allocationKey", bad_names),
    texts("applicationID", bad_texts),
    unknown("applicationID"),
    texts("nodeID", bad_texts),
    unknown("nodeID"),
    texts("UUID", bad_texts),
    texts("partitionName", bad_texts),
    unknown("partitionName"),
    texts("taskGroupName", bad_texts),
    of("resourcePerAlloc", bad_resources | no_resources),
    of("allocationTags", big_tags),
    # a foreign allocation is on a node, which is known
    st.just(({"allocationTags": {FOREIGN: "static"}, "applicationID": ""}, ("nodeID",))),
    unknown_names.map(lambda name: ({"allocationTags": {FOREIGN: "static"}, "nodeID": name}, (name,))),
)
bad_asks = _branches(
    ALLOCATION,
    "asks",
    old_ask,
    texts("allocationKey", bad_names),
    texts("applicationID", bad_texts),
    unknown("applicationID"),
    texts("partitionName", bad_texts),
    unknown("partitionName"),
    texts("taskGroupName", bad_texts),
    of("resourceAsk", bad_resources | no_resources),
    of("maxAllocations", st.integers(-(2**31), -1) | st.integers(1_001, 2**31 - 1)),
    of("executionTimeoutMilliSeconds", st.integers(10**14, INT64_MAX)),
    of("tags", big_tags),
)
nothing_named = st.just(({"applicationID": "", "allocationKey": ""}, ("allocationKey", "applicationID")))
bad_releases = _branches(
    ALLOCATION,
    "releases.allocationsToRelease",
    release,
    texts("allocationKey", bad_texts),
    texts("applicationID", bad_texts),
    texts("partitionName", bad_texts),
    texts("UUID", bad_texts),
    nothing_named,
)
bad_ask_releases = _branches(
    ALLOCATION,
    "releases.allocationAsksToRelease",
    ask_release,
    texts("allocationKey", bad_texts),
    texts("applicationID", bad_texts),
    texts("partitionName", bad_texts),
    nothing_named,
)


def _owner(user: str, *groups: str) -> si.UserGroupInformation:
    return si.UserGroupInformation(user=user, groups=groups)


bad_applications = _branches(
    APPLICATION,
    "new",
    application,
    texts("applicationID", bad_names),
    st.just(({"applicationID": APP}, (APP, "already"))),
    texts("queueName", long_texts | broken_texts).map(
        # (A queue's path may be longer than other names.)
        lambda change: ({"queueName": change[0]["queueName"] * 2}, change[1])
    ),
    unknown_names.map(lambda name: ({"queueName": f"root.{name}"}, (name,))),
    st.sampled_from(["root.parent", "root"]).map(lambda path: ({"queueName": path}, (path,))),
    texts("partitionName", bad_texts),
    unknown("partitionName"),
    bad_texts.map(lambda text: ({"ugi": _owner(text)}, ("ugi.user",))),
    bad_names.map(lambda text: ({"ugi": _owner("alice", text)}, ("ugi.groups",))),
    st.integers(5, 20).map(lambda count: ({"ugi": _owner("alice", *["g"] * count)}, ("ugi.groups",))),
    st.sampled_from([None, _owner("")]).map(lambda owner: ({"ugi": owner}, ("ugi.user",))),
    st.sampled_from(["a b", "a:b?", "$(id)", "<x>"]).map(lambda user: ({"ugi": _owner(user, "g")}, (user,))),
    of("executionTimeoutMilliSeconds", st.integers(10**14, INT64_MAX)),
    of("placeholderAsk", bad_resources),
    texts("gangSchedulingStyle", bad_texts),
    of("tags", big_tags),
)
bad_removals = _branches(
    APPLICATION, "remove", removal, texts("applicationID", bad_names), texts("partitionName", bad_texts)
)


def _existing(bad: Spoilt) -> tuple[dict[str, Any], tuple[str, ...]]:
    good = allocation(allocationKey="other", nodeID="new")
    return {"existingAllocations": [good, bad.item]}, ("existingAllocations[1]", *bad.says)


_ACTIONS_ON_WHAT_IS_THERE = (
    si.NodeInfo.UPDATE,
    si.NodeInfo.DRAIN_NODE,
    si.NodeInfo.DECOMISSION,
    si.NodeInfo.DRAIN_TO_SCHEDULABLE,
)
bad_nodes = _branches(
    NODE,
    "nodes",
    node,
    texts("nodeID", bad_names),
    of("action", st.just(0) | st.integers(7, 2**31 - 1) | st.integers(-(2**31), -1)),
    of("schedulableResource", bad_resources),
    of("occupiedResource", bad_resources),
    of("attributes", big_tags),
    unknown_names.map(lambda name: ({"attributes": {NODE_PARTITION: name}}, (name,))),
    st.builds(
        lambda name, action: ({"nodeID": name, "action": action}, (name,)),
        unknown_names,
        st.sampled_from(_ACTIONS_ON_WHAT_IS_THERE),
    ),
    st.sampled_from([si.NodeInfo.CREATE, si.NodeInfo.CREATE_DRAIN]).map(
        lambda action: ({"nodeID": NODE_ID, "action": action}, (NODE_ID,))
    ),
    st.one_of(
        *_branches(
            ALLOCATION,
            "allocations",
            allocation,
            texts("allocationKey", bad_names),
            texts("partitionName", bad_texts),
            texts("UUID", bad_texts),
            of("resourcePerAlloc", bad_resources | no_resources),
            of("allocationTags", big_tags),
        )
    ).map(_existing),
)

BRANCHES = {
    ALLOCATION: [*bad_allocations, *bad_asks, *bad_releases, *bad_ask_releases],
    APPLICATION: [*bad_applications, *bad_removals],
    NODE: bad_nodes,
}
spoilt_items = {kind: st.one_of(*branches) for kind, branches in BRANCHES.items()}


def messages(kind: StreamKind) -> st.SearchStrategy[list[Spoilt]]:
    """Up to four bad items for one message, of all lists and both generations; some share a key on purpose."""
    return st.lists(spoilt_items[kind], min_size=1, max_size=4)


def request_of(kind: StreamKind, items: list[Spoilt], rm_id: str = VICTIM) -> Any:
    """The items in one request."""
    request = REQUESTS[kind](rmID=rm_id)
    for each in items:
        place = request
        for name in each.where.split("."):
            place = getattr(place, name)
        place.append(each.item)
    return request


# ---- whole messages that end their stream ------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """Messages of one stream of the breaker, in order; the last one ends it."""

    kind: StreamKind
    messages: tuple[bytes, ...]
    statuses: tuple[str, ...]
    says: str


def _full(kind: StreamKind) -> Any:
    """A message that would change much if it were accepted."""
    match kind:
        case StreamKind.APPLICATION:
            return si.ApplicationRequest(rmID=BREAKER, new=[application()], remove=[removal()])
        case StreamKind.NODE:
            return si.NodeRequest(rmID=BREAKER, nodes=[node(), node(nodeID=NODE_ID, action=si.NodeInfo.DECOMISSION)])
    releases = si.AllocationReleasesRequest(
        allocationsToRelease=[release()], allocationAsksToRelease=[ask_release(allocationKey="")]
    )
    return si.AllocationRequest(rmID=BREAKER, allocations=[allocation()], asks=[old_ask()], releases=releases)


def _is_readable(kind: StreamKind, raw: bytes) -> bool:
    try:
        REQUESTS[kind].FromString(raw)
    except Exception:
        return False
    return True


kinds = st.sampled_from([ALLOCATION, APPLICATION, NODE])


@st.composite
def noise(draw: st.DrawFn) -> Broken:
    """Bytes that are no message: random ones, a truncated message, or one with swapped bytes."""
    kind = draw(kinds)
    good = bytearray(_full(kind).SerializeToString())
    how = draw(st.sampled_from(["random", "cut", "damaged"]))
    if how == "random":
        raw = draw(st.binary(min_size=1, max_size=200))
    elif how == "cut":
        raw = bytes(good[: draw(st.integers(1, len(good) - 1))])
    else:
        for place in draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
            good[place] ^= draw(st.integers(1, 255))
        raw = bytes(good)
    if _is_readable(kind, raw):
        raw = b"\x0a\xff\x01" + raw[:100]  # says that more follows than does
    name = f"si.v1.{REQUESTS[kind].__name__}"
    # As a first message it cannot name the RM; as a second one it breaks the stream that has one.
    first = draw(st.booleans())
    opening = () if first else (REQUESTS[kind](rmID=BREAKER).SerializeToString(),)
    return Broken(kind, (*opening, raw), ("INVALID_ARGUMENT",), f"no {name}")


@st.composite
def strange_rms(draw: st.DrawFn) -> Broken:
    """A good message with the rmID of no RM, of another RM, or an invalid one."""
    kind = draw(kinds)
    first = draw(st.booleans())
    rm_id = draw(bad_names | unknown_names | (st.just(WITNESS) if not first else unknown_names))
    message = _full(kind)
    message.rmID = rm_id
    opening = () if first else (REQUESTS[kind](rmID=BREAKER).SerializeToString(),)
    statuses = ("INVALID_ARGUMENT", "FAILED_PRECONDITION") if first else ("INVALID_ARGUMENT",)
    return Broken(kind, (*opening, message.SerializeToString()), statuses, "rmID")


@st.composite
def crowds(draw: st.DrawFn) -> Broken:
    """More good items than a message may have. None may be accepted."""
    kind = draw(kinds)
    message, count = _full(kind), draw(st.integers(101, 150))
    match kind:
        case StreamKind.ALLOCATION:
            message.allocations.extend(allocation(allocationKey=f"k{number}") for number in range(count))
        case StreamKind.APPLICATION:
            message.new.extend(application(applicationID=f"a{number}") for number in range(count))
        case StreamKind.NODE:
            message.nodes.extend(node(nodeID=f"n-{number}") for number in range(count))
    return Broken(kind, (message.SerializeToString(),), ("RESOURCE_EXHAUSTED",), "expected at most 100")


broken_streams = st.one_of(noise(), strange_rms(), crowds())


# ---- registrations -------------------------------------------------------------------------------------------------

QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: "*"
        queues:
          - name: a
            resources:
              max: {vcore: 10, memory: 100}
          - name: parent
            parent: true
"""


@dataclass(frozen=True)
class BadRegistration:
    """A registration that must be refused with the status, in words that name the field (or the place in the text)."""

    raw: bytes
    statuses: tuple[str, ...]
    says: str


def _registration(change: tuple[dict[str, Any], tuple[str, ...]]) -> BadRegistration:
    fields, says = change
    good = {"rmID": VICTIM, "config": QUEUES, "extraConfig": {"ldap.password": SECRET}}
    request = si.RegisterResourceManagerRequest(**{**good, **fields})
    return BadRegistration(request.SerializeToString(), ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"), says[0])


def _spoil(old: str, new: str) -> str:
    assert old in QUEUES
    return QUEUES.replace(old, new)


bad_configurations = st.one_of(
    st.integers(INT64_MIN, -1).map(lambda value: _spoil("vcore: 10", f"vcore: {value}")),
    st.sampled_from(["lots", "10 Zi", "1e400", "[1]", "''", "0x10", "NaN"]).map(
        lambda value: _spoil("vcore: 10", f"vcore: {value}")
    ),
    st.sampled_from(["a b", "a.b", "'*'", '"\\e[2J"', "x" * 65, "[]", "{}"]).map(
        lambda name: _spoil("name: a\n", f"name: {name}\n")
    ),
    st.sampled_from(["]", "- [1", "  bad: [1\n", '"', "\t- x", "&a *b", "%", "x: !!python/object:os.system y"]).map(
        lambda tail: QUEUES + tail
    ),
    st.sampled_from(["partitions: {}", "partitions: 7", "[]", "7", "partitions:\n  - 7", "partitions: [[]]"]),
    st.just(QUEUES + QUEUES.replace("partitions:", "").replace("name: default", "name: default")),
)


def _no_registration(raw: bytes) -> BadRegistration:
    try:
        si.RegisterResourceManagerRequest.FromString(raw)
    except Exception:
        pass
    else:
        raw = b"\x0a\xff\x01" + raw[:100]
    return BadRegistration(raw, ("INVALID_ARGUMENT",), "RegisterResourceManagerRequest")


bad_registrations = st.one_of(
    st.one_of(
        texts("rmID", bad_names),
        texts("version", bad_texts),
        texts("policyGroup", bad_texts),
        of("buildInfo", big_tags),
        of("extraConfig", big_tags),
        bad_configurations.map(lambda text: ({"config": text}, ("line",))),
        st.integers(20_001, 30_000).map(lambda length: ({"config": "#" * length}, ("config",))),
    ).map(_registration),
    st.binary(min_size=1, max_size=100).map(_no_registration),
)
