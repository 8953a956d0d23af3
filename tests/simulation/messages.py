"""Random messages of both generations, whole and cut: the rule that cutting a message changes nothing.

A *life* is an RM that says random messages to one Muster. ``Player`` takes them as the gateway and the scheduler do:
admission, envelope, machine. Several players hear the same life, each cut in its own way:

=========  ===========================================================================================
whole      each message as it is; those of one batch are decided about together
singles    each item a message of its own, in the order in which the lists of a message are taken; batches as before
gateway    cut as the gateway cuts messages that are too large for a record; batches as before
apart      each item a message and a batch of its own, so that a decision may fall between any two
=========  ===========================================================================================

What is the same: for ``singles`` and ``gateway`` every record that the scheduler writes, to the byte, numbers and times
included. For ``apart`` (while the operator has paused the RM, so that nothing can be decided in between) every object's
record, every event with its id, and the RM's answers, each list in its order; after it, with decisions, every record
but for the numbers of responses. Always the same: what the gateway answers, apart from an item's index in its list.

Each life has ``whole``, ``apart`` and one of the others, by its seed.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from admitting import admit
from muster_bus.log import OutRecord, Record
from muster_bus.topics import Topics
from muster_core.config.queue_config import INDEPENDENT
from muster_core.external.model import ExternalChange, ExternalKind, ExternalOffer, SourceState
from muster_core.model.scopes import SCOPE_TAG
from muster_gateway import admission
from muster_gateway.codec import RequestCodec
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.bus.v1 import state_pb2
from muster_proto.muster.v1 import audit_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_scheduler.machine import SchedulerMachine
from muster_si.constants import APP_TAG_CREATE_FORCE, FOREIGN, NODE_PARTITION, REQUIRED_NODE_TAG
from muster_state import external_codec
from muster_state.external_codec import SourceStateNote
from unstamped import STAMP, unstamped

RM = "rm"
SECOND_NS = 1_000_000_000
LIMITS = AdmissionLimits()
CUT_LIMITS = LIMITS.model_copy(update={"record_bytes": 200})  # a few items
STEPS = 4
ODD_QUEUES = ("root.", "root.a.b", f"root.{INDEPENDENT}", "root.@recovery@", "root.\x00")
CONFIG = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: a, maxapplications: 2}
          - {name: b, resources: {max: {vcore: 9}}, properties: {application.sort.policy: fair}}
  - name: second
    queues: [{name: root, submitacl: '*', queues: [{name: a}]}]
"""

Cut = Callable[[StreamKind, bytes], list[bytes]]


class Mismatch(AssertionError):
    """Cutting changed the outcome. ``what``: of which players, and in which respect."""

    def __init__(self, what: str, story: str) -> None:
        super().__init__(f"{what}: {story}")
        self.what = what


# ---- what is said ----------------------------------------------------------------------------------------------------


