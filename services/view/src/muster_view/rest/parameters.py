"""Reads and checks the parameters of a path and a query; a refusal names the expectation."""

from __future__ import annotations

import re
from collections.abc import Callable

from muster_core.config.acl import QUEUE_NAME
from muster_core.external.model import ExternalKind
from muster_core.model.application import Application

from muster_view.errors import HttpError
from muster_view.rest import external, go_format, process_debug
from muster_view.rest.http_messages import HttpCall
from muster_view.rest.snapshot import NODES_DEFAULT, NODES_MAX, Section

_ACTIVE_STATES = {"new", "accepted", "running", "completing", "failing", "resuming"}
# Limit of characters of a received value in a message.
_SHOWN_CHARACTERS = 200
_NUMBER = re.compile(r"[0-9]{1,18}")
_NANOSECONDS = re.compile(r"[0-9]{1,19}")


def queue_path(call: HttpCall) -> str:
    """A queue's path from the request's path, in the form for the lookup."""
    return checked_path(unescaped_queue(call))


def unescaped_queue(call: HttpCall) -> str:
    """A parameter of the path, unescaped once more than the path, as in YuniKorn."""
    name = go_format.query_unescape(call.path["queue"])
    if name is None:
        raise HttpError(400, f"Queue name {quote(call.path['queue'])} is not escaped as a query is")
    return name


def checked_path(name: str) -> str:
    for part in name.split("."):
        if not QUEUE_NAME.fullmatch(part):
            raise HttpError(
                400,
                f"Invalid queue name {quote(name)}: each part between dots takes 1 to 64 of letters, digits and "
                "_ : # / @ -",
            )
    return name.lower()


def sections(call: HttpCall) -> frozenset[Section]:
    """Names separated by commas; none: all."""
    named = [name for name in call.query.get("sections", "").split(",") if name]
    for name in named:
        if name not in set(Section):
            raise HttpError(400, f"Section {quote(name)} is not known: expected some of {', '.join(Section)}")
    return frozenset(map(Section, named)) or frozenset(Section)


def nodes_max(call: HttpCall) -> int:
    return _number(call, "nodes", "Number of nodes", NODES_DEFAULT, NODES_MAX)


def limit(call: HttpCall, default: int) -> int:
    return _number(call, "limit", "Limit", default, external.OBJECTS_MAX)


def seconds(call: HttpCall) -> int:
    return _number(call, "seconds", "Seconds", process_debug.PROFILE_S, process_debug.PROFILE_S_MAX)


def since(call: HttpCall) -> int:
    """Nanoseconds since 1970; not given: 0."""
    text = call.query.get("since", "")
    if text and not _NANOSECONDS.fullmatch(text):
        raise HttpError(400, f"Since {quote(text)}: expected nanoseconds since 1970")
    return int(text or 0)


def _number(call: HttpCall, name: str, label: str, default: int, most: int) -> int:
    """A number from 1 to ``most``; not given: the default."""
    text = call.query.get(name, "")
    if not text:
        return default
    number = int(text) if _NUMBER.fullmatch(text) else 0
    if not 0 < number <= most:
        raise HttpError(400, f"{label} {quote(text)}: expected 1 to {most}")
    return number


def external_kind(call: HttpCall) -> ExternalKind | None:
    text = call.query.get("kind", "")
    if text and text not in set(ExternalKind):
        raise HttpError(400, f"Kind {quote(text)} is not known: expected one of {', '.join(ExternalKind)}")
    return ExternalKind(text) if text else None


def after(call: HttpCall) -> external.Place | None:
    """The end of the last page, from that page's ``next``."""
    text = call.query.get("after", "")
    kind, slash, object_id = text.partition("/")
    if text and (not slash or kind not in set(ExternalKind)):
        raise HttpError(400, f'After {quote(text)}: expected the value of "next" of the last page')
    return (kind, object_id) if text else None


def name(escaped: str, rule: re.Pattern[str], kind: str) -> str:
    """A user's or group's name in a path, which is unescaped once more than the path, as in YuniKorn."""
    name = go_format.query_unescape(escaped)
    if name is None or not rule.match(name):
        raise HttpError(400, f"Invalid {kind} name")
    return name


def status(call: HttpCall) -> Callable[[Application], bool]:
    expected = call.query.get("status", "").lower()
    if not expected:
        return lambda _: True
    if expected not in _ACTIVE_STATES:
        raise HttpError(
            400,
            f"Application status {quote(expected)} is not known: expected one of {', '.join(sorted(_ACTIVE_STATES))}",
        )
    return lambda app: app.state.value.lower() == expected


def quote(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")
