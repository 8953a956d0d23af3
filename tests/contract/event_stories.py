"""The stories that docs/events.md names: short lives of an RM, which together cause every kind of event.

Ids say what they are of: applications begin with ``app-``, nodes with ``node-``, queues with ``root``, keys with
``key-``; users are alice and bob, groups dev and ops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from muster_bus.topics import HEADER_EVENT_ID, HEADER_TRACKING
from muster_proto.muster.bus.v1 import envelope_pb2 as bus
from muster_proto.muster.v1 import callbacks_pb2
from muster_proto.si.v1 import si_pb2 as si
from muster_si.constants import APP_TAG_CREATE_FORCE, REQUIRED_NODE_TAG
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM, Rig

DAYS = 24 * 3600
PLAIN = "{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}"
TELL = {"service.event.requestEventsEnabled": "true"}

Story = Callable[["Stage"], None]
STORIES: dict[str, Story] = {}


class Told:
    """An event of the log; ``event_id`` None: it is for the RM only."""

    def __init__(self, event_id: int | None, record: si.EventRecord) -> None:
        self.event_id = event_id
        self.record = record
        self.type = si.EventRecord.Type.Name(record.type)
        self.change = si.EventRecord.ChangeType.Name(record.eventChangeType)
        self.detail = si.EventRecord.ChangeDetail.Name(record.eventChangeDetail)

    def __repr__(self) -> str:
        record = self.record
        said = f"{self.type} {self.change} {self.detail} {record.objectID} {record.referenceID}"
        return f"{self.event_id}: {said} {dict(record.resource.resources)} {record.message!r}"


class Stage(Rig):
    """A rig whose RM wants all events, in the words of the stories."""

    def begin(self, root: str = PLAIN, extra: dict[str, str] | None = None, rest: str = "") -> None:
        """Registers with a queue tree and the partition's other keys."""
        self._rest = rest
        request = make.registration(self._text(root))
        request.extraConfig.update(TELL if extra is None else extra)
        self.send(request)
        assert self.registrations[-1].accepted, self.registrations[-1]

    def reload(self, root: str, **extra: str) -> None:
        self.send(si.UpdateConfigurationRequest(rmID=RM, config=self._text(root), extraConfig=extra))
        assert self.registrations[-1].accepted, self.registrations[-1]

    def _text(self, root: str) -> str:
        return f"partitions: [{{name: default, {self._rest} queues: [{root}]}}]"

    def node(
        self, name: str = "node-1", action: si.NodeInfo.ActionFromRM.ValueType = si.NodeInfo.CREATE, **has: int
    ) -> None:
        self.send(make.node(name, action, **has))

    def app(self, name: str, queue: str = "root.a", user: str = "alice", **fields: object) -> None:
        request = make.application(name, queue, **fields)
        request.new[0].ugi.user = user
        request.new[0].ugi.groups.extend({"alice": ["dev"], "bob": ["ops"]}[user])
        self.send(request)

    def ask(self, app: str, key: str, vcore: int, node: str = "", **words: object) -> None:
        """Sends an ask; with ``node``, reports a running allocation."""
        item = make.allocation(app, key, node, vcore=vcore)
        item.preemptionPolicy.allowPreemptSelf = bool(words.pop("may_go", False))
        item.preemptionPolicy.allowPreemptOther = bool(words.pop("preempts", False))
        item.allocationTags.update({REQUIRED_NODE_TAG: str(words.pop("on"))} if "on" in words else {})
        if "member_of" in words:
            item.placeholder, item.taskGroupName = True, str(words.pop("member_of"))
        item.taskGroupName = str(words.pop("task_group", item.taskGroupName))
        assert not words, words
        self.send(make.asks(item))

    def gone(self, app: str, key: str, kind: si.TerminationType.ValueType = si.STOPPED_BY_RM) -> None:
        self.send(make.release(app, key, kind))

    @property
    def told(self) -> list[Told]:
        found = []
        for record in self.written:
            if record.topic == self.topics.events:
                headers = dict(record.headers)
                tracked = headers[HEADER_TRACKING] == b"1"
                assert (HEADER_EVENT_ID in headers) == tracked
                event_id = int(headers[HEADER_EVENT_ID]) if tracked else None
                found.append(Told(event_id, si.EventRecord.FromString(record.value or b"")))
        return found


