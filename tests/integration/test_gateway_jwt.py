"""JSON Web Tokens over gRPC: admitted and refused ones, with keys of files and URLs that change."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from integration.gateway_rig import PATIENCE_S, Channel, Rig
from muster_proto.si.v1 import si_pb2
from muster_runtime.http_server import HttpServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from waiting import eventually

Code = grpc.StatusCode
ISSUER, AUDIENCE = "https://issuer.test", "muster"
OLD, NEW = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
POLICY = """
[[rule]]
identities = ["team-a"]
proofs = ["jwt"]
act = ["a-*"]
"""


def keys(**private: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    made = jwt.algorithms.ECAlgorithm.to_jwk
    return {"keys": [{**made(key.public_key(), as_dict=True), "kid": kid} for kid, key in private.items()]}


def token(key: ec.EllipticCurvePrivateKey = OLD, kid: str = "old", **claims: Any) -> str:
    given = {"sub": "team-a", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, **claims}
    return jwt.encode(given, key, "ES256", headers={"kid": kid})


async def register(channel: Channel, rm_id: str, bearer: str) -> tuple[Code, str]:
    request = si_pb2.RegisterResourceManagerRequest(rmID=rm_id)
    metadata = (("authorization", f"Bearer {bearer}"),)
    try:
        await channel.stub.RegisterResourceManager(request, metadata=metadata, timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return Code.OK, ""


@asynccontextmanager
async def jwks_url(content: Callable[[], Any]) -> AsyncIterator[str]:
    """Serve keys at a URL of the loopback."""

    async def answer(_: Request) -> JSONResponse:
        return JSONResponse(content())

    server = HttpServer(Starlette(routes=[Route("/keys", answer)]), "127.0.0.1:0", 1.0)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}/keys"
    finally:
        await server.stop()


async def test_a_token_of_the_provider_gives_its_identitys_rights(world: Rig, tmp_path: Path) -> None:
    file, policy = tmp_path / "jwks.json", tmp_path / "policy.toml"
    file.write_text(json.dumps(keys(old=OLD)))
    policy.write_text(POLICY)
    settings = {"jwks_file": str(file), "issuer": ISSUER, "audience": AUDIENCE}
    channel = world.channel(await world.gateway(jwt=settings, policy_file=policy, reload_interval_s=0.05))
    assert await register(channel, "a-1", token()) == (Code.OK, "")
    code, _ = await register(channel, "b-1", token())
    assert code is Code.PERMISSION_DENIED
    code, _ = await register(channel, "a-1", token(sub="team-b"))
    assert code is Code.PERMISSION_DENIED
    for wrong in (
        token(aud="another"),
        token(iss="https://another.test"),
        token(exp=time.time() - 600),
        token(NEW, "old"),
        token(NEW, "new"),
        "no.token.atall",
    ):
        code, story = await register(channel, "a-1", wrong)
        assert code is Code.UNAUTHENTICATED, story
        assert wrong not in story

    # The provider rotates its keys: the file has both, then the new one only.
    file.write_text(json.dumps(keys(new=NEW)))

    async def counts() -> bool:
        return (await register(channel, "a-1", token(NEW, "new")))[0] is Code.OK

    await eventually(counts, "the new key counts")
    assert (await register(channel, "a-1", token()))[0] is Code.UNAUTHENTICATED


async def test_keys_behind_a_url_are_read_when_a_token_names_a_new_one(world: Rig, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    served = {"old": OLD}
    async with jwks_url(lambda: keys(**served)) as url:
        settings = {"jwks_url": url, "issuer": ISSUER, "audience": AUDIENCE, "refresh_min_s": 0.05}
        channel = world.channel(await world.gateway(jwt=settings, policy_file=policy))
        assert await register(channel, "a-1", token()) == (Code.OK, "")
        assert (await register(channel, "a-1", token(NEW, "new")))[0] is Code.UNAUTHENTICATED
        served["new"] = NEW

        async def counts() -> bool:
            return (await register(channel, "a-1", token(NEW, "new")))[0] is Code.OK

        await eventually(counts, "the new key counts")
    # The provider is away: its last keys count.
    assert await register(channel, "a-2", token()) == (Code.OK, "")


@pytest.mark.parametrize("name", ["loopback", "anyone", "nobody", "gateway"])
async def test_no_token_gives_a_reserved_name(world: Rig, tmp_path: Path, name: str) -> None:
    file, policy = tmp_path / "jwks.json", tmp_path / "policy.toml"
    file.write_text(json.dumps(keys(old=OLD)))
    policy.write_text('[[rule]]\nidentities = ["*"]\nact = ["*"]\n')
    settings = {"jwks_file": str(file), "issuer": ISSUER, "audience": AUDIENCE}
    channel = world.channel(await world.gateway(jwt=settings, policy_file=policy))
    assert (await register(channel, "a-1", token(sub="somebody")))[0] is Code.OK
    assert (await register(channel, "a-1", token(sub=name)))[0] is Code.UNAUTHENTICATED
