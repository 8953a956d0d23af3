"""Identifies the callers of the HTTP front, before a request is passed on (docs/security.md). No other module does
this.

:meth:`Doorman.identify` takes the first step that applies:

1. Tokens are configured, and the request has one: the token's owner. An unknown token is refused.
2. The front is open (``http_open``): anyone, with the role ``http_open_role``.
3. Tokens are configured, and the request has none: refused.
4. Otherwise the front listens on the loopback only: a peer on this machine is admin.

In step 4, a web page of another host in a browser of this machine is no peer on this machine. Neither is a client
behind a proxy, unless the proxy says that the request came from this machine (as YuniKorn's web UI does). Any page may
send requests to the loopback, and the answers allow all pages to read them.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from muster_runtime.addresses import ip_of, is_loopback, on_loopback
from muster_runtime.identity import ANYONE, LOOPBACK, NOBODY, Identity, Role
from muster_runtime.pages import foreign_page, names_loopback
from starlette.types import Scope

from muster_gateway.errors import NotIdentified, OpenToAll, RoleTooLow, TokenUnusable
from muster_gateway.settings import TOKEN, TOKEN_CHARS_MIN, TOKEN_EXPECTED, GatewaySettings, HttpToken

# A larger file holds no token. Reading all of it would waste memory.
_TOKEN_FILE_BYTES_MAX = 16 * 1024
# Basic is for programs that accept only an address: http://NAME:TOKEN@host:9080 (RFC 7617).
_BASIC = re.compile(r"Basic +([A-Za-z0-9+/]+={0,2})", re.IGNORECASE)
_BEARER = re.compile(rf"Bearer +({TOKEN.pattern})", re.IGNORECASE)
# A client that sends one of these headers says that it forwards a request: the standard headers, and those of
# well-known proxies and tunnels.
_FORWARDED = frozenset(
    {
        b"via",
        b"forwarded",
        b"forwarded-for",
        b"x-forwarded",
        b"x-real-ip",
        b"client-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-original-forwarded-for",
        b"x-original-host",
        b"true-client-ip",
        b"cf-connecting-ip",
        b"cf-ray",
        b"cdn-loop",
        b"fly-client-ip",
        b"x-envoy-external-address",
    }
)
# A client that sends one of these headers is a proxy, too. X-Forwarded-For says whether it acts for this machine.
_FORWARDED_HOW = frozenset(
    {b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port", b"x-forwarded-server", b"x-forwarded-prefix"}
)
# The names that the client used for this front.
_HOSTS = (b"host", b"x-forwarded-host")


class Refusal(StrEnum):
    """The reason for a refusal, for the metric."""

    NO_TOKEN = "no_token"  # noqa: S105 - a word
    MALFORMED = "malformed_token"
    UNKNOWN = "unknown_token"
    NOT_LOCAL = "not_local"
    ROLE = "role"


class Tokens:
    """The identities of the configured tokens. Keeps only the tokens' digests.

    :param configured: by name. Token files are read once, here: a new token takes effect after a restart.

    The constructor raises TokenUnusable, which names the setting and never shows a token or a file's content.
    """

    def __init__(self, configured: Mapping[str, HttpToken]) -> None:
        self._known: list[tuple[bytes, Identity]] = []
        owners: dict[bytes, str] = {}
        for name, entry in configured.items():
            setting = f"gateway.http_tokens.{name}"
            digest = _digest(_token(setting, entry))
            if digest in owners:
                raise TokenUnusable(f"{setting} and gateway.http_tokens.{owners[digest]}: the same token, expected two")
            owners[digest] = name
            self._known.append((digest, Identity(name, Role(entry.role))))

    def __len__(self) -> int:
        return len(self._known)

    def find(self, token: str) -> Identity | None:
        """Returns the token's owner; None: the token is unknown. Takes the same time for every token, so that timing
        reveals no part of one.
        """
        digest, found = _digest(token), None
        for known, identity in self._known:
            if compare_digest(known, digest):
                found = identity
        return found


class Doorman:
    """Identifies callers and checks their roles.

    The constructor raises OpenToAll and TokenUnusable if the front cannot be opened with these settings.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._tokens = Tokens(settings.http_tokens)
        self._open = Identity(ANYONE, Role(settings.http_open_role)) if settings.http_open else None
        self._proxies = settings.trusted_proxies
        if settings.http_address and not self._tokens and self._open is None and not _is_private(settings):
            raise OpenToAll(settings.http_address, settings.http_open_role)

    def identify(self, scope: Scope) -> Identity:
        """Returns a request's caller; see the module's docstring. Raises NotIdentified."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        given = [value for name, value in headers if name == b"authorization"]
        if self._tokens and given:
            return self._of_token(given, headers)
        if self._open is not None:
            return self._open
        if self._tokens:
            raise NotIdentified(Refusal.NO_TOKEN, "a token is needed: send the header Authorization: Bearer TOKEN")
        if why := self._not_local(scope, headers):
            raise NotIdentified(Refusal.NOT_LOCAL, f"{why}: without tokens the gateway admits only this machine")
        return LOOPBACK

    def admit(self, scope: Scope, needed: Role) -> Identity:
        """Returns the caller of a request that needs a role. Raises NotIdentified, RoleTooLow."""
        try:
            identity = self.identify(scope)
        except NotIdentified:
            if needed is Role.NONE:
                return NOBODY
            raise
        if not identity.role.includes(needed):
            raise RoleTooLow(identity.name, identity.role, needed)
        return identity

    def client(self, scope: Scope) -> str:
        """Returns the address that a request comes from: the peer, or the one that a trusted proxy names; "" if not
        known.
        """
        peer: str = (scope.get("client") or ("",))[0]
        if not self._is_proxy(peer):
            return peer
        for address in reversed(_forwarded_for(scope["headers"])):
            if not self._is_proxy(address.strip()):
                return address.strip()
        return ""

    def _of_token(self, given: list[bytes], headers: list[tuple[bytes, bytes]]) -> Identity:
        text = given[0].decode("latin-1").strip() if len(given) == 1 else ""
        name, token = "", ""
        if (match := _BEARER.fullmatch(text)) is not None:
            token = match[1]
        elif (match := _BASIC.fullmatch(text)) is not None:
            # After its user has entered a name and a token once, a browser sends them for every page.
            if dict(reversed(headers)).get(b"sec-fetch-site", b"").lower() == b"cross-site":
                raise NotIdentified(Refusal.MALFORMED, "another host's page: expected Authorization: Bearer TOKEN")
            name, token = _name_and_password(match[1])
        if not token:
            raise NotIdentified(Refusal.MALFORMED, "expected one header Authorization: Bearer TOKEN")
        identity = self._tokens.find(token)
        if identity is None or name not in ("", identity.name):
            raise NotIdentified(Refusal.UNKNOWN, "the token is unknown")
        return identity

    def _not_local(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> str:
        """Returns why a request is not from a program on this machine; "": it is."""
        peer: str = (scope.get("client") or ("",))[0]
        if not is_loopback(peer) or not is_loopback(self.client(scope)):
            return "the client is not on the loopback"
        first = dict(reversed(headers))
        # A proxy appends its own peer, so earlier addresses that a client claims let no other machine in.
        forwarded = _forwarded_for(headers)
        if _FORWARDED & first.keys() or not all(is_loopback(address.strip()) for address in forwarded):
            return "the request comes through a proxy"
        if _FORWARDED_HOW & first.keys() and not forwarded:
            return "the request comes through a proxy, which does not name its client"
        if scope.get("http_version") == "1.0" and first.get(b"connection", b"").lower() == b"close":
            return "the request seems to come through a proxy"  # nginx's default
        # An attacker can let a name stand for 127.0.0.1 (rebinding). The browser then gives the answer to the
        # attacker's page.
        for name in _HOSTS:
            if (host := first.get(name)) is not None and not names_loopback(f"//{host.decode('latin-1')}"):
                return f"the header {name.decode().title()} names another host"
        return foreign_page(first)

    def _is_proxy(self, text: str) -> bool:
        address = ip_of(text)
        return address is not None and any(address in network for network in self._proxies)


def _forwarded_for(headers: list[tuple[bytes, bytes]]) -> list[str]:
    """Returns the addresses from which proxies had the request, the nearest one last."""
    values = [value for name, value in headers if name == b"x-forwarded-for"]
    return b",".join(values).decode("latin-1").split(",") if values else []


def _is_private(settings: GatewaySettings) -> bool:
    try:
        return on_loopback("gateway.http_address", settings.http_address)
    except OSError:  # nobody can listen there; the attempt to listen reports that
        return True


def _name_and_password(encoded: str) -> tuple[str, str]:
    """Returns the name and password of Basic credentials; empty ones if they are malformed or the password cannot be a
    token.
    """
    try:
        name, _, password = b64decode(encoded, validate=True).decode("ascii").partition(":")
    except ValueError:
        return "", ""
    return (name, password) if name and TOKEN.fullmatch(password) else ("", "")


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()


def _token(setting: str, entry: HttpToken) -> str:
    if entry.token is not None:
        return entry.token.get_secret_value()
    assert entry.token_file is not None  # the settings require one of the two
    text = _read(f"{setting}.token_file", entry.token_file)
    if not TOKEN.fullmatch(text) or len(text) < TOKEN_CHARS_MIN:
        raise TokenUnusable(f"{setting}.token_file {entry.token_file}: {TOKEN_EXPECTED}")
    return text


def _read(setting: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_TOKEN_FILE_BYTES_MAX + 1)
        # a file over the limit holds no token, whatever its beginning looks like
        return content.decode("ascii").strip() if len(content) <= _TOKEN_FILE_BYTES_MAX else ""
    except OSError as error:
        raise TokenUnusable(f"{setting} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TokenUnusable(f"{setting} {path}: {TOKEN_EXPECTED}") from None