class Talk:
    """What an RM says: few names, so that the items of a message are about the same things again and again."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        # Half of the lives are plainer: there more items are about the same things.
        self._odd = random.Random(f"odd {seed}") if seed % 2 else None
        self.uuids = ["u1", "u2", "no such UUID"]

    def registration(self) -> si.RegisterResourceManagerRequest:
        extra = {"muster.generation": self.dice.choice(["current", "previous"])} if self.dice.random() < 0.2 else {}
        version = self.dice.choice(["", "", "1.3.0", "1.7.0"])
        return si.RegisterResourceManagerRequest(rmID=RM, version=version, config=CONFIG, extraConfig=extra)

    def beginning(self) -> list[tuple[StreamKind, Any]]:
        if self.dice.random() < 0.2:
            return []
        owner = si.UserGroupInformation(user="alice")
        room = si.Resource(resources={"vcore": si.Quantity(value=12)})
        nodes = [si.NodeInfo(nodeID=n, action=si.NodeInfo.CREATE, schedulableResource=room) for n in ("n1", "n2")]
        apps = [si.AddApplicationRequest(applicationID=a, queueName="root.a", ugi=owner) for a in ("app-1", "app-2")]
        return [
            (StreamKind.NODE, si.NodeRequest(rmID=RM, nodes=nodes)),
            (StreamKind.APPLICATION, si.ApplicationRequest(rmID=RM, new=apps)),
        ]

    def message(self) -> tuple[StreamKind, Any]:
        (kind,) = self.dice.choices(list(_MAKERS), (5, 2, 3))
        message = _MAKERS[kind](self)
        message.rmID = RM
        return kind, message

    def source(self) -> bytes:
        """What another framework lends on a node, or does not lend any more."""
        offer_id, node_id = self._one("o1", "o2"), self._one("n1", "n2")
        said = ExternalOffer(offer_id, node_id, {"vcore": self.dice.randint(1, 9)}, idle_ns=self._one(0, SECOND_NS))
        gone = self.dice.random() < 0.2
        change = ExternalChange(ExternalKind.OFFER, offer_id, None if gone else said)
        return external_codec.encode(
            RM, "default", "lender", "life", [change], SourceStateNote(SourceState.LIVE, True, "")
        )

    def allocations(self) -> si.AllocationRequest:
        message = si.AllocationRequest()
        message.releases.allocationsToRelease.extend(self._some(self._release, 4))
        message.releases.allocationAsksToRelease.extend(self._some(self._ask_release, 2))
        message.allocations.extend(self._some(self._allocation, 4))
        message.asks.extend(self._some(self._ask, 3))
        return message

    def applications(self) -> si.ApplicationRequest:
        return si.ApplicationRequest(new=self._some(self._application, 5), remove=self._some(self._removal, 3))

    def nodes(self) -> si.NodeRequest:
        return si.NodeRequest(nodes=self._some(self._node, 7))

    def _some(self, make: Callable[[], Any], most: int) -> list[Any]:
        return [make() for _ in range(self.dice.randint(0, most))]

    def _one(self, *choices: Any) -> Any:
        return self.dice.choice(choices)

    def _partition(self) -> str:
        return self._one("default", "default", "default", "", "second", "nowhere" if self._seldom() else "default")

    def _seldom(self) -> bool:
        return self.dice.random() < 0.06

    def _odd_queue(self) -> str:
        return self._odd.choice(ODD_QUEUES) if self._odd is not None else ""

    def _oddly(self, often: float) -> bool:
        return self._odd is not None and self._odd.random() < often

    def _app_id(self) -> str:
        if self._oddly(0.02):
            return INDEPENDENT
        return "" if self._seldom() else self._one("app-1", "app-1", "app-2", "gang")

    def _key(self) -> str:
        return "" if self._seldom() else self._one("k1", "k2", "k3", "k4")

    def _node_id(self) -> str:
        return "bad\nname" if self._seldom() else self._one("n1", "n2", "n9")

    def _uuid(self, often: float) -> str:
        return self.dice.choice(self.uuids) if self.dice.random() < often else ""

    def _resource(self, most: int) -> si.Resource:
        value = self._one(0, -1, 2**60) if self._seldom() else self.dice.randint(1, most)
        return si.Resource(resources={"vcore": si.Quantity(value=value)})

    def _tags(self) -> dict[str, str]:
        """Several at a time, as a map has no order: of what an ask says about where and how it may be placed."""
        if self._odd is None or self._odd.random() < 0.7:
            return {}
        choose = self._odd.choice
        known = {REQUIRED_NODE_TAG: choose(("n1", "n9")), SCOPE_TAG: choose(("node", "one", "no such scope")), "a": "b"}
        return {name: text for name, text in known.items() if choose((True, False))}

    def _release(self) -> si.AllocationRelease:
        uuid = self._uuid(0.4)
        return si.AllocationRelease(
            partitionName=self._partition(),
            applicationID="" if uuid and self._one(True, False) else self._app_id(),
            allocationKey=self._one("", self._key()) if uuid else self._key(),
            UUID=uuid,
            terminationType=self._one(*si.TerminationType.values()),
            message="m",
        )

    def _ask_release(self) -> si.AllocationAskRelease:
        return si.AllocationAskRelease(
            partitionName=self._partition(),
            applicationID=self._one("", self._app_id()),
            allocationKey=self._key(),
            terminationType=si.STOPPED_BY_RM,
        )

    def _allocation(self) -> si.Allocation:
        is_foreign = self.dice.random() < 0.15
        node_id = self._node_id() if is_foreign or self._one(True, False) else ""
        return si.Allocation(
            allocationKey=self._key(),
            applicationID="" if is_foreign else self._app_id(),
            partitionName=self._partition(),
            nodeID=node_id,
            UUID=self._uuid(0.2) if node_id else "",
            resourcePerAlloc=self._resource(4),
            priority=self._one(0, 0, 5),
            taskGroupName=(group := self._one("", "", "g")),
            placeholder=bool(group) and self._one(True, False),
            allocationTags=({FOREIGN: "static"} if is_foreign else {}) | self._tags(),
        )

    def _ask(self) -> si.AllocationAsk:
        return si.AllocationAsk(
            allocationKey=self._key(),
            applicationID=self._app_id(),
            partitionName=self._partition(),
            resourceAsk=self._resource(3),
            maxAllocations=100_001 if self._oddly(0.05) else self.dice.randint(0, 3),
            # (Longer than a life: to one that is over already, the next item may come too late.)
            executionTimeoutMilliSeconds=60_000 if self._oddly(0.3) else 0,
            taskGroupName=(group := self._one("", "", "g")),
            placeholder=bool(group) and self._one(True, False),
            tags=self._tags(),
        )

    def _application(self) -> si.AddApplicationRequest:
        app_id = self._app_id()
        is_gang = app_id == "gang" and self._one(True, False)
        return si.AddApplicationRequest(
            applicationID=app_id,
            queueName=self._odd_queue()
            if self._oddly(0.1)
            else self._one("root.a", "root.b", "root." if self._seldom() else "root.a"),
            partitionName=self._partition(),
            ugi=si.UserGroupInformation(user="" if self._seldom() else "alice"),
            placeholderAsk=self._resource(9) if is_gang else None,
            gangSchedulingStyle=self._one("Soft", "Hard"),
            executionTimeoutMilliSeconds=self._one(0, 0, 1_000),
            tags={APP_TAG_CREATE_FORCE: "true"} if self._oddly(0.15) else {},
        )

    def _removal(self) -> si.RemoveApplicationRequest:
        return si.RemoveApplicationRequest(applicationID=self._app_id(), partitionName=self._partition())

    def _node(self) -> si.NodeInfo:
        place = self._one("", "", "default", "second", "nowhere" if self._seldom() else "")
        action = self._one(*si.NodeInfo.ActionFromRM.values(), *[si.NodeInfo.CREATE] * 4, si.NodeInfo.DECOMISSION)
        existing = self._some(self._existing, 2) if self.dice.random() < 0.1 else []
        return si.NodeInfo(
            nodeID=self._node_id(),
            action=action,
            attributes={NODE_PARTITION: place} if place else {},
            schedulableResource=self._resource(12) if self._one(True, True, False) else None,
            occupiedResource=self._resource(2) if self._seldom() else None,
            existingAllocations=existing,
        )

    def _existing(self) -> si.Allocation:
        made = self._allocation()
        made.nodeID = self._one("", made.nodeID)
        return made


_MAKERS: dict[StreamKind, Callable[[Talk], Any]] = {
    StreamKind.ALLOCATION: Talk.allocations,
    StreamKind.APPLICATION: Talk.applications,
    StreamKind.NODE: Talk.nodes,
}


# ---- how it is cut ---------------------------------------------------------------------------------------------------


def whole(kind: StreamKind, raw: bytes) -> list[bytes]:
    return [raw]


def singles(kind: StreamKind, raw: bytes) -> list[bytes]:
    """(Not the product's code: the order of the lists is written down here a second time, as the documents have it.)"""
    message = admission.REQUEST_TYPES[kind].FromString(raw)
    lists = {
        StreamKind.ALLOCATION: [
            "releases.allocationsToRelease",
            "releases.allocationAsksToRelease",
            "allocations",
            "asks",
        ],
        StreamKind.APPLICATION: ["new", "remove"],
        StreamKind.NODE: ["nodes"],
    }[kind]
    parts = []
    for path in lists:
        for item in _list(message, path):
            part = type(message)(rmID=RM)
            _list(part, path).append(item)
            parts.append(part.SerializeToString())
    return parts


def _list(message: Any, path: str) -> Any:
    for name in path.split("."):
        message = getattr(message, name)
    return message


# ---- who hears it ----------------------------------------------------------------------------------------------------

_RESPONSES: dict[int, Any] = {
    pb.STREAM_ALLOCATION: si.AllocationResponse,
    pb.STREAM_APPLICATION: si.ApplicationResponse,
    pb.STREAM_NODE: si.NodeResponse,
}
_INDEX = re.compile(r"\[\d+\]")


class Player:
    """Admission, envelope, machine; keeps what came out.

    :param cut: makes messages of one message, before admission.
    :param gateway_cuts: what admission let through is cut as the gateway cuts what no record can hold.
    :ivar written: what the machine wrote since the last look.
    """

    def __init__(self, cut: Cut, *, gateway_cuts: bool = False) -> None:
        self._cut, self._gateway_cuts = cut, gateway_cuts
        self.topics = Topics(partitions=1)
        self._codec = RequestCodec(self.topics, "gateway")
        uuids = count(1)
        self.machine = SchedulerMachine(self.topics, lambda: f"uuid-{next(uuids)}")
        self.machine.finish_fold(0)
        self._offset = 0
        self.now_ns = 1_000 * SECOND_NS
        self.written: list[OutRecord] = []
        self.state: dict[bytes, bytes] = {}
        self.answers: list[tuple[str, str, bytes]] = []

    def hear(self, messages: list[tuple[StreamKind, bytes]], *, apart: bool = False) -> None:
        """One batch; with ``apart`` each part of it is one."""
        values = []
        for kind, raw in messages:
            for part in self._cut(kind, raw):
                admitted = admit(kind, part, RM, LIMITS)
                for answer in admitted.answers:
                    self._answered(kind, answer)
                for payload in admitted.payloads:
                    cut = admit(kind, payload, RM, CUT_LIMITS).payloads if self._gateway_cuts else [payload]
                    values += [self._codec.request(RM, 0, kind, each, self.now_ns).value or b"" for each in cut]
        for batch in [[value] for value in values] if apart else [values]:
            self.take(*batch)

    def take(self, *values: bytes) -> None:
        records = []
        for value in values:
            records.append(Record(self.topics.requests, 0, self._offset, 0, RM.encode(), value))
            self._offset += 1
        self._write(self.machine.apply(records, self.now_ns))

    def settle(self) -> None:
        """Runs cycles until none is due."""
        for _ in range(1_000):
            deadline_ns = self.machine.next_deadline_ns()
            if deadline_ns is None or deadline_ns > self.now_ns:
                return
            self._write(self.machine.tick(self.now_ns))
        raise AssertionError("the machine never comes to rest")

    def responses(self) -> list[Any]:
        """Responses in the records since the last call."""
        found = []
        for record in self.written:
            if record.topic == self.topics.responses:
                envelope = pb.ResponseEnvelope.FromString(record.value or b"")
                if envelope.stream in _RESPONSES:
                    found.append(_RESPONSES[envelope.stream].FromString(envelope.response))
        return found

    def told(self) -> dict[str, list[bytes]]:
        """The RM's answers since the last look, each list of the interface's messages over all of them."""
        lists: dict[str, list[bytes]] = {}
        for response in self.responses():
            for field, items in response.ListFields():
                if field.name != "responseSequence":
                    told = lists.setdefault(f"{type(response).__name__}.{field.name}", [])
                    told += [item.SerializeToString(deterministic=True) for item in items]
        return lists

    def events(self) -> list[OutRecord]:
        return [record for record in self.written if record.topic == self.topics.events]

    def objects(self) -> dict[bytes, bytes]:
        """Each object's last record; of the RM's own what does not count transactions and responses."""
        objects = dict(self.state)
        for key, value in objects.items():
            if key == f"{RM}/rm/-".encode():
                rm = state_pb2.RmObject.FromString(value)
                rm.ClearField("next_response_sequence")
                rm.ClearField("last_allocation_response")
                for name in STAMP:
                    rm.ClearField(name)
                for field in ("decisions", "deciding_spread", "wait_spread"):
                    rm.tally.ClearField(field)
                objects[key] = rm.SerializeToString(deterministic=True)
        return objects

    def _answered(self, kind: StreamKind, answer: bytes) -> None:
        response = _RESPONSES[int(kind)].FromString(answer)
        for field, items in response.ListFields():
            for item in items:
                item.reason = _INDEX.sub("[]", item.reason, count=1)
                self.answers.append((kind.name, field.name, item.SerializeToString(deterministic=True)))

    def _placeless(self, record: OutRecord) -> OutRecord:
        """Returns a record without its request's place, which depends on the number of messages."""
        if record.topic != self.topics.audit:
            return unstamped(record)
        entry = audit_pb2.AuditEntry.FromString(record.value or b"")
        entry.ClearField("id")
        entry.ClearField("request_offset")
        return record._replace(value=entry.SerializeToString(deterministic=True))

    def _write(self, records: list[OutRecord]) -> None:
        self.written += [self._placeless(record) for record in records]
        for record in records:
            if record.topic == self.topics.dead_letters:
                raise AssertionError(f"a dead letter: {record}")
            if record.topic == self.topics.state:
                assert record.key is not None
                self.state.pop(record.key, None)
                if record.value is not None:
                    self.state[record.key] = record.value


# ---- a life ----------------------------------------------------------------------------------------------------------


class SplitLife:
    """One life, heard by all players. Raises Mismatch.

    :ivar seen: what came up, for who asks whether the lives are worth something.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._talk = Talk(seed)
        self._whole = Player(whole)
        self._cut = {"singles": Player(singles)} if seed % 3 else {"gateway": Player(whole, gateway_cuts=True)}
        self._apart = Player(singles)
        self._players = [self._whole, *self._cut.values(), self._apart]
        self._paused = False
        self.seen: set[str] = set()

    def live(self, steps: int = STEPS) -> None:
        registration = self._talk.registration()
        envelope = pb.RequestEnvelope(rm_id=RM, request_id="r", register=registration.SerializeToString())
        self._all_take(envelope.SerializeToString())
        beginning = self._talk.beginning()
        for step in range(-1 if beginning else 0, steps):
            self._step(step, beginning if step < 0 else [])

    def _step(self, step: int, beginning: list[tuple[StreamKind, Any]]) -> None:
        dice = self._talk.dice
        if step >= 0 and dice.random() < 0.2:
            self._all_take(self._talk.source())
        # What is told apart is compared with the operator's pause in force; in every other step decisions are taken.
        paused = dice.random() < 0.6
        if paused:
            self._command(pause="a comparison")
        messages = beginning or [self._talk.message() for _ in range(dice.choice((1, 1, 1, 2)))]
        batch = [(kind, message.SerializeToString()) for kind, message in messages]
        for player in self._players:
            player.written.clear()
            player.answers.clear()
            # (Where decisions may fall in between, nothing could be compared.)
            player.hear(batch, apart=paused and player is self._apart)
        self._compare(step, messages, paused)
        self._remember()
        if paused:
            self._command(resume=True)
        pause_ns = dice.choice((0, SECOND_NS // 4, 3 * SECOND_NS))
        for player in self._players:
            player.now_ns += pause_ns
            player.settle()
        self._compare_decided(step, messages)
        self._remember()
        for player in self._players:
            player.written.clear()

    def _all_take(self, value: bytes) -> None:
        for player in self._players:
            player.take(value)
            player.settle()
            player.written.clear()

    def _command(self, **command: Any) -> None:
        envelope = pb.RequestEnvelope(rm_id=RM, request_id="r", admin=pb.AdminCommand(**command))
        for player in self._players:
            player.take(envelope.SerializeToString())

    def _compare(self, step: int, messages: list[tuple[StreamKind, Any]], paused: bool) -> None:
        for name, player in self._cut.items():
            self._must_agree(f"{name}: records", self._whole.written, player.written, step, messages)
        for name, player in (*self._cut.items(), ("apart", self._apart)):
            ours, theirs = self._whole.answers, player.answers
            self._must_agree(f"{name}: the gateway's answers", sorted(ours), sorted(theirs), step, messages)
        if paused:
            apart = self._apart
            self._must_agree("apart: answers", self._whole.told(), apart.told(), step, messages)
            self._must_agree("apart: events", self._whole.events(), apart.events(), step, messages)
            self._must_agree("apart: objects", self._whole.objects(), apart.objects(), step, messages)

    def _compare_decided(self, step: int, messages: list[tuple[StreamKind, Any]]) -> None:
        for name, player in self._cut.items():
            self._must_agree(f"{name}: decisions", self._whole.written, player.written, step, messages)
        ours, theirs = self._whole.objects(), self._apart.objects()
        self._must_agree("apart: objects decided", ours, theirs, step, messages)
        ours_events, their_events = self._whole.events(), self._apart.events()
        self._must_agree("apart: events decided", ours_events, their_events, step, messages)
        self._must_agree("apart: decisions told", self._whole.told(), self._apart.told(), step, messages)

    def _must_agree(self, what: str, ours: Any, theirs: Any, step: int, messages: list[tuple[StreamKind, Any]]) -> None:
        if ours == theirs:
            return
        said = "\n".join(f"{kind.name}:\n{message}" for kind, message in messages)
        differs = f"whole: {_only(ours, theirs)}\ncut: {_only(theirs, ours)}"
        again = f"PYTHONPATH=tests python -m simulation.messages {self.seed} {step + 1}"
        raise Mismatch(what, f"seed {self.seed}, step {step}\n{said}\n{differs}\nagain: {again}")

    def _remember(self) -> None:
        for response in self._whole.responses():
            self.seen |= {f"{type(response).__name__}.{field.name}" for field, _ in response.ListFields()}
            for allocation in getattr(response, "new", ()):
                if allocation.UUID and allocation.UUID not in self._talk.uuids:
                    self._talk.uuids.append(allocation.UUID)
        self.seen |= {f"the gateway: {field}" for _, field, _ in self._whole.answers}
        self.seen.add(f"generation: {self._whole.machine.rms[RM].info.generation}")


def _only(ours: Any, theirs: Any) -> str:
    if isinstance(ours, dict):
        return str({key: value for key, value in ours.items() if theirs.get(key) != value})
    at = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), len(theirs))
    return f"at {at} of {len(ours)}: {ours[at : at + 3]}"


if __name__ == "__main__":  # PYTHONPATH=tests python -m simulation.messages 17 [STEPS]
    SplitLife(int(sys.argv[1])).live(int(sys.argv[2]) if len(sys.argv) > 2 else STEPS)
