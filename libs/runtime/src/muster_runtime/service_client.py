"""An HTTP client for another service of Muster, at its address or within this process."""

from __future__ import annotations

import httpx
from starlette.types import ASGIApp


class ServiceClient:
    """A client of one service. It connects with the first request.

    :param service: the service's address, or its ASGI application.
    :param timeout_s: of a request.
    """

    def __init__(self, service: str | ASGIApp, timeout_s: float) -> None:
        self._service, self._timeout_s = service, timeout_s
        self._opened: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Closes the connections."""
        if self._opened is not None:
            await self._opened.aclose()

    @property
    def client(self) -> httpx.AsyncClient:
        """The HTTP client."""
        if self._opened is None:
            service = self._service
            transport = None if isinstance(service, str) else httpx.ASGITransport(service)
            base_url = service if isinstance(service, str) else "http://sibling"
            self._opened = httpx.AsyncClient(
                transport=transport,
                base_url=base_url,
                timeout=self._timeout_s,
                trust_env=False,  # proxies of the environment are not for traffic between Muster's services
            )
        return self._opened
