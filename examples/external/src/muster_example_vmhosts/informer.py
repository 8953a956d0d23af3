"""The informer ``vmhosts``: what the VM manager has, as documents (entry point of ``muster.informers``).

An informer only brings: it lists, then watches, and turns each thing into a document as docs/external.md has them. What
a document means for the scheduler is the event handler's.

====================  =================================================================================================
option                means
====================  =================================================================================================
``url``               of the VM manager, such as ``http://127.0.0.1:7080``; must be there
``wait_s``            how long a request for changes may wait for one; default 5. Shorter than ``stale_after_s``: each
                      answer says that the manager lives
====================  =================================================================================================

The documents have no ``version``: answers come in order, one after the other, so none is late.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx
from muster_informers.plugin import (
    ChangeType,
    CursorExpired,
    Delta,
    Document,
    InformerContext,
    InformerSettingsWrong,
    Listing,
    ListWatch,
    Options,
    SourceSaysNonsense,
    SourceUnavailable,
)

DEFAULT_WAIT_S = 5.0
ANSWER_TIMEOUT_S = 5.0
# What becomes of a host or VM; the handler reads these attributes and tags.
MAINTENANCE = "vmhosts/maintenance"
VM_STATE = "vmhosts/state"


class VmHosts:
    """The source (a ListWatch)."""

    def __init__(self, url: str, wait_s: float) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_TIMEOUT_S)
        self._wait_s = wait_s

    async def list(self) -> Listing:
        """All hosts and VMs."""
        answer = await self._get("/v1/inventory", ANSWER_TIMEOUT_S)
        with _Reading():
            hosts, vms = [host_document(host) for host in answer["hosts"]], [vm_document(vm) for vm in answer["vms"]]
            return Listing([*hosts, *vms], answer["cursor"])

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        """Each answer's changes; none when the manager had none to tell."""
        while True:
            query = {"after": cursor, "wait_s": self._wait_s}
            answer = await self._get("/v1/changes", ANSWER_TIMEOUT_S + self._wait_s, query)
            with _Reading():
                deltas = [delta(change) for change in answer["changes"]]
            if deltas:
                cursor = deltas[-1].cursor
            yield deltas

    async def close(self) -> None:
        await self._http.aclose()

    async def _get(self, path: str, timeout_s: float, query: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = await self._http.get(path, params=query, timeout=timeout_s)
        except httpx.TransportError as error:
            raise SourceUnavailable(f"{self._http.base_url}: {str(error) or type(error).__name__}") from error
        if answer.status_code == httpx.codes.GONE:
            raise CursorExpired(answer.text)
        if answer.status_code != httpx.codes.OK:
            raise SourceUnavailable(f"{self._http.base_url}: {path} answers {answer.status_code}")
        with _Reading():
            return answer.json()


class _Reading:
    """What cannot be read as expected is the whole answer's fault: nothing of it is taken."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, KeyError | TypeError | ValueError | AttributeError):
            raise SourceSaysNonsense(f"not an answer of a VM manager: {error!r}") from error


def host_document(host: Mapping[str, Any]) -> Document:
    """A host is a node. Of a type that it does not name, it has none (``whole``)."""
    return {
        "kind": "node",
        "id": host["name"],
        "capacity": {"vcore": f"{host['cores']}", "memory": f"{host['memory_mib']}Mi"},
        "whole": True,
        "attributes": {MAINTENANCE: str(host["maintenance"]).lower()},
    }


def vm_document(vm: Mapping[str, Any]) -> Document:
    """A VM is an allocation that somebody else made."""
    return {
        "kind": "allocation",
        "id": vm["name"],
        "node_id": vm["host"],
        "quantities": {"vcore": f"{vm['cores']}", "memory": f"{vm['memory_mib']}Mi"},
        "tags": {VM_STATE: vm["state"]},
    }


_KINDS: dict[str, tuple[str, Callable[[Mapping[str, Any]], Document]]] = {
    "host": ("node", host_document),
    "vm": ("allocation", vm_document),
}


def delta(change: Mapping[str, Any]) -> Delta:
    """A change as the VM manager tells it."""
    kind, document = _KINDS[change["type"]]
    if change["what"] is None:
        return Delta(ChangeType.DELETED, {"kind": kind, "id": change["name"]}, change["cursor"])
    return Delta(ChangeType.MODIFIED, document(change["what"]), change["cursor"])


def make_informer(options: Options, context: InformerContext) -> ListWatch:
    """The entry point. Raises InformerSettingsWrong."""
    problems = [f"{name}: is no option, expected url or wait_s" for name in options if name not in ("url", "wait_s")]
    url, wait_s = options.get("url", ""), options.get("wait_s", DEFAULT_WAIT_S)
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        # What was given is not repeated: a URL may hold a password.
        problems.append("url: expected the VM manager's, such as http://127.0.0.1:7080")
    if not isinstance(wait_s, int | float) or not 0 < wait_s <= 30:
        problems.append(f"wait_s {wait_s!r}: expected seconds, more than 0, at most 30")
    if problems:
        raise InformerSettingsWrong(*(f"informer {context.name}: {problem}" for problem in problems))
    assert isinstance(url, str)
    assert isinstance(wait_s, int | float)
    return VmHosts(url, wait_s)
