"""``muster health --process``: asks a process whether it is ready. It loads little, because containers' health checks
use it.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from muster_cli.errors import UsageError

if TYPE_CHECKING:
    import ssl

    import grpc
    from muster_client.access import Access

ADDRESS_VARIABLE = "MUSTER_HEALTH_ADDRESS"
TIMEOUT_S = 3.0
DEFAULT_ADDRESS = "grpc://127.0.0.1:9090"
_SCHEMES = ("grpc", "http", "https")


def parse_address(address: str) -> tuple[str, str]:
    """Returns an address's scheme, and its host and port. Raises UsageError."""
    scheme, separator, authority = address.partition("://")
    if not separator or scheme not in _SCHEMES or not authority:
        raise UsageError(f"address {address!r}: expected grpc://host:port, http://host:port or https://host:port")
    return scheme, authority.rstrip("/")


def probe(address: str, timeout_s: float, access: Access | None = None) -> tuple[bool, str]:
    """Asks a process whether it is ready. Returns that, and the process's text.

    :param address: ``grpc://host:port`` (the gRPC health service) or ``http://host:port`` or
        ``https://host:port`` (``/readyz``).
    :param access: TLS, and a token: a gateway's HTTP front then gives details; none: plain text, without a token.
    """
    scheme, authority = parse_address(address)
    if scheme == "grpc":
        return _grpc(authority, timeout_s, access)
    context = access.context() if scheme == "https" and access is not None else None
    try:
        with open_url(f"{scheme}://{authority}/readyz", timeout_s, access, context) as answer:
            return True, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return False, error.read().decode(errors="replace") or str(error)
    except OSError as error:
        return False, str(error)


def channel(authority: str, access: Access | None) -> grpc.Channel:
    """Returns a channel to a gateway."""
    import grpc

    if access is None:
        return grpc.insecure_channel(authority)
    credentials, options = access.credentials(), access.options()
    if credentials is None:
        return grpc.insecure_channel(authority, options)
    return grpc.secure_channel(authority, credentials, options)


def _grpc(authority: str, timeout_s: float, access: Access | None) -> tuple[bool, str]:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with channel(authority, access) as opened_channel:
        stub = health_pb2_grpc.HealthStub(opened_channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return False, f"{error.code().name}: {error.details()}"
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name == "SERVING", name


def open_url(url: str, timeout_s: float, access: Access | None, context: ssl.SSLContext | None) -> Any:
    """Opens an http or https URL. Its credentials follow no redirection. Raises OSError."""
    request = urllib.request.Request(url)  # noqa: S310 - callers check the scheme
    for name, value in access.headers().items() if access is not None else ():
        request.add_unredirected_header(name, value)
    return urllib.request.urlopen(request, timeout=timeout_s, context=context)  # noqa: S310 - it is http
