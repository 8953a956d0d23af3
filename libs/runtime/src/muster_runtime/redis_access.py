"""User, password and TLS of every Redis client, and its errors in the words of the settings."""

from __future__ import annotations

from typing import Any

from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from muster_runtime.store_credentials import ClientTls, Password, StoreNames, no_tls_hint, tls_problem

# Redis' errors for an unknown user, a wrong password, and a connection without one.
_ACCOUNT_ERRORS = ("WRONGPASS", "NOAUTH", "invalid username-password", "AUTH ")
# redis-py's text for a connection that the server closed, as Redis does when a TLS port gets something else.
_CLOSED = ("Connection closed by server", "Connection reset", "104")


class FileCredentials(CredentialProvider):
    """Reads the password for each connection."""

    def __init__(self, username: str, password: Password) -> None:
        self._username, self._password = username, password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Returns user and password, or the password alone. Raises StoreFileUnusable."""
        password = self._password.reveal() or ""
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The same. (A small local file: no thread.)"""
        return self.get_credentials()


def redis_options(
    url: str, names: StoreNames, *, username: str, password: Password, tls: ClientTls, verify: bool = True
) -> dict[str, Any]:
    """Returns the options of a client beside its address. Raises StoreFileUnusable.

    :param url: of the server; a user and password in it are used when ``username`` and ``password`` are empty.
    """
    options: dict[str, Any] = {}
    if username or password:
        options["credential_provider"] = FileCredentials(username, password)
        password.reveal()  # an unusable file is an error at the start
    if url.startswith("rediss://"):
        tls.context(names)  # the same: the client would report it only when it connects, and without the setting
        options["ssl_cert_reqs"] = "required" if verify else "none"
        options["ssl_check_hostname"] = verify
        for option, file in (
            ("ssl_ca_certs", tls.ca_file),
            ("ssl_certfile", tls.cert_file),
            ("ssl_keyfile", tls.key_file),
        ):
            if file is not None:
                options[option] = str(file)
    return options


def redis_problem(error: BaseException, names: StoreNames, *, has_tls: bool) -> str | None:
    """Explains a refusal: names the setting at fault, never a secret. Returns None for other errors."""
    text = str(error)
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        # Redis names the command or the key, and no password.
        return f"{names.account}: Redis forbids it to this user: {text[:200]}"
    if isinstance(error, AuthenticationError) or (
        isinstance(error, RedisError) and any(word in text for word in _ACCOUNT_ERRORS)
    ):
        return f"{names.account}: Redis refuses the user or its password"
    if (problem := tls_problem(error, names)) is not None:
        return problem
    if not has_tls and isinstance(error, (RedisError, OSError)) and any(word in text for word in _CLOSED):
        return no_tls_hint(names)
    return None
