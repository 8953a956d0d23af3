"""The gateway's settings. The command line composes them from flags, environment and file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import SplitResult, urlsplit

from muster_queue_config.settings import QueueConfigSettings
from muster_runtime.addresses import ListenAddress, OptionalListenAddress
from muster_runtime.cross_site import names_loopback
from muster_runtime.identity import RESERVED_NAMES
from muster_runtime.process_stats import open_files_max
from muster_runtime.store_credentials import ClientTls, Password, check_pairs
from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, SecretStr, field_validator, model_validator

from muster_gateway.quota_settings import QuotaSettings

_MIB = 1024 * 1024
# HTTP has a quarter of the files too, and forwards with as many. The rest is for the log and for health.
_FILES_PER_CONNECTION, _CONNECTIONS_MAX = 4, 20_000
_SESSION_SCHEMES = ("memory", "sqlite", "redis", "rediss")

# A token fits into a header unescaped (RFC 6750, section 2.1), and is too long to be guessed or typed by chance.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
TOKEN_CHARS_MIN = 16
TOKEN_EXPECTED = (
    f"expected {TOKEN_CHARS_MIN} characters or more, of letters, digits and . _ ~ + / -, = at the end only; or the "
    "token's digest, sha256: and 64 hexadecimal digits"
)
# A token's digest in place of the token.
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AdmissionLimits(BaseModel):
    """Limits of one message. A rejection answers everything over a limit; nothing is cut silently."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_id_chars: int = Field(
        256, ge=1, description="Length of rmID, allocationKey, applicationID, nodeID and other names."
    )
    max_queue_chars: int = Field(1024, ge=1, description="Length of a queue's full path.")
    max_items: int = Field(50_000, ge=1, description="Items in one message (asks, allocations, releases, nodes ...).")
    max_resource_types: int = Field(128, ge=1, description="Types in one resource.")
    # 2^53 is exact in a double, hence in every JSON reader, and the sum of 1,024 of them fits an int64.
    max_quantity: int = Field(2**53, ge=1, le=2**62, description="One quantity: memory in bytes up to 8 PiB.")
    max_repeats: int = Field(100_000, ge=1, description="AllocationAsk.maxAllocations.")
    # Kubernetes allows 256 KiB of annotations per object; labels come on top.
    max_tags_bytes: int = Field(
        512 * 1024, ge=1, description="Tags or attributes of one item, keys and values together."
    )
    max_tags: int = Field(4_096, ge=1, description="Number of tags or attributes of one item.")
    max_groups: int = Field(1_024, ge=0, description="Groups of one user.")
    # Added to the present in nanoseconds, the time-out must stay an int64. A century is far below that limit.
    max_timeout_ms: int = Field(100 * 365 * 24 * 3600 * 1000, ge=1, description="Execution time-out.")
    # Below the log's own limit (LogSettings.max_record_bytes, 1 MiB) with room for the envelope.
    max_record_bytes: int = Field(
        960 * 1024,
        ge=1024,
        description="One record. A larger registration or item is refused.",
    )
    # The scheduler decides 100 asks in five to ten milliseconds, without a pause.
    record_bytes: int = Field(
        16 * 1024,
        ge=1024,
        description="A larger message is split between its items into records of this size, so that RMs take turns.",
    )
    record_items: int = Field(100, ge=1, description="A message of more items is split likewise.")


