"""``muster get``: reads a kind of items, chooses, sorts and prints them, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from muster_runtime.plain_terminal import write
from muster_runtime.terminal import Screen, escape_invisible, is_terminal, print_json, print_lines
from rich.live import Live
from rich.table import Table

from muster_cli.errors import UsageError
from muster_cli.flags import NO_ACCESS_FLAGS, AccessFlags
from muster_cli.get.ended import KINDS as ENDED_KINDS
from muster_cli.get.ended import ended, without_present
from muster_cli.get.resource_kinds import APPLICATION_STATES, BY_NAME, Column, Item, ResourceKind
from muster_cli.get.rest_client import RestClient
from muster_cli.get.row_filters import column_of, condition, sort
from muster_cli.operator_client import check_call, print_table


@dataclass(frozen=True, slots=True)
class GetOptions:
    """The flags of the command; its help describes them. ``kind`` and ``output`` are among its choices."""

    kind: str
    names: tuple[str, ...]
    http: str
    rm: str
    partition: str = "default"
    state: str = ""
    where: tuple[str, ...] = ()
    sort: str = ""
    columns: str = ""
    output: str = "table"
    watch: bool = False
    interval_s: float = 1.0
    timeout_s: float = 15.0
    flags: AccessFlags = NO_ACCESS_FLAGS


@dataclass(frozen=True, slots=True)
class ItemTable:
    """The chosen items of one reading."""

    kind: ResourceKind
    items: list[Item]
    columns: list[Column]
    notes: tuple[str, ...] = ()


def get(asked: GetOptions) -> int:
    """Prints the items. Exit code 1: a name was not found.

    Raises UsageError for invalid flags, CommandError if Muster does not answer.
    """
    kind = _checked(asked)
    rest = RestClient(asked.http, asked.rm, asked.flags.access(), asked.timeout_s)
    if asked.watch:
        _watch(asked, kind, rest)
        return 0
    found = read(asked, kind, rest, time.time_ns())
    _print(asked, found)
    for note in found.notes:
        print_lines(f"muster: {note}", error=True)
    missing = set(asked.names) - {name for item in found.items for name in _names(kind, item)}
    for name in sorted(missing):
        print_lines(f"muster: {kind.name}: {name!r} is not there", error=True)
    return 2 if missing else 0


def read(asked: GetOptions, kind: ResourceKind, rest: RestClient, now_ns: int) -> ItemTable:
    """Asks for the items and applies the flags. Raises UsageError, CommandError.

    :param now_ns: ages end there.
    """
    items = kind.read(rest, asked.partition, asked.state)
    items, notes = (items, []) if asked.watch else _with_ended(asked, kind, rest, items)
    columns = kind.all_columns(items, now_ns)
    conditions = [condition(text, columns) for text in asked.where]
    if asked.names:
        wanted = set(asked.names)
        items = [item for item in items if wanted.intersection(_names(kind, item))]
    items = [item for item in items if all(each.matches(item) for each in conditions)]
    items = sort(items, asked.sort, columns)
    if asked.columns:
        shown = [column_of(name.strip(), columns, "--columns") for name in asked.columns.split(",")]
    else:
        shown = [each for each in columns if asked.output == "wide" or not each.wide]
    return ItemTable(kind, items, shown, tuple(notes))


def _with_ended(
    asked: GetOptions, kind: ResourceKind, rest: RestClient, items: list[Item]
) -> tuple[list[Item], list[str]]:
    """Adds what ended, from the history: all of it for ``--state all``, else the given names that are not there."""
    if kind.name not in ENDED_KINDS or (not asked.names and asked.state != "all"):
        return items, []
    if not asked.names:
        gone, note = ended(rest, kind.name)
        return items + without_present(kind.name, gone, items), [note] if note else []
    notes: dict[str, None] = {}
    present = {name for item in items for name in _names(kind, item)}
    for name in asked.names:
        if name not in present or asked.state == "all":
            gone, note = ended(rest, kind.name, name)
            gone = without_present(kind.name, gone, items)
            items = items + gone
            if gone:
                notes[f"{kind.name}: {escape_invisible(name)} has ended; this is from the history"] = None
            elif note and name not in present:
                notes[note] = None
    return items, list(notes)


def _names(kind: ResourceKind, item: Item) -> tuple[str, str]:
    """An item's own name, and what comes behind its application's."""
    key = kind.key(item)
    return key, key.rpartition("/")[2]


def _checked(asked: GetOptions) -> ResourceKind:
    check_call(asked.http)
    kind = BY_NAME[asked.kind]
    states = (*APPLICATION_STATES, "all")
    if asked.state == "all" and kind.name in ENDED_KINDS:
        return kind
    if asked.state and (kind.name != "applications" or asked.state not in states):
        raise UsageError(
            f"--state {asked.state!r}: expected one of {', '.join(states)}, of applications; all, of nodes and queues"
        )
    return kind


# ---- printed ---------------------------------------------------------------------------------------------------------


def _print(asked: GetOptions, found: ItemTable) -> None:
    if asked.output == "json":
        print_json(found.items)
    elif asked.output == "yaml":
        write(_yaml(found.items))
    elif asked.output == "name":
        for item in found.items:
            print_lines(escape_invisible(found.kind.key(item)))
    elif not found.items:
        print_lines(f"no {found.kind.name}", error=True)
    else:
        print_table(_table(found.columns, found.items))


def _table(columns: Sequence[Column], items: Sequence[Item]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        numbers = all(not isinstance(column.of(item), str) for item in items)
        table.add_column(escape_invisible(column.name), justify="right" if numbers else "left", overflow="fold")
    for item in items:
        table.add_row(*(escape_invisible(column.cell(item)) for column in columns))
    return table


def _yaml(items: list[Item]) -> str:
    from io import StringIO

    from ruamel.yaml import YAML

    text = StringIO()
    dumper = YAML(typ="safe", pure=True)
    dumper.default_flow_style = False
    dumper.dump(items, text)
    return text.getvalue()


# ---- again and again -------------------------------------------------------------------------------------------------


def _watch(asked: GetOptions, kind: ResourceKind, rest: RestClient) -> None:
    """Shows the items until interrupted: on a terminal all of them in place, elsewhere each change as a line."""
    if is_terminal() and asked.output in ("table", "wide"):
        with Live(console=Screen(), screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                found = read(asked, kind, rest, time.time_ns())
                live.update(_table(found.columns, found.items), refresh=True)
                time.sleep(asked.interval_s)
    before: dict[str, Any] = {}
    while True:
        found = read(asked, kind, rest, time.time_ns())
        now = {kind.key(item): item for item in found.items}
        changes = [("+" if name not in before else "~", item) for name, item in now.items() if before.get(name) != item]
        changes += [("-", item) for name, item in before.items() if name not in now]
        _say_changes(asked, found, changes)
        before = now
        time.sleep(asked.interval_s)


def _say_changes(asked: GetOptions, found: ItemTable, changes: list[tuple[str, Item]]) -> None:
    """Prints what is new (+), other than before (~), and gone (-)."""
    if not changes:
        return
    if asked.output in ("json", "yaml"):
        for sign, item in changes:
            print_json({"change": sign, "item": item}, indent=None, separators=(",", ":"))
    elif asked.output == "name":
        for sign, item in changes:
            print_lines(f"{sign} {escape_invisible(found.kind.key(item))}")
    else:
        signs = {id(item): sign for sign, item in changes}
        print_table(_table([Column("", lambda item: signs[id(item)]), *found.columns], [item for _, item in changes]))
