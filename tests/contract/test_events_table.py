"""The table of docs/events.md: the story of each row causes its event, and every event has a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import documents
import pytest
from contract.event_stories import STORIES, Stage, Told, events_of
from muster_core import scheduler
from muster_proto.si.v1 import si_pb2 as si
from unit.scheduler_service import rig as make

PAGE = documents.page("events.md")
# Details that no decision makes; each must say why. A further one is a further decision.
NEVER = {"REQUEST_ALLOC", "QUEUE_ALLOC"}
ANEW = "the resource manager registered again"
# Exceptions of "SET and NONE name no reference" (docs/events.md, "Rules").
REFERENCES = {("REQUEST", "NONE"), ("USERGROUP", "SET")}
KINDS = {
    "application": "app-",
    "ask": "key-",
    "allocation": "key-",
    "node": "node-",
    "queue": "root",
    "user": ("alice", "bob", "*"),
    "group": ("dev", "ops", "*"),
}


class Row(NamedTuple):
    type: str
    change: str
    detail: str
    number: str
    when: str
    object: str
    reference: str
    resource: str
    message: str
    story: str

    @property
    def about(self) -> tuple[str, str, str]:
        return self.type, self.change, self.detail


ROWS = [Row(*cells) for cells in documents.table(PAGE, "\n## Every event\n")]
WORDS = [(cells[0].strip("`"), cells[2].strip("`")) for cells in documents.table(PAGE, "\n## Notifications\n")]


def pattern(text: str) -> str:
    """A message of the table, as a regular expression: … stands for anything."""
    return ".+".join(map(re.escape, text.split("…")))


def forms(cell: str) -> list[str]:
    """What a row's cell says that a message may be, as regular expressions; — is none."""
    found = [form.strip() for form in re.split(r" or (?=[`—])", cell)]
    return ["" if form == "—" else pattern(form.strip("`")) for form in found]


def found(row: Row) -> list[Told]:
    return [told for told in events_of(row.story.strip("`")) if (told.type, told.change, told.detail) == row.about]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row.about))
def test_a_row_is_made_by_its_story_and_by_its_rules(row: Row) -> None:
    assert si.EventRecord.ChangeDetail.Value(row.detail) == int(row.number)
    assert row.when, "the table must name the cause"
    made = found(row)
    assert made, f"{row.story} makes no such event"
    for told in made:
        record = told.record
        assert record.objectID.startswith(KINDS[row.object]), told
        if row.reference == "—":
            assert not record.referenceID, told
        else:
            assert record.referenceID.startswith(KINDS[row.reference]), told
        values = [quantity.value for quantity in record.resource.resources.values()]
        assert all(value >= 0 for value in values), told
        match row.resource:
            case "—":
                assert not record.HasField("resource"), told
            case "delta":
                assert any(values), told
            case "absolute":
                assert record.HasField("resource"), told
            case other:
                raise AssertionError(f"the table has no such resource: {other}")
        wanted = [pattern(text) for text, _ in WORDS] if row.message == "below" else forms(row.message)
        assert any(re.fullmatch(form, record.message) for form in wanted), told
    for form in forms(row.message) if row.message != "below" else ():
        assert any(re.fullmatch(form, told.record.message) for told in made), f"nothing says {form!r}"


@pytest.mark.parametrize(("text", "story"), WORDS, ids=[text for text, _ in WORDS])
def test_each_notification_is_made_by_its_story(text: str, story: str) -> None:
    made = [told for told in events_of(story) if re.fullmatch(pattern(text), told.record.message)]
    assert made
    assert {(told.type, told.change, told.detail) for told in made} == {("REQUEST", "NONE", "DETAILS_NONE")}
    assert {told.event_id for told in made} == {None}
    objects = [told.record.objectID for told in made]
    assert len(objects) == len({*objects}), "one event for each object"


@pytest.mark.parametrize("story", STORIES)
def test_every_event_of_a_story_has_a_row_and_keeps_the_rules(story: str) -> None:
    rows = {row.about for row in ROWS}
    times = []
    for told in events_of(story):
        assert (told.type, told.change, told.detail) in rows, told
        times.append(told.record.timestampNano)
        if told.change in ("SET", "NONE") and (told.type, told.change) not in REFERENCES:
            assert not told.record.referenceID, told
        assert (told.event_id is None) == (told.type == "REQUEST"), told
        assert told.change == "REMOVE" or told.record.message != ANEW, told
    assert times == sorted(times)
    assert f"`{story}`" in PAGE, "the page does not name it"


def test_every_detail_of_the_interface_has_a_row_or_a_reason() -> None:
    never = {cells[0]: (int(cells[1]), cells[2]) for cells in documents.table(PAGE, "\n## Never made\n")}
    assert never.keys() == NEVER
    assert all(number == si.EventRecord.ChangeDetail.Value(name) and why for name, (number, why) in never.items())
    assert {row.detail for row in ROWS} | NEVER == set(si.EventRecord.ChangeDetail.keys())
    assert len({row.about for row in ROWS}) == len(ROWS)
    made = {told.detail for story in STORIES for told in events_of(story)}
    assert not made & NEVER


