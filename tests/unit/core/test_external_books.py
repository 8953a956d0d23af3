"""What sources said: lives, listings, what is found by what it is about (the event handler framework, "Custom
SharedIndexInformer")."""

from __future__ import annotations

import pytest
from muster_core.external.model import (
    ApplyExternalChanges,
    ExternalAllocation,
    ExternalApplication,
    ExternalChange,
    ExternalKind,
    ExternalNode,
    ExternalObject,
    ExternalPool,
    ExternalQueue,
    SetSourceState,
    SourceState,
    id_of,
    kind_of,
)
from muster_core.external.reports import PAST_LIVES_MAX, EntryChange, ExternalReports, ReportedObject
from muster_core.model.steps import finish

NODE, ALLOCATION = ExternalKind.NODE, ExternalKind.ALLOCATION
H1, H2 = ExternalNode("h1", {"vcore": 4}), ExternalNode("h2", {"vcore": 8})


class Heard:
    """Books, and the changes of each report."""

    def __init__(self) -> None:
        self.books = ExternalReports()
        self.now_ns = 0

    def apply(self, command: ApplyExternalChanges | SetSourceState) -> list[tuple[str, bool]]:
        """(object, whether it counts) of each change; removed objects with a minus."""
        self.now_ns += 1
        return [(_name(each), each.counts) for each in finish(self.books.apply_in_steps(command, self.now_ns))]

    def says(self, *objects: ExternalObject, life: str = "a", source: str = "vms") -> list[tuple[str, bool]]:
        changes = tuple(ExternalChange(kind_of(each), id_of(each), each) for each in objects)
        return self.apply(ApplyExternalChanges("default", source, life, changes))

    def forgets(
        self, kind: ExternalKind, object_id: str, *, stale: bool = False, life: str = "a"
    ) -> list[tuple[str, bool]]:
        return self.apply(ApplyExternalChanges("default", "vms", life, (ExternalChange(kind, object_id, None, stale),)))

    def is_(
        self, state: SourceState, *, life: str = "a", drains: bool = True, reason: str = ""
    ) -> list[tuple[str, bool]]:
        return self.apply(SetSourceState("default", "vms", life, state, drains, reason))

    @property
    def ids(self) -> list[str]:
        return sorted(entry.object_id for entry in self.books.for_partition("default").entries())

    def entry(self, kind: ExternalKind, object_id: str) -> ReportedObject:
        found = self.books.for_partition("default").entry("vms", kind, object_id)
        assert found is not None
        return found


def _name(changed: EntryChange) -> str:
    what = changed.what
    return f"{'-' if what.gone else ''}{what.object_id if isinstance(what, ReportedObject) else what.source}"


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_an_object_said_again_is_no_change(heard: Heard) -> None:
    assert heard.says(H1, H2) == [("vms", False), ("h1", True), ("h2", True)]
    assert heard.says(H1) == []
    assert heard.says(ExternalNode("h1", {"vcore": 5})) == [("h1", True)]
    assert heard.entry(NODE, "h1").since_ns == 1, "since it was first said"
    assert heard.forgets(NODE, "h1") == [("-h1", True)]
    assert heard.forgets(NODE, "h1") == []
    assert heard.ids == ["h2"]


def test_another_life_lists_anew_and_what_it_did_not_name_goes_when_it_is_live(heard: Heard) -> None:
    """Until then the recorded objects count: a restart removes no host."""
    heard.says(H1, H2)
    heard.is_(SourceState.LIVE)
    assert heard.says(H1, life="b") == [("vms", False), ("h1", False)], "only the life is another: to be recorded"
    source = heard.books.source("default", "vms")
    assert source is not None
    assert (source.state, source.life, source.lost) == (SourceState.LISTING, "b", False)
    assert heard.ids == ["h1", "h2"]
    assert heard.is_(SourceState.LIVE, life="b") == [("-h2", True), ("vms", False)]
    assert heard.ids == ["h1"]
    assert heard.is_(SourceState.LIVE, life="b") == [], "said twice"


def test_the_informer_reports_objects_that_a_later_listing_of_the_same_life_omits(heard: Heard) -> None:
    heard.says(H1)
    heard.is_(SourceState.LIVE)
    heard.is_(SourceState.STALE, reason="away")
    heard.is_(SourceState.LIVE)
    assert heard.ids == ["h1"]


def test_a_life_that_was_replaced_says_nothing_any_more(heard: Heard) -> None:
    """Late messages of an ended informer, above all that its listing is complete."""
    heard.says(H1, life="a")
    heard.says(H2, life="b")
    assert heard.says(ExternalNode("h3", {}), life="a") == []
    assert heard.is_(SourceState.LIVE, life="a") == []
    assert heard.ids == ["h1", "h2"]
    for number in range(PAST_LIVES_MAX + 1):
        heard.says(H1, life=f"c{number}")
    source = heard.books.source("default", "vms")
    assert source is not None
    assert len(source.past) == PAST_LIVES_MAX, "not all lives that there ever were"


