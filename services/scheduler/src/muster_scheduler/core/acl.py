"""Names, and access lists of queues: who may submit (core-features §2.6)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

QUEUE_NAME = re.compile(r"[a-zA-Z0-9_:#/@-]{1,64}\Z")
# One pair of rules for access lists, limits and filters; the real core's access lists know fewer names (§4.1 row 10).
USER_NAME = re.compile(r"[_a-zA-Z][a-zA-Z0-9:#/_.@-]*[$]?\Z")
GROUP_NAME = re.compile(r"[_a-zA-Z][a-zA-Z0-9:_.-]*\Z")
EVERYBODY = "*"

# Over a thousand names; groups are the means for more. It bounds what the cache below may hold.
ACL_CHARACTERS_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class AccessList:
    """An access list that was read.

    :param refused: what stands where a name should, is none, and lets nobody in.
    """

    everybody: bool
    users: frozenset[str]
    groups: frozenset[str]
    refused: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def read(text: str) -> AccessList:
    """Reads ``users groups``, each separated by commas: ``*`` alone in its place is everybody, nothing is nobody.

    Text that begins with a space names groups only. Further spaces at the ends and in the middle say nothing.
    """
    fields = text.split()
    if len(fields) == 1 and text[0].isspace():
        fields.insert(0, "")
    users, groups = (_names(field) for field in [*fields[:2], "", ""][:2])
    refused = [name for name in users if not USER_NAME.match(name)]
    refused += [name for name in groups if not GROUP_NAME.match(name)]
    if EVERYBODY in refused and (users == [EVERYBODY] or groups == [EVERYBODY]):
        return AccessList(True, frozenset(), frozenset(), tuple(name for name in refused if name != EVERYBODY))
    return AccessList(
        False, frozenset(users).difference(refused), frozenset(groups).difference(refused), tuple(refused)
    )


def _names(field: str) -> list[str]:
    return [name for name in field.split(",") if name]


def allows(text: str, user: str, groups: Iterable[str]) -> bool:
    """Whether an access list names the user or one of the groups, or everybody."""
    if not text:
        return False
    access = read(text)
    return access.everybody or user in access.users or not access.groups.isdisjoint(groups)


def problem(text: str) -> str:
    """What is wrong with an access list, or ""."""
    if len(text) > ACL_CHARACTERS_MAX:
        return f"ACL of {len(text)} characters, expected at most {ACL_CHARACTERS_MAX}: groups are the means for more"
    if len(text.split()) > 2:
        return "multiple spaces found in ACL: expected 'users groups', each a comma-separated list"
    return ""
