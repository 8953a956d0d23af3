"""Which queue an application must go to: the placement rules, told naively from the dictionary."""

from __future__ import annotations

import re

from simulation.books import INDEPENDENT, Document
from simulation.partition_books import Books

_NAME = re.compile(r"[a-zA-Z0-9_:#/@-]{1,64}\Z")
_USER = re.compile(r"[_a-zA-Z][a-zA-Z0-9:#/_.@-]*[$]?\Z")
RECOVERY = "root.@recovery@"


class _Refused(Exception):
    """No further rule is asked."""


def leaf_for(books: Books, queue: str, user: str, groups: tuple[str, ...], tags: dict[str, str]) -> str | None:
    """The path of the leaf, which may have to be made; None: the application must be rejected."""
    forced = tags.get("application.create.force") == "true"
    try:
        for rule in books.rules:
            path = _named(books, rule, queue, user, groups, tags)
            if path and _takes(books, path, user, groups):
                return path if _can_be_made(books, path) else RECOVERY if forced else None
    except _Refused:
        return RECOVERY if forced else None
    if forced:
        return RECOVERY
    if "root.default" in books.queues and _takes(books, "root.default", user, groups):
        return "root.default"
    return None


def is_user_name(name: str) -> bool:
    return bool(_USER.match(name))


def _named(books: Books, rule: Document, queue: str, user: str, groups: tuple[str, ...], tags: dict[str, str]) -> str:
    if "filter" in rule and not _lets_in(rule["filter"], user, groups):
        return ""
    name = {
        "provided": queue,
        "user": user,
        "fixed": rule.get("value", ""),
        "tag": tags.get(rule.get("value", ""), ""),
    }[rule["name"]].lower()
    if not name:
        return ""
    if rule["name"] != "user" and (name.startswith("root.") or (name == "root" and rule["name"] == "fixed")):
        path = name
    else:
        above = "root"
        if "parent" in rule:
            above = _named(books, rule["parent"], queue, user, groups, tags)
            if above in books.queues and books.queues[above].leaf:
                raise _Refused
        if not above:
            return ""
        path = f"{above}.{name if rule['name'] == 'fixed' else name.replace('.', '_dot_')}"
    if path in (RECOVERY, INDEPENDENT):
        return ""
    if path in books.queues:
        return path
    if path.startswith((f"{RECOVERY}.", f"{INDEPENDENT}.")) or not all(_NAME.match(part) for part in path.split(".")):
        raise _Refused
    return path if rule.get("create") else ""


def _lets_in(filtered: Document, user: str, groups: tuple[str, ...]) -> bool:
    listed = user in filtered.get("users", ()) or any(group in filtered.get("groups", ()) for group in groups)
    return listed != (filtered.get("type") == "deny")


def _takes(books: Books, path: str, user: str, groups: tuple[str, ...]) -> bool:
    found = books.queues.get(path)
    if found is not None:
        return found.leaf and not found.draining and _may_submit(books, path, user, groups)
    nearest = path
    while nearest not in books.queues:
        nearest = nearest.rpartition(".")[0]
    if not _may_submit(books, nearest, user, groups):
        return False
    if books.queues[nearest].leaf:
        raise _Refused
    return True


def _can_be_made(books: Books, path: str) -> bool:
    nearest = path
    while nearest not in books.queues:
        nearest = nearest.rpartition(".")[0]
    found = books.queues[nearest]
    return found.leaf if nearest == path else not found.leaf and not found.draining


def _may_submit(books: Books, path: str, user: str, groups: tuple[str, ...]) -> bool:
    return any(_allows(books.queues[above], user, groups) for above in books.queues[path].parents())


def _allows(queue: object, user: str, groups: tuple[str, ...]) -> bool:
    for text in (getattr(queue, "submit", ""), getattr(queue, "admin", "")):
        if not text:
            continue
        users, _, listed = text.partition(" ")
        if text.strip() == "*" or user in users.split(",") or any(group in listed.split(",") for group in groups):
            return True
    return False