def test_an_object_that_cannot_be_relied_on_is_stale_until_it_is_said_again(heard: Heard) -> None:
    heard.says(H1)
    heard.is_(SourceState.LIVE)
    assert heard.forgets(NODE, "h1", stale=True) == [("h1", True)]
    assert heard.forgets(NODE, "h1", stale=True) == []
    assert heard.entry(NODE, "h1").holds
    assert heard.forgets(NODE, "h9", stale=True) == [], "nothing was said of it"
    assert heard.says(H1) == [("h1", True)], "as it was, and relied on again"
    assert not heard.entry(NODE, "h1").holds


def test_an_object_that_another_life_cannot_read_is_named_by_it(heard: Heard) -> None:
    """Otherwise one unreadable document would free a host at the next restart."""
    heard.says(H1, H2)
    heard.is_(SourceState.LIVE)
    heard.forgets(NODE, "h1", stale=True, life="b")
    heard.is_(SourceState.LIVE, life="b")
    assert heard.ids == ["h1"]
    assert heard.entry(NODE, "h1").stale


@pytest.mark.parametrize(("drains", "holds"), [(True, True), (False, False)])
def test_a_lost_source_holds_its_nodes_until_it_is_live_again(heard: Heard, drains: bool, holds: bool) -> None:
    heard.says(H1)
    heard.is_(SourceState.LIVE, drains=drains)
    changed = heard.is_(SourceState.STALE, drains=drains, reason="no answer for 30 s")
    assert changed == [("vms", holds)]
    source = heard.books.source("default", "vms")
    assert source is not None
    assert (source.reason, source.lost, heard.entry(NODE, "h1").holds) == ("no answer for 30 s", True, holds)
    heard.is_(SourceState.LISTING, life="b", drains=drains)
    assert (source.reason, source.lost, heard.entry(NODE, "h1").holds) == ("no answer for 30 s", True, holds)
    assert heard.is_(SourceState.LIVE, life="b", drains=drains) == [("-h1", True), ("vms", holds)]
    assert (source.reason, source.lost) == ("", False)


def test_a_source_says_since_when_it_is_as_it_is(heard: Heard) -> None:
    heard.is_(SourceState.LISTING)
    heard.is_(SourceState.LISTING)
    source = heard.books.source("default", "vms")
    assert source is not None
    assert source.since_ns == 1
    heard.is_(SourceState.LIVE)
    assert source.since_ns == 3


def test_a_partitions_name_has_one_spelling() -> None:
    books = ExternalReports()
    for name in ("", "Default", "default"):
        finish(books.apply_in_steps(ApplyExternalChanges(name, "vms", "a", (ExternalChange(NODE, "h1", H1),)), 1))
    assert [*books.partitions] == ["default"]
    assert len(list(books.for_partition("default").entries())) == 1


def test_everything_is_found_by_what_it_is_about(heard: Heard) -> None:
    books = heard.books.for_partition("default")
    vm = ExternalAllocation("vm", "h1", {"vcore": 1}, "tenant")
    heard.says(H1, vm, ExternalQueue("root.A", {}), ExternalApplication("tenant", "root.a"), ExternalPool("licence", 3))
    on = books.nodes["h1"]
    assert [*on.nodes] == ["vms"]
    assert [entry.object_id for entry in on.allocations["vms"]] == ["vm"]
    assert [len(each) for each in (books.queues["root.a"], books.applications["tenant"], books.pools["licence"])] == [
        1
    ] * 3
    assert [entry.object_id for entry in books.app_allocations["tenant"]] == ["vm"]
    heard.says(ExternalAllocation("vm", "h2", {"vcore": 1}))
    assert not on.allocations
    assert [*books.nodes] == ["h1", "h2"]
    assert not books.app_allocations
    heard.forgets(ALLOCATION, "vm")
    assert [*books.nodes] == ["h1"]


def test_a_stale_allocation_is_found_among_thousands(heard: Heard) -> None:
    heard.says(*(ExternalAllocation(f"vm{number}", "h1", {"vcore": 1}) for number in range(3)))
    on = heard.books.for_partition("default").nodes["h1"]
    heard.forgets(ALLOCATION, "vm1", stale=True)
    assert [entry.object_id for entry in on.stale["vms"]] == ["vm1"]
    heard.says(ExternalAllocation("vm1", "h1", {"vcore": 2}))
    assert not on.stale
