"""JSON Web Tokens: accepted and refused ones, and keys that change."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from muster_gateway.access.jwt import InvalidJwt, JwtVerifier, UnknownJwtKey, looks_like_jwt
from muster_gateway.authentication import Authenticator
from muster_gateway.errors import InvalidJwks
from muster_gateway.settings import GatewaySettings, JwtSettings
from muster_runtime.http_server import HttpServer
from muster_runtime.identity import Proof, Right
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ISSUER, AUDIENCE, NOW = "https://issuer.test", "muster", 1_900_000_000
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY, ED_KEY = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    makers: dict[type, Any] = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    maker = next(made for kind, made in makers.items() if isinstance(key, kind))
    return {**maker.to_jwk(key.public_key(), as_dict=True), "kid": kid, **more}


KEYS = [jwk(RSA_KEY, "r", use="sig"), jwk(EC_KEY, "e"), jwk(ED_KEY, "d")]


def token(key: Any = EC_KEY, kid: str | None = "e", algorithm: str = "ES256", **claims: Any) -> str:
    given = {"sub": "svc-1", "iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 60, **claims}
    given = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(given, key, algorithm, headers={"kid": kid} if kid is not None else None)


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": KEYS}))
    return file


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set PyJWT's clock, which has no argument for it."""
    import datetime as dt

    class Then(dt.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> dt.datetime:
            return dt.datetime.fromtimestamp(NOW, tz)

    monkeypatch.setattr("jwt.api_jwt.datetime", Then)


def verifier(jwks: Path, **settings: Any) -> JwtVerifier:
    given = {"jwks_file": jwks, "issuer": ISSUER, "audience": AUDIENCE, **settings}
    return JwtVerifier(JwtSettings.model_validate(given), wall=lambda: NOW)


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"),
    [(RSA_KEY, "r", "RS256"), (RSA_KEY, "r", "PS256"), (EC_KEY, "e", "ES256"), (ED_KEY, "d", "EdDSA")],
)
def test_a_token_names_its_owner(key: Any, kid: str, algorithm: str, jwks: Path) -> None:
    made = token(key, kid, algorithm)
    assert looks_like_jwt(made)
    checker = verifier(jwks)
    assert [checker.verify(made) for _ in range(2)] == ["svc-1", "svc-1"]
    assert checker.verify(token(key, kid, algorithm, aud=["other", AUDIENCE])) == "svc-1"


def test_another_claim_may_have_the_name(jwks: Path) -> None:
    assert verifier(jwks, name_claim="client_id").verify(token(client_id="robot")) == "robot"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": NOW - 31}, "it has expired"),
        ({"exp": None}, "the claim exp is missing"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iss": "https://other.test"}, "its issuer"),
        ({"iss": None}, "the claim iss is missing"),
        ({"aud": "other"}, "its audience"),
        ({"aud": None}, "the claim aud is missing"),
        ({"sub": None}, "the claim sub is missing"),
        ({"sub": "a name"}, "is no name"),
        ({"sub": "gateway"}, "is no name"),
        ({"sub": "x" * 257}, "is no name"),
    ],
)
def test_claims_that_do_not_pass(claims: dict[str, Any], said: str, jwks: Path) -> None:
    with pytest.raises(InvalidJwt, match=said) as raised:
        verifier(jwks).verify(token(**claims))
    assert "other.test" not in str(raised.value)


def test_clocks_may_differ_a_little(jwks: Path) -> None:
    assert verifier(jwks).verify(token(exp=NOW - 29, nbf=NOW + 29, iat=NOW + 29)) == "svc-1"
    with pytest.raises(InvalidJwt, match="expired"):
        verifier(jwks, leeway_s=0).verify(token(exp=NOW - 1))


def test_a_verified_token_ends_with_its_time(jwks: Path) -> None:
    now_s = [float(NOW)]
    checker = JwtVerifier(
        JwtSettings(jwks_file=jwks, issuer=ISSUER, audience=AUDIENCE), wall=lambda: now_s[0], monotonic=lambda: 0.0
    )
    made = token(exp=NOW - 20)
    assert checker.verify(made) == "svc-1"
    now_s[0] = NOW + 11
    assert not checker._remembered or checker._remembered.popitem()[1][1] < now_s[0], "it is not remembered longer"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _forged(header: dict[str, Any], secret: bytes | None) -> str:
    claims = {"sub": "svc-1", "iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 60}
    signed = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(claims).encode())}"
    signature = hmac.new(secret, signed.encode(), hashlib.sha256).digest() if secret is not None else b""
    return f"{signed}.{_b64(signature)}"


def test_no_algorithm_and_shared_secrets_do_not_pass(jwks: Path) -> None:
    checker = verifier(jwks)
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for header, secret in (
        ({"alg": "none", "kid": "r"}, None),
        ({"alg": "None"}, None),
        ({"kid": "r"}, None),
        ({"alg": "HS256", "kid": "r"}, public),
        ({"alg": ["RS256"], "kid": "r"}, None),
    ):
        with pytest.raises(InvalidJwt):
            checker.verify(_forged(header, secret))
    for algorithm in ("none", "HS256", "hs512", ""):
        with pytest.raises(ValidationError, match="expected some of"):
            JwtSettings(jwks_file=jwks, issuer=ISSUER, audience=AUDIENCE, algorithms=(algorithm,))


