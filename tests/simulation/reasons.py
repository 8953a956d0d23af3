"""Whether what is said of each pending ask is true: it has a reason, and what the reason names is really in the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from simulation.books import AuditFailure, BookedApp, BookedAsk, must
from simulation.decaying import decays
from simulation.partition_books import Books

_NODE_CODES = frozenset(
    {"NO_NODES", "LARGER_THAN_ANY_NODE", "NO_NODE_HAS_ROOM", "FREE_RESOURCES_SCATTERED", "RESERVED_FOR_OTHERS"}
)


# Where asks may be backfilled, those that declare how long they run wait apart, by their duration in ms.
DURATION_FROM = 1 << 63


class Reasons:
    """The checks of one partition after a cycle that ran to its end."""

    def __init__(self, books: Books, records: Mapping[str, Mapping[tuple[str, ...], Any]], tally: Counter[str]) -> None:
        self._books = books
        self._tally = tally
        self._apps = records["app"]
        self._whys: dict[tuple[Any, ...], Any] = {}
        for key, record in records["why"].items():
            if key[0] == books.name:
                amounts = tuple(sorted(record.resource.values.items()))
                # (Apart for another cause than a refusal: asks that may be backfilled, by their duration.)
                apart = record.apart if record.apart >= DURATION_FROM else 0
                about = (record.leaf, amounts, record.user, record.user_group, record.required_node, apart)
                must(about not in self._whys, "reason", f"two reasons for {about}")
                self._whys[about] = record

    def check(self) -> None:
        used = set()
        seen: set[tuple[Any, ...]] = set()
        for app in self._books.apps.values():
            if not app.asks:
                continue
            waiting = self._apps[self._books.name, app.app_id]
            if waiting.HasField("waiting"):
                self._whole_application(app, waiting.waiting)
                continue
            for ask in app.asks.values():
                about = self._about(ask)
                used.add(about)
                if (about, app.app_id) in seen:
                    continue
                seen.add((about, app.app_id))
                if about not in self._whys:
                    raise AuditFailure("reason", f"{ask} is pending, and nothing says why")
                self._one(ask, self._whys[about])
        for about in self._whys:
            must(about in used, "reason", f"a reason is kept for {about}, where nobody waits")

    def _about(self, ask: BookedAsk) -> tuple[Any, ...]:
        app = ask.app
        apart = decays(self._books.queues[app.queue])  # (then the asks of each user wait apart)
        user = app.user if apart or any(bound.kind == "user" for bound in app.bounds) else ""
        group = app.group if any(bound.kind == "group" for bound in app.bounds) else ""
        duration_ms = ask.words["timeout_ms"] if self._books.backfill != "off" else 0
        apart = DURATION_FROM + duration_ms if duration_ms > 0 else 0
        return (app.queue, tuple(sorted(ask.said.items())), user, group, ask.required, apart)

    def _whole_application(self, app: BookedApp, reason: Any) -> None:
        full = self._books.full(app)
        must(bool(full), "reason", f"{app.app_id} waits for {reason.code}, and may run")
        self._tally[f"reason: {reason.code}"] += 1
        who = {"USER": "user", "GROUP": "group", "QUEUE": ""}[reason.code.partition("_")[0]]
        if who:
            bounds = [b for b in app.bounds if (b.kind, b.who, b.path) == (who, reason.who, reason.queue)]
            must(len(bounds) == 1, "reason", f"{app.app_id}: {reason.code} of {reason.who} at {reason.queue}")
            most, running = bounds[0].applications, self._books.running_of(bounds[0])
        else:
            most = self._books.queues[reason.queue].max_applications
            running = self._books.running_in(reason.queue)
        must(0 < most <= running, "reason", f"{app.app_id}: {reason.code} at {reason.queue}: {running} of {most} run")

    def _one(self, ask: BookedAsk, reason: Any) -> None:
        code, books = reason.code, self._books
        self._tally[f"reason: {code}"] += 1
        if reason.preemption:
            self._tally[f"no preemption: {reason.preemption}"] += 1
        words = f"{ask} is said to wait for {code} {reason.queue} {reason.who} {reason.resource_type}"
        must(bool(reason.message), "reason", words)
        if code in ("USER_LIMIT", "GROUP_LIMIT"):
            kind = code.partition("_")[0].lower()
            bounds = [b for b in ask.app.bounds if (b.kind, b.who, b.path) == (kind, reason.who, reason.queue)]
            must(len(bounds) == 1, "reason", words)
            used, most = books.used_at(bounds[0]), bounds[0].most
            over = any(name in most and used[name] + value > most[name] for name, value in ask.wants.items())
            must(over, "reason", f"{words}; it uses {dict(used)} of {most}")
        elif code == "QUEUE_MAX":
            must(reason.queue in books.queues[ask.app.queue].parents(), "reason", words)
            must(bool(books.over_bound(books.queue_bound(reason.queue), ask.wants)), "reason", words)
        elif code.startswith("REQUIRED_NODE"):
            node = books.nodes.get(ask.required)
            must(reason.node == ask.required and bool(ask.required), "reason", words)
            must((node is None) == (code == "REQUIRED_NODE_UNKNOWN"), "reason", f"{words}; the node: {node}")
        elif code in _NODE_CODES:
            self._nodes(ask, reason, words)
        else:
            raise AuditFailure("reason", f"{words}: an unknown code")
        asked = ask.wants.get(reason.resource_type, 0)
        must(not reason.resource_type or reason.asked == asked, "reason", f"{words}: asks {asked}, not {reason.asked}")

    def _nodes(self, ask: BookedAsk, reason: Any, words: str) -> None:
        """Which "no" the nodes say may have moved since it was said; that they say no is checked by brute force. What
        depends on which nodes there are, and how large, must be true now."""
        books = self._books
        usable = [node for node in books.nodes.values() if node.usable]
        must(not ask.required, "reason", words)
        must((reason.code == "NO_NODES") == (not usable), "reason", f"{words}; {len(usable)} nodes are there")
        larger = any(all(value > node.capacity.get(name, 0) for node in usable) for name, value in ask.wants.items())
        if usable:
            must((reason.code == "LARGER_THAN_ANY_NODE") == larger, "reason", words)