@cache
def events_of(story: str) -> tuple[Told, ...]:
    stage = Stage()
    STORIES[story](stage)
    stage.check_counters()
    return tuple(stage.told)


def story(function: Story) -> Story:
    STORIES[function.__name__] = function
    return function


# ---- applications, requests, allocations -----------------------------------------------------------------------------


@story
def life(stage: Stage) -> None:
    stage.begin()
    stage.node(vcore=10)
    stage.app("app-1")
    stage.ask("app-1", "key-1", 3)
    stage.send(make.release("app-1", "key-1", si.SCHEDULING_FAILED_ON_RM, message="no volume"))
    stage.gone("app-1", "key-1")
    stage.wait(30)
    stage.wait(3 * DAYS)


@story
def starting(stage: Stage) -> None:
    stage.begin(extra={**TELL, "muster.generation": "previous"})
    stage.node(vcore=10)
    stage.app("app-1")
    stage.ask("app-1", "key-1", 3)


@story
def rejected(stage: Stage) -> None:
    stage.begin()
    stage.app("app-1", "root.nowhere")


@story
def forced(stage: Stage) -> None:
    stage.begin()
    stage.app("app-1")
    stage.app("app-2", "root.a b", tags={APP_TAG_CREATE_FORCE: "true"})


@story
def requests(stage: Stage) -> None:
    stage.begin()
    stage.node(vcore=10)
    stage.app("app-1")
    stage.ask("app-1", "key-1", 90)
    stage.ask("app-1", "key-2", 90)
    stage.ask("app-1", "key-1", 70)
    stage.gone("app-1", "key-1")
    stage.ask("app-1", "key-3", 80)
    stage.ask("app-1", "key-3", 5, node="node-1")
    stage.send(make.removal("app-1"))


@story
def repeats(stage: Stage) -> None:
    """Asks of the previous generation that want several allocations each."""
    stage.begin()
    stage.node(vcore=10)
    stage.app("app-1")
    for key, wanted in (("key-1", 3), ("key-2", 5), ("key-2", 3), ("key-1", 1), ("key-3", 4)):
        stage.send(make.old_ask("app-1", key, wanted, vcore=4))
    stage.send(make.ask_release("app-1", "key-2"))
    stage.send(make.release("app-1", "key-1", si.SCHEDULING_FAILED_ON_RM))
    stage.send(make.old_ask("app-1", "key-3", 4, vcore=3))
    stage.begin()


def _begin_gang(stage: Stage, placeholders: int, style: str = "Soft") -> None:
    """An application that announces that amount of placeholders, with its first placeholder placed."""
    stage.begin()
    stage.node(vcore=10)
    stage.app("app-1", placeholderAsk=make.resource(vcore=placeholders), gangSchedulingStyle=style)
    stage.ask("app-1", "key-1", 2, member_of="workers")


def _gang(stage: Stage, style: str) -> None:
    _begin_gang(stage, 92, style)
    stage.ask("app-1", "key-2", 90, member_of="workers")
    stage.wait(900)
    stage.gone("app-1", "key-1", si.TIMEOUT)


@story
def hard_gang(stage: Stage) -> None:
    _gang(stage, "Hard")


@story
def soft_gang(stage: Stage) -> None:
    _gang(stage, "Soft")


@story
def replaced(stage: Stage) -> None:
    _begin_gang(stage, 2)
    stage.ask("app-1", "key-2", 2, task_group="workers")
    stage.gone("app-1", "key-1", si.PLACEHOLDER_REPLACED)
    stage.ask("app-1", "key-2", 1, node="node-1")  # it is smaller now


@story
def mismatch(stage: Stage) -> None:
    _begin_gang(stage, 2)
    stage.ask("app-1", "key-2", 3, task_group="workers")


def _two_applications(stage: Stage) -> None:
    stage.node(vcore=10)
    for name in ("app-1", "app-2"):
        stage.app(name)
        stage.ask(name, "key-1", 1)


@story
def full_queue(stage: Stage) -> None:
    stage.begin("{name: root, submitacl: '*', queues: [{name: a, maxapplications: 1}]}")
    _two_applications(stage)
    stage.rebuild()
    stage.settle()
    stage.ask("app-2", "key-2", 1)
    stage.send(make.removal("app-1"))


