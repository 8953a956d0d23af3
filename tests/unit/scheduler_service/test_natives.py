"""The RM's own objects at an event handler: one handler serves native and custom informers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from admitting import admit
from manual_clock import ManualClock
from muster_bus.backends.memory import MemoryLog
from muster_bus.topics import Topics, parse_state_key
from muster_core.external.errors import HandlerExited, HandlerSettingsWrong, InvalidExternalSettings, NotTaken
from muster_core.external.model import (
    NOT_CONFIGURED,
    ExternalAllocation,
    ExternalApplication,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalQueue,
    SourceState,
)
from muster_gateway.admission import REQUEST_TYPES
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind
from muster_informers.contract import EVENT_HANDLERS_GROUP, EventHandler, ExternalCache
from muster_informers.filters import responsible_for_node
from muster_informers.handlers.base import BaseEventHandler
from muster_informers.handlers.default import DefaultEventHandler
from muster_informers.native_handler import CallResult, HandlerCall, node_patch
from muster_informers.registry import Registry
from muster_informers.service import ExternalService
from muster_informers.settings import ExternalSettings
from muster_informers.sync_gate import SyncGate
from muster_proto.si.v1 import si_pb2 as si
from muster_runtime.watchdog import Usage
from muster_scheduler.consult import NativeConsultation, NativeSource
from muster_scheduler.informer_host import natives_of
from simulation.messages import CONFIG as MESSAGES_CONFIG
from simulation.messages import RM as MESSAGES_RM
from simulation.messages import Talk, singles, whole
from unit.scheduler_service.rig import (
    RM,
    Rig,
    allocation,
    application,
    ask_release,
    asks,
    node,
    old_ask,
    registration,
    release,
    removal,
    said,
)
from unstamped import unstamped

SOURCE = "rm-itself"
UPDATE, DRAIN, UNDRAIN, GONE = (
    si.NodeInfo.UPDATE,
    si.NodeInfo.DRAIN_NODE,
    si.NodeInfo.DRAIN_TO_SCHEDULABLE,
    si.NodeInfo.DECOMISSION,
)


class Handler(DefaultEventHandler):
    """Keeps its calls. Makes statements, refuses and fails as the test demands."""

    def __init__(self, cache: ExternalCache, heard: list[str], says: Says) -> None:
        super().__init__(cache)
        self._heard, self._says = heard, says

    def __getattribute__(self, name: str) -> object:
        method = super().__getattribute__(name)
        if not name.startswith(("add_", "update_", "delete_")):
            return method

        def told(*what: ExternalObject, initial: bool = False) -> None:
            kept = {ExternalNode: "node_id", ExternalApplication: "app_id", ExternalAllocation: "key"}
            object_id = getattr(what[-1], kept[type(what[-1])])
            self._heard.append(f"{'initial ' if initial else ''}{name} {object_id}")
            self._says(object_id)
            new = self._says.of(what[-1])
            if name.startswith("add_"):
                method(new, initial=initial)  # type: ignore[operator]
            elif name.startswith("update_"):
                method(what[0], new)  # type: ignore[operator]
            else:
                method(new)  # type: ignore[operator]

        return told


class Says:
    def __init__(self) -> None:
        self.raised: dict[str, Exception] = {}
        self.of: Callable[[ExternalObject], ExternalObject] = lambda what: what

    def __call__(self, object_id: str) -> None:
        if object_id in self.raised:
            raise self.raised[object_id]


class Handled:
    """A machine with a handler for its RM's objects."""

    def __init__(
        self,
        make: Callable[[ExternalCache], EventHandler] | None = None,
        settings: dict[str, object] | None = None,
        **table: object,
    ) -> None:
        self.heard: list[str] = []
        self.says = Says()
        self._make = make or (lambda cache: Handler(cache, self.heard, self.says))
        self._table, self._settings = table, settings or {}
        self.rig = Rig()
        self.starts = 0
        self.start()

    def start(self) -> None:
        handlers = Registry("event handler", EVENT_HANDLERS_GROUP, HandlerSettingsWrong, ())
        handlers.register("told", lambda cache, config, context: self._make(cache))
        tables = {SOURCE: {"kind": "native", "rm": RM, "handler": "told", **self._table}}
        settings = ExternalSettings.model_validate({"informers": tables, **self._settings})
        clock = ManualClock()
        self.starts += 1
        life = f"life-{self.starts}"
        bus = MemoryLog(Topics(partitions=1).specs(), clock)
        self.service = ExternalService(settings, bus, Topics(partitions=1), clock, (0,), life, event_handlers=handlers)
        natives = natives_of(self.service, self.service, 60.0, clock, life)
        assert natives is not None
        self.natives = natives
        self.rig.gate = self.service.gate
        if self.starts > 1:
            self.rig.rebuild()
        self.rig.consult = lambda machine, records: asyncio.run(self.natives.consult(machine, records))

    def send(self, *bodies: object) -> list[str]:
        """Send a batch; return the handler's calls in it."""
        before = len(self.heard)
        self.rig.send(*bodies)
        self.rig.settle()
        return self.heard[before:]

    def free(self, node_id: str, name: str = "vcore") -> int:
        node = self.rig.core.partitions["default"].nodes[node_id]
        return node.available[node.types.number(name)]

    def words(self) -> dict[str, object]:
        """Return the source's recorded statements by id."""
        entries = self.rig.core.external.for_partition("default").entries()
        return {entry.object_id: entry.said for entry in entries if entry.source == SOURCE}

    def rejected(self, field: str) -> dict[str, str]:
        names = ("nodeID", "allocationKey", "applicationID")
        found = {}
        for item in self.rig.of(field):
            found[next(getattr(item, name) for name in names if hasattr(item, name))] = item.reason
        return found


