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


def get(options: GetOptions) -> int:
    """Prints the items. Exit code 1: a name was not found.

    Raises UsageError for invalid flags, CommandError if Muster does not answer.
    """
    kind = _checked(options)
    client = RestClient(options.http, options.rm, options.flags.access(), options.timeout_s)
    if options.watch:
        _watch(options, kind, client)
        return 0
    table = read(options, kind, client, time.time_ns())
    _print(options, table)
    for note in table.notes:
        print_lines(f"muster: {note}", error=True)
    missing = set(options.names) - {name for item in table.items for name in _names(kind, item)}
    for name in sorted(missing):
        print_lines(f"muster: {kind.name}: {name!r} is not there", error=True)
    return 2 if missing else 0


def read(options: GetOptions, kind: ResourceKind, client: RestClient, now_ns: int) -> ItemTable:
    """Asks for the items and applies the flags. Raises UsageError, CommandError.

    :param now_ns: ages end there.
    """
    items = kind.read(client, options.partition, options.state)
    items, notes = (items, []) if options.watch else _with_ended(options, kind, client, items)
    columns = kind.all_columns(items, now_ns)
    conditions = [condition(text, columns) for text in options.where]
    if options.names:
        names = set(options.names)
        items = [item for item in items if names.intersection(_names(kind, item))]
    items = [item for item in items if all(row_filter.matches(item) for row_filter in conditions)]
    items = sort(items, options.sort, columns)
    if options.columns:
        shown = [column_of(name.strip(), columns, "--columns") for name in options.columns.split(",")]
    else:
        shown = [column for column in columns if options.output == "wide" or not column.wide]
    return ItemTable(kind, items, shown, tuple(notes))


def _with_ended(
    options: GetOptions, kind: ResourceKind, client: RestClient, items: list[Item]
) -> tuple[list[Item], list[str]]:
    """Adds what ended, from the history: all of it for ``--state all``, else the given names that are not there."""
    if kind.name not in ENDED_KINDS or (not options.names and options.state != "all"):
        return items, []
    if not options.names:
        gone, note = ended(client, kind.name)
        return items + without_present(kind.name, gone, items), [note] if note else []
    notes: dict[str, None] = {}
    present = {name for item in items for name in _names(kind, item)}
    for name in options.names:
        if name not in present or options.state == "all":
            gone, note = ended(client, kind.name, name)
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


def _checked(options: GetOptions) -> ResourceKind:
    check_call(options.http)
    kind = BY_NAME[options.kind]
    states = (*APPLICATION_STATES, "all")
    if options.state == "all" and kind.name in ENDED_KINDS:
        return kind
    if options.state and (kind.name != "applications" or options.state not in states):
        raise UsageError(
            f"--state {options.state!r}: expected one of {', '.join(states)}, of applications; all, of nodes and queues"
        )
    return kind


# ---- printed ---------------------------------------------------------------------------------------------------------


def _print(options: GetOptions, table: ItemTable) -> None:
    if options.output == "json":
        print_json(table.items)
    elif options.output == "yaml":
        write(_yaml(table.items))
    elif options.output == "name":
        for item in table.items:
            print_lines(escape_invisible(table.kind.key(item)))
    elif not table.items:
        print_lines(f"no {table.kind.name}", error=True)
    else:
        print_table(_table(table.columns, table.items))


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


def _watch(options: GetOptions, kind: ResourceKind, client: RestClient) -> None:
    """Shows the items until interrupted: on a terminal all of them in place, elsewhere each change as a line."""
    if is_terminal() and options.output in ("table", "wide"):
        with Live(console=Screen(), screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                table = read(options, kind, client, time.time_ns())
                live.update(_table(table.columns, table.items), refresh=True)
                time.sleep(options.interval_s)
    before: dict[str, Any] = {}
    while True:
        table = read(options, kind, client, time.time_ns())
        now = {kind.key(item): item for item in table.items}
        changes = [("+" if name not in before else "~", item) for name, item in now.items() if before.get(name) != item]
        changes += [("-", item) for name, item in before.items() if name not in now]
        _print_changes(options, table, changes)
        before = now
        time.sleep(options.interval_s)


def _print_changes(options: GetOptions, table: ItemTable, changes: list[tuple[str, Item]]) -> None:
    """Prints what is new (+), other than before (~), and gone (-)."""
    if not changes:
        return
    if options.output in ("json", "yaml"):
        for sign, item in changes:
            print_json({"change": sign, "item": item}, indent=None, separators=(",", ":"))
    elif options.output == "name":
        for sign, item in changes:
            print_lines(f"{sign} {escape_invisible(table.kind.key(item))}")
    else:
        signs = {id(item): sign for sign, item in changes}
        print_table(_table([Column("", lambda item: signs[id(item)]), *table.columns], [item for _, item in changes]))
