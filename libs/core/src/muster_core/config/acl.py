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
_SEPARATOR = " "
_FIELDS_MAX = 2
_BLANKS = " \t\r\n"  # around a * they have no meaning: a block of YAML ends with a line break
_EXPECTED = "expected 'users groups', each a comma-separated list, with one space between"

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
    """Parses ``users groups``: two lists with commas, and at most one space between them. ``*`` alone in its place is
    everybody, an empty list is nobody.

    A space at the beginning means groups only, one at the end users only. A text with more spaces admits nobody: what
    its author meant by them is not known (see :func:`problem`). Other blanks separate nothing.
    """
    fields = text.split(_SEPARATOR)
    if len(fields) > _FIELDS_MAX:
        return AccessList(False, frozenset(), frozenset())
    if text.strip(_BLANKS) == EVERYBODY:
        return AccessList(True, frozenset(), frozenset())
    users, groups = ([name for name in field.split(",") if name] for field in [*fields, ""][:_FIELDS_MAX])
    refused = [name for name in users if not USER_NAME.match(name)]
    refused += [name for name in groups if not GROUP_NAME.match(name)]
    if EVERYBODY in fields:
        return AccessList(True, frozenset(), frozenset(), tuple(name for name in refused if name != EVERYBODY))
    return AccessList(
        False, frozenset(users).difference(refused), frozenset(groups).difference(refused), tuple(refused)
    )


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
    spaces = [position for position, character in enumerate(text, 1) if character == _SEPARATOR]
    if len(spaces) >= _FIELDS_MAX:
        return f"multiple spaces found in ACL (characters {spaces[0]} and {spaces[1]}): {_EXPECTED}"
    if len(text.split()) > _FIELDS_MAX:  # as YuniKorn's validation counts
        return f"multiple blanks found in ACL: {_EXPECTED}"
    return ""


def hint(text: str) -> str:
    """What an accepted access list may have meant instead; "": it says what it seems to."""
    users, space, groups = text.partition(_SEPARATOR)
    if space and groups and (users.endswith(",") or groups.startswith(",")):
        return f"the names after the space are groups, also after a comma: {_EXPECTED}"
    return ""
