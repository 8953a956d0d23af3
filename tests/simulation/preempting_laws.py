"""The laws of preemption, victim by victim, with the auditor's own sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulation.books import AuditFailure, BookedAllocation, BookedAsk, BookedNode, BookedQueue, must
from simulation.hearing import Hearing
from simulation.partition_books import Books

# Between two plans for one allocation of an ask.
PAUSE_NS = 15 * 1_000_000_000


class Preemptions:
    """Who was told to go in one cycle, and for whom.

    :ivar askers: the asks for which somebody was told to go in this cycle; ``last_asker``: the last of them.
    :ivar settled: those whose plan reserved a node. (If a daemon takes the node, another reservation is no plan's.)
    """

    def __init__(self, hearing: Hearing, records: Mapping[str, Mapping[tuple[str, ...], Any]], now_ns: int) -> None:
        self._tally = hearing.tally
        self._records = records
        self._now_ns = now_ns
        self.askers: dict[BookedAsk, Books] = {}
        self.last_asker: BookedAsk | None = None
        self.settled: set[BookedAsk] = set()
        self._nodes: dict[BookedAsk, BookedNode] = {}

    def told(self, books: Books, victim: BookedAllocation, message: str) -> None:
        app = victim.app
        assert app is not None
        key = (books.name, victim.app_id, unique_key(victim.key, victim.ordinal))
        record = self._records["alloc"].get(key)
        if record is None or not record.HasField("preempted"):
            raise AuditFailure("preemption", f"{victim} was told to go, and its record does not say why")
        why = record.preempted
        must(not victim.told, "preemption", f"{victim} was told to go before ({victim.told})")
        must(not victim.words["required"], "preemption", f"{victim} can run on this node only")
        may_go = victim.words["may_go"] or books.opted_out_last
        must(may_go, "preemption", f"{victim} opted out")
        self._tally[f"preemption: {why.rule}"] += 1
        if why.rule == "QUOTA":
            self._by_quota(books, victim, why.queue)
        else:
            asking = books.apps.get(why.application_id)
            ask = asking.asks.get(why.allocation_key) if asking is not None else None
            if ask is None:
                raise AuditFailure("preemption", f"{victim} goes for {why.allocation_key}, which nobody asks for")
            must(ask.app.queue == why.queue, "preemption", f"{ask} is not in {why.queue}")
            must(
                ask.key in message and ask.app.app_id in message, "preemption", f"{message!r} names another than {ask}"
            )
            if ask not in self.askers:
                must(not ask.preempts, "preemption", f"{ask} preempts, and others go for it already")
                pause_ns = self._now_ns - ask.planned_ns
                must(
                    not ask.planned_ns or pause_ns >= PAUSE_NS,
                    "preemption",
                    f"{ask} preempts {pause_ns} ns later again",
                )
                self._tally["preemption: planned anew"] += bool(ask.planned_ns)
                ask.planned_ns = self._now_ns
            victim.preempted_for = (ask.app.app_id, ask.key)
            must(not books.full(ask.app), "preemption", f"{ask} may not run, and preempts: {books.full(ask.app)}")
            self.askers[ask] = books
            self.last_asker = ask
            if ask.reserved is not None:
                self._nodes[ask] = ask.reserved
            self._by_rule(books, victim, ask, why.rule)
            ask.preempts = True
        victim.told, victim.told_ns = "preempted", self._now_ns
        books.count_preempting(app, victim.wants, 1)
        if why.rule == "GUARANTEE":
            self._keeps_guarantees(books, victim, self._shared(books, victim, why.queue))

    def _by_rule(self, books: Books, victim: BookedAllocation, ask: BookedAsk, rule: str) -> None:
        leaf = books.queues[ask.app.queue]
        assert victim.app is not None
        if rule == "REQUIRED_NODE":
            must(ask.required == victim.node_id, "preemption", f"{victim} goes for {ask}, which wants {ask.required}")
            must(victim.priority <= ask.priority, "preemption", f"{victim} priority {victim.priority} goes for {ask}")
            return
        must(books.preemption_enabled, "preemption", f"{victim} goes for {ask}, where preemption is off")
        must(ask.may_preempt and not ask.required, "preemption", f"{ask} may not preempt")
        age_ns = self._now_ns - ask.created_ns
        must(age_ns >= leaf.preemption_delay_ns, "preemption", f"{ask} preempts after {age_ns} ns")
        must(not _is_protected(books, victim.app.queue), "preemption", f"{victim} in {victim.app.queue} is protected")
        if rule == "PRIORITY":
            must(victim.app.queue == ask.app.queue, "preemption", f"{victim} is in another leaf than {ask}")
            must(victim.app is not ask.app, "preemption", f"{victim} is of the application of {ask}")
            must(victim.priority < ask.priority, "preemption", f"{victim} priority {victim.priority} goes for {ask}")
            must(leaf.properties.get("preemption.priority") != "disabled", "preemption", f"{leaf.path} does not do it")
            return
        must(rule == "GUARANTEE", "preemption", f"unknown rule {rule}")
        must(victim.app.queue != ask.app.queue, "preemption", f"{victim} is in the leaf of {ask}")
        shared = self._shared(books, victim, ask.app.queue)
        self._is_entitled(books, ask, shared)
        self._priority_holds(books, victim, ask, shared)

    def _shared(self, books: Books, victim: BookedAllocation, leaf: str) -> str:
        """The path of the first queue that both are in."""
        assert victim.app is not None
        above = set(books.queues[victim.app.queue].parents())
        return next(path for path in books.queues[leaf].parents() if path in above)

    def _is_entitled(self, books: Books, ask: BookedAsk, shared: str) -> None:
        """A guarantee below the shared queue speaks for the ask, and is not used up without what is on its way out."""
        named: dict[str, str] = {}
        for queue in _between(books, ask.app.queue, shared):
            must(queue.preemption.lower() != "fence", "preemption", f"{ask} preempts beyond the fence {queue.path}")
            for name in ask.wants:
                if name in (queue.guaranteed or {}):
                    named.setdefault(name, queue.path)
        must(bool(named), "preemption", f"{ask} preempts without a guarantee below {shared}")
        for name, path in named.items():
            least = (books.queues[path].guaranteed or {})[name]
            used = books.queue_used[path][name] if path in books.queue_used else 0
            going = books.queue_preempting[path][name] if path in books.queue_preempting else 0
            fits = used - going + ask.wants[name] <= least
            must(fits, "preemption", f"{ask}: {path} would have {used}-{going}+{ask.wants[name]} of {least} {name}")

    def _priority_holds(self, books: Books, victim: BookedAllocation, ask: BookedAsk, shared: str) -> None:
        priority = ask.priority
        for queue in _between(books, ask.app.queue, shared):
            priority = queue.offset if queue.fence else priority + queue.offset
        assert victim.app is not None
        for queue in reversed(_between(books, victim.app.queue, shared)):
            if queue.fence:
                must(queue.offset <= priority, "preemption", f"{victim} is behind the fence of {queue.path} for {ask}")
                return
            priority -= queue.offset
        must(
            victim.priority <= priority, "preemption", f"{victim} of {victim.priority} goes for {ask}, worth {priority}"
        )

    def _keeps_guarantees(self, books: Books, victim: BookedAllocation, shared: str) -> None:
        """No queue of the victim falls under its guarantee, in any type that it gives up."""
        assert victim.app is not None
        for queue in _between(books, victim.app.queue, shared):
            for name, least in (queue.guaranteed or {}).items():
                if name in victim.wants:
                    left = books.queue_used[queue.path][name] - books.queue_preempting[queue.path][name]
                    must(left >= least, "guarantee", f"{victim}: {queue.path} is left {left} of {least} {name}")

    def _by_quota(self, books: Books, victim: BookedAllocation, path: str) -> None:
        queue = books.queues.get(path)
        if queue is None or not queue.maximum:
            raise AuditFailure("preemption", f"{victim} goes for the max of {path}, which has none")
        assert victim.app is not None
        inside = victim.app.queue == path or victim.app.queue.startswith(f"{path}.")
        must(inside, "preemption", f"{victim} goes for the max of {path}, and is not in it")
        must(books.quota_enabled, "preemption", f"{victim} goes for the max of {path}; that is off")
        must(
            queue.managed and queue.quota_delay_ns > 0, "preemption", f"{victim}: {path} has no quota.preemption.delay"
        )
        used = books.queue_used.get(path, {})
        going = books.queue_preempting.get(path, {})
        over = 0
        for name, most in queue.maximum.items():
            if name in victim.wants:
                left = used.get(name, 0) - going.get(name, 0)
                over += left > most
                enough = left <= most or left - victim.wants[name] >= most
                must(enough, "preemption", f"{victim}: {path} goes below its max of {most} {name} from {left}")
        must(over > 0, "preemption", f"{victim}: {path} is not above its max")

    def kept(self, ask: BookedAsk, node: BookedNode) -> None:
        """The node is kept free for an ask for which somebody was told to go."""
        self._nodes[ask] = node
        self.settled.add(ask)

    def finish(self) -> None:
        """Nobody was told to go in vain: with what goes, each ask fits on the node that was kept for it."""
        for ask, books in self.askers.items():
            node = self._nodes.get(ask)
            if node is None:
                raise AuditFailure("preemption", f"{ask} preempts, and no node is kept for it")
            going = [
                held
                for app in books.apps.values()
                for held in app.held.values()
                if held.node_id == node.node_id and held.told == "preempted"
            ]
            for name, value in ask.wants.items():
                room = node.free(name) + sum(held.wants.get(name, 0) for held in going)
                must(value <= room, "preemption", f"{ask}: {node.node_id} will have {room} {name} only")


def unique_key(key: str, ordinal: int) -> str:
    """How a record names the allocation of an ask."""
    doubled = key.replace("#", "##")
    return f"{doubled}#{ordinal}" if ordinal else doubled


def _between(books: Books, leaf: str, shared: str) -> list[BookedQueue]:
    """The queues from the leaf up to just below the shared one."""
    return [books.queues[path] for path in books.queues[leaf].parents() if len(path) > len(shared)]


def _is_protected(books: Books, leaf: str) -> bool:
    for path in books.queues[leaf].parents():
        said = books.queues[path].properties.get("preemption.policy")
        if said is not None:
            return said.lower() == "disabled"
    return False
