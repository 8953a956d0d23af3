"""The answers of ``/ws/v1/explain/*`` have their shapes, and each figure of a sentence is in a field, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from contract import openapi
from muster_core.model.reasons import Reason, ReasonCode
from muster_core.model.text_format import format_amount, format_duration, join_words, pluralize
from unit.view import explained

STORIES: dict[str, Callable[[], dict[str, Any]]] = {
    **{code.value: lambda make=make: make().json() for code, make in explained.REASONS.items()},  # type: ignore[misc]
    **{no.value: lambda make=make: make().json() for no, make in explained.NOES.items()},  # type: ignore[misc]
    **explained.RULES,
    "one after another": explained.one_after_another,
    "victims": explained.with_victims,
    "a queue": explained.a_queue,
    "a gang": explained.a_gang,
    "closed nodes": explained.closed_nodes,
    "one node closed": explained.one_closed,
    "after a pause": explained.after_a_pause,
}
# The moments of what an explanation says; the scenarios begin later than this.
_MOMENTS = {"since", "until", "at", "asOf", "waitingSince", "deadline"}
_FIRST_NS = 1_000 * 1_000_000_000
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_UNITS = ("cores", "core", "bytes", "KiB", "MiB", "GiB", "TiB")


@pytest.mark.parametrize("story", STORIES)
def test_the_shape_is_whole_and_has_nothing_else(story: str) -> None:
    value = STORIES[story]()
    openapi.has_schema(_schema_of(value), value)
    for at in _moments(value):
        assert at == 0 or at >= _FIRST_NS, "a moment of the scenario, not a duration"


@pytest.mark.parametrize("story", STORIES)
def test_each_figure_of_the_words_is_in_a_field(story: str) -> None:
    value = STORIES[story]()
    known = set(_figures(value))
    for name in ("sentence", "message"):
        text = _without_names(value[name], value)
        for found in _NUMBER.finditer(text):
            unit = text[found.end() :].lstrip().split(" ")[0].rstrip(".,;%")
            said = f"{found[0]} {unit}" if unit in _UNITS else found[0]
            assert said in known, f"{said!r} of {value[name]!r} is in no field"


@pytest.mark.parametrize("story", STORIES)
def test_it_is_one_sentence_in_english(story: str) -> None:
    sentence, message = (STORIES[story]()[name] for name in ("sentence", "message"))
    assert ". " not in sentence, "one sentence"
    for text in (sentence, message):
        assert re.fullmatch(r"[A-Z].*[.]", text)
        assert "  " not in text
        assert not re.search(r"\b1 (applications|nodes|placeholders|asks|allocations|cores|seconds|minutes)\b", text)
        assert not re.search(r"\b(0|[2-9]|\d\d+) (application|node|placeholder|ask|allocation|core|minute)\b", text)


def _schema_of(value: dict[str, Any]) -> str:
    """The schema of an explanation, by what it has."""
    if "rule" in value:
        return "Preempted"
    return "Pending" if "waitingSince" in value else "ExplainQueue" if "guarantees" in value else "ExplainApplication"


def _moments(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name in _MOMENTS and isinstance(each, int):
                yield each
            yield from _moments(each)
    elif isinstance(value, list):
        for each in value:
            yield from _moments(each)


def _figures(value: Any, kind: str = "", at_ns: int = 0) -> Iterator[str]:
    """Every figure of the typed part, in each form that a sentence may have."""
    if isinstance(value, dict):
        kind, at_ns = value.get("resourceType", kind), value.get("at", at_ns)
        for name in ("since", "waitingSince", "asOf"):
            if name in value:
                yield from _numbers(format_duration(at_ns - value[name]))
        yield pluralize(len(value.get("preemption", {}).get("victims", ())), "").strip()
        yield str(sum(value["asks"].values())) if isinstance(value.get("asks"), dict) else ""
        if value.get("mayAt"):
            yield from _numbers(format_duration(value["mayAt"] - at_ns))
        if "taskGroups" in value:
            yield from _of_a_gang(value["taskGroups"])
        for name, each in value.items():
            named = isinstance(each, int) and "resourceType" not in value
            yield from _figures(each, name if named else kind, at_ns)
    elif isinstance(value, list):
        for each in value:
            yield from _figures(each, kind, at_ns)
    elif isinstance(value, float):
        yield f"{value * 100:.0f}"
    elif isinstance(value, int):
        yield f"{value:,}"
        yield format_amount(kind, value)


def _of_a_gang(groups: list[dict[str, Any]]) -> Iterator[str]:
    for name in ("asked", "pending", "held", "leaving", "replaced", "timedOut", "lost"):
        yield str(sum(each[name] for each in groups))
    yield str(sum(each["held"] - each["leaving"] for each in groups))


def _numbers(text: str) -> list[str]:
    return _NUMBER.findall(text)


def _without_names(text: str, value: Any) -> str:
    for name in sorted(set(_texts(value)), key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "", text)
    return text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name not in ("message", "sentence"):
                yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str) and value:
        yield value
        yield from value.split("/")


# ---- by a table of typed reasons -----------------------------------------------------------------------------------

FULL = Reason(
    ReasonCode.NO_NODES, "root.q", "vcore", asked=11_000, used=12_000, limit=13_000, free=14_000, who="w", node="n",
    nodes=15, reserved=16, promised=17_000, task_group="t", placed=18, members=19, placeholder="p", said="s",
)  # fmt: skip
# Which of a reason's figures stand in its clause.
CLAUSES = {
    ReasonCode.WAITING_FOR_TURN: (),
    ReasonCode.NO_NODES: (),
    ReasonCode.LARGER_THAN_ANY_NODE: ("asked", "limit"),
    ReasonCode.NO_NODE_HAS_ROOM: ("asked", "free"),
    ReasonCode.FREE_RESOURCES_SCATTERED: (),
    ReasonCode.QUEUE_MAX: ("used", "limit", "asked"),
    ReasonCode.QUEUE_MAX_APPLICATIONS: ("used", "limit"),
    ReasonCode.USER_LIMIT: ("used", "limit", "asked"),
    ReasonCode.GROUP_LIMIT: ("used", "limit", "asked"),
    ReasonCode.USER_MAX_APPLICATIONS: ("used", "limit"),
    ReasonCode.GROUP_MAX_APPLICATIONS: ("used", "limit"),
    ReasonCode.REQUIRED_NODE_UNKNOWN: (),
    ReasonCode.REQUIRED_NODE_FULL: ("asked", "free", "limit"),
    ReasonCode.RESERVED_FOR_OTHERS: (),
    ReasonCode.GANG_ROOM: ("used", "limit", "promised", "asked"),
    ReasonCode.GANG_FORMING: ("placed", "members"),
    ReasonCode.PLACEHOLDER_LEAVING: (),
    ReasonCode.PLACEHOLDER_STUCK: (),
    ReasonCode.RM_ASKED: (),
    ReasonCode.RM_TURN: (),
    ReasonCode.REFUSED_BY_RM: ("nodes",),
    ReasonCode.QUEUE_STOPPED: (),
    ReasonCode.RM_STOPPED: (),
    ReasonCode.RM_ABSENT: (),
    ReasonCode.RM_HELD: (),
    ReasonCode.SOURCE_LISTING: (),
}
_OF_A_TYPE = {"asked", "used", "limit", "free", "promised"}
_MAXIMA = {
    ReasonCode.QUEUE_MAX_APPLICATIONS,
    ReasonCode.USER_MAX_APPLICATIONS,
    ReasonCode.GROUP_MAX_APPLICATIONS,
}


@pytest.mark.parametrize("code", ReasonCode)
@pytest.mark.parametrize("kind", ["vcore", "memory", "license"])
def test_the_clause_of_a_reason_has_its_figures_in_their_units(code: ReasonCode, kind: str) -> None:
    reason = replace(FULL, code=code, resource_type=kind)
    clause = reason.clause()
    for name in CLAUSES[code]:
        value = getattr(reason, name)
        bare = name not in _OF_A_TYPE or code in _MAXIMA
        assert (f"{value:,}" if bare else format_amount(kind, value)) in clause, name
    figures = _NUMBER.findall(clause)
    assert len(figures) == len(CLAUSES[code]), f"{clause}: and no other figure"
    assert clause[0].islower()
    assert not clause.endswith(".")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_amount("vcore", 4_000), "4 cores"), (format_amount("vcore", 1_000), "1 core"),
        (format_amount("vcore", 1_500), "1.5 cores"),
        (format_amount("vcore", 5), "0.005 cores"), (format_amount("vcore", 0), "0 cores"),
        (format_amount("vcore", 2_000_000), "2,000 cores"),
        (format_amount("memory", 1), "1 byte"), (format_amount("memory", 0), "0 bytes"),
        (format_amount("memory", 16 << 30), "16 GiB"),
        (format_amount("memory", 1_000_000_000), "953.7 MiB"), (format_amount("hugepages-2Mi", 2 << 20), "2 MiB"),
        (format_amount("ephemeral-storage", 3 << 40), "3 TiB"), (format_amount("license", 1_200), "1,200 license"),
        (format_duration(0), "less than a second"), (format_duration(999_999_999), "less than a second"),
        (format_duration(1_000_000_000), "1 second"),
        (format_duration(180_000_000_000), "3 minutes"), (format_duration(3_665_000_000_000), "1 hour 1 minute"),
        (format_duration(3_605_000_000_000), "1 hour"), (format_duration(200_000_000_000_000), "2 days 7 hours"),
        (join_words([]), ""), (join_words(["a"]), "a"), (join_words(["a", "b"]), "a and b"),
        (join_words(["a", "b", "c"]), "a, b and c"),
        (pluralize(1, "ask"), "1 ask"), (pluralize(2_000, "ask"), "2,000 asks"), (pluralize(0, "ask"), "0 asks"),
    ],
)  # fmt: skip
def test_quantities_and_times_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


def test_different_shapes_have_different_names() -> None:
    reason = Reason(ReasonCode.NO_NODE_HAS_ROOM, "", "memory", asked=(16 << 30) + 1, free=16 << 30)
    assert reason.clause() == ("it asks for 17,179,869,185 bytes, and no node has more than 17,179,869,184 bytes free")
    reason = Reason(ReasonCode.NO_NODE_HAS_ROOM, "", "memory", asked=(16 << 30) + (1 << 24), free=16 << 30)
    assert reason.clause() == "it asks for 16.02 GiB, and no node has more than 16 GiB free"
