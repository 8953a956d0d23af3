"""The auditor of a run: it stands outside, and shares nothing with the scheduler but the messages' forms.

Each law is a function from the evidence of one RM to findings. README.md beside this folder lists the laws.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.storm.evidence import Event, Evidence, Heard, row_of
from chaos.storm.workload import SOURCE, allows
from event_books import ASKED, BY_USER, CAPACITY, HELD, KEPT, ON_NODE, EventBooks, Shown, UnevenBooks, ancestry
from muster_proto.muster.bus.v1 import envelope_pb2
from muster_proto.si.v1 import si_pb2 as si

_E = si.EventRecord
_SHOWN = 12  # records that a finding shows at most
# What an RM heard, and the item that it was. (It notes apart what it reported itself.)
_ANSWERS = {"new": "new", "adopted": "new", "released": "released", "rejected": "rejected", "given up": "rejected"}
_OVER = {"Completed", "Failed", "Expired", "Rejected"}


@dataclass(slots=True)
class Finding:
    """Something that is wrong.

    :param at_ns: the time of the record that shows it; 0: it concerns the end.
    :param at_s: the same from the begin of the run, if it is known so; negative: not.
    """

    law: str
    rm_id: str
    what: str
    records: list[str] = field(default_factory=list)
    at_ns: int = 0
    at_s: float = -1.0


def audit(evidence: Evidence) -> list[Finding]:
    """Returns what is wrong; nothing if all is well."""
    found: list[Finding] = []
    for law in LAWS:
        found += law(evidence)
    return found


# ---- numbers --------------------------------------------------------------------------------------------------------


def event_ids_are_whole(evidence: Evidence) -> Iterator[Finding]:
    """Ids of events are 0, 1, 2 … in the topic's order."""
    for place, event in enumerate(evidence.events):
        if event.id != place:
            around = evidence.events[max(0, place - 3) : place + 3]
            what = f"at place {place} is event {event.id}, expected {place}"
            yield Finding("event ids", evidence.rm_id, what, [_line(e) for e in around], event.record.timestampNano)
            return


def responses_are_whole(evidence: Evidence) -> Iterator[Finding]:
    """Numbers of responses are 1, 2, 3 … in the topic's order."""
    numbers = [each.sequence for each in _numbered(evidence)]
    for place, number in enumerate(numbers, start=1):
        if number != place:
            what = f"at place {place} is response {number}, expected {place}"
            yield Finding("response numbers", evidence.rm_id, what, [str(numbers[max(0, place - 4) : place + 3])])
            return


# ---- what the RM heard ----------------------------------------------------------------------------------------------


def heard_is_what_was_answered(evidence: Evidence) -> Iterator[Finding]:
    """The RM heard each item on the log once, and nothing else but the gateway's own rejections.

    What stood on the log before the RM registered again it need not have heard: it dropped all that it was about.
    """
    said: Counter[tuple[str, str, str]] = Counter()
    dropped: Counter[tuple[str, str, str]] = Counter()
    for envelope in evidence.responses:
        if envelope.HasField("registration") and envelope.registration.accepted:
            dropped = Counter(said)
        if envelope.HasField("registration") or not envelope.sequence:
            continue
        if envelope.stream == envelope_pb2.STREAM_ALLOCATION:
            response = si.AllocationResponse.FromString(envelope.response)
            said.update(("new", each.applicationID, each.allocationKey) for each in response.new)
            said.update(("released", each.applicationID, each.allocationKey) for each in response.released)
            said.update(("rejected", each.applicationID, each.allocationKey) for each in response.rejectedAllocations)
            said.update(("rejected", each.applicationID, each.allocationKey) for each in response.rejected)
    heard = Counter((_ANSWERS[each.what], each.app, each.key) for each in evidence.heard if each.what in _ANSWERS)
    for missed, count in (said - heard - dropped).items():
        what = f"{missed} stands on the log {count} times more than the RM heard it"
        yield _about(evidence, "heard", missed[2], what)
    for extra, count in (heard - said).items():
        if extra[0] != "rejected":
            yield _about(evidence, "heard", extra[2], f"the RM heard {extra} {count} times more than the log has it")


