"""How a client reaches a gateway: TLS, its certificate, its token, and the position that its reads include. For gRPC
and HTTP alike.

The environment gives the defaults of programs and of every command:

===================== ==============================================================================
MUSTER_TOKEN          the token
MUSTER_TOKEN_FILE     a file with the token, read again for each call, so that a token may be renewed
MUSTER_TLS            ``true``: use TLS, with the system's authorities
MUSTER_TLS_CA         PEM file with the authorities of the gateway's certificate; implies TLS
MUSTER_TLS_CERT       PEM file with this client's certificate; implies TLS
MUSTER_TLS_KEY        PEM file with its key
MUSTER_TLS_SERVER     the name in the gateway's certificate, if it is not that of the address
MUSTER_AFTER          a position that the answers to reads must include (docs/consistency.md)
===================== ==============================================================================

Clients read the files of TLS again when they have changed.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from muster_si.positions import AFTER_HEADER

if TYPE_CHECKING:  # health checks load this module, and few of them use TLS
    import grpc

Metadata = tuple[tuple[str, str], ...]
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, AFTER_VARIABLE = "MUSTER_TOKEN", "MUSTER_TOKEN_FILE", "MUSTER_AFTER"
_TRUE = ("1", "true", "yes")


class AccessWrong(Exception):
    """A token, or a file of TLS, cannot be used. The text never shows a token."""


@dataclass(frozen=True, slots=True)
class Access:
    """See the module's docstring.

    :param token: "": none, or that of ``token_file``.
    :param tls: use TLS even if none of the files is given.
    :param after: a position that the answers to reads must include; "": none.

    The constructor raises AccessWrong if certificate and key are not given together.
    """

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""
    after: str = ""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise AccessWrong(f"tls_cert {self.certificate} and tls_key {self.key}: expected both or none of them")

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> Access:
        """Returns the access that the environment describes. Raises AccessWrong."""
        variables = os.environ if environment is None else environment

        def file(name: str) -> Path | None:
            return Path(variables[name]) if variables.get(name) else None

        return cls(
            variables.get(TOKEN_VARIABLE, "").strip(),
            file(TOKEN_FILE_VARIABLE),
            variables.get("MUSTER_TLS", "").lower() in _TRUE,
            file("MUSTER_TLS_CA"),
            file("MUSTER_TLS_CERT"),
            file("MUSTER_TLS_KEY"),
            variables.get("MUSTER_TLS_SERVER", ""),
            variables.get(AFTER_VARIABLE, "").strip(),
        )

    @property
    def uses_tls(self) -> bool:
        return self.tls or self.ca is not None or self.certificate is not None

    def bearer(self) -> str:
        """Returns the token, from its file as it is now; "": none. Raises AccessWrong, which never shows a token."""
        if self.token_file is None:
            return _checked(TOKEN_VARIABLE, self.token) if self.token else ""
        try:
            text = self.token_file.read_text("ascii").strip()
        except OSError as error:
            raise AccessWrong(f"token file {self.token_file}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise AccessWrong(f"token file {self.token_file}: is no token") from None
        if not text:
            raise AccessWrong(f"token file {self.token_file}: is empty, expected a token")
        return _checked(f"token file {self.token_file}", text)

    def metadata(self) -> Metadata:
        """Returns the metadata of a gRPC call. Raises AccessWrong."""
        token = self.bearer()
        return (("authorization", f"Bearer {token}"),) if token else ()

    def headers(self) -> dict[str, str]:
        """Returns the headers of an HTTP request. Raises AccessWrong."""
        token = self.bearer()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return {**headers, AFTER_HEADER: self.after} if self.after else headers

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Returns another value when a file of TLS has changed."""
        return tuple(map(_stamp, (self.ca, self.certificate, self.key)))

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials of a gRPC channel; None: plain text. Raises AccessWrong."""
        if not self.uses_tls:
            return None
        import grpc

        certificate, key = _read("tls_cert", self.certificate), _read("tls_key", self.key)
        return grpc.ssl_channel_credentials(_read("tls_ca", self.ca), key, certificate)

    def options(self) -> list[tuple[str, str]]:
        """Returns the options of a gRPC channel."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name and self.uses_tls else []

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context of HTTPS requests. Raises AccessWrong."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise AccessWrong(f"tls: {files}: cannot be used: {getattr(error, 'reason', None) or error}") from None
        return context


PLAIN = Access()
"""No token and no TLS."""


def _checked(source: str, token: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise AccessWrong(f"{source}: is no token: it has blanks or other invalid characters")
    return token


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None


def _read(name: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessWrong(f"{name} {path}: cannot be read: {error.strerror}") from None
