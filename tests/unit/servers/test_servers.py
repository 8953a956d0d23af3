"""The behaviour of tests/servers.py if it finds no server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import servers


@pytest.fixture(autouse=True)
def _no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*servers.ENVIRONMENT.values(), "MUSTER_TEST_SERVERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", servers.KINDS)
def test_without_any_way_every_way_tried_is_named(
    kind: servers.Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(servers, "_postgres_binaries", _no_postgres)
    with pytest.raises(servers.NoServer) as raised:
        servers.find(kind, tmp_path / "session")
    assert servers.ENVIRONMENT[kind] in str(raised.value)
    assert "docker: no docker" in str(raised.value)
    assert "local: no " in str(raised.value)


def _no_postgres() -> Path:
    raise servers._Unusable("no PostgreSQL")


def test_an_address_that_does_not_answer_is_an_error_and_hides_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = closed.getsockname()[1]
        monkeypatch.setenv("MUSTER_TEST_POSTGRES", f"postgresql://muster:hidden@127.0.0.1:{port}/muster")
        monkeypatch.setattr(servers, "GIVEN_TIMEOUT_S", 0.2)
        with pytest.raises(servers.NoServer, match="no answer") as raised:
            servers.find("postgres", tmp_path)
    assert "hidden" not in str(raised.value)


def test_a_stranger_on_the_port_is_not_taken_for_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        monkeypatch.setenv("MUSTER_TEST_KAFKA", f"127.0.0.1:{stranger.getsockname()[1]}")
        monkeypatch.setattr(servers, "GIVEN_TIMEOUT_S", 0.2)
        with pytest.raises(servers.NoServer):
            servers.find("kafka", tmp_path)


def test_a_reused_pid_is_not_ended() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        servers.stop(servers.Server("redis", "", "local", pid=sleeper.pid, started_ticks=1))
        assert sleeper.poll() is None
        servers.stop(servers.Server("redis", "", "local", sleeper.pid, servers.started_ticks(sleeper.pid)))
        assert servers.started_ticks(sleeper.pid) == 0
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize(("require", "outcome"), [("0", "1 skipped"), ("1", "1 error")])
def test_a_missing_server_is_a_skip_or_a_failure_as_asked(require: str, outcome: str, tmp_path: Path) -> None:
    tests = Path(servers.__file__).parent
    (tmp_path / "conftest.py").write_text((tests / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text("def test_it(redis_url): pass\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_TEST_")}
    environment |= {"PATH": str(tmp_path), "PYTHONPATH": str(tests), "MUSTER_REQUIRE_SERVERS": require}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
    )
    assert outcome in ran.stdout, ran.stdout + ran.stderr
    assert "MUSTER_TEST_REDIS is not set" in ran.stdout


def test_a_server_that_has_ended_is_not_shown_again() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note = asdict(servers.Server("redis", "", "local", sleeper.pid, servers.started_ticks(sleeper.pid)))
    try:
        assert not servers._is_stale(note)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert servers._is_stale(note)
    assert servers._is_stale({"tried": "no redis-server"}), "it may have been installed since"
