"""TLS and clients' certificates over gRPC and HTTP: identities, refusals, and rotations under open streams."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import subprocess
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import structlog
from certificates import Authority, Pair
from integration.gateway_rig import PATIENCE_S, Rig, Stream
from muster_gateway.access.certificates import name_of
from muster_gateway.errors import InvalidPolicy, InvalidTlsFiles
from muster_gateway.service import Gateway
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import StreamKind
from muster_proto.si.v1 import si_pb2
from muster_proto.si.v1.si_pb2_grpc import SchedulerStub
from muster_runtime.http_server import HttpServer
from pydantic import ValidationError
from waiting import eventually

Code = grpc.StatusCode
TOKEN = "a-token-for-tests-0"
POLICY = """
[[rule]]
identities = ["rm-*.test", "spiffe://test/*"]
proofs = ["certificate"]
act = ["mine"]
role = "read"

[[rule]]
identities = ["by-token"]
proofs = ["token"]
act = ["mine"]
role = "admin"
"""


@dataclass
class Site:
    """An authority, and a gateway's files."""

    folder: Path
    rig: Rig
    authority: Authority = field(default_factory=Authority)
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.authority.server().write(self.certificate, self.key)
        self.client_ca.write_bytes(self.authority.pem)
        self.policy.write_text(POLICY)

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    @property
    def client_ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def policy(self) -> Path:
        return self.folder / "policy.toml"

    async def gateway(self, *, clients: str = "required", **settings: Any) -> Gateway:
        tls = {"certificate": self.certificate, "key": self.key}
        if clients:
            tls |= {"client_ca": self.client_ca, "client_certificates": clients}
        given = {"tls": tls, "policy_file": self.policy, "reload_interval_s": 0.05, **settings}
        return await self.rig.gateway(**given)

    def channel(self, port: int, pair: Pair | None, trusted: bytes | None = None) -> grpc.aio.Channel:
        pem = trusted if trusted is not None else self.authority.pem
        key, chain = (pair.key, pair.certificate) if pair is not None else (None, None)
        options = [("grpc.use_local_subchannel_pool", 1)]
        made = grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(pem, key, chain), options)
        self.channels.append(made)
        return made

    async def register(self, port: int, pair: Pair | None, trusted: bytes | None = None, token: str = "") -> Code:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        request = si_pb2.RegisterResourceManagerRequest(rmID="mine")
        try:
            stub = SchedulerStub(self.channel(port, pair, trusted))
            await stub.RegisterResourceManager(request, metadata=metadata, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return Code.OK

    async def get(self, port: int, pair: Pair | None, path: str = "/ws/v1/openapi.json", token: str = "") -> int:
        """Return the status; 0: TLS refused the connection."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.get(f"https://127.0.0.1:{port}{path}", ssl=self.context(pair)) as answer,
            ):
                await answer.read()
                return answer.status
        except (aiohttp.ClientError, ssl.SSLError, ConnectionError):
            return 0

    def context(self, pair: Pair | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        if pair is not None:
            certificate, key = self.folder / "client.crt", self.folder / "client.key"
            pair.write(certificate, key)
            context.load_cert_chain(certificate, key)
        return context


@pytest.fixture
async def site(world: Rig, tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path, world)
    yield made
    for channel in made.channels:
        await channel.close()


async def test_a_clients_certificate_is_its_identity_on_grpc(site: Site) -> None:
    port = (await site.gateway()).grpc_port
    assert await site.register(port, site.authority.client("rm-1.test")) is Code.OK
    assert await site.register(port, site.authority.client("other.test")) is Code.PERMISSION_DENIED
    assert await site.register(port, site.authority.client("loopback")) is Code.UNAUTHENTICATED
    assert await site.register(port, site.authority.client("a name")) is Code.UNAUTHENTICATED


async def test_tls_refuses_who_has_none_an_expired_or_another_authoritys(site: Site) -> None:
    port = (await site.gateway()).grpc_port
    name = "rm-1.test"
    assert await site.register(port, None) is Code.UNAVAILABLE
    assert await site.register(port, Authority().client(name)) is Code.UNAVAILABLE
    assert await site.register(port, site.authority.client(name, expired=True)) is Code.UNAVAILABLE
    # and the client refuses a gateway of another authority
    assert await site.register(port, site.authority.client(name), Authority().pem) is Code.UNAVAILABLE
    insecure = SchedulerStub(site.rig.channel(site.rig.gateways[-1]).grpc)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await insecure.RegisterResourceManager(si_pb2.RegisterResourceManagerRequest(rmID="mine"), timeout=PATIENCE_S)
    assert raised.value.code() is Code.UNAVAILABLE
    assert await site.register(port, site.authority.client(name)) is Code.OK


async def test_tokens_over_tls_need_no_certificate(site: Site) -> None:
    gateway = await site.gateway(clients="", tokens={"by-token": {"role": "read", "token": TOKEN}})
    assert await site.register(gateway.grpc_port, None, token=TOKEN) is Code.OK
    assert await site.register(gateway.grpc_port, None) is Code.UNAUTHENTICATED


async def test_optional_certificates_have_a_second_address(site: Site) -> None:
    tokens = {"by-token": {"role": "read", "token": TOKEN}}
    gateway = await site.gateway(
        clients="optional", tokens=tokens, grpc_mtls_address="127.0.0.1:0", http_address="127.0.0.1:0"
    )
    client = site.authority.client("rm-1.test")
    assert await site.register(gateway.grpc_port, None, token=TOKEN) is Code.OK
    assert await site.register(gateway.grpc_port, client) is Code.UNAUTHENTICATED, "no certificates here"
    assert await site.register(gateway.grpc_mtls_port, client) is Code.OK
    assert await site.register(gateway.grpc_mtls_port, None, token=TOKEN) is Code.UNAVAILABLE
    for pair, token, status in (
        (client, "", 200),
        (None, TOKEN, 200),
        (None, "", 401),
        (site.authority.client("stranger.test"), "", 403),
        (Authority().client("rm-1.test"), "", 0),
        (site.authority.client("rm-1.test", expired=True), "", 0),
    ):
        assert await site.get(gateway.http_port, pair, token=token) == status


SEND, MTLS = "send the metadata authorization: Bearer TOKEN", "gateway.grpc_mtls_address"
DOCUMENTED = Path(__file__).parents[2] / "docs" / "security-settings.md"


async def test_the_documented_example_works(site: Site) -> None:
    """The page's recipe makes the certificates, and its settings let in tokens and certificates."""
    page = DOCUMENTED.read_text()
    blocks = re.compile(r"^```(sh|toml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    found = dict(blocks.findall(page))
    made = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-euc", found["sh"]],
        cwd=site.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert made.returncode == 0, made.stderr
    site.policy.write_text(POLICY.replace("rm-*.test", "spark.example").replace("by-token", "ops"))
    (site.folder / "muster-ops").write_text(TOKEN)
    example = found["toml"].replace("/etc/muster/", f"{site.folder}/").replace("/run/secrets/", f"{site.folder}/")
    settings = tomllib.loads(re.sub(r'"0\.0\.0\.0:\d+"', '"127.0.0.1:0"', example))["gateway"]
    gateway = await site.rig.gateway(**settings)
    client = Pair((site.folder / "spark.crt").read_bytes(), (site.folder / "spark.key").read_bytes())
    authority = (site.folder / "ca.pem").read_bytes()
    assert await site.register(gateway.grpc_mtls_port, client, authority) is Code.OK
    assert await site.register(gateway.grpc_port, None, authority, TOKEN) is Code.OK
    assert await site.register(gateway.grpc_port, client, authority) is Code.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("settings", "warned", "said"),
    [
        (
            {"tokens": {"by-token": {"role": "read", "token": TOKEN}}},
            True,
            f"a token is needed: {SEND} (no gRPC address asks for a client certificate, because {MTLS} is not set)",
        ),
        (
            {"grpc_mtls_address": "127.0.0.1:0"},
            False,
            f"a client certificate is needed: this address asks for no client certificate; {MTLS} does",
        ),
    ],
    ids=["no address asks", "another address asks"],
)
async def test_a_refusal_names_the_address_that_asks_for_certificates(
    site: Site, settings: dict[str, Any], warned: bool, said: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        gateway = await site.gateway(clients="optional", **settings)
    event = f"no grpc address asks for client certificates: set {MTLS}"
    assert [each["event"] for each in logs].count(event) == warned
    stub = SchedulerStub(site.channel(gateway.grpc_port, site.authority.client("rm-1.test")))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.RegisterResourceManager(si_pb2.RegisterResourceManagerRequest(rmID="mine"), timeout=PATIENCE_S)
    assert refused.value.details() == f"not authenticated: {said} (docs/security.md)"


async def test_http_requires_a_certificate_if_told_so(site: Site) -> None:
    port = (await site.gateway(http_address="127.0.0.1:0")).http_port
    assert await site.get(port, site.authority.client("rm-1.test")) == 200
    assert await site.get(port, site.authority.client("rm-1.test"), "/debug/stack") == 403
    assert await site.get(port, None, "/health") == 0
    assert await site.get(port, Authority().client("rm-1.test")) == 0


async def test_http_can_stay_in_plain_text(site: Site) -> None:
    """YuniKorn's programs read REST without TLS; gRPC beside it still wants a certificate."""
    site.policy.write_text(
        POLICY + '[[rule]]\nidentities = ["anyone"]\nproofs = ["open"]\nrole = "read"\nread = [{rm = "*"}]\n'
    )
    tls = {"certificate": site.certificate, "key": site.key, "client_ca": site.client_ca, "http": False}
    gateway = await site.gateway(tls=tls, http_address="127.0.0.1:0", http_open=True)
    assert await site.get(gateway.http_port, site.authority.client("rm-1.test")) == 0, "no TLS here"
    async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.http_port}") as plain:
        for path, status in (("/ws/v1/openapi.json", 200), ("/metrics", 200), ("/debug/stack", 403)):
            async with plain.get(path) as answer:
                assert answer.status == status, path
    assert await site.register(gateway.grpc_port, None) is Code.UNAVAILABLE
    assert await site.register(gateway.grpc_port, site.authority.client("rm-1.test")) is Code.OK


async def _rotate(site: Site, gateway: Gateway, authority: Authority) -> None:
    """Write one file after the other, as a tool would. Between two writes, the files do not match."""
    tls = gateway._doorman.tls
    assert tls is not None
    before = tls.files.value
    authority.server().write(site.certificate, site.key)
    site.client_ca.write_bytes(authority.pem)
    await eventually(
        lambda: tls.files.value is not before and tls.files.value.client_ca == authority.pem and not tls.files.problem,
        "the new files are taken",
    )


async def test_a_rotation_ends_no_stream(site: Site) -> None:
    gateway = await site.gateway(http_address="127.0.0.1:0")
    old, name = site.authority.client("rm-1.test"), "rm-1.test"
    channel = site.channel(gateway.grpc_port, old)
    await SchedulerStub(channel).RegisterResourceManager(si_pb2.RegisterResourceManagerRequest(rmID="mine"))
    stream = Stream(SchedulerStub(channel).UpdateNode(metadata=(("muster-rm-id", "mine"),)))
    await stream.call.initial_metadata()
    url = f"https://127.0.0.1:{gateway.http_port}/ws/v1/openapi.json"
    # (The kept connection is idle meanwhile: neither side may close it for that.)
    assert isinstance(gateway._http, HttpServer)
    gateway._http._server.config.timeout_keep_alive = 600
    connector = aiohttp.TCPConnector(limit=1, ssl=site.context(old), keepalive_timeout=600)
    async with aiohttp.ClientSession(connector=connector) as kept:
        async with kept.get(url) as answer:
            await answer.read()
        # rotated
        new = Authority()
        await _rotate(site, gateway, new)
        # open streams continue
        await site.rig.scheduler.emit("mine", [StreamKind.NODE])
        await stream.receive()
        async with kept.get(url) as answer:
            assert answer.status == 200
    # new connections use the new certificates
    assert await site.register(gateway.grpc_port, new.client(name), new.pem) is Code.OK
    assert await site.register(gateway.grpc_port, old, new.pem) is Code.UNAVAILABLE, "the old authority is gone"
    assert await site.register(gateway.grpc_port, new.client(name), site.authority.pem) is Code.UNAVAILABLE
    site.authority = new
    assert await site.get(gateway.http_port, new.client(name)) == 200
    assert await site.get(gateway.http_port, old) == 0


async def test_files_that_do_not_fit_keep_the_old_ones(site: Site) -> None:
    gateway = await site.gateway()
    site.key.write_bytes(Authority().server().key)
    await eventually(gateway._doorman.problems, "it is noticed")
    (problem,) = gateway._doorman.problems()
    assert str(site.key) in problem
    assert "what was read before stays in force" in problem
    assert "PRIVATE" not in problem
    assert await site.register(gateway.grpc_port, site.authority.client("rm-1.test")) is Code.OK
    site.certificate.unlink()
    await eventually(lambda: "cannot be read" in gateway._doorman.problems()[0], "it is noticed, too")
    site.authority.server().write(site.certificate, site.key)
    await eventually(lambda: not gateway._doorman.problems(), "all is well again")


async def test_files_that_cannot_be_used_start_no_gateway(site: Site) -> None:
    site.key.write_bytes(Authority().server().key)
    with pytest.raises(InvalidTlsFiles, match=r"gateway\.tls\.certificate .* and gateway\.tls\.key .*: expected a PEM"):
        await site.gateway()
    site.authority.server().write(site.certificate, site.key)
    site.client_ca.write_text("none")
    with pytest.raises(InvalidTlsFiles, match=r"gateway\.tls\.client_ca .*expected PEM certificates"):
        await site.gateway()
    site.client_ca.unlink()
    with pytest.raises(InvalidTlsFiles, match=r"gateway\.tls\.client_ca .*cannot be read"):
        await site.gateway()
    with contextlib.suppress(OSError):
        site.client_ca.write_bytes(site.authority.pem)
    with pytest.raises(InvalidPolicy, match=r"gateway\.policy_file: not set, expected with tls\.client_ca"):
        await site.gateway(policy_file=None)


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"certificate": "a"}, "expected both or none"),
        ({"client_ca": "a"}, "expected with certificate and key only"),
    ],
)
def test_settings_that_make_no_sense(tls: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        GatewaySettings.model_validate({"tls": tls})


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"uri": "spiffe://test/rm", "dns": "rm.test", "email": "rm@test"}, "spiffe://test/rm"),
        ({"dns": "rm.test", "email": "rm@test"}, "rm.test"),
        ({"email": "rm@test"}, "rm@test"),
        ({}, "common"),
    ],
)
def test_where_the_name_comes_from(more: dict[str, str], name: str) -> None:
    assert name_of(Authority().client("common", **more).certificate) == name


def test_a_certificate_without_a_usable_name() -> None:
    authority = Authority()
    assert name_of(authority.client("").certificate) == ""
    assert name_of(authority.client("m\xfcster").certificate) == ""
    assert name_of(b"no certificate") == ""
