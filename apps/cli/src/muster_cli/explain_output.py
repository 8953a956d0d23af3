"""``muster explain``: explanations as sentences or as JSON (docs/explain.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from muster_client.admin import AdminClient, Explanation
from muster_runtime.terminal import escape_invisible, print_json
from rich.table import Table

from muster_cli.operator_client import OperatorTarget, ask, console

# Of an application or queue: reason → number of asks.
_COUNTS = ("counts", "asks")
_SECOND_NS = 1_000_000_000
_MAKING, _AGAIN_S = "MAKING", 0.5
# Of asks with one reason; JSON has all of them.
_KEYS_MAX = 3

Call = Callable[[AdminClient, str], Awaitable[Explanation]]


def explain(operator: OperatorTarget, call: Call) -> int:
    """Prints an explanation."""
    explanation = ask(operator, call)
    value = explanation.value
    if operator.json:
        print_json(value)
        return 0
    out = console()
    for sentence in group_by_reason(explanation.sentences):
        out.print(sentence, soft_wrap=True)
    for name in _COUNTS:
        counts = value.get(name)
        if isinstance(counts, dict) and counts:
            out.print(_table(counts))
    rows = _rows(value)
    if rows:
        out.print(_history(rows, value["at"]))
    return 0


def when(operator: OperatorTarget, application: str, key: str, partition: str) -> int:
    """Prints when an ask will start. Asks again while the estimate is being computed, as long as ``--timeout-s``."""

    async def estimate(admin: AdminClient, rm: str) -> Explanation:
        until_s = time.monotonic() + operator.timeout_s
        while True:
            explanation = await admin.explain_when(rm, application, key, **operator.at(partition))
            if explanation.value["state"] != _MAKING or time.monotonic() >= until_s:
                return explanation
            await asyncio.sleep(_AGAIN_S)

    return explain(operator, estimate)


def group_by_reason(sentences: Sequence[str]) -> list[str]:
    """Puts asks with one reason into one line: ``k1, k2, k3 and 34 more: …``. Other sentences stay as they are."""
    keys: dict[str, list[str]] = {}
    for sentence in sentences[1:]:
        key, separator, text = sentence.partition(": ")
        keys.setdefault(text if separator else sentence, []).append(key if separator else "")
    lines = list(sentences[:1])
    for text, named in keys.items():
        if named == [""]:
            lines.append(text)
            continue
        more = f" and {len(named) - _KEYS_MAX:,} more" if len(named) > _KEYS_MAX + 1 else ""
        lines.append(f"{', '.join(named[:_KEYS_MAX] if more else named)}{more}: {text}")
    return lines


def _table(counts: dict[str, int]) -> Table:
    table = Table("reason (docs/explain.md)", "asks")
    for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(escape_invisible(reason), f"{count:,}")
    return table


def _rows(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The reasons, the oldest first. An ask's present reason comes last; those of others are in their history."""
    history = value.get("history")
    if not isinstance(history, list):
        return []
    return [*history, {**value, "until": 0}] if "waitingSince" in value else history


def _history(rows: Sequence[Mapping[str, Any]], at_ns: int) -> Table:
    table = Table("since (UTC)", "how long", "reason", "")
    for row in rows:
        lasted = _format_duration((row["until"] or at_ns) - row["since"])
        table.add_row(_at(row["since"]), lasted, escape_invisible(_format_reason(row)), "" if row["until"] else "now")
    return table


def _format_reason(row: Mapping[str, Any]) -> str:
    parts = [row["reason"], row["resourceType"], row["limitQueue"], row["who"]]
    return " ".join(part for part in parts if part)


def _at(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // _SECOND_NS, UTC):%Y-%m-%d %H:%M:%S}"


def _format_duration(duration_ns: int) -> str:
    return str(timedelta(seconds=max(duration_ns, 0) // _SECOND_NS))
