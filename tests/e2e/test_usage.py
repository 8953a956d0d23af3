"""`/ws/v1/usage` of a whole `muster up` equals the sums of the events, also after a `kill -9`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from muster_proto.si.v1.si_pb2 import EventRecord as E
from unit.publisher.using import Subject, above, integrate
from up import Up
from waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "rm_minimal.py"
WINDOW_NS = 1_000_000_000
_ENDS = {
    int(E.ChangeDetail.Value(f"ALLOC_{end}")) for end in ("CANCEL", "PREEMPT", "TIMEOUT", "REPLACED", "NODEREMOVED")
}

Changes = dict[Subject, list[tuple[int, Counter[str], int]]]


def changes_of(events: list[dict[str, Any]]) -> Changes:
    """Every change of what somebody holds, as the event history design tells to read the events."""
    changes: Changes = defaultdict(list)
    queues: dict[str, str] = {}
    for event in events:
        kind, change, detail = event.get("type"), event.get("eventChangeType", 0), event.get("eventChangeDetail", 0)
        name, reference = event.get("objectID", ""), event.get("referenceID", "")
        sign = {E.ADD: 1, E.REMOVE: -1}.get(change, 0)
        resources = event.get("resource", {}).get("resources", {})
        delta = Counter({k: sign * int(v.get("value", 0)) for k, v in resources.items() if v.get("value", 0)})
        at_ns = int(event["timestampNano"])
        if kind == E.QUEUE and detail == E.QUEUE_APP and sign > 0:
            queues[reference] = name
        subjects: list[Subject] = []
        if kind == E.APP and (detail == E.APP_ALLOC or detail in _ENDS):
            subjects = [("application", name), *(("queue", path) for path in above(queues[name]))]
        elif kind == E.USERGROUP and detail in (E.UG_USER_RESOURCE, E.UG_GROUP_RESOURCE):
            subjects = [("user" if detail == E.UG_USER_RESOURCE else "group", name)]
        for subject in subjects:
            changes[subject].append((at_ns, delta, max(sign, 0)))
    return changes


class UpWithUsage(Up):
    def get(self, path: str) -> Any:
        return json.loads(super().get(path)[1], parse_float=Decimal)

    async def events(self, ended: int) -> list[dict[str, Any]]:
        """All events, once the publisher has the last one of that many ends of allocations."""
        found: list[dict[str, Any]] = []

        def whole() -> bool:
            with suppress(urllib.error.HTTPError):  # 404: it has not heard of the RM yet
                found[:] = self.get("/ws/v1/events/batch?count=10000")["EventRecords"] or ()
            last = (E.USERGROUP, E.REMOVE, E.UG_USER_RESOURCE)
            names = ("type", "eventChangeType", "eventChangeDetail")
            return [tuple(each.get(name) for name in names) for each in found].count(last) >= ended

        await eventually(whole, "the events are served", every_s=0.05)
        return found

    async def known_until(self, at_ns: int) -> dict[str, Any]:
        text = ""
        for _ in range(400):
            answer: dict[str, Any] = self.get("/ws/v1/usage?kind=queue")
            text = answer.get("known_until", "")
            if text and ns_of(text) >= at_ns:
                return answer
            await asyncio.sleep(0.05)
        raise AssertionError(f"usage is known until {text or 'never'} only: {self.process.log_tail()}")


def ns_of(text: str) -> int:
    whole, _, part = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * 10**9 + int(part.ljust(9, "0") or 0)


async def test_usage_is_what_the_events_come_to(tmp_path: Path) -> None:
    up = UpWithUsage(tmp_path, "--set", "derive.window_s=1", "--set", "derive.batch_wait_s=0.05")
    try:
        for _ in range(2):
            await up.start()
            ran = await asyncio.to_thread(
                subprocess.run, [sys.executable, str(EXAMPLE), up.grpc], capture_output=True, text=True, timeout=60
            )
            assert ran.returncode == 0, ran.stderr
            up.process.kill()
        await up.start()
        # One task ends in each life; the second registration drops the two others of the first.
        events = await up.events(ended=4)
        await up.known_until(max(event["timestampNano"] for event in events))
        changes = changes_of(events)
        assert {kind for kind, _ in changes} >= {"application", "queue", "user"}
        for subject, parts in changes.items():
            kind, name = subject
            start_s = min(at_ns for at_ns, _, _ in parts) // 10**9
            answer = up.get(f"/ws/v1/usage?kind={kind}&name={name}&from={start_s}")
            expected = integrate(parts, WINDOW_NS, ns_of(answer["known_until"]))
            found = {
                ns_of(window["start"]): (
                    Counter({k: int(v * 10**9) for k, v in window["resource_seconds"].items()}),
                    window["allocations"],
                )
                for one in answer["usage"]
                for window in one["windows"]
            }
            assert found == {start: (+one.quantity_ns, one.allocations) for start, one in expected.items()}, subject
        assert up.process.stop() == 0
        assert "Traceback" not in up.process.log_file.read_text()
    finally:
        up.process.kill()
