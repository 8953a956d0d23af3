"""Fixtures for all tests: addresses of real servers (servers.py finds or starts them)."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import re
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import as_source  # noqa: F401  (first)
import forking
import pytest
import secured_servers
import servers
import structlog
from hypothesis import HealthCheck, settings
from muster_replay.local_process import LocalProcess
from wanting import server_wanted
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

_DIRECTORY = "MUSTER_TEST_SERVERS_DIRECTORY"
_WITH_MANY_STARTS = {"chaos", "e2e", "integration", "page"}
_SKIPPED = 8  # the status of a session with skips where none is allowed; pytest has 0 to 5

# A busy machine fails no property: neither an example nor its making has a time of its own, pytest's time-out bounds
# both. A failure prints what `@reproduce_failure` takes.
settings.register_profile("muster", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("muster")


def pytest_addoption(parser: pytest.Parser) -> None:
    # (An option, not a variable: tests that start pytest on tests of their own play all of those.)
    parser.addoption("--part", metavar="K/N", type=_part, help="the K-th of N parts of the tests, always the same ones")


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"must be K/N with K from 1 to N, got {text}")
    return int(found[1]), int(found[2])


def pytest_configure(config: pytest.Config) -> None:
    # Where the environment has it, each process that a test starts would compile Muster's 300 modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not hasattr(config, "workerinput") and _DIRECTORY not in os.environ:
        os.environ[_DIRECTORY] = str(servers.session_directory())  # workers of xdist inherit it
        config.add_cleanup(_end_servers)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """--part=K/N leaves a part of the tests, always the same ones: for a run beside a whole one."""
    if part := config.getoption("part"):
        number, parts = part
        chosen = {item for item in items if zlib.crc32(item.nodeid.encode()) % parts == number - 1}
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]


class _FilesOfOneProcess(LoadFileScheduling):
    """A file's tests, and all of tests/page, which share a browser and a large cluster, are played by one process."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "tests/page" if file.startswith("tests/page/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return _FilesOfOneProcess(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    # 12,000 collected tests are objects that every full collection would look at again: a twentieth of the time.
    gc.collect()
    gc.freeze()


def _end_servers() -> None:
    servers.stop_all(Path(os.environ.pop(_DIRECTORY)))


@pytest.fixture(scope="session")
def secured() -> secured_servers.Secured:
    """Kafka, Redis and PostgreSQL that require TLS and a password (secured_servers.py). Shared by all tests."""
    with server_wanted():
        return secured_servers.find(Path(os.environ[_DIRECTORY]))


def _address(kind: servers.Kind, directory: Path | None = None) -> str:
    with server_wanted():
        return servers.find(kind, directory or Path(os.environ[_DIRECTORY])).address


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With MUSTER_REQUIRE_SERVERS=1 the session fails if a test was skipped, with a status that says so."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("MUSTER_REQUIRE_SERVERS") == "1" and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = _SKIPPED


@pytest.fixture(scope="session", autouse=True)
def _forked_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a folder's tests start many processes of Muster, forks start them (forking.py)."""
    if not any(item.path.parent.name in _WITH_MANY_STARTS for item in request.session.items):
        yield
        return
    with forking.forks() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcess, "popen", staticmethod(forking.popen_by(server, subprocess.Popen)))
        yield


@pytest.fixture
def not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of the start itself, or of what a process looks like from outside."""
    monkeypatch.setattr(LocalProcess, "popen", subprocess.Popen)


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    """Restores structlog's configuration, which commands in the test's process change."""
    configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if structlog.get_config() == before:
        return
    if configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


@pytest.fixture
def logs_as_before() -> Iterator[None]:
    """Restores the loggers after a test that configures them."""
    root, configured, settings = logging.getLogger(), structlog.is_configured(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    if configured:
        structlog.configure(**settings)
    else:
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def kafka_bootstrap() -> str:
    """Address of a Kafka broker, "host:port". Shared by all tests: topics and ids need a prefix of their own."""
    return _address("kafka")


@pytest.fixture
def fresh_kafka_bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a broker started for this test, never of one from the environment."""
    monkeypatch.delenv(servers.ENVIRONMENT["kafka"], raising=False)
    directory = tmp_path / "servers"
    yield _address("kafka", directory)
    servers.stop_all(directory)


@pytest.fixture(scope="session")
def redis_url() -> str:
    """URL of a Redis. Shared by all tests: keys need a prefix of their own."""
    return _address("redis")


@pytest.fixture(scope="session")
def postgres_dsn() -> str:
    """DSN of a PostgreSQL database. Shared by all tests: work in a schema of your own."""
    return _address("postgres")
