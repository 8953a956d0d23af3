"""A replay's questions to the gateway's HTTP front: reasons, utilisation, events."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import httpx
from muster_client.access import PLAIN, Access, AccessWrong
from muster_client.errors import BadAddress

_ANSWER_TIMEOUT_S = 10.0  # for eight thousand reasons in one answer, on a busy machine


def rest_url(text: str) -> str:
    """Returns the URL of a REST front; ``host:port`` alone is http. Raises BadAddress."""
    url = text if "://" in text else f"http://{text}"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise BadAddress(f"http {text!r}: expected host:port or the URL of a REST front, such as http://127.0.0.1:9080")
    return url.rstrip("/")


class PendingAsk(NamedTuple):
    """The reason why an ask is pending.

    :param reason: its type (muster_core.model.reasons.ReasonCode).
    """

    reason: str
    message: str
    queue: str


class EventIdRange(NamedTuple):
    """The RM's lowest and highest event ids; None without events."""

    lowest: int | None
    highest: int | None


class RestFront:
    """The gateway's HTTP front, for one RM.

    :param address: a URL as :func:`rest_url` returns it.
    :param access: TLS and token, if the front needs them (docs/security.md).

    Every method raises httpx.HTTPError if there is no answer, or an error answer.
    """

    def __init__(self, address: str, rm_id: str, access: Access = PLAIN) -> None:
        self._address, self._access, self._rm_id = address, access, rm_id
        self._stamp = access.stamp()
        self._http = self._client()

    async def pending(self) -> dict[str, PendingAsk]:
        """Returns AllocationKey → why the ask is pending."""
        answer = await self._get("/ws/v1/explain/pending", rm=self._rm_id)
        return {
            item["allocationKey"]: PendingAsk(item["reason"], item.get("message", ""), item.get("queue", ""))
            for item in answer["pending"]
        }

    async def partition(self, name: str = "default") -> dict[str, Any] | None:
        """Returns the RM's partition in YuniKorn's shape; None while the view has none."""
        for item in await self._get("/ws/v1/partitions", rm=self._rm_id) or []:
            if item["clusterId"] == self._rm_id and item["name"].rpartition("]")[2] == name:
                partition: dict[str, Any] = item
                return partition
        return None

    async def events(self) -> EventIdRange:
        """Returns the RM's present event ids."""
        answer = await self._get("/ws/v1/events/batch", rm=self._rm_id, count="1")
        lowest, highest = int(answer.get("LowestID", 0)), int(answer.get("HighestID", 0))
        if not answer.get("EventRecords"):  # no events, or the ring has dropped the first ones
            answer = await self._get("/ws/v1/events/batch", rm=self._rm_id, count="1", start=str(highest))
        return EventIdRange(lowest, highest) if answer.get("EventRecords") else EventIdRange(None, None)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    def _client(self) -> httpx.AsyncClient:
        verify = self._access.context() if self._address.startswith("https:") else True
        return httpx.AsyncClient(
            base_url=self._address, timeout=_ANSWER_TIMEOUT_S, headers=self._access.headers(), verify=verify
        )

    async def _get(self, path: str, **parameters: str) -> Any:
        if (stamp := self._access.stamp()) != self._stamp:
            self._stamp = stamp
            with contextlib.suppress(AccessWrong):  # while they are written: the last ones stay in use
                before, self._http = self._http, self._client()
                await before.aclose()
        response = await self._http.get(path, params=parameters)
        response.raise_for_status()
        return response.json()
