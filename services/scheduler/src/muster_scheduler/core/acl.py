"""Access lists of queues: who may submit (core-features §2.6)."""

from __future__ import annotations

import re

QUEUE_NAME = re.compile(r"[a-zA-Z0-9_:#/@-]{1,64}\Z")


def allows(text: str, user: str, groups: tuple[str, ...]) -> bool:
    """Whether ``users groups`` (comma-separated each; ``*``: everybody; "": nobody) names the user or a group."""
    if not text.strip():
        return False
    users_text, _, groups_text = text.strip("\n").partition(" ")
    users = [name for name in users_text.split(",") if name]
    allowed_groups = [name for name in groups_text.strip().split(",") if name]
    if users == ["*"] or allowed_groups == ["*"]:
        return True
    return user in users or any(group in allowed_groups for group in groups)


def problem(text: str) -> str:
    """What is wrong with an access list, or ""."""
    if len(text.split()) > 2:
        return "multiple spaces found in ACL: expected 'users groups', each a comma-separated list"
    return ""