class Token(BaseModel):
    """``gateway.tokens.NAME``: a program's token for both doors, and the token's role."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    role: Literal["read", "admin"] = Field(description="The role of who has it (docs/security.md).")
    token: SecretStr | None = Field(None, description="The token itself, or its digest: sha256:HEX.")
    token_file: Path | None = Field(
        None, description="Or a file with either; several, one in a line, while a token is renewed."
    )

    @field_validator("token")
    @classmethod
    def _is_token(cls, token: SecretStr | None) -> SecretStr | None:
        """The error does not show the token."""
        text = token.get_secret_value() if token is not None else None
        if text is None or DIGEST.fullmatch(text):
            return token
        if len(text) < TOKEN_CHARS_MIN or not TOKEN.fullmatch(text):
            raise ValueError(TOKEN_EXPECTED)
        return token

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.token is None) == (self.token_file is None):
            raise ValueError(f"{'neither' if self.token is None else 'both'}, expected token or token_file")
        return self


class CallSettings(BaseModel):
    """``gateway.calls``: limits of gRPC calls for each caller, so that none takes the places of the others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # An RM may open its streams long before its first message; with the metadata muster-rm-id it may wait for ever.
    first_message_timeout_s: float = Field(
        60.0, gt=0, description="A stream names its RM, and any other call sends its request, within this time."
    )
    max_silent: int = Field(500, ge=1, description="Streams that have not named their RM yet, of all callers.")
    max_silent_per_peer: int = Field(100, ge=1, description="The same of one host. The oldest ends for a new one.")
    # Three quarters of max_streams: a quarter is left for the others.
    max_per_peer: int = Field(3_000, ge=1, description="Open calls of one host.")
    max_per_identity: int = Field(3_000, ge=1, description="Open calls of one identity.")
    max_connections_per_peer: int = Field(500, ge=1, description="Connections of one host that have calls.")
    max_per_connection: int = Field(
        1_000, ge=1, description="Open calls of one connection; a client holds back further ones (HTTP/2)."
    )
    max_refusals: int = Field(
        100, ge=1, description="Calls over a limit that end within a second, of one host; more of them end later."
    )
    max_resets: int = Field(
        200, ge=1, description="Calls that a connection cancels within a second of their begin, in each window."
    )
    resets_window_s: float = Field(
        10.0, gt=0, description="The window; for as long a connection gets no calls after more resets."
    )
    handshake_timeout_s: float = Field(20.0, gt=0, description="A connection speaks HTTP/2 within this time.")
    connection_idle_s: float = Field(900.0, gt=0, description="A connection without calls for this long is closed.")


