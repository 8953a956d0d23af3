"""Credentials and TLS of the servers that Muster connects to: Kafka, Redis and PostgreSQL.

Every client takes them from here, so that all of them read the same kinds of files, verify certificates in the same
way, and report a refusal with the name of the setting at fault. No message shows a secret.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

# A password in a file is a line. A file beyond this size is another file, named by mistake.
_SECRET_BYTES_MAX = 64 * 1024

# OpenSSL's reasons (ssl.SSLError.reason) of a server that does not want the client's certificate, or wants one.
_CLIENT_REFUSED = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "ALERT_CERTIFICATE")
# Reasons of a server whose answer is no TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_MESSAGE")
_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH = 62, 64  # OpenSSL's X509_V_ERR_…


class StoreFileUnusable(OSError):
    """A file with a password, a certificate or a key cannot be used.

    The message names the setting and the file. (As an OSError it counts as the store's absence while Muster runs: the
    next try reads the file again.)
    """


@dataclass(frozen=True, slots=True)
class StoreNames:
    """What a store's settings are called, for messages.

    :param store: the server's kind, such as "Kafka".
    :param account: the settings of user and password.
    :param protocol: the setting that turns TLS on or off.
    :param tls: its value that turns TLS on.
    :param address: the setting of the server's address.
    """

    store: str
    account: str
    password_file: str
    ca_file: str
    client_cert_file: str
    client_key_file: str
    protocol: str
    tls: str
    address: str

    @classmethod
    def prefixed(cls, prefix: str, store: str, *, account: str, protocol: str, tls: str, address: str) -> StoreNames:
        """Returns names with the usual ends, behind a prefix such as "gateway.sessions_".

        :param account: ends of the names of user and password, separated by blanks.
        """
        return cls(
            store=store,
            account=", ".join(prefix + name for name in account.split()),
            password_file=f"{prefix}{account.rsplit(maxsplit=1)[-1]}_file",
            ca_file=f"{prefix}ca_file",
            client_cert_file=f"{prefix}client_cert_file",
            client_key_file=f"{prefix}client_key_file",
            protocol=prefix + protocol,
            tls=tls,
            address=prefix + address,
        )


@dataclass(frozen=True, slots=True)
class Password:
    """A password in a setting, or in a file that is read for each connection, so that it can be changed."""

    value: SecretStr | None
    file: Path | None
    file_setting: str

    def __bool__(self) -> bool:
        return bool(self.value) or self.file is not None

    def reveal(self) -> str | None:
        """Returns the password; None: there is none. Raises StoreFileUnusable."""
        if self.file is None:
            return self.value.get_secret_value() if self.value else None
        where = f"{self.file_setting} {self.file}"
        try:
            data = self.file.read_bytes()
        except OSError as error:
            raise StoreFileUnusable(f"{where}: cannot be read: {error.strerror}") from None
        try:
            text = data.decode().rstrip("\r\n") if len(data) <= _SECRET_BYTES_MAX else ""
        except UnicodeDecodeError:
            text = ""
        if not text or "\n" in text or "\0" in text:
            raise StoreFileUnusable(f"{where}: expected one line with the password")
        return text


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The files of a TLS client. Paths are as configured.

    :param ca_file: CAs to trust, PEM; None: the system's.
    :param cert_file: the client's certificate, PEM; its key is in it when there is no key_file.
    """

    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None

    def __bool__(self) -> bool:
        return any((self.ca_file, self.cert_file, self.key_file))

    def stamp(self) -> tuple[tuple[int, int] | None, ...]:
        """Returns a value that changes when a file changes."""
        return tuple(map(_stamp, (self.ca_file, self.cert_file, self.key_file)))

    def context(self, names: StoreNames, *, verify: bool = True, check_name: bool = True) -> ssl.SSLContext:
        """Returns a context of TLS 1.2 or newer. Raises StoreFileUnusable.

        :param verify: whether the server's certificate must be signed by a trusted CA.
        :param check_name: whether it must be for the server's name.
        """
        try:
            # (With a file of CAs, only these count: the system's CAs do not vouch for the server beside them.)
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            assert self.ca_file is not None
            raise _unusable(names.ca_file, self.ca_file, error, "PEM certificates of CAs") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = verify and check_name
        context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
        if self.cert_file is not None:
            try:
                # (With a password, OpenSSL fails for an encrypted key instead of asking at the terminal.)
                context.load_cert_chain(self.cert_file, self.key_file, password="")
            except OSError as error:
                setting, file = names.client_cert_file, self.cert_file
                if self.key_file is not None and not _is_readable(self.key_file):
                    setting, file = names.client_key_file, self.key_file
                raise _unusable(setting, file, error, "a PEM certificate with its unencrypted key") from None
        return context


NO_PASSWORD = Password(None, None, "")
NO_TLS_FILES = ClientTls(None, None, None)


def check_pairs(
    password: SecretStr | None, password_file: Path | None, tls: ClientTls, password_name: str, prefix: str
) -> None:
    """Raises ValueError for settings that contradict each other; the texts name them, and never a secret.

    :param prefix: of the names of the TLS files.
    """
    if password and password_file is not None:
        raise ValueError(f"{password_name} and {password_name}_file: expected one of them")
    if tls.key_file is not None and tls.cert_file is None:
        raise ValueError(f"{prefix}client_key_file without {prefix}client_cert_file: expected both")


def tls_problem(error: BaseException, names: StoreNames) -> str | None:
    """Explains a failed TLS handshake. Returns None if the error, and those behind it, are about something else."""
    for cause in _chain(error):
        if isinstance(cause, StoreFileUnusable):
            return str(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in (_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH):
                return (
                    f"{names.address}: the certificate of {names.store} is for another name "
                    f"({cause.verify_message}); expected a name that is in the certificate"
                )
            return (
                f"{names.ca_file}: the certificate of {names.store} is not trusted ({cause.verify_message}); "
                "expected the CA that signed it"
            )
        if isinstance(cause, ssl.SSLError):
            reason = cause.reason or ""
            if any(word in reason for word in _CLIENT_REFUSED):
                return (
                    f"{names.client_cert_file}: {names.store} refuses the client's certificate, or needs one ({reason})"
                )
            if any(word in reason for word in _NO_TLS):
                return f"{names.protocol}: {names.store} does not answer with TLS ({reason}); expected no TLS"
            return f"{names.protocol}: the TLS handshake with {names.store} failed ({reason or 'no reason given'})"
    return None


def no_tls_hint(names: StoreNames) -> str:
    """The sentence for a server that ends a connection without TLS and without an answer."""
    return f"{names.protocol}: {names.store} closed the connection without an answer; a TLS port needs {names.tls}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _unusable(setting: str, file: Path, error: OSError, expected: str) -> StoreFileUnusable:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return StoreFileUnusable(f"{setting} {file}: {reason or 'cannot be used'}; expected {expected}")


def _is_readable(file: Path) -> bool:
    try:
        with file.open("rb"):
            return True
    except OSError:
        return False


def _stamp(file: Path | None) -> tuple[int, int] | None:
    try:
        status = file.stat() if file is not None else None
    except OSError:
        status = None
    return (status.st_mtime_ns, status.st_size) if status is not None else None
