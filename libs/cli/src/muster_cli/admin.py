"""``muster admin``: look at resource managers, pause and resume them, drain nodes, dump states, try configurations."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from muster_client.admin import AdminClient, ResourceManager
from rich.markup import escape
from rich.table import Table

from muster_cli.configuration import print_problems, read_configuration
from muster_cli.errors import UsageError
from muster_cli.operating import Operator, ask, console, print_json, run

_STATE_COLOURS = {"RUNNING": "green", "PAUSED": "yellow", "STOPPED": "red"}


def rms(operator: Operator) -> int:
    """Lists the RMs, or shows the one that is named."""

    async def asked() -> list[ResourceManager]:
        async with AdminClient(operator.gateway) as admin:
            return await admin.list_resource_managers(operator.rm, timeout_s=operator.timeout_s)

    found = run(operator, asked)
    if operator.json:
        print_json([dataclasses.asdict(each) for each in found])
    elif not found:
        console().print("No resource manager is registered.")
    else:
        console().print(_table(found))
        if operator.rm:
            console().print(_details(found[0]))
    return 0


def _table(found: list[ResourceManager]) -> Table:
    table = Table("RM", "state", "since", "why", "paused by an operator", "streams", "version", "speaks", "registered")
    for each in found:
        colour = _STATE_COLOURS.get(each.state, "yellow")
        held = f"[bold red]yes[/]{': ' + escape(each.held_reason) if each.held_reason else ''}" if each.held else "no"
        times = f"{_time(each.registered_ns)}{f' ({each.registrations} times)' if each.registrations > 1 else ''}"
        table.add_row(
            escape(each.rm_id),
            f"[{colour}]{each.state}[/]",
            _time(each.since_ns),
            escape(each.reason),
            held,
            escape(", ".join(stream.kind for stream in each.streams)) or "none",
            escape(each.version),
            each.generation,
            times,
        )
    return table


def _details(shown: ResourceManager) -> Table:
    table = Table("of the RM", "value")
    table.add_row("policy group", escape(shown.policy_group))
    table.add_row("instance", escape(shown.instance_uuid))
    for stream in shown.streams:
        where = f"at {stream.gateway_id}, the {stream.epoch}. of its kind, sent up to response {stream.sent_sequence}"
        table.add_row(f"{stream.kind} stream", escape(where))
    if shown.callbacks:
        table.add_row("asked and told", escape(", ".join(shown.callbacks)))
    for name, values in (("build", shown.build_info), ("extra configuration", shown.extra_config)):
        for key, value in sorted(values.items()):
            table.add_row(escape(f"{name} {key}"), escape(value))
    return table


def pause(operator: Operator, reason: str) -> int:
    """Nothing more is decided for the RM."""

    async def call(admin: AdminClient, rm_id: str) -> tuple[str, bool]:
        return rm_id, await admin.pause(rm_id, reason, timeout_s=operator.timeout_s)

    rm_id, changed = ask(operator, call)
    return _said(operator, rm_id, changed, "is paused: nothing more is decided for it", "is paused already")


def resume(operator: Operator) -> int:
    """Ends a pause."""

    async def call(admin: AdminClient, rm_id: str) -> tuple[str, bool]:
        return rm_id, await admin.resume(rm_id, timeout_s=operator.timeout_s)

    rm_id, changed = ask(operator, call)
    return _said(operator, rm_id, changed, "is resumed", "is not paused")


def _said(operator: Operator, rm_id: str, changed: bool, done: str, was_so: str) -> int:
    if operator.json:
        print_json({"rm_id": rm_id, "changed": changed})
    else:
        console().print(f"{rm_id} {done if changed else was_so}.", markup=False, highlight=False, soft_wrap=True)
    return 0


def drain(operator: Operator, node: str, partition: str, *, schedulable: bool) -> int:
    """Lets no more allocations on a node, or lets them again."""

    async def call(admin: AdminClient, rm_id: str) -> tuple[bool, int]:
        found = await admin.drain_node(
            rm_id, node, partition=partition, schedulable=schedulable, timeout_s=operator.timeout_s
        )
        return found.changed, found.allocations

    changed, allocations = ask(operator, call)
    if operator.json:
        print_json({"node_id": node, "changed": changed, "allocations": allocations})
        return 0
    if schedulable:
        said = "takes allocations again" if changed else "takes allocations already"
    else:
        said = "takes no more allocations" if changed else "is drained already"
    on_it = f"{allocations} allocation{'' if allocations == 1 else 's'} on it"
    console().print(f"{node} {said}, {on_it}.", markup=False, highlight=False, soft_wrap=True)
    return 0


def validate(operator: Operator, file: Path) -> int:
    """What `muster config apply` would answer; changes nothing. Exit code 0: it would be in force."""
    text = read_configuration(file)

    async def call(admin: AdminClient, rm_id: str) -> tuple[str, dict[str, object], bool]:
        answer = await admin.validate_configuration(rm_id, text, timeout_s=operator.timeout_s)
        if not operator.json:
            print_problems(answer, file, console())
        return rm_id, dataclasses.asdict(answer), answer.accepted

    rm_id, answer, accepted = ask(operator, call)
    if operator.json:
        print_json({"rm_id": rm_id, **answer})
    else:
        changes = answer["changes"]
        assert isinstance(changes, tuple)
        would = f"would be taken for {rm_id}: {len(changes)} change{'' if len(changes) == 1 else 's'}"
        said = would if accepted else f"would not be taken for {rm_id}"
        console().print(f"{file} {said}; nothing is changed now", markup=False, highlight=False, soft_wrap=True)
    return 0 if accepted else 1


def dump(operator: Operator, output: Path) -> int:
    """Everything that is known of the RM, as JSON: to standard output, or to a file that is there once it is whole."""

    async def call(admin: AdminClient, rm_id: str) -> int:
        size = 0
        with _opened(output) as file:
            async for piece in admin.dump_state(rm_id):
                file.write(piece)
                size += len(piece)
        return size

    size = ask(operator, call)
    if output != Path("-"):
        console().print(f"{output}: {size:,} bytes", markup=False, highlight=False, soft_wrap=True)
    return 0


@contextlib.contextmanager
def _opened(output: Path) -> Iterator[BinaryIO]:
    if output == Path("-"):
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(output)
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ") if ns else ""
