"""Inventories as texts: valid ones, invalid ones, and their errors."""

from __future__ import annotations

import pytest
from muster_core.external.errors import BadDocument, CursorExpired, SourceSaysNonsense
from muster_informers.documents import read_document
from muster_informers.sources.document_parsing import Format, keyed_document, read_documents
from muster_informers.sources.listing_diff import contents_of, cursor_of, differences, digest_of, merged

A, B = {"id": "a"}, {"id": "b"}


@pytest.mark.parametrize(
    ("form", "text", "documents"),
    [
        ("json", '[{"id": "a"}, {"id": "b"}]', [A, B]),
        ("json", '\ufeff{"id": "a"}', [A]),
        ("json", "[]", []),
        ("json", '{"nodes": [], "pools": []}', []),
        (
            "json",
            '{"nodes": [{"id": "a"}], "allocations": [{"id": "v", "kind": "allocation"}]}',
            [{"id": "a", "kind": "node"}, {"id": "v", "kind": "allocation"}],
        ),
        ("ndjson", '{"id": "a"}\n\n{"id": "b"}\r\n', [A, B]),
        ("yaml", "- id: a\n- {id: b}\n", [A, B]),
        ("yaml", "id: a\n---\nid: b\n---\n", [A, B]),
        ("yaml", "offers:\n- id: a\n---\n- id: b\n", [{"id": "a", "kind": "offer"}, B]),
        ("yaml", "- &x {id: a, capacity: &c {vcore: 4}}\n- {id: b, capacity: *c}", [
            {"id": "a", "capacity": {"vcore": 4}}, {"id": "b", "capacity": {"vcore": 4}}]),
    ],
)  # fmt: skip
def test_documents_of_a_text(form: Format, text: str, documents: list[object]) -> None:
    assert read_documents(text.encode(), form, "hosts") == documents


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("json", b"", "hosts: empty; expected documents, or [] where there are none"),
        ("yaml", b"# nothing\n", "hosts: empty"),
        ("yaml", b"---\n---\n", "hosts: empty"),
        ("json", b"null", "hosts: nothing (null), expected a list of documents, or [] where there are none"),
        ("json", b"{}", "hosts: a mapping, expected a list of documents, or []"),
        ("json", b'"hosts"', "hosts: the text 'hosts', expected a list"),
        ("json", b'[\n{"id": "a"},\n{"id"', "hosts, line 3, column 6: Expecting ':' delimiter"),
        ("json", b'[{"id": "a", "id": "b"}]', "hosts: key 'id' stands twice in one object"),
        ("json", b"[NaN]", "hosts: NaN is no number of JSON"),
        ("json", b"[" * 200_000, "hosts: nested too deep"),
        ("json", b"[" * 60 + b"]" * 60, "hosts: nested deeper than 50"),
        ("json", b'[{"id": "\\ud800"}]', "hosts: half of a surrogate pair"),
        ("json", b'[{"id": "a\xff"}]', "hosts, line 1: not UTF-8 (byte 10)"),
        ("json", b'{"ndoes": []}', "hosts: 'ndoes' is no section; expected a list of documents"),
        ("yaml", b"pools: []\nnodes:\n", "hosts, line 2: nodes is nothing (null), expected a list ([] where"),
        ("yaml", b"nodes:\n  a: {}\n", "hosts, line 1: nodes is a mapping, expected a list"),
        ("yaml", b"- id: a\n- id: [b\n", "hosts, line 3, column 1: did not find expected ',' or ']'"),
        ("yaml", b"- id: a\n  id: b\n", "hosts, line 2, column 3: found duplicate key 'id'"),
        ("yaml", b"- !!python/object:os.system {id: a}\n", "hosts, line 1, column 3: tag"),
        ("ndjson", b'{"id": "a"}\n{"id": "b"}', "hosts, line 2: expected the end of the line; cut off?"),
        ("ndjson", b'{"id": "a"}\n{"id"\n', "hosts, line 2, column 6: Expecting"),
    ],
)
def test_nothing_is_taken_of_a_text_that_is_no_inventory(form: Format, text: bytes, said: str) -> None:
    with pytest.raises(SourceSaysNonsense) as caught:
        read_documents(text, form, "hosts")
    assert str(caught.value).startswith(said)


def test_a_part_that_is_no_document_is_given_on_with_its_place() -> None:
    text = "nodes:\n- id: a\n- 5\nallocations:\n- {id: v, kind: node}\n"
    documents = read_documents(text.encode(), "yaml", "hosts")
    assert documents[0] == {"id": "a", "kind": "node"}
    assert [problem_of(document) for document in documents[1:]] == [
        ("", "", "hosts, line 3: 5, expected a document"),
        ("allocation", "v", "hosts, line 5: kind 'node' in a section of kind 'allocation', expected the same"),
    ]


