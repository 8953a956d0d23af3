"""History adds up (docs/events.md, "Sums"): at every step the sum of ADD less REMOVE is what there is.

The ledger is ``tests/event_books.py``. It is compared with the state from which REST answers:

* here and in every test on ``unit/scheduler_service/rig.py``, after each batch: all stories, restarts, registrations;
* in every scenario of ``tests/scenario/core``, after each step, with and without a restart after it;
* in every random life of ``tests/simulation``, after each cycle.

With what REST itself says: in every scenario of ``tests/scenario/lifecycles``, through a gateway, at its end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from contract.event_stories import STORIES, Stage, Told
from event_books import EventBooks, UnevenBooks
from event_books_shown import of_core
from muster_proto.si.v1 import si_pb2 as si
from unit.scheduler_service import rig as make
from unit.scheduler_service.rig import RM


def changes(stage: Stage, key: str) -> list[tuple[str, str, int]]:
    """(change, detail, vcore) of each APP event of a key, in order."""
    return [
        (told.change, told.detail, make.quantities(told.record.resource).get("vcore", 0))
        for told in stage.told
        if told.type == "APP" and told.record.referenceID == key
    ]


def wanted(stage: Stage, key: str) -> list[tuple[str, int]]:
    return [(change, vcore) for change, detail, vcore in changes(stage, key) if detail == "APP_REQUEST"]


def a_stage(nodes: int = 0) -> Stage:
    stage = Stage()
    stage.begin()
    for number in range(nodes):
        stage.node(f"node-{number + 1}", vcore=10)
    stage.app("app-1")
    return stage


@pytest.mark.parametrize("story", STORIES)
def test_events_of_a_story_add_up_after_each_step_and_over_a_restart(story: str) -> None:
    stage = Stage()
    STORIES[story](stage)
    heard = stage.books[RM].heard
    assert heard > 2, "the rig has compared them after each batch"
    stage.rebuild()
    stage.settle()
    assert stage.books[RM].heard == heard, "a restart repeats nothing"
    stage.begin()
    assert not any(sum(map(abs, each.values())) for kind in stage.books[RM].figures.values() for each in kind.values())


def test_a_pending_ask_that_changes_is_removed_and_added() -> None:
    stage = a_stage()
    stage.ask("app-1", "key-1", 5000)
    stage.ask("app-1", "key-1", 3000)
    stage.gone("app-1", "key-1")
    assert wanted(stage, "key-1") == [("ADD", 5000), ("REMOVE", 5000), ("ADD", 3000), ("REMOVE", 3000)]


def test_an_ask_with_repeats_is_added_with_all_that_it_wants() -> None:
    stage = a_stage()
    stage.send(make.old_ask("app-1", "key-1", 3, vcore=4))
    assert wanted(stage, "key-1") == [("ADD", 12)]
    stage.send(make.old_ask("app-1", "key-1", 1, vcore=4))
    assert wanted(stage, "key-1")[1:] == [("REMOVE", 12), ("ADD", 4)]
    stage.send(make.ask_release("app-1", "key-1"))
    assert wanted(stage, "key-1")[3:] == [("REMOVE", 4)]


def test_the_rest_of_an_ask_is_its_amount_minus_its_allocations() -> None:
    stage = a_stage(nodes=1)
    stage.send(make.old_ask("app-1", "key-1", 3, vcore=4))
    assert changes(stage, "key-1") == [("ADD", "APP_REQUEST", 12), *[("ADD", "APP_ALLOC", 4)] * 2]
    stage.send(make.old_ask("app-1", "key-1", 5, vcore=4))
    assert wanted(stage, "key-1")[1:] == [("REMOVE", 4), ("ADD", 12)]
    stage.send(make.removal("app-1"))
    assert changes(stage, "key-1")[5:] == [("REMOVE", "REQUEST_CANCEL", 12), *[("REMOVE", "ALLOC_CANCEL", 4)] * 2]


def test_a_placeholder_ask_that_changes_is_removed_and_added() -> None:
    stage = a_stage()
    stage.ask("app-1", "key-1", 9, member_of="workers")
    stage.ask("app-1", "key-1", 8, member_of="workers")
    assert wanted(stage, "key-1") == [("ADD", 9), ("REMOVE", 9), ("ADD", 8)]


def test_a_change_that_leaves_the_amount_makes_no_event() -> None:
    stage = a_stage()
    stage.ask("app-1", "key-1", 9)
    stage.ask("app-1", "key-1", 9, preempts=True)
    assert wanted(stage, "key-1") == [("ADD", 9)]


def test_a_reported_allocation_counts_as_asked_for() -> None:
    stage = a_stage(nodes=1)
    stage.ask("app-1", "key-1", 20)
    stage.ask("app-1", "key-1", 3, node="node-1")
    stage.ask("app-1", "key-1", 2, node="node-1")
    assert changes(stage, "key-1") == [
        ("ADD", "APP_REQUEST", 20),
        ("REMOVE", "APP_REQUEST", 20),
        ("ADD", "APP_REQUEST", 3),
        ("ADD", "APP_ALLOC", 3),
        ("REMOVE", "ALLOC_REPLACED", 3),
        ("ADD", "APP_REQUEST", 2),
        ("ADD", "APP_ALLOC", 2),
    ]


def test_an_allocation_that_could_not_start_is_asked_for_again() -> None:
    stage = a_stage(nodes=1)
    stage.send(make.old_ask("app-1", "key-1", 3, vcore=4))
    stage.send(make.release("app-1", "key-1", si.SCHEDULING_FAILED_ON_RM, message="no volume"))
    # Both that ran could not start: each goes, and is wanted with what is pending still; then two are placed again.
    assert changes(stage, "key-1")[3:] == [
        ("REMOVE", "ALLOC_CANCEL", 4),
        ("REMOVE", "APP_REQUEST", 4),
        ("ADD", "APP_REQUEST", 8),
        ("REMOVE", "ALLOC_CANCEL", 4),
        ("REMOVE", "APP_REQUEST", 8),
        ("ADD", "APP_REQUEST", 12),
        *[("ADD", "APP_ALLOC", 4)] * 2,
    ]


def test_a_registration_takes_off_repeats_and_capacities() -> None:
    stage = a_stage(nodes=1)
    stage.send(make.old_ask("app-1", "key-1", 3, vcore=40))
    stage.begin()
    assert changes(stage, "key-1") == [("ADD", "APP_REQUEST", 120), ("REMOVE", "REQUEST_CANCEL", 120)]
    removed = [told for told in stage.told if told.detail == "NODE_DECOMISSION"]
    assert [make.quantities(told.record.resource) for told in removed] == [{"vcore": 10}]


# ---- the ledger notices ----------------------------------------------------------------------------------------------


def without(told: Told) -> list[Told]:
    return []


def of_half(told: Told) -> list[Told]:
    record = si.EventRecord()
    record.CopyFrom(told.record)
    for quantity in record.resource.resources.values():
        quantity.value //= 2
    return [Told(told.event_id, record)]


def twice(told: Told) -> list[Told]:
    return [told, told]


SUMMED = [
    ("life", "ADD", "APP_REQUEST"),
    ("requests", "REMOVE", "APP_REQUEST"),
    ("requests", "REMOVE", "REQUEST_CANCEL"),
    ("hard_gang", "REMOVE", "REQUEST_TIMEOUT"),
    ("life", "ADD", "APP_ALLOC"),
    ("life", "REMOVE", "ALLOC_CANCEL"),
    ("preempted", "REMOVE", "ALLOC_PREEMPT"),
    ("hard_gang", "REMOVE", "ALLOC_TIMEOUT"),
    ("replaced", "REMOVE", "ALLOC_REPLACED"),
    ("nodes", "REMOVE", "ALLOC_NODEREMOVED"),
    ("nodes", "REMOVE", "NODE_DECOMISSION"),
    ("nodes", "SET", "NODE_CAPACITY"),
    ("nodes", "ADD", "NODE_RESERVATION"),
    ("nodes", "REMOVE", "NODE_RESERVATION"),
    ("life", "ADD", "NODE_ALLOC"),
    ("life", "REMOVE", "NODE_ALLOC"),
    ("limits", "ADD", "UG_USER_RESOURCE"),
    ("limits", "REMOVE", "UG_USER_RESOURCE"),
    ("limits", "ADD", "UG_GROUP_RESOURCE"),
    ("limits", "REMOVE", "UG_GROUP_RESOURCE"),
]


CASES = [
    pytest.param(story, (change, detail), break_it, id=f"{story} {change} {detail} {break_it.__name__}")
    for story, change, detail in SUMMED
    for break_it in (without, of_half, twice)
    if (break_it, change) != (twice, "SET")
]


@pytest.mark.parametrize(("story", "which", "break_it"), CASES)
def test_the_ledger_notices_an_event_that_is_lost_or_says_too_little_or_comes_twice(
    story: str, which: tuple[str, str], break_it: Callable[[Told], list[Told]]
) -> None:
    stage = Stage()
    STORIES[story](stage)
    told = [each for each in stage.told if each.event_id is not None]
    place = next(n for n, each in enumerate(told) if (each.change, each.detail) == which)
    with pytest.raises(UnevenBooks):
        compare([*told[:place], *break_it(told[place]), *told[place + 1 :]], stage)


def compare(told: list[Told], stage: Stage) -> None:
    books = EventBooks()
    for each in told:
        books.take_record(each.record)
    books.compare(of_core(stage.core))
