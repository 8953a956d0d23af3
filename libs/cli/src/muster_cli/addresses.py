"""Addresses to listen on, checked before anything starts."""

from __future__ import annotations

from muster_service.addresses import listen, on_loopback

from muster_cli.errors import UsageError


def check_free(setting: str, address: str) -> None:
    """Raises UsageError when nobody could listen on an address now, or it is none.

    gRPC shares a port silently with another process that asks for it; a person who starts a second Muster by mistake
    must hear of it instead.
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
    """Raises UsageError when others could reach what asks nobody who they are, and nobody said that this is well.

    For what the gateway has behind it. The gateway's own door is its own matter (``muster_gateway.identity``).
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
            f"{setting} {address}: others reach it, and nobody is asked there who they are. Ways out: an address on "
            "the loopback (127.0.0.1:PORT); or, where only the gateway and monitoring reach it, "
            "process.trusted_network=true; see docs/security.md"
        )
