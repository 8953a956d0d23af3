"""Clients and commands with tokens and certificates, at a gateway that needs them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from certificates import Authority
from integration.gateway_rig import PATIENCE_S, Rig, scheduler_silent
from muster_cli.main import run
from muster_client import Callbacks, RmClient
from muster_client.access import Access, AccessWrong
from muster_client.admin import AdminClient
from muster_client.errors import AdminFailed, AdminRefused
from muster_gateway.service import Gateway
from waiting import eventually

POLICY = """
[[rule]]
identities = ["rm.test"]
act = ["mine"]

[[rule]]
identities = ["bot"]
act = ["mine"]
operate = ["mine"]
"""


@dataclass
class Guarded:
    """A gateway that needs a certificate and also accepts a token."""

    gateway: Gateway
    folder: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.gateway.grpc_port}"

    @property
    def http(self) -> str:
        return f"https://localhost:{self.gateway.http_port}"

    def file(self, name: str) -> Path:
        return self.folder / name

    def access(self, **more: Path) -> Access:
        return Access(ca=self.file("ca"), certificate=self.file("crt"), key=self.file("key"), **more)

    @property
    def flags(self) -> list[str]:
        files = (("--tls-ca", "ca"), ("--tls-cert", "crt"), ("--tls-key", "key"))
        return [part for flag, name in files for part in (flag, str(self.file(name)))]


@pytest.fixture
async def guarded(world: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    for name in ("MUSTER_TOKEN", "MUSTER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    authority = Authority()
    authority.server().write(tmp_path / "server.crt", tmp_path / "server.key")
    authority.client("rm.test").write(tmp_path / "crt", tmp_path / "key")
    (tmp_path / "ca").write_bytes(authority.pem)
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "token").write_text("bot-token-0123456789")
    (tmp_path / "gateways-token").write_text("bot-token-0123456789")
    gateway = await world.gateway(
        http_address="127.0.0.1:0",
        tls={
            "certificate": tmp_path / "server.crt",
            "key": tmp_path / "server.key",
            "client_ca": tmp_path / "ca",
        },
        tokens={"bot": {"role": "read", "token_file": tmp_path / "gateways-token"}},
        policy_file=tmp_path / "policy.toml",
        reload_interval_s=0.05,
        view_timeout_s=0.5,
    )
    return Guarded(gateway, tmp_path)


async def _run(*arguments: str) -> int:
    return await asyncio.to_thread(run, [*arguments])


async def test_a_client_registers_with_its_certificate(guarded: Guarded) -> None:
    async with RmClient(guarded.address, "mine", access=guarded.access()) as rm:
        await rm.register()
    async with AdminClient(guarded.address, access=guarded.access()) as admin:
        with pytest.raises(AdminRefused) as raised:
            await admin.pause("mine")
        assert raised.value.code is grpc.StatusCode.PERMISSION_DENIED
    async with AdminClient(guarded.address) as admin:
        with pytest.raises(AdminFailed):
            await admin.list_resource_managers(timeout_s=5)


async def test_a_renewed_token_is_used_without_a_restart(guarded: Guarded) -> None:
    access = guarded.access(token_file=guarded.file("token"))
    async with (
        RmClient(guarded.address, "mine", access=guarded.access()) as owner,
        RmClient(guarded.address, "mine", access=access) as rm,
        AdminClient(guarded.address, access=access) as bot,
    ):
        await owner.register()
        assert (await bot.update_configuration("mine", "")).accepted
        renewed = "another-token-0123456789"
        await asyncio.to_thread(guarded.file("gateways-token").write_text, renewed)

        async def old_is_refused() -> bool:
            try:
                await bot.update_configuration("mine", "")
            except AdminRefused as error:
                return error.code is grpc.StatusCode.UNAUTHENTICATED
            return False

        await eventually(old_is_refused, "the old token is gone")
        await asyncio.to_thread(guarded.file("token").write_text, renewed)
        assert (await bot.update_configuration("mine", "")).accepted
        await rm.register()


async def test_renewed_certificates_are_used_without_a_restart(guarded: Guarded) -> None:
    """Both sides get another authority. Open streams go on, new ones use the new certificates."""
    lost: list[str] = []
    taken = asyncio.Event()
    tls = guarded.gateway._doorman.tls
    assert tls is not None

    def note(stream: str, opened: bool) -> None:
        if not opened:
            lost.append(stream)
        elif stream == "node":
            taken.set()

    async with (
        RmClient(guarded.address, "mine", access=guarded.access(), callbacks=Callbacks(on_stream=note)) as rm,
        AdminClient(guarded.address, access=guarded.access()) as admin,
    ):
        await rm.register()
        await asyncio.wait_for(taken.wait(), PATIENCE_S)
        authority = Authority()
        # the client's files first, one after the other: while they do not fit each other, the last ones count
        pair = authority.client("rm.test")
        guarded.file("key").write_bytes(pair.key)
        assert (await admin.update_configuration("mine", "")).accepted
        guarded.file("crt").write_bytes(pair.certificate)
        guarded.file("ca").write_bytes(authority.pem)
        with pytest.raises(AdminFailed):  # the new ones are in use: the gateway has the old ones still
            await admin.update_configuration("mine", "", timeout_s=5)
        authority.server().write(guarded.file("server.crt"), guarded.file("server.key"))
        newest = (guarded.file("server.crt").read_bytes(), authority.pem)
        await eventually(
            lambda: (tls.files.value.certificate, tls.files.value.client_ca) == newest, "the gateway took them"
        )

        async def answered() -> bool:
            try:
                return (await admin.update_configuration("mine", "")).accepted
            except AdminFailed:
                return False

        await eventually(answered, "new calls use the new certificates")
        assert lost == []
        await rm.register()  # opens streams anew
    assert rm.metrics.streams_lost == 0


async def test_every_command_takes_certificate_and_token(
    world: Rig, guarded: Guarded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RmClient(guarded.address, "mine", access=guarded.access()) as rm:
        await rm.register()
        (guarded.folder / "queues.yaml").write_text("partitions: [{name: default, queues: [{name: root}]}]")
        at = ["--gateway", guarded.address]
        apply = ("config", "apply", str(guarded.file("queues.yaml")), "--rm", "mine", *at)
        assert await _run("health", f"grpc://{guarded.address}") == 1
        assert await _run("health", f"grpc://{guarded.address}", *guarded.flags) == 0
        assert await _run("health", guarded.http, *guarded.flags) == 0
        assert await _run(*apply, "--timeout-s", "5") == 1
        assert await _run(*apply, *guarded.flags) == 0
        capsys.readouterr()
        # commands that need a view or a publisher are admitted and then fail: there is none
        for command in (
            ("admin", "rms", *at),
            ("explain", "queue", "root", "--rm", "mine", *at),
            ("top", "--once", "--rm", "mine", *at),
            ("events", "batch", "--rm", "mine", *at),
        ):
            assert await _run(*command, *guarded.flags) == 1
            said = capsys.readouterr().err
            assert "UNAVAILABLE" in said
            assert "view" in said or "publisher" in said
        # a token counts before the certificate, also a token from the environment
        # (A refusal gets all the time that it needs; only a call that gets no answer ends with the timeout.)
        refused = ("admin", "pause", "--rm", "mine", *at)
        pause = (*refused, "--timeout-s", "5")  # (a busy machine may need half a second for the connection alone)
        assert await _run(*refused, *guarded.flags) == 1
        assert "rm.test may not operate rmID 'mine'" in capsys.readouterr().err
        assert await _run(*pause, *guarded.flags, "--token-file", str(guarded.file("token"))) == 1
        silent = scheduler_silent(world.topics.partition_of("mine"))
        assert re.search(silent, capsys.readouterr().err), "admitted, and never answered"
        for name, file in (("CA", "ca"), ("CERT", "crt"), ("KEY", "key")):
            monkeypatch.setenv(f"MUSTER_TLS_{name}", str(guarded.file(file)))
        monkeypatch.setenv("MUSTER_TOKEN", "bot-token-0123456789")
        assert await _run(*pause) == 1
        assert re.search(silent, capsys.readouterr().err)
        monkeypatch.setenv("MUSTER_TOKEN", "not-the-token-0123456789")
        assert await _run(*refused) == 1
        said = capsys.readouterr().err
        assert "the token is unknown" in said
        assert "not-the-token" not in said


async def test_files_that_cannot_be_used_are_one_line(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(guarded.file("absent"))
    for flags, said in (
        (["--tls-ca", absent], f"tls_ca {absent}: cannot be read"),
        (["--tls-cert", absent], "expected both or none of them"),
        (["--token-file", absent], f"--token-file {absent}: cannot be read"),
    ):
        assert await _run("admin", "rms", "--gateway", guarded.address, *flags) == 2
        told = capsys.readouterr().err
        assert said in told
        assert len(told.splitlines()) == 1


def test_the_environment_says_how_to_get_in(tmp_path: Path) -> None:
    assert Access.of_environment({}) == Access()
    assert Access.of_environment({}).credentials() is None
    token = tmp_path / "token"
    token.write_text("one\n")
    found = Access.of_environment(
        {"MUSTER_TOKEN_FILE": str(token), "MUSTER_TLS": "true", "MUSTER_TLS_SERVER": "x.test"}
    )
    assert found.metadata() == (("authorization", "Bearer one"),)
    token.write_text("two")
    assert found.headers() == {"Authorization": "Bearer two"}
    assert found.options() == [("grpc.ssl_target_name_override", "x.test")]
    assert found.uses_tls
    token.write_text("two words")
    with pytest.raises(AccessWrong, match="is no token") as raised:
        found.bearer()
    assert "two words" not in str(raised.value)
    assert "secret" not in repr(Access(token="secret"))
