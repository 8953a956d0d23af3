"""External changes are encoded and decoded without loss, or with an error that names the fault."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from muster_core.external.errors import BadDocument
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    SetSourceState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.external.validation import QUANTITY_MAX, REASON_CHARACTERS_MAX, sanitize, text_problem
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_scheduler import ingest
from muster_state import external_codec as codec
from muster_state.external_codec import SourceStateNote


def changed(what: ExternalObject) -> ExternalChange:
    return ExternalChange(kind_of(what), id_of(what), what)


NODE = ExternalNode("h/1 é", {"vcore": 4000, "memory": 0}, {"vcore": 1}, {"zone": "a"}, False, True, False)
EVERY = (
    changed(NODE),
    changed(ExternalNode("h2")),
    changed(ExternalNode("h3", {})),
    changed(ExternalAllocation("vm-1", "h/1 é", {"vcore": 2}, "app", -7, {"a": "b\nc"})),
    changed(ExternalQueue("root.vms", {"vcore": QUANTITY_MAX})),
    changed(ExternalQueue("root.empty", {})),
    changed(ExternalApplication("app", "root.vms", "alice", ("a", "b"), {"x": ""})),
    changed(ExternalOffer("o-1", "h2", {"vcore": 8}, {"rack": "3"}, 30, True, 60)),
    changed(ExternalPool("licence", 0)),
    changed(ExternalPool("licence-2", 10, 4)),
    ExternalChange(ExternalKind.NODE, "gone", None),
    ExternalChange(ExternalKind.OFFER, "lost", None, stale=True),
)


def there_and_back(
    changes: tuple[ExternalChange, ...], note: SourceStateNote | None = None
) -> list[ApplyExternalChanges | SetSourceState]:
    envelope = pb.RequestEnvelope.FromString(codec.encode("rm", "Default", "vms", "life-1", changes, note))
    assert envelope.rm_id == "rm"
    return ingest.external(envelope.external)


def test_every_kind_comes_back_as_it_went() -> None:
    note = SourceStateNote(SourceState.STALE, drains=False, reason="away")
    assert there_and_back(EVERY, note) == [
        ApplyExternalChanges("default", "vms", "life-1", EVERY),
        SetSourceState("default", "vms", "life-1", SourceState.STALE, False, "away"),
    ]


def test_a_note_comes_alone_and_changes_do() -> None:
    assert there_and_back(EVERY[:1]) == [ApplyExternalChanges("default", "vms", "life-1", EVERY[:1])]
    for state in SourceState:
        assert there_and_back((), SourceStateNote(state)) == [SetSourceState("default", "vms", "life-1", state)]


def test_a_reason_is_one_line_of_bounded_length() -> None:
    (command,) = there_and_back((), SourceStateNote(SourceState.STALE, reason="first\n\tsecond\x1b[0m" + "x" * 10_000))
    assert isinstance(command, SetSourceState)
    assert command.reason.startswith("first second [0mxxx")
    assert len(command.reason) == REASON_CHARACTERS_MAX


def test_size_of_is_what_a_change_takes() -> None:
    for change in EVERY:
        alone = len(codec.encode("rm", "", "vms", "l", (change,)))
        twice = len(codec.encode("rm", "", "vms", "l", (change, change)))
        assert twice - alone <= codec.size_of(change) <= twice - alone + 8


WRONG = [
    (changed(replace(NODE, capacity={"vcore": -1})), "capacity['vcore']: -1, expected an integer from 0 to"),
    (changed(replace(NODE, capacity={"vcore": QUANTITY_MAX + 1})), f"capacity['vcore']: {QUANTITY_MAX + 1}, expected"),
    (changed(replace(NODE, occupied={"": 1})), "occupied, name of a type: '', expected a name"),
    (changed(replace(NODE, capacity={f"t{n}": 1 for n in range(129)})), "capacity: 129 types, expected at most 128"),
    (changed(replace(NODE, node_id="a\nb")), r"id: 'a\nb' has U+000A, expected no character that breaks a line"),
    (changed(replace(NODE, node_id="x" * 257)), "id: 257 characters, expected at most 256"),
    (changed(replace(NODE, node_id=" ")), "id: ' ', expected a name"),
    (changed(replace(NODE, attributes={"a": "x" * 600_000})), "attributes: 600001 bytes, expected at most 524288"),
    (changed(ExternalAllocation("vm", "", {})), "node_id: '', expected a name"),
    (changed(ExternalAllocation("vm", "h", {"vcore": 1}, priority=2**31)), "priority: 2147483648, expected"),
    (changed(ExternalApplication("a", "")), "queue: '', expected a name"),
    (changed(ExternalApplication("a", "root.q", groups=("g",) * 1025)), "groups: 1025, expected at most 1024"),
    (changed(ExternalOffer("o", "h", {}, idle_ns=-1)), "idle_ns: -1, expected an integer from 0 to"),
    (changed(ExternalOffer("o", "h", {}, grace_ns=2**62)), "grace_ns: 4611686018427387904, expected"),
    (changed(ExternalPool("licence", -3)), "quantity: -3, expected an integer from 0 to"),
    (ExternalChange(ExternalKind.NODE, "h/1 é", NODE, stale=True), "stale: true beside an object"),
    (ExternalChange(ExternalKind.NODE, "other", NODE), "id: 'other', with an object that says 'h/1 \\xe9'"),
    (ExternalChange(ExternalKind.POOL, "h/1 é", NODE), "kind: pool, with an object of kind node"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said for _, said in WRONG])
def test_invalid_objects_are_reported_on_both_sides_of_the_log(change: ExternalChange, said: str) -> None:
    with pytest.raises(BadDocument) as on_the_way_in:
        codec.encode("rm", "", "vms", "l", (EVERY[0], change))
    assert str(on_the_way_in.value).startswith(said)
    assert on_the_way_in.value.kind == change.kind
    try:
        item = codec.to_proto(change)
    except (TypeError, ValueError):
        return  # it cannot be put into a message at all
    if change.what is not None and id_of(change.what) != change.object_id:
        return  # (the message has one id only)
    with pytest.raises(BadDocument) as on_the_way_out:
        codec.decode(pb.ExternalChanges(source="vms", life="l", changes=[codec.to_proto(EVERY[0]), item]))
    assert str(on_the_way_out.value).startswith("changes[1]: ")
    if kind_of(change.what or NODE) is change.kind:
        assert said in str(on_the_way_out.value)


def _nested(depth: int) -> list[object]:
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "what",
    [
        replace(NODE, capacity={"vcore": True}),
        replace(NODE, capacity={"vcore": 1.5}),
        replace(NODE, capacity={"vcore": 10**5000}),
        replace(NODE, capacity={"vcore": _nested(2_000)}),
        replace(NODE, capacity="many"),
        replace(NODE, schedulable="yes"),
        replace(NODE, attributes={"a": 1}),
        replace(NODE, attributes={"a": "\ud800"}),
        replace(NODE, occupied={7: 1}),
        ExternalApplication("a", "root.q", groups=["a"]),  # type: ignore[arg-type]
        ExternalAllocation("k", "n", {}, app_id=None),  # type: ignore[arg-type]
        ExternalPool("p", None),  # type: ignore[arg-type]
    ],
)
def test_a_handler_that_gives_wrong_types_gets_an_error(what: ExternalObject) -> None:
    with pytest.raises(BadDocument, match="expected"):
        codec.check(changed(what))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (pb.ExternalChanges(), "source: '', expected a name"),
        (pb.ExternalChanges(source="vms"), "life: '', expected a name"),
        (pb.ExternalChanges(source="vms", life="l"), "neither changes nor a note"),
        (pb.ExternalChanges(source="vms", life="l", partition="a\0b"), "partition: "),
        (
            pb.ExternalChanges(source="vms", life="l", note=pb.ExternalSourceNote(state="ALIVE")),
            "note.state: 'ALIVE', expected one of LISTING, LIVE, STALE",
        ),
        (
            pb.ExternalChanges(source="vms", life="l", changes=[pb.ExternalChange(kind="vm", id="x")]),
            "changes[0]: kind: 'vm', expected one of pool, queue, node",
        ),
        (
            pb.ExternalChanges(
                source="vms", life="l", changes=[pb.ExternalChange(kind="node", id="x", pool=pb.ExternalPool())]
            ),
            "changes[0]: kind: node, with an object of kind pool",
        ),
        (
            pb.ExternalChanges(
                source="vms",
                life="l",
                changes=[pb.ExternalChange(kind="node", id="x", node=pb.ExternalNode(capacity={"vcore": 1}))],
            ),
            "changes[0]: capacity: given beside has_capacity false",
        ),
    ],
)
def test_an_ambiguous_message_is_reported(message: pb.ExternalChanges, said: str) -> None:
    with pytest.raises(BadDocument) as error:
        codec.decode(message)
    assert str(error.value).startswith(said)


def test_any_text_made_plain_is_accepted() -> None:
    rng = random.Random(4)
    for _ in range(300):
        text = "".join(chr(rng.choice((rng.randrange(0x20), rng.randrange(0x3000), 0x2028, 0xD800))) for _ in range(80))
        assert text_problem(sanitize(text, 100), "reason", 100) == ""
