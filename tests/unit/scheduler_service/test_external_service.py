"""The informers of a process: start, first synchronization, and isolation of an informer's defects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from typing import Any, cast

import pytest
from muster_bus.backends.memory import MemoryLog
from muster_bus.clock import SystemClock
from muster_bus.log import LogWriter, OutRecord
from muster_bus.topics import Topics
from muster_core.external.errors import (
    DuplicateName,
    InformerSettingsWrong,
    InvalidExternalSettings,
    NotSynced,
    SourceUnavailable,
    UnknownName,
)
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalOffer,
    OfferState,
    SetSourceState,
    SourceState,
)
from muster_core.external.reports import ExternalReports
from muster_core.model.steps import finish
from muster_informers import registry
from muster_informers import service as service_module
from muster_informers.contract import (
    ChangeType,
    Delta,
    Document,
    ExternalCache,
    HandlerContext,
    InformerContext,
    Listing,
    Options,
)
from muster_informers.handlers.default import DefaultEventHandler
from muster_informers.informer import SharedIndexInformer
from muster_informers.process import ExternalProcess
from muster_informers.registry import Registry
from muster_informers.service import ExternalService
from muster_informers.settings import ExternalSettings
from muster_proto.muster.bus.v1 import envelope_pb2 as pb
from muster_scheduler import ingest
from muster_scheduler.service import SchedulerService
from muster_scheduler.settings import SchedulerSettings
from muster_state import state_codec

RM = "rm-1"
WITHIN_S = 20.0
Heard = ApplyExternalChanges | SetSourceState


class Source:
    """A source that the test controls.

    :ivar away: the error of each call; "": calls succeed.
    :ivar closing: ``close`` waits for this event.
    """

    def __init__(self, documents: Sequence[Document] = (), away: str = "") -> None:
        self.documents, self.away = list(documents), away
        self.deltas: asyncio.Queue[Sequence[Delta]] = asyncio.Queue()
        self.closing = asyncio.Event()
        self.closing.set()
        self.given_back: list[str] = []

    async def list(self) -> Listing:
        if self.away:
            raise SourceUnavailable(self.away)
        return Listing(self.documents, "1")

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        while True:
            yield await self.deltas.get()

    async def close(self) -> None:
        await self.closing.wait()


class Lender(Source):
    async def give_back(self, offer_ids: Sequence[str]) -> None:
        self.given_back += offer_ids


class Bench:
    """A log, and services over sources by name: an informer's ``kind`` is the name of its source."""

    def __init__(self, log: MemoryLog, topics: Topics, **sources: Source) -> None:
        self.log, self.topics, self.sources = log, topics, sources
        self.handlers: dict[str, Callable[[ExternalCache, bytes | None, HandlerContext], object]] = {
            "default": lambda cache, config, context: DefaultEventHandler(cache)
        }
        self.informers = Registry("informer", "g", InformerSettingsWrong, ("list", "watch", "close"), lambda: ())
        self.event_handlers = Registry("event handler", "g", InformerSettingsWrong, (), lambda: ())
        for name, source in sources.items():
            self.informers.register(name, self._factory(source))

    @staticmethod
    def _factory(source: Source) -> Callable[[Options, InformerContext], Source]:
        def make(options: Options, context: InformerContext) -> Source:
            if "strange" in options:
                raise InformerSettingsWrong(
                    f"scheduler.external.informers.{context.name}.strange: there is no such option"
                )
            return source

        return make

    def service(self, partitions: Sequence[int] = (0,), **settings: object) -> ExternalService:
        for name, factory in self.handlers.items():
            self.event_handlers.register(name, factory)
        self.handlers = {}
        return ExternalService(
            ExternalSettings.model_validate({"sync_timeout_s": WITHIN_S, **settings}),
            self.log,
            self.topics,
            SystemClock(),
            partitions,
            "life-1",
            informers=self.informers,
            event_handlers=self.event_handlers,
        )

    @asynccontextmanager
    async def running(self, **settings: object) -> AsyncIterator[ExternalService]:
        service = self.service(**settings)  # type: ignore[arg-type]
        await service.start()
        try:
            yield service
        finally:
            await service.stop()

    async def heard(self, until: Callable[[list[Heard]], bool]) -> list[Heard]:
        """Wait until the condition holds for the log's statements, and return them."""
        reader = await self.log.reader(self.topics.requests, 0, 0)
        found: list[Heard] = []
        try:
            async with asyncio.timeout(WITHIN_S):
                while not until(found):
                    for record in await reader.read(100, 1.0):
                        assert record.key == RM.encode()
                        found += ingest.external(pb.RequestEnvelope.FromString(record.value or b"").external)
        finally:
            await reader.close()
        return found

    async def spoken(self) -> list[tuple[str, str]]:
        """Return the log's records in order: (source, state or an object's id)."""
        reader = await self.log.reader(self.topics.requests, 0, 0)
        found: list[tuple[str, str]] = []
        try:
            while records := await reader.read(100, 0.01):
                for record in records:
                    said = pb.RequestEnvelope.FromString(record.value or b"").external
                    found += [(said.source, change.id) for change in said.changes]
                    found += [(said.source, said.note.state)] if said.HasField("note") else []
        finally:
            await reader.close()
        return found

    async def noted(self, source: str) -> list[str]:
        """Return the states of a source that the log has."""
        return [word for who, word in await self.spoken() if who == source and word.isupper()]


