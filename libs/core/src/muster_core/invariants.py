"""Invariants of a partition. Tests check them at every teardown; the service checks them in production, now and then,
and after every recovery. A violation is a defect: the service stops and folds the log again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from muster_core.applications.lifecycle import counts_as_running
from muster_core.external import external_invariants
from muster_core.model.application import Application, Ask, AskGroup, Gang
from muster_core.model.node import Node
from muster_core.model.pending_reason import ask_reason
from muster_core.model.queue import Ledger, Queue, Tracker
from muster_core.model.quotas import text_bytes
from muster_core.model.resources import UNLIMITED, fits
from muster_core.model.states import APP_TERMINAL
from muster_core.model.steps import Pace, Steps, finish
from muster_core.partition import Partition
from muster_core.scheduler import SchedulerCore

# Objects of one step: some hundred microseconds.
_STEP = 512


class InvariantViolated(AssertionError):
    """The state contradicts itself; the message says where."""


def check(core: SchedulerCore, *, exhausted: bool = False, merges: bool = True) -> None:
    """Checks every partition: O(cluster), so not on a hot path. Raises InvariantViolated.

    :param exhausted: the last cycle ran to its end: then no group may be ready, and every pending ask has a reason.
    :param merges: check also that this version's rules lead from the sources' statements to the merged values.
    """
    finish(check_in_steps(core, merges=merges))
    for partition in core.partitions.values():
        if exhausted and partition.deciding:
            _check_reasons(partition)


def check_in_steps(core: SchedulerCore, *, merges: bool = True) -> Steps:
    """Does the same in steps, between which nothing may change the core."""
    pace = Pace(_STEP)
    for partition in core.partitions.values():
        yield from _check_nodes(partition, pace)
        yield from _check_queues(partition, pace)
        yield from _check_applications(partition, pace)
        yield from _check_quotas(partition, pace)
        yield from _check_trackers(partition, pace)
        yield from _check_uses(partition, pace)
        yield from _check_rights(partition, pace)
        yield from _check_gangs(partition, pace)
        yield from _check_questions(partition, pace)
        _check_turns(partition)
        yield
        yield from external_invariants.check(partition, _must, pace, merges=merges)


def _must(truth: bool, message: str) -> None:
    if not truth:
        raise InvariantViolated(message)


def _check_nodes(partition: Partition, pace: Pace) -> Steps:
    types = partition.types
    capacity = [0] * len(types.names)
    for node in partition.nodes.values():
        allocated = [0] * len(types.names)
        if pace.is_over():
            yield
        for allocation in node.allocations.values():
            if pace.is_over():
                yield
            _must(allocation.node_id == node.node_id, f"{node} holds {allocation.key} of node {allocation.node_id}")
            for number, value in allocation.shape.items:
                allocated[number] += value
        for ask in _proposed_on(partition, node):
            for number, value in ask.shape.items:
                allocated[number] += value
        _must(allocated == node.allocated, f"{node}: allocated {node.allocated}, its allocations sum to {allocated}")
        occupied = types.vector()
        for number, value in types.items(node.reported_occupied):
            occupied[number] += value
        for foreign in node.foreign.values():
            if pace.is_over():
                yield
            for number, value in foreign.shape.items:
                occupied[number] += value
        _must(occupied == node.occupied, f"{node}: occupied {node.occupied}, but {occupied} is held by others")
        types.release(occupied)
        for number, free in enumerate(node.available):
            whole = node.capacity[number] - node.allocated[number] - node.occupied[number]
            _must(free == whole, f"{node}: {free} {types.names[number]} available, should be {whole}")
            if number not in types.pooled:
                capacity[number] += node.capacity[number]
        listed = node.usable and not node.reservations and not node.taken and partition.searching
        _must((node.index_key is not None) == listed, f"{node}: in the index, but not to be searched (or not)")
        listed = node in partition.reserved or not partition.searching
        _must(listed or not node.reservations, f"{node} is not on the list of reserved nodes")
        for ask in node.reservations:
            _must(
                fits(ask.shape.items, node.capacity) and (node.usable or bool(ask.demand.required_node)),
                f"{node} is reserved for {ask}, which cannot run there",
            )
            _must(
                ask.reserved_node == node.node_id and not ask.gone,
                f"{node} is reserved for {ask}, which does not know",
            )
        daemons = sum(bool(ask.demand.required_node) for ask in node.reservations)
        _must(daemons in (0, len(node.reservations)), f"{node} is reserved for a daemon and for others")
        _must(len(node.reservations) <= 1 or daemons > 1, f"{node} is reserved for more than one")
    pools = partition.root.maximum or {}
    _must(types.pooled == frozenset(pools), f"{sorted(types.pooled)} are pooled, root has pools of {sorted(pools)}")
    for number, total in pools.items():
        boundless = all(node.capacity[number] == UNLIMITED for node in partition.nodes.values())
        _must(boundless, f"some node has a bound of {types.names[number]}, which is pooled")
        capacity[number] = total
    _must(
        capacity == partition.capacity, f"partition {partition.name}: capacity {partition.capacity}, nodes {capacity}"
    )
    count, before = 0, (float("-inf"), "")
    for node in partition.index:
        if pace.is_over():
            yield
        count += 1
        key = node.index_key or (0.0, "")
        _must(before <= key, "the node index is out of order")
        before = key
    _must(count == partition.index.count, "the node index has lost count")


def _check_queues(partition: Partition, pace: Pace) -> Steps:
    for queue in partition.queues.values():
        allocated, pending, running = yield from _sums(partition, queue, pace)
        _must(allocated == queue.allocated, f"{queue}: allocated {queue.allocated}, applications sum to {allocated}")
        _must(pending == queue.pending, f"{queue}: pending {queue.pending}, applications sum to {pending}")
        _must(
            running == queue.running_applications,
            f"{queue}: {queue.running_applications} applications running, counted {running}",
        )

        preempting = [0] * len(queue.types.names)
        for app in partition.apps_below(queue):
            for allocation in app.allocations.values():
                if pace.is_over():
                    yield
                if allocation.preempted is not None:
                    for number, value in allocation.shape.items:
                        preempting[number] += value
        _must(preempting == queue.preempting, f"{queue}: preempting {queue.preempting}, marks sum to {preempting}")


def _check_uses(partition: Partition, pace: Pace) -> Steps:
    """Checks that the use of users has what their allocations hold, and that a leaf has one entry for each user."""
    for queue in partition.queues.values():
        if queue.fair_uses is None:
            continue
        allocated: dict[str, dict[int, int]] = {}
        for app in partition.apps_in(queue):
            own = allocated.setdefault(app.user, {})
            for allocation in app.allocations.values():
                if pace.is_over():
                    yield
                for number, value in allocation.shape.items:
                    own[number] = own.get(number, 0) + value
        for user in dict.fromkeys((*allocated, *queue.fair_uses.users)):
            usage = queue.fair_uses.get_or_create(user)
            _must(
                usage.held == allocated.get(user, {}),
                f"{usage} has {usage.held}, its allocations {allocated.get(user)}",
            )
            _must((usage.entry is None) == (not usage.line), f"{usage}: {usage.entry} stands for {usage.line}")


def _check_rights(partition: Partition, pace: Pace) -> Steps:
    """Checks what is kept for preemption: the priorities that are held, and the rights of groups on waitlists."""
    for queue in partition.queues.values():
        counts: dict[int, int] = {}
        for app in partition.apps_in(queue):
            for allocation in app.allocations.values():
                if pace.is_over():
                    yield
                counts[allocation.priority] = counts.get(allocation.priority, 0) + 1
                low = app.lowest_held <= allocation.priority
                _must(low, f"{app}: lowest priority {app.lowest_held}, but it holds {allocation}")
        _must(counts == queue.held_priorities, f"{queue} holds priorities {queue.held_priorities}, counted {counts}")
    for waitlist, rights in partition.waiting.parking.rights.items():
        _must(not waitlist.gone, f"{waitlist} is gone, and has rights")
        problem = rights.invariant_violation(group for *_, group in waitlist.groups)
        _must(not problem, f"{waitlist}: {problem}")
    for waitlist, ages in partition.waiting.parking.ages.items():
        problem = ages.problem([group for *_, group in waitlist.groups])
        _must(not waitlist.gone and not problem, f"{waitlist}: {problem or 'is gone, and sorted by age'}")


def _check_trackers(partition: Partition, pace: Pace) -> Steps:
    """Checks that the ledgers of users and groups hold the sums of their applications."""
    size = len(partition.types.names)
    expected: dict[Tracker, tuple[list[int], int, int]] = {}
    for queue in partition.queues.values():
        for app in partition.apps_in(queue):
            levels = queue.ancestry if partition.types.pooled else queue.line
            if pace.is_over():
                yield
            _must(app.bounds == (*app.trackers, *levels), f"{app} keeps other limits than it counts in")
            _must(app.ledgers == (*app.trackers, *queue.ancestry), f"{app} counts elsewhere than where it is")
            for tracker in app.trackers:
                allocated, running, members = expected.get(tracker, ([0] * size, 0, 0))
                summed = [total + own for total, own in zip(allocated, app.allocated, strict=True)]
                expected[tracker] = (summed, running + app.counted, members + 1)
    trackers = list(partition.limits)
    _must(len(trackers) == len(expected), f"{len(trackers)} trackers, of which {len(expected)} are in use")
    for tracker, (allocated, running, members) in expected.items():
        _must(allocated == tracker.allocated, f"{tracker}: {tracker.allocated}, its applications sum to {allocated}")
        _must(
            running == tracker.running_applications, f"{tracker}: {tracker.running_applications} running, not {running}"
        )
        _must(members == tracker.applications, f"{tracker}: {tracker.applications} applications, not {members}")


def _sums(partition: Partition, queue: Queue, pace: Pace) -> Generator[None, None, tuple[list[int], list[int], int]]:
    size = len(queue.types.names)
    allocated, pending, running = [0] * size, [0] * size, 0
    for app in partition.apps_in(queue):
        if pace.is_over():
            yield
        for number in range(size):
            allocated[number] += app.allocated[number]
            pending[number] += app.pending[number]
        running += app.counted
    for child in queue.children.values():
        child_allocated, child_pending, child_running = yield from _sums(partition, child, pace)
        for number in range(size):
            allocated[number] += child_allocated[number]
            pending[number] += child_pending[number]
        running += child_running
    return allocated, pending, running


def _check_applications(partition: Partition, pace: Pace) -> Steps:
    size = len(partition.types.names)
    for app in partition.apps.values():
        allocated, pending, proposed = [0] * size, [0] * size, 0
        if pace.is_over():
            yield
        for allocation in app.allocations.values():
            if pace.is_over():
                yield
            for number, value in allocation.shape.items:
                allocated[number] += value
        for ask in app.asks.values():
            if pace.is_over():
                yield
            _must(ask.pending > 0, f"{app}: ask {ask.key} has nothing pending")
            if ask.reserved_node:
                kept = partition.nodes.get(ask.reserved_node)
                is_reserved = kept is not None and ask in kept.reservations
                _must(is_reserved, f"{ask} thinks that {ask.reserved_node} is reserved for it")
            _must(not ask.preempts or bool(ask.reserved_node), f"{ask} claims what victims leave on no node")
            _must(not ask.preempts or bool(ask.planned_ns), f"{ask} has victims that were never chosen")
            for number, value in ask.shape.items:
                pending[number] += value * ask.pending
            for check in partition.checks.for_ask(ask):
                if check.booked is not None:
                    proposed += 1
                    for number, value in ask.shape.items:
                        allocated[number] += value
        _must(proposed == app.proposed, f"{app}: {app.proposed} proposed, counted {proposed}")
        _must(allocated == app.allocated, f"{app}: allocated {app.allocated}, its allocations sum to {allocated}")
        _must(pending == app.pending, f"{app}: pending {app.pending}, its asks sum to {pending}")
        if app.state in APP_TERMINAL:
            _must(not app.asks and not app.allocations, f"{app} is over, but holds asks or allocations")
        yield from _check_allocations(app, pace)
        _must(app.counted == counts_as_running(app), f"{app} counts as running: {app.counted}")
        counts: dict[AskGroup, int] = {}
        for ask in app.asks.values():
            if pace.is_over():
                yield
            if ask.group is not None:
                counts[ask.group] = counts.get(ask.group, 0) + 1
        for group in app.groups.values():
            count = counts.get(group, 0)
            _must(count == group.asks, f"{group} counts {group.asks} asks, has {count}")
        for group in app.groups.values():
            where = (group.parked_key is not None) + (group.ready_key is not None) + group.in_line
            _must(where + group.held <= 1, f"{group} is in more than one place")
        parked = sum(group.parked_key is not None for group in app.groups.values())
        _must(parked == app.parked, f"{app}: {app.parked} groups parked, not {parked}")


def _check_quotas(partition: Partition, pace: Pace) -> Steps:
    """Checks the counts that quotas limit."""
    pending = text = 0
    for app in partition.apps.values():
        text += text_bytes(app.tags)
        for ask in app.asks.values():
            if pace.is_over():
                yield
            pending += ask.pending
            text += text_bytes(ask.tags) * ask.pending
        for allocation in app.allocations.values():
            if pace.is_over():
                yield
            text += text_bytes(allocation.tags)
    for foreign in partition.foreign.values():
        if pace.is_over():
            yield
        text += text_bytes(foreign.tags)
    for node in partition.nodes.values():
        if pace.is_over():
            yield
        text += text_bytes(node.attributes)
    _must(partition.asks_pending == pending, f"{partition.asks_pending} allocations are asked for, not {pending}")
    _must(partition.text_bytes == text, f"{partition.text_bytes} bytes of tags and attributes, not {text}")
    users: dict[str, int] = {}
    for queue in partition.queues.values():
        for app in partition.apps_in(queue):
            if pace.is_over():
                yield
            users[app.user] = users.get(app.user, 0) + 1
    _must(partition.users == users, f"{partition.users} have applications, not {users}")


def _check_allocations(app: Application, pace: Pace) -> Steps:
    repeats = uuids = 0
    for key, allocation in app.allocations.items():
        if pace.is_over():
            yield
        _must(key == allocation.unique_key, f"{app}: {allocation.unique_key} is filed under {key}")
        if allocation.ordinal:
            repeats += 1
            repeat = app.repeats.get(allocation.key, {}).get(allocation.ordinal)
            _must(repeat is allocation, f"{app}: {key} is not found by its number")
        if allocation.uuid:
            uuids += 1
            _must(allocation in app.by_uuid.get(allocation.uuid, {}), f"{app}: {key} is not found by its UUID")
    _must(repeats == sum(map(len, app.repeats.values())), f"{app} remembers repeats that are gone")
    _must(uuids == sum(map(len, app.by_uuid.values())), f"{app} remembers UUIDs that are gone")


def _check_gangs(partition: Partition, pace: Pace) -> Steps:
    """Checks that every placeholder is accounted for, and that promises are the amounts that forming gangs have still
    to take.
    """
    promised: dict[tuple[str, str], dict[int, int]] = {}
    for app in partition.apps.values():
        gang = app.gang
        if gang is None:
            for allocation in app.allocations.values():
                if pace.is_over():
                    yield
                _must(not allocation.placeholder, f"{app} has placeholders and no gang")
            continue
        yield from _check_task_groups(partition, gang, pace)
        leaving: dict[str, dict[str, None]] = {}
        for key, allocation in app.allocations.items():
            if pace.is_over():
                yield
            if allocation.replaced_by is not None:
                _must(allocation.placeholder, f"{allocation} is replaced, and no placeholder")
            if allocation.replaced_by:
                leaving.setdefault(allocation.replaced_by, {})[key] = None
        _must(gang.replacing == leaving, f"{gang}: {gang.replacing} are replaced, should be {leaving}")
        for ask in app.asks.values():
            if pace.is_over():
                yield
            waits = ask in partition.gangs.reopened
            _must((ask.group is not None) == (ask.open > 0) or waits, f"{ask}: {ask.open} open, in {ask.group}")
        for ledger in app.bounds if gang.promised else ():
            whole = promised.setdefault((ledger.path, repr(ledger)), {})
            for number, value in gang.promised.items():
                whole[number] = whole.get(number, 0) + value
    ledgers: list[Ledger] = [*partition.queues.values(), *partition.limits]
    for ledger in ledgers:
        expected = promised.get((ledger.path, repr(ledger)), {})
        _must(ledger.promised == expected, f"{ledger}: {ledger.promised} promised, gangs wait for {expected}")
        for leaf, lines in partition.waiting.waiting_gangs.get(ledger, {}).items():
            _must(bool(lines), f"{ledger} keeps empty lines of gangs")
            for _, app in lines:
                waits_here = app.waiting_at is ledger and app.waits_whole and app.queue is leaf
                _must(waits_here, f"{app} waits elsewhere than at {ledger}")


def _proposed_on(partition: Partition, node: Node) -> Iterator[Ask]:
    return (check.ask for check in partition.checks.about_node(node) if check.booked is node)


def _check_questions(partition: Partition, pace: Pace) -> Steps:
    """Checks that each open question is for a living ask, about existing nodes, and that asks and nodes agree about
    refusals.
    """
    open_now = dict.fromkeys(partition.questions.open.values())
    for question, check in partition.questions.open.items():
        _must(not check.gone and question not in check.answers, f"question {question} of {check} is not open")
        _must(not check.ask.gone, f"{check} is for an ask that is gone")
    for check in open_now:
        for node in check.nodes.values():
            _must(
                check in partition.checks.of_nodes.get(node, ()) and not node.gone,
                f"{node} does not know that {check} is about it",
            )
        if check.holds_out:
            _must(check in partition.checks.of_asks.get(check.ask, ()), f"{check.ask} does not know of {check}")
    for node in partition.nodes.values():
        if pace.is_over():
            yield
        for check in partition.checks.about_node(node):
            _must(check in open_now, f"{node}: {check} is not open")
        for ask in node.refused_by:
            is_recorded = ask.refusals is not None and node.node_id in ask.refusals.nodes and not ask.gone
            _must(is_recorded, f"{node} is refused for {ask}, which does not know")
    for app in partition.apps.values():
        for ask in app.asks.values():
            if pace.is_over():
                yield
            for check in partition.checks.for_ask(ask):
                _must(check in open_now, f"{ask}: {check} is not open")
            stand = [check.asked for check in partition.checks.for_ask(ask)]
            _must(stand == (ask.asking or []), f"{ask}: its open questions are not those of its checks")
            _must(len(stand) <= ask.pending, f"{ask}: more is asked than is pending")
            for node_id in ask.refusals.nodes if ask.refusals is not None and partition.searching else ():
                node_ = partition.nodes.get(node_id)
                _must(node_ is None or ask in node_.refused_by, f"{node_} does not know that it is refused for {ask}")
            apart = ask.group is None or ask.group.apart == ask.apart
            _must(apart, f"{ask} and its group differ about standing apart")


def _check_task_groups(partition: Partition, gang: Gang, pace: Pace) -> Steps:
    app = gang.app
    counts = dict.fromkeys(gang.groups, 0)
    pending = dict.fromkeys(gang.groups, 0)
    placed: dict[int, int] = {}
    sums: dict[int, int] = {}
    for allocation in app.allocations.values():
        if pace.is_over():
            yield
        if not allocation.placeholder:
            continue
        counts[allocation.task_group] += 1
        for number, value in allocation.shape.items:
            sums[number] = sums.get(number, 0) + value
        free = gang.groups[allocation.task_group].free
        taken = allocation.releasing or allocation in partition.checks.of_placeholders
        _must((allocation in free) != taken, f"{allocation} is released and free, or neither")
        if allocation.preempted is None and not allocation.timed_out:
            for number, value in allocation.shape.items:
                placed[number] = placed.get(number, 0) + value
    for ask in app.asks.values():
        if pace.is_over():
            yield
        if ask.demand.placeholder:
            pending[ask.demand.task_group] += ask.pending
    for name, group in gang.groups.items():
        _must(group.held == counts[name], f"{group} of {app} holds {group.held}, counted {counts[name]}")
        _must(group.pending == pending[name], f"{group} of {app} has {group.pending} pending, counted {pending[name]}")
        whole = group.pending + group.held + group.replaced + group.timed_out + group.lost
        _must(group.asked == whole, f"{group} of {app}: {group.asked} asked for, {whole} accounted for")
    _must(
        {number: value for number, value in gang.taken.items() if value} == sums,
        f"{gang}: {gang.taken} taken, its placeholders sum to {sums}",
    )
    requested: dict[int, int] = {}
    for ask in app.asks.values():
        for number, value in ask.shape.items if ask.demand.placeholder and ask.pending else ():
            requested[number] = requested.get(number, 0) + value * ask.pending
    _must(
        {number: value for number, value in gang.pending.items() if value} == requested,
        f"{gang}: {gang.pending} pending, its asks sum to {requested}",
    )
    _must(
        {number: value for number, value in gang.placed.items() if value} == placed,
        f"{gang}: {gang.placed} placed, its placeholders sum to {placed}",
    )


def _check_turns(partition: Partition) -> None:
    turns = partition.questions.turns
    problem = turns.problem()
    _must(not problem, problem)
    for app in partition.apps.values():
        for group in app.groups.values():
            _must(not group.in_line or turns.is_queued(group), f"{group} is not in its line")


def _check_reasons(partition: Partition) -> None:
    turns = partition.questions.turns
    stopped = turns.stopped
    for app in partition.apps.values():
        waits = stopped or app.reason is None or app.waiting_at is not None
        _must(waits, f"{app} has a reason not to run, but does not wait")
        for ask in app.asks.values():
            waits = turns.is_blocked(ask)
            _must(waits or ask_reason(ask) is not None, f"{app}: ask {ask.key} is pending without a reason")
    if stopped:
        is_waiting = turns.one.open or partition.questions.is_at_limit or not partition.root.ready
        _must(bool(is_waiting), f"{partition.root} has something ready, and no answer that it waits for")
        return
    for queue in partition.queues.values():
        _must(not queue.ready and not queue.ready_apps, f"{queue} has something ready after an exhausted cycle")
        for waitlist in queue.waitlists.values():
            _must(
                bool(waitlist.groups) and waitlist.wait_point is not None,
                f"{waitlist} is kept, but no group waits on it",
            )
            _must(
                waitlist.is_blocked and waitlist.relay is None,
                f"{waitlist} waits for one of its bench that is not tried",
            )
