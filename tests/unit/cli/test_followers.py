"""The settings and answers between the main process and the followers' process."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from muster_cli import bootstrap
from muster_cli.errors import UsageError
from muster_cli.followers_child import with_forwarded_client
from muster_cli.followers_messages import in_clear, socket_directory
from muster_cli.settings import MusterSettings, embedded_defaults, load
from muster_runtime.addresses import listen
from starlette.types import Receive, Scope, Send

SECTIONS = ("process", "log", "view", "publisher", "derive", "gateway", "scheduler")


def test_settings_are_the_same_at_the_other_end(tmp_path: Path) -> None:
    file = tmp_path / "muster.toml"
    file.write_text(
        """
        [publisher]
        postgres_dsn = "postgresql://u:s3cret@h/db"
        trusted_proxies = ["192.0.2.1"]
        sinks.mine = {kind = "jsonl", location = "/out", roll_s = 5, token = "s3cret"}
        [gateway]
        trusted_proxies = ["192.0.2.0/24"]
        tokens.ops = {role = "read", token = "0123456789abcdef"}
        [log]
        kafka_security_protocol = "SASL_SSL"
        kafka_sasl_username = "muster"
        kafka_sasl_password = "s3cret"
        """
    )
    settings = load(file, (), defaults=embedded_defaults(tmp_path / "data"), environment={}).values
    plain = {name: in_clear(getattr(settings, name)) for name in SECTIONS}
    assert MusterSettings.model_validate(plain) == settings
    assert "s3cret" in str(plain)


async def test_a_request_is_seen_as_the_front_got_it() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope)

    async def nothing(*_: object) -> None: ...

    headers = [
        (b"host", b"view"), (b"x-forwarded-for", b"198.51.100.9"), (b"x-muster-role", b"read"),
        (b"x-forwarded-host", b"muster.example"), (b"x-forwarded-for", b"192.0.2.7"),
    ]  # fmt: skip
    await with_forwarded_client(app)({"type": "http", "headers": headers, "client": None}, nothing, nothing)  # type: ignore[arg-type]
    await with_forwarded_client(app)(
        {"type": "http", "headers": [(b"host", b"view")], "client": None}, nothing, nothing
    )  # type: ignore[arg-type]
    assert seen[0]["client"] == ("192.0.2.7", 0)
    assert sorted(seen[0]["headers"]) == [
        (b"host", b"muster.example"), (b"x-forwarded-for", b"198.51.100.9"), (b"x-muster-role", b"read")
    ]  # fmt: skip
    assert (seen[1]["client"], seen[1]["headers"]) == (None, [(b"host", b"view")])


def test_sockets_are_in_a_private_directory_with_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.db"
    runtime = tmp_path / "run"
    runtime.mkdir()
    # 1. always in the same place
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    if len(os.fsencode(runtime)) < 60:
        assert socket_directory(log).parent == runtime
    assert socket_directory(log) == socket_directory(log)
    assert socket_directory(log) != socket_directory(tmp_path / "other.db")
    # 2. a path that is too long is not used
    deep = runtime / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    found = socket_directory(log)
    assert deep not in found.parents
    found.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(found / "publisher"))
    (found / "publisher").unlink()
    found.rmdir()
    # 3. nor one that belongs to another user
    found.symlink_to(runtime)
    try:
        elsewhere = socket_directory(log)
        assert elsewhere != found
        assert elsewhere.stat().st_mode & 0o777 == 0o700
        elsewhere.rmdir()
    finally:
        found.unlink()


def _front_of(directory: Path, address: str) -> MusterSettings:
    given = [("gateway.http_address", "", address)]
    return load(None, (), given, embedded_defaults(directory), {}).values


@pytest.mark.parametrize("was_killed", [True, False])
def test_a_start_waits_for_the_port_of_a_killed_muster_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_killed: bool
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with listen("x", "127.0.0.1:0") as before:
        settings = _front_of(tmp_path / "data", f"127.0.0.1:{before.getsockname()[1]}")
        if was_killed:  # a normal end removes it
            socket_directory(settings.log.sqlite_path).mkdir()
            monkeypatch.setattr(bootstrap.time, "sleep", lambda _s: before.close())
            listener = bootstrap._front_listener(settings)
            assert listener is not None
            listener.close()
        else:
            with pytest.raises(UsageError, match=r"--http-address: .* is taken by another process"):
                bootstrap._front_listener(settings)


def test_the_port_of_a_front_is_bound_and_refuses_until_the_gateway_serves(tmp_path: Path) -> None:
    with bootstrap._front_listener(_front_of(tmp_path, "127.0.0.1:0")) as listener:  # type: ignore[union-attr]
        port = listener.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with pytest.raises(UsageError, match="--http-address"):
            bootstrap._front_listener(_front_of(tmp_path, "192.0.2.1:0"))  # nobody's (RFC 5737)
    assert bootstrap._front_listener(_front_of(tmp_path, "")) is None
