"""``muster top``: the scheduler's figures, again and again."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import grpc
from muster_client.errors import AdminFailed, AdminRefused
from muster_client.metrics_client import MetricsClient, MetricsSnapshot
from rich.console import Console, Group, RenderableType
from rich.live import Live

from muster_cli.errors import CommandError, UsageError
from muster_cli.operating import check_call
from muster_cli.top_screen import Room, screen

INTERVAL_MIN_S = 0.1
# Rows of a snapshot that is printed, not shown on a screen.
_QUEUES_PRINTED = 40
_PIPED_WIDTH = 160  # a file has no edge
# On a screen: lines that are neither a queue's nor a node's, at most; and the fewest queues that are shown.
_OTHER_LINES, _QUEUES_MIN = 28, 5
# Characters of a row's other columns together, and of one resource type.
_OTHER_COLUMNS, _TYPE_COLUMN = 70, 16
_AGAIN_S = 1.0  # between attempts at a gateway that is away


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants to see; see the command's help."""

    gateway: str
    rm_id: str
    partition: str
    queue: str
    nodes: int
    interval_s: float
    once: bool
    as_json: bool


def top(asked: Asked) -> int:
    """Shows it until interrupted, or once; gives the exit code.

    Raises UsageError for what cannot be asked, CommandError when the gateway refuses, or does not answer at first.
    """
    if asked.interval_s < INTERVAL_MIN_S:
        raise UsageError(f"--interval {asked.interval_s:g}: expected at least {INTERVAL_MIN_S:g} s")
    if asked.nodes < 1:
        raise UsageError(f"--nodes {asked.nodes}: expected at least 1")
    check_call(asked.gateway)
    try:
        asyncio.run(_show(asked))
    except AdminRefused as error:
        if error.code is grpc.StatusCode.INVALID_ARGUMENT:  # several RMs and none named, say
            raise UsageError(f"{asked.gateway}: {error.details}") from error
        raise CommandError(f"{asked.gateway}: {error.details} ({error.code.name})") from error
    except AdminFailed as error:
        raise CommandError(f"{asked.gateway}: no answer: {error.details} ({error.code.name})") from error
    return 0


async def _show(asked: Asked) -> None:
    async with MetricsClient(asked.gateway) as client:
        if asked.once:
            _print(asked, await _get(client, asked), None)
        elif asked.as_json or not sys.stdout.isatty():
            await _print_all(client, asked)
        else:
            await _live(client, asked)


# ---- printed ---------------------------------------------------------------------------------------------------------


async def _print_all(client: MetricsClient, asked: Asked) -> None:
    """One after the other; ends with the first failure, as who reads it in a program must know."""
    before: MetricsSnapshot | None = None
    async with aclosing(_watch(client, asked)) as snapshots:
        async for now in snapshots:
            if before is not None and not asked.as_json:
                print()  # noqa: T201 - the output
            _print(asked, now, before)
            before = now


def _print(asked: Asked, now: MetricsSnapshot, before: MetricsSnapshot | None) -> None:
    if asked.as_json:
        print(json.dumps(now.as_json(), separators=(",", ":")), flush=True)  # noqa: T201 - the output
        return
    console = _console()
    room = Room(_QUEUES_PRINTED, asked.nodes, _types(console), plain=_is_plain(console))
    with console.capture() as printed:
        console.print(screen(now, before, room))
    print("\n".join(map(str.rstrip, printed.get().splitlines())), flush=True)  # noqa: T201 - the output


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def _types(console: Console) -> int:
    """How many columns of resource types fit beside the others."""
    return max(1, (console.width - _OTHER_COLUMNS) // _TYPE_COLUMN)


def _is_plain(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


# ---- on a screen -----------------------------------------------------------------------------------------------------


async def _live(client: MetricsClient, asked: Asked) -> None:
    """On the whole screen, until interrupted. A gateway that goes away is waited for, with what was known last."""
    console = _console()
    now: MetricsSnapshot | None = None
    before: MetricsSnapshot | None = None
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            try:
                async with aclosing(_watch(client, asked)) as snapshots:
                    async for taken in snapshots:
                        before, now = now, taken
                        live.update(_fitted(console, asked, now, before), refresh=True)
            except AdminFailed as error:
                if now is None:
                    raise
                note = f"[bold red]no answer[/] ({error.code.name}): trying again"
                live.update(Group(note, _fitted(console, asked, now, None)), refresh=True)
            await asyncio.sleep(_AGAIN_S)


def _fitted(console: Console, asked: Asked, now: MetricsSnapshot, before: MetricsSnapshot | None) -> RenderableType:
    left = console.height - _OTHER_LINES
    nodes = min(asked.nodes, max(_QUEUES_MIN, left // 2))
    room = Room(max(_QUEUES_MIN, left - nodes), nodes, _types(console), plain=_is_plain(console))
    return screen(now, before, room)


# ---- asked -----------------------------------------------------------------------------------------------------------


async def _get(client: MetricsClient, asked: Asked) -> MetricsSnapshot:
    return await client.get(asked.rm_id, partition=asked.partition, queue=asked.queue, nodes_max=asked.nodes)


def _watch(client: MetricsClient, asked: Asked) -> AsyncGenerator[MetricsSnapshot, None]:
    return client.watch(
        asked.rm_id,
        partition=asked.partition,
        queue=asked.queue,
        nodes_max=asked.nodes,
        interval_s=asked.interval_s,
    )
