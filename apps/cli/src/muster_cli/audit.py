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


def show(wanted: AuditSelection, settings: Path | None, assignments: Sequence[str]) -> int:
    """Prints entries. Returns the exit code. Raises UsageError, CommandError."""
    if wanted.result not in ("", *RESULTS):
        raise UsageError(f"--result {wanted.result!r}: expected one of {', '.join(RESULTS)}")
    if wanted.last is not None and wanted.follow:
        raise UsageError("--last and --follow: expected one of them")
    query = AuditQuery(
        wanted.rm,
        wanted.identity,
        wanted.action,
        wanted.result,
        time_ns(wanted.since) if wanted.since else 0,
        time_ns(wanted.until, "--until") if wanted.until else 0,
    )
    # Whether there is any entry about the RM: an answer without one may be about a wrong name.
    about_rm = AuditQuery(wanted.rm) if wanted.rm and not wanted.follow else None
    if wanted.data_dir is not None:
        path = wanted.data_dir / _LOG
        if not path.is_file():
            raise UsageError(f"--data-dir {wanted.data_dir}: has no {_LOG}")
        topic = load(settings, assignments).values.log.topics().audit
        try:
            if about_rm is not None and not any(_of_file(path, topic, about_rm, follow=False)):
                raise _unknown(wanted.rm)
            _print(wanted, _of_file(path, topic, query, follow=wanted.follow))
        except LogError as error:
            raise CommandError(str(error)) from error
        return 0
    access = access_to(wanted.gateway, wanted.flags)
    try:
        asyncio.run(_of_gateway(wanted, access, query, about_rm))
    except TimeoutError:
        raise CommandError(f"{wanted.gateway}: no answer within {wanted.timeout_s:g} s (--timeout-s)") from None
    except AdminRefused as error:
        raise refusal(wanted.gateway, error) from error
    except AdminFailed as error:
        raise CommandError(f"{wanted.gateway}: no answer: {error.details} ({error.code.name})") from error
    return 0


async def _of_gateway(wanted: AuditSelection, access: Access, query: AuditQuery, about_rm: AuditQuery | None) -> None:
    async with AuditClient(wanted.gateway, access=access) as client:
        if wanted.follow:
            async for batch in client.read(query, follow=True):
                _print(wanted, [batch] if batch else [])
            return
        async with asyncio.timeout(wanted.timeout_s):
            found = [entry async for batch in client.read(query) for entry in batch]
            if not found and about_rm is not None and not await _is_known(client, about_rm, access, wanted):
                raise _unknown(wanted.rm)
        _print(wanted, [found])


async def _is_known(client: AuditClient, about_rm: AuditQuery, access: Access, wanted: AuditSelection) -> bool:
    """Tells whether the trail has an entry about an RM, or the RM is registered: old entries may have gone."""
    async with aclosing(client.read(about_rm)) as batches:
        async for batch in batches:
            if batch:
                return True
    async with AdminClient(wanted.gateway, access=access) as admin:
        listed = await admin.list_resource_managers(timeout_s=wanted.timeout_s)
    return wanted.rm in [each.rm_id for each in listed]


def _unknown(rm_id: str) -> UsageError:
    return UsageError(f"--rm {rm_id!r}: no such resource manager is registered, and no audit entry is about one")


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
                    try:
                        records, position = log.read(topic, partition, position)
                    except LogDamaged as error:
                        print_lines(f"entries are missing here: {error}", error=True)
                        position = error.next_offset
                        continue
                    entries = (entry_of(record.value) for record in records)
                    found += (entry for entry in entries if entry is not None and query.fits(entry))
                positions[partition] = position
        yield sorted(found, key=lambda entry: entry["recorded_ns"])
        if not follow:
            return
        time.sleep(_FOLLOW_S)


def _print(wanted: AuditSelection, batches: Iterable[list[Entry]]) -> None:
    if wanted.last is not None:
        batches = [list(deque(chain.from_iterable(batches), maxlen=wanted.last))]
    for batch in batches:
        if wanted.json:
            for entry in batch:
                print_json(entry, indent=None)
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
            escape_invisible(who),
            escape_invisible(f"{each['peer'] or '?'} {each['door']}"),
            escape_invisible(each["action"]),
            escape_invisible(each["rm_id"]),
            f"{each['result']}{count}",
            escape_invisible(about or each["method"]),
            escape_invisible(each["reason"]),
        )
    return table
