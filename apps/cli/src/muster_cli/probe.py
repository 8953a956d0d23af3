"""``muster health``: asks a process whether it is ready. It loads little, because containers' health checks use it."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable

from muster_cli.errors import UsageError

DEFAULT_ADDRESS = "grpc://127.0.0.1:9090"


def probe(address: str, timeout_s: float, token: str = "") -> tuple[bool, str]:
    """Asks a service whether it is ready. Returns that, and the service's text.

    :param address: ``grpc://host:port`` (the gRPC health service) or ``http://host:port`` (``/health``).
    :param token: of a gateway's HTTP front, which then gives details.
    """
    scheme, separator, place = address.partition("://")
    if not separator or scheme not in _PROBES or not place:
        raise UsageError(f"address {address!r}: expected grpc://host:port or http://host:port")
    return _PROBES[scheme](place.rstrip("/"), timeout_s, token)


def _grpc(place: str, timeout_s: float, _token: str) -> tuple[bool, str]:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(place) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return False, f"{error.code().name}: {error.details()}"
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name == "SERVING", name


def _http(place: str, timeout_s: float, token: str) -> tuple[bool, str]:
    request = urllib.request.Request(f"http://{place}/health")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - it is http
            return True, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return False, error.read().decode(errors="replace") or str(error)
    except OSError as error:
        return False, str(error)


_PROBES: dict[str, Callable[[str, float, str], tuple[bool, str]]] = {"grpc": _grpc, "http": _http}