def spare(vcore: int) -> Callable[[ExternalObject], ExternalObject]:
    def said(what: ExternalObject) -> ExternalObject:
        return replace(what, occupied={"vcore": vcore}) if isinstance(what, ExternalNode) else what

    return said


# ---- calls of the handler --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ["current", "previous"])
def test_the_handler_gets_the_rms_changes_in_order(generation: str) -> None:
    it = Handled()
    assert it.send(registration()) == []
    asked = asks(allocation("app", "k", vcore=1)) if generation == "current" else old_ask("app", "k", vcore=1)
    again = asks(allocation("app", "k", vcore=2)) if generation == "current" else old_ask("app", "k", vcore=2)
    assert it.send(node("n1", vcore=8), application("app", "root.c"), asked) == [
        "add_node n1",
        "add_application app",
        "add_allocation k",
    ]
    assert it.rig.keys("new") == ["k"]
    assert it.send(node("n1", UPDATE, vcore=9), again) == ["update_node n1", "update_allocation k"]
    assert it.send(node("n1", DRAIN), node("n1", UNDRAIN)) == ["update_node n1", "update_node n1"]
    ended = release("app", "k") if generation == "current" else release("app", uuid=it.rig.of("new")[0].UUID)
    assert it.send(ended) == ["delete_allocation k"]
    it.send(old_ask("app", "large", vcore=100))
    assert it.send(ask_release("app", "large")) == ["delete_allocation large"]
    assert it.send(removal("app"), node("n1", GONE)) == ["delete_application app", "delete_node n1"]
    assert it.send(removal("app"), node("n1", GONE), release("app", "k")) == [], "unknown objects have no calls"
    assert it.words() == {}, "the default handler makes no statements"


def test_old_and_new_are_what_the_rm_said_before_and_says_now() -> None:
    told: list[tuple[object, object]] = []

    class Looking(DefaultEventHandler):
        def update_node(self, old: ExternalNode, new: ExternalNode) -> None:
            told.append((old.capacity, new.capacity))
            super().update_node(old, new)

    it = Handled(Looking)
    it.send(registration(), node("n1", vcore=8), node("n1", UPDATE, vcore=9))
    it.send(node("n1", UPDATE, vcore=10), node("n1", UPDATE, vcore=11))
    assert told == [({"vcore": at}, {"vcore": at + 1}) for at in (8, 9, 10)]


