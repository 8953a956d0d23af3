"""The whole state of an RM, as one JSON text in pieces (muster.v1.Admin/DumpState, docs/admin.md).

The names and shapes are those of YuniKorn's state dump, where Muster has the like. The dump joins the view's endpoints
as they are read, so that memory never holds a whole part. Each part shows one moment, but the parts differ. The dump
asks the RM for its own part first and appends it last.

The steps of :meth:`StateDump.pieces`: 1 the small parts, 2 the lists, 3 the RM's own part.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from muster_runtime.go_json import go_json
from muster_runtime.secrets import masked_json, masked_text

from muster_gateway.codec import CommandAnswer, CommandCode
from muster_gateway.errors import GatewayError, SchedulerTimeout, ViewUnavailable
from muster_gateway.view_client import PIECE_BYTES, ViewClient, path_of

_OK, _NOT_FOUND = 200, 404
_STATES = ("active", "completed", "rejected")
# YuniKorn's text.
NO_CALLBACK = {"empty": "Resource Manager did not register callback"}
# A list ends with its bracket and a line feed. This much is held back until the end is known.
_END = b"]\n"


class StateDump:
    """One dump.

    :param resource_manager: the RM's session and registration, for the output.
    :param ask_rm: asks the RM for its own state; None: the RM cannot be asked.
    """

    def __init__(
        self,
        view: ViewClient,
        rm_id: str,
        resource_manager: dict[str, Any],
        now_ns: int,
        ask_rm: Callable[[], Coroutine[None, None, CommandAnswer]] | None,
    ) -> None:
        self._view, self._rm_id, self._resource_manager = view, rm_id, resource_manager
        self._now_ns, self._ask_rm = now_ns, ask_rm

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the text in pieces of 1 to PIECE_BYTES bytes. Raises ViewUnavailable."""
        own = asyncio.create_task(self._ask_rm(), name="dump of the rm") if self._ask_rm is not None else None
        try:
            gathered = bytearray()
            async for part in self._chunks(own):
                gathered += part
                while len(gathered) >= PIECE_BYTES:
                    yield bytes(gathered[:PIECE_BYTES])
                    del gathered[:PIECE_BYTES]
            if gathered:
                yield bytes(gathered)
        finally:
            if own is not None and not own.done():
                own.cancel()
                await asyncio.wait({own})

    async def _chunks(self, own: asyncio.Task[CommandAnswer] | None) -> AsyncIterator[bytes]:
        # 1. small parts
        partitions = await self._json("partitions")
        names: list[str] = [partition["name"] for partition in partitions]
        configuration = await self._json("resource-manager", "configuration")
        yield b'{"timestamp":%d,"resourceManager":%b' % (self._now_ns, go_json(self._resource_manager))
        yield b',"partitions":%b,"config":%b' % (go_json(partitions), go_json(configuration["config"]))
        yield b',"clusterInfo":%b' % go_json(await self._json("clusters"))
        # 2. lists
        yield b',"queues":['
        async for part in self._joined([("partition", name, "queues") for name in names], listed=False):
            yield part
        yield b'],"applications":['
        lists = [("partition", name, "applications", state) for name in names for state in _STATES]
        async for part in self._joined(lists):
            yield part
        yield b'],"nodes":['
        for number, name in enumerate(names):
            yield b'%b{"partitionName":%b,"nodesInfo":[' % (b"," if number else b"", go_json(name))
            async for part in self._joined([("partition", name, "nodes")]):
                yield part
            yield b"]}"
        yield b'],"placementRules":['
        for number, name in enumerate(names):
            yield b'%b{"partition":%b,"rules":[' % (b"," if number else b"", go_json(name))
            async for part in self._joined([("partition", name, "placementrules")]):
                yield part
            yield b"]}"
        yield b'],"externalSources":['
        async for part in self._joined([("external",)]):
            yield part
        # 3. the RM's own part
        yield b'],"rmDiagnostics":%b}\n' % await _own_words(self._rm_id, own)

    async def _json(self, *parts: str) -> Any:
        answer = await self._view.get(path_of(*parts), self._rm_id)
        if answer.status != _OK:
            raise ViewUnavailable(
                f"the view does not know the resource manager yet (HTTP status {answer.status}): try again"
            )
        return answer.json()

    async def _joined(self, paths: Sequence[tuple[str, ...]], *, listed: bool = True) -> AsyncIterator[bytes]:
        """Yields the elements of several lists (or single objects) as those of one, without its brackets."""
        written = False
        for path in paths:
            started = False
            async with self._view.open(path_of(*path), self._rm_id) as answer:
                if answer.status == _NOT_FOUND:
                    continue  # a partition that was removed meanwhile
                if answer.status != _OK:
                    raise ViewUnavailable(
                        f"the view answers {'/'.join(path)} with HTTP status {answer.status}: try again"
                    )
                async for part in _elements(answer.pieces) if listed else answer.pieces:
                    if written and not started:
                        yield b","
                    started = written = True
                    yield part


async def _elements(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields a list's text without its brackets; nothing for an empty list."""
    first, tail = True, b""
    async for piece in pieces:  # no piece is empty
        text = tail + (piece[1:] if first else piece)
        if first and piece[:1] != b"[":
            raise ViewUnavailable("the view answers with something else than a list")
        first = False
        tail = text[-len(_END) :]
        if len(text) > len(_END):
            yield text[: -len(_END)]
    if tail != _END:
        raise ViewUnavailable("the view broke off in its answer: try again")


async def _own_words(rm_id: str, own: asyncio.Task[CommandAnswer] | None) -> bytes:
    """Returns the RM's dump as JSON, or the reason why there is none."""
    if own is None:
        return go_json(NO_CALLBACK)
    try:
        answer = await own
    except SchedulerTimeout:
        # The scheduler passes the RM's answer on. For an RM that cannot be asked, it answers at once.
        return go_json(
            {"error": f"the resource manager {rm_id} did not answer, and no scheduler said why: make another dump"}
        )
    except GatewayError as error:
        return go_json({"error": str(error)})
    if answer.code is not CommandCode.OK:
        no_callback = answer.message == NO_CALLBACK["empty"]
        return go_json(NO_CALLBACK if no_callback else {"error": masked_text(answer.message)})
    try:
        return go_json(masked_json(json.loads(answer.json)))
    except (ValueError, OverflowError, RecursionError):
        # The text itself is not shown: without a known shape, its secrets cannot be masked.
        return go_json({"error": f"the resource manager's dump of {len(answer.json):,} characters is not JSON"})
