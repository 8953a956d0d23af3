"""Certificate authorities and certificates for tests, made in memory (EC keys: a millisecond each)."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, certificate: Path, key: Path) -> None:
        key.write_bytes(self.key)
        certificate.write_bytes(self.certificate)


class Authority:
    """:param valid_days: how much longer before and after now its certificates are valid than a test takes."""

    def __init__(self, name: str = "test authority", valid_days: int = 0) -> None:
        self._valid = valid_days * _DAY
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * _DAY - self._valid)
            .not_valid_after(now + 30 * _DAY + self._valid)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = made.public_bytes(Encoding.PEM)

    def server(self) -> Pair:
        """For 127.0.0.1 and localhost."""
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        return self._issue("gateway.test", names, ExtendedKeyUsageOID.SERVER_AUTH, expired=False)

    def client(self, common_name: str, *, uri: str = "", dns: str = "", email: str = "", expired: bool = False) -> Pair:
        names: list[x509.GeneralName] = []
        names += [x509.UniformResourceIdentifier(uri)] if uri else []
        names += [x509.DNSName(dns)] if dns else []
        names += [x509.RFC822Name(email)] if email else []
        return self._issue(common_name, names, ExtendedKeyUsageOID.CLIENT_AUTH, expired=expired)

    def _issue(
        self, common_name: str, names: list[x509.GeneralName], usage: x509.ObjectIdentifier, *, expired: bool
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        end = now - _DAY if expired else now + _DAY + self._valid
        building = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY - self._valid)
            .not_valid_after(end)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            building = building.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = building.sign(self._key, hashes.SHA256())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Pair(made.public_bytes(Encoding.PEM), private)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])
