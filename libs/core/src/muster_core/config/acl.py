"""Names, and access lists of queues: which users may submit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

QUEUE_NAME = re.compile(r"[a-zA-Z0-9_:#/@-]{1,64}\Z")
# Access lists, limits and filters share these two rules; YuniKorn's access lists accept fewer names.
USER_NAME = re.compile(r"[_a-zA-Z][a-zA-Z0-9:#/_.@-]*[$]?\Z")
GROUP_NAME = re.compile(r"[_a-zA-Z][a-zA-Z0-9:_.-]*\Z")
EVERYBODY = "*"

# Room for over a thousand names; for more, use groups. It also bounds the cache below.
ACL_CHARACTERS_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class AccessList:
    """A parsed access list.

    :param refused: entries that are no names, and admit nobody.
    """

    everybody: bool
    users: frozenset[str]
    groups: frozenset[str]
    refused: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def read(text: str) -> AccessList:
    """Parses ``users groups``, each separated by commas: ``*`` alone in its place is everybody, an empty list is
    nobody.

    Text that begins with a space names groups only. Other spaces at the ends and in the middle have no meaning.
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
    """Whether an access list names the user, one of the groups, or everybody."""
    if not text:
        return False
    access = read(text)
    return access.everybody or user in access.users or not access.groups.isdisjoint(groups)


def problem(text: str) -> str:
    """The problem of an access list; "": it has none."""
    if len(text) > ACL_CHARACTERS_MAX:
        return f"ACL of {len(text)} characters, expected at most {ACL_CHARACTERS_MAX}: groups are the means for more"
    if len(text.split()) > 2:
        return "multiple spaces found in ACL: expected 'users groups', each a comma-separated list"
    return ""
