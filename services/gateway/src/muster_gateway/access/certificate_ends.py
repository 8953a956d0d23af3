"""When the certificates end that a gateway serves with, or trusts: its files are looked at again when they change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import structlog
from muster_rest.system_health import CertificateFacts

from muster_gateway.settings import GatewaySettings

log = structlog.get_logger(__name__)

_NS = 1_000_000_000


class CertificateEnds:
    """The ends of the certificates in some files.

    :param files: by setting.
    """

    def __init__(self, files: Iterable[tuple[str, Path]]) -> None:
        self._files = tuple(files)
        self._read: dict[str, tuple[tuple[int, int], list[CertificateFacts]]] = {}

    @classmethod
    def of(cls, settings: GatewaySettings) -> CertificateEnds:
        """Returns those of a gateway's settings."""
        files = {
            "gateway.tls.certificate": settings.tls.certificate,
            "gateway.tls.client_ca": settings.tls.client_ca,
            "gateway.jwt.jwks_ca": settings.jwt.jwks_ca,
            "gateway.sessions_ca_file": settings.sessions_ca_file,
            "gateway.sessions_client_cert_file": settings.sessions_client_cert_file,
        }
        return cls((setting, path) for setting, path in files.items() if path is not None)

    async def facts(self) -> list[CertificateFacts]:
        """Returns the end of each certificate. A file that cannot be read keeps what it said last. Never raises."""
        for setting, path in self._files:
            try:
                stat = path.stat()
            except OSError:
                continue
            state, cached = (stat.st_mtime_ns, stat.st_size), self._read.get(setting)
            if cached is None or cached[0] != state:
                # (The library takes 8 MiB and some 50 ms to load.)
                ends = await asyncio.to_thread(_ends, f"{setting} {path}", path)
                self._read[setting] = state, ends or (cached[1] if cached is not None else [])
        return [certificate for _, ends in self._read.values() for certificate in ends]


def _ends(name: str, path: Path) -> list[CertificateFacts]:
    from cryptography.x509 import load_pem_x509_certificates

    try:
        certificates = load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        log.warning("certificate not read", file=str(path), error=str(error))
        return []
    return [
        CertificateFacts(name, round(certificate.not_valid_after_utc.timestamp()) * _NS) for certificate in certificates
    ]