@pytest.fixture
async def bench_of() -> AsyncIterator[Callable[..., Awaitable[Bench]]]:
    topics = Topics(partitions=1)
    log = MemoryLog(topics.specs(), SystemClock())
    await log.start()

    async def make(**sources: Source) -> Bench:
        return Bench(log, topics, **sources)

    yield make
    await log.close()


BenchOf = Callable[..., Awaitable[Bench]]


def table(kind: str, **more: object) -> dict[str, object]:
    return {"kind": kind, "rm": RM, **more}


def node(number: int) -> Document:
    return {"kind": "node", "id": f"h{number}", "capacity": {"vcore": 4000}}


def states(found: list[Heard]) -> list[SourceState]:
    return [each.state for each in found if isinstance(each, SetSourceState)]


def changed(found: list[Heard]) -> list[tuple[str, bool]]:
    """Return (object's id, whether it was reported as unreadable) for each change."""
    return [
        (each.object_id, each.stale) for one in found if isinstance(one, ApplyExternalChanges) for each in one.changes
    ]


async def synced(service: ExternalService) -> None:
    async with asyncio.timeout(WITHIN_S):
        await service.wait()


# ---- what is configured ----------------------------------------------------------------------------------------------


async def test_all_mistakes_are_reported_at_once_and_nothing_is_opened(bench_of: BenchOf) -> None:
    bench = await bench_of(vms=Source())
    with pytest.raises(InvalidExternalSettings) as error:
        bench.service(
            informers={
                "a": table("ghost"),
                "b": table("vms", handler="nobody"),
                "c": table("vms", strange=1),
                "d": table("vms"),
            }
        )
    assert error.value.problems == (
        "scheduler.external.informers.a: informer 'ghost' is not known, expected one of: vms",
        "scheduler.external.informers.b: event handler 'nobody' is not known, expected one of: default",
        "scheduler.external.informers.c.strange: there is no such option",
    )


async def test_an_unknown_handler_or_a_duplicate_name_is_reported_without_any_informer(bench_of: BenchOf) -> None:
    bench = await bench_of()
    with pytest.raises(UnknownName, match="event handler 'ghost' is not known, expected one of: default"):
        bench.service(event_handler="ghost")
    twice = [EntryPoint("file", "one:make", "g"), EntryPoint("file", "two:make", "g")]
    bench.informers = Registry("informer", "g", InformerSettingsWrong, (), lambda: twice)
    with pytest.raises(DuplicateName, match=r"one:make.*two:make"):
        bench.service()


async def test_only_informers_of_owned_partitions_are_run_and_waited_for(bench_of: BenchOf) -> None:
    bench = await bench_of(vms=Source(), other=Source())
    bench.topics = Topics(partitions=4)
    mine = bench.topics.partition_of(RM)
    other = next(name for name in map(str, range(99)) if bench.topics.partition_of(name) != mine)
    tables = {"a": table("vms", partition="Default"), "b": table("other", rm=other), "c": table("vms", partition="gpu")}
    service = bench.service(partitions=(mine,), informers=tables)
    assert service.gate.incarnation == "life-1"
    assert service.gate.sources == {RM: (("default", "a"), ("gpu", "c"))}
    assert bench.service(partitions=(), informers=tables).gate.sources == {}


# ---- until all of them have synced -----------------------------------------------------------------------------------


