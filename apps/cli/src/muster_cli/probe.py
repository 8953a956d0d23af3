"""``muster health``: asks a process whether it is ready. It loads little, because containers' health checks use it."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from muster_client.access import PLAIN, Access

from muster_cli.errors import UsageError

DEFAULT_ADDRESS = "grpc://127.0.0.1:9090"


def probe(address: str, timeout_s: float, access: Access = PLAIN) -> tuple[bool, str]:
    """Asks a service whether it is ready. Returns that, and the service's text.

    :param address: ``grpc://host:port`` (the gRPC health service) or ``http://host:port`` or
        ``https://host:port`` (``/health``).
    :param access: TLS, and a token: a gateway's HTTP front then gives details.
    """
    scheme, separator, place = address.partition("://")
    if not separator or scheme not in _PROBES or not place:
        raise UsageError(f"address {address!r}: expected grpc://host:port, http://host:port or https://host:port")
    return _PROBES[scheme](place.rstrip("/"), timeout_s, access)


def _grpc(place: str, timeout_s: float, access: Access) -> tuple[bool, str]:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    credentials, options = access.credentials(), access.options()
    opened = (
        grpc.insecure_channel(place, options)
        if credentials is None
        else grpc.secure_channel(place, credentials, options)
    )
    with opened as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return False, f"{error.code().name}: {error.details()}"
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name == "SERVING", name


def _http(place: str, timeout_s: float, access: Access) -> tuple[bool, str]:
    return _asked(f"http://{place}/health", timeout_s, access, None)


def _https(place: str, timeout_s: float, access: Access) -> tuple[bool, str]:
    return _asked(f"https://{place}/health", timeout_s, access, access.context())


def opened(url: str, timeout_s: float, access: Access, context: ssl.SSLContext | None) -> Any:
    """Opens an http or https URL. Its credentials follow no redirection. Raises OSError."""
    request = urllib.request.Request(url)  # noqa: S310 - callers check the scheme
    for name, value in access.headers().items():
        request.add_unredirected_header(name, value)
    return urllib.request.urlopen(request, timeout=timeout_s, context=context)  # noqa: S310 - it is http


def _asked(url: str, timeout_s: float, access: Access, context: ssl.SSLContext | None) -> tuple[bool, str]:
    try:
        with opened(url, timeout_s, access, context) as answer:
            return True, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return False, error.read().decode(errors="replace") or str(error)
    except OSError as error:
        return False, str(error)


_PROBES: dict[str, Callable[[str, float, Access], tuple[bool, str]]] = {"grpc": _grpc, "http": _http, "https": _https}
