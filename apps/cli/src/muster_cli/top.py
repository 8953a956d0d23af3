"""``muster top``: the state of the whole Muster and the scheduler's figures, refreshed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from muster_client.access import Access
from muster_client.admin import DEFAULT_TIMEOUT_S
from muster_client.errors import AdminFailed, AdminRefused
from muster_client.health_client import HealthClient
from muster_client.metrics_client import MetricsClient, MetricsSnapshot, as_json
from muster_rest.shapes.health import SystemHealthDao
from muster_runtime.terminal import Screen, is_terminal, marked, print_json, print_lines
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from muster_cli import health_text
from muster_cli.errors import CommandError
from muster_cli.flags import NO_ACCESS_FLAGS, AccessFlags
from muster_cli.health_text import health_lines
from muster_cli.operator_client import access_to, print_table, refusal
from muster_cli.top_screen import ScreenSize, screen

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
# A view that has failed may answer all the same, but nobody should wait for it to learn that it has failed.
_FAILED_VIEW_S = 2.0
_AGAIN_S = 1.0  # between attempts at a gateway that does not answer
HealthSource = Callable[[], Awaitable[SystemHealthDao | None]]


@dataclass(frozen=True, slots=True)
class TopOptions:
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


def top(options: TopOptions) -> int:
    """Shows the figures until interrupted, or once. Returns the exit code.

    Raises UsageError for invalid flags, CommandError when the gateway refuses, or does not answer the first call.
    """
    access = access_to(options.gateway, options.flags)
    try:
        asyncio.run(_show(options, access))
    except AdminRefused as error:
        raise refusal(options.gateway, error) from error
    except AdminFailed as error:
        raise CommandError(f"{options.gateway}: no answer: {error.details} ({error.code.name})") from error
    return 0


async def _show(options: TopOptions, access: Access) -> None:
    async with (
        MetricsClient(options.gateway, access=access) as client,
        HealthClient(options.gateway, access=access) as health_client,
    ):

        async def health() -> SystemHealthDao | None:
            return await health_text.fetch_health(health_client, options.gateway)

        if options.once:
            await _print_once(client, health, options)
        elif options.as_json or not is_terminal():
            await _print_all(client, health, options)
        else:
            await _Live(client, health, options).run()


# ---- printed ---------------------------------------------------------------------------------------------------------


async def _print_once(client: MetricsClient, health: HealthSource, options: TopOptions) -> None:
    """Prints the state, and the figures. Raises AdminFailed or AdminRefused after the state if there are no figures."""
    state = await health()
    view_failed = state is not None and any(part.part == "view" and part.grade == "failed" for part in state.parts)
    try:
        now = await _get(client, options, _FAILED_VIEW_S if view_failed else DEFAULT_TIMEOUT_S)
    except (AdminFailed, AdminRefused):
        if not options.as_json:
            _print_health(state)
        raise
    _print(options, now, None, state)


async def _print_all(client: MetricsClient, health: HealthSource, options: TopOptions) -> None:
    """Prints snapshots until the first failure, which ends the command, so that a program notices it."""
    before: MetricsSnapshot | None = None
    try:
        async with aclosing(_watch(client, options)) as snapshots:
            async for now in snapshots:
                if before is not None and not options.as_json:
                    print_lines()
                _print(options, now, before, await health())
                before = now
    except AdminFailed:
        if not options.as_json:
            _print_health(await health())
        raise


def _print(
    options: TopOptions, now: MetricsSnapshot, before: MetricsSnapshot | None, health: SystemHealthDao | None
) -> None:
    if options.as_json:
        shown = {**as_json(now), "health": msgspec.to_builtins(health)}
        print_json(shown, indent=None, separators=(",", ":"))
        return
    console = _console()
    print_table(
        screen(now, before, _screen_size(console, _QUEUES_PRINTED, options.nodes), health_lines(health)), console
    )


def _print_health(health: SystemHealthDao | None) -> None:
    if health is not None:
        print_table(Group(*health_lines(health)), _console())


def _console() -> Screen:
    return Screen(width=None if is_terminal() else _PIPED_WIDTH)


def _screen_size(console: Screen, queues: int, nodes: int) -> ScreenSize:
    """The size of the screen: the number of resource type columns that fit beside the others."""
    narrow = console.width < _WIDE
    others = _OTHER_COLUMNS_NARROW if narrow else _OTHER_COLUMNS
    types = max(1, (console.width - others) // _TYPE_COLUMN)
    return ScreenSize(queues, nodes, types, plain=_is_plain(console), narrow=narrow)


def _is_plain(console: Screen) -> bool:
    return not console.encoding.lower().startswith("utf")


# ---- on a screen -----------------------------------------------------------------------------------------------------


class _Live:
    """Fills the screen until interrupted. While figures are away it shows the last ones, and why."""

    def __init__(self, client: MetricsClient, health: HealthSource, options: TopOptions) -> None:
        self._client, self._ask_health, self._options = client, health, options
        self._console = _console()
        self._now: MetricsSnapshot | None = None
        self._before: MetricsSnapshot | None = None
        self._health: SystemHealthDao | None = None
        self._problem: AdminFailed | None = None

    async def run(self) -> None:
        """Raises AdminFailed if nothing answers the first calls."""
        self._health = await self._ask_health()
        with Live(console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            following = asyncio.create_task(self._follow_health(live), name="health")
            try:
                await self._follow_metrics(live)
            finally:
                following.cancel()
                await asyncio.wait({following})

    async def _follow_health(self, live: Live) -> None:
        while True:
            await asyncio.sleep(max(self._options.interval_s, _AGAIN_S))
            self._health = await self._ask_health()
            self._draw(live)

    async def _follow_metrics(self, live: Live) -> None:
        while True:
            try:
                await self._read_snapshots(live)
            except AdminFailed:
                if self._now is None and (self._health is None or self._health.part == "gateway"):
                    raise
            self._draw(live)
            await asyncio.sleep(_AGAIN_S)

    async def _read_snapshots(self, live: Live) -> None:
        try:
            async with aclosing(_watch(self._client, self._options)) as snapshots:
                async for taken in snapshots:
                    self._before, self._now, self._problem = self._now, taken, None
                    self._draw(live)
        except AdminFailed as error:
            self._before, self._problem = None, error
            raise

    def _draw(self, live: Live) -> None:
        shown: list[RenderableType] = []
        if self._problem is not None:
            shown.append(marked("[bold red]no answer[/] ({}): trying again", self._problem.code.name))
        lines = health_lines(self._health)
        if self._now is not None:
            shown.append(_fitted(self._console, self._options, self._now, self._before, lines))
        else:
            shown += lines
        live.update(Group(*shown), refresh=True)


def _fitted(
    console: Screen, options: TopOptions, now: MetricsSnapshot, before: MetricsSnapshot | None, health: Sequence[Text]
) -> RenderableType:
    free_lines = console.height - _OTHER_LINES - len(health)
    nodes = min(options.nodes, max(_QUEUES_MIN, free_lines // 2))
    room = _screen_size(console, max(_QUEUES_MIN, free_lines - nodes), nodes)
    return screen(now, before, room, health)


# ---- asked -----------------------------------------------------------------------------------------------------------


async def _get(client: MetricsClient, options: TopOptions, timeout_s: float) -> MetricsSnapshot:
    return await client.get(
        options.rm_id, partition=options.partition, queue=options.queue, nodes_max=options.nodes, timeout_s=timeout_s
    )


def _watch(client: MetricsClient, options: TopOptions) -> AsyncGenerator[MetricsSnapshot, None]:
    return client.watch(
        options.rm_id,
        partition=options.partition,
        queue=options.queue,
        nodes_max=options.nodes,
        interval_s=options.interval_s,
    )
