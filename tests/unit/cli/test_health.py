"""``muster health`` from outside: what it prints, and its exit codes."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pytest
from muster_cli.main import run
from muster_rest.shapes.health import SystemHealthDao
from muster_rest.system_health import (
    HealthFacts,
    LogFacts,
    OwnerFacts,
    OwnerState,
    SchedulerFacts,
    system_health,
    without_parts,
)

NOW = 10**15
WELL = HealthFacts(False, LogFacts(), SchedulerFacts([OwnerFacts(3, OwnerState.SERVING, 0.0, 8.0)]))
SOON = replace(WELL, scheduler=SchedulerFacts([OwnerFacts(3, OwnerState.SERVING, 5.0, 8.0)]))
GONE = replace(WELL, scheduler=SchedulerFacts([OwnerFacts(3, OwnerState.SERVING, 75.0, 8.0)]))


@contextmanager
def serving(answers: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """A server with these answers by path; others get 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b"404 page not found\n"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def gateway(state: SystemHealthDao) -> Iterator[str]:
    with serving({"/ws/v1/health": (200, msgspec.json.encode(state)), "/readyz": (200, b"SERVING\n")}) as url:
        yield url


def test_a_failed_part_comes_first_with_its_age_and_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(system_health(GONE, NOW)) as url:
        assert run(["health", url]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{url}: failed: scheduler: no scheduler has answered for partition 3 for 75 s"
    assert lines[1].split() == ["part", "grade", "for", "what,", "and", "what", "to", "do"]
    assert lines[2].split()[:4] == ["scheduler", "failed", "75", "s"]
    assert lines[3].strip().startswith("→ start one: muster scheduler")
    assert {line.split()[0] for line in lines[4:]} == {"gateway", "log", "requests", "external"}


@pytest.mark.parametrize(("facts", "grade"), [(WELL, "ok"), (SOON, "degraded")])
def test_what_has_not_failed_exits_with_0(facts: HealthFacts, grade: str, capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(system_health(facts, NOW)) as url:
        assert run(["health", url]) == 0
        assert run(["health", url, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{url}: {grade}: ")
    assert json.loads(out[out.index("{") :])["grade"] == grade


def test_one_process_is_asked_with_a_flag_or_where_nobody_knows_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(system_health(GONE, NOW)) as url:
        assert run(["health", url, "--process"]) == 0
    assert capsys.readouterr().out == f"{url}: SERVING\n"
    for status, code in ((200, 0), (503, 1)):
        with serving({"/readyz": (status, b'{"status": "as it is"}')}) as url:
            assert run(["health", url]) == code
        assert '{"status": "as it is"}\n(This is the state of one process.' in capsys.readouterr().out


def test_without_a_right_to_read_it_shows_the_grade(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(without_parts(system_health(GONE, NOW))) as url:
        assert run(["health", url]) == 1
    assert capsys.readouterr().out == (f"{url}: failed\n(A caller with the right read gets the parts: --token-file.)\n")


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_gateway_that_does_not_answer_is_the_failed_part(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"{scheme}://127.0.0.1:{closed.getsockname()[1]}"
        assert run(["health", address]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{address}: failed: gateway: {address} does not answer: ")
    assert "refused" in out
    assert "→ start Muster there, or name another gateway" in out


def test_an_address_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["health", "127.0.0.1:9090"]) == 2
    assert "expected grpc://host:port" in capsys.readouterr().err