@story
def full_user(stage: Stage) -> None:
    limit = "{limit: one, users: [alice], maxapplications: 1}"
    stage.begin(f"{{name: root, submitacl: '*', queues: [{{name: a, limits: [{limit}]}}]}}")
    _two_applications(stage)
    stage.send(make.removal("app-1"))


@story
def preempted(stage: Stage) -> None:
    stage.begin(
        "{name: root, submitacl: '*', queues: [{name: a, resources: {guaranteed: {vcore: 5m}}}, "
        "{name: b, resources: {guaranteed: {vcore: 1m}}}]}"
    )
    stage.node(vcore=10)
    stage.app("app-1", "root.b")
    for number in range(1, 11):
        stage.ask("app-1", f"key-{number}", 1, may_go=True)
    stage.app("app-2", "root.a")
    stage.ask("app-2", "key-11", 3, preempts=True)
    stage.wait(31)
    for item in stage.of("released"):
        stage.gone("app-1", item.allocationKey, si.PREEMPTED_BY_SCHEDULER)  # type: ignore[attr-defined]


@story
def lost_room(stage: Stage) -> None:
    stage.begin("{name: root, submitacl: '*', queues: [{name: a, resources: {guaranteed: {vcore: 5m}}}, {name: b}]}")
    stage.node(vcore=10)
    stage.app("app-1", "root.b")
    stage.ask("app-1", "key-1", 10, may_go=True)
    stage.app("app-2", "root.a")
    stage.ask("app-2", "key-2", 3, preempts=True)
    stage.wait(31)
    stage.node("node-1", si.NodeInfo.DECOMISSION)


@story
def tight_queue(stage: Stage) -> None:
    stage.begin("{name: root, submitacl: '*', queues: [{name: a, resources: {max: {vcore: 5m}}}]}")
    _tight(stage)


@story
def tight_user(stage: Stage) -> None:
    limit = "{limit: few, users: ['*'], maxresources: {vcore: 5m}}"
    stage.begin(f"{{name: root, submitacl: '*', queues: [{{name: a, limits: [{limit}]}}]}}")
    _tight(stage)


def _tight(stage: Stage) -> None:
    stage.node(vcore=10)
    stage.app("app-1")
    stage.ask("app-1", "key-1", 4)
    stage.ask("app-1", "key-2", 3)
    stage.ask("app-1", "key-3", 3)
    stage.rebuild()
    stage.settle()
    stage.gone("app-1", "key-1")


@story
def refused(stage: Stage) -> None:
    stage.begin()
    stage.send(bus.CallbackStream(connected=True, epoch=1, predicates=True))
    for number in range(3):
        stage.node(f"node-{number}", vcore=10)
    stage.app("app-1")
    stage.ask("app-1", "key-1", 1)
    answered: set[int] = set()
    while asked := [each for each in stage.of("predicates") if each.id not in answered]:  # type: ignore[attr-defined]
        answers = [
            callbacks_pb2.PredicatesAnswer(id=each.id, reason="a taint" if each.id % 2 else "no volume")  # type: ignore[attr-defined]
            for each in asked
        ]
        answered |= {each.id for each in answers}
        stage.send(callbacks_pb2.FromResourceManager(predicates=answers))


@story
def daemon(stage: Stage) -> None:
    stage.begin()
    stage.node(vcore=10)
    stage.app("app-1")
    stage.ask("app-1", "key-1", 9)
    stage.ask("app-1", "key-2", 5, on="node-1", preempts=True)
    stage.wait(60)
    stage.wait(60)


@story
def excess(stage: Stage) -> None:
    stage.begin()
    stage.node(vcore=10)
    stage.app("app-1")
    stage.ask("app-1", "key-1", 12, node="node-1")


# ---- nodes -----------------------------------------------------------------------------------------------------------


@story
def nodes(stage: Stage) -> None:
    stage.begin()
    stage.node(vcore=10)
    stage.node("node-2", si.NodeInfo.CREATE_DRAIN, vcore=10)
    stage.node("node-1", si.NodeInfo.UPDATE, vcore=8)
    update = si.NodeInfo(nodeID="node-2", action=si.NodeInfo.UPDATE, attributes={"ready": "false"})
    update.occupiedResource.CopyFrom(make.resource(vcore=2))
    stage.send(si.NodeRequest(rmID=RM, nodes=[update]))
    stage.app("app-1")
    stage.ask("app-1", "key-1", 5)
    stage.ask("app-1", "key-2", 6)
    stage.wait(3)  # then the node is kept free for it
    stage.gone("app-1", "key-1")
    stage.node("node-1", si.NodeInfo.DRAIN_NODE)
    stage.node("node-1", si.NodeInfo.DECOMISSION)