def test_a_key_serves_its_own_algorithms(jwks: Path) -> None:
    checker = verifier(jwks)
    for made in (token(RSA_KEY, "e", "RS256"), token(EC_KEY, "r", "ES256")):
        with pytest.raises(InvalidJwt, match="does not fit its key"):
            checker.verify(made)
    with pytest.raises(InvalidJwt, match="its algorithm is not one of"):
        verifier(jwks, algorithms=["ES256"]).verify(token(RSA_KEY, "r", "RS256"))
    with pytest.raises(InvalidJwt, match="signature"):
        checker.verify(token(ec.generate_private_key(ec.SECP256R1()), "e"))
    made = token()
    with pytest.raises(InvalidJwt):
        checker.verify(made[:-4] + ("AAAA" if made[-4:] != "AAAA" else "BBBB"))
    for wrong in ("ey.a.b", "ey..", f"ey{'x' * 20_000}.a.b"):
        with pytest.raises(InvalidJwt):
            checker.verify(wrong)


def test_keys_for_other_uses_and_secrets_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    secret = {"kty": "oct", "kid": "s", "k": _b64(b"secret" * 8)}
    file.write_text(json.dumps({"keys": [secret, jwk(RSA_KEY, "enc", use="enc"), jwk(EC_KEY, "e"), "none"]}))
    checker = verifier(file)
    assert checker.verify(token()) == "svc-1"
    assert checker.verify(token(kid=None)) == "svc-1", "there is one key only"
    with pytest.raises(UnknownJwtKey):
        checker.verify(token(RSA_KEY, "enc", "RS256"))


def test_a_changed_file_brings_new_keys_and_takes_old_ones_away(jwks: Path) -> None:
    checker, new = verifier(jwks), ec.generate_private_key(ec.SECP256R1())
    assert checker.file is not None
    assert checker.verify(token()) == "svc-1"
    jwks.write_text(json.dumps({"keys": [jwk(new, "new")]}))
    assert checker.file.refresh()
    checker.forget()
    assert checker.verify(token(new, "new")) == "svc-1"
    with pytest.raises(UnknownJwtKey):
        checker.verify(token())
    jwks.write_text("{")
    assert not checker.file.refresh()
    assert "expected a JWKS" in checker.problem
    assert checker.verify(token(new, "new")) == "svc-1"


@pytest.mark.parametrize("content", ["", "[]", '{"keys": {}}', '{"keys": []}', '{"keys": [{"kty": "oct"}]}'])
def test_a_file_without_keys_is_an_error(content: str, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(content)
    with pytest.raises(InvalidJwks, match=r"gateway\.jwt\.jwks_file .*jwks\.json: "):
        verifier(file)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jwks_file": "a", "jwks_url": "https://a.test", "issuer": "i", "audience": "a"}, "both, expected one"),
        ({"jwks_file": "a", "issuer": "i"}, "issuer and audience: expected both"),
        ({"jwks_url": "http://a.test/keys", "issuer": "i", "audience": "a"}, "expected https://"),
        ({"jwks_url": "https://user:secret@a.test", "issuer": "i", "audience": "a"}, "without a user"),
        ({"jwks_url": "file:///etc/keys", "issuer": "i", "audience": "a"}, "expected https://"),
    ],
)
def test_settings_that_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        JwtSettings.model_validate(given)


# ---- a URL ----------------------------------------------------------------------------------------------------------


class Provider:
    """An identity provider's keys behind a URL."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [jwk(EC_KEY, "e")]
        self.asked, self.status = 0, 200

    async def answer(self, _request: Request) -> Response:
        self.asked += 1
        return Response(json.dumps({"keys": self.keys}), self.status)


@pytest.fixture
async def provider() -> AsyncIterator[tuple[Provider, str]]:
    made = Provider()
    server = HttpServer(Starlette(routes=[Route("/keys", made.answer)]), "127.0.0.1:0", 1.0)
    await server.start()
    yield made, f"http://127.0.0.1:{server.port}/keys"
    await server.stop()


async def test_unknown_keys_are_asked_for_but_not_too_often(provider: tuple[Provider, str]) -> None:
    found, url = provider
    now_s = [0.0]
    settings = JwtSettings(jwks_url=url, issuer=ISSUER, audience=AUDIENCE)
    checker = JwtVerifier(settings, wall=lambda: NOW, monotonic=lambda: now_s[0])
    with pytest.raises(UnknownJwtKey):
        checker.verify(token())
    assert await checker.refresh()
    assert (checker.verify(token()), found.asked) == ("svc-1", 1)
    # rotated
    new = rsa.generate_private_key(65537, 2048)
    found.keys = [jwk(new, "new", alg="RS256")]
    for _ in range(3):
        with pytest.raises(UnknownJwtKey):
            checker.verify(token(new, "new", "RS256"))
        assert not await checker.refresh(), "a flood of unknown keys is no flood of requests"
    assert found.asked == 1
    now_s[0] += 10.0
    assert await checker.refresh()
    assert checker.verify(token(new, "new", "RS256")) == "svc-1"
    with pytest.raises(UnknownJwtKey):
        checker.verify(token())
    # while the provider does not answer, the last keys count
    now_s[0] += 600.0
    found.status = 500
    await checker.refresh_if_old()
    assert "HTTP status 500" in checker.problem
    assert checker.verify(token(new, "new", "RS256")) == "svc-1"


async def test_a_request_with_a_new_key_waits_for_it(provider: tuple[Provider, str], tmp_path: Path) -> None:
    found, url = provider
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nidentities = ["svc-*"]\nproofs = ["jwt"]\nrole = "read"\n')
    door = Authenticator(
        GatewaySettings.model_validate(
            {"jwt": {"jwks_url": url, "issuer": ISSUER, "audience": AUDIENCE}, "policy_file": policy}
        )
    )
    headers = [(b"authorization", f"Bearer {token()}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": headers, "client": ("192.0.2.1", 1)}
    caller = await door.authorize(door.http_credentials(scope), Right.INSPECT)
    assert (caller.identity.name, caller.identity.proof, found.asked) == ("svc-1", Proof.JWT, 1)
