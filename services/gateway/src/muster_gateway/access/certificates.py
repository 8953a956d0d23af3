"""The name in a client's certificate. TLS has checked the certificate before (``tls.py``).

The library is imported when the first certificate comes: it takes 8 MiB, and most gateways of one machine have no TLS.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

NAME_CHARS_MAX = 256


def usable_name(name: str) -> bool:
    """Tells whether a name can be an identity's: printable ASCII without blanks, of bounded length."""
    return 0 < len(name) <= NAME_CHARS_MAX and name.isascii() and name.isprintable() and " " not in name


@lru_cache(maxsize=1024)
def name_of(certificate: bytes) -> str:
    """Returns the name of a certificate's owner; "": it has none that can be used.

    The name is the first URI, DNS name or e-mail address of the subject's alternative names, in this order of kinds.
    Without any of these it is the subject's common name.

    :param certificate: as PEM or DER.
    """
    from cryptography.x509 import load_der_x509_certificate, load_pem_x509_certificate

    try:
        is_pem = b"-----" in certificate[:64]
        parsed = load_pem_x509_certificate(certificate) if is_pem else load_der_x509_certificate(certificate)
    except ValueError:
        return ""
    name = next(iter(_names(parsed)), "")
    return name if usable_name(name) else ""


def _names(certificate: Certificate) -> list[str]:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        others = None
    names: list[str] = []
    if others is not None:
        for kind in (x509.UniformResourceIdentifier, x509.DNSName, x509.RFC822Name):
            names += others.get_values_for_type(kind)
    if not names:
        names = [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return names