# ---- queues ----------------------------------------------------------------------------------------------------------


@story
def queues(stage: Stage) -> None:
    stage.begin(
        "{name: root, submitacl: '*', queues: [{name: a, resources: {guaranteed: {vcore: 1}, max: {vcore: 5}}}, "
        "{name: b}, {name: c}]}",
        rest="placementrules: [{name: provided, create: true}],",
    )
    stage.app("app-1", "root.made.deep")
    stage.send(make.removal("app-1"))
    stage.wait(11)
    stage.reload(
        "{name: root, submitacl: '*', queues: [{name: a, maxapplications: 3, resources: {max: {vcore: 4}}, "
        "properties: {application.sort.policy: fair}}, {name: b, queues: [{name: below}]}]}"
    )
    stage.wait(11)


@story
def lowered_max(stage: Stage) -> None:
    tree = (
        "{{name: root, submitacl: '*', queues: [{{name: a, resources: {{max: {{vcore: {}m}}}}, "
        "properties: {{quota.preemption.delay: 5s}}}}]}}"
    )
    stage.begin(tree.format(8), rest="preemption: {enabled: true, quotapreemptionenabled: true},")
    stage.node(vcore=10)
    stage.app("app-1")
    for number in range(1, 9):
        stage.ask("app-1", f"key-{number}", 1, may_go=True)
    stage.reload(tree.format(5))
    stage.wait(6)


@story
def too_large_gang(stage: Stage) -> None:
    tree = "{{name: root, submitacl: '*', queues: [{{name: a, resources: {{max: {{vcore: {}m}}}}}}]}}"
    stage.begin(tree.format(4))
    stage.app("app-1", placeholderAsk=make.resource(vcore=4))
    stage.ask("app-1", "key-1", 4, member_of="workers")
    stage.reload(tree.format(3))
    stage.reload(tree.format(4))


# ---- users and groups ------------------------------------------------------------------------------------------------


@story
def limits(stage: Stage) -> None:
    tree = "{{name: root, submitacl: '*', queues: [{{name: a, limits: [{}]}}, {{name: b}}]}}"
    users = "{limit: people, users: [alice, '*'], maxresources: {vcore: 5}, maxapplications: 3}"
    stage.begin(tree.format(f"{users}, {{limit: team, groups: [dev], maxresources: {{vcore: 7}}}}"))
    stage.node(vcore=10)
    stage.app("app-1")
    stage.app("app-2", user="bob")
    stage.ask("app-1", "key-1", 1)
    stage.ask("app-1", "key-2", 2)
    stage.ask("app-2", "key-3", 2)
    stage.gone("app-1", "key-1")
    # Another group's limit, which both are under; alice's is another one.
    alice = "{limit: one, users: [alice], maxresources: {vcore: 6}}"
    stage.reload(tree.format(f"{alice}, {{limit: team, groups: [ops, '*'], maxapplications: 9}}"))
    stage.reload(tree.format(alice))
    stage.send(make.removal("app-2"))


@story
def again(stage: Stage) -> None:
    """An RM that has objects of every kind registers again."""
    limit = "{limit: team, users: [alice], groups: [dev], maxresources: {vcore: 7}}"
    stage.begin(
        f"{{name: root, submitacl: '*', limits: [{limit}], queues: [{{name: a}}]}}",
        rest="placementrules: [{name: provided, create: true}],",
    )
    stage.node(vcore=10)
    stage.node("node-2", vcore=10)
    stage.app("app-1")
    stage.app("app-2", "root.made.deep", user="bob")
    for number in (1, 2, 3):
        stage.ask("app-2", f"key-{number}", 6)
    stage.ask("app-1", "key-1", 2)
    stage.wait(3)  # one of those who wait has a node kept free
    stage.begin()


@story
def noticed(stage: Stage) -> None:
    """The log lost records, and an operator accepted it."""
    stage.begin()
    stage.send(
        bus.Notice(
            message="log data/log.db is older than log.db.mark: at least 7 records are missing", records_lost=True
        )
    )