def test_the_handler_gets_the_same_calls_for_one_message_or_several() -> None:
    def story() -> list[object]:
        return [
            registration(),
            node("n1", vcore=8),
            application("app", "root.c"),
            asks(allocation("app", "a", vcore=1), allocation("app", "b", vcore=1)),
            node("n1", UPDATE, vcore=6),
            release("app", "a"),
            registration(),
            node("n1", vcore=4),
        ]

    whole, split = Handled(), Handled()
    for each in (whole, split):
        each.says.of = spare(2)
    whole.send(*story())
    for body in story():
        split.send(body)
    assert whole.heard == split.heard
    assert (whole.free("n1"), whole.words()) == (split.free("n1"), split.words())
    assert whole.free("n1") == 2


def story(dice: random.Random) -> list[object]:
    """Return messages of several items, many of which contradict earlier ones."""
    names, apps, keys = ["n1", "n2", "n3", "bad"], ["a1", "a2", "evil"], [f"k{number}" for number in range(6)]
    actions = [si.NodeInfo.CREATE, si.NodeInfo.CREATE, UPDATE, DRAIN, UNDRAIN, GONE]
    messages: list[object] = [registration()]
    for _ in range(12):
        count = dice.randint(1, 4)
        match dice.randrange(4):
            case 0:
                infos = [
                    node(dice.choice(names), dice.choice(actions), vcore=dice.randint(4, 9)).nodes[0]
                    for _ in range(count)
                ]
                messages.append(si.NodeRequest(nodes=infos, rmID=RM))
            case 1:
                new = [application(dice.choice(apps), "root.c").new[0] for _ in range(count)]
                gone = removal(dice.choice(apps)).remove if dice.random() < 0.3 else []
                messages.append(si.ApplicationRequest(new=new, remove=gone, rmID=RM))
            case 2:
                wanted = [
                    allocation(dice.choice(apps), dice.choice([*keys, "no"]), vcore=dice.randint(1, 3))
                    for _ in range(count)
                ]
                messages.append(asks(*wanted))
            case 3:
                messages.append(release(dice.choice(apps), dice.choice(keys)))
    return messages


def parted(message: object) -> list[object]:
    """Return one message for each item, in the order of processing."""
    match message:
        case si.NodeRequest():
            return [si.NodeRequest(nodes=[each], rmID=RM) for each in message.nodes]
        case si.ApplicationRequest():
            new = [si.ApplicationRequest(new=[each], rmID=RM) for each in message.new]
            return new + [si.ApplicationRequest(remove=[each], rmID=RM) for each in message.remove]
        case si.AllocationRequest() if message.allocations:
            return [asks(each) for each in message.allocations]
    return [message]


@pytest.mark.parametrize("seed", range(40))
def test_however_a_message_is_cut_the_outcome_is_the_same(seed: int) -> None:
    dice = random.Random(seed)
    messages = story(dice)
    lives = []
    for pieces in (messages, [piece for message in messages for piece in parted(message)]):
        it = Handled()
        it.says.raised = {"bad": NotTaken("no"), "evil": ValueError("what?"), "no": NotTaken("no")}
        it.says.of = spare(2)
        it.rig.send(*pieces)  # (in one batch, so that nothing is decided in between)
        it.rig.settle()
        nodes = it.rig.core.partitions["default"].nodes
        lives.append(
            (
                it.heard,
                it.words(),
                {name: (it.free(name), each.schedulable) for name, each in nodes.items()},
                sorted(it.rig.keys("new")),
                *(sorted(it.rejected(field).items()) for field in ("rejected", "rejectedAllocations")),
            )
        )
    assert lives[0] == lives[1]


# ---- statements about nodes ------------------------------------------------------------------------------------------


def test_a_handlers_statement_restricts_a_node_from_the_first_decision_on() -> None:
    it = Handled()
    it.says.of = spare(6)
    it.send(registration(), node("n1", vcore=8), application("app", "root.c"))
    assert it.free("n1") == 2
    it.send(asks(*(allocation("app", f"k{number}", vcore=1) for number in range(4))))
    assert len(it.rig.keys("new")) == 2
    messages = [event.message for _, event in it.rig.events if event.objectID == "n1"]
    assert any(f"(sources: {SOURCE})" in message for message in messages)


