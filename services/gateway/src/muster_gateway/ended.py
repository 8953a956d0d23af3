"""Explanations of what ended: the event publisher reads them from the history (docs/ended.md)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from muster_gateway.admin_codec import ExplainTarget
from muster_gateway.errors import OverLimit, ViewUnavailable
from muster_gateway.view_client import ViewClient, path_of

# What an explanation is about, and the kind of the object whose end explains it.
_KINDS = {"application": "application", "node": "node", "queue": "queue"}
_OF_APPLICATION = ("ask", "preemption", "when")
_OK = 200
# A search goes on for so long. Each answer looks at up to a million events.
_SEARCH_S = 10.0
_ALLOCATIONS_MAX = 20

Ended = Mapping[str, Any]


class NoneEnded(Exception):
    """The history has no such object; the text says what of it was searched, or why it was not."""


async def explain_ended(history: ViewClient, target: ExplainTarget) -> tuple[bytes, list[str]]:
    """Returns the last life of an object that is not there, as JSON and as sentences. Raises NoneEnded.

    :param history: asks the event publisher.
    """
    kind = _KINDS.get(target.kind) or ("application" if target.kind in _OF_APPLICATION else "")
    if not kind or (target.kind in _OF_APPLICATION and len(target.path_segments) < 2):
        raise NoneEnded("")
    lives, note = await _lives(history, target.rm_id, kind, target.path_segments[0])
    if not lives:
        raise NoneEnded(note or "the history has none of this name either")
    life = lives[0]
    sentences = list(_sentences(kind, life, target.path_segments[1] if len(target.path_segments) > 1 else ""))
    explanation = {"source": "history", "kind": kind, "message": " ".join(sentences[:1]), "ended": life}
    return json.dumps(explanation, separators=(",", ":")).encode(), sentences


async def _lives(history: ViewClient, rm_id: str, kind: str, name: str) -> tuple[Sequence[Ended], str]:
    """The newest life, and what could not be searched."""
    before = note = ""
    try:
        async with asyncio.timeout(_SEARCH_S):
            while True:
                query = {"kind": kind, "name": name, "count": "1", **({"before": before} if before else {})}
                answer = await history.get(path_of("ended"), rm_id, query)
                if answer.status != _OK:
                    return [], f"the history cannot be read now (HTTP status {answer.status})"
                page = answer.json()
                before, note = page["next"], page["note"]
                if page["ended"] or not before:
                    return page["ended"], note
    except ViewUnavailable:
        return [], "the event publisher, which reads the history, does not answer"
    except OverLimit as error:
        return [], str(error)
    except TimeoutError:
        at = _utc(int(before.partition("-")[0])) if before else ""
        return [], f"the history since {at} has none of this name; muster history app {name} reads all of it"


def _sentences(kind: str, life: Ended, key: str) -> Iterator[str]:
    yield life["sentence"]
    allocations = life.get("allocationLog", [])
    if key:
        of_key = [allocation for allocation in allocations if allocation["allocationKey"] == key]
        yield from (_allocation(allocation) for allocation in of_key[-_ALLOCATIONS_MAX:])
        if not of_key:
            yield f"{key} had no allocation in that life."
        return
    if kind == "queue":
        applications = life.get("applications", 0)
        yield f"It had {applications} application{'' if applications == 1 else 's'}."
        return
    states = [f"{change['state']} from {_utc(change['time'])}" for change in life.get("stateLog", [])]
    if states:
        yield f"It was {', '.join(states)}."
    if life.get("message") and life["message"] not in life["sentence"]:
        yield f"The last message was: {life['message'].rstrip('.')}."
    ends = Counter(allocation.get("ended") or "until it was removed" for allocation in allocations)
    how = ", ".join(f"{count} {end}" for end, count in sorted(ends.items())) if kind == "application" else ""
    count = life.get("allocations", 0)
    yield f"It had {count} allocation{'' if count == 1 else 's'}{f': {how}' if how else ''}."
    yield from (_allocation(allocation) for allocation in allocations[:_ALLOCATIONS_MAX])
    if len(allocations) > _ALLOCATIONS_MAX:
        yield "… and more, see the JSON."


def _allocation(allocation: Ended) -> str:
    node = f" on {allocation['nodeID']}" if allocation.get("nodeID") else ""
    since = f" from {_utc(allocation['begin'])}" if allocation.get("begin") else ""
    until = f" until {_utc(allocation['end'])}" if allocation.get("end") else ""
    how = ": ".join(filter(None, (allocation.get("ended"), allocation.get("message"))))
    return f"{allocation['allocationKey']}: allocated{node}{since}{until}{f', {how}' if how else ''}."


def _utc(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