@pytest.mark.parametrize(
    ("key", "value", "document"),
    [
        ("host-1", b"{}", {"kind": "node", "id": "host-1"}),
        ("rack-1/host-1", b'{"id": "rack-1/host-1"}', {"kind": "node", "id": "rack-1/host-1"}),
        ("allocation/a/b", b'{"node": "n"}', {"kind": "allocation", "id": "a/b", "node": "n"}),
        ("node/", b"{}", {"kind": "node", "id": "node/"}),
    ],
)
def test_a_key_says_what_its_value_does_not(key: str, value: bytes, document: object) -> None:
    assert keyed_document(key, value, "topic[0]@7", 100) == document


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"[]", "topic[0]@7: a list, expected a JSON object"),
        (b"{", "topic[0]@7: Expecting property name"),
        (b"\xff", "topic[0]@7: 'utf-8' codec can't decode"),
        (b'{"id": "b"}', "topic[0]@7: kind 'node' and id 'b' of the document, 'node' and 'a' of its key; expected the"),
        (b'{"a": "%s"}' % (b"x" * 100), "topic[0]@7: 109 bytes, expected at most 100"),
    ],
)
def test_a_value_that_cannot_be_read_is_its_keys_problem(value: bytes, said: str) -> None:
    kind, object_id, problem = problem_of(keyed_document("a", value, "topic[0]@7", 100))
    assert (kind, object_id) == ("node", "a")
    assert problem.startswith(said)


def problem_of(document: object) -> tuple[str, str, str]:
    with pytest.raises(BadDocument) as caught:
        read_document(document)
    return caught.value.kind, caught.value.object_id, str(caught.value)


# ---- differences of two answers -------------------------------------------------------------------------------------


def changes(before: list[dict[str, object]], now: list[dict[str, object]]) -> list[tuple[str, object, str]]:
    documents = [digest_of(each) for each in now]
    found = differences(contents_of(map(digest_of, before)), contents_of(documents), documents, ("old", "new"))
    return [(str(delta.type), delta.document["id"], delta.cursor) for delta in found]


def test_differences_are_delivered_object_by_object_with_one_cursor() -> None:
    before = [{"id": "a"}, {"id": "b", "x": 1}, {"id": "c"}]
    now = [{"id": "d"}, {"x": 2, "id": "b"}, {"kind": "node", "id": "c"}]
    assert changes(before, now) == [
        ("DELETED", "a", "old"),
        ("ADDED", "d", "old"),
        ("MODIFIED", "b", "old"),
        ("MODIFIED", "c", "new"),
    ]
    assert changes(now, [{"id": "b", "x": 2}, {"id": "c", "kind": "node"}, {"id": "d"}, {"id": "d"}]) == []


def test_an_object_of_a_kind_is_none_of_another() -> None:
    assert changes([{"id": "a"}], [{"id": "a", "kind": "pool"}]) == [("DELETED", "a", "old"), ("ADDED", "a", "new")]


def test_two_contents_of_one_object_are_for_a_listing_to_show() -> None:
    twice: list[dict[str, object]] = [{"id": "a"}, {"id": "a", "x": 1}]
    with pytest.raises(CursorExpired, match="node a is there twice"):
        changes([{"id": "a"}], twice)
    with pytest.raises(CursorExpired, match="node a is there twice"):
        changes(twice, [*twice, {"id": "a", "x": 2}])
    assert changes(twice, [*reversed(twice), {"id": "b"}]) == [("ADDED", "b", "new")]  # known since the listing
    assert changes(twice, [{"id": "a", "x": 1}]) == [("MODIFIED", "a", "new")]


def test_of_a_page_that_was_not_read_again_no_document_is_at_hand() -> None:
    one, other = contents_of([digest_of({"id": "a"})]), contents_of([digest_of({"id": "a", "x": 1})])
    with pytest.raises(CursorExpired, match="only one of two"):
        differences(merged([one, other]), other, [], ("old", "new"))


def test_a_document_without_a_name_is_reported_once_and_never_as_removed() -> None:
    assert [name for name, *_ in changes_of_nameless([], [{"x": 1}])] == ["ADDED"]
    assert changes_of_nameless([{"x": 1}], [{"x": 1}]) == []
    assert changes_of_nameless([{"x": 1}], []) == []


def changes_of_nameless(before: list[dict[str, object]], now: list[dict[str, object]]) -> list[tuple[str, object]]:
    documents = [digest_of(each) for each in now]
    found = differences(contents_of(map(digest_of, before)), contents_of(documents), documents, ("old", "new"))
    return [(str(delta.type), delta.document) for delta in found]


def test_equal_contents_have_equal_cursors() -> None:
    one, other = contents_of([digest_of(A), digest_of(B)]), contents_of([digest_of(B), digest_of(A), digest_of(A)])
    assert cursor_of(one) == cursor_of(other)
    assert cursor_of(one) != cursor_of(contents_of([digest_of(A)]))
