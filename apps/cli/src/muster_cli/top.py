"""``muster top``: the scheduler's figures, refreshed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from muster_client.access import Access
from muster_client.errors import AdminFailed, AdminRefused
from muster_client.metrics_client import MetricsClient, MetricsSnapshot, as_json
from muster_runtime.terminal import Screen, is_terminal, marked, say, say_json
from rich.console import Group, RenderableType
from rich.live import Live

from muster_cli.common import NO_ACCESS_FLAGS, AccessFlags
from muster_cli.errors import CommandError
from muster_cli.operating import access_to, refusal, say_table
from muster_cli.top_screen import Room, screen

INTERVAL_MIN_S = 0.1
# Rows of a printed snapshot.
_QUEUES_PRINTED = 40
_PIPED_WIDTH = 160  # a file has no edge
# On a screen: greatest number of lines besides queues and nodes, and smallest number of queues.
_OTHER_LINES, _QUEUES_MIN = 33, 5
# Characters of a row's other columns together, and of one resource type's column.
_OTHER_COLUMNS, _OTHER_COLUMNS_NARROW, _TYPE_COLUMN = 70, 32, 16
# A narrower screen has percentages without bars, so that GPUs have room.
_WIDE = 110
_AGAIN_S = 1.0  # between attempts at a gateway that does not answer


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags of the command; its help describes them."""

    gateway: str
    rm_id: str
    partition: str
    queue: str
    nodes: int
    interval_s: float
    once: bool
    as_json: bool
    flags: AccessFlags = NO_ACCESS_FLAGS


def top(asked: Asked) -> int:
    """Shows the figures until interrupted, or once. Returns the exit code.

    Raises UsageError for invalid flags, CommandError when the gateway refuses, or does not answer the first call.
    """
    access = access_to(asked.gateway, asked.flags)
    try:
        asyncio.run(_show(asked, access))
    except AdminRefused as error:
        raise refusal(asked.gateway, error) from error
    except AdminFailed as error:
        raise CommandError(f"{asked.gateway}: no answer: {error.details} ({error.code.name})") from error
    return 0


async def _show(asked: Asked, access: Access) -> None:
    async with MetricsClient(asked.gateway, access=access) as client:
        if asked.once:
            _print(asked, await _get(client, asked), None)
        elif asked.as_json or not is_terminal():
            await _print_all(client, asked)
        else:
            await _live(client, asked)


# ---- printed ---------------------------------------------------------------------------------------------------------


async def _print_all(client: MetricsClient, asked: Asked) -> None:
    """Prints snapshots until the first failure, which ends the command, so that a program notices it."""
    before: MetricsSnapshot | None = None
    async with aclosing(_watch(client, asked)) as snapshots:
        async for now in snapshots:
            if before is not None and not asked.as_json:
                say()
            _print(asked, now, before)
            before = now


def _print(asked: Asked, now: MetricsSnapshot, before: MetricsSnapshot | None) -> None:
    if asked.as_json:
        say_json(as_json(now), indent=None, separators=(",", ":"))
        return
    console = _console()
    say_table(screen(now, before, _room(console, _QUEUES_PRINTED, asked.nodes)), console)


def _console() -> Screen:
    return Screen(width=None if is_terminal() else _PIPED_WIDTH)


def _room(console: Screen, queues: int, nodes: int) -> Room:
    """The size of the screen: the number of resource type columns that fit beside the others."""
    narrow = console.width < _WIDE
    others = _OTHER_COLUMNS_NARROW if narrow else _OTHER_COLUMNS
    types = max(1, (console.width - others) // _TYPE_COLUMN)
    return Room(queues, nodes, types, plain=_is_plain(console), narrow=narrow)


def _is_plain(console: Screen) -> bool:
    return not console.encoding.lower().startswith("utf")


# ---- on a screen -----------------------------------------------------------------------------------------------------


async def _live(client: MetricsClient, asked: Asked) -> None:
    """Fills the screen until interrupted. While the gateway is away it shows the last snapshot and retries."""
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
                note = marked("[bold red]no answer[/] ({}): trying again", error.code.name)
                live.update(Group(note, _fitted(console, asked, now, None)), refresh=True)
            await asyncio.sleep(_AGAIN_S)


def _fitted(console: Screen, asked: Asked, now: MetricsSnapshot, before: MetricsSnapshot | None) -> RenderableType:
    left = console.height - _OTHER_LINES
    nodes = min(asked.nodes, max(_QUEUES_MIN, left // 2))
    room = _room(console, max(_QUEUES_MIN, left - nodes), nodes)
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