class ConnectionSettings(BaseModel):
    """``gateway.connections``: limits of gRPC connections, with calls or without."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max: int = Field(
        0,
        ge=0,
        description="Connections of all hosts; 0: a quarter of the files that the process may open, at most 20,000.",
    )
    max_per_peer: int = Field(0, ge=0, description="Connections of one host; 0: half of the above.")
    # Headers with tokens of 12 KiB for the first streams, and the window of data before the gateway reads any.
    max_quiet_bytes: int = Field(
        256 * 1024, ge=1024, description="What a connection may send that belongs to no call, and no call is open."
    )
    # With a token of 12 KiB there is room for as much again.
    max_metadata_bytes: int = Field(
        32 * 1024, ge=8 * 1024, description="Metadata of one call, as HTTP/2 counts it; more: RESOURCE_EXHAUSTED."
    )

    def of_all(self) -> int:
        """Returns the limit for all hosts."""
        files = open_files_max()
        return self.max or min(_CONNECTIONS_MAX, files // _FILES_PER_CONNECTION)

    def of_host(self) -> int:
        """Returns the limit for one host."""
        return self.max_per_peer or max(1, self.of_all() // 2)


class TlsSettings(BaseModel):
    """``gateway.tls``: TLS on gRPC and, unless ``http`` is false, on HTTP. Changed files are read again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    certificate: Path | None = Field(None, description="PEM file with the certificate and its chain; none: no TLS.")
    key: Path | None = Field(None, description="PEM file with its key, unencrypted.")
    client_ca: Path | None = Field(
        None, description="PEM file with the authorities of clients' certificates; none: clients have no certificates."
    )
    client_certificates: Literal["optional", "required"] = Field(
        "required",
        description="Whether a client must have a certificate. optional: HTTP takes callers with and without; "
        "gateway.grpc_address asks for none, and gateway.grpc_mtls_address requires one.",
    )
    http: bool = Field(
        True, description="Whether the HTTP front has TLS, too. false: HTTP is in plain text and knows no certificates."
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError(f"certificate {self.certificate} and key {self.key}: expected both or none of them")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError(f"client_ca {self.client_ca}: expected with certificate and key only")
        return self


# Asymmetric ones only: a shared secret would be in every verifier's hands.
JWT_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class JwtSettings(BaseModel):
    """``gateway.jwt``: JSON Web Tokens of an identity provider."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jwks_file: Path | None = Field(None, description="File with the provider's keys (JWKS); read again on change.")
    jwks_url: str = Field("", description="Or their URL: https, or http on the loopback.")
    jwks_ca: Path | None = Field(None, description="PEM file with the authorities of that URL; none: the system's.")
    issuer: str = Field("", description="The claim iss that tokens must have.")
    audience: str = Field("", description="The claim aud that tokens must have.")
    algorithms: tuple[str, ...] = Field(
        ("RS256", "PS256", "ES256", "EdDSA"), min_length=1, description="Allowed algorithms, asymmetric ones only."
    )
    name_claim: str = Field("sub", min_length=1, description="The claim with the identity's name.")
    leeway_s: float = Field(30.0, ge=0, le=600, description="Largest difference of the provider's clock.")
    refresh_s: float = Field(600.0, gt=0, description="How often the URL is read.")
    refresh_min_s: float = Field(10.0, gt=0, description="Least time between two reads for unknown keys.")

    @property
    def enabled(self) -> bool:
        """Whether tokens of a provider count."""
        return self.jwks_file is not None or self.jwks_url != ""

    @field_validator("algorithms")
    @classmethod
    def _are_asymmetric(cls, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        for algorithm in algorithms:
            if algorithm not in JWT_ALGORITHMS:
                raise ValueError(f"{algorithm[:20]!a}, expected some of {', '.join(JWT_ALGORITHMS)}")
        return algorithms

    @field_validator("jwks_url")
    @classmethod
    def _is_safe(cls, url: str) -> str:
        parts = _split(url)
        safe = parts.scheme == "https" or (parts.scheme == "http" and names_loopback(url))
        if (url and not (safe and parts.hostname)) or parts.username is not None:
            raise ValueError("expected https://…, or http://… on the loopback, without a user")
        return url

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.jwks_file is not None and self.jwks_url:
            raise ValueError("jwks_file and jwks_url: both, expected one of them")
        if self.enabled and not (self.issuer and self.audience):
            raise ValueError("issuer and audience: expected both, so that no other service's token counts")
        return self


class GatewaySettings(BaseModel):
    """A gateway's settings without those of its log."""

    # Errors would otherwise show a table of tokens.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    grpc_address: ListenAddress = Field(
        "127.0.0.1:9090", description="Where SI clients connect; port 0 takes a free one."
    )
    http_address: OptionalListenAddress = Field(
        "127.0.0.1:9080", description='HTTP front (YuniKorn\'s REST port); "": none.'
    )
    tokens: dict[str, Token] = Field(
        default_factory=dict, description="Who may use gRPC and the HTTP front, by name: role, and token or token_file."
    )
    http_open: bool = Field(False, description="Let every client use the HTTP front without a token.")
    http_open_role: Literal["read", "admin"] = Field("read", description="Their role then.")
    grpc_open: bool = Field(
        False, description="Let everybody who reaches gRPC act as any RM and operate it, without a token."
    )
    grpc_mtls_address: OptionalListenAddress = Field(
        "", description='A second gRPC address, where clients must have a certificate; "": none.'
    )
    tls: TlsSettings = Field(TlsSettings.model_validate({}), description="TLS on the doors.")
    jwt: JwtSettings = Field(JwtSettings.model_validate({}), description="JSON Web Tokens.")
    policy_file: Path | None = Field(
        None, description="TOML file: which identity may act as, operate and read which RMs; none: the roles count."
    )
    reload_interval_s: float = Field(
        1.0, gt=0, description="How often token files, policy, certificates and keys are checked for changes."
    )
    trusted_proxies: tuple[IPvAnyNetwork, ...] = Field(
        (), description="Peers whose X-Forwarded-For names the client (addresses or networks)."
    )
    view_url: str = Field(
        "http://127.0.0.1:9081",
        description="The views: /ws/v1/* and /debug/* go there. Several URLs with commas, or a name of several hosts.",
    )
    publisher_url: str = Field(
        "http://127.0.0.1:9082", description="The event publishers: /ws/v1/events/* goes there; likewise."
    )
    publisher_grpc_url: str = Field(
        "grpc://127.0.0.1:9091", description="The event publisher's gRPC address: muster.v1.Events goes there."
    )
    http_connect_timeout_s: float = Field(
        2.0, gt=0, description="Longest wait for a connection to the view or the publisher."
    )
    view_timeout_s: float = Field(
        10.0, gt=0, description="Longest wait for the view's explanation or figures, and for a dump's next piece."
    )
    view_answer_bytes: int = Field(16 * _MIB, ge=1024, description="Largest such answer; dumps are streamed.")
    default_rm: str = Field(
        "", max_length=256, description="The RM of a REST request that names none, if there are several."
    )
    gateway_id: str = Field(
        "", max_length=256, description="Unique among gateways; empty: host name and a random part."
    )

    sessions_url: SecretStr = Field(
        SecretStr("memory:"),
        description="Where sessions and leases live: memory:, sqlite:///path, redis://[user:…@]host:port/db, or "
        "rediss:// with TLS.",
    )
    sessions_username: str = Field("", description="User of that Redis, if the URL has none.")
    sessions_password: SecretStr = Field(SecretStr(""), description="Its password, if the URL has none.")
    sessions_password_file: Path | None = Field(None, description="Or a file with it, read for each connection.")
    sessions_ca_file: Path | None = Field(
        None, description="PEM file with the CAs to trust, with rediss:// (default: the system's)."
    )
    sessions_client_cert_file: Path | None = Field(None, description="PEM file with the client's certificate.")
    sessions_client_key_file: Path | None = Field(
        None, description="PEM file with the client's key (default: the certificate's file)."
    )
    sessions_prefix: str = Field("muster:", description="Prefix of each Redis key, for several Musters on one Redis.")

    limits: AdmissionLimits = Field(AdmissionLimits.model_validate({}), description="Limits of one message.")
    queue_config: QueueConfigSettings = Field(
        default_factory=QueueConfigSettings, description="What a queue configuration of an RM may cost."
    )
    max_message_bytes: int = Field(4 * _MIB, ge=1024, description="One gRPC message; larger: RESOURCE_EXHAUSTED.")
    max_streams: int = Field(
        4_000, ge=3, description="Open streams of this gateway (three for each RM, four with a callback stream)."
    )
    quotas: QuotaSettings = Field(
        QuotaSettings.model_validate({}), description="What RMs and identities may have and send."
    )
    calls: CallSettings = Field(CallSettings.model_validate({}), description="Limits of gRPC calls for each caller.")
    connections: ConnectionSettings = Field(
        ConnectionSettings.model_validate({}), description="Limits of gRPC connections, with calls or without."
    )
    max_metrics_watchers: int = Field(100, ge=0, description="Calls of muster.v1.Metrics/Watch at the same time.")
    max_registrations_waiting: int = Field(
        1_000, ge=1, description="Registrations and configuration updates that wait for the scheduler at the same time."
    )

    registration_timeout_s: float = Field(10.0, gt=0, description="How long these wait for the scheduler.")
    pause_timeout_s: float = Field(600.0, gt=0, description="An RM without streams for this long is stopped.")
    lease_ttl_s: float = Field(10.0, gt=0, description="A gateway that is silent for this long counts as dead.")
    cursor_flush_ms: float = Field(100.0, gt=0, description="How often delivered positions are stored.")
    # A network interruption lasts about a second. Responses written meanwhile may never have arrived.
    resend_window_s: float = Field(
        2.0, ge=0, description="A stream that broke off and names no number gets responses of this time again."
    )
    # Far beyond a question's deadline (10 s by default) and the grace for a lost stream (30 s).
    callback_resume_s: float = Field(
        120.0, gt=0, description="How far back a reopened callback stream resumes at most."
    )
    request_push_interval_s: float = Field(
        2.0, gt=0, description="How often request events are sent on callback streams."
    )
    health_interval_s: float = Field(1.0, gt=0, description="Interval of the checks of log and session store.")
    stop_grace_s: float = Field(2.0, ge=0, description="Time for open calls to end when the gateway stops.")

    # Memory limits per stream. With these and max_streams, all streams together use at most 4000 * 12 MiB.
    inflight_bytes: int = Field(4 * _MIB, ge=1024, description="Requests of a stream that the log has not confirmed.")
    undecided_items: int = Field(
        4_000,
        ge=100,
        description="Items of a stream that the scheduler has not decided (half a KiB counts as one more); above this "
        "the stream is not read. Another RM's first request waits behind so many at most.",
    )
    undecided_items_shared: int = Field(
        250,
        ge=1,
        description="The same while other RMs of the partition are active (within the last one to two minutes). It is "
        "divided by the number of RMs that reach it. A stream always has one record on the log.",
    )
    undecided_work_shared_ms: float = Field(
        3.0,
        gt=0,
        description="Beside active RMs, a stream's undecided requests need at most this processor time of the "
        "scheduler, by its reports of such requests, and the time that it waits for a commit. Divided likewise; "
        "records of large messages are half of it (limits.record_bytes at most).",
    )
    queue_responses: int = Field(2_048, ge=1, description="Responses that wait for a slow stream before it catches up.")
    queue_bytes: int = Field(8 * _MIB, ge=1024, description="The same in bytes.")
    waiting_answers: int = Field(256, ge=1, description="Waiting admission answers; above this the stream is not read.")
    read_batch: int = Field(500, ge=1, description="Records per read of the response log.")
    max_catch_up_readers: int = Field(32, ge=1, description="Streams that read the log on their own at the same time.")

    # Below the 5 minutes that gRPC servers tolerate by default, and long enough not to wake mobile links needlessly.
    keepalive_time_s: float = Field(30.0, gt=0, description="Ping an idle connection after this.")
    keepalive_timeout_s: float = Field(
        10.0, gt=0, description="The connection is lost without an answer to a ping for this long."
    )

    @field_validator("tokens")
    @classmethod
    def _are_named(cls, tokens: dict[str, Token]) -> dict[str, Token]:
        for name in tokens:
            if not _TOKEN_NAME.fullmatch(name) or name in RESERVED_NAMES:
                raise ValueError(
                    f"name {name[:64]!a}, expected up to 64 letters, digits and . _ -, and none of "
                    f"{', '.join(sorted(RESERVED_NAMES))}"
                )
        return tokens

    @model_validator(mode="after")
    def _certificates_fit(self) -> Self:
        if self.grpc_mtls_address and self.tls.client_ca is None:
            raise ValueError(f"grpc_mtls_address {self.grpc_mtls_address}: expected with tls.client_ca only")
        return self

    @field_validator("default_rm")
    @classmethod
    def _is_an_id(cls, rm_id: str) -> str:
        if rm_id and (not rm_id.strip() or any(not character.isprintable() for character in rm_id)):
            raise ValueError(f"{rm_id!a}, expected an rmID: not blanks only, no control characters; or none")
        return rm_id

    @field_validator("view_url", "publisher_url")
    @classmethod
    def _http_addresses(cls, urls: str) -> str:
        for url in urls.split(","):
            parts = _split(url.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url.strip()!r}, expected http://host:port, or several with commas")
        return urls

    @field_validator("publisher_grpc_url")
    @classmethod
    def _grpc_address(cls, url: str) -> str:
        parts = _split(url)
        if parts.scheme != "grpc" or not parts.hostname or parts.path.strip("/") or not parts.port:
            raise ValueError(f"{url!r}, expected grpc://host:port")
        return url

    @field_validator("sessions_url")
    @classmethod
    def _usable(cls, url: SecretStr) -> SecretStr:
        """The error does not show the address, which may hold a password."""
        parts = _split(url.get_secret_value())
        if parts.scheme not in _SESSION_SCHEMES:
            raise ValueError(f"scheme {parts.scheme!r}, expected memory, sqlite, redis or rediss")
        if parts.scheme == "sqlite" and not parts.path:
            raise ValueError("no path, expected sqlite:///path")
        return url

    @model_validator(mode="after")
    def _sessions_are_consistent(self) -> Self:
        parts = _split(self.sessions_url.get_secret_value())
        password, tls = self.sessions_secret(), self.sessions_tls()
        check_pairs(self.sessions_password, self.sessions_password_file, tls, "sessions_password", "sessions_")
        if (self.sessions_username or password) and not parts.scheme.startswith("redis"):
            raise ValueError(f"sessions_username or its password with {parts.scheme}: expected a Redis as sessions_url")
        if (self.sessions_username or password) and (parts.username or parts.password):
            raise ValueError(
                "sessions_url has a user or password, and sessions_username or sessions_password is set: expected one"
            )
        if self.sessions_username and not password:
            raise ValueError("sessions_username without sessions_password and sessions_password_file: expected one")
        if tls and parts.scheme != "rediss":
            raise ValueError(
                f"sessions_ca_file or sessions_client_cert_file with {parts.scheme}: expected rediss:// as sessions_url"
            )
        return self

    def sessions_secret(self) -> Password:
        """Returns the place of the session store's password."""
        return Password(self.sessions_password, self.sessions_password_file, "gateway.sessions_password_file")

    def sessions_tls(self) -> ClientTls:
        """Returns the files of TLS for the session store."""
        return ClientTls(self.sessions_ca_file, self.sessions_client_cert_file, self.sessions_client_key_file)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # reading it checks it
    except ValueError:
        raise ValueError("not an address, expected host:port with a port from 0 to 65535") from None
    return parts
