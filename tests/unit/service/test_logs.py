"""Logging: one JSON object per line for machines, from every library."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from uuid import UUID

import pytest
import structlog
from certificates import Authority
from muster_runtime import logs
from muster_runtime.identity import Proof


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


pytestmark = pytest.mark.usefixtures("logs_as_before")


def _lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_without_a_terminal_each_line_is_json() -> None:
    out = io.StringIO()
    logs.configure("info", "auto", out)
    structlog.get_logger("muster_x").info("hello", rm_id="rm-1")
    logging.getLogger("library").warning("careful: %s", "hot")
    first, second = _lines(out)
    assert first["event"] == "hello"
    assert first["rm_id"] == "rm-1"
    assert first["logger"] == "muster_x"
    assert second["event"] == "careful: hot"
    assert second["level"] == "warning"
    assert str(second["timestamp"]).endswith("Z")


def test_on_a_terminal_it_is_text() -> None:
    out = Terminal()
    logs.configure("info", "auto", out)
    structlog.get_logger("muster_x").info("hello")
    assert "hello" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_the_level_holds_and_libraries_are_quiet() -> None:
    out = io.StringIO()
    logs.configure("info", "json", out)
    structlog.get_logger("muster_x").debug("not this")
    logging.getLogger("aiokafka.consumer").info("nor this")
    logging.getLogger("aiokafka.consumer").error("but this")
    assert [line["event"] for line in _lines(out)] == ["but this"]


def test_an_exception_is_one_line() -> None:
    out = io.StringIO()
    logs.configure("info", "json", out)
    try:
        raise ValueError("defect")
    except ValueError:
        structlog.get_logger("muster_x").exception("failed")
    (line,) = _lines(out)
    assert "ValueError: defect" in str(line["exception"])


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Path("/data"), "/data"),
        (ValueError("must be 1"), "ValueError: must be 1"),
        (TimeoutError(), "TimeoutError"),
        (Proof.TOKEN, "token"),
        (Colour.RED, "RED"),
        (HTTPStatus.OK, 200),
        (b"ab\xff", "ab\\xff"),
        ((1, None, True), [1, None, True]),
        ({"b", "a"}, ["a", "b"]),
        ({1: Path("a"), "deep": [{"password": "x"}]}, {"1": "a", "deep": [{"password": "***"}]}),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (OSError(f"redis://u:{'hunter2'}@h"), "OSError: redis://u:***@h"),
    ],
)
def test_no_value_is_in_pythons_notation(value: object, shown: object) -> None:
    out = io.StringIO()
    logs.configure("info", "json", out)
    structlog.get_logger("muster_x").info("hello", value=value)
    (line,) = _lines(out)
    assert line["value"] == shown


def test_repeated_messages_of_a_library_are_counted_not_repeated() -> None:
    out, now_s = io.StringIO(), 100.0
    logs.configure("info", "json", out)
    kafka = logging.getLogger("aiokafka")
    kafka.filters[:] = [logs.RepeatFilter(10.0, lambda: now_s)]

    def fail(node: int) -> None:
        kafka.error("Unable connect to node with id %s", node)

    for node in range(500):
        fail(node)
    kafka.error("something else")
    now_s += 10.0
    fail(7)
    fail(8)
    assert [line["event"] for line in _lines(out)] == [
        "Unable connect to node with id 0",
        "something else",
        "Unable connect to node with id 7 (and 499 more like it in 10 s)",
    ]


def test_what_clients_cause_is_logged_once_a_minute() -> None:
    out, now_s = io.StringIO(), 100.0
    logs.configure("info", "json", out)
    (handler,) = logging.getLogger().handlers
    handler.filters[:] = [logs.SeldomOfClients(lambda: now_s)]

    def fail(text: str, error: Exception) -> None:
        logging.getLogger("asyncio").error(text, exc_info=(type(error), error, None))

    for _ in range(500):
        fail("socket.accept() out of system resource\nsocket: <fd 7>", OSError(24, "Too many open files"))
        fail("Task exception was never retrieved\nfuture: <Task 1>", RuntimeError("broken call"))
        logging.getLogger("grpc._cython.cygrpc").error("broken call")
    fail("Task exception was never retrieved\nfuture: <Task 2>", ValueError("a defect"))
    for number in range(3):
        structlog.get_logger("muster_x").info("each", number=number)
    now_s += 60.0
    fail("socket.accept() out of system resource\nsocket: <fd 8>", OSError(24, "Too many open files"))
    assert [str(line["event"]).partition("\n")[0] for line in _lines(out)] == [
        "socket.accept() out of system resource",
        "Task exception was never retrieved",
        "broken call",
        "Task exception was never retrieved",
        "each",
        "each",
        "each",
        "socket.accept() out of system resource",
    ]
    assert "and 499 more like it in 60 s" in out.getvalue()


_SERVER = """
import asyncio, socket, sys
import muster_cli
import grpc
from pathlib import Path

async def serve():
    server = grpc.aio.server()
    pair = (Path(sys.argv[2]).read_bytes(), Path(sys.argv[1]).read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    def attack():
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
                one.settimeout(60)
                try:
                    one.recv(1)
                except ConnectionResetError:
                    pass
    await asyncio.to_thread(attack)
    print("served", flush=True)

asyncio.run(serve())
"""


def test_grpc_s_core_writes_no_line_for_each_connection(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    Authority().server().write(certificate, key)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", _SERVER, str(certificate), str(key)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.stderr) == ("served\n", "")


def test_it_is_known_how_a_child_is_to_log() -> None:
    logs.configure("warning", "json", io.StringIO())
    assert logs.configured() == ("warning", "json")


SECRET = "hunter2-hunter2"


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()], ids=["json", "terminal"])
def test_no_entry_has_a_secret(out: io.StringIO) -> None:
    out.truncate(0)
    logs.configure("info", "auto", out)
    log = structlog.get_logger("muster_x")
    log.warning("it went with password=%s", SECRET)
    log.info("beside", api_key=SECRET, url=f"redis://:{SECRET}@host", seen="seen-1", count=3)
    log.info("within", details={"token": SECRET, "deep": [f"Bearer {SECRET}", (f"apikey {SECRET}",)]})
    log.info("an error", error=ValueError(f"Authorization: Basic {SECRET}"))
    logging.getLogger("library").warning("header %s", f"Authorization: Bearer {SECRET}")
    logging.getLogger("library").warning("header", extra={"token": SECRET})
    try:
        raise RuntimeError(f"cannot connect to postgresql://u:{SECRET}@host")
    except RuntimeError as error:
        log.exception("failed")
        log.error("failed", exc_info=error)
        logging.getLogger("library").exception("failed")
    assert SECRET not in out.getvalue()
    assert out.getvalue().count("RuntimeError: cannot connect to postgresql://u:***@host") == 3
    assert "seen-1" in out.getvalue()


def test_a_brief_start_logs_warnings_only_until_it_is_ready() -> None:
    out = Terminal()
    logs.configure("info", "auto", out, brief_start=True)
    log = structlog.get_logger("muster_x")
    log.info("a step")
    log.warning("a worry")
    logs.end_startup()
    log.info("an event")
    assert "a step" not in out.getvalue()
    assert "a worry" in out.getvalue()
    assert "an event" in out.getvalue()


@pytest.mark.parametrize(("level", "out"), [("debug", Terminal()), ("info", io.StringIO())])
def test_only_a_terminal_that_does_not_debug_starts_briefly(level: logs.Level, out: io.StringIO) -> None:
    logs.configure(level, "auto", out, brief_start=True)
    structlog.get_logger("muster_x").info("a step")
    assert "a step" in out.getvalue()
