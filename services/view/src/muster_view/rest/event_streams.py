"""The open event streams: the event publisher serves them, and the view asks it for each state dump."""

from __future__ import annotations

import httpx
import msgspec
import structlog
from muster_rest.publisher_routes import OPEN_STREAMS
from muster_rest.shapes.events import EventStreamDao
from muster_runtime.service_client import ServiceClient
from starlette.types import ASGIApp

log = structlog.get_logger(__name__)

# A dump waits no longer than this for the streams, which are a detail.
_TIMEOUT_S = 2.0


_ANSWERS = msgspec.json.Decoder(list[EventStreamDao])


class EventStreamLister:
    """Asks the event publisher.

    :param publisher: its address, or the publisher itself when it runs in this process.
    """

    def __init__(self, publisher: str | ASGIApp) -> None:
        self._sibling = ServiceClient(publisher, _TIMEOUT_S)

    async def close(self) -> None:
        """Closes the connections."""
        await self._sibling.close()

    async def of(self, rm_id: str) -> list[EventStreamDao]:
        """The open streams of an RM's events; empty, too, if the publisher does not answer."""
        try:
            answer = await self._sibling.client.get(OPEN_STREAMS.path, params={"rm": rm_id})
            if answer.status_code != 200:
                log.warning("state dump without event streams", publisher=f"status {answer.status_code}")
                return []
            return _ANSWERS.decode(answer.content)
        except (httpx.HTTPError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("state dump without event streams", publisher=type(error).__name__)
            return []