def test_a_handlers_statement_is_recorded_and_survives_a_rebuild() -> None:
    it = Handled()
    it.says.of = spare(6)
    it.send(registration(), node("n1", vcore=8))
    it.rig.rebuild()
    assert it.free("n1") == 2
    kinds = [parse_state_key(key)[1] for key in it.rig.state]
    assert (kinds.count("ext"), kinds.count("source")) == (1, 1)


def test_an_omitted_statement_ends() -> None:
    it = Handled()
    it.says.of = spare(6)
    it.send(registration(), node("n1", vcore=8))
    it.says.of = lambda what: what
    it.send(node("n1", UPDATE, vcore=8))
    assert (it.free("n1"), it.words()) == (8, {})


def test_a_node_that_goes_leaves_no_word_behind() -> None:
    it = Handled()
    it.says.of = spare(6)
    it.send(registration(), node("n1", vcore=8), node("n1", GONE))
    assert it.words() == {}


def test_it_may_put_other_objects_that_are_its_own() -> None:
    class Quotas(DefaultEventHandler):
        def add_application(self, application: ExternalApplication, *, initial: bool) -> None:
            super().add_application(application, initial=initial)
            self.cache.put(ExternalQueue("root.c", {"vcore": 3}))

    it = Handled(Quotas)
    it.send(registration(), node("n1", vcore=8), application("app", "root.c"))
    assert it.words() == {"root.c": ExternalQueue("root.c", {"vcore": 3})}
    it.send(asks(*(allocation("app", f"k{number}", vcore=1) for number in range(4))))
    assert len(it.rig.keys("new")) == 3


SAID = ExternalNode("n", {"vcore": 8, "memory": 8}, {"vcore": 1}, {"zone": "a"})


@pytest.mark.parametrize(
    ("put", "word"),
    [
        (SAID, None),
        (replace(SAID, capacity={"vcore": 9, "memory": 8}), None),  # a statement cannot enlarge a node
        (replace(SAID, capacity={"vcore": 6, "memory": 8}), ExternalNode("n", {"vcore": 6}, brings=False)),
        (replace(SAID, capacity={"vcore": 8}), None),  # no statement about memory
        (replace(SAID, capacity={"vcore": 8}, whole=True), ExternalNode("n", {"memory": 0}, brings=False)),
        (replace(SAID, occupied={"vcore": 3}), ExternalNode("n", None, {"vcore": 2}, brings=False)),
        (replace(SAID, occupied={}), None),
        (
            replace(SAID, attributes={"zone": "b", "rack": "1"}),
            ExternalNode("n", None, {}, {"rack": "1"}, brings=False),
        ),
        (replace(SAID, schedulable=False), ExternalNode("n", None, schedulable=False, brings=False)),
    ],
)
def test_the_word_of_a_handler_is_what_it_says_beside_the_rm(put: ExternalNode, word: ExternalNode | None) -> None:
    assert node_patch(SAID, put) == word


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_refused_objects_are_rejected_with_the_reason() -> None:
    it = Handled()
    it.says.raised = {name: NotTaken(f"not {name} here") for name in ("n2", "app-2", "k2")}
    it.send(registration(), node("n1", vcore=8), node("n2", vcore=8))
    it.send(application("app", "root.c"), application("app-2", "root.c"))
    it.send(asks(allocation("app", "k1", vcore=1), allocation("app", "k2", vcore=1)))
    assert [*it.rig.core.partitions["default"].nodes] == ["n1"]
    assert it.rig.keys("new") == ["k1"]
    says = "event handler told does not take it: not"
    assert it.rejected("rejectedAllocations") == {"k2": f"{says} k2 here"}
    rejected = it.rejected("rejected")
    assert rejected == {"n2": f"{says} n2 here", "app-2": f"{says} app-2 here"}
    assert it.service.problems() == [], "a refusal is no problem of the handler"


def test_an_ask_of_the_previous_generation_is_rejected_in_its_words() -> None:
    it = Handled()
    it.says.raised = {"k": NotTaken("no")}
    it.send(registration(), node("n1", vcore=8), application("app", "root.c"), old_ask("app", "k", vcore=1))
    assert it.rejected("rejected") == {"k": "event handler told does not take it: no"}


