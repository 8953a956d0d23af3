"""A scheduler machine on a log of its own. The rig sends requests and decodes every record that the machine writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from event_books import EventBooks
from event_books_shown import of_core
from muster_bus.log import OutRecord, Record
from muster_bus.topics import HEADER_ERROR, HEADER_EVENT_ID, HEADER_RM_ID, Topics
from muster_core import invariants
from muster_core.external.model import ExternalChange, ExternalKind, ExternalObject, SourceState, id_of, kind_of
from muster_core.model.outcome import Outcome
from muster_core.scheduler import SchedulerCore
from muster_informers.sync_gate import SyncGate
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.muster.v1.audit_pb2 import AuditEntry
from muster_proto.si.v1 import si_pb2 as si
from muster_runtime import event_settings
from muster_scheduler.machine import SchedulerMachine
from muster_state import external_codec as codec
from muster_state.external_codec import SourceStateNote

RM = "rm-1"
SECOND_NS = 1_000_000_000
CONFIG = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: a, maxapplications: 2}
          - name: b
            resources: {max: {vcore: 12, memory: 100}}
            queues:
              - {name: x, properties: {application.sort.policy: fair}}
              - {name: y, resources: {guaranteed: {vcore: 4}}}
          - {name: c}
"""


class Rig:
    """One partition of one Muster.

    :ivar state: the state topic, compacted, in the order of last writing.
    :ivar responses: every SI response, decoded, in order, with its sequence.
    :ivar events: (id, event) of every event, in order.
    :ivar books: by RM, the state that its events add up to. Each batch ends with a comparison with the real state.
    :ivar standby: follows the state and takes over at the next rebuild; None: the next machine folds all at once.
    """

    def __init__(
        self, budget: int = 2000, default_config: str = "", check_every_ns: int = 0, gate: SyncGate | None = None
    ) -> None:
        self.topics = Topics(partitions=1)
        self.now_ns = 1_000 * SECOND_NS
        self.state: dict[bytes, bytes] = {}
        self.responses: list[tuple[int, object]] = []
        self.registrations: list[pb.RegistrationResult] = []
        self.events: list[tuple[int, si.EventRecord]] = []
        self.audit: list[AuditEntry] = []
        self.dead: list[tuple[bytes | None, str]] = []
        self.written: list[OutRecord] = []
        self.books: dict[str, EventBooks] = {}
        self._untold: set[str] = set()
        self._offset = 0
        uuids = count(1)
        self.gate = gate if gate is not None else SyncGate()
        self._factory: Callable[[], SchedulerMachine] = lambda: SchedulerMachine(
            self.topics, lambda: f"uuid-{next(uuids)}", default_config, budget, check_every_ns, gate=self.gate
        )
        self.machine = self._factory()
        self.machine.finish_fold(self.now_ns)
        self.standby: SchedulerMachine | None = None
        # The worker calls this before each batch, too.
        self.consult: Callable[[SchedulerMachine, list[Record]], None] | None = None

    @property
    def core(self) -> SchedulerCore:
        return self.machine.rms[RM].core

    # ---- in --------------------------------------------------------------------------------------------------------

    def send(self, *bodies: object, rm_id: str = RM) -> list[OutRecord]:
        """One batch: SI requests, lifecycle notes, or raw bytes as the record's whole value."""
        records = []
        for body in bodies:
            value = body if isinstance(body, bytes) else envelope(body, rm_id).SerializeToString()
            records.append(Record(self.topics.requests, 0, self._offset, 0, rm_id.encode(), value))
            self._offset += 1
        if self.consult is not None:
            self.consult(self.machine, records)
        return self._take(self.machine.apply(records, self.now_ns))

    def tick(self) -> list[OutRecord]:
        return self._take(self.machine.tick(self.now_ns))

    def settle(self) -> None:
        """Tick until the machine is idle up to its next deadline."""
        for _ in range(10_000):
            deadline_ns = self.machine.next_deadline_ns()
            if deadline_ns is None or deadline_ns > self.now_ns:
                return
            self.tick()
        raise AssertionError("the machine never comes to rest")

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)
        self.settle()

    def register(self, config: str = CONFIG, rm_id: str = RM) -> pb.RegistrationResult:
        self.send(registration(config, rm_id), rm_id=rm_id)
        return self.registrations[-1]

    def rebuild(self, dice: random.Random | None = None) -> None:
        """Take over: a new machine folds the compacted state topic, and nothing else."""
        machine = self.standby if self.standby is not None else self._fed(dice)
        machine.finish_fold(self.now_ns)
        self.machine = machine
        if self.standby is not None:
            self.follow()

    def follow(self) -> None:
        """Start a standby: it folds the present state, then each record. The next rebuild uses it."""
        self.standby = self._fed(None)
        for _ in self.standby.build_state():
            pass

    def _fed(self, dice: random.Random | None) -> SchedulerMachine:
        machine = self._factory()
        kept = list(self.state.items())
        if dice is not None:
            dice.shuffle(kept)
        for offset, (key, value) in enumerate(kept):
            machine.fold(Record(self.topics.state, 0, offset, 0, key, value))
        return machine

    # ---- out -------------------------------------------------------------------------------------------------------

    def _take(self, outputs: list[OutRecord]) -> list[OutRecord]:
        topics = self.topics
        self.written.extend(outputs)
        for record in outputs:
            assert record.partition == 0
            if record.topic == topics.state:
                assert record.key is not None
                if self.standby is not None:
                    self.standby.fold(Record(topics.state, 0, len(self.written), 0, record.key, record.value))
                self.state.pop(record.key, None)
                if record.value is not None:
                    self.state[record.key] = record.value
            elif record.topic == topics.responses:
                self._take_response(pb.ResponseEnvelope.FromString(record.value or b""))
            elif record.topic == topics.events:
                headers = dict(record.headers)
                if HEADER_EVENT_ID not in headers:
                    continue  # for the RM only (the event history design)
                event = si.EventRecord.FromString(record.value or b"")
                self.events.append((int(headers[HEADER_EVENT_ID]), event))
                self.books.setdefault(headers[HEADER_RM_ID].decode(), EventBooks()).take_record(event)
            elif record.topic == topics.audit:
                self.audit.append(AuditEntry.FromString(record.value or b""))
            else:
                assert record.topic == topics.dead_letters, record.topic
                self.dead.append((record.value, dict(record.headers)[HEADER_ERROR].decode()))
        for state in self.machine.rms.values():
            invariants.check(state.core, exhausted=self._is_exhausted(state.core))
        self._check_books()
        return outputs

    def _check_books(self) -> None:
        """Compare the tally with the state, and the events too if every event was made."""
        for rm_id, state in self.machine.rms.items():
            tally, waiting = state.info.tally, self.machine._outcomes.get(rm_id, Outcome())
            began = tally.allocated + tally.reported + waiting.made + waiting.reported
            ended = tally.ended + waiting.ended
            assert began - ended == sum(each.running for each in state.core.partitions.values()), (tally, began, ended)
            assert ended >= tally.released + tally.dropped, tally
            if not event_settings.read(state.info.extra_config)[0].tracks:
                self._untold.add(rm_id)
            # (A decision whose answer leaves with the next tick is not counted yet.)
            if rm_id not in self._untold and rm_id not in self.machine._outcomes:
                self.books.setdefault(rm_id, EventBooks()).compare(of_core(state.core))

    @staticmethod
    def _is_exhausted(core: SchedulerCore) -> bool:
        return core.exhausted

    def _take_response(self, envelope: pb.ResponseEnvelope) -> None:
        if envelope.HasField("registration"):
            assert envelope.sequence == 0
            self.registrations.append(envelope.registration)
            return
        if envelope.HasField("admin"):
            assert envelope.sequence == 0
            return
        if envelope.stream == pb.STREAM_CALLBACK:
            told = callbacks_pb2.ToResourceManager.FromString(envelope.response)
            assert told.response_sequence == envelope.sequence
            self.responses.append((envelope.sequence, told))
            return
        kinds = {
            pb.STREAM_ALLOCATION: si.AllocationResponse,
            pb.STREAM_APPLICATION: si.ApplicationResponse,
            pb.STREAM_NODE: si.NodeResponse,
        }
        response = kinds[envelope.stream].FromString(envelope.response)
        assert response.responseSequence == envelope.sequence
        self.responses.append((envelope.sequence, response))

    def check_counters(self, rm_count: int = 1) -> None:
        """Sequences from 1 and event ids from 0, without gap or double."""
        assert rm_count == 1
        assert [number for number, _ in self.responses] == list(range(1, len(self.responses) + 1))
        assert [number for number, _ in self.events] == list(range(len(self.events)))

    def of(self, field: str) -> list[object]:
        """All items of one field of all responses so far (``new``, ``released``, ``rejectedAllocations`` …)."""
        return [item for _, response in self.responses for item in getattr(response, field, ())]

    def keys(self, field: str) -> list[str]:
        return [item.allocationKey for item in self.of(field) if hasattr(item, "allocationKey")]


