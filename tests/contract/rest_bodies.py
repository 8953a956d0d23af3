"""``python -m contract.rest_bodies`` (in ``tests``): a story's log and a view's answers about it, as digests.

Two processes with different hash seeds print the same lines: no set's order reaches the log, or an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Iterable
from urllib.parse import quote

import httpx
import structlog
from contract.event_stories import Stage
from contract.rest_reader import P, Reader
from contract.test_rest_shapes import STORIES_HERE, Seen, played
from muster_bus.clock import SystemClock

AT_NS = 1_704_067_200_000_000_000
OTHERS = (
    "/ws/v1/explain/pending",
    "/ws/v1/explain/summary",
    "/ws/v1/explain/preempted",
    "/ws/v1/resourcemanagers",
    "/ws/v1/health",
    "/debug/fullstatedump",
)


def _digest(pieces: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\n".join(pieces)).hexdigest()[:16]


async def told(story: str) -> list[str]:
    """Lines: the story's records, and then each answer, in order."""
    stage: Stage = (seen := Seen())
    STORIES_HERE[story](stage)
    records = [repr(record).encode() for records in seen.transactions for record in records]
    lines = [f"{story} records {len(records)} {_digest(records)}", f"{story} events {_digest(seen.event_records)}"]
    clock = SystemClock(lambda: AT_NS, lambda: 1, "one")  # the time of the answers

    async def note(answer: httpx.Response) -> None:
        body = await answer.aread()
        lines.append(f"{story} {answer.request.url.raw_path.decode()} {answer.status_code} {_digest([body])}")

    # (Samples of the history would come by real time.)
    async for reader in played(seen, len(seen.transactions), clock, history_interval_s=3_600):
        if note not in reader.client.event_hooks["response"]:
            reader.client.event_hooks["response"].append(note)
        await reader.everything()
        await _others(reader)
    return lines


async def _others(reader: Reader) -> None:
    paths = list(OTHERS)
    for name in ("nodes", "applications/active", "applications/completed"):
        rows = (await reader.client.get(f"{P}/{name}")).json()
        for found in rows if isinstance(rows, list) else ():  # (An error: there is no partition yet.)
            kind, name = ("node", found["nodeID"]) if "nodeID" in found else ("application", found["applicationID"])
            paths.append(f"/ws/v1/explain/{kind}/{quote(name, safe='')}")
            paths += [f"/ws/v1/explain/ask/{name}/{ask['allocationKey']}" for ask in found.get("requests") or []]
    for path in paths:
        await reader.client.get(path)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for name in sys.argv[1:]:
        print("\n".join(asyncio.run(told(name))))