async def test_a_listing_is_on_the_log_before_the_wait_ends(bench_of: BenchOf) -> None:
    bench = await bench_of(vms=Source([node(1), node(2)]))
    async with bench.running(informers={"vms": table("vms", when_lost="keep")}) as service:
        await synced(service)
        assert service.synced
        assert service.problems() == []
        (began, listed, live) = await bench.heard(lambda found: states(found)[-1:] == [SourceState.LIVE])
        assert began == SetSourceState("default", "vms", "life-1", SourceState.LISTING, drains=False)
        assert isinstance(listed, ApplyExternalChanges)
        assert [change.object_id for change in listed.changes] == ["h1", "h2"]
        assert live == SetSourceState("default", "vms", "life-1", SourceState.LIVE, drains=False)


async def test_changes_go_on_to_the_log(bench_of: BenchOf) -> None:
    source = Source([node(1)])
    bench = await bench_of(vms=source)
    async with bench.running(informers={"vms": table("vms")}) as service:
        await synced(service)
        source.deltas.put_nowait([Delta(ChangeType.ADDED, node(2), "2"), Delta(ChangeType.DELETED, node(1), "3")])
        found = await bench.heard(lambda found: len(found) > 3)
        assert found[3] == ApplyExternalChanges(
            "default",
            "vms",
            "life-1",
            (
                ExternalChange(ExternalKind.NODE, "h2", ExternalNode("h2", {"vcore": 4000})),
                ExternalChange(ExternalKind.NODE, "h1", None),
            ),
        )


async def test_without_informers_nothing_is_waited_for(bench_of: BenchOf) -> None:
    bench = await bench_of()
    async with bench.running() as service:
        await synced(service)
        assert service.synced


async def test_required_informers_that_do_not_sync_are_named_with_their_last_errors(bench_of: BenchOf) -> None:
    bench = await bench_of(vms=Source(away="connection refused"), pools=Source([node(1)]), slow=Source(away="no route"))
    tables = {"vms": table("vms"), "pools": table("pools"), "slow": table("slow", required=False)}
    async with bench.running(informers=tables, sync_timeout_s=0.5) as service:
        assert "informer vms (vms) has not synced: " in service.problems()[0]
        with pytest.raises(NotSynced) as error:
            await synced(service)
        assert error.value.informers == {"vms": "connection refused"}
        assert str(error.value) == "informers that had not synced after 0.5 s: vms: connection refused"
        assert not service.synced


