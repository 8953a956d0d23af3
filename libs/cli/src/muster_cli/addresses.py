"""Addresses to listen on, checked before anything starts."""

from __future__ import annotations

from muster_service.addresses import listen

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
