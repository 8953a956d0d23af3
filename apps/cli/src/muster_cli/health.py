"""``muster health``: the state of the whole, as a gateway computed it, or that of one process."""

from __future__ import annotations

import asyncio
import time
import urllib.error

import msgspec
from muster_client.access import PLAIN, Access
from muster_rest.shapes.health import Grade, SystemHealthDao
from muster_rest.system_health import duration, unreachable
from muster_runtime.terminal import Screen, print_json, print_lines
from rich.table import Table

from muster_cli.operator_client import print_table
from muster_cli.probe import open_url, parse_address, probe

_COLOURS = {Grade.OK: "green", Grade.DEGRADED: "yellow", Grade.FAILED: "bold red"}
_NS = 1_000_000_000


class NotAGateway(Exception):
    """The address is that of a process that does not know the whole."""


def health(address: str, timeout_s: float, access: Access, *, as_json: bool) -> int:
    """Prints the state of the whole. Returns the exit code: 1 if a part has failed. Raises UsageError."""
    try:
        state = whole(address, timeout_s, access)
    except NotAGateway:
        ready, text = probe(address, timeout_s, access)
        print_lines(f"{address}: {text.strip()}")
        print_lines("(This is the state of one process. A gateway's address shows the whole.)")
        return 0 if ready else 1
    if as_json:
        print_json(msgspec.to_builtins(state))
    else:
        _print(address, state)
    return 1 if state.grade is Grade.FAILED else 0


def whole(address: str, timeout_s: float, access: Access = PLAIN) -> SystemHealthDao:
    """Asks a gateway for the state of the whole. If it does not answer, that is the state. Raises NotAGateway,
    UsageError.
    """
    scheme, authority = parse_address(address)
    try:
        return (_grpc if scheme == "grpc" else _http)(scheme, authority, timeout_s, access)
    except OSError as error:
        remedy = "start Muster there, or name another gateway: muster health ADDRESS"
        return unreachable(f"{address} does not answer: {str(error).rstrip('.')}", remedy, time.time_ns())


def _http(scheme: str, authority: str, timeout_s: float, access: Access) -> SystemHealthDao:
    context = access.context() if scheme == "https" else None
    try:
        with open_url(f"{scheme}://{authority}/ws/v1/health", timeout_s, access, context) as answer:
            return msgspec.json.decode(answer.read(), type=SystemHealthDao)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise NotAGateway from error
        raise OSError(f"status {error.code}") from error
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from error
    except msgspec.MsgspecError as error:
        raise NotAGateway from error


def _grpc(_scheme: str, authority: str, timeout_s: float, access: Access) -> SystemHealthDao:
    from muster_client.errors import AdminFailed, AdminRefused

    try:
        return asyncio.run(_fetch_health(authority, timeout_s, access))
    except AdminRefused as error:
        if error.code.name == "UNIMPLEMENTED":
            raise NotAGateway from error
        raise OSError(f"{error.code.name}: {error.details}") from error
    except AdminFailed as error:
        raise OSError(f"{error.code.name}: {error.details}") from error


async def _fetch_health(authority: str, timeout_s: float, access: Access) -> SystemHealthDao:
    from muster_client.health_client import HealthClient

    from muster_cli.health_text import decode_health

    async with HealthClient(authority, access=access) as client:
        return decode_health(await client.get(timeout_s))


def _print(address: str, state: SystemHealthDao) -> None:
    headline = f"{address}: {state.grade}"
    headline += f": {state.part}" if state.part else ""
    headline += f": {state.sentence}" if state.sentence else ""
    Screen().print(headline, style=_COLOURS[state.grade], soft_wrap=True)
    if not state.parts:
        print_lines("(A caller with the right read gets the parts: --token-file.)")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("part", "grade", "for", "what, and what to do"):
        table.add_column(name, overflow="fold", no_wrap=name != "what, and what to do")
    for part in state.parts:
        for_s = max(0.0, (state.checked - part.since) / _NS)
        table.add_row(part.part, str(part.grade), duration(for_s), part.sentence, style=_COLOURS[part.grade])
        for sentence in part.others:
            table.add_row("", "", "", sentence, style=_COLOURS[part.grade])
        if part.remedy:
            table.add_row("", "", "", f"→ {part.remedy}")
    print_table(table)