def envelope(body: object, rm_id: str = RM) -> pb.RequestEnvelope:
    made = pb.RequestEnvelope(rm_id=rm_id, request_id="r")
    match body:
        case si.RegisterResourceManagerRequest():
            made.register = body.SerializeToString()
        case si.AllocationRequest():
            made.allocation = body.SerializeToString()
        case si.ApplicationRequest():
            made.application = body.SerializeToString()
        case si.UpdateConfigurationRequest():
            made.configuration = body.SerializeToString()
        case si.NodeRequest():
            made.node = body.SerializeToString()
        case pb.RmLifecycle():
            made.lifecycle.CopyFrom(body)
        case pb.CallbackStream():
            made.callback_stream.CopyFrom(body)
        case pb.AdminCommand():
            made.admin.CopyFrom(body)
        case pb.Notice():
            made.notice.CopyFrom(body)
        case callbacks_pb2.FromResourceManager():
            made.callback_answers = body.SerializeToString()
        case _:
            raise TypeError(type(body))
    return made


def registration(config: str = CONFIG, rm_id: str = RM) -> si.RegisterResourceManagerRequest:
    return si.RegisterResourceManagerRequest(rmID=rm_id, version="1", policyGroup="queues", config=config)


def life(state: pb.RmLifecycle.State.ValueType) -> pb.RmLifecycle:
    return pb.RmLifecycle(state=state)


