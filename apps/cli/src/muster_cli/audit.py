"""``muster audit``: the audit trail of a gateway, or of an embedded log, for people and for programs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from muster_bus.backends.sqlite_file_reader import LogFile
from muster_bus.errors import LogDamaged, LogError
from muster_client.access import Access
from muster_client.admin import AdminClient
from muster_client.audit_client import RESULTS, AuditClient, AuditQuery, entry_of
from muster_client.errors import AdminFailed, AdminRefused
from muster_runtime.terminal import escape_invisible, print_json, print_lines
from rich.table import Table

from muster_cli.audit_flags import AuditSelection
from muster_cli.errors import CommandError, UsageError
from muster_cli.events import time_ns
from muster_cli.operator_client import access_to, console, refusal
from muster_cli.settings import load

Entry = dict[str, Any]

_LOG = "log.db"
_FOLLOW_S = 0.5


def show(selection: AuditSelection, settings: Path | None, assignments: Sequence[str]) -> int:
    """Prints entries. Returns the exit code. Raises UsageError, CommandError."""
    if selection.result not in ("", *RESULTS):
        raise UsageError(f"--result {selection.result!r}: expected one of {', '.join(RESULTS)}")
    if selection.last is not None and selection.follow:
        raise UsageError("--last and --follow: expected one of them")
    query = AuditQuery(
        selection.rm,
        selection.identity,
        selection.action,
        selection.result,
        time_ns(selection.since) if selection.since else 0,
        time_ns(selection.until, "--until") if selection.until else 0,
    )
    # Whether there is any entry about the RM: an answer without one may be about a wrong name.
    about_rm = AuditQuery(selection.rm) if selection.rm and not selection.follow else None
    if selection.data_dir is not None:
        path = selection.data_dir / _LOG
        if not path.is_file():
            raise UsageError(f"--data-dir {selection.data_dir}: has no {_LOG}")
        topic = load(settings, assignments).values.log.topics().audit
        try:
            if about_rm is not None and not any(_entries_from_file(path, topic, about_rm, follow=False)):
                raise _unknown_rm_error(selection.rm)
            _print(selection, _entries_from_file(path, topic, query, follow=selection.follow))
        except LogError as error:
            raise CommandError(str(error)) from error
        return 0
    access = access_to(selection.gateway, selection.flags)
    try:
        asyncio.run(_print_from_gateway(selection, access, query, about_rm))
    except TimeoutError:
        raise CommandError(f"{selection.gateway}: no answer within {selection.timeout_s:g} s (--timeout-s)") from None
    except AdminRefused as error:
        raise refusal(selection.gateway, error) from error
    except AdminFailed as error:
        raise CommandError(f"{selection.gateway}: no answer: {error.details} ({error.code.name})") from error
    return 0


async def _print_from_gateway(
    selection: AuditSelection, access: Access, query: AuditQuery, about_rm: AuditQuery | None
) -> None:
    async with AuditClient(selection.gateway, access=access) as client:
        if selection.follow:
            async for batch in client.read(query, follow=True):
                _print(selection, [batch] if batch else [])
            return
        async with asyncio.timeout(selection.timeout_s):
            entries = [entry async for batch in client.read(query) for entry in batch]
            if not entries and about_rm is not None and not await _is_existing_rm(client, about_rm, access, selection):
                raise _unknown_rm_error(selection.rm)
        _print(selection, [entries])


async def _is_existing_rm(client: AuditClient, about_rm: AuditQuery, access: Access, selection: AuditSelection) -> bool:
    """Tells whether the trail has an entry about an RM, or the RM is registered: old entries may have gone."""
    async with aclosing(client.read(about_rm)) as batches:
        async for batch in batches:
            if batch:
                return True
    async with AdminClient(selection.gateway, access=access) as admin:
        listed = await admin.list_resource_managers(timeout_s=selection.timeout_s)
    return selection.rm in [manager.rm_id for manager in listed]


def _unknown_rm_error(rm_id: str) -> UsageError:
    return UsageError(f"--rm {rm_id!r}: no such resource manager is registered, and no audit entry is about one")


def _entries_from_file(path: Path, topic: str, query: AuditQuery, *, follow: bool) -> Iterator[list[Entry]]:
    """Yields the wanted entries, those of one read in the order of their times. Raises LogError."""
    positions: dict[int, int] = {}
    while True:
        batch: list[Entry] = []
        with LogFile(path) as log:
            for partition in log.partitions(topic):
                first, end = log.bounds(topic, partition)
                position = max(first, positions.get(partition, 0))
                while position < end:
                    try:
                        records, position = log.read(topic, partition, position)
                    except LogDamaged as error:
                        print_lines(f"entries are missing here: {error}", error=True)
                        position = error.next_offset
                        continue
                    entries = (entry_of(record.value) for record in records)
                    batch += (entry for entry in entries if entry is not None and query.fits(entry))
                positions[partition] = position
        yield sorted(batch, key=lambda entry: entry["recorded_ns"])
        if not follow:
            return
        time.sleep(_FOLLOW_S)


def _print(selection: AuditSelection, batches: Iterable[list[Entry]]) -> None:
    if selection.last is not None:
        batches = [list(deque(chain.from_iterable(batches), maxlen=selection.last))]
    for batch in batches:
        if selection.json:
            for entry in batch:
                print_json(entry, indent=None)
        elif batch:
            console().print(_table(batch))
        elif not selection.follow:
            console().print("No audit entry fits.")


def _table(entries: list[Entry]) -> Table:
    table = Table("time (UTC)", "identity", "from", "action", "RM", "result", "about", "reason")
    for entry in entries:
        at = datetime.fromtimestamp(entry["recorded_ns"] / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
        who = f"{entry['identity'] or '?'} ({entry['proof']})"
        about = " ".join(f"{name}={value}" for name, value in entry["objects"].items())
        count = f" ({entry['count']} times)" if entry["count"] > 1 else ""
        table.add_row(
            at,
            escape_invisible(who),
            escape_invisible(f"{entry['peer'] or '?'} {entry['door']}"),
            escape_invisible(entry["action"]),
            escape_invisible(entry["rm_id"]),
            f"{entry['result']}{count}",
            escape_invisible(about or entry["method"]),
            escape_invisible(entry["reason"]),
        )
    return table
