"""The quiet RM: one ask at a time, on a clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from muster_client import RmClient
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.accounts import percentile

from bench.driver import Driver
from bench.neighbours.processes import loop_s

ASKS_PER_S = 20.0


class Quiet(Driver):
    """An RM that notes the processor time of Muster's event loop with each ask."""

    def watch(self, pid: int) -> None:
        """``pid``: the process whose first thread is the loop."""
        self.pid = pid
        self.loop_s: list[float] = []
        self.used_at: dict[str, float] = {}

    async def ask_beside(self, rm: RmClient, prefix: str, duration_s: float) -> dict[str, float]:
        """Like ``ask_on_a_clock``."""
        asks = self.asks(prefix, int(ASKS_PER_S * duration_s))
        self._begin(self.allocated + len(asks))
        self.loop_s.clear()
        began = time.monotonic()
        for number, item in enumerate(asks):
            due = began + number / ASKS_PER_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.due_at[item.allocationKey] = due
            self.used_at[item.allocationKey] = loop_s(self.pid)
            await rm.send_asks([item])
        await self._until_reached("allocations")
        found = {f"p{percent}": percentile(self.latencies_s, percent) for percent in (50, 95, 99, 99.9)}
        found["max"] = max(self.latencies_s)
        found |= {f"loop_p{percent}": percentile(self.loop_s, percent) for percent in (50, 99)}
        return {name: round(value * 1_000, 1) for name, value in found.items()}

    def _on_allocated(self, items: Sequence[si.Allocation]) -> None:
        now_s = loop_s(self.pid)
        self.loop_s += [
            now_s - self.used_at[item.allocationKey] for item in items if item.allocationKey in self.used_at
        ]
        super()._on_allocated(items)