def each_ask_has_one_answer(evidence: Evidence) -> Iterator[Finding]:
    """Each ask is allocated once, or rejected once, or pending and shown so, or ended by its RM or its gang's time."""
    heard: dict[str, list[Heard]] = defaultdict(list)
    for each in evidence.heard:
        heard[each.key].append(each)
    asks, events = evidence.asks_in_state(), _asks_by_events(evidence.events)
    allocated = {(each.demand.application_id, each.demand.allocation_key) for each in evidence.allocations_in_state()}
    for key, asked in evidence.asked.items():
        name, answers = (asked.app, key), Counter(each.what for each in heard[key])
        pending = name in asks and asks[name].pending > 0
        made, refused, ended = answers["new"], answers["rejected"], answers["released"] + answers["given up"]
        if made + refused > 1:
            what = f"{key} of {asked.app}: allocated {made}, rejected {refused} times"
            yield _about(evidence, "one answer", key, what)
        if pending and made + refused:
            yield _about(evidence, "one answer", key, f"{key} of {asked.app} was answered, and is pending")
        if pending and evidence.shown_pending is not None and name not in evidence.shown_pending:
            yield _about(evidence, "one answer", key, f"{key} of {asked.app} is pending, and the view does not show it")
        if made and not ended and name not in allocated:
            removed = asked.app in evidence.removed
            if not removed and not asked.dropped:
                yield _about(evidence, "one answer", key, f"{key} of {asked.app} runs for the RM, and has no record")
        if made + refused == 0 and not pending and not ended and not asked.dropped:
            if not events[name]:
                yield _about(evidence, "one answer", key, f"{key} of {asked.app} was never answered, and has no event")
            elif not (asked.released or asked.app in evidence.removed or asked.app.startswith("gang")):
                yield _about(evidence, "one answer", key, f"{key} of {asked.app} is gone without an answer")
    if evidence.shown_pending is not None:
        for name in sorted(evidence.shown_pending - {name for name, ask in asks.items() if ask.pending > 0}):
            yield _about(evidence, "one answer", name[1], f"{name}: the view shows it as pending, and it is not")


def what_runs_for_the_rm_runs(evidence: Evidence) -> Iterator[Finding]:
    """The RM's own list of what runs is that of the state."""
    state = {
        each.demand.allocation_key: (each.demand.application_id, each.node_id)
        for each in evidence.allocations_in_state()
        if not each.foreign and not each.told_ns
    }
    mine = {key: name for key, name in evidence.running.items() if name[0] not in evidence.removed}
    for key in sorted({*state, *mine}):
        if state.get(key) != mine.get(key):
            yield _about(evidence, "running", key, f"{key}: state has {state.get(key)}, the RM {mine.get(key)}")


