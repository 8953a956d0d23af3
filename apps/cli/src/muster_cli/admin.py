"""``muster admin``: list, pause and forget resource managers, drain nodes, end applications, dump states, validate
configurations.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from muster_client.admin import AdminClient, Ended, Forgotten, Paused, ResourceManager
from muster_runtime.private_files import open_private
from muster_runtime.terminal import escape_invisible, marked, print_json, styled, write_json_bytes
from rich.table import Table
from rich.text import Text

from muster_cli.config_apply import print_problems, read_configuration
from muster_cli.errors import UsageError
from muster_cli.operator_client import OperatorTarget, ask, console, run

# A narrower terminal gets fewer columns.
_WIDE = 140
_RUNNING = "RUNNING"
_STATE_COLOURS = {"RUNNING": "green", "DISCONNECTED": "yellow", "STOPPED": "red"}


def rms(operator: OperatorTarget) -> int:
    """Lists the RMs, or shows the named one."""

    async def call() -> list[ResourceManager]:
        async with operator.client() as admin:
            return await admin.list_resource_managers(operator.rm, timeout_s=operator.timeout_s)

    managers = run(operator, call)
    if operator.json:
        print_json([dataclasses.asdict(manager) for manager in managers])
    elif not managers:
        console().print("No resource manager is registered.")
    else:
        out = console()
        out.print(_table(managers, narrow=out.width < _WIDE and not operator.rm))
        if operator.rm:
            console().print(_details(managers[0]))
        else:
            for manager in managers:
                reached = [quota for quota in manager.quotas if quota.reached]
                if manager.state != _RUNNING or manager.held:
                    outcome = f"{manager.rm_id}: {manager.description}"
                    console().print(outcome, soft_wrap=True)
                for quota in reached:
                    outcome = f"{manager.rm_id}: quota {quota.name} is reached: {quota.used:,} of {quota.limit:,}"
                    console().print(escape_invisible(outcome), soft_wrap=True)
    return 0


def _table(managers: list[ResourceManager], *, narrow: bool) -> Table:
    """All columns, or those that 80 characters have room for."""
    columns = ("RM", "state", "since", "paused by an operator", "streams")
    table = Table(*columns) if narrow else Table(*columns, "reason", "version", "generation", "registered")
    for manager in managers:
        colour = _STATE_COLOURS.get(manager.state, "yellow")
        reason = f": {manager.held_reason}" if manager.held_reason else ""
        paused = marked("[bold red]yes[/]{}", reason) if manager.held else "no"
        times = (
            f"{_time(manager.registered_ns)}{f' ({manager.registrations} times)' if manager.registrations > 1 else ''}"
        )
        streams = (
            str(len(manager.streams))
            if narrow
            else escape_invisible(", ".join(stream.kind for stream in manager.streams))
        )
        row: list[Text | str] = [
            escape_invisible(manager.rm_id),
            styled(manager.state, colour),
            _time(manager.since_ns),
            paused,
            streams or "none",
        ]
        more = (
            escape_invisible(manager.reason),
            escape_invisible(manager.version),
            escape_invisible(manager.generation),
            times,
        )
        table.add_row(*row, *(() if narrow else more))
    return table


def _details(manager: ResourceManager) -> Table:
    table = Table("field", "value")
    table.add_row("description", escape_invisible(manager.description))
    table.add_row("policy group", escape_invisible(manager.policy_group))
    table.add_row("instance", escape_invisible(manager.instance_uuid))
    for stream in manager.streams:
        where = f"at {stream.gateway_id}, number {stream.epoch} of its kind, sent up to response {stream.sent_sequence}"
        table.add_row(escape_invisible(f"{stream.kind} stream"), escape_invisible(where))
    table.add_row("identity", escape_invisible(manager.identity))
    for quota in manager.quotas:
        limit = f"of {quota.limit:,}" if quota.limit else "without a limit"
        table.add_row(
            escape_invisible(f"quota {quota.name}"), f"{quota.used:,} {limit}{', reached' if quota.reached else ''}"
        )
    if manager.callbacks:
        table.add_row("callbacks", escape_invisible(", ".join(manager.callbacks)))
    for name, values in (("build", manager.build_info), ("extra configuration", manager.extra_config)):
        for key, value in sorted(values.items()):
            table.add_row(escape_invisible(f"{name} {key}"), escape_invisible(value))
    return table


def pause(operator: OperatorTarget, reason: str) -> int:
    """Pauses the RM."""

    async def call(admin: AdminClient, rm_id: str) -> tuple[str, Paused]:
        return rm_id, await admin.pause(rm_id, reason, timeout_s=operator.timeout_s)

    rm_id, answer = ask(operator, call)
    if not answer.changed:
        outcome = "is paused already"
    else:  # (otherwise the description says what a pause means)
        outcome = "is paused: Muster schedules nothing for it" if answer.state in ("", _RUNNING) else "is paused"
    return _print_result(operator, rm_id, answer, outcome)


def resume(operator: OperatorTarget) -> int:
    """Resumes the RM."""

    async def call(admin: AdminClient, rm_id: str) -> tuple[str, Paused]:
        return rm_id, await admin.resume(rm_id, timeout_s=operator.timeout_s)

    rm_id, answer = ask(operator, call)
    if answer.state in ("", _RUNNING):
        outcome = "is resumed" if answer.changed else "is not paused"
    else:  # the state still prevents decisions or messages
        outcome = f"{'is no longer paused' if answer.changed else 'is not paused'}, but {answer.state}"
    return _print_result(operator, rm_id, answer, outcome)


def _print_result(operator: OperatorTarget, rm_id: str, answer: Paused, outcome: str) -> int:
    if operator.json:
        print_json({"rm_id": rm_id, **dataclasses.asdict(answer)})
        return 0
    more = f" {answer.description}" if answer.state not in ("", _RUNNING) else ""
    console().print(f"{rm_id} {outcome}.{more}", soft_wrap=True)
    return 0


def forget(operator: OperatorTarget, rm: str, *, force: bool) -> int:
    """Forgets the RM and ends its objects."""

    async def call() -> Forgotten:
        async with operator.client() as admin:
            return await admin.forget(rm, force=force, timeout_s=operator.timeout_s)

    answer = run(operator, call)
    if operator.json:
        print_json({"rm_id": rm, **dataclasses.asdict(answer)})
        return 0
    ended = f"{answer.allocations:,} allocation{'' if answer.allocations == 1 else 's'} ended"
    outcome = f"is forgotten, {ended} with it" if answer.changed else "is forgotten already"
    console().print(f"{rm} {outcome}.", soft_wrap=True)
    return 0


def drain(operator: OperatorTarget, node: str, partition: str, *, schedulable: bool) -> int:
    """Drains a node, or makes it schedulable again."""

    async def call(admin: AdminClient, rm_id: str) -> tuple[bool, int]:
        answer = await admin.drain_node(
            rm_id, node, partition=partition, schedulable=schedulable, timeout_s=operator.timeout_s
        )
        return answer.changed, answer.allocations

    changed, allocations = ask(operator, call)
    if operator.json:
        print_json({"node_id": node, "changed": changed, "allocations": allocations})
        return 0
    if schedulable:
        outcome = "is schedulable again" if changed else "is schedulable already"
    else:
        outcome = "is drained" if changed else "is drained already"
    on_it = f"{allocations} allocation{'' if allocations == 1 else 's'} on it"
    console().print(f"{node} {outcome}, {on_it}.", soft_wrap=True)
    return 0


def end_application(operator: OperatorTarget, application: str, partition: str, reason: str) -> int:
    """Ends an application of the RM."""

    async def call(admin: AdminClient, rm_id: str) -> Ended:
        return await admin.end_application(
            rm_id, application, partition=partition, reason=reason, timeout_s=operator.timeout_s
        )

    answer = ask(operator, call)
    if operator.json:
        print_json({"application_id": application, **dataclasses.asdict(answer)})
        return 0
    outcome = f"is {answer.state}" if answer.changed else f"is {answer.state} already"
    remaining = f": its resource manager ends {answer.allocations:,} allocation{'' if answer.allocations == 1 else 's'}"
    console().print(f"{application} {outcome}{remaining if answer.allocations else ''}.", soft_wrap=True)
    return 0


def validate(operator: OperatorTarget, file: Path) -> int:
    """Prints the answer of `muster config apply`; changes nothing. Exit code 0: the configuration would be accepted."""
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
        would = f"would be accepted for {rm_id}: {len(changes)} change{'' if len(changes) == 1 else 's'}"
        outcome = would if accepted else f"would be refused for {rm_id}"
        console().print(f"{file} {outcome}; nothing is changed now", soft_wrap=True)
    return 0 if accepted else 1


def dump(operator: OperatorTarget, output: Path) -> int:
    """Writes the RM's state as JSON to standard output, or to a file that appears when it is complete."""

    async def call(admin: AdminClient, rm_id: str) -> int:
        size = 0
        with _opened(output) as file:
            async for piece in admin.dump_state(rm_id):
                file.write(piece)
                size += len(piece)
        return size

    size = ask(operator, call)
    if output != Path("-"):
        console().print(f"{output}: {size:,} bytes", soft_wrap=True)
    return 0


class _DumpSink(Protocol):
    """A place for the dump."""

    def write(self, data: bytes, /) -> object: ...


class _StdoutSink:
    def write(self, data: bytes, /) -> None:
        write_json_bytes(data)


@contextlib.contextmanager
def _opened(output: Path) -> Iterator[_DumpSink]:
    if output == Path("-"):
        yield _StdoutSink()
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with open_private(part) as file:
            yield file
        part.replace(output)
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ") if ns else ""