def left(told: Iterable[Told]) -> Counter[tuple[str, ...]]:
    """What events add up to: allocations, amounts, asks, members, limits and links that nothing took off."""
    sums: Counter[tuple[str, ...]] = Counter()
    for each in told:
        record, what = each.record, CLASSES.get(each.detail, each.detail)
        if each.change not in ("ADD", "REMOVE") and what not in ("UG_USER_LIMIT", "UG_GROUP_LIMIT", "UG_APP_LINK"):
            continue
        sign = -1 if each.change == "REMOVE" else 1
        sums[each.type, what, record.objectID, record.referenceID] += sign
        for name, quantity in record.resource.resources.items() if each.change != "SET" else ():
            sums[each.type, what, record.objectID, name] += sign * quantity.value
    return Counter({key: count for key, count in sums.items() if count and key[1] not in UNPAIRED})


# What takes off what, by detail.
CLASSES = {
    "ALLOC_CANCEL": "APP_ALLOC",
    "NODE_DECOMISSION": "DETAILS_NONE",
    "QUEUE_DYNAMIC": "DETAILS_NONE",
}
# A request that is allocated is asked for no more, and nothing says so but its allocation (test_events_add_up.py).
UNPAIRED = {"APP_REQUEST", "REQUEST_CANCEL"}


def test_registering_again_takes_everything_off() -> None:
    told = events_of("again")
    ends = [number for number, each in enumerate(told) if each.record.message == ANEW]
    before, ending, after = told[: ends[0]], told[ends[0] : ends[-1] + 1], told[ends[-1] + 1 :]
    assert {each.detail for each in before} >= {"UG_GROUP_RESOURCE", "UG_APP_LINK", "QUEUE_DYNAMIC", "NODE_RESERVATION"}
    assert {each.change for each in ending} == {"REMOVE"}
    assert {(each.type, each.detail) for each in after} == {("QUEUE", "DETAILS_NONE")}
    assert sum(left(before).values()) > 10
    assert [each.record.referenceID for each in ending if each.detail == "REQUEST_CANCEL"] == ["key-3"]
    assert not left([*before, *ending])


def test_events_of_very_many_objects_name_only_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "ENDED_ONE_BY_ONE_MAX", 3)
    stage = Stage()
    STORIES["again"](stage)
    ending = [each for each in stage.told if each.record.message == ANEW]
    named = [each for each in ending if each.record.referenceID.startswith("key-")]
    assert [(each.detail, each.record.referenceID) for each in named] == [("NODE_RESERVATION", "key-3")]
    summed = {
        (each.detail, each.record.objectID): dict(make.quantities(each.record.resource))
        for each in ending
        if each.detail in ("REQUEST_CANCEL", "ALLOC_CANCEL", "NODE_ALLOC")
    }
    assert summed == {
        ("ALLOC_CANCEL", "app-1"): {"vcore": 2},
        ("ALLOC_CANCEL", "app-2"): {"vcore": 12},
        ("REQUEST_CANCEL", "app-2"): {"vcore": 6},
        ("NODE_ALLOC", "node-1"): {"vcore": 8},
        ("NODE_ALLOC", "node-2"): {"vcore": 6},
    }
    assert {(each.type, each.detail) for each in ending} == {
        ("APP", "REQUEST_CANCEL"),
        ("APP", "ALLOC_CANCEL"),
        ("NODE", "NODE_ALLOC"),
        ("NODE", "NODE_RESERVATION"),
        ("APP", "DETAILS_NONE"),
        ("QUEUE", "QUEUE_APP"),
        ("QUEUE", "QUEUE_DYNAMIC"),
        ("QUEUE", "DETAILS_NONE"),
        ("NODE", "NODE_DECOMISSION"),
    }


def test_additions_minus_removals_are_the_present_objects() -> None:
    sums: dict[tuple[str, str, str], int] = {}
    for told in events_of("life"):
        sign = {"ADD": 1, "REMOVE": -1}.get(told.change, 0)
        kind = "ALLOC" if told.detail in ("APP_ALLOC", "ALLOC_CANCEL") else told.detail
        for name, quantity in told.record.resource.resources.items():
            if kind in ("ALLOC", "NODE_ALLOC", "UG_USER_RESOURCE"):
                key = (told.type, told.record.objectID, name)
                sums[key] = sums.get(key, 0) + sign * quantity.value
    assert set(sums) == {("APP", "app-1", "vcore"), ("NODE", "node-1", "vcore"), ("USERGROUP", "alice", "vcore")}
    assert set(sums.values()) == {0}
