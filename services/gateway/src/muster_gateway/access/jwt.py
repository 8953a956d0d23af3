"""JSON Web Tokens: PyJWT checks signature and claims; this module has the keys and the rules around it.

The keys come from a JWKS (RFC 7517), a file or a URL. Only asymmetric algorithms are allowed, and a key serves only
the algorithms of its own kind. So neither ``none`` nor a public key in the place of a shared secret passes.

PyJWT is imported with the first token: with its cryptography it takes 8 MiB.

A token with an unknown key id makes the gateway read a URL's keys again, at most once in ``refresh_min_s``. The keys
are also read again every ``refresh_s``. While the URL does not answer, the last keys count.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import aiohttp
import structlog
from muster_runtime.elapsed import elapsed_s
from muster_runtime.identity import RESERVED_NAMES

from muster_gateway.access.certificates import usable_name
from muster_gateway.access.reloading_files import ReloadingValue
from muster_gateway.errors import InvalidJwks
from muster_gateway.settings import JwtSettings

log = structlog.get_logger(__name__)

_JWKS_BYTES_MAX = 256 * 1024
_KEYS_MAX = 100
_FETCH_S = 5.0
_TOKEN_CHARS_MAX = 16 * 1024
# Verified tokens that are remembered. A verification takes some 50 µs; a poller sends the same token for minutes.
_REMEMBERED = 1024
# The kind of key that each algorithm needs.
_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class UnknownJwtKey(Exception):
    """The token names a key that is not known. Newer keys may have it."""


class InvalidJwt(Exception):
    """The token is not valid. The text says why; it repeats nothing of the token."""


Keys = dict[str, dict[str, Any]]


def looks_like_jwt(token: str) -> bool:
    """Tells whether a bearer token has the form of a JWT."""
    return token.count(".") == 2 and token.startswith("ey")


class JwtVerifier:
    """See the module's docstring.

    :param wall: the present time in seconds since 1970.
    :param monotonic: a clock in seconds.
    :ivar file: the keys' file; None: they come from a URL.

    The constructor raises InvalidJwks if the keys' file cannot be used.
    """

    def __init__(
        self,
        settings: JwtSettings,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = elapsed_s,
    ) -> None:
        self._settings, self._wall, self._monotonic = settings, wall, monotonic
        self.file: ReloadingValue[Keys] | None = None
        if settings.jwks_file is not None:
            self.file = ReloadingValue("gateway.jwt.jwks_file", [settings.jwks_file], self._read_file)
        self._fetched: Keys = {}
        self._fetched_s = float("-inf")
        self._last_fetch_s = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._problem = ""
        self._remembered: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    @property
    def problem(self) -> str:
        """Why the newest keys are not in force; "": they are."""
        return self.file.problem if self.file is not None else self._problem

    def verify(self, token: str) -> str:
        """Returns the name that a token proves. Raises UnknownJwtKey, InvalidJwt."""
        if len(token) > _TOKEN_CHARS_MAX:
            raise InvalidJwt(f"it has over {_TOKEN_CHARS_MAX} characters")
        digest = sha256(token.encode()).digest()
        cached = self._remembered.get(digest)
        if cached is not None and self._wall() < cached[1]:
            return cached[0]
        name, until_s = self._verified(token)
        self._remembered[digest] = (name, until_s)
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return name

    def forget(self) -> None:
        """Forgets verified tokens: the keys have changed."""
        self._remembered.clear()

    async def refresh(self) -> bool:
        """Reads a URL's keys again, unless they were read a moment ago. Returns whether they were read."""
        if self._settings.jwks_url == "":
            return False
        if self._fetching is None:
            if self._monotonic() - self._last_fetch_s < self._settings.refresh_min_s:
                return False
            self._last_fetch_s = self._monotonic()
            self._fetching = asyncio.create_task(self._fetch(), name="jwks")
        fetching = self._fetching
        await asyncio.shield(fetching)
        return True

    async def refresh_if_old(self) -> None:
        """Reads a URL's keys again when they are old. Never raises."""
        if self._settings.jwks_url and self._monotonic() - self._fetched_s >= self._settings.refresh_s:
            await self.refresh()

    # ---- the token --------------------------------------------------------------------------------------------------

    def _verified(self, token: str) -> tuple[str, float]:
        import jwt

        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise InvalidJwt("it is malformed") from None
        algorithm = header.get("alg")
        if algorithm not in settings.algorithms:
            raise InvalidJwt(f"its algorithm is not one of {', '.join(settings.algorithms)}")
        key = self._key(header.get("kid"), str(algorithm))
        try:
            claims = jwt.decode(
                token,
                key=key,
                algorithms=[str(algorithm)],
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud", settings.name_claim]},
            )
        except jwt.ExpiredSignatureError:
            raise InvalidJwt("it has expired") from None
        except jwt.ImmatureSignatureError:
            raise InvalidJwt("it is not valid yet") from None
        except jwt.InvalidIssuerError:
            raise InvalidJwt("its issuer is not gateway.jwt.issuer") from None
        except jwt.InvalidAudienceError:
            raise InvalidJwt("its audience is not gateway.jwt.audience") from None
        except jwt.MissingRequiredClaimError as error:
            raise InvalidJwt(f"the claim {error.claim} is missing") from None
        except jwt.InvalidSignatureError:
            raise InvalidJwt("its signature is wrong") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise InvalidJwt("it is not valid") from None
        name = claims[settings.name_claim]
        if not isinstance(name, str) or not usable_name(name) or name in RESERVED_NAMES:
            raise InvalidJwt(f"the claim {settings.name_claim} is no name: expected printable ASCII without blanks")
        return name, float(claims["exp"]) + settings.leeway_s

    def _key(self, kid: object, algorithm: str) -> Any:
        import jwt

        keys = self.file.value if self.file is not None else self._fetched
        key: dict[str, Any] | None = None
        if isinstance(kid, str):
            key = keys.get(kid)
        elif kid is None and len(keys) == 1:
            key = next(iter(keys.values()))
        if key is None:
            raise UnknownJwtKey
        if key["kty"] != _KINDS[algorithm[:2]] or key.get("alg", algorithm) != algorithm:
            raise InvalidJwt("its algorithm does not fit its key")
        try:
            return jwt.PyJWK(key, algorithm=algorithm).key
        except jwt.PyJWTError:
            raise InvalidJwt("its key cannot be used") from None

    # ---- the keys ---------------------------------------------------------------------------------------------------

    def _read_file(self) -> Keys:
        path = self._settings.jwks_file
        assert path is not None
        try:
            with path.open("rb") as file:
                content = file.read(_JWKS_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidJwks(f"gateway.jwt.jwks_file {path}: cannot be read: {error.strerror}") from None
        return _parsed(f"gateway.jwt.jwks_file {path}", content)

    async def _fetch(self) -> None:
        url = self._settings.jwks_url
        try:
            self._fetched = _parsed(f"gateway.jwt.jwks_url {url}", await self._got(url))
        except InvalidJwks as error:
            self._problem = str(error)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._problem = f"gateway.jwt.jwks_url {url}: does not answer: {type(error).__name__}"
        else:
            self._fetched_s, self._problem = self._monotonic(), ""
            self.forget()
        finally:
            self._fetching = None
        if self._problem:
            log.warning("jwks not read", problem=self._problem)

    async def _got(self, url: str) -> bytes:
        ca = self._settings.jwks_ca
        context = ssl.create_default_context(cafile=ca) if ca is not None else True
        timeout = aiohttp.ClientTimeout(total=_FETCH_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(url, allow_redirects=False, ssl=context) as answer,
        ):
            if answer.status != 200:
                raise InvalidJwks(f"gateway.jwt.jwks_url {url}: HTTP status {answer.status}")
            content = bytearray()
            async for piece in answer.content.iter_any():
                content += piece
                if len(content) > _JWKS_BYTES_MAX:
                    break
            return bytes(content)


def _parsed(source: str, content: bytes) -> Keys:
    """Returns the usable keys by key id. Keys for other uses and shared secrets are left out. Raises InvalidJwks."""
    if len(content) > _JWKS_BYTES_MAX:
        raise InvalidJwks(f"{source}: is over {_JWKS_BYTES_MAX:,} bytes")
    try:
        listed = json.loads(content)["keys"]
        assert isinstance(listed, list)
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        raise InvalidJwks(f'{source}: expected a JWKS, an object with the list "keys"') from None
    keys: Keys = {}
    for key in listed[:_KEYS_MAX]:
        if isinstance(key, dict) and key.get("kty") in _KINDS.values() and key.get("use", "sig") == "sig":
            keys[str(key.get("kid", ""))] = key
    if not keys:
        raise InvalidJwks(f"{source}: has no RSA, EC or OKP key for signatures")
    return keys
