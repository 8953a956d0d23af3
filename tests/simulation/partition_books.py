"""The auditor's books: plain dictionaries and sums, made only of what goes into the core and what comes out of it.

Slow and simple on purpose: what is asked is computed from what is written down, level by level and node by node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simulation.books import (
    Amounts,
    BookedAllocation,
    BookedApp,
    BookedAsk,
    BookedNode,
    BookedQueue,
    Bound,
    Document,
    QueueRules,
    configured_queues,
    end_placeholders,
    must,
    positive,
    seconds_ns,
    suits,
)
from simulation.decaying import Decayed


class Books:
    """One partition.

    :ivar apps: that are not over; ``finished``: those that are, by the id under which they are still shown.
    :ivar rejected: what was said of those that were not let in, and until when it is kept.
    :ivar queue_used: by path; ``user_used``, ``group_used``: by path and name.
    """

    def __init__(self, document: Document) -> None:
        self.name: str = document["name"]
        self.nodes: dict[str, BookedNode] = {}
        self.foreign: dict[str, BookedAllocation] = {}
        self.apps: dict[str, BookedApp] = {}
        self.finished: dict[str, BookedApp] = {}
        self.rejected: dict[str, tuple[str, int]] = {}
        self.queues: dict[str, BookedQueue] = {}
        self.queue_used: dict[str, Counter[str]] = {}
        self.queue_preempting: dict[str, Counter[str]] = {}
        self.user_used: dict[tuple[str, str], Counter[str]] = {}
        self.group_used: dict[tuple[str, str], Counter[str]] = {}
        self.decayed = Decayed()
        self.deciding = True
        self.document = document
        self.configured: dict[str, QueueRules] = {}
        self.read(document)
        for rules in self.configured.values():
            self.queues[rules.path] = self.queue_of(rules)

    # ---- configuration ---------------------------------------------------------------------------------------------

    def read(self, document: Document) -> None:
        """Takes what stands in a configuration, but for its queues."""
        self.document = document
        self.configured = configured_queues(document)
        self.node_policy: str = document["nodesortpolicy"]["type"]
        weights = document["nodesortpolicy"].get("resourceweights", {"vcore": 1, "memory": 1})
        self.node_weights = {name: float(weight) for name, weight in weights.items() if weight > 0}
        self.preemption_enabled: bool = document["preemption"]["enabled"]
        self.quota_enabled: bool = document["preemption"]["quotapreemptionenabled"]
        self.opted_out_last: bool = document["preemption"]["optout"] == "last"
        self.reservation_enabled: bool = document["reservation"]["enabled"]
        self.reservation_delay_ns = seconds_ns(document["reservation"]["delay"])
        self.reservation_timeout_ns = seconds_ns(document["reservation"]["timeout"])
        self.backfill: str = document.get("backfill", "off")
        self.rules: list[Document] = document["placementrules"]

    def queue_of(self, rules: QueueRules) -> BookedQueue:
        return BookedQueue(
            rules.path,
            rules.leaf,
            True,
            rules.guaranteed,
            rules.maximum,
            rules.max_applications,
            rules.properties,
            submit=rules.submit,
            admin=rules.admin,
            template=rules.template,
        )

    def children(self, path: str) -> Iterator[BookedQueue]:
        for queue in self.queues.values():
            if queue.path.rpartition(".")[0] == path:
                yield queue

    def apps_below(self, path: str) -> Iterator[BookedApp]:
        """The live applications in a queue and below it."""
        for app in self.apps.values():
            if app.queue == path or app.queue.startswith(f"{path}."):
                yield app

    def template_for(self, parent: str) -> Document | None:
        """What a dynamic leaf below gets: of the nearest configured queue upward that has one."""
        while parent:
            queue = self.queues[parent]
            if queue.managed:
                return queue.template
            parent = parent.rpartition(".")[0]
        return None

    # ---- limits ----------------------------------------------------------------------------------------------------

    def assign_limits(self, app: BookedApp) -> None:
        """Finds the application's group and its limits."""
        levels = [self.configured[path] for path in self.queues[app.queue].parents() if path in self.configured]
        app.group, app.bounds = "", []
        if app.independent:
            return
        for level in levels:
            named = [group for limit in level.limits for group in limit.get("groups", ())]
            matches = [group for group in named if group in app.groups]
            if matches:
                app.group = matches[0]
            elif "*" in named:
                app.group = "*"
            if app.group:
                break
        for level in levels:
            limit = _limit_for(level.limits, "users", app.user) or _limit_for(level.limits, "users", "*")
            if limit is not None:
                app.bounds.append(_bound("user", app.user, level.path, limit))
            if app.group:
                limit = _limit_for(level.limits, "groups", app.group)
                if limit is not None:
                    app.bounds.append(_bound("group", app.group, level.path, limit))

    # ---- sums ------------------------------------------------------------------------------------------------------

    def hold(self, held: BookedAllocation) -> None:
        """Writes down something that is held now."""
        node = self.nodes.get(held.node_id)
        app = held.app
        if app is None:
            self.foreign[held.key] = held
            if node is not None:
                node.occupied.update(held.wants)
            return
        must((held.key, held.ordinal) not in app.held, "twice", f"{held} is held already")
        app.held[held.key, held.ordinal] = held
        self._count_held(held, 1)
        if held.placeholder:
            app.counts_of(held.task_group)

    def drop(self, held: BookedAllocation, became: str = "") -> None:
        """Writes down that it is gone; ``became``: which count of its task group grows."""
        node = self.nodes.get(held.node_id)
        app = held.app
        if app is None:
            del self.foreign[held.key]
            if node is not None:
                node.occupied.subtract(held.wants)
            return
        del app.held[held.key, held.ordinal]
        self._count_held(held, -1)
        heir = app.asks.get(held.heir)
        if heir is not None:
            heir.leaving.remove(held)
        if held.placeholder and became:
            end_placeholders(held, became, 1)

    def change(self, held: BookedAllocation, said: Amounts, node_id: str) -> None:
        """Writes down that it takes another amount or node. Whoever it was to make room for may not fit any more."""
        app = held.app
        if app is None:
            self.drop(held)
        else:
            self._count_held(held, -1)
        held.said, held.wants, held.node_id = said, positive(said), node_id
        if app is None:
            self.hold(held)
            return
        self._count_held(held, 1)
        heir = app.asks.get(held.heir)
        if heir is not None and not suits(heir, held):
            heir.leaving.remove(held)
            held.heir = ""

    def _count_held(self, held: BookedAllocation, sign: int) -> None:
        node, app = self.nodes.get(held.node_id), held.app
        assert app is not None
        if node is not None:
            for name, value in held.wants.items():
                node.used[name] += sign * value
        self._count(app, held.wants, sign)
        if held.told == "preempted":
            self.count_preempting(app, held.wants, sign)

    def _count(self, app: BookedApp, wants: Amounts, sign: int) -> None:
        for name, value in wants.items():
            app.used[name] += sign * value
            for path in self.queues[app.queue].parents():
                self.queue_used.setdefault(path, Counter())[name] += sign * value
                self.user_used.setdefault((path, app.user), Counter())[name] += sign * value
                if app.group:
                    self.group_used.setdefault((path, app.group), Counter())[name] += sign * value

    def count_preempting(self, app: BookedApp, wants: Amounts, sign: int) -> None:
        for path in self.queues[app.queue].parents():
            for name, value in wants.items():
                self.queue_preempting.setdefault(path, Counter())[name] += sign * value

    def recount_groups(self) -> None:
        """After other limits: who counts in which group."""
        self.group_used = {}
        for app in self.apps.values():
            if app.group:
                for path in self.queues[app.queue].parents():
                    self.group_used.setdefault((path, app.group), Counter()).update(app.used)

    def check_sums(self) -> None:
        """That the running sums are what the allocations sum to: the auditor's own slips would show here."""
        queues: dict[str, Counter[str]] = {}
        nodes: dict[str, Counter[str]] = {}
        users: dict[tuple[str, str], Counter[str]] = {}
        for app in self.apps.values():
            for held in app.held.values():
                nodes.setdefault(held.node_id, Counter()).update(held.wants)
                for path in self.queues[app.queue].parents():
                    queues.setdefault(path, Counter()).update(held.wants)
                    users.setdefault((path, app.user), Counter()).update(held.wants)
        for path, used in self.queue_used.items():
            must(+used == +queues.get(path, Counter()), "books", f"queue {path}")
        for key, used in self.user_used.items():
            must(+used == +users.get(key, Counter()), "books", f"user {key}")
        for node in self.nodes.values():
            must(+node.used == +nodes.get(node.node_id, Counter()), "books", f"node {node.node_id}")

    # ---- naive questions -------------------------------------------------------------------------------------------

    def used_at(self, bound: Bound) -> Counter[str]:
        if bound.kind == "queue":
            return self.queue_used.get(bound.path, Counter())
        sums = self.user_used if bound.kind == "user" else self.group_used
        return sums.get((bound.path, bound.who), Counter())

    def over(self, app: BookedApp, wants: Amounts) -> str:
        """Whose limit one more would go over, in words; "": nobody's. Root's max is the cluster: the nodes decide."""
        return self.over_some(app, wants, queue=False) or self.over_some(app, wants, queue=True)

    def over_some(self, app: BookedApp, wants: Amounts, *, queue: bool) -> str:
        """The same, of queues or of users and groups."""
        for bound in self.queue_bounds(app.queue) if queue else app.bounds:
            text = self.over_bound(bound, wants)
            if text:
                return text
        return ""

    def queue_bounds(self, leaf: str) -> Iterator[Bound]:
        """What the queues from a leaf up may have, but for root, whose max is the cluster."""
        for path in self.queues[leaf].parents()[:-1]:
            yield self.queue_bound(path)

    def queue_bound(self, path: str) -> Bound:
        queue = self.queues[path]
        return Bound("queue", "", path, queue.maximum or {}, queue.max_applications)

    def over_bound(self, bound: Bound, wants: Amounts) -> str:
        used = self.used_at(bound)
        for name, value in wants.items():
            if name in bound.most and used[name] + value > bound.most[name]:
                return f"{bound}: {used[name]}+{value} of {bound.most[name]} {name}"
        return ""

    def running_in(self, path: str) -> int:
        return sum(app.counted for app in self.apps_below(path))

    def pending_below(self, path: str) -> Counter[str]:
        """What is asked for in a queue and below it."""
        sums: Counter[str] = Counter()
        for app in self.apps_below(path):
            for ask in app.asks.values():
                for name, value in ask.wants.items():
                    sums[name] += value * ask.pending
        return sums

    def running_of(self, bound: Bound) -> int:
        return sum(
            app.counted and (app.user if bound.kind == "user" else app.group) == bound.who
            for app in self.apps_below(bound.path)
        )

    def full(self, app: BookedApp) -> str:
        """Who runs as many applications as it may, so that this one may not run; "": it may, or it runs already."""
        if app.counted or app.independent:
            return ""
        for bound in app.bounds:
            if bound.applications and self.running_of(bound) >= bound.applications:
                return f"{bound} runs {bound.applications}"
        for path in self.queues[app.queue].parents():
            most = self.queues[path].max_applications
            if most and self.running_in(path) >= most:
                return f"queue {path} runs {most}"
        return ""

    def listed(self) -> list[BookedNode]:
        """The nodes that anybody may be placed on."""
        return [node for node in self.nodes.values() if node.usable and not node.reservations]

    def rooms(self, ask: BookedAsk, *, but: frozenset[str] = frozenset()) -> list[BookedNode]:
        """The nodes that the ask may be placed on now; ``but``: nodes to leave aside."""
        if ask.required:
            node = self.nodes.get(ask.required)
            return [node] if node is not None and node.has_room(ask.wants) else []
        found = [node for node in self.listed() if node.node_id not in but and node.has_room(ask.wants)]
        own = ask.reserved
        if own is not None and own.usable and own.has_room(ask.wants):
            found.append(own)
        return found

    def capacity(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for node in self.nodes.values():
            total.update(node.capacity)
        return total

    def share(self, path: str, capacity: Counter[str]) -> float:
        """A queue's fair share: its most used type, of its guaranteed, else of the nearest max on the way up."""
        queue = self.queues[path]
        best = 0.0
        for name, used in self.queue_used.get(path, Counter()).items():
            if used <= 0:
                continue
            total = (queue.guaranteed or {}).get(name)
            if total is None:
                total = self.fair_max(path, name, capacity)
            best = max(best, used / total if total > 0 else 1.0)
        return best

    def fair_max(self, path: str, name: str, capacity: Counter[str]) -> int:
        """The nearest max of a type on the way up."""
        for above in self.queues[path].parents():
            if name in (self.queues[above].maximum or {}):
                return (self.queues[above].maximum or {})[name]
        return capacity[name]

    def app_shares(self, app: BookedApp) -> tuple[float, ...]:
        """An application's shares of its leaf's guaranteed, largest first."""
        guaranteed = self.queues[app.queue].guaranteed or {}
        shares = []
        for name, used in app.used.items():
            if used > 0:
                total = guaranteed.get(name, 0)
                shares.append(used / total if total > 0 else float(used))
        return tuple(sorted(shares, reverse=True))

    # ---- gangs -----------------------------------------------------------------------------------------------------

    def whole(self, app: BookedApp) -> bool:
        return app.gang.total is not None and self.queues[app.queue].properties.get("gang.start", "whole") == "whole"

    def awaits_placeholders(self, app: BookedApp) -> bool:
        """Real asks of a task group wait while placeholders of it are asked for, and none is free."""
        return not self.whole(app) and (app.gang.phase not in ("USED", "OVER") or app.gang.deadline_ns > 0)

    def is_too_large(self, app: BookedApp, *, users: bool = True) -> bool:
        """Whether all of its gang is more than it may ever have below root, whatever is used; of users' limits too."""
        bounds = [*self.queue_bounds(app.queue), *(app.bounds if users else ())]
        total = (app.gang.total or {}).items()
        return any(value > bound.most.get(name, value) for bound in bounds for name, value in total)

    def lacks_room(self, app: BookedApp) -> str:
        """Whose limit the whole gang would go over, beside what others that have started will still take."""
        total = app.gang.total
        assert total is not None
        for bound in [*self.queue_bounds(app.queue), *app.bounds]:
            promised, used = self.promised(bound, app), self.used_at(bound)
            for name, want in total.items():
                over = name in bound.most and used[name] + promised[name] + want > bound.most[name]
                if over and want > self.owed(app.queue, bound, name):
                    return f"{bound}: {used} and {promised} promised, of {bound.most}; {total} more"
        return ""

    def owed(self, leaf: str, at: Bound, name: str) -> int:
        """How much of a type a gang may start with above a queue that is full, because a queue below guarantees it."""
        if not self.preemption_enabled or at.kind != "queue":
            return 0
        for bound in self.queue_bounds(leaf):
            queue = self.queues[bound.path]
            if bound.path == at.path or queue.preemption == "fence":
                return 0
            least = (queue.guaranteed or {}).get(name)
            if least is not None:
                return least - self.used_at(bound)[name] - self.promised(bound)[name]
        return 0

    def promised(self, at: Bound, but: BookedApp | None = None) -> Counter[str]:
        """What gangs that have started as a whole will still take there."""
        sums: Counter[str] = Counter()
        for app in self.apps.values():
            ending = app.state in ("Completing", "Failing")
            if app.gang.phase == "FORMING" and app is not but and self.whole(app) and not ending:
                sums.update(app.to_come() if self._concerns(at, app) else {})
        return sums

    def _concerns(self, at: Bound, app: BookedApp) -> bool:
        if at.kind == "queue":
            return at.path != "root" and at.path in self.queues[app.queue].parents()
        return any((at.kind, at.who, at.path) == (own.kind, own.who, own.path) for own in app.bounds)


def _limit_for(limits: list[Document], kind: str, name: str) -> Document | None:
    for limit in limits:
        if name in limit.get(kind, ()):
            return limit
    return None


def limit_at(queue: QueueRules, kind: str, name: str) -> Bound:
    """The limit of a user or group (``kind``: users or groups) that a queue names; of two the first counts."""
    limit = _limit_for(queue.limits, kind, name)
    assert limit is not None, f"{queue.path} has no limit of {name}"
    return _bound(kind, name, queue.path, limit)


def _bound(kind: str, who: str, path: str, limit: Document) -> Bound:
    most = {
        name: int(text.removesuffix("m")) if name == "vcore" else int(text)
        for name, text in limit.get("maxresources", {}).items()
    }
    return Bound(kind, who, path, most, limit.get("maxapplications", 0))
