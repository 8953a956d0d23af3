"""The process's own state: stacks, profiles, the log level."""

from __future__ import annotations

import asyncio

import structlog

from muster_view.errors import HttpError
from muster_view.rest import json_render, process_debug
from muster_view.rest.http_messages import TEXT, Endpoint, HttpAnswer, HttpCall, redirect
from muster_view.rest.parameters import quote, seconds

log = structlog.get_logger(__name__)


class ProcessEndpoints:
    """Answers about this process; one profile at a time."""

    def __init__(self) -> None:
        self._profiling = asyncio.Lock()

    async def stack(self, _call: HttpCall) -> HttpAnswer:
        # (The content type is JSON's although the body is not JSON, as in YuniKorn.)
        return HttpAnswer(process_debug.stacks(list(asyncio.all_tasks())))

    async def pprof(self, call: HttpCall) -> HttpAnswer:
        name = call.path.get("profile", "")
        if name in process_debug.MISSING:
            raise HttpError(501, f"Profile {name} has no meaning here: {process_debug.MISSING[name]}")
        match name:
            case "":
                return HttpAnswer(iter([process_debug.index()]), headers={"Content-Type": "text/html; charset=utf-8"})
            case "cmdline":
                return HttpAnswer(iter([process_debug.command_line()]), headers=TEXT)
            case "goroutine":
                return HttpAnswer(process_debug.stacks(list(asyncio.all_tasks())), headers=TEXT)
            case "profile":
                return HttpAnswer(iter([await self._profile(seconds(call))]), headers=TEXT)
        raise HttpError(404, f"Profile not found: {quote(name)}")

    async def _profile(self, seconds: int) -> bytes:
        if self._profiling.locked():
            raise HttpError(503, "A profile is being made already: try again")
        async with self._profiling:
            return await asyncio.to_thread(process_debug.profile, seconds)

    async def level(self, _call: HttpCall) -> HttpAnswer:
        return HttpAnswer(json_render.body(process_debug.level()))

    async def set_level(self, call: HttpCall) -> HttpAnswer:
        level = call.path["level"].lower()
        if level not in process_debug.LEVELS:
            raise HttpError(
                400, f"Level {quote(level)} is not known: expected one of {', '.join(process_debug.LEVELS)}"
            )
        log.warning("view.log_level", was=process_debug.level(), now=level)
        process_debug.set_level(level)
        return HttpAnswer(json_render.body(process_debug.level()))


def moved(path: str) -> Endpoint:
    """An endpoint that sends its reader to another path."""

    async def answer(call: HttpCall) -> HttpAnswer:
        status, headers, body = redirect(path, call.raw_query)
        return HttpAnswer(iter([body]), status, headers)

    return answer
