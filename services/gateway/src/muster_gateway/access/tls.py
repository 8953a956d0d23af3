"""TLS of both doors: certificate, key and the clients' authorities, read again when their files change.

A new connection gets the newest certificates. An open connection keeps its own, so a rotation ends no stream.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from muster_gateway.access.reloading_files import ReloadingValue
from muster_gateway.errors import InvalidTlsFiles
from muster_gateway.settings import TlsSettings


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What the files hold, checked as a whole.

    :ivar client_ca: None: clients' certificates are not asked for.
    :ivar context: for HTTP.
    """

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext


class TlsCertificates:
    """The certificates in force.

    The constructor raises InvalidTlsFiles if the files cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        files = [path for path in (settings.certificate, settings.key, settings.client_ca) if path is not None]
        self.files: ReloadingValue[TlsMaterial] = ReloadingValue("gateway.tls", files, self._read)

    def credentials(self, *, client_certificates: bool) -> grpc.ServerCredentials:
        """Returns the credentials of a gRPC address.

        :param client_certificates: clients must have one. (The library cannot ask for one that may be missing.)
        """
        served: list[TlsMaterial] = [self.files.value]

        def newest() -> grpc.ServerCertificateConfiguration | None:
            """Called by the library, in a thread of its own, before each handshake. None: no change."""
            material = self.files.value
            if material is served[0]:
                return None
            served[0] = material
            return _configuration(material, client_certificates=client_certificates)

        first = _configuration(served[0], client_certificates=client_certificates)
        return grpc.dynamic_ssl_server_credentials(first, newest, client_certificates)  # type: ignore[arg-type]

    def context(self) -> ssl.SSLContext:
        """Returns the context of the HTTP front: each connection gets the newest certificates."""
        return _ReloadingContext(self.files)

    def _read(self) -> TlsMaterial:
        settings = self._settings
        assert settings.certificate is not None
        assert settings.key is not None
        certificate = _bytes("gateway.tls.certificate", settings.certificate)
        key = _bytes("gateway.tls.key", settings.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(settings.certificate, settings.key, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise InvalidTlsFiles(
                f"gateway.tls.certificate {settings.certificate} and gateway.tls.key {settings.key}: "
                f"expected a PEM chain and its unencrypted PEM key: {_reason(error)}"
            ) from None
        client_ca = None
        if settings.client_ca is not None:
            client_ca = _bytes("gateway.tls.client_ca", settings.client_ca)
            try:
                context.load_verify_locations(cadata=client_ca.decode("ascii"))
            except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
                raise InvalidTlsFiles(
                    f"gateway.tls.client_ca {settings.client_ca}: expected PEM certificates: {_reason(error)}"
                ) from None
            required = settings.client_certificates == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return TlsMaterial(certificate, key, client_ca, context)


class _ReloadingContext(ssl.SSLContext):
    """A context that gives each new connection the newest context."""

    files: ReloadingValue[TlsMaterial]

    def __new__(cls, files: ReloadingValue[TlsMaterial]) -> _ReloadingContext:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context.files = files
        return context

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.files.value.context.wrap_bio(*args, **kwargs)


def _configuration(material: TlsMaterial, *, client_certificates: bool) -> grpc.ServerCertificateConfiguration:
    pairs = [(material.key, material.certificate)]
    return grpc.ssl_server_certificate_configuration(pairs, material.client_ca if client_certificates else None)


def _bytes(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidTlsFiles(f"{setting} {path}: cannot be read: {error.strerror}") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__)
