"""Identifies the callers of both doors, gRPC and HTTP, before anything is answered (docs/security.md). No other module
does this.

:meth:`Authenticator.identify` takes the first step that applies:

1. Tokens or JWT are configured, and the call has one: the token's owner. An unknown token is refused.
2. The client has a certificate: its owner. (TLS has refused certificates of other authorities before.)
3. The door is open (``http_open``, ``grpc_open``): anyone, with the role of that door.
4. Credentials of any kind are configured, and the call has none: refused.
5. Otherwise the door listens on the loopback only: a peer on this machine is admin.

The policy, if there is one, then gives the identity its rights.

In step 5, a web page of another host in a browser of this machine is no peer on this machine. Neither is a client
behind a proxy, unless the proxy says that the request came from this machine (as YuniKorn's web UI does). Any page may
send requests to the loopback, and the answers allow all pages to read them.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from muster_runtime.addresses import host_of_peer, ip_of, is_loopback, on_loopback
from muster_runtime.caller import Caller, Door
from muster_runtime.cross_site import foreign_page, names_loopback, values_of
from muster_runtime.http_server import peer_certificate
from muster_runtime.identity import (
    ANYONE,
    LOOPBACK,
    NOBODY,
    RESERVED_NAMES,
    Identity,
    Proof,
    Right,
    Rights,
    Role,
    rights_of,
)
from starlette.types import Scope

from muster_gateway.access.certificates import name_of
from muster_gateway.access.jwt import InvalidJwt, JwtVerifier, UnknownJwtKey, looks_like_jwt
from muster_gateway.access.policy import Policy, read_policy
from muster_gateway.access.reloading_files import ReloadingValue
from muster_gateway.access.tls import TlsCertificates
from muster_gateway.access.tokens import Tokens
from muster_gateway.errors import (
    InvalidPolicy,
    PermissionDenied,
    Unauthenticated,
    UnknownSigningKey,
    UnprotectedListener,
)
from muster_gateway.quota_settings import QuotaRule
from muster_gateway.settings import TOKEN, GatewaySettings

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

Headers = list[tuple[bytes, bytes]]


# Of a call whose authentication failed.
_UNKNOWN = Identity("", rights_of(Role.NONE))


class AuthFailure(StrEnum):
    """The reason for a refusal, for the metric."""

    NO_TOKEN = "no_token"  # noqa: S105 - a word
    MALFORMED = "malformed_token"
    UNKNOWN = "unknown_token"
    NOT_LOCAL = "not_local"
    CERTIFICATE = "certificate"
    ROLE = "role"
    RM = "rm"


@dataclass(frozen=True, slots=True)
class PresentedCredentials:
    """What is known of a call before its caller is.

    :ivar headers: names in lower case; of gRPC the metadata.
    :ivar peer: the address at the other end of the connection; "": not known.
    :ivar cut_off: the client closes the connection after the answer, as HTTP/1.0 proxies do.
    :ivar certificate: the client's, which TLS has verified; b"": none.
    """

    door: Door
    method: str
    headers: Headers
    peer: str
    cut_off: bool = False
    certificate: bytes = b""

    def header_values(self, name: bytes) -> list[bytes]:
        """Returns the values of a header."""
        return values_of(self.headers, name)


class Authenticator:
    """Identifies callers and checks their rights.

    :ivar tls: None: both doors are without TLS.

    The constructor raises InvalidGatewaySettings: UnprotectedListener if a door would be open to all, and others if a
    file that the settings name cannot be used.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        files = [token.token_file for token in settings.tokens.values() if token.token_file is not None]
        self._tokens: ReloadingValue[Tokens] = ReloadingValue("gateway.tokens", files, lambda: Tokens(settings.tokens))
        self._jwt = JwtVerifier(settings.jwt) if settings.jwt.enabled else None
        self.tls = TlsCertificates(settings.tls) if settings.tls.certificate is not None else None
        certificates = settings.tls.client_ca is not None
        self._policy = _policy(settings, needed=certificates or self._jwt is not None)
        optional = (self._jwt, self.tls, self._policy)
        self._reads_files = bool(files) or any(component is not None for component in optional)
        self._closed = bool(settings.tokens) or self._jwt is not None or certificates
        self._open: dict[Door, Identity] = {}
        if settings.http_open:
            self._open["http"] = Identity(ANYONE, rights_of(Role(settings.http_open_role)), Proof.OPEN)
        if settings.grpc_open:
            self._open["grpc"] = Identity(ANYONE, rights_of(Role.ADMIN), Proof.OPEN)
        self._proxies = settings.trusted_proxies
        self._needed: dict[Door, str] = {"http": _needed(settings, "http"), "grpc": _needed(settings, "grpc")}
        if self._closed:
            return
        http_closed = not settings.http_address or "http" in self._open
        if not http_closed and not _is_private("gateway.http_address", settings.http_address):
            raise UnprotectedListener.http(settings.http_address, settings.http_open_role)
        if "grpc" not in self._open and not _is_private("gateway.grpc_address", settings.grpc_address):
            raise UnprotectedListener.grpc(settings.grpc_address)

    # ---- files ------------------------------------------------------------------------------------------------------

    async def refresh(self) -> bool:
        """Reads changed files again. Returns whether callers' rights may have changed. Never raises."""
        if not self._reads_files:
            return False
        # In a thread: a file system may be slow, and a policy may be long.
        changed, keys = await asyncio.to_thread(self._reread)
        if self._jwt is not None:
            if keys:
                self._jwt.forget()
            await self._jwt.refresh_if_old()
        return changed

    def _reread(self) -> tuple[bool, bool]:
        """Returns whether rights may have changed, and whether keys have."""
        changed = [reloading.refresh() for reloading in (self._tokens, self._policy) if reloading is not None]
        if self.tls is not None:
            self.tls.files.refresh()
        return any(changed), self._jwt is not None and self._jwt.file is not None and self._jwt.file.refresh()

    def quota_rules(self) -> tuple[QuotaRule, ...]:
        """Returns the quotas of the policy."""
        return self._policy.value.quotas if self._policy is not None else ()

    def problems(self) -> list[str]:
        """Returns what is not as the files say now, one sentence each."""
        watched = (self._tokens, self._policy, self.tls.files if self.tls is not None else None)
        problems = [reloading.problem for reloading in watched if reloading is not None]
        return [problem for problem in (*problems, self._jwt.problem if self._jwt is not None else "") if problem]

    def current_rights(self, caller: Caller) -> Rights | None:
        """Returns the present rights of a caller that was identified before; None: the identity is gone."""
        identity = caller.identity
        match identity.proof:
            case Proof.TOKEN:
                owner = self._tokens.value.owner(caller.credential)
                return self._applied(owner).rights if owner is not None else None
            case Proof.OPEN:
                return self._applied(self._open[caller.door]).rights
            case Proof.LOOPBACK:
                return self._applied(LOOPBACK).rights
            case Proof.CERTIFICATE | Proof.JWT:
                return self._applied(identity).rights
        return identity.rights

    # ---- the doors --------------------------------------------------------------------------------------------------

    def identify(self, scope: Scope) -> Identity:
        """Returns an HTTP request's caller; see the module's docstring. Raises Unauthenticated."""
        return self.authenticate(self.http_credentials(scope)).identity

    async def authorize(self, credentials: PresentedCredentials, needed: Right, rm_id: str = "") -> Caller:
        """Returns the caller of a call that needs a right. Raises Unauthenticated, PermissionDenied.

        :param rm_id: the RM that the call names; "": none.
        """
        try:
            return self.authorize_cached(credentials, needed, rm_id)
        except UnknownSigningKey:
            if self._jwt is None or not await self._jwt.refresh():
                raise
            return self.authorize_cached(credentials, needed, rm_id)

    def authorize_cached(self, credentials: PresentedCredentials, needed: Right, rm_id: str = "") -> Caller:
        """As :meth:`authorize`, with the keys that are known now."""
        try:
            caller = self.authenticate(credentials)
        except Unauthenticated:
            if needed is Right.NONE:
                return Caller(NOBODY, credentials.peer, credentials.door, credentials.method)
            raise
        check(caller, needed, rm_id)
        return caller

    # ---- who it is --------------------------------------------------------------------------------------------------

    def authenticate(self, credentials: PresentedCredentials) -> Caller:
        """Returns the caller; see the module's docstring. Raises Unauthenticated."""
        digest, identity = self._identified(credentials)
        return Caller(self._applied(identity), self._client(credentials), credentials.door, credentials.method, digest)

    def best_effort_caller(self, credentials: PresentedCredentials) -> Caller:
        """Returns the caller of a refused call, as far as it is known, for the audit."""
        try:
            return self.authenticate(credentials)
        except Unauthenticated:
            return Caller(_UNKNOWN, self._client(credentials), credentials.door, credentials.method)

    def _applied(self, identity: Identity) -> Identity:
        return self._policy.value.apply(identity) if self._policy is not None else identity

    def _identified(self, credentials: PresentedCredentials) -> tuple[bytes, Identity]:
        authorization = credentials.header_values(b"authorization")
        if authorization and (len(self._tokens.value) or self._jwt is not None):
            return self._of_token(authorization, credentials)
        if credentials.certificate:
            return b"", _of_certificate(credentials.certificate)
        if (anyone := self._open.get(credentials.door)) is not None:
            return b"", anyone
        if self._closed:
            raise Unauthenticated(AuthFailure.NO_TOKEN, self._needed[credentials.door])
        if reason := self._not_local(credentials):
            raise Unauthenticated(
                AuthFailure.NOT_LOCAL, f"{reason}: without tokens the gateway admits only this machine"
            )
        return b"", LOOPBACK

    def http_credentials(self, scope: Scope) -> PresentedCredentials:
        """Returns what the doorman looks at in an HTTP request."""
        headers: Headers = scope["headers"]
        last = any(
            option.strip().lower() == b"close"
            for value in values_of(headers, b"connection")
            for option in value.split(b",")
        )
        return PresentedCredentials(
            "http",
            f"{scope['method']} {scope['path']}",
            headers,
            (scope.get("client") or ("",))[0],
            cut_off=scope.get("http_version") == "1.0" and last,
            certificate=peer_certificate(scope),
        )

    def grpc_credentials(self, method: str, context: Any) -> PresentedCredentials:
        """Returns what the doorman looks at in a gRPC call.

        :param method: its full name.
        :param context: the library's.
        """
        metadata = context.invocation_metadata() or ()
        headers = [(name.encode(), value.encode()) for name, value in metadata if isinstance(value, str)]
        certificate = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
        return PresentedCredentials("grpc", method, headers, host_of_peer(context.peer()), certificate=certificate)

    def client(self, scope: Scope) -> str:
        """Returns the address that a request comes from: the peer, or the one that a trusted proxy names; "" if not
        known.
        """
        return self._client(self.http_credentials(scope))

    def _client(self, credentials: PresentedCredentials) -> str:
        if not self._is_proxy(credentials.peer):
            return credentials.peer
        for address in reversed(_forwarded_for(credentials)):
            if not self._is_proxy(address.strip()):
                return address.strip()
        return ""

    def _of_token(self, authorization: list[bytes], credentials: PresentedCredentials) -> tuple[bytes, Identity]:
        text = authorization[0].decode("latin-1").strip() if len(authorization) == 1 else ""
        name, token = "", ""
        if (match := _BEARER.fullmatch(text)) is not None:
            token = match[1]
        elif (match := _BASIC.fullmatch(text)) is not None:
            # After its user has entered a name and a token once, a browser sends them for every page.
            if any(site.strip().lower() == b"cross-site" for site in credentials.header_values(b"sec-fetch-site")):
                raise Unauthenticated(
                    AuthFailure.MALFORMED, "another host's page: expected Authorization: Bearer TOKEN"
                )
            name, token = _name_and_password(match[1])
        if not token:
            raise Unauthenticated(AuthFailure.MALFORMED, f"expected {_WHERE[credentials.door]} Bearer TOKEN, once")
        owner = self._tokens.value.find(token)
        if owner is None and self._jwt is not None and looks_like_jwt(token):
            owner = self._of_jwt(self._jwt, token)
        if owner is None or name not in ("", owner[1].name):
            raise Unauthenticated(AuthFailure.UNKNOWN, "the token is unknown")
        return owner

    @staticmethod
    def _of_jwt(verifier: JwtVerifier, token: str) -> tuple[bytes, Identity]:
        try:
            return b"", Identity(verifier.verify(token), rights_of(Role.NONE), Proof.JWT)
        except UnknownJwtKey:
            raise UnknownSigningKey(AuthFailure.UNKNOWN, "the token's key is unknown") from None
        except InvalidJwt as error:
            raise Unauthenticated(AuthFailure.UNKNOWN, f"the token is refused: {error}") from None

    def _not_local(self, credentials: PresentedCredentials) -> str:
        """Returns why a call is not from a program on this machine; "": it is."""
        if not is_loopback(credentials.peer) or not is_loopback(self._client(credentials)):
            return "the client is not on the loopback"
        names = {name for name, _ in credentials.headers}
        # A proxy appends its own peer, so earlier addresses that a client claims let no other machine in.
        forwarded = _forwarded_for(credentials)
        if _FORWARDED & names or not all(is_loopback(address.strip()) for address in forwarded):
            return "the request comes through a proxy"
        if _FORWARDED_HOW & names and not forwarded:
            return "the request comes through a proxy, which does not name its client"
        if credentials.cut_off:
            return "the request seems to come through a proxy"  # nginx's default
        # An attacker can let a name stand for 127.0.0.1 (rebinding). The browser then gives the answer to the
        # attacker's page.
        for name in _HOSTS:
            if not all(names_loopback(f"//{host.decode('latin-1')}") for host in credentials.header_values(name)):
                return f"the header {name.decode().title()} names another host"
        return foreign_page(credentials.headers)

    def _is_proxy(self, text: str) -> bool:
        address = ip_of(text)
        return address is not None and any(address in network for network in self._proxies)


