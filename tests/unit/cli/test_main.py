"""The command line from outside: exit codes, and one clear line for each error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from muster_cli.main import run
from muster_cli.settings_loader import MASK
from muster_replay.local_process import muster_command


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("MUSTER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_every_setting_has_a_description_and_no_secret_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_PUBLISHER__POSTGRES_DSN", "postgresql://muster:hidden@db/muster")
    monkeypatch.setenv("MUSTER_LOG__KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("MUSTER_LOG__KAFKA_SASL_USERNAME", "muster")
    monkeypatch.setenv("MUSTER_LOG__KAFKA_SASL_PASSWORD", "hidden")
    monkeypatch.setenv("MUSTER_GATEWAY__SESSIONS_URL", "redis://:hidden@cache/0")
    assert run(["config", "show", "--json"]) == 0
    printed = capsys.readouterr().out
    settings = json.loads(printed)
    assert "hidden" not in printed
    assert settings["log.kafka_sasl_password"]["shown"] == MASK
    assert settings["publisher.postgres_dsn"]["shown"] == f"postgresql://muster:{MASK}@db/muster"
    assert settings["gateway.sessions_url"]["place"] == "MUSTER_GATEWAY__SESSIONS_URL"
    assert not [name for name, one in settings.items() if not one["description"]]


def test_show_as_a_table_and_only_what_was_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "muster.toml"
    file.write_text("[gateway]\npause_timeout_s = 61.5\n")
    assert run(["config", "show", "--changed", "--settings", str(file), "--set", "log.partitions=7"]) == 0
    printed = capsys.readouterr().out
    assert "gateway.pause_timeout_s" in printed
    assert "61.5" in printed
    assert "flag --set log.partitions" in printed
    assert "log.backend" not in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--data-dir", "d", "--set", "gateway.nothing=1"], "unknown setting 'gateway.nothing'"),
        (["up", "--data-dir", "d", "--set", "log.partitions=many"], "log.partitions"),
        (["up", "--data-dir", "d", "--settings", "absent.toml"], "absent.toml: cannot be read"),
        (["up", "--data-dir", "d", "--config", "absent.yaml"], "absent.yaml: cannot be read"),
        (["up", "--data-dir", "d", "--grpc-address", "nowhere"], "expected host:port"),
        (["gateway", "--set", "log.backend=sqlite"], "muster up"),
        (["health", "127.0.0.1:1"], "expected grpc://"),
        (["config", "check", "absent.yaml"], "absent.yaml: cannot be read"),
        (["demo", "--live", "--keep"], "expected it without TRACE, --json and --keep"),
    ],
)
def test_an_invalid_call_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.startswith("muster: ")
    assert len(printed.splitlines()) == 1
    assert "Traceback" not in printed


def test_a_taken_port_and_a_data_directory_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert run(["up", "--data-dir", "d", "--grpc-address", address]) == 2
        assert f"{address} is taken by another process" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()
    (tmp_path / "file").write_text("")
    free = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    assert run(["up", "--data-dir", "file/d", *free]) == 2
    assert "file/d: cannot be created" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["version"], ["version", "--json"], ["completion", "bash"], ["config", "show"], ["--help"]]
)
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    """In a process of its own: what waits at its end must not be written either."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(muster_command(*arguments), stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "muster: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("arguments", [["version"], ["config", "show"]])
def test_a_closed_pipe_ends_quietly(arguments: list[str]) -> None:
    """As in `muster config show | head -1`."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as closed:
        done = subprocess.run(muster_command(*arguments), stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_config_check_has_an_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("partitions: [{name: default, queues: [{name: a}]}]\n")
    assert run(["config", "check", str(file)]) == 0
    file.write_text("partitions: [{name: default, queues: [{nmae: a}]}]\n")
    assert run(["config", "check", str(file)]) == 1
    assert f"{file}:1:" in capsys.readouterr().out


def test_topics_of_an_embedded_log(capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--set", "log.sqlite_path=data/log.db", "--set", "log.partitions=2"]
    assert run(["topics", "verify", *place]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert run(["topics", "create", *place]) == 0
    assert "si.state.v1: 2 partitions" in capsys.readouterr().out
    assert run(["topics", "verify", *place]) == 0
    assert run(["topics", "describe", *place]) == 0
    assert "si.events.v1" in capsys.readouterr().out


def test_health_without_a_service_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MUSTER_HEALTH_ADDRESS", f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert run(["health"]) == 1
    assert "refused" in capsys.readouterr().out
