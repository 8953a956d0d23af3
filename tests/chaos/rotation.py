"""Certificates of a Muster and of its clients, which a test replaces while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
from certificates import Authority
from grpc_health.v1 import health_pb2
from muster_client.access import Access
from muster_replay.local_process import is_serving
from waiting import eventually

NAME = "chaos.test"
_POLICY = f"""
[[rule]]
identities = ["{NAME}"]
proofs = ["certificate"]
act = ["*"]
operate = ["*"]
role = "admin"
"""
_VALID_DAYS = 1_000  # also for a Muster whose clock is set 400 days off


class Certificates:
    """Files of both sides. Both trust an authority, which changes with each rotation.

    :param directory: for the files.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._at = directory
        self._unfinished: Authority | None = None
        self.rotations = 0
        (directory / "policy.toml").write_text(_POLICY)
        self._write_server(authority := Authority(valid_days=_VALID_DAYS))
        self._write_client(authority)
        self.access = Access(ca=directory / "ca", certificate=directory / "client.crt", key=directory / "client.key")

    @property
    def environment(self) -> dict[str, str]:
        """Settings of a Muster that requires certificates."""
        return {
            "MUSTER_GATEWAY__TLS__CERTIFICATE": str(self._at / "server.crt"),
            "MUSTER_GATEWAY__TLS__KEY": str(self._at / "server.key"),
            "MUSTER_GATEWAY__TLS__CLIENT_CA": str(self._at / "client-ca"),
            "MUSTER_GATEWAY__POLICY_FILE": str(self._at / "policy.toml"),
            "MUSTER_GATEWAY__RELOAD_INTERVAL_S": "0.1",
        }

    async def rotate(self, gateway: str) -> None:
        """Replaces all files of both sides, and waits until new connections use them. An open stream goes on."""
        old = self._copy()
        async with _watching(gateway, old) as watch:
            self._write_server(authority := Authority(valid_days=_VALID_DAYS))
            self._write_client(authority)
            await eventually(lambda: is_serving(gateway, self.access), "new connections use the new certificates")
            assert not await is_serving(gateway, old), "the old authority is gone"
            assert not watch.done(), f"the rotation ended an open stream: {watch}"
        self.rotations += 1

    def begin(self) -> None:
        """Begins a rotation: the gateway's new key does not fit its certificate yet."""
        self._unfinished = Authority(valid_days=_VALID_DAYS)
        (self._at / "server.key").write_bytes(self._unfinished.server().key)

    def finish(self) -> None:
        """Writes the files that :meth:`begin` left."""
        assert self._unfinished is not None, "begin() comes first"
        self._write_server(self._unfinished)
        self._write_client(self._unfinished)
        self._unfinished = None
        self.rotations += 1

    def _write_server(self, authority: Authority) -> None:
        authority.server().write(self._at / "server.crt", self._at / "server.key")
        (self._at / "client-ca").write_bytes(authority.pem)

    def _write_client(self, authority: Authority) -> None:
        (self._at / "ca").write_bytes(authority.pem)
        authority.client(NAME).write(self._at / "client.crt", self._at / "client.key")

    def _copy(self) -> Access:
        """The client's present files under other names, so that a rotation does not change them."""
        copies = {name: self._at / f"old-{name}" for name in ("ca", "client.crt", "client.key")}
        for name, copy in copies.items():
            copy.write_bytes((self._at / name).read_bytes())
        return Access(ca=copies["ca"], certificate=copies["client.crt"], key=copies["client.key"])


@asynccontextmanager
async def _watching(gateway: str, access: Access) -> AsyncIterator[grpc.aio.UnaryStreamCall[object, object]]:
    """An open stream of the gateway's, which has had its first answer."""
    credentials = access.credentials()
    assert credentials is not None
    # (Channels to one address share connections by default.)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(gateway, credentials, options) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest())
        await asyncio.wait_for(watch.read(), 60)
        yield watch
        watch.cancel()
