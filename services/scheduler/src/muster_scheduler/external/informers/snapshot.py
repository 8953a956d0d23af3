"""What changed between two answers that each hold everything: compared by content, object by object.

Kept of an answer are digests only, never its documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from muster_scheduler.core.external import ExternalKind
from muster_scheduler.external.contract import ChangeType, Delta, Document
from muster_scheduler.external.errors import CursorExpired

# (kind, id) as the document says them; of a document without a readable id ("", its digest).
Key = tuple[str, str]
# Key → digests of the different contents under it, sorted; more than one: it is there twice, with contradictions.
Contents = Mapping[Key, tuple[bytes, ...]]


class Seen(NamedTuple):
    """A document, and what it is compared by."""

    key: Key
    digest: bytes
    document: Document


def seen(document: Document) -> Seen:
    """The order of a document's fields does not matter."""
    digest = blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).digest()
    kind, object_id = document.get("kind", ExternalKind.NODE.value), document.get("id")
    if isinstance(kind, str) and kind and isinstance(object_id, str) and object_id:
        return Seen((kind, object_id), digest, document)
    return Seen(("", digest.hex()), digest, document)


def contents_of(documents: Iterable[Seen]) -> dict[Key, tuple[bytes, ...]]:
    """Of each key its contents; in the documents' order."""
    found: dict[Key, tuple[bytes, ...]] = {}
    for key, digest, _ in documents:
        known = found.get(key, ())
        if digest not in known:
            found[key] = tuple(sorted((*known, digest)))
    return found


def merged(parts: Iterable[Contents]) -> dict[Key, tuple[bytes, ...]]:
    """Of several answers that together hold everything."""
    found: dict[Key, tuple[bytes, ...]] = {}
    for key, digests in chain.from_iterable(part.items() for part in parts):
        known = found.get(key)
        found[key] = digests if known is None else tuple(sorted({*known, *digests}))
    return found


def cursor_of(contents: Contents) -> str:
    """A name for all of it: equal contents have equal names."""
    whole = blake2b(digest_size=16)
    for key in sorted(contents):
        whole.update(json.dumps(key).encode())
        for digest in contents[key]:
            whole.update(digest)
    return whole.hexdigest()


def differences(
    before: Contents, now: Contents, documents: Iterable[Seen], cursors: tuple[str, str]
) -> Sequence[Delta]:
    """What is gone, then what is there anew or differs.

    :param documents: those of ``now``, or at least those whose content is not in ``before``.
    :param cursors: from before, and of now. All deltas but the last have the first: they go together.
    :raises CursorExpired: an object is there twice with different contents, or was, and is different now. Which one
        counts is not for a source to say: a listing shows all of them.
    """
    changed = {key for key, digests in now.items() if before.get(key) != digests}
    for kind, object_id in changed:
        if len(now[kind, object_id]) > 1:
            raise CursorExpired(f"{kind} {object_id} is there twice with different content")
    found: list[tuple[ChangeType, Document]] = [
        (ChangeType.DELETED, {"kind": kind, "id": object_id})
        for kind, object_id in before
        if kind and (kind, object_id) not in now
    ]
    for key, _, document in documents:
        if key in changed:
            changed.discard(key)  # the same once more is nothing new
            found.append((ChangeType.MODIFIED if key in before else ChangeType.ADDED, document))
    if changed:
        raise CursorExpired(f"of {' '.join(min(changed))} only one of two contents is left")
    last = len(found) - 1
    return [Delta(what, document, cursors[index == last]) for index, (what, document) in enumerate(found)]
