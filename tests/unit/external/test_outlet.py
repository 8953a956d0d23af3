"""The return of offers: repeated until the source takes them, and never for an earlier state of the offer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from muster_bus.backends.memory import MemoryLog, MemoryStore
from muster_bus.log import OutRecord
from muster_bus.topics import Topics, state_key
from muster_core.external.errors import SourceUnavailable
from muster_core.external.model import ExternalKind, ExternalOffer, ExternalPool, OfferState
from muster_core.external.reports import ReportedObject, SourceEntry
from muster_informers.offer_return import BATCH_MAX, OfferReturner, offer_target
from muster_state import state_codec
from unit.external.faking import Manager, ManualTime, settled

TOPICS = Topics(partitions=4)
PLACE = 1


class Framework(Manager):
    """A source with offers. ``errors``: raised by the next calls."""

    def __init__(self) -> None:
        super().__init__()
        self.back: list[list[str]] = []
        self.errors: list[Exception] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def give_back(self, offer_ids: Sequence[str]) -> None:
        self.back.append(list(offer_ids))
        self.meanwhile()
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)


class Rig:
    def __init__(self, store: MemoryStore | None = None) -> None:
        self.time = ManualTime()
        self.framework = Framework()
        self.store = store

    async def __aenter__(self) -> Rig:
        self.log = MemoryLog(TOPICS.specs(), self.time.clock, store=self.store)
        await self.log.start()
        self.writer = await self.log.writer("state")
        taker = offer_target(self.framework)
        assert taker is not None
        self.outlet = OfferReturner(
            rm_id="rm/1",
            partition="default",
            source="mesos",
            topic=TOPICS.state,
            log_partition=PLACE,
            log=self.log,
            taker=taker,
            sleep=self.time.sleep,
        )
        self.task: asyncio.Task[None] | None = None
        return self

    async def start(self) -> None:
        self.task = asyncio.create_task(self.outlet.run())
        await self.until(lambda: not self.outlet.due)

    async def __aexit__(self, *_: object) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def record(self, offer_id: str, state: OfferState | None, source: str = "mesos") -> None:
        owner = SourceEntry("default", source)
        entry = ReportedObject(owner, ExternalKind.OFFER, offer_id, ExternalOffer(offer_id, "h", {}), "1", 5)
        if state is not None:
            entry.offer_state = state
        key = state_codec.key_of("rm/1", "default", entry)
        value = None if state is None else state_codec.encode("default", entry)
        self.writer.append(OutRecord(TOPICS.state, PLACE, key, value))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            for _ in range(20):
                await settled()
            while not condition():
                await self.time.advance(0.5)


OFFERED, REVOKED, RETURNED = OfferState.OFFERED, OfferState.REVOKED, OfferState.RETURNED


async def test_only_returned_offers_of_the_source_go_back_once_for_each_record() -> None:
    async with Rig() as rig:
        rig.record("o-1", OFFERED)
        rig.record("o/2 %", RETURNED)
        rig.record("o-3", REVOKED)
        rig.record("other", RETURNED, source="mesos/2")
        rig.record("other", RETURNED, source="mes")
        rig.writer.append(OutRecord(TOPICS.state, PLACE, state_key("rm/1", "node", "default", "h"), b"junk"))
        rig.writer.append(
            OutRecord(TOPICS.state, PLACE, state_key("rm/1", "ext", "default", "mesos", "offer", "junk"), b"\xff")
        )
        rig.writer.append(OutRecord(TOPICS.state, PLACE, state_key("rm/1", "rm", "-"), None))
        await rig.start()
        assert rig.framework.back == [["o/2 %"]]
        rig.record("o-1", RETURNED)
        rig.record("o/2 %", RETURNED)
        await rig.until(lambda: len(rig.framework.back) == 2)
        assert rig.framework.back[1] == ["o-1", "o/2 %"]
        await rig.time.advance(60)
        assert len(rig.framework.back) == 2


async def test_an_offer_made_again_since_is_not_returned() -> None:
    async with Rig() as rig:
        for offer_id in ("again", "forgotten", "stays"):
            rig.record(offer_id, RETURNED)
        rig.record("again", OFFERED)
        rig.record("forgotten", None)
        await rig.start()
        assert rig.framework.back == [["stays"]]
        rig.record("again", RETURNED)
        await rig.until(lambda: len(rig.framework.back) == 2)
        rig.record("again", OFFERED)
        rig.record("again", RETURNED)
        await rig.until(lambda: len(rig.framework.back) == 3)
        assert rig.framework.back[1:] == [["again"], ["again"]]


@pytest.mark.parametrize("error", [SourceUnavailable("away"), RuntimeError("password=x")])
async def test_a_source_that_does_not_take_them_is_asked_again(error: Exception) -> None:
    async with Rig() as rig:
        rig.framework.errors = [error, error, error]
        rig.record("o-1", RETURNED)
        rig.task = asyncio.create_task(rig.outlet.run())
        await settled()
        assert rig.outlet.due == ["o-1"]
        assert rig.outlet.last_error in {"away", "RuntimeError: password=***"}
        await rig.until(lambda: not rig.outlet.due)
        assert rig.framework.back == [["o-1"]] * 4
        assert rig.outlet.last_error == ""


async def test_an_offer_made_again_during_its_return_may_be_returned_again() -> None:
    async with Rig() as rig:
        rig.framework.errors = [SourceUnavailable("away")]
        rig.record("o-1", RETURNED)
        rig.task = asyncio.create_task(rig.outlet.run())
        await settled()
        rig.record("o-1", OFFERED)
        await rig.until(lambda: not rig.outlet.due)
        await rig.time.advance(30)
        assert rig.framework.back == [["o-1"]]
        rig.record("o-1", RETURNED)
        await rig.until(lambda: len(rig.framework.back) == 2)


async def test_many_go_back_in_batches() -> None:
    async with Rig() as rig:
        for number in range(2 * BATCH_MAX + 1):
            rig.record(f"o-{number}", RETURNED)
        await rig.start()
        assert [len(batch) for batch in rig.framework.back] == [BATCH_MAX, BATCH_MAX, 1]


async def test_after_a_restart_they_are_returned_once_more() -> None:
    async with Rig() as rig:
        rig.record("o-1", RETURNED)
        await rig.start()
        assert rig.framework.back == [["o-1"]]
    async with Rig(rig.log.store) as rig:
        await rig.start()
        assert rig.framework.back == [["o-1"]]


async def test_a_source_without_offers_has_no_outlet() -> None:
    assert offer_target(Manager()) is None


def test_other_kinds_are_no_offers() -> None:
    entry = ReportedObject(SourceEntry("default", "s"), ExternalKind.POOL, "x", ExternalPool("x", 1), "1", 5)
    assert state_codec.offer_state_of(state_codec.encode("default", entry)) is None
