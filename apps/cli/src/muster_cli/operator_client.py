"""Shared by `muster admin` and `muster explain`: the gateway, the RM, and one clear line for each refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypedDict, TypeVar

from cyclopts import Parameter
from muster_runtime.terminal import Screen, is_terminal, print_lines

from muster_cli import context_positions, numbers
from muster_cli.errors import CommandError, UsageError
from muster_cli.flags import DEFAULT_GATEWAY, NO_ACCESS_FLAGS, AccessFlags, GatewayAddress, RmId
from muster_cli.reachability import check_reachable

if TYPE_CHECKING:  # every command loads these flags, but few call a gateway
    from muster_client.access import Access
    from muster_client.admin import AdminClient
    from muster_client.errors import AdminRefused
    from rich.console import RenderableType

T = TypeVar("T")

# Longer than a gateway waits for the scheduler, so that its answer arrives.
_TIMEOUT_S = 15.0
_PIPED_WIDTH, _PIPED_TABLE_WIDTH = 160, 400  # a file has no edge


class CallArguments(TypedDict):
    """The partition and the time-out of a call."""

    partition: str
    timeout_s: float


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class OperatorTarget:
    """The gateway and the RM of a call."""

    gateway: GatewayAddress = DEFAULT_GATEWAY
    """gRPC address of a gateway."""
    rm: RmId = ""
    """The RM's id [the only one]."""
    timeout_s: numbers.TimeoutS = _TIMEOUT_S
    """How long to wait for the answer."""
    json: Annotated[bool, Parameter(negative="")] = False
    """Print JSON."""
    flags: AccessFlags = NO_ACCESS_FLAGS
    """Token and TLS."""

    def client(self) -> AdminClient:
        """Returns a client of the gateway. Raises UsageError."""
        return context_positions.admin_client(self.gateway, self.flags.access())

    def at(self, partition: str) -> CallArguments:
        """The arguments of every explanation."""
        return {"partition": partition, "timeout_s": self.timeout_s}


def check_call(gateway: str) -> None:
    """Raises UsageError for invalid flags."""
    if not gateway.strip():
        raise UsageError(f"--gateway {gateway!r}: expected the gRPC address of a gateway, host:port")


def access_to(gateway: str, flags: AccessFlags) -> Access:
    """Returns how a command reaches a gateway, where something listens. Raises UsageError for invalid flags or files,
    CommandError if nothing listens there.
    """
    check_call(gateway)
    access = flags.access()
    check_reachable(gateway)
    return access


def ask(operator: OperatorTarget, call: Callable[[AdminClient, str], Awaitable[T]]) -> T:
    """Makes one call to the gateway for the named or default RM.

    Raises UsageError when the RM must be named, CommandError when the gateway refuses or does not answer.
    """

    async def call_for_rm() -> T:
        async with operator.client() as admin:
            return await call(admin, operator.rm or await single_rm(admin, operator.timeout_s))

    return run(operator, call_for_rm)


def run(operator: OperatorTarget, call: Callable[[], Awaitable[T]]) -> T:
    """Makes a call that is not about one RM. Raises CommandError like :func:`ask`."""
    from muster_client.errors import AdminFailed, AdminRefused

    access_to(operator.gateway, operator.flags)

    async def awaited() -> T:
        return await call()

    try:
        return asyncio.run(awaited())
    except AdminRefused as error:
        raise refusal(operator.gateway, error) from error
    except AdminFailed as error:
        raise CommandError(f"{operator.gateway}: no answer: {error.details} ({error.code.name})") from error


def refusal(gateway: str, error: AdminRefused) -> CommandError:
    """Returns a gateway's refusal as the command's error: a UsageError if the call is wrong, or names an RM, a queue, a
    node, an application or an ask that Muster does not know.
    """
    unregistered = error.code.name == "FAILED_PRECONDITION" and "is not registered" in error.details
    is_wrong = error.code.name in ("INVALID_ARGUMENT", "NOT_FOUND") or unregistered
    return (UsageError if is_wrong else CommandError)(f"{gateway}: {error.details} ({error.code.name})")


async def single_rm(admin: AdminClient, timeout_s: float) -> str:
    """Returns the default RM. Raises UsageError if there are several RMs without a default, CommandError if there is
    none.
    """
    listed = await admin.list_resource_managers(timeout_s=timeout_s)
    rm_ids = [manager.rm_id for manager in listed]
    if not rm_ids:
        raise CommandError("no resource manager is registered")
    if len(rm_ids) == 1:
        return rm_ids[0]
    for manager in listed:
        if manager.is_default:  # docs/rest.md, "Which resource manager"
            return manager.rm_id
    raise UsageError(f"--rm: {len(rm_ids)} resource managers are registered, expected one of {', '.join(rm_ids)}")


def console() -> Screen:
    """The console for people; lines in a pipe are not cut to a terminal's width."""
    screen = Screen()
    return screen if screen.is_terminal else Screen(width=_PIPED_WIDTH)


def print_table(table: RenderableType, screen: Screen | None = None) -> None:
    """Prints a table; into a pipe without blanks at the ends of its lines, which are not folded."""
    screen = screen or Screen(width=None if is_terminal() else _PIPED_TABLE_WIDTH)
    if is_terminal():
        screen.print(table)
        return
    with screen.capture() as printed:
        screen.print(table)
    print_lines("\n".join(map(str.rstrip, printed.get().splitlines())))
