"""What ended, from the history: rows beside those of the view (docs/ended.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from muster_cli.errors import CommandError, UsageError
from muster_cli.get.rest_client import RestClient

Item = dict[str, Any]

# A listing has at most so many, the newest. `muster history` has all.
ENDED_MAX = 10_000
_COUNT = 1_000
# Answers for one name: each looks at up to a million events.
_ANSWERS_MAX = 20


def ended(client: RestClient, kind: str, name: str = "") -> tuple[list[Item], str]:
    """Returns what ended of a kind of items, and a note about what is missing; "": nothing is.

    :param name: only of this name.
    """
    of, row = _ROWS[kind]
    rows: list[Item] = []
    before = ""
    try:
        for _ in range(_ANSWERS_MAX):
            query = {"kind": of, "before": before, **({"name": name} if name else {"count": str(_COUNT)})}
            answer = client.get("ended", query)
            rows += [row(life) for life in answer["ended"]]
            before = answer["next"]
            if not before or len(rows) >= ENDED_MAX or (name and rows):
                break
    except (CommandError, UsageError) as error:
        return rows, f"what ended is not shown: {error}"
    note = str(answer["note"])
    if not note and before and not (name and rows):
        note = f"only the newest {len(rows):,} ended {kind} are shown; muster history has all"
    return rows, note


def without_present(kind: str, gone: Sequence[Item], present: Sequence[Item]) -> list[Item]:
    """Returns the lives that the view's items do not show."""
    field = _NAMES[kind]
    shown = {item[field]: int(item.get("submissionTime") or 0) for item in present}

    def is_other(item: Item) -> bool:
        submitted = shown.get(item[field])
        return submitted is None or (0 < item["ended"] < submitted)

    return [item for item in gone if is_other(item)]


def _application(life: Item) -> Item:
    states = [{"time": entry["time"], "applicationState": entry["state"]} for entry in life.get("stateLog", [])]
    if life["end"]:
        states.append({"time": life["end"], "applicationState": life["state"]})
    return {
        "applicationID": life["name"],
        "queueName": life.get("queueName", ""),
        "user": life.get("user", ""),
        "groups": [life["group"]] if life.get("group") else [],
        "applicationState": life["state"],
        "submissionTime": life["begin"],
        "finishedTime": life["end"],
        "stateLog": states,
        "rejectedMessage": life.get("message", "") if life["state"] == "Rejected" else "",
        "ended": life["end"],
        "source": "history",
    }


def _node(life: Item) -> Item:
    return {
        "nodeID": life["name"],
        "capacity": life.get("resource", {}),
        "allocated": {},
        "schedulable": False,
        "ended": life["end"],
        "source": "history",
    }


def _queue(life: Item) -> Item:
    return {
        "queuename": life["name"],
        "status": life["state"],
        "maxResource": life.get("resource", {}),
        "guaranteedResource": life.get("guaranteed", {}),
        "allocatedResource": {},
        "ended": life["end"],
        "source": "history",
    }


_ROWS: dict[str, tuple[str, Callable[[Item], Item]]] = {
    "applications": ("application", _application),
    "nodes": ("node", _node),
    "queues": ("queue", _queue),
}
_NAMES = {"applications": "applicationID", "nodes": "nodeID", "queues": "queuename"}
KINDS = tuple(_ROWS)