def resource(**quantities: int) -> si.Resource:
    return si.Resource(resources={name: si.Quantity(value=value) for name, value in quantities.items()})


def quantities(resource: si.Resource) -> dict[str, int]:
    return {name: quantity.value for name, quantity in resource.resources.items()}


def node(
    node_id: str, action: si.NodeInfo.ActionFromRM.ValueType = si.NodeInfo.CREATE, **capacity: int
) -> si.NodeRequest:
    info = si.NodeInfo(nodeID=node_id, action=action)
    if capacity:
        info.schedulableResource.CopyFrom(resource(**capacity))
    return si.NodeRequest(nodes=[info], rmID=RM)


def application(app_id: str, queue: str, **fields: object) -> si.ApplicationRequest:
    owner = si.UserGroupInformation(user="alice")
    new = si.AddApplicationRequest(
        applicationID=app_id,
        queueName=queue,
        partitionName="default",
        ugi=owner,
        **fields,  # type: ignore[arg-type]
    )
    return si.ApplicationRequest(new=[new], rmID=RM)


def removal(app_id: str) -> si.ApplicationRequest:
    return si.ApplicationRequest(
        remove=[si.RemoveApplicationRequest(applicationID=app_id, partitionName="default")], rmID=RM
    )


def allocation(app_id: str, key: str, node_id: str = "", tags: dict[str, str] | None = None, **q: int) -> si.Allocation:
    return si.Allocation(
        allocationKey=key,
        applicationID=app_id,
        partitionName="default",
        nodeID=node_id,
        resourcePerAlloc=resource(**q),
        allocationTags=tags or {},
    )


def asks(*items: si.Allocation) -> si.AllocationRequest:
    return si.AllocationRequest(allocations=items, rmID=RM)


def old_ask(app_id: str, key: str, repeats: int = 1, **wants: int) -> si.AllocationRequest:
    ask = si.AllocationAsk(
        allocationKey=key,
        applicationID=app_id,
        partitionName="default",
        resourceAsk=resource(**wants),
        maxAllocations=repeats,
    )
    return si.AllocationRequest(asks=[ask], rmID=RM)


def release(
    app_id: str,
    key: str = "",
    kind: si.TerminationType.ValueType = si.STOPPED_BY_RM,
    uuid: str = "",
    message: str = "",
) -> si.AllocationRequest:
    item = si.AllocationRelease(
        partitionName="default",
        applicationID=app_id,
        allocationKey=key,
        UUID=uuid,
        terminationType=kind,
        message=message,
    )
    return si.AllocationRequest(releases=si.AllocationReleasesRequest(allocationsToRelease=[item]), rmID=RM)


def ask_release(app_id: str, key: str = "") -> si.AllocationRequest:
    item = si.AllocationAskRelease(partitionName="default", applicationID=app_id, allocationKey=key)
    return si.AllocationRequest(releases=si.AllocationReleasesRequest(allocationAsksToRelease=[item]), rmID=RM)


def said(
    *what: ExternalObject | ExternalChange,
    source: str = "vms",
    partition: str = "default",
    life: str = "life-1",
    state: SourceState | None = None,
    drains: bool = True,
    reason: str = "",
    rm_id: str = RM,
) -> bytes:
    """Return the record of an external source: whole objects or changes, then a note."""
    changes = [
        each if isinstance(each, ExternalChange) else ExternalChange(kind_of(each), id_of(each), each) for each in what
    ]
    note = SourceStateNote(state, drains, reason) if state is not None else None
    return codec.encode(rm_id, partition, source, life, changes, note)


def forgotten(kind: ExternalKind, object_id: str) -> ExternalChange:
    """Return the change that removes an object of a source."""
    return ExternalChange(kind, object_id, None)