def nodes_are_those_of_the_rm(evidence: Evidence) -> Iterator[Finding]:
    """The state has the RM's nodes, as it reported them last; VMs are those of the source."""
    state = {
        name: (each.capacity.values.get("vcore", 0) // 1000, not each.schedulable)
        for name, each in evidence.nodes_in_state().items()
        if not each.sources
    }
    reported = {name: (cores, name in evidence.drained) for name, cores in evidence.nodes.items()}
    for name in sorted({*state, *reported}):
        if state.get(name) != reported.get(name):
            what = f"{name}: (cores, drained) in the state {state.get(name)}, of the RM {reported.get(name)}"
            yield _about(evidence, "nodes", name, what)
    if evidence.vms is not None:
        vms = {
            each.demand.allocation_key.removeprefix(f"{SOURCE}/"): each.node_id
            for each in evidence.allocations_in_state()
            if each.source == SOURCE
        }
        for name in sorted({*vms, *evidence.vms}):
            if vms.get(name) != evidence.vms.get(name):
                what = f"{name}: state has it on {vms.get(name)}, the source on {evidence.vms.get(name)}"
                yield _about(evidence, "source", name, what)


def the_configuration_is_the_last_one(evidence: Evidence) -> Iterator[Finding]:
    """An answered configuration is in force."""
    if evidence.config is not None and evidence.configuration_in_state() != evidence.config:
        what = f"in force is {evidence.configuration_in_state()!r}, answered was {evidence.config!r}"
        yield Finding("configuration", evidence.rm_id, what)


def nothing_is_where_the_rm_refuses_it(evidence: Evidence) -> Iterator[Finding]:
    """An RM that is asked has each allocation on a node that its predicate allows."""
    if evidence.is_asked:
        for each in evidence.heard:
            if each.what == "new" and not allows(each.key, each.more):
                yield _about(evidence, "predicates", each.key, f"{each.key} is on {each.more}, which the RM refused")


# ---- limits, and sums -----------------------------------------------------------------------------------------------


class LimitBooks(EventBooks):
    """The ledger of events, and at each allocation the limits of its node, its queues and its user."""

    def __init__(self) -> None:
        super().__init__()
        self.over: list[str] = []  # by the last event
        self.places: dict[tuple[str, str], list[str]] = defaultdict(list)  # nodes of (application, key)
        self._used: dict[str, Counter[str]] = defaultdict(Counter)  # by queue
        self._by_user: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # by (user, queue)
        self._max: dict[str, Mapping[str, int]] = {}
        self._limits: dict[tuple[str, str], Mapping[str, int]] = {}  # by (user, queue)
        self._queue_of: dict[str, str] = {}
        self._freed: dict[tuple[str, str], Mapping[str, int]] = {}  # what a replaced placeholder left to its ask
        self._is_excused = False
        self._app = ""

    def take(self, kind: int, change: int, detail: int, about: str, reference: str, amounts: Mapping[str, int]) -> None:
        super().take(kind, change, detail, about, reference, amounts)
        self.over = []
        sign = 1 if change == _E.ADD else -1 if change == _E.REMOVE else 0
        if kind == _E.QUEUE:
            self._take_queue(change, detail, about, reference, amounts)
        elif kind == _E.APP and (detail == _E.APP_ALLOC or (sign < 0 and 500 <= detail <= 504)):
            self._app = about
            for path in ancestry(self._queue_of.get(about, "")):
                _add(self._used[path], amounts, sign)
            if detail == _E.APP_ALLOC:
                freed = self._freed.pop((about, reference), None)
                self._is_excused = freed is not None and all(
                    value <= freed.get(name, 0) for name, value in amounts.items()
                )
                if not self._is_excused:
                    self._check_queues(about, amounts)
        elif kind == _E.NODE and detail == _E.NODE_ALLOC:
            if sign > 0:
                self.places[self._app, reference].append(about)
                self._check_node(about, amounts)
            else:
                self.places[self._app, reference].remove(about)
        elif kind == _E.USERGROUP:
            self._take_user(change, detail, about, reference, amounts, sign)

    def replaced(self, app: str, placeholder_by: str, amounts: Mapping[str, int]) -> None:
        """A placeholder ends for a real ask, which takes its room whatever the limits are now."""
        self._freed[app, placeholder_by] = amounts

    def _take_queue(self, change: int, detail: int, path: str, app: str, amounts: Mapping[str, int]) -> None:
        if detail == _E.QUEUE_MAX:
            self._max[path] = dict(amounts)
        elif detail in (_E.DETAILS_NONE, _E.QUEUE_DYNAMIC) and change == _E.REMOVE:
            self._max.pop(path, None)
        elif detail == _E.QUEUE_APP and change == _E.ADD:
            self._queue_of[app] = path

    def _take_user(self, change: int, detail: int, user: str, path: str, amounts: Mapping[str, int], sign: int) -> None:
        if detail == _E.UG_USER_LIMIT:
            if change == _E.REMOVE:
                self._limits.pop((user, path), None)
            else:
                self._limits[user, path] = dict(amounts)
        elif detail == _E.UG_USER_RESOURCE:
            for above in ancestry(path):
                _add(self._by_user[user, above], amounts, sign)
                limit = self._limits.get((user, above), self._limits.get(("*", above)))
                if sign > 0 and limit is not None and not self._is_excused:
                    self._compare(f"user {user} in {above}", self._by_user[user, above], limit, amounts)

    def _check_queues(self, app: str, amounts: Mapping[str, int]) -> None:
        for path in ancestry(self._queue_of.get(app, "")):
            if path in self._max:
                self._compare(f"queue {path}", self._used[path], self._max[path], amounts)

    def _check_node(self, node: str, amounts: Mapping[str, int]) -> None:
        if node not in self.figures[CAPACITY]:
            self.over.append(f"node {node} is not there")
            return
        used = Counter(self.figures[ON_NODE].get(node, Counter()))
        used.update(self.occupied.get(node, {}))
        capacity = self.figures[CAPACITY][node]
        self._compare(f"node {node}", used, {name: capacity.get(name, 0) for name in amounts}, amounts)

    def _compare(
        self, what: str, used: Mapping[str, int], limit: Mapping[str, int], amounts: Mapping[str, int]
    ) -> None:
        for name, value in amounts.items():
            if value and name in limit and used.get(name, 0) > limit[name]:
                self.over.append(f"{what} has {used[name]} of {limit[name]} {name}")


def nothing_goes_over_a_limit(evidence: Evidence) -> Iterator[Finding]:
    """At each allocation, its node, queues and user are within their limits; and sums of events are those of the
    state and of the view.
    """
    books = LimitBooks()
    is_reported = False
    for place, event in enumerate(evidence.events):
        record = event.record
        detail = record.eventChangeDetail
        if record.type == _E.APP and detail == _E.APP_REQUEST:
            is_reported = record.message == "reported as an allocation"
        if record.type == _E.APP and detail == _E.ALLOC_REPLACED and record.message.startswith("replaced by "):
            books.replaced(record.objectID, record.message.removeprefix("replaced by "), _amounts(record))
        try:
            books.take_record(record)
        except UnevenBooks as error:
            around = [_line(each) for each in evidence.events[max(0, place - _SHOWN) : place + 2]]
            yield Finding("sums", evidence.rm_id, f"at event {event.id}: {error}", around, record.timestampNano)
            return
        if books.over and not is_reported:
            around = [_line(each) for each in evidence.events[max(0, place - _SHOWN) : place + 2]]
            what = f"at event {event.id}: {'; '.join(books.over)}"
            yield Finding("limits", evidence.rm_id, what, around, record.timestampNano)
    yield from _same_as_state(evidence, books)


def _same_as_state(evidence: Evidence, books: LimitBooks) -> Iterator[Finding]:
    try:
        books.compare(shown_by_state(evidence))
    except UnevenBooks as error:
        yield Finding("recount", evidence.rm_id, f"si.state: {error}")
    state = {
        (each.demand.application_id, each.demand.allocation_key): [each.node_id]
        for each in evidence.allocations_in_state()
        if not each.foreign
    }
    counted = {name: nodes for name, nodes in books.places.items() if nodes}
    for name in sorted({*state, *counted}):
        if state.get(name) != counted.get(name):
            what = f"{name}: si.state has it on {state.get(name)}, the events on {counted.get(name)}"
            yield _about(evidence, "recount", name[1], what)
    if evidence.shown is not None:
        try:
            books.compare(evidence.shown)
        except UnevenBooks as error:
            yield Finding("view", evidence.rm_id, f"the view: {error}")


def shown_by_state(evidence: Evidence) -> Shown:
    """The figures of the ledger, counted from the objects of si.state."""
    shown = Shown()
    apps = {name: each for name, each in evidence.applications_in_state().items() if each.state not in _OVER}
    for name, app in apps.items():
        shown.members[app.queue, name] += 1
    for node_id, node in evidence.nodes_in_state().items():
        shown.add(CAPACITY, node_id, node.capacity.values)
        shown.occupied[node_id] = Counter(dict(node.occupied.values))
    queues: dict[str, tuple[Counter[str], Counter[str]]] = defaultdict(lambda: (Counter(), Counter()))
    for ask in evidence.asks_in_state().values():
        app_id = ask.demand.application_id
        wanted = {name: value * ask.pending for name, value in ask.demand.resource.values.items()}
        shown.add(ASKED, app_id, wanted)
        if ask.reserved_node:
            shown.add(KEPT, ask.reserved_node, ask.demand.resource.values)
        for path in ancestry(apps[app_id].queue if app_id in apps else ""):
            queues[path][1].update(wanted)
    for each in evidence.allocations_in_state():
        app_id, amounts = each.demand.application_id, dict(each.demand.resource.values)
        if each.foreign:
            _add(shown.occupied.setdefault(each.node_id, Counter()), amounts, 1)
            continue
        shown.add(ON_NODE, each.node_id, amounts)
        shown.add(HELD, app_id, amounts)
        if app_id in apps:
            shown.add(BY_USER, (apps[app_id].user, apps[app_id].queue), amounts)
            for path in ancestry(apps[app_id].queue):
                queues[path][0].update(amounts)
    shown.queues = dict(queues)
    return shown


def history_is_complete(evidence: Evidence) -> Iterator[Finding]:
    """PostgreSQL has each event of the topic once, as it is there."""
    rows: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for number, row in evidence.history:
        rows[number].append(row)
    for event in evidence.events:
        found = rows.pop(event.id, [])
        if found != [row_of(event.record)]:
            what = f"event {event.id}: history has {found or 'nothing'}"
            yield Finding("history", evidence.rm_id, what, [_line(event)], event.record.timestampNano)
    for number, found in sorted(rows.items()):
        yield Finding("history", evidence.rm_id, f"event {number} is not on the topic, and history has {found}")


def nothing_was_unreadable(evidence: Evidence) -> Iterator[Finding]:
    """No record went to the dead letters."""
    if evidence.dead_letters:
        yield Finding("dead letters", evidence.rm_id, "records could not be read", evidence.dead_letters[:_SHOWN])


LAWS: tuple[Callable[[Evidence], Iterable[Finding]], ...] = (
    event_ids_are_whole,
    responses_are_whole,
    heard_is_what_was_answered,
    each_ask_has_one_answer,
    what_runs_for_the_rm_runs,
    nodes_are_those_of_the_rm,
    the_configuration_is_the_last_one,
    nothing_is_where_the_rm_refuses_it,
    nothing_goes_over_a_limit,
    history_is_complete,
    nothing_was_unreadable,
)


# ---- parts ----------------------------------------------------------------------------------------------------------


def _numbered(evidence: Evidence) -> list[envelope_pb2.ResponseEnvelope]:
    return [each for each in evidence.responses if not each.HasField("registration") and each.sequence]


def _asks_by_events(events: Iterable[Event]) -> Counter[tuple[str, str]]:
    """How many events each (application, ask) has."""
    return Counter((each.record.objectID, each.record.referenceID) for each in events if each.record.type == _E.APP)


def _amounts(record: si.EventRecord) -> dict[str, int]:
    return {name: quantity.value for name, quantity in record.resource.resources.items()}


def _add(sums: Counter[str], amounts: Mapping[str, int], sign: int) -> None:
    for name, value in amounts.items():
        sums[name] += sign * value


def _line(event: Event) -> str:
    record = event.record
    words = (
        _E.Type.Name(record.type),
        _E.ChangeType.Name(record.eventChangeType),
        _E.ChangeDetail.Name(record.eventChangeDetail),
    )
    return f"event {event.id} @{event.offset} {' '.join(words)} {record.objectID} {record.referenceID} {_amounts(record)} {record.message}"  # noqa: E501


def _about(evidence: Evidence, law: str, key: str, what: str) -> Finding:
    """A finding with all that is known of a key."""
    heard = [each for each in evidence.heard if each.key == key]
    asked = evidence.asked.get(key)
    records = [f"asked {asked}"] if asked else []
    records += [f"heard {each}" for each in heard]
    about = [each for each in evidence.events if key in (each.record.referenceID, each.record.objectID)]
    records += [_line(each) for each in about]
    finding = Finding(law, evidence.rm_id, what, records[: 3 * _SHOWN])
    if about:
        finding.at_ns = about[-1].record.timestampNano
    if heard or asked:
        finding.at_s = heard[-1].at_s if heard else asked.at_s if asked else -1.0
    return finding
