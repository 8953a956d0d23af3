"""``muster audit``: the audit trail of a gateway, or of an embedded log, for people and for programs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from muster_bus.backends.sqlite_file import LogFile
from muster_bus.errors import LogError
from muster_client.access import Access
from muster_client.audit_client import RESULTS, AuditClient, AuditQuery, entry_of
from muster_client.errors import AdminFailed, AdminRefused
from muster_runtime.terminal import as_seen, say_json
from rich.table import Table

from muster_cli.audit_flags import AuditWanted
from muster_cli.errors import CommandError, UsageError
from muster_cli.events import time_ns
from muster_cli.operating import access_to, console, refusal
from muster_cli.settings import load

Entry = dict[str, Any]

_LOG = "log.db"
_FOLLOW_S = 0.5


def show(wanted: AuditWanted, settings: Path | None, assignments: Sequence[str]) -> int:
    """Prints entries. Returns the exit code. Raises UsageError, CommandError."""
    if wanted.result not in ("", *RESULTS):
        raise UsageError(f"--result {wanted.result!r}: expected one of {', '.join(RESULTS)}")
    if wanted.last is not None and (wanted.last < 1 or wanted.follow):
        raise UsageError(f"--last {wanted.last}: expected at least 1, and not with --follow")
    query = AuditQuery(
        wanted.rm,
        wanted.identity,
        wanted.action,
        wanted.result,
        time_ns(wanted.since) if wanted.since else 0,
        time_ns(wanted.until, "--until") if wanted.until else 0,
    )
    if wanted.data_dir is not None:
        path = wanted.data_dir / _LOG
        if not path.is_file():
            raise UsageError(f"--data-dir {wanted.data_dir}: has no {_LOG}")
        topic = load(settings, assignments).values.log.topics().audit
        try:
            _print(wanted, _of_file(path, topic, query, follow=wanted.follow))
        except LogError as error:
            raise CommandError(str(error)) from error
        return 0
    access = access_to(wanted.gateway, wanted.flags)
    try:
        asyncio.run(_of_gateway(wanted, access, query))
    except AdminRefused as error:
        raise refusal(wanted.gateway, error) from error
    except AdminFailed as error:
        raise CommandError(f"{wanted.gateway}: no answer: {error.details} ({error.code.name})") from error
    return 0


async def _of_gateway(wanted: AuditWanted, access: Access, query: AuditQuery) -> None:
    async with AuditClient(wanted.gateway, access=access) as client:
        batches: AsyncIterator[list[Entry]] = client.read(query, follow=wanted.follow)
        if wanted.follow:
            async for batch in batches:
                _print(wanted, [batch] if batch else [])
        else:
            _print(wanted, [[entry async for batch in batches for entry in batch]])


def _of_file(path: Path, topic: str, query: AuditQuery, *, follow: bool) -> Iterator[list[Entry]]:
    """Yields the wanted entries, those of one read in the order of their times. Raises LogError."""
    positions: dict[int, int] = {}
    while True:
        found: list[Entry] = []
        with LogFile(path) as log:
            for partition in log.partitions(topic):
                first, end = log.bounds(topic, partition)
                position = max(first, positions.get(partition, 0))
                while position < end:
                    records, position = log.read(topic, partition, position)
                    entries = (entry_of(record.value) for record in records)
                    found += (entry for entry in entries if entry is not None and query.fits(entry))
                positions[partition] = position
        yield sorted(found, key=lambda entry: entry["recorded_ns"])
        if not follow:
            return
        time.sleep(_FOLLOW_S)


def _print(wanted: AuditWanted, batches: Iterable[list[Entry]]) -> None:
    if wanted.last is not None:
        batches = [list(deque(chain.from_iterable(batches), maxlen=wanted.last))]
    for batch in batches:
        if wanted.json:
            for entry in batch:
                say_json(entry, indent=None)
        elif batch:
            console().print(_table(batch))
        elif not wanted.follow:
            console().print("No audit entry fits.")


def _table(entries: list[Entry]) -> Table:
    table = Table("time (UTC)", "identity", "from", "action", "RM", "result", "about", "reason")
    for each in entries:
        at = datetime.fromtimestamp(each["recorded_ns"] / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
        who = f"{each['identity'] or '?'} ({each['proof']})"
        about = " ".join(f"{name}={value}" for name, value in each["objects"].items())
        count = f" ({each['count']} times)" if each["count"] > 1 else ""
        table.add_row(
            at,
            as_seen(who),
            as_seen(f"{each['peer'] or '?'} {each['door']}"),
            as_seen(each["action"]),
            as_seen(each["rm_id"]),
            f"{each['result']}{count}",
            as_seen(about or each["method"]),
            as_seen(each["reason"]),
        )
    return table
