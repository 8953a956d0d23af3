"""Documents: every valid one survives a round trip, and every other one gets a clear error."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster_core.external.errors import BadDocument
from muster_core.external.model import (
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalOffer,
    ExternalPool,
    ExternalQueue,
    id_of,
    kind_of,
)
from muster_core.external.validation import DURATION_NS_MAX, QUANTITY_MAX, problem_of
from muster_informers.documents import (
    FIELDS,
    VERSION_MAX,
    as_document,
    read_document,
    read_durations,
    read_identity,
)

NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=12)
AMOUNTS = st.dictionaries(NAMES, st.integers(0, QUANTITY_MAX), max_size=3)
TEXTS = st.dictionaries(NAMES, st.text(st.characters(codec="utf-8"), max_size=9), max_size=3)
DURATIONS = st.integers(0, DURATION_NS_MAX)
OBJECTS: st.SearchStrategy[ExternalObject] = st.one_of(
    st.builds(ExternalNode, NAMES, st.none() | AMOUNTS, AMOUNTS, TEXTS, st.booleans(), st.booleans(), st.booleans()),
    st.builds(ExternalAllocation, NAMES, NAMES, AMOUNTS, NAMES, st.integers(-(2**31), 2**31 - 1), TEXTS),
    st.builds(ExternalQueue, NAMES, AMOUNTS),
    st.builds(ExternalApplication, NAMES, NAMES, NAMES, st.lists(NAMES, max_size=3).map(tuple), TEXTS),
    st.builds(ExternalOffer, NAMES, NAMES, AMOUNTS, TEXTS, DURATIONS, st.booleans(), DURATIONS),
    st.builds(ExternalPool, NAMES, st.integers(0, QUANTITY_MAX), st.integers(0, QUANTITY_MAX)),
)
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(5000).map(lambda digits: 10**digits)
    | st.floats()
    | st.text(st.characters(exclude_categories=[]), max_size=9)
    | st.just("9" * 100_000)
    | st.binary(max_size=4)
    | st.sampled_from(["4", "16Gi", "500m", "30s", "-1", "1e3", "node", "offer"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
FIELD_NAMES = sorted({field.name for each in FIELDS.values() for field in each} | {"kind", "version", "unreadable"})


@settings(max_examples=200, derandomize=True)
@given(what=OBJECTS, version=st.none() | st.integers(0, VERSION_MAX))
def test_there_and_back(what: ExternalObject, version: int | None) -> None:
    document = as_document(what, version)
    said = read_document(document)
    assert said == (kind_of(what), id_of(what), version, what)
    assert read_identity(document) == said[:3]


@settings(max_examples=200, derandomize=True)
@given(
    document=st.one_of(
        JUNK,
        st.fixed_dictionaries(
            {"id": st.just("x") | JUNK},
            optional=dict.fromkeys(FIELD_NAMES, JUNK) | {"kind": st.sampled_from([*ExternalKind, "cow"])},
        ),
    )
)
def test_nothing_else_is_raised_and_nothing_bad_is_taken(document: object) -> None:
    for read in (read_document, read_identity):
        problem = ""
        try:
            said: Any = read(document)
        except BadDocument as error:
            problem = str(error)
            assert problem
        if read is read_document and not problem:
            assert problem_of(ExternalChange(said.kind, said.object_id, said.what)) == ""
        assert len(problem) < 1_000
        assert "\n" not in problem


def test_a_node_is_the_usual_kind_and_nothing_is_everything_as_by_default() -> None:
    assert read_document({"id": "h"}).what == ExternalNode("h")
    assert read_document({"id": "h", "capacity": None, "attributes": None}).what == ExternalNode("h")
    assert as_document(ExternalNode("h")) == {"kind": "node", "id": "h"}


@pytest.mark.parametrize(
    ("given", "amount"),
    [
        ({"vcore": 4000}, 4000),
        ({"vcore": "4m"}, 4),
        ({"vcore": 100}, 100),
        ({"vcore": 0}, 0),
        ({"vcore": "4"}, 4000),
        ({"vcore": "500m"}, 500),
        ({"memory": "16Gi"}, 16 * 2**30),
        ({"memory": "1k"}, 1000),
        ({"gpu": 2.0}, 2),
        ({"gpu": QUANTITY_MAX}, QUANTITY_MAX),
        ({"gpu": 0}, 0),
    ],
)
def test_amounts(given: dict[str, object], amount: int) -> None:
    what = read_document({"id": "h", "capacity": given}).what
    assert isinstance(what, ExternalNode)
    assert list((what.capacity or {}).values()) == [amount]


def test_a_pools_amounts_are_of_its_type() -> None:
    assert read_document({"kind": "pool", "id": "cad", "quantity": "2k"}).what == ExternalPool("cad", 2000)
    assert read_document({"kind": "pool", "id": "vcore", "quantity": "2"}).what == ExternalPool("vcore", 2000)


def test_durations() -> None:
    def offer(**more: object) -> ExternalObject:
        return read_document({"kind": "offer", "id": "o", "node_id": "h", "quantities": {}, **more}).what

    assert offer(idle="1m30s", grace_s=2) == ExternalOffer("o", "h", {}, idle_ns=90 * 10**9, grace_ns=2 * 10**9)
    assert offer(idle_s=0.5, grace="0") == ExternalOffer("o", "h", {}, idle_ns=5 * 10**8)
    assert read_durations({"idle": "2m", "grace_s": None}, ("idle", "grace")) == {"idle_ns": 120 * 10**9}
    with pytest.raises(BadDocument, match="unknown key, expected one of idle, idle_s"):
        read_durations({"kind": "2m"}, ("idle",))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"kind": "cow"}, "kind: 'cow', expected one of pool, queue, node, offer, application, allocation"),
        ({"kind": ["node"]}, "kind: a list of 1, expected one of"),
        ({"id": ""}, "id: '', expected a name"),
        ({"id": None}, "id: nothing, expected a text of 1 to 256 characters"),
        ({"id": 7}, "id: 7, expected a text"),
        ({"id": "x" * 10_000_000}, "id: 10000000 characters, expected at most 256"),
        ({"id": "a\nb"}, "expected no character that breaks a line"),
        ({"version": True}, "version: True, expected an integer from 0 to"),
        ({"version": -1}, "version: -1, expected an integer from 0 to"),
        ({"version": 2**63}, "expected an integer from 0 to 9223372036854775807"),
        ({"cpu": 4}, "cpu: unknown field, expected one of capacity, occupied"),
        ({4: 4}, "4: unknown field"),
        ({"capacity": [["vcore", 4]]}, "capacity: a list of 1, expected a mapping of resource types to amounts"),
        ({"capacity": {"vcore": True}}, "capacity.vcore: True, expected an amount from 0 to 9007199254740992"),
        ({"capacity": {"vcore": -4}}, "capacity.vcore: -4, expected an amount"),
        ({"capacity": {"vcore": 2**53 + 1}}, "capacity.vcore: 9007199254740993, expected an amount from 0 to"),
        ({"capacity": {"vcore": 0.5}}, "capacity.vcore: 0.5, expected an amount"),
        ({"capacity": {"vcore": 4}}, "capacity.vcore: 4, expected thousandths of a core as an integer from 100 on"),
        ({"capacity": {"vcore": 99.0}}, "capacity.vcore: 99.0, expected thousandths of a core"),
        ({"capacity": {"vcore": float("nan")}}, "capacity.vcore: nan, expected an amount"),
        ({"capacity": {"vcore": float("inf")}}, "capacity.vcore: inf, expected an amount"),
        ({"capacity": {"vcore": 10**5000}}, "capacity.vcore: a number of 16610 bits, expected an amount"),
        ({"capacity": {"memory": "16GiB"}}, "capacity.memory: '16GiB', expected an amount such as 4000, \"4\" or"),
        ({"capacity": {"memory": "1" * 10_000_000}}, "(10000000 characters), expected an amount"),
        ({"capacity": {"vcore": {"vcore": 1}}}, "capacity.vcore: a dict of 1, expected an amount"),
        ({"capacity": {b"vcore": 1}}, "name of a type"),
        ({"capacity": {f"t{n}": 1 for n in range(200)}}, "capacity: 200 types, expected at most 128"),
        ({"attributes": {"zone": 1}}, "attributes.zone: 1, expected a text by name"),
        ({"attributes": {"zone": b"a"}}, "attributes.zone: a bytes, expected a text by name"),
        ({"attributes": {"zone": "\ud800"}}, "half a character"),
        ({"attributes": {"zone": "x" * 10_000_000}}, "attributes: 10000004 bytes, expected at most 524288"),
        ({"schedulable": "no"}, "schedulable: 'no', expected true or false"),
        ({"kind": "offer"}, "node_id: missing, expected a name"),
        ({"kind": "offer", "node_id": None}, "node_id: missing, expected a name"),
        ({"kind": "offer", "node_id": "h"}, "quantities: missing, expected amounts by resource type"),
        ({"kind": "offer", "idle": 30}, "idle: 30, expected a duration such as 30s"),
        ({"kind": "offer", "idle": "-3s"}, "idle: '-3s', expected a duration such as 30s"),
        ({"kind": "offer", "idle_s": "30s"}, "idle_s: '30s', expected seconds from 0 to"),
        ({"kind": "offer", "idle_s": 1e300}, "idle_s: 1e+300, expected seconds"),
        ({"kind": "offer", "idle": "3s", "idle_s": 3}, "idle_s: idle_ns is given in two ways, expected one of them"),
        ({"kind": "application", "queue": "q", "groups": "a"}, "groups: 'a', expected a list of names"),
        ({"kind": "allocation", "priority": 2**31}, "priority: 2147483648, expected an integer from -2147483648"),
        ({"kind": "queue", "maximum": {"vcore": "many"}}, "maximum.vcore: 'many', expected an amount"),
    ],
)
def test_the_error_names_the_fault(more: dict[Any, Any], text: str) -> None:
    with pytest.raises(BadDocument) as caught:
        read_document({"id": "x", **more})
    assert text in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.object_id in {"x", ""}


def test_nested_beyond_reason() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadDocument, match="capacity: a list of 1"):
        read_document({"id": "x", "capacity": deep})
    with pytest.raises(BadDocument, match="document: a list of 1"):
        read_document(deep)


def test_an_unreadable_document_names_its_object() -> None:
    for document, whose in (
        ({"unreadable": "line 3", "kind": "pool", "id": "p"}, ("pool", "p")),
        ({"unreadable": "line 3", "kind": "cow", "id": "p"}, ("", "")),
        ({"unreadable": "line 3"}, ("", "")),
        ({"unreadable": 7, "id": 3}, ("", "")),
        ({"id": "h", "x": 1}, ("node", "h")),
        ({"kind": "cow", "id": "h"}, ("", "h")),
        ({"kind": "pool", "id": 3}, ("pool", "")),
    ):
        with pytest.raises(BadDocument) as caught:
            read_document(document)
        assert (caught.value.kind, caught.value.object_id) == whose


@pytest.mark.parametrize("why", ["", " ", "\n", None, 7])
def test_a_source_that_gives_no_reason_in_words_is_said_to_have_failed(why: object) -> None:
    with pytest.raises(BadDocument, match="the source could not read it: "):
        read_document({"id": "x", "unreadable": why})


def test_every_attribute_can_be_said() -> None:
    for kind, made in (
        (ExternalKind.NODE, ExternalNode),
        (ExternalKind.ALLOCATION, ExternalAllocation),
        (ExternalKind.QUEUE, ExternalQueue),
        (ExternalKind.APPLICATION, ExternalApplication),
        (ExternalKind.OFFER, ExternalOffer),
        (ExternalKind.POOL, ExternalPool),
    ):
        attributes = [field.name for field in fields(made)]
        assert attributes[1:] == list(dict.fromkeys(field.attribute for field in FIELDS[kind]))
