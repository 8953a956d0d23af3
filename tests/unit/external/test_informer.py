"""The informer: lists, watches, differences; late, double, unreadable and lost changes."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from muster_core.external.errors import CursorExpired, SourceSaysNonsense, SourceUnavailable
from muster_core.external.model import ExternalAllocation, ExternalKind, ExternalNode, ExternalObject, SourceState
from muster_informers.contract import ChangeType, Delta
from muster_informers.indexer import SourceKey
from muster_informers.informer import NOT_WHOLE, SLICE, SharedIndexInformer
from muster_informers.problems import LINES_MAX, PROBLEMS_MAX
from muster_runtime.watchdog import Usage
from structlog.testing import capture_logs
from unit.external.faking import Manager, ManualTime, Recorder, Running, node, settled

NODE, ALLOCATION = ExternalKind.NODE, ExternalKind.ALLOCATION
AWAY = SourceUnavailable("vms.example: refused")


async def test_everything_listed_is_added_once_and_then_it_is_synced() -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        running.manager.set({"kind": "allocation", "id": "vm", "node_id": "h1", "quantities": {"vcore": "1m"}})
        running.manager.set(node("h2"))
        assert not running.informer.has_synced()
        await running.start()
        assert running.informer.has_synced()
        # Parents first, whatever the listing's order.
        assert running.handler.told == [("add", "h1"), ("add", "h2"), ("add", "vm")]
        assert running.handler.initials == ["h1", "h2", "vm"]
        assert running.informer.store.get(NODE, "h1") == ExternalNode("h1", {"vcore": 1000})
        assert running.states == [(SourceState.LISTING, ""), (SourceState.LIVE, "")]


async def test_the_store_finds_what_is_on_a_node() -> None:
    async with Running(indexers={"first": lambda what: [str(what)[:12]]}) as running:
        running.manager.set(node("h1"))
        for name in ("vm-1", "vm-2"):
            running.manager.set({"kind": "allocation", "id": name, "node_id": "h1", "quantities": {"vcore": "1m"}})
        await running.start()
        store = running.informer.store

        def on_node() -> list[str]:
            return [type(what).__name__ for what in store.by_index("node", "h1")]

        assert on_node() == ["ExternalNode", "ExternalAllocation", "ExternalAllocation"]
        assert len(store.by_index("first", "ExternalNode")) == 1
        running.manager.set({"kind": "allocation", "id": "vm-1", "node_id": "h2", "quantities": {"vcore": "1m"}})
        running.manager.delete("node", "h1")
        await settled()
        assert on_node() == ["ExternalAllocation"]
        assert [key.object_id for key in store.keys(ExternalKind.ALLOCATION)] == ["vm-1", "vm-2"]
        assert len(store.list()) == len(store) == store.count(ExternalKind.ALLOCATION) == 2
        with pytest.raises(KeyError):
            store.by_index("rack", "1")


async def test_changes_are_delivered_in_order() -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        await running.start()
        running.manager.set(node("h2"))
        running.manager.set(node("h1", 5))
        running.manager.delete("node", "h2")
        await settled()
        assert running.handler.told == [("add", "h1"), ("add", "h2"), ("update", "h1"), ("delete", "h2")]
        assert running.handler.initials == ["h1"]
        assert running.handler.known == {SourceKey(NODE, "h1"): ExternalNode("h1", {"vcore": 5})}


async def test_the_type_of_a_change_is_decided_by_the_store() -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        await running.start()
        running.manager.tell(ChangeType.ADDED, node("h1", 7))
        running.manager.tell(ChangeType.MODIFIED, node("h2"))
        running.manager.tell(ChangeType.DELETED, {"id": "h3"})
        await settled()
        assert running.handler.told == [("add", "h1"), ("update", "h1"), ("add", "h2")]


async def test_after_an_expired_cursor_only_the_difference_is_delivered() -> None:
    async with Running() as running:
        for name in ("same", "changed", "gone"):
            running.manager.set(node(name))
        await running.start()
        running.handler.told.clear()
        running.manager.watch_faults.append(CursorExpired("too old"))
        running.manager.objects["node", "changed"] = node("changed", 5, version=50)
        running.manager.objects["node", "new"] = node("new", version=51)
        del running.manager.objects["node", "gone"]
        running.manager.wake()
        await running.time.advance(1)
        assert running.handler.told == [("update", "changed"), ("add", "new"), ("delete", "gone")]
        assert running.manager.lists == 2
        assert running.handler.initials == ["same", "changed", "gone"]
        assert running.states[1:] == [(SourceState.LIVE, "")], "an expired cursor is no loss"


async def test_a_watch_that_breaks_goes_on_where_it_was() -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        await running.start()
        running.manager.watch_faults.append(AWAY)
        running.manager.set(node("h2"))
        await running.time.advance(1)
        assert running.ids == ["h1", "h2"]
        assert running.manager.lists == 1
        assert running.manager.cursors == ["1", "1"]
        assert running.informer.last_error == ""


@pytest.mark.parametrize("fault", [SourceSaysNonsense("<html>"), RuntimeError("a defect"), KeyError("x")])
async def test_after_an_answer_without_sense_everything_is_listed(fault: Exception) -> None:
    async with Running() as running:
        await running.start()
        running.manager.watch_faults.append(fault)
        running.manager.set(node("h1"))
        await running.time.advance(1)
        assert running.manager.lists == 2
        assert running.ids == ["h1"]


async def test_a_source_that_is_away_at_the_start_is_asked_with_growing_waits() -> None:
    async with Running(wait_min_s=1.0, wait_max_s=5.0) as running:
        running.manager.list_faults = [AWAY] * 7
        await running.start()
        assert running.informer.activity() == "vms.example: refused"
        asked = []
        for _ in range(30):
            asked.append(running.manager.lists)
            await running.time.advance(1)
        # The informer asks at 0, 1, 3, 7, 12, 17 and 22 s; at 27 s the source answers.
        assert [n for n in range(1, 30) if asked[n] > asked[n - 1]] == [1, 3, 7, 12, 17, 22, 27]
        assert running.informer.has_synced()
        # It was never LIVE, so it is not lost either: its recorded statements still count.
        assert [state for state, _ in running.states] == [SourceState.LISTING, SourceState.LIVE]


async def test_after_giving_up_no_task_waits() -> None:
    async with Running() as running:
        running.manager.list_faults = [AWAY] * 3
        await running.start()
        running.informer.stop_waiting("not synced after 60 s")
        running.informer.stop_waiting("again")
        await running.time.advance(30)
        assert running.states == [
            (SourceState.LISTING, ""),
            (SourceState.STALE, "not synced after 60 s"),
            (SourceState.LIVE, ""),
        ]
        running.informer.stop_waiting("too late")
        assert running.informer.state is SourceState.LIVE


async def test_a_lost_source_is_stale_and_back_it_is_live() -> None:
    async with Running(stale_after_s=30, wait_max_s=5) as running:
        running.manager.set(node("h1"))
        await running.start()
        running.manager.watch_faults = [AWAY] * 100
        running.manager.wake()
        await running.time.advance(29)
        assert running.informer.state is SourceState.LIVE
        await running.time.advance(3)
        state, reason = running.states[-1]
        assert state is SourceState.STALE
        assert reason.startswith("not heard for 30 s: vms.example: refused")
        assert running.ids == ["h1"]
        running.manager.watch_faults.clear()
        await running.time.advance(5)
        assert running.states[-1] == (SourceState.LIVE, "")
        assert len(running.states) == 4
        assert running.manager.lists == 1


async def test_a_source_that_answers_again_in_time_is_never_lost() -> None:
    async with Running(stale_after_s=30, wait_max_s=5) as running:
        await running.start()
        for _ in range(5):
            running.manager.watch_faults = [AWAY] * 4
            running.manager.wake()
            await running.time.advance(25)
        assert [state for state, _ in running.states] == [SourceState.LISTING, SourceState.LIVE]


async def test_a_silent_watch_is_cut_off() -> None:
    async with Running(stale_after_s=20) as running:
        running.manager.set(node("h1"))
        await running.start()
        for _ in range(4):
            await running.time.advance(19)
            running.manager.wake()
            await settled()
        assert running.manager.watches == 1
        assert running.informer.state is SourceState.LIVE
        await running.time.advance(23)  # (it looks each second)
        assert running.manager.watches == 2
        assert running.states[-2][0] is SourceState.STALE
        assert running.states[-2][1].startswith("not heard for 20 s: silent for 20 s")
        assert running.states[-1] == (SourceState.LIVE, ""), "the new watch answered"


async def test_a_listing_that_never_comes_is_given_up_and_begun_anew() -> None:
    async with Running(stale_after_s=30, list_timeout_s=60) as running:
        running.manager.holds_list = True
        await running.start()
        assert running.informer.activity() == "waiting for the listing for 0.0 s"
        await running.time.advance(65)
        assert running.manager.lists == 2
        assert running.informer.last_error == "no listing within 60 s"
        running.manager.holds_list = False
        running.manager.wake()
        await settled()
        assert running.informer.has_synced()


async def test_never_stale() -> None:
    async with Running(stale_after_s=0) as running:
        await running.start()
        await running.time.advance(1000)
        assert running.manager.watches == 1
        running.manager.watch_faults = [AWAY] * 1000
        running.manager.wake()
        await running.time.advance(1000)
        assert running.informer.state is SourceState.LIVE


# ---- late, double, unreadable ---------------------------------------------------------------------------------------


async def test_doubles_and_late_versions_are_dropped() -> None:
    async with Running() as running:
        running.manager.objects["node", "h1"] = node("h1", 5, version=5)
        await running.start()
        for version, vcore in ((5, 5), (4, 4), (6, 5), (6, 5), (5, 9)):
            running.manager.tell(ChangeType.MODIFIED, node("h1", vcore, version=version))
        await settled()
        assert running.handler.told == [("add", "h1")]
        kept = running.informer.store.get_stored(SourceKey(NODE, "h1"))
        assert kept is not None
        assert kept.version == 6
        assert not running.informer.problems
        running.manager.tell(ChangeType.MODIFIED, node("h1", 7, version=6))
        await settled()
        assert "version 6 is known with another content" in running.informer.problems[0].text
        assert running.handler.known[SourceKey(NODE, "h1")] == ExternalNode("h1", {"vcore": 5})


async def test_without_versions_the_last_word_counts() -> None:
    async with Running() as running:
        running.manager.says_versions = False
        running.manager.set(node("h1", 1))
        await running.start()
        running.manager.set(node("h1", 2))
        running.manager.set(node("h1", 2))
        running.manager.set(node("h1", 1))
        await settled()
        assert running.handler.told == [("add", "h1"), ("update", "h1"), ("update", "h1")]


async def test_a_late_change_does_not_bring_back_what_was_deleted() -> None:
    async with Running() as running:
        running.manager.objects["node", "h1"] = node("h1", version=3)
        await running.start()
        running.manager.tell(ChangeType.DELETED, {"id": "h1", "version": 7})
        running.manager.tell(ChangeType.MODIFIED, node("h1", 5, version=6))
        await settled()
        assert running.ids == []
        running.manager.tell(ChangeType.DELETED, {"id": "h1", "version": 2})
        running.manager.tell(ChangeType.ADDED, node("h1", 5, version=8))
        running.manager.tell(ChangeType.DELETED, {"id": "h1", "version": 7})
        await settled()
        assert running.ids == ["h1"], "a deletion that is older than the object is late"


async def test_a_listing_may_bring_back_what_was_deleted() -> None:
    async with Running() as running:
        running.manager.objects["node", "h1"] = node("h1", version=3)
        await running.start()
        running.manager.tell(ChangeType.DELETED, {"id": "h1", "version": 7})
        await settled()
        running.manager.objects["node", "h1"] = node("h1", version=1)
        running.manager.expire()
        await running.time.advance(1)
        assert running.ids == ["h1"]


async def test_an_older_version_in_a_listing_is_reported() -> None:
    async with Running() as running:
        running.manager.objects["node", "h1"] = node("h1", 5, version=5)
        await running.start()
        running.manager.objects["node", "h1"] = node("h1", 4, version=4)
        running.manager.expire()
        await running.time.advance(1)
        assert running.handler.told == [("add", "h1")]
        assert "version 4 is listed and 5 is known" in running.informer.problems[0].text


async def test_an_unreadable_document_of_a_known_object_makes_it_doubtful_until_it_is_said_anew() -> None:
    async with Running() as running:
        running.manager.set(node("h1", 5))
        await running.start()
        running.manager.tell(ChangeType.MODIFIED, {"id": "h1", "capacity": {"vcore": -1}})
        await settled()
        assert running.handler.distrusted == [SourceKey(NODE, "h1")]
        assert running.handler.known == {SourceKey(NODE, "h1"): ExternalNode("h1", {"vcore": 5})}
        problem = running.informer.problems[0]
        assert (problem.kind, problem.object_id) == ("node", "h1")
        assert problem.text == f"capacity.vcore: -1, expected an amount from 0 to {2**53}"
        # The document of before comes again: now it is a change.
        running.manager.tell(ChangeType.MODIFIED, running.manager.objects["node", "h1"])
        running.manager.tell(ChangeType.MODIFIED, running.manager.objects["node", "h1"])
        await settled()
        assert running.handler.told == [("add", "h1"), ("update", "h1")]


async def test_unreadable_documents_in_a_listing() -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        running.manager.set(node("h2"))
        running.manager.spoilt["node", "h2"] = {"id": "h2", "capacity": "much"}
        await running.start()
        assert running.informer.has_synced(), "one bad document stops nobody"
        assert running.ids == ["h1"]
        assert running.handler.distrusted == [SourceKey(NODE, "h2")], "an earlier life may have recorded it"
        running.manager.spoilt = {("node", "h1"): {"id": "h1", "nodes": 3}}
        running.manager.expire()
        await running.time.advance(1)
        assert running.ids == ["h1", "h2"], "known objects stay"
        assert running.handler.distrusted == [SourceKey(NODE, "h2"), SourceKey(NODE, "h1")]


@pytest.mark.parametrize("by", ["a change", "a listing"])
async def test_an_object_that_was_never_readable_is_forgotten_at_its_end(by: str) -> None:
    """The scheduler may know it from an earlier life, so its end must still reach the scheduler."""
    async with Running() as running:
        running.manager.set(node("h1"))
        running.manager.set(node("h2"))
        running.manager.spoilt["node", "h2"] = {"id": "h2", "capacity": "much"}
        await running.start()
        assert (running.ids, running.handler.distrusted) == (["h1"], [SourceKey(NODE, "h2")])
        del running.manager.spoilt["node", "h2"]
        if by == "a listing":
            running.manager.objects.pop(("node", "h2"))
            running.manager.expire()
        else:
            running.manager.delete("node", "h2")
        await settled()
        assert running.handler.forgotten == [SourceKey(NODE, "h2")]
        running.manager.set(node("h2"))
        running.manager.delete("node", "h2")
        await settled()
        assert running.handler.forgotten == [SourceKey(NODE, "h2")], "once: now it was read"


async def test_a_document_that_the_source_could_not_read() -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        await running.start()
        why = {"unreadable": "record 7: no JSON", "kind": "node", "id": "h1"}
        running.manager.tell(ChangeType.MODIFIED, why)
        await settled()
        assert running.handler.distrusted == [SourceKey(NODE, "h1")]
        assert running.informer.problems[0].text == "record 7: no JSON"


@pytest.mark.parametrize("document", [{"capacity": {}}, {"kind": "cow", "id": "h2"}, {"unreadable": "line 3"}, None, 7])
async def test_a_listing_of_which_a_part_is_nobodys_deletes_nothing(document: dict[str, object]) -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        running.manager.set(node("h2"))
        await running.start()
        del running.manager.objects["node", "h2"]
        running.manager.extra = [document]
        running.manager.expire()
        await running.time.advance(1)
        assert running.ids == ["h1", "h2"]
        assert running.handler.distrusted == [SourceKey(NODE, "h2")]
        assert running.informer.state is SourceState.LIVE, "the readable objects are in the store"
        # The informer lists again until the listing is complete.
        running.manager.extra = []
        for _ in range(10):
            assert running.manager.lists == 2
            running.manager.wake()
            await running.time.advance(6)
        running.manager.wake()
        await running.time.advance(6)
        assert running.manager.lists == 3
        assert running.ids == ["h1"]
        assert len(running.states) == 2


async def test_before_a_listing_was_whole_nothing_of_an_earlier_life_is_said_to_be_gone() -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        running.manager.extra = [{"capacity": {}}]
        await running.start()
        assert running.informer.has_synced()
        assert running.ids == ["h1"]
        assert running.states == [(SourceState.LISTING, ""), (SourceState.STALE, NOT_WHOLE)]
        running.manager.watch_faults = [AWAY]
        running.manager.set(node("h1", 5))
        await running.time.advance(1)
        assert len(running.states) == 2
        running.manager.extra = []
        running.manager.expire()
        await running.time.advance(1)
        assert running.states[2:] == [(SourceState.LIVE, "")]
        running.manager.extra = [{"capacity": {}}]
        running.manager.expire()
        await running.time.advance(1)
        assert len(running.states) == 3


async def test_a_change_that_is_nobodys_is_looked_for_in_a_listing() -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        await running.start()
        running.manager.objects["node", "h2"] = node("h2", version=9)
        running.manager.tell(ChangeType.ADDED, {"id": 5})
        await running.time.advance(1)
        assert running.ids == ["h1", "h2"]
        assert running.manager.lists == 2


async def test_one_id_twice_in_a_listing() -> None:
    async with Running() as running:
        running.manager.set(node("h1", 5))
        await running.start()
        running.manager.extra = [node("h1", 6), node("new", 1), node("new", 2), node("double", 1), node("double", 1)]
        running.manager.expire()
        await running.time.advance(1)
        assert running.handler.known[SourceKey(NODE, "h1")] == ExternalNode("h1", {"vcore": 5})
        assert running.ids == ["double", "h1"], "an unreadable new object is not stored"
        assert running.handler.distrusted == [SourceKey(NODE, "h1"), SourceKey(NODE, "new")]
        assert {problem.object_id for problem in running.informer.problems} == {"h1", "new"}
        running.manager.extra = []
        running.manager.expire()
        await running.time.advance(1)
        assert ("update", "h1") in running.handler.told, "a new valid document counts again"


def vm(vm_id: str, **more: object) -> dict[str, object]:
    return {"kind": "allocation", "id": vm_id, "node_id": "h1", "quantities": {"vcore": "4"}, **more}


async def test_an_unreadable_allocation_is_assumed_to_be_on_its_node() -> None:
    async with Running() as running:
        running.manager.extra = [vm("vm-1", quantities={"vcore": "few"}), vm("vm-2"), vm("vm-2", node_id="h2")]
        await running.start()
        assert running.handler.distrusted == [SourceKey(ALLOCATION, "vm-1"), SourceKey(ALLOCATION, "vm-2")]
        assert running.handler.believed == [
            ExternalAllocation("vm-1", "h1", {}),
            ExternalAllocation("vm-2", "h1", {"vcore": 4000}),
        ]
        running.manager.tell(ChangeType.ADDED, vm("vm-3", priority="high"))
        running.manager.tell(ChangeType.ADDED, vm("vm-4", node_id=7))
        running.manager.tell(ChangeType.ADDED, {"id": "h9", "capacity": "much"})
        await settled()
        assert running.handler.believed[2:] == [ExternalAllocation("vm-3", "h1", {}), None, None]


async def test_a_problem_is_logged_once_and_only_so_many_are() -> None:
    with capture_logs() as lines:
        async with Running() as running:
            running.manager.set(node("h1"))
            await running.start()
            for _ in range(10):
                running.manager.tell(ChangeType.MODIFIED, {"id": "h1", "cpu": 1})
            await settled()
            assert running.informer.problems[0].count == 10
            for number in range(500):
                running.manager.tell(ChangeType.MODIFIED, {"id": f"n{number}", "cpu": "x" * 10_000_000 * (number < 1)})
            await settled()
            assert len(running.informer.problems) == PROBLEMS_MAX
            assert running.informer.problems[0].object_id == "n499"
    told = [line for line in lines if line["log_level"] == "warning"]
    assert len(told) == LINES_MAX + 1
    assert len([line for line in told if line.get("id") == "h1"]) == 1
    assert max(len(str(line)) for line in told) < 2_000


# ---- handlers -------------------------------------------------------------------------------------------------------


async def test_a_handler_that_fails_on_one_object_is_asked_for_the_others() -> None:
    async with Running() as running:
        running.manager.set(node("h1"))
        running.manager.set(node("h2"))
        running.handler.fails = {"h1": ValueError("password=hunter2 is wrong")}
        await running.start()
        assert running.ids == ["h2"]
        assert running.handler.distrusted == [SourceKey(NODE, "h1")]
        text = running.informer.problems[0].text
        assert text.startswith("Recorder: ValueError: password=*** is wrong (")
        running.handler.fails = {"h2": RuntimeError("no")}
        running.manager.set(node("h1", 5))
        running.manager.delete("node", "h2")
        await settled()
        assert running.ids == ["h1", "h2"]
        assert running.handler.distrusted == [SourceKey(NODE, "h1"), SourceKey(NODE, "h2")]
        assert running.informer.has_synced()


async def test_a_filter_that_starts_and_stops_to_match() -> None:
    def is_large(what: ExternalObject) -> bool:
        return isinstance(what, ExternalNode) and (what.capacity or {})["vcore"] >= 10

    async with Running(predicate=is_large) as running:
        running.manager.set(node("small", 1))
        running.manager.set(node("large", 10))
        await running.start()
        assert running.ids == ["large"]
        running.manager.set(node("small", 20))
        running.manager.set(node("large", 5))
        running.manager.set(node("small", 30))
        running.manager.set(node("other", 5))
        await settled()
        assert running.handler.told == [("add", "large"), ("add", "small"), ("delete", "large"), ("update", "small")]
        running.manager.delete("node", "large")
        await settled()
        assert len(running.handler.told) == 4, "the handler gets no calls for filtered objects"
        running.manager.tell(ChangeType.MODIFIED, {"id": "other", "x": 1})
        running.manager.tell(ChangeType.MODIFIED, {"id": "small", "x": 1})
        await settled()
        assert running.handler.distrusted == [SourceKey(NODE, "small")]


async def test_several_handlers_and_one_that_comes_late() -> None:
    async with Running() as running:
        other, late = Recorder(), Recorder()
        running.informer.add_event_handler(other)  # type: ignore[arg-type]
        for number in range(3 * SLICE):
            running.manager.set(node(f"h{number}"))
        await running.start()
        running.informer.add_event_handler(late)  # type: ignore[arg-type]
        assert not running.informer.has_synced()
        running.manager.set(node(f"h{3 * SLICE - 1}", 7))
        running.manager.delete("node", f"h{3 * SLICE - 2}")
        await settled()
        assert running.informer.has_synced()
        assert late.known == other.known == running.handler.known
        assert len(late.known) == 3 * SLICE - 1
        assert len(late.initials) >= 3 * SLICE - 2


async def test_a_resync_gives_every_object_again_spread_over_time() -> None:
    async with Running(resync_s=100) as running:
        other = Recorder()
        running.informer.add_event_handler(other, resync_s=0)  # type: ignore[arg-type]
        for number in range(4 * SLICE):
            running.manager.set(node(f"h{number}"))
        await running.start()
        running.handler.told.clear()
        seen = []
        for _ in range(20):
            for _ in range(10):
                running.manager.wake()
                await running.time.advance(1)
            seen.append(len(running.handler.told))
        assert set(running.handler.told) == {("update", f"h{number}") for number in range(4 * SLICE)}
        assert seen[4] == 0
        assert 0 < seen[6] < seen[9] <= 4 * SLICE, "in slices"
        assert seen[-1] == 8 * SLICE
        assert len(other.told) == 4 * SLICE


async def test_a_resync_tries_again_what_failed() -> None:
    async with Running(resync_s=10) as running:
        running.manager.set(node("h1"))
        running.handler.fails = {"h1": ValueError("not now")}
        await running.start()
        running.handler.fails = {}
        await running.time.advance(11)
        assert running.ids == ["h1"]


async def test_the_log_holds_the_source_back() -> None:
    gate = asyncio.Event()

    async def ready() -> None:
        await gate.wait()

    async with Running(ready=ready, stale_after_s=5) as running:
        for number in range(3 * SLICE):
            running.manager.set(node(f"h{number}"))
        await running.start()
        await running.time.advance(100)
        assert running.handler.told == []
        assert running.informer.activity() == "handing over the listing, 0 objects so far"
        gate.set()
        await settled()
        assert running.informer.has_synced()
        gate.clear()
        running.manager.set(node("more"))
        await running.time.advance(100)
        assert "more" not in running.ids
        assert running.informer.state is SourceState.LIVE, "a slow informer does not make the source lost"
        gate.set()
        await settled()
        assert "more" in running.ids


async def test_others_run_while_a_listing_is_handed_over() -> None:
    manager, handler, time = Manager(), Recorder(), ManualTime()
    for number in range(20 * SLICE):
        manager.set(node(f"h{number}"))
    informer = SharedIndexInformer("vms", manager, time.clock, sleep=time.sleep)
    informer.add_event_handler(handler)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    seen: list[int] = []
    while not informer.has_synced():
        seen.append(len(handler.known))
        await asyncio.sleep(0)
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps) <= SLICE
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_nonsensical_answer() -> None:
    async with Running() as running:
        answers: list[object] = [None, 7, ([], "1", 3)]

        async def broken() -> object:
            return answers.pop() if answers else await type(running.manager).list(running.manager)

        running.manager.list = broken  # type: ignore[method-assign, assignment]
        await running.start()
        await running.time.advance(60)
        assert running.informer.has_synced()
        running.manager.history.append(Delta(ChangeType.ADDED, node("h1"), "1"))
        running.manager.history.append(None)  # type: ignore[arg-type]
        running.manager.wake()
        await settled()
        assert running.ids == ["h1"]
        assert "AttributeError" in running.informer.last_error


# ---- no processor ---------------------------------------------------------------------------------------------------


async def test_a_source_is_not_lost_while_this_process_gets_no_processor() -> None:
    waited_s, has_processor = 0.0, False

    def usage() -> Usage:
        nonlocal waited_s
        waited_s += 0.0 if has_processor else 100.0  # more than passes
        return Usage(0.0, waited_s)

    async with Running(stale_after_s=20, usage=usage) as running:
        await running.start()
        await running.time.advance(100)
        assert (running.manager.watches, running.informer.state) == (1, SourceState.LIVE)
        has_processor = True
        await running.time.advance(23)
        assert (running.manager.watches, running.states[-2][0]) == (2, SourceState.STALE)
