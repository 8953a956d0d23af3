"""The laws of lives with other managers: what may be decided with what was told, and what must be on record.

The auditor hears every word that goes in and reads what comes out as others do: answers to the RM, events, records. It
asks the core nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from muster_bus.log import OutRecord
from muster_bus.topics import parse_state_key
from muster_core.external.model import ExternalKind, ExternalOffer, SourceState
from muster_core.model.commands import Command, NodeAction, UpdateAllocations, UpdateNodes
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.bus.v1 import state_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_state import external_codec as codec
from simulation import external_wire as wire
from simulation.books import Amounts, must
from simulation.external_books import OVER, Books, Effective, Held, Name, Wanted, levels, required
from simulation.external_world import POOLS, covers, minus

TOLD_TO_GO = ("PREEMPTED_BY_SCHEDULER", "TIMEOUT", "PLACEHOLDER_REPLACED")


class Laws:
    """Beside one life.

    :param alone: asks wait for room only, and not for gangs or an RM's answers too.
    :ivar placed: called with each container that was placed, once it is in the books.
    :ivar now_ns: the time.
    :ivar gate: (life, sources) that must have passed before anything is decided.
    """

    def __init__(self, books: Books, tally: Counter[str], *, alone: bool = True) -> None:
        self.books = books
        self.tally = tally
        self._alone = alone
        self.placed: Callable[[Held], None] = lambda held: None
        self.gate: tuple[str, tuple[str, ...]] = ("", ())
        self.records: dict[str, dict[tuple[str, ...], bytes]] = {}
        self._must_end: list[Held] = []
        self._answers: Counter[tuple[str, bool]] = Counter()
        # Asks that a command of this step took back: an earlier one of the step may have placed them.
        self._withdrawn: dict[Name, Wanted] = {}
        # Releases in this message complete swaps at once. Before each later command of it: by node, the room for
        # containers.
        self._swaps = False
        self._earlier: list[dict[str, Amounts]] = []
        self._disputes: dict[str, dict[str, dict[str, int]]] = {}
        self.now_ns = 0
        # When an offer was last seen to be needed, or came.
        self._needed_ns: dict[tuple[str, str], int] = {}

    # ---- what goes in ----------------------------------------------------------------------------------------------

    def taken(self, command: Command) -> None:
        books = self.books
        before, wanted = books.nodes(), dict(books.wanted)
        if self._swaps:
            self._earlier.append({node_id: self._room(node_id, node) for node_id, node in before.items()})
        self._swaps = self._swaps or (isinstance(command, UpdateAllocations) and bool(command.releases))
        answers = books.take(command)
        self._withdrawn |= {name: each for name, each in wanted.items() if name not in books.wanted}
        self._answers.update(answers)
        after = books.nodes()
        gone = [node_id for node_id in before if node_id not in after]
        if isinstance(command, UpdateNodes):
            taken = [item for item, (_, accepted) in zip(command.nodes, answers, strict=True) if accepted]
            gone += [item.node_id for item in taken if item.action is NodeAction.DECOMISSION]
        self.tally["node: gone with its source"] += any(not isinstance(command, UpdateNodes) for _ in gone)
        self._must_end += [held for held in books.held.values() if held.node_id in gone]

    def registered(self) -> None:
        """Starts the RM anew: it reports all its nodes."""
        self._must_end.clear()
        self._disputes.clear()

    # ---- what comes out --------------------------------------------------------------------------------------------

    def heard(self, outputs: list[OutRecord]) -> None:
        for output in outputs:
            if output.topic == wire.TOPICS.state:
                self._record(output)
        for output in outputs:
            must(output.topic != wire.TOPICS.dead_letters, "dead letter", f"{output.headers}")
            if output.topic == wire.TOPICS.responses:
                envelope = pb.ResponseEnvelope.FromString(output.value or b"")
                if envelope.stream:
                    self._answer(wire.answers(envelope))
        for held in self._must_end:
            still = self.books.held.get((held.app_id, held.key)) is held
            must(not still, "ended", f"{held}: its node is gone, and the RM was not told that it ended")
        self._must_end.clear()
        wrong = {name: count for name, count in self._answers.items() if count}
        must(not wrong, "answer", f"of nodes, accepted or not: {wrong}")
        self._answers.clear()
        self._withdrawn.clear()
        self._swaps = False
        self._earlier.clear()
        self.check_records()
        self._check_disputes(outputs)

    def _record(self, output: OutRecord) -> None:
        assert output.key is not None
        _, kind, parts = parse_state_key(output.key)
        known = self.records.setdefault(kind, {})
        if output.value is None:
            must(known.pop(parts, None) is not None, "record", f"tombstone of what was never written: {output.key!r}")
            return
        known[parts] = output.value

    def _answer(self, answer: wire.Said) -> None:
        books = self.books
        match answer:
            case si.NodeResponse():
                self._answers.subtract((each.nodeID, True) for each in answer.accepted)
                self._answers.subtract((each.nodeID, False) for each in answer.rejected)
            case si.ApplicationResponse():
                for new in answer.accepted:
                    must(new.applicationID in books.apps, "told", f"{new.applicationID} is not the RM's, or is gone")
                for rejected in answer.rejected:
                    books.apps.pop(rejected.applicationID, None)
                for each in answer.updated:
                    if each.state in OVER:
                        books.apps.pop(each.applicationID, None)
                        for name in [name for name in books.wanted if name[0] == each.applicationID]:
                            del books.wanted[name]
            case si.AllocationResponse():
                for allocation in answer.new:
                    self._new(allocation)
                for released in answer.released:
                    self._released(released)
                for refused in answer.rejectedAllocations:
                    name = (refused.applicationID, refused.allocationKey)
                    books.wanted.pop(name, None)
                    books.reported.pop(name, None)
                    if not refused.applicationID:
                        books.foreign.pop(refused.allocationKey, None)

    def _new(self, new: si.Allocation) -> None:
        books = self.books
        name = (new.applicationID, new.allocationKey)
        if not new.applicationID:
            must(new.allocationKey in books.pods, "told", f"{new.allocationKey} is none that the RM reported")
            return
        must(name not in books.held, "twice", f"{name} is held already")
        held = Held(*name, new.nodeID, wire.amounts(new.resourcePerAlloc), new.priority)
        held.task_group, held.placeholder = new.taskGroupName, new.placeholder
        echo = books.reported.pop(name, None)
        if echo is not None:
            held.adopted, held.required_node = True, required(echo)
            books.wanted.pop(name, None)
            books.held[name] = held
            return
        wanted = books.wanted.pop(name, None) or self._withdrawn.get(name)
        must(wanted is not None, "told", f"{held} was not asked for")
        assert wanted is not None
        must(wanted.quantities == held.quantities, "told", f"{held} is not as asked: {wanted.quantities}")
        held.required_node = wanted.required_node
        self._check_gate()
        takes_place = not held.placeholder and books.places[held.app_id, held.task_group] > 0
        books.places[held.app_id, held.task_group] -= takes_place
        outdated = takes_place and self._was_first(held)
        if not outdated:
            self._check_room(held, takes_place=takes_place)
        # (What a placeholder had counts for it, whatever became of the limit. And the application may have left since.)
        if not takes_place and name not in self._withdrawn:
            self._check_limits(held)
        self._check_pools(held)
        books.held[name] = held
        self.tally["allocations"] += 1
        if not outdated:
            self.placed(held)

    def _released(self, released: si.AllocationRelease) -> None:
        books = self.books
        name = (released.applicationID, released.allocationKey)
        held = books.held.get(name)
        kind = si.TerminationType.Name(released.terminationType)
        if held is None and kind == "TIMEOUT" and books.wanted.pop(name, None) is not None:
            return  # a placeholder that was not placed in time
        if kind in TOLD_TO_GO:
            must(held is not None, "told", f"{name} is told to go ({kind}), and is not the RM's")
            assert held is not None
            held.told = kind
            self.tally[f"told to go: {released.message.split()[0] if released.message else kind}"] += 1
            return
        if held is not None:
            del books.held[name]
        elif not self._alone:
            books.wanted.pop(name, None)

    # ---- laws of a placement ---------------------------------------------------------------------------------------

    def _check_gate(self) -> None:
        """Fails unless each source has synced, or was given up, in this life of the informers."""
        life, names = self.gate
        for name in names:
            source = self.books.sources.get(name)
            passed = source is not None and source.life == life and source.state is not SourceState.LISTING
            must(passed, "gate", f"something is decided before {name} was heard of in {life}")

    def _room(self, node_id: str, node: Effective) -> Amounts:
        return minus(minus(node.capacity, node.occupied), self.books.others(node_id))

    def _was_first(self, held: Held) -> bool:
        """Whether it had room until a later command of the same message took that: a swap ends when the placeholder's
        release is taken, before the rest of the message is.
        """
        wants = {name: value for name, value in held.quantities.items() if name not in POOLS}
        used = self.books.containers(held.node_id)
        node = self.books.effective(held.node_id)
        if node is not None and covers(minus(self._room(held.node_id, node), used), wants):
            return False
        rooms = [each[held.node_id] for each in self._earlier if held.node_id in each]
        return any(covers(minus(room, used), wants) for room in rooms)

    def _check_room(self, held: Held, *, takes_place: bool) -> None:
        books = self.books
        node = books.effective(held.node_id)
        must(node is not None, "node", f"{held}: there is no such node")
        assert node is not None
        if held.required_node:
            must(held.node_id == held.required_node, "node", f"{held}, must be on {held.required_node}")
        elif not takes_place:  # (a swap that was told before goes on)
            must(node.schedulable, "unschedulable", f"{held}: the node takes nothing new")
        free = minus(self._room(held.node_id, node), books.containers(held.node_id))
        wants = {name: value for name, value in held.quantities.items() if name not in POOLS}
        if not covers(free, wants):
            offers = [each for _, _, offers, _ in books.parts(held.node_id) for each in offers]
            check = "offer" if offers else "over-commit"
            must(False, check, f"{held}: {free} is free of {node}, with VMs {books.others(held.node_id)}")

    def _check_limits(self, held: Held) -> None:
        books = self.books
        app = books.apps.get(held.app_id)
        must(app is not None, "told", f"{held}: of an application that is gone")
        assert app is not None
        for path in levels(app.queue):
            most, used = books.maximum_of(path), books.used_in(path)
            for name, value in held.quantities.items():
                room = most.get(name, used.get(name, 0) + value) - used.get(name, 0)
                must(value <= room, "queue", f"{held}: {used} of {most} are used in {path}")

    def _check_pools(self, held: Held) -> None:
        books = self.books
        for name in POOLS:
            wants = held.quantities.get(name, 0)
            if wants:
                size = books.pool(name)
                must(size is not None, "pool", f"{held}: there is no pool {name}")
                assert size is not None
                must(books.used_of(name) + wants <= size, "pool", f"{held}: {books.used_of(name)} of {size} are used")
                self.tally["pool: used"] += 1

    # ---- laws of records -------------------------------------------------------------------------------------------

    def check_records(self) -> None:
        """Fails unless the records have all reports and their merged values."""
        books = self.books
        self._check_said()
        for node_id in dict.fromkeys(held.node_id for held in books.held.values()):
            lent = books.lent(node_id)
            if lent is not None:
                # (What the RM reports is there, whatever became of the offer before it registered again.)
                runs = books.containers(node_id, adopted=False)
                runs = {name: value for name, value in runs.items() if name not in POOLS}
                must(covers(lent, runs), "offer", f"{runs} runs on {node_id}, and {lent} is lent")
                for source, _, offers, _ in books.parts(node_id):
                    for offer in offers:
                        if not covers(minus(lent, offer.quantities), runs):
                            self._needed_ns[source.name, offer.offer_id] = self.now_ns
        nodes = books.nodes()
        recorded = {parts[1]: value for parts, value in self.records.get("node", {}).items()}
        if not self.records.get("reg"):
            return
        must(
            nodes.keys() == recorded.keys(),
            "node record",
            f"on record are {sorted(recorded)}, there are {sorted(nodes)}",
        )
        for node_id, node in nodes.items():
            self._check_node(node_id, node, state_pb2.NodeObject.FromString(recorded[node_id]))

    def _check_node(self, node_id: str, node: Effective, recorded: state_pb2.NodeObject) -> None:
        is_so = Effective(
            nonzero(recorded.capacity),
            nonzero(recorded.occupied),
            recorded.schedulable,
            dict(recorded.attributes),
            sorted(recorded.sources),
        )
        must(is_so.capacity == node.capacity, "merge", f"{node_id}: {is_so.capacity}, should be {node.capacity}")
        must(is_so.occupied == node.occupied, "merge", f"{node_id}: occupied {is_so.occupied}, not {node.occupied}")
        must(is_so.schedulable == node.schedulable, "merge", f"{node_id}: schedulable {is_so.schedulable}")
        must(is_so.attributes == node.attributes, "merge", f"{node_id}: {is_so.attributes}, not {node.attributes}")
        self.tally["node: with a source"] += bool(node.sources)
        self.tally["node: the RM's, with a source"] += bool(node.sources) and node_id in self.books.rm_nodes
        trusted = all(trusts for _, _, _, trusts in self.books.parts(node_id))
        self.tally["node: held back, a source is lost"] += not trusted

    def _check_disputes(self, outputs: list[OutRecord]) -> None:
        """Fails unless an event names both amounts, for each difference between two reporters of a node."""
        if not self.records.get("reg"):
            return
        told: dict[str, list[str]] = {}
        for output in outputs:
            if output.topic == wire.TOPICS.events:
                event = si.EventRecord.FromString(output.value or b"")
                if event.type == si.EventRecord.NODE and event.message:
                    told.setdefault(event.objectID, []).append(event.message)
        before, self._disputes = self._disputes, {}
        for node_id in self.books.nodes():
            self._disputes[node_id] = disputes = self.books.disputes(node_id)
            if not disputes or disputes == before.get(node_id):
                continue
            self.tally["node: its capacity is disputed"] += 1
            words = [
                f"{f'source {who}' if who else 'the resource manager'} says {value}"
                for said in disputes.values()
                for who, value in said.items()
            ]
            whole = any(all(word in message for word in words) for message in told.get(node_id, ()))
            must(whole, "dispute", f"{node_id}: {disputes}, and what is told is {told.get(node_id)}")

    def _check_said(self) -> None:
        books = self.books
        recorded = {parts[1]: value for parts, value in self.records.get("source", {}).items()}
        must(recorded.keys() == books.sources.keys(), "source record", f"{sorted(recorded)}")
        for name, value in recorded.items():
            is_so, source = state_pb2.SourceObject.FromString(value), books.sources[name]
            said = (is_so.state, is_so.life, is_so.drains, is_so.reason)
            want = (source.state.value, source.life, source.drains, source.reason)
            must(said == want, "source record", f"{name}: {said}, should be {want}")
        objects = {
            (name, kind.value, object_id): said
            for name, source in books.sources.items()
            for (kind, object_id), said in source.objects.items()
        }
        entries = {parts[1:]: value for parts, value in self.records.get("ext", {}).items()}
        for key in [key for key, said in objects.items() if said.withdrawn and key not in entries]:
            self.tally["offer: withdrawn, and gone"] += 1
            del objects[key], books.sources[key[0]].objects[ExternalKind(key[1]), key[2]]
            books.offer_states.pop((key[0], key[2]), None)
        must(
            entries.keys() == objects.keys(),
            "ext record",
            f"too much {sorted(entries.keys() - objects.keys())}, missing {sorted(objects.keys() - entries.keys())}",
        )
        for key, value in entries.items():
            entry = state_pb2.ExternalRecord.FromString(value)
            stale, entry.said.stale = entry.said.stale, False  # (a record has both: what was said, and that it is)
            change, said = codec.from_proto(entry.said), objects[key]
            have = (change.what, stale, entry.life)
            must(have == (said.what, said.stale, said.life), "ext record", f"{key}: {have}, should be {said}")
            if isinstance(said.what, ExternalOffer):
                self._offer(key, said.what, entry)

    def _offer(self, key: tuple[str, ...], offer: ExternalOffer, entry: state_pb2.ExternalRecord) -> None:
        name = (key[0], key[2])
        before = self.books.offer_states.get(name)
        self.books.offer_states[name] = entry.offer_state
        if before != entry.offer_state:
            self.tally[f"offer: {entry.offer_state}"] += 1
            if before is None or entry.offer_state != "RETURNED":
                self._needed_ns[name] = self.now_ns
            elif not offer.revoked and not entry.withdrawn:
                unneeded_ns = self.now_ns - self._needed_ns[name]
                idle = 0 < offer.idle_ns <= unneeded_ns
                must(idle, "offer", f"{offer} is given back after {unneeded_ns / 1e9} s")
                self.tally["offer: given back, idle"] += 1
        if offer.revoked or entry.withdrawn:
            must(entry.offer_state != "OFFERED", "offer", f"{name} is asked back, and is {entry.offer_state}")

    def is_open(self) -> bool:
        """All sources passed: something may be decided."""
        life, names = self.gate
        sources = [self.books.sources.get(name) for name in names]
        return all(each is not None and each.life == life and each.state is not SourceState.LISTING for each in sources)

    def check_rest(self) -> None:
        """Fails if the core is at rest while a pending ask would fit."""
        books = self.books
        preempts = books.document["partitions"][0]["preemption"]["enabled"]
        if preempts or not self._alone or not self.is_open():
            return
        self.tally["rest: looked for asks that would fit"] += bool(books.wanted)
        nodes = books.nodes()
        kept = [each.required_node for each in books.wanted.values() if each.required_node]  # free, for daemons
        free = {
            node_id: minus(minus(minus(node.capacity, node.occupied), books.others(node_id)), books.containers(node_id))
            for node_id, node in nodes.items()
        }
        for wanted in books.wanted.values():
            if self._is_limited(wanted):
                continue
            wants = {name: value for name, value in wanted.quantities.items() if name not in POOLS}
            for node_id, node in nodes.items():
                may = node_id == wanted.required_node if wanted.required_node else node.schedulable
                may = may and (node_id not in kept or (len(kept) == 1 and node_id == wanted.required_node))
                must(
                    not may or not covers(free[node_id], wants),
                    "left pending",
                    f"{wanted.app_id}/{wanted.key} {wanted.quantities} would fit on {node_id}: {free[node_id]} is free",
                )

    def _is_limited(self, wanted: Wanted) -> bool:
        books = self.books
        app = books.apps.get(wanted.app_id)
        if app is None:
            return True
        for path in levels(app.queue):
            most, used = books.maximum_of(path), books.used_in(path)
            if any(used.get(name, 0) + value > most[name] for name, value in wanted.quantities.items() if name in most):
                return True
        for name in POOLS:
            if value := wanted.quantities.get(name, 0):
                size = books.pool(name)
                if size is None or books.used_of(name) + value > size:
                    return True
        return False

    def check_offers_are_back(self) -> None:
        """Fails if a revoked offer is still used after its time."""
        for source in self.books.sources.values():
            for said in source.of(ExternalKind.OFFER):
                assert isinstance(said.what, ExternalOffer)
                back = not self.books.is_lent(source.name, said.what.offer_id)
                must(back or not (said.what.revoked or said.withdrawn), "offer", f"{said} is not back")

    def check_end(self) -> None:
        books = self.books
        must(not books.held, "end", f"{list(books.held.values())}")
        for source in books.sources.values():
            for said in source.of(ExternalKind.OFFER):
                assert isinstance(said.what, ExternalOffer)
                wanted = said.what.revoked or said.withdrawn or said.what.idle_ns
                back = not books.is_lent(source.name, said.what.offer_id)
                must(back or not wanted, "end", f"nothing runs, and {said} was not given back")


def nonzero(quantities: state_pb2.Quantities) -> Amounts:
    return {name: value for name, value in quantities.values.items() if value}
