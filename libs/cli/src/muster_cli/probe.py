"""``muster health``: asks a process whether it is ready. For container health checks, hence light."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable

from muster_cli.errors import UsageError

DEFAULT_ADDRESS = "grpc://127.0.0.1:9090"


def probe(address: str, timeout_s: float) -> tuple[bool, str]:
    """Whether what listens at an address is ready, and what it said.

    :param address: ``grpc://host:port`` (the gRPC health service) or ``http://host:port`` (``/health``).
    """
    scheme, separator, place = address.partition("://")
    if not separator or scheme not in _PROBES or not place:
        raise UsageError(f"address {address!r}: expected grpc://host:port or http://host:port")
    return _PROBES[scheme](place.rstrip("/"), timeout_s)


def _grpc(place: str, timeout_s: float) -> tuple[bool, str]:
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


def _http(place: str, timeout_s: float) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(f"http://{place}/health", timeout=timeout_s) as answer:
            return True, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return False, error.read().decode(errors="replace") or str(error)
    except OSError as error:
        return False, str(error)


_PROBES: dict[str, Callable[[str, float], tuple[bool, str]]] = {"grpc": _grpc, "http": _http}