async def test_the_wait_lasts_until_the_listing_is_on_the_log(
    bench_of: BenchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await bench_of(vms=Source([node(1)]))
    writer = await bench.log.writer("slow")

    async def full() -> None:
        await asyncio.Event().wait()

    async def slow(name: str) -> LogWriter:
        return writer

    monkeypatch.setattr(writer, "wait_writable", full)
    monkeypatch.setattr(bench.log, "writer", slow)
    async with bench.running(informers={"vms": table("vms")}, sync_timeout_s=0.5) as service:
        with pytest.raises(NotSynced, match="vms: its listing is not on the log yet"):
            await synced(service)


async def test_an_informer_that_is_not_required_is_given_up_and_may_come_later(bench_of: BenchOf) -> None:
    source = Source([node(1)], away="connection refused")
    bench = await bench_of(vms=source, pools=Source())
    tables = {"vms": table("vms", required=False), "pools": table("pools")}
    async with bench.running(informers=tables, sync_timeout_s=0.5) as service:
        await synced(service)
        assert service.synced
        assert service.problems() == ["informer vms (vms): connection refused; its nodes take no new allocations"]
        found = await bench.heard(lambda found: SourceState.STALE in states(found))
        (given_up,) = [each for each in found if isinstance(each, SetSourceState) and each.state is SourceState.STALE]
        assert given_up.reason == "not synced after 0.5 s: connection refused"
        source.away = ""
        found = await bench.heard(lambda found: states(found)[-1:] == [SourceState.LIVE] and len(states(found)) == 5)
        assert [each.source for each in found if isinstance(each, ApplyExternalChanges)] == ["vms"]


# ---- defects ---------------------------------------------------------------------------------------------------------


class Failing(DefaultEventHandler):
    def add_node(self, node: ExternalNode, *, initial: bool) -> None:
        if node.node_id == "h2":
            raise KeyError("oops")
        super().add_node(node, initial=initial)


async def test_a_handler_that_fails_on_one_object_fails_on_no_other(bench_of: BenchOf) -> None:
    bench = await bench_of(vms=Source([node(1), node(2), node(3)]))
    bench.handlers["failing"] = lambda cache, config, context: Failing(cache)
    async with bench.running(informers={"vms": table("vms", handler="failing")}) as service:
        await synced(service)
        found = await bench.heard(lambda found: SourceState.LIVE in states(found))
        changes = [change for each in found if isinstance(each, ApplyExternalChanges) for change in each.changes]
        assert [(change.object_id, change.stale) for change in changes] == [("h1", False), ("h3", False), ("h2", True)]


@pytest.mark.parametrize("required", [False, True])
async def test_an_informer_that_ends_by_a_defect_ends_alone(
    bench_of: BenchOf, monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    run = SharedIndexInformer.run

    async def failing(self: SharedIndexInformer) -> None:
        if self.name == "broken":
            raise RuntimeError("token=s3cret\nis wrong")
        await run(self)

    monkeypatch.setattr(SharedIndexInformer, "run", failing)
    bench = await bench_of(vms=Source([node(1)]))
    tables = {"vms": table("vms"), "broken": table("vms", required=required)}
    async with bench.running(informers=tables, sync_timeout_s=0.5) as service:
        if required:
            with pytest.raises(NotSynced, match="broken: its informer failed: RuntimeError: ") as error:
                await synced(service)
            assert "vms" not in error.value.informers
            found = await bench.heard(lambda found: any(isinstance(each, ApplyExternalChanges) for each in found))
            assert set(states(found)) == {SourceState.LISTING}  # otherwise decisions would begin without it
        else:
            await synced(service)
            (problem,) = service.problems()
            assert problem.startswith("informer broken (vms): its informer failed: RuntimeError: ")
            assert "s3cret" not in problem
            found = await bench.heard(lambda found: SourceState.STALE in states(found))
            assert {each.source for each in found if isinstance(each, SetSourceState)} == {"vms", "broken"}


async def test_stopping_does_not_wait_for_a_source_for_ever(bench_of: BenchOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "STOP_TIMEOUT_S", 0.2)
    source = Source([node(1)])
    source.closing.clear()
    bench = await bench_of(vms=source)
    service = bench.service(informers={"vms": table("vms")})
    await service.start()
    await synced(service)
    async with asyncio.timeout(WITHIN_S):
        await service.stop()
    source.closing.set()
    await asyncio.sleep(0)


async def test_a_wait_that_is_stopped_ends(bench_of: BenchOf) -> None:
    bench = await bench_of(vms=Source(away="connection refused"))
    service = bench.service(informers={"vms": table("vms")})
    await service.start()
    waiting = asyncio.create_task(service.wait())
    await asyncio.sleep(0)
    async with asyncio.timeout(WITHIN_S):
        await service.stop()
        with pytest.raises(asyncio.CancelledError):
            await waiting


# ---- offers ----------------------------------------------------------------------------------------------------------


async def test_offers_that_are_returned_go_back_to_a_source_that_lends(bench_of: BenchOf) -> None:
    lender = Lender([{"kind": "offer", "id": "o-1", "node_id": "h1", "quantities": {"vcore": 1000}}])
    bench = await bench_of(mesos=lender)
    async with bench.running(informers={"mesos": table("mesos")}) as service:
        await synced(service)
        books = ExternalReports()
        change = ExternalChange(ExternalKind.OFFER, "o-1", ExternalOffer("o-1", "h1", {"vcore": 1000}))
        finish(books.apply_in_steps(ApplyExternalChanges("default", "mesos", "life-1", (change,)), 0))
        entry = books.for_partition("default").entry("mesos", ExternalKind.OFFER, "o-1")
        assert entry is not None
        entry.offer_state = OfferState.RETURNED
        key, value = state_codec.key_of(RM, "default", entry), state_codec.encode("default", entry)
        owner = await bench.log.take_over("test", bench.topics.requests, 0)
        await owner.commit([OutRecord(bench.topics.state, 0, key, value)], None)
        async with asyncio.timeout(WITHIN_S):
            while not lender.given_back:  # noqa: ASYNC110 - the source is told, and tells nobody
                await asyncio.sleep(0.01)
        assert lender.given_back == ["o-1"]


async def test_an_unreadable_object_is_a_problem_while_it_is_unreadable(bench_of: BenchOf) -> None:
    source = Source([node(1), {**node(2), "capacity": {"vcore": 4}}, {**node(3), "colour": "red"}])
    bench = await bench_of(vms=source)
    async with bench.running(informers={"vms": table("vms")}) as service:
        await synced(service)
        (problem,) = service.problems()
        assert problem.startswith(
            "informer vms (vms): what it says of node h3 (and of 1 more) cannot be relied on: colour"
        )
        await source.deltas.put(
            [Delta(ChangeType.MODIFIED, node(3), "2"), Delta(ChangeType.DELETED, {"id": "h2"}, "3")]
        )
        await bench.heard(lambda found: ("h3", False) in changed(found))
        assert service.problems() == []
        # The same for a known object that became unreadable.
        await source.deltas.put([Delta(ChangeType.MODIFIED, {**node(1), "colour": "red"}, "4")])
        await bench.heard(lambda found: ("h1", True) in changed(found))
        assert "node h1 cannot be relied on: colour: unknown field" in service.problems()[0]


# ---- what moves from one source to another while nobody looks --------------------------------------------------------


async def test_no_source_is_live_before_all_of_its_rm_have_listed(bench_of: BenchOf) -> None:
    # The informer was renamed before this start. Under the old name the listing is empty, and done at once.
    bench = await bench_of(old=Source(), new=Source([node(1)], away="not yet"), other=Source([node(2)]))
    tables = {"old": table("old"), "new": table("new"), "other": {**table("other"), "rm": "rm-2"}}
    async with bench.running(informers=tables) as service:
        async with asyncio.timeout(WITHIN_S):
            while await bench.noted("other") != ["LISTING", "LIVE"]:
                pass  # (the source of another RM: it does not wait)
        assert await bench.noted("old") == ["LISTING"]
        bench.sources["new"].away = ""
        await synced(service)
        assert await bench.noted("old") == await bench.noted("new") == ["LISTING", "LIVE"]
        order = await bench.spoken()
        assert order.index(("new", "h1")) < order.index(("old", "LIVE"))


async def test_a_source_that_was_given_up_delays_no_other(bench_of: BenchOf) -> None:
    bench = await bench_of(vms=Source([node(1)]), away=Source(away="connection refused"))
    tables = {"vms": table("vms"), "away": table("away", required=False)}
    async with bench.running(informers=tables, sync_timeout_s=0.3) as service:
        await synced(service)
        assert await bench.noted("vms") == ["LISTING", "LIVE"]
        assert await bench.noted("away") == ["LISTING", "STALE"]
        # A source that syncs later does not wait.
        bench.sources["away"].away = ""
        async with asyncio.timeout(WITHIN_S):
            while await bench.noted("away") != ["LISTING", "STALE", "LIVE"]:
                pass


# ---- in which process -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "process"),
    [
        ("file", {}, ExternalProcess),
        ("file", {"own_process": False}, ExternalService),
        ("here", {}, ExternalService),
        ("", {}, ExternalService),
    ],
)
def test_informers_have_a_process_of_their_own_where_that_can_be(
    monkeypatch: pytest.MonkeyPatch, kind: str, settings: dict[str, object], process: type
) -> None:
    """(Another process would not know the informers that this test registers.)"""
    monkeypatch.setattr(registry.informers, "_registered", {"here": lambda options, context: Source()})
    tables = {"vms": table(kind, **({"path": "x.json"} if kind == "file" else {}))} if kind else {}
    external = ExternalSettings.model_validate({"informers": tables, **settings})
    topics = Topics(partitions=1)
    log = MemoryLog(topics.specs(), SystemClock())
    service = SchedulerService(SchedulerSettings(external=external), log, topics, SystemClock())
    assert type(service._outside_of(0)._service) is process


async def test_a_given_up_partition_ends_although_its_informers_go_on() -> None:
    """(Informers in a process of their own wait until they are stopped.)"""

    class Worker:
        partition = 0

        async def run(self) -> None:
            """It was told to stop."""

    class Outside:
        async def start(self) -> None:
            """Nothing is to be started."""

        async def wait(self) -> None:
            await asyncio.Event().wait()

    topics = Topics(partitions=1)
    service = SchedulerService(SchedulerSettings(), MemoryLog(topics.specs(), SystemClock()), topics, SystemClock())
    async with asyncio.timeout(WITHIN_S):
        await service._run(cast("Any", Worker()), cast("Any", Outside()))