_WHERE: dict[Door, str] = {"http": "the header Authorization:", "grpc": "the metadata authorization:"}


def check(caller: Caller, needed: Right, rm_id: str = "") -> None:
    """Raises PermissionDenied if a caller lacks a right.

    :param rm_id: the RM that the right is about; "": the call is not about one, or does not name it yet.
    """
    rights = caller.identity.rights
    if not (rights.may(needed, rm_id) if rm_id else rights.might(needed)):
        raise PermissionDenied(caller.identity.name, rights.role, needed, rm_id)


def check_rm(needed: Right, caller: Caller, rm_id: str) -> None:
    """Raises PermissionDenied if a caller lacks a right to an RM. Notes that the call goes on to use it."""
    if not caller.may(needed, rm_id):
        raise PermissionDenied(caller.identity.name, caller.identity.role, needed, rm_id)
    caller.claims.append((needed, rm_id))


def _of_certificate(certificate: bytes) -> Identity:
    name = name_of(certificate)
    if not name or name in RESERVED_NAMES:
        raise Unauthenticated(
            AuthFailure.CERTIFICATE,
            "the client's certificate has no usable name: expected a URI, DNS name, e-mail address or common name, in "
            f"printable ASCII without blanks, and none of {', '.join(sorted(RESERVED_NAMES))}",
        )
    return Identity(name, rights_of(Role.NONE), Proof.CERTIFICATE)


