"""Serves one gRPC service for the client's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc


@contextmanager
def serving(servicer: Any, add: Callable[[Any, grpc.Server], None]) -> Iterator[str]:
    """Serve in threads, so that the caller may run an event loop. Yields the address.

    :param add: the generated function that adds the servicer to a server.
    """
    with ThreadPoolExecutor(max_workers=2) as threads:
        server = grpc.server(threads)
        add(servicer, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield address
        finally:
            server.stop(None).wait()
