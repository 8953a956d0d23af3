"""What `muster admin` and `muster explain` share: whom they ask, about whom, and how refusals become one clear line."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

from cyclopts import Parameter

from muster_cli.errors import CommandError, UsageError

if TYPE_CHECKING:  # every command has its flags from here, and few ask a gateway: the rest is loaded when it is needed
    from muster_client.admin import AdminClient
    from rich.console import Console

T = TypeVar("T")

# Above what a gateway waits for the scheduler, so that its words arrive.
_TIMEOUT_S = 15.0
_PIPED_WIDTH = 160  # a file has no edge


class At(TypedDict):
    """Where to look, and for how long."""

    partition: str
    timeout_s: float


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Operator:
    """Whom to ask, and about which RM."""

    gateway: str = "127.0.0.1:9090"
    """gRPC address of a gateway."""
    rm: str = ""
    """The RM's id [the only one]."""
    timeout_s: float = _TIMEOUT_S
    """How long to wait for the answer."""
    json: Annotated[bool, Parameter(negative="")] = False
    """Print JSON."""

    def at(self, partition: str) -> At:
        """What every explanation is asked with."""
        return {"partition": partition, "timeout_s": self.timeout_s}


def check_call(gateway: str, timeout_s: float | None = None) -> None:
    """Raises UsageError for flags that no call can be made with."""
    if not gateway.strip():
        raise UsageError(f"--gateway {gateway!r}: expected the gRPC address of a gateway, host:port")
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s > 0):
        raise UsageError(f"--timeout-s {timeout_s:g}: expected more than 0 s")


def ask(operator: Operator, call: Callable[[AdminClient, str], Awaitable[T]]) -> T:
    """Makes one call to the gateway, about the RM that is meant.

    Raises UsageError when it is not said which RM is meant, CommandError when the gateway refuses or does not answer.
    """

    from muster_client.admin import AdminClient

    async def asked() -> T:
        async with AdminClient(operator.gateway) as admin:
            return await call(admin, operator.rm or await only_one(admin, operator.timeout_s))

    return run(operator, asked)


def run(operator: Operator, asked: Callable[[], Awaitable[T]]) -> T:
    """The same for what is not about one RM."""

    from muster_client.errors import AdminFailed, AdminRefused

    check_call(operator.gateway, operator.timeout_s)

    async def awaited() -> T:
        return await asked()

    try:
        return asyncio.run(awaited())
    except AdminRefused as error:
        raise CommandError(f"{operator.gateway}: {error.details} ({error.code.name})") from error
    except AdminFailed as error:
        raise CommandError(f"{operator.gateway}: no answer: {error.details} ({error.code.name})") from error


async def only_one(admin: AdminClient, timeout_s: float) -> str:
    """The RM that is meant when none is named. Raises UsageError when there are several, CommandError for none."""
    found = [each.rm_id for each in await admin.list_resource_managers(timeout_s=timeout_s)]
    if not found:
        raise CommandError("no resource manager is registered")
    if len(found) > 1:
        raise UsageError(f"--rm: {len(found)} resource managers are registered, expected one of {', '.join(found)}")
    return found[0]


def console() -> Console:
    """For what a person reads; lines in a pipe are not cut to a terminal's width."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=_PIPED_WIDTH)


def print_json(value: Any) -> None:
    """One JSON text on standard output, indented as `jq` does."""
    print(json.dumps(value, indent=2, ensure_ascii=False))  # noqa: T201 - the answer