def test_objects_that_the_handler_does_not_put_are_rejected() -> None:
    it = Handled(lambda cache: BaseEventHandler())
    it.send(registration(), node("n1", vcore=8))
    assert it.rejected("rejected") == {
        "n1": "event handler told does not take it: it did not put node n1 into its cache"
    }


def test_running_allocations_are_adopted_even_if_refused() -> None:
    it = Handled()
    it.send(registration(), node("n1", vcore=8))
    it.says.raised = {name: NotTaken("no") for name in ("app", "runs", "daemon")}
    forced = application("app", "root.c", tags={"application.create.force": "true"})
    foreign = allocation("", "daemon", "n1", {"foreign": "default"}, vcore=1)
    it.send(forced, asks(allocation("app", "runs", "n1", vcore=1), foreign))
    assert it.rejected("rejectedAllocations") == it.rejected("rejected") == {}
    assert it.free("n1") == 6
    it.says.raised = {}
    it.send(asks(allocation("app", "waits", vcore=100)))
    it.says.raised = {"waits": NotTaken("no")}
    it.send(asks(allocation("app", "waits", vcore=101)), release("app", "waits"))
    assert it.rejected("rejectedAllocations") == {}, "a rejection would mean the end of the allocation"


def test_a_node_that_is_there_and_is_refused_takes_nothing_new() -> None:
    it = Handled()
    it.send(registration(), node("n1", vcore=8))
    it.says.raised = {"n1": NotTaken("no")}
    it.send(node("n1", UPDATE, vcore=9))
    assert it.rejected("rejected") == {"n1": "event handler told does not take it: no"}
    assert it.free("n1") == 8, "the refused update changed nothing"
    it.start()
    it.send(node("n1", DRAIN))
    assert it.words() == {"n1": ExternalNode("n1", schedulable=False, brings=False)}


# ---- responsibleForNode ----------------------------------------------------------------------------------------------


def test_another_schedulers_node_is_rejected_with_its_name() -> None:
    it = Handled(settings={"instances": ("a", "b"), "instance": "a"})
    names = [f"n{number}" for number in range(20)]
    mine = [name for name in names if responsible_for_node(name, "a", ("a", "b"))]
    assert 0 < len(mine) < len(names)
    it.send(registration(), application("app", "root.c"), *(node(name, vcore=8) for name in names))
    assert sorted(it.rig.core.partitions["default"].nodes) == sorted(mine)
    other = next(name for name in names if name not in mine)
    assert it.rejected("rejected")[other] == f"node {other} is scheduler b's, not a's (of a, b)"
    assert it.heard == ["add_application app", *(f"add_node {name}" for name in mine)]
    assert it.send(asks(allocation("app", "k", vcore=1))) == ["add_allocation k"], "every scheduler's handler gets asks"


def test_without_a_native_informer_the_filter_is_about_sources_only() -> None:
    settings = ExternalSettings.model_validate({"instances": ("a", "b"), "instance": "a"})
    topics = Topics(partitions=1)
    service = ExternalService(settings, MemoryLog(topics.specs(), ManualClock()), topics, ManualClock(), (0,), "life")
    assert (service.natives, service.gate.natives) == ({}, {})
    assert natives_of(service, service, 60.0, ManualClock(), "life") is None, "there is no handler to consult"


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_handler_that_fails_keeps_out_what_is_new_and_closes_what_is_there() -> None:
    it = Handled()
    it.send(registration(), node("n1", vcore=8), application("app", "root.c"))
    it.says.raised = {name: ValueError("broken") for name in ("n1", "n2", "k")}
    it.send(node("n2", vcore=8), node("n1", UPDATE, vcore=4), asks(allocation("app", "k", vcore=1)))
    why = "event handler told failed: ValueError: broken"
    assert it.rejected("rejectedAllocations") == {"k": why}
    assert it.rejected("rejected") == {"n2": why}
    assert it.free("n1") == 4, "the RM's update of an existing node applies"
    assert not it.rig.core.partitions["default"].nodes["n1"].schedulable
    assert it.service.problems() == [
        f"informer {SOURCE} (native): {why} on allocation k (and on 2 more), which is refused or closed"
    ]
    it.says.raised = {}
    it.send(node("n1", UPDATE, vcore=4), node("n2", vcore=8), asks(allocation("app", "k", vcore=1)))
    assert it.rig.keys("new") == ["k"]
    assert it.rig.core.partitions["default"].nodes["n1"].schedulable
    assert it.service.problems() == []


