"""Finds the changes between two complete answers by comparing the content of each object.

It keeps only digests of an answer, never the documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from muster_core.external.errors import CursorExpired
from muster_core.external.model import ExternalKind

from muster_informers.contract import ChangeType, Delta, Document

# The document's (kind, id); for a document without a readable id ("", its digest).
Key = tuple[str, str]
# Key → sorted digests of its contents; more than one: the answer has the object twice, with a contradiction.
Contents = Mapping[Key, tuple[bytes, ...]]


class DocumentDigest(NamedTuple):
    """A document, with the values for its comparison."""

    key: Key
    digest: bytes
    document: Document


def digest_of(document: Document) -> DocumentDigest:
    """Returns the document's key and digest. The order of a document's fields does not matter."""
    digest = blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).digest()
    kind, object_id = document.get("kind", ExternalKind.NODE.value), document.get("id")
    if isinstance(kind, str) and kind and isinstance(object_id, str) and object_id:
        return DocumentDigest((kind, object_id), digest, document)
    return DocumentDigest(("", digest.hex()), digest, document)


def contents_of(documents: Iterable[DocumentDigest]) -> dict[Key, tuple[bytes, ...]]:
    """Returns the contents of each key, in the documents' order."""
    contents: dict[Key, tuple[bytes, ...]] = {}
    for key, digest, _ in documents:
        digests = contents.get(key, ())
        if digest not in digests:
            contents[key] = tuple(sorted((*digests, digest)))
    return contents


def merged(parts: Iterable[Contents]) -> dict[Key, tuple[bytes, ...]]:
    """Merges the contents of several answers that together hold everything."""
    contents: dict[Key, tuple[bytes, ...]] = {}
    for key, digests in chain.from_iterable(part.items() for part in parts):
        existing = contents.get(key)
        contents[key] = digests if existing is None else tuple(sorted({*existing, *digests}))
    return contents


def cursor_of(contents: Contents) -> str:
    """Returns a name for all contents: equal contents have equal names."""
    whole = blake2b(digest_size=16)
    for key in sorted(contents):
        whole.update(json.dumps(key).encode())
        for digest in contents[key]:
            whole.update(digest)
    return whole.hexdigest()


def differences(
    before: Contents, now: Contents, documents: Iterable[DocumentDigest], cursors: tuple[str, str]
) -> Sequence[Delta]:
    """Returns the removed objects, then the new and changed ones.

    :param documents: the documents of ``now``, at least those whose content is not in ``before``.
    :param cursors: the earlier cursor and the new one. All deltas but the last have the earlier one, because they
        belong together.
    :raises CursorExpired: an object has two different contents, now or before. A source cannot decide which one counts:
        a listing shows both.
    """
    changed = dict.fromkeys(key for key, digests in now.items() if before.get(key) != digests)
    for kind, object_id in changed:
        if len(now[kind, object_id]) > 1:
            raise CursorExpired(f"{kind} {object_id} is there twice with different content")
    changes: list[tuple[ChangeType, Document]] = [
        (ChangeType.DELETED, {"kind": kind, "id": object_id})
        for kind, object_id in before
        if kind and (kind, object_id) not in now
    ]
    for key, _, document in documents:
        if key in changed:
            del changed[key]  # a repetition is no change
            changes.append((ChangeType.MODIFIED if key in before else ChangeType.ADDED, document))
    if changed:
        raise CursorExpired(f"of {' '.join(min(changed))} only one of two contents is left")
    last = len(changes) - 1
    return [
        Delta(change_type, document, cursors[index == last]) for index, (change_type, document) in enumerate(changes)
    ]
