"""``muster config apply``: replaces the queue configuration of a running RM."""

from __future__ import annotations

import asyncio
from pathlib import Path

from muster_client.access import Access
from muster_client.admin import ConfigurationAnswer, ConfigurationProblem
from muster_client.errors import AdminFailed, AdminRefused
from muster_runtime.terminal import Screen, marked

from muster_cli import context_positions
from muster_cli.config_check import read
from muster_cli.errors import CommandError, UsageError
from muster_cli.flags import NO_ACCESS_FLAGS, AccessFlags
from muster_cli.operator_client import access_to, refusal, single_rm

# Greatest number of changes in an answer (proto/muster/v1/admin.proto).
CHANGES_LISTED_MAX = 1000

_COLOURS = {"error": "red", "warning": "yellow"}


def apply(
    file: Path, gateway: str, rm_id: str, timeout_s: float, console: Screen, flags: AccessFlags = NO_ACCESS_FLAGS
) -> bool:
    """Sends a file's text to a gateway and prints the answer. Returns whether the configuration is in force.

    :param rm_id: "": the only RM.

    Raises UsageError for a file that cannot be read or is empty, and if the RM must be named. Raises CommandError if
    the gateway refuses the call or does not answer it.
    """
    text = read_configuration(file)
    access = access_to(gateway, flags)
    try:
        rm_id, answer = asyncio.run(_ask(gateway, rm_id, text, timeout_s, access))
    except AdminRefused as error:
        raise refusal(gateway, error) from error
    except AdminFailed as error:
        raise CommandError(
            f"{gateway}: {error.details} ({error.code.name}); it may be in force; applying it again is safe"
        ) from error
    _print(answer, file, rm_id, console)
    return answer.accepted


def read_configuration(file: Path) -> str:
    """Returns the text of a file for a gateway. Raises UsageError if the file cannot be read, or is empty."""
    text = read(file)
    if not text.strip():
        # The interface takes an empty text as "the default", but the user of an empty file may mean something else.
        raise UsageError(f"{file}: is empty, expected a queue configuration")
    return text


async def _ask(
    gateway: str, rm_id: str, text: str, timeout_s: float, access: Access
) -> tuple[str, ConfigurationAnswer]:
    async with context_positions.admin_client(gateway, access) as admin:
        if not rm_id:
            try:
                rm_id = await single_rm(admin, timeout_s)
            except AdminFailed as error:  # the gateway got no configuration
                raise CommandError(f"{gateway}: no answer: {error.details} ({error.code.name})") from error
        return rm_id, await admin.update_configuration(rm_id, text, timeout_s=timeout_s)


def print_problems(answer: ConfigurationAnswer, file: Path, console: Screen) -> None:
    """Prints the problems by their places in the file, then the changes."""
    for problem in sorted(answer.problems, key=_position):
        colour = _COLOURS.get(problem.severity, "yellow")
        line = marked(f"[bold {colour}]{{}}[/] {{}}", problem.severity, _line(file, problem))
        console.print(line, soft_wrap=True)
    for change in answer.changes:
        console.print(change, soft_wrap=True)


def _print(answer: ConfigurationAnswer, file: Path, rm_id: str, console: Screen) -> None:
    print_problems(answer, file, console)
    if not answer.accepted:
        line = marked("[red]{} is not applied[/]: {} keeps its configuration", file, rm_id)
    elif answer.changes:
        line = marked("[green]{} is in force for {}[/]: {}", file, rm_id, _count(len(answer.changes)))
    else:
        line = marked("[green]{} is in force for {}[/] already: no change", file, rm_id)
    console.print(line, soft_wrap=True)


def _position(problem: ConfigurationProblem) -> tuple[bool, int, int]:
    """Sorts by place; a problem without one comes last."""
    return not problem.line, problem.line, problem.column


def _line(file: Path, problem: ConfigurationProblem) -> str:
    location = f"{file}:{problem.line}:{problem.column}" if problem.line else str(file)
    return f"{location}: {problem.path + ': ' if problem.path else ''}{problem.message}"


def _count(changes: int) -> str:
    if changes >= CHANGES_LISTED_MAX:
        return f"{changes} changes or more (`muster config diff` shows all)"
    return "1 change" if changes == 1 else f"{changes} changes"