def test_with_keep_a_handler_that_fails_changes_nothing() -> None:
    it = Handled(when_lost="keep")
    it.says.raised = {name: ValueError("broken") for name in ("n1", "app", "k")}
    it.send(registration(), node("n1", vcore=8), application("app", "root.c"), asks(allocation("app", "k", vcore=1)))
    assert it.rig.keys("new") == ["k"]
    assert "which is taken as the resource manager said it" in it.service.problems()[0]


def test_a_handler_that_cannot_begin_again_fails_on_everything() -> None:
    made: list[bool] = []

    def make(cache: ExternalCache) -> EventHandler:
        made.append(True)
        if len(made) == 3:
            raise HandlerSettingsWrong("config_path: 'acme.toml': No such file or directory")
        return DefaultEventHandler(cache)

    it = Handled(make)
    it.send(registration(), node("n1", vcore=8))
    it.send(registration(), node("n1", vcore=8))
    why = "event handler told cannot begin: config_path: 'acme.toml': No such file or directory"
    assert it.rejected("rejected") == {"n1": why}
    assert it.service.problems() == [f"informer {SOURCE} (native): {why}; whatever is new is refused or closed"]
    it.send(registration(), node("n1", vcore=8))
    assert it.free("n1") == 8
    assert it.service.problems() == []


class Silent:
    """Handlers that do not answer, or whose process is gone for a number of calls."""

    synced = True

    def __init__(self, service: ExternalService) -> None:
        self._service = service
        self.is_silent = False
        self.has_processor, self.waited_s = True, 0.0
        self.answers_after_s = 0.0
        self.gone = 0
        self.life = 1
        self.given_up: list[int] = []
        self.asked = 0

    async def handlers_ready(self) -> int:
        return self.life

    async def call_handler(
        self, name: str, life: int, begins: bool, calls: Sequence[HandlerCall]
    ) -> Sequence[CallResult]:
        self.asked += 1
        if self.is_silent:
            await asyncio.Event().wait()
        await asyncio.sleep(self.answers_after_s)
        if self.gone:
            self.gone -= 1
            self.life += 1
            raise HandlerExited
        return await self._service.call_handler(name, life, begins, calls)

    def usage(self) -> Usage:
        self.waited_s += 0.0 if self.has_processor else 100.0  # more than passes
        return Usage(0.0, self.waited_s)

    def abandon(self, life: int, reason: str) -> None:
        self.given_up.append(life)
        self.life += 1


def behind(it: Handled, clock: ManualClock) -> Silent:
    silent = Silent(it.service)
    source = NativeSource(SOURCE, RM, "default", "told", True, 0.05)
    it.natives = NativeConsultation([source], silent, clock, "life-1", 0.05, pause_s=30.0)
    return silent


def test_a_handler_that_hangs_costs_one_time_out_and_is_left_alone_for_a_while() -> None:
    it, clock = Handled(), ManualClock()
    silent = behind(it, clock)
    it.send(registration(), node("n1", vcore=8))
    silent.is_silent = True
    it.send(node("n2", vcore=8))
    it.send(node("n3", vcore=8))
    assert (silent.asked, silent.given_up) == (2, [1])
    why = "event handler told did not answer within 0.05 s"
    assert it.rejected("rejected") == {"n2": why, "n3": f"{why}, a moment ago"}
    assert it.natives.problems() == [f"informer {SOURCE} (native): {why}; it is asked again after 30 s"]
    silent.is_silent = False
    clock.advance(31)
    assert it.natives.problems() == []
    assert it.send(node("n2", vcore=8)) == ["initial add_node n1", "add_node n2"]
    assert sorted(it.rig.core.partitions["default"].nodes) == ["n1", "n2"]


