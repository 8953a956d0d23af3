"""The resource managers (RMs) and partitions that a caller may read, as the gateway tells them to services behind it.

A rule is a pair of globs: one for rmIDs, one for names of partitions. ``*`` stands for any characters and ``?`` for one
character. All other characters stand for themselves, because an rmID may contain brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from urllib.parse import quote, unquote

REACH_METADATA = "x-muster-reach"
REACH_HEADER = REACH_METADATA.encode("ascii")
ANY = "*"

Rule = tuple[str, str]


@lru_cache(maxsize=4096)
def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob.replace("[", "[[]")))


def matches_glob(glob: str, name: str) -> bool:
    """Tells whether a name matches a glob. Letter case counts."""
    return glob == ANY or _compiled(glob).match(name) is not None


@dataclass(frozen=True, slots=True)
class ReadScope:
    """What a caller may read. True: it may read something.

    :param rules: (glob of rmIDs, glob of partitions); one match suffices.
    """

    rules: tuple[Rule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    @property
    def is_all(self) -> bool:
        """Whether it is every partition of every RM."""
        return (ANY, ANY) in self.rules

    def can_read_rm(self, rm_id: str) -> bool:
        """Tells whether at least one partition of the RM may be read."""
        return any(matches_glob(rm, rm_id) for rm, _ in self.rules)

    def can_read_all_of(self, rm_id: str) -> bool:
        """Tells whether every partition of the RM may be read, and thus what belongs to no single partition."""
        return any(partition == ANY and matches_glob(rm, rm_id) for rm, partition in self.rules)

    def can_read_partition(self, rm_id: str, partition: str) -> bool:
        """Tells whether a partition of the RM may be read."""
        return any(matches_glob(rm, rm_id) and matches_glob(name, partition) for rm, name in self.rules)

    def is_subset_of(self, superset: ReadScope) -> bool:
        """Tells whether each rule is also one of the other reach. (False may be wrong where globs overlap.)"""
        return superset.is_all or set(self.rules) <= set(superset.rules)

    def header(self) -> list[tuple[bytes, bytes]]:
        """Returns the header that tells a service behind the gateway; empty for everything."""
        if self.is_all:
            return []
        text = ",".join(f"{quote(rm, safe='*')}/{quote(partition, safe='*')}" for rm, partition in self.rules)
        return [(REACH_HEADER, text.encode("ascii"))]

    def metadata(self) -> list[tuple[str, str]]:
        """Returns :meth:`header` as gRPC metadata."""
        return [(name.decode("ascii"), value.decode("ascii")) for name, value in self.header()]


EVERYTHING = ReadScope(((ANY, ANY),))
NOTHING = ReadScope()


def scope_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> ReadScope:
    """Returns the reach in the gateway's header; everything if the gateway sent none."""
    values = [value for name, value in headers if name == REACH_HEADER]
    return _parsed(b",".join(values)) if values else EVERYTHING


def scope_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> ReadScope:
    """Returns :func:`scope_from_headers` of gRPC metadata."""
    return scope_from_headers((name.encode(), value.encode()) for name, value in metadata if isinstance(value, str))


@lru_cache(maxsize=256)
def _parsed(text: bytes) -> ReadScope:
    pairs = (rule.partition("/") for rule in text.decode("latin-1").split(",") if rule)
    return ReadScope(tuple((unquote(rm), unquote(partition)) for rm, _, partition in pairs))
