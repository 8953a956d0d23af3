# acme_vms/informer.py
import asyncio

import httpx
from muster_informers.plugin import ChangeType, CursorExpired, Delta, InformerSettingsWrong, Listing, SourceUnavailable


class AcmeHosts:
    def __init__(self, url, transport=None):
        self.http = httpx.AsyncClient(base_url=url, timeout=5, transport=transport)

    async def list(self):
        """All hosts, and the cursor for the watch."""
        answer = await self.get("/hosts")
        return Listing([document(host) for host in answer["hosts"]], answer["cursor"])

    async def watch(self, cursor):
        """All later changes, without end; an empty list is a heartbeat."""
        while True:
            answer = await self.get("/changes", after=cursor)
            cursor = answer["cursor"]
            yield [
                Delta(ChangeType.DELETED if host.get("gone") else ChangeType.MODIFIED, document(host), cursor)
                for host in answer["hosts"]
            ]
            await asyncio.sleep(0 if answer["hosts"] else 2)

    async def close(self):
        await self.http.aclose()

    async def get(self, path, **query):
        try:
            answer = await self.http.get(path, params=query)
        except httpx.TransportError as error:
            raise SourceUnavailable(f"{path}: {error}") from error
        if answer.status_code == 410:
            raise CursorExpired(path)
        if answer.status_code != 200:
            raise SourceUnavailable(f"{path}: status {answer.status_code}")
        return answer.json()


def document(host):
    """The document of a host, see "Documents": its id becomes the ``node_id`` of an ExternalNode."""
    return {
        "kind": "node",
        "id": host["name"],
        "version": host["revision"],
        "capacity": {"vcore": 1000 * host.get("cores", 0), "memory": host.get("ram_mib", 0) << 20},
        "attributes": {"state": host.get("state", "ok")},
    }


def make_informer(options, context):
    """The factory: checks the options and opens no connection."""
    url = options.get("url")
    if not isinstance(url, str) or not url.startswith("http"):
        raise InformerSettingsWrong(f"informers.{context.name}.url: expected an address such as http://host:port")
    return AcmeHosts(url)