def test_a_handler_whose_process_gets_no_processor_is_waited_for() -> None:
    it = Handled()
    silent = behind(it, ManualClock())
    it.send(registration(), node("n1", vcore=8))
    silent.has_processor, silent.answers_after_s = False, 0.5  # ten times what it may use
    assert it.send(node("n2", vcore=8)) == ["add_node n2"]
    assert silent.given_up == []


def test_a_handler_whose_process_ends_is_asked_again_when_it_is_back() -> None:
    it = Handled()
    silent = behind(it, ManualClock())
    it.send(registration(), node("n1", vcore=8))
    silent.gone = 2
    assert it.send(node("n2", vcore=8)) == ["initial add_node n1", "add_node n2"]
    assert it.rejected("rejected") == {}


# ---- restarts of the handler -----------------------------------------------------------------------------------------


def test_a_new_handler_gets_all_existing_objects() -> None:
    it = Handled()
    it.says.of = spare(4)
    it.send(registration(), node("n1", vcore=8), node("n2", vcore=8), application("app", "root.c"))
    it.send(asks(allocation("app", "runs", vcore=1), allocation("app", "waits", vcore=100)))
    it.says.of = spare(5)
    it.start()
    assert (it.free("n1") + it.free("n2"), len(it.words())) == (7, 2)
    assert it.send(node("n3", vcore=8)) == [
        "initial add_node n1",
        "initial add_node n2",
        "initial add_application app",
        "initial add_allocation waits",
        "initial add_allocation runs",
        "add_node n3",
    ]
    assert [it.free(name) for name in ("n1", "n2", "n3")] in ([2, 3, 3], [3, 2, 3]), "each occupied amount counts once"
    assert it.send(node("n3", UPDATE, vcore=9)) == ["update_node n3"]


def test_independent_asks_are_passed_without_an_application() -> None:
    it = Handled()
    it.send(registration(), node("n1", vcore=8))
    ask = asks(allocation("", "alone", vcore=1))
    assert it.send(ask) == ["add_allocation alone"]
    it.start()
    assert it.send(node("n2", vcore=8)) == ["initial add_node n1", "initial add_allocation alone", "add_node n2"]
    assert it.send(release("", "alone")) == ["delete_allocation alone"]


def test_statements_that_a_new_handler_omits_end() -> None:
    it = Handled()
    it.says.of = spare(4)
    it.send(registration(), node("n1", vcore=8), node("n2", vcore=8))
    it.says.of = lambda what: what
    it.start()
    it.send(node("n2", UPDATE, vcore=9))
    assert (it.free("n1"), it.free("n2"), it.words()) == (8, 9, {})


def test_a_registration_begins_the_handler_anew() -> None:
    it = Handled()
    it.says.of = spare(4)
    it.send(registration(), node("n1", vcore=8))
    assert it.send(registration(), node("n1", vcore=8)) == ["add_node n1"]
    assert it.send(node("n1", UPDATE, vcore=9)) == ["update_node n1"]
    assert it.words().keys() == {"n1"}
    assert it.send(registration(), node("n2", vcore=8)) == ["add_node n2"]
    assert it.words().keys() == {"n2"}


def test_a_registration_that_is_refused_takes_nothing_away() -> None:
    it = Handled()
    it.says.of = spare(4)
    it.send(registration(), node("n1", vcore=8))
    it.send(registration("nonsense: ["), node("n2", vcore=8))
    assert (it.free("n1"), it.free("n2")) == (4, 4)
    assert it.send(node("n3", vcore=8)) == ["initial add_node n1", "initial add_node n2", "add_node n3"]
    assert (it.free("n1"), it.free("n2"), it.free("n3")) == (4, 4, 4)


def test_statements_stay_without_the_table_until_the_source_is_emptied() -> None:
    it = Handled()
    it.says.of = spare(4)
    it.send(registration(), node("n1", vcore=8))
    it.rig.rebuild()
    assert it.rig.core.external.source("default", SOURCE).state is SourceState.LIVE
    it.rig.gate = SyncGate("life-2")
    it.rig.consult = None
    it.rig.rebuild()
    it.rig.settle()
    entry = it.rig.core.external.source("default", SOURCE)
    assert (entry.state, entry.reason, it.free("n1")) == (SourceState.STALE, NOT_CONFIGURED, 4)
    it.rig.send(said(source=SOURCE, life="life-3", state=SourceState.LISTING))
    it.rig.send(said(source=SOURCE, life="life-3", state=SourceState.LIVE))
    assert it.free("n1") == 8


