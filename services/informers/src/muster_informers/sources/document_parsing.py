"""Inventories in JSON, NDJSON and YAML; a text is read as a whole or not at all.

A text is

- a list of documents, or
- a mapping of sections: ``{nodes: [...], allocations: [...], queues: …, applications: …, offers: …, pools: …}``; a
  document in a section need not say its kind, and a kind without a section has no objects, or
- one document (it has an ``id``).

YAML may hold several of these, one after another; NDJSON has one document per line. Any other text is nonsense as a
whole and nothing of it is taken, because objects that are missing in an answer count as gone. So an empty text is
nonsense, too; an empty inventory is ``[]``. A single unreadable document is passed on with the reason in it
(:data:`~muster_informers.documents.UNREADABLE`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from muster_core.external.errors import SourceSaysNonsense
from muster_core.external.model import ExternalKind
from muster_queue_config import yaml_tree

from muster_informers.contract import Document
from muster_informers.documents import UNREADABLE

Format = Literal["json", "ndjson", "yaml"]

SECTIONS: Mapping[str, str] = {f"{kind.value}s": kind.value for kind in ExternalKind}
_KINDS = frozenset(SECTIONS.values())

_DEPTH_MAX = 50
_QUOTED_MAX = 60


class _NotJson(ValueError):
    pass


def unreadable(reason: str, kind: str = "", object_id: str = "") -> Document:
    """A document that holds the reason why it is unreadable; with kind and id if they are known."""
    document = {UNREADABLE: reason}
    if kind:
        document["kind"] = kind
    if object_id:
        document["id"] = object_id
    return document


def read_documents(data: bytes, form: Format, where: str) -> list[Document]:
    """Returns all documents of a text.

    :param where: for errors: the file, or the address.
    :raises SourceSaysNonsense: with line and column if they are known.
    """
    text = _decoded(data, where)
    documents: list[Document] = []
    match form:
        case "json":
            _append_root(_json(text, where), None, where, documents)
        case "ndjson":
            for root, line in _lines(text, where):
                documents.append(_document(root, "", f"{where}, line {line}"))
        case "yaml":
            for root, tree in _yaml(text, where):
                _append_root(root, tree, where, documents)
    return documents


def keyed_document(key: str, value: bytes, where: str, max_bytes: int) -> Document:
    """A document from a store of keys and JSON values; the key gives the kind and id if the value does not.

    :param key: ``kind/id``, or the id of a node.
    :returns: an unreadable one where the value cannot be read, or contradicts its key.
    """
    kind, object_id = kind_and_id(key)
    if len(value) > max_bytes:
        return unreadable(f"{where}: {len(value)} bytes, expected at most {max_bytes}", kind, object_id)
    try:
        document = _plain_json(value.decode())
    except (ValueError, RecursionError) as error:
        return unreadable(f"{where}: {_parse_problem(error)}", kind, object_id)
    if not isinstance(document, dict):
        return unreadable(f"{where}: {_named(document)}, expected a JSON object", kind, object_id)
    declared = (document.get("kind", kind), document.get("id", object_id))
    if declared != (kind, object_id):
        return unreadable(
            f"{where}: kind {declared[0]!r} and id {declared[1]!r} of the document, {kind!r} and {object_id!r} of its "
            "key; expected the same",
            kind,
            object_id,
        )
    return {**document, "kind": kind, "id": object_id}


def kind_and_id(key: str) -> tuple[str, str]:
    """The object that a key ``kind/id`` names; a key without a kind is the id of a node."""
    kind, slash, object_id = key.partition("/")
    if slash and kind in _KINDS and object_id:
        return kind, object_id
    return ExternalKind.NODE.value, key


def _decoded(data: bytes, where: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SourceSaysNonsense(f"{where}, line {line}: not UTF-8 (byte {error.start})") from None
    if not text.strip():
        raise SourceSaysNonsense(f"{where}: empty; expected documents, or [] where there are none")
    return text


# ---- roots of a text ------------------------------------------------------------------------------------------------


def _append_root(root: object, tree: yaml_tree.Node | None, where: str, documents: list[Document]) -> None:
    """Appends the documents of one root to the others.

    :param tree: the root with the places of its nodes; None: the places are not known.
    """
    match root:
        case list():
            documents.extend(_document(document, "", _at(where, tree, n)) for n, document in enumerate(root))
        case dict() if "id" in root:
            documents.append(root)
        case dict() if root:
            for name, section in root.items():
                section_tree, at = None, where
                if isinstance(tree, yaml_tree.Mapping):
                    section_tree, at = tree[name], f"{where}, line {tree.key_places[name][0] + 1}"
                if name not in SECTIONS:
                    raise SourceSaysNonsense(
                        f"{at}: {name!r} is no section; expected a list of documents, a document with an id, or some "
                        f"of: {', '.join(SECTIONS)}"
                    )
                if not isinstance(section, list):
                    raise SourceSaysNonsense(
                        f"{at}: {name} is {_named(section)}, expected a list ([] where there are none)"
                    )
                documents.extend(
                    _document(document, SECTIONS[name], _at(where, section_tree, n, name))
                    for n, document in enumerate(section)
                )
        case _:
            at = where if tree is None else f"{where}, line {tree.place[0] + 1}"
            raise SourceSaysNonsense(f"{at}: {_named(root)}, expected a list of documents, or [] where there are none")


def _at(where: str, tree: yaml_tree.Node | None, index: int, section: str = "") -> str:
    if isinstance(tree, yaml_tree.Sequence):
        return f"{where}, line {tree[index].place[0] + 1}"
    return f"{where}, {section or 'document '}[{index}]"


def _document(document: object, kind: str, where: str) -> Document:
    if not isinstance(document, dict):
        return unreadable(f"{where}: {_named(document)}, expected a document", kind)
    if not kind:
        return document
    if document.get("kind", kind) != kind:
        object_id = document.get("id")
        reason = f"{where}: kind {document['kind']!r} in a section of kind {kind!r}, expected the same"
        return unreadable(reason, kind, object_id if isinstance(object_id, str) else "")
    return {**document, "kind": kind}


def _named(value: object) -> str:
    match value:
        case None:
            return "nothing (null)"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str():
            return f"the text {value[:_QUOTED_MAX]!r}"
        case _:
            return f"{value!r}"[:_QUOTED_MAX]


# ---- JSON -----------------------------------------------------------------------------------------------------------


def _json(text: str, where: str, line: int = 0) -> object:
    """Parses a JSON text.

    :param line: its line, if it is one of several.
    """
    try:
        return _plain_json(text)
    except json.JSONDecodeError as error:
        raise SourceSaysNonsense(f"{where}, line {line or error.lineno}, column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise SourceSaysNonsense(f"{where}{f', line {line}' if line else ''}: {_parse_problem(error)}") from None


def _lines(text: str, where: str) -> Iterable[tuple[object, int]]:
    # A text without a line end may have been cut off within its last line.
    if not text.endswith("\n"):
        raise SourceSaysNonsense(f"{where}, line {text.count(chr(10)) + 1}: expected the end of the line; cut off?")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _json(line, where, number), number


def _plain_json(text: str) -> object:
    """Strict JSON: without repeated keys, NaN and half surrogate pairs, and with a bounded depth.

    :raises ValueError: json.JSONDecodeError where the place is known.
    """
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    _check(value, text)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys: set[str] = set()
        twice = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise _NotJson(f"key {twice!r} stands twice in one object")
    return mapping


def _no_constant(name: str) -> object:
    raise _NotJson(f"{name} is no number of JSON")


def _check(value: object, text: str) -> None:
    """Refuses values that later code could fail on: a depth beyond all documents, and texts that are not Unicode."""
    level: list[object] = [value]
    for _ in range(_DEPTH_MAX):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            break
    else:
        raise _NotJson(f"nested deeper than {_DEPTH_MAX}")
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _NotJson("half of a surrogate pair in a text") from None


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _parse_problem(error: BaseException) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


# ---- YAML -----------------------------------------------------------------------------------------------------------


def _yaml(text: str, where: str) -> Sequence[tuple[object, yaml_tree.Node]]:
    problems: list[str] = []

    def report(position: yaml_tree.Place | None, message: str) -> None:
        at = "" if position is None else f", line {position[0] + 1}, column {position[1] + 1}"
        problems.append(f"{where}{at}: {message}")

    roots: list[tuple[object, yaml_tree.Node]] = []
    for tree in yaml_tree.read_trees(text, report):
        if problems:
            break
        root = _plain(tree)
        if root is not None:  # an empty document beside others is a stray "---"
            _check_yaml(root, text, f"{where}, line {tree.place[0] + 1}")
            roots.append((root, tree))
    if problems:
        raise SourceSaysNonsense(problems[0])
    if not roots:
        raise SourceSaysNonsense(f"{where}: empty; expected documents, or [] where there are none")
    return roots


def _check_yaml(root: object, text: str, where: str) -> None:
    try:
        _check(root, text)
    except ValueError as error:
        raise SourceSaysNonsense(f"{where}: {error}") from None


def _plain(tree: yaml_tree.Node) -> object:
    match tree:
        case yaml_tree.Scalar():
            return tree.value
        case yaml_tree.Mapping():
            return {key: _plain(child) for key, child in tree.items()}
        case yaml_tree.Sequence():
            return [_plain(child) for child in tree]
