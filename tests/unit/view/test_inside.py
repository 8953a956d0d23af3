"""Debugging endpoints: stacks, profiles, the log level."""

from __future__ import annotations

import asyncio
import sys

import pytest
import structlog
from muster_view.rest import process_debug
from structlog.testing import LogCapture
from unit.view.recorded import Bench, client_of


@pytest.fixture
def heard(logs_as_before: None) -> LogCapture:
    """Collect log messages, independent of the logging setup of earlier tests."""
    capture = LogCapture()
    structlog.configure(processors=[capture], logger_factory=structlog.PrintLoggerFactory())
    return capture


async def test_stacks_name_threads_and_tasks_and_show_no_values(bench: Bench) -> None:
    async def waits_for_ever(secret: str) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(waits_for_ever("tiger"), name="of the test")
    async with bench.view() as view, client_of(view) as client:
        answer = await client.get("/debug/stack")
        same = await client.get("/debug/pprof/goroutine")
    task.cancel()
    assert answer.headers["content-type"] == "application/json; charset=UTF-8"  # as YuniKorn has it
    assert same.headers["content-type"] == "text/plain; charset=utf-8"
    for text in (answer.text, same.text):
        assert "thread MainThread\n" in text
        assert "task of the test\n" in text
        assert "waits_for_ever" in text
        assert "tiger" not in text


async def test_old_paths_are_sent_on_with_their_query(bench: Bench) -> None:
    async with bench.view() as view, client_of(view) as client:
        for path, target in [
            ("/ws/v1/stack", "/debug/stack"),
            ("/ws/v1/fullstatedump?rm=a%2Fb", "/debug/fullstatedump?rm=a%2Fb"),
            ("/debug/pprof", "/debug/pprof/"),
        ]:
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (301, target)
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert f'<a href="{target}">Moved Permanently</a>' in answer.text


async def test_profiles(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["muster", "--url", "redis://:tiger@host"])
    async with bench.view() as view, client_of(view) as client:
        index = (await client.get("/debug/pprof/")).text
        for name in process_debug.PROFILES:
            assert f'href="{name}"' in index
        assert (await client.get("/debug/pprof/cmdline")).text == "muster\0--url\0redis://:***@host"
        for name in process_debug.MISSING:
            answer = await client.get(f"/debug/pprof/{name}")
            assert (answer.status_code, answer.json()["message"]) == (
                501,
                f"Profile {name} has no meaning here: {process_debug.MISSING[name]}",
            )
        assert (await client.get("/debug/pprof/nope")).status_code == 404
        for seconds in ("0", "61", "x", "-1", "1.5"):
            assert (await client.get(f"/debug/pprof/profile?seconds={seconds}")).status_code == 400
        first, second = await asyncio.gather(*(client.get("/debug/pprof/profile?seconds=1") for _ in range(2)))
        assert sorted((first.status_code, second.status_code)) == [200, 503]
        made = first if first.status_code == 200 else second
        for line in made.text.splitlines():
            stack, _, count = line.rpartition(" ")
            assert stack
            assert int(count) > 0
        assert "run_forever" in made.text


async def test_the_level_of_the_log(bench: Bench, heard: LogCapture) -> None:
    log = structlog.get_logger("test")
    async with bench.view() as view, client_of(view) as client:
        for level in ("error", "DEBUG"):
            answer = await client.put(f"/ws/v1/loglevel/{level}")
            assert (answer.status_code, answer.json()) == (200, level.lower())
            assert (await client.get("/ws/v1/loglevel")).json() == level.lower()
            heard.entries.clear()
            log.info("heard")
            assert (heard.entries == [{"event": "heard", "log_level": "info"}]) is (level == "DEBUG")
        unknown = await client.put("/ws/v1/loglevel/loud")
        assert unknown.status_code == 400
        assert "'loud' is not known: expected one of debug" in unknown.json()["message"]
        assert (await client.get("/ws/v1/loglevel/debug")).status_code == 405
        assert (await client.put("/ws/v1/loglevel")).status_code == 405