def test_an_unreadable_request_goes_to_the_dead_letters() -> None:
    it = Handled()
    it.send(registration(), b"\xff", node("n1", vcore=8))
    assert len(it.rig.dead) == 1
    assert it.heard == ["add_node n1"]


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"timeout_s": 0}, "timeout_s: 0, expected seconds above 0, at most 60"),
        ({"timeout_s": "5"}, "timeout_s: '5', expected seconds above 0, at most 60"),
        ({"url": "x"}, "url: not known, expected timeout_s"),
        ({"handler": "nobody"}, "event handler 'nobody' is not known"),
    ],
)
def test_a_bad_handler_is_an_error_at_the_start(table: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidExternalSettings, match=problem):
        Handled(**table)


def test_two_for_one_partition_are_an_error_at_the_start() -> None:
    tables = {name: {"kind": "native", "rm": RM} for name in ("one", "two")}
    settings = ExternalSettings.model_validate({"informers": tables})
    topics = Topics(partitions=1)
    with pytest.raises(InvalidExternalSettings, match="two: another one of kind 'native' beside one"):
        ExternalService(settings, MemoryLog(topics.specs(), ManualClock()), topics, ManualClock(), (0,), "life")


def test_between_two_calls_nothing_can_be_put() -> None:
    caches: list[ExternalCache] = []

    class Keeping(DefaultEventHandler):
        def __init__(self, cache: ExternalCache) -> None:
            super().__init__(cache)
            caches.append(cache)

    it = Handled(Keeping)
    it.send(registration(), node("n1", vcore=8))
    with pytest.raises(NotTaken, match="no call is under way"):
        caches[-1].put(ExternalNode("n1"))
    with pytest.raises(NotTaken, match="no call is under way"):
        caches[-1].delete(ExternalKind.NODE, "n1")


# ---- one message or many ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_cutting_a_message_changes_nothing_of_what_a_handler_makes_of_it(seed: int) -> None:
    """A statement about an item applies right before that item, not before the message."""
    talk, written, heard = Talk(seed), [], []
    beginning = [message for _, message in talk.beginning()]
    said = [talk.message() for _ in range(5)]
    for cut in (whole, singles):
        it = Handled()
        it.says.of = spare(2)
        it.says.raised = {"k2": NotTaken("not this one"), "app-2": NotTaken("nor this one")}
        it.send(registration(MESSAGES_CONFIG))
        it.send(*beginning)
        for kind, message in said:
            parts = [part for raw in cut(kind, message.SerializeToString()) for part in admitted(kind, raw)]
            it.send(*parts)
        written.append(list(map(unstamped, it.rig.written)))
        heard.append(it.heard)
    assert heard[0] == heard[1]
    assert written[0] == written[1]


def admitted(kind: StreamKind, raw: bytes) -> list[object]:
    payloads = admit(kind, raw, MESSAGES_RM, AdmissionLimits()).payloads
    return [REQUEST_TYPES[kind].FromString(payload) for payload in payloads]


def test_a_verdict_on_an_item_follows_the_items_before_it() -> None:
    it = Handled()
    it.says.of = lambda what: (
        replace(what, occupied={"vcore": len(what.attributes)}) if isinstance(what, ExternalNode) else what
    )
    it.send(registration())
    create, again = node("n9", vcore=8), node("n9", vcore=8)
    again.nodes[0].attributes["rack"] = "r1"
    message = si.NodeRequest(nodes=[*create.nodes, *node("n9", GONE).nodes, *again.nodes])
    assert it.send(message) == ["add_node n9", "delete_node n9", "add_node n9"]
    assert it.free("n9") == 7
    assert [item.nodeID for item in it.rig.of("accepted")] == ["n9"] * 3  # type: ignore[attr-defined]
