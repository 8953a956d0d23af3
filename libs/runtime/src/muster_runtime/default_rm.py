"""Finds the resource manager (RM) that a request means if the request names none. All services use this rule:

1. the only RM, whatever its state;
2. the RM that ``gateway.default_rm`` names, if it is known. The gateway tells this name to services behind it in a
   header, and in gRPC's metadata;
3. the only RM that is not stopped. (A disconnected RM counts, because it may reconnect at any moment.)

Otherwise the request must name one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

DEFAULT_RM_METADATA = "x-muster-default-rm"
DEFAULT_RM_HEADER = DEFAULT_RM_METADATA.encode("ascii")


def resolve_rm(rms: Mapping[str, bool], default_rm: str = "") -> str | None:
    """Returns the RM that is meant; None: there is no single candidate.

    :param rms: the known RMs, and whether each is stopped.
    """
    if len(rms) == 1:
        return next(iter(rms))
    if default_rm in rms:
        return default_rm
    living = [rm_id for rm_id, stopped in rms.items() if not stopped]
    return living[0] if len(living) == 1 else None


def default_rm_header(default_rm: str) -> list[tuple[bytes, bytes]]:
    """Returns the header that tells a service behind the gateway; empty for ""."""
    return [(DEFAULT_RM_HEADER, quote(default_rm, safe="").encode("ascii"))] if default_rm else []


def default_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns the name in that header; "" if the gateway sent none."""
    for name, value in headers:
        if name == DEFAULT_RM_HEADER:
            return unquote(value.decode("latin-1"))
    return ""


def default_rm_metadata(default_rm: str) -> list[tuple[str, str]]:
    """Returns :func:`default_rm_header` as gRPC metadata."""
    return [(name.decode("ascii"), value.decode("ascii")) for name, value in default_rm_header(default_rm)]


def default_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns :func:`default_from_headers` of gRPC metadata."""
    return default_from_headers((name.encode(), value.encode()) for name, value in metadata if isinstance(value, str))
