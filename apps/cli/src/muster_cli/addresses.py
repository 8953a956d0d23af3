"""Addresses to listen on, checked before anything starts."""

from __future__ import annotations

from muster_runtime.addresses import listen, on_loopback

from muster_cli.errors import UsageError


def check_free(setting: str, address: str) -> None:
    """Raises UsageError when an address is invalid or in use.

    gRPC silently shares a port with another process that binds it; a second Muster on one port is a mistake that must
    be reported.
    """
    if not address:
        return
    try:
        listen(setting, address).close()
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(str(error.strerror)) from error


def check_private(setting: str, address: str, *, trusted_network: bool) -> None:
    """Raises UsageError when an untrusted network could reach an address without authentication.

    This is for the services behind the gateway. The gateway checks its own front (``muster_gateway.authentication``).
    """
    if not address or trusted_network:
        return
    try:
        private = on_loopback(setting, address)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(str(error.strerror)) from error
    if not private:
        raise UsageError(
            f"{setting} {address}: other machines can reach this address, and it has no authentication. Use an "
            "address on the loopback (127.0.0.1:PORT), or process.trusted_network=true if only the gateway and "
            "monitoring can reach it; see docs/security.md"
        )