def _policy(settings: GatewaySettings, *, needed: bool) -> ReloadingValue[Policy] | None:
    path = settings.policy_file
    if path is None:
        if needed:
            raise InvalidPolicy(
                "gateway.policy_file: not set, expected with tls.client_ca or jwt: without it these identities would "
                "have no rights; see docs/security.md"
            )
        return None
    return ReloadingValue("gateway.policy_file", [path], lambda: Policy(read_policy(path)))


def _needed(settings: GatewaySettings, door: Door) -> str:
    """Returns which credentials a call without any needs, for its refusal."""
    has_tokens, tls = bool(settings.tokens) or settings.jwt.enabled, settings.tls
    send = f"send {_WHERE[door]} Bearer TOKEN"
    if tls.client_ca is None:
        return f"a token is needed: {send}"
    if tls.http if door == "http" else tls.client_certificates == "required":
        return f"a token or a client certificate is needed: {send}" if has_tokens else "a client certificate is needed"
    if door == "http":
        elsewhere = "HTTP asks for no client certificate, because gateway.tls.http is false"
    elif settings.grpc_mtls_address:
        port = settings.grpc_mtls_address.rpartition(":")[2]
        which = "" if port == "0" else f", port {port}"
        elsewhere = f"this address asks for no client certificate; gateway.grpc_mtls_address does{which}"
    else:
        elsewhere = "no gRPC address asks for a client certificate, because gateway.grpc_mtls_address is not set"
    return f"a token is needed: {send} ({elsewhere})" if has_tokens else f"a client certificate is needed: {elsewhere}"


def _forwarded_for(credentials: PresentedCredentials) -> list[str]:
    """Returns the addresses from which proxies had the request, the nearest one last."""
    values = credentials.header_values(b"x-forwarded-for")
    return b",".join(values).decode("latin-1").split(",") if values else []


def _is_private(setting: str, address: str) -> bool:
    try:
        return on_loopback(setting, address)
    except OSError:  # no server can listen there; the attempt to listen reports that
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
