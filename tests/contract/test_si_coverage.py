"""docs/si-coverage.md has a row for everything that both generations of the interface have, and each row is true.

A row is wrong when what it names is not in the interface, or has another number or generation there; when a place in
the code cannot be imported; or when a test, or a scenario, is not there.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import muster_si.constants
import pytest
from contract.si_generations.constants import CURRENT_CONSTANTS, PREVIOUS_CONSTANTS
from contract.si_generations.current import CURRENT, SERVICE
from contract.si_generations.previous import PREVIOUS
from contract.test_si_constants import python_name
from google.protobuf import descriptor_pb2
from muster_proto.muster.v1 import admin_pb2, callbacks_pb2, metrics_pb2
from muster_proto.si.v1 import si_pb2 as si

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "si-coverage.md"
OWN_FROM = 50_001
# The in-process interfaces of both generations: interface → method → which of them has it.
BOTH = "both"
IN_PROCESS = {
    "SchedulerAPI": {
        "RegisterResourceManager": BOTH,
        "UpdateAllocation": BOTH,
        "UpdateApplication": BOTH,
        "UpdateNode": BOTH,
        "UpdateConfiguration": BOTH,
        "Stop": "current",
    },
    "ResourceManagerCallback": {
        "UpdateAllocation": BOTH,
        "UpdateApplication": BOTH,
        "UpdateNode": BOTH,
        "Predicates": BOTH,
        "PreemptionPredicates": BOTH,
        "SendEvent": BOTH,
        "UpdateContainerSchedulingState": BOTH,
    },
    "StateDumpPlugin": {"GetStateDump": BOTH},
}
# Names of rows that may have no place in the code or no test: the note says why. The list may only become shorter.
NOT_SENT = {"UNKNOWN_SCHEDULING_STATE", "SCHEDULED", "REQUEST_ALLOC", "QUEUE_ALLOC"}


class Row(NamedTuple):
    """One line of a table, with the headings that it stands under.

    :ivar cells: by the name of the column.
    """

    section: str
    part: str
    cells: dict[str, str]

    def __str__(self) -> str:
        return " | ".join([self.section, self.part, *self.cells.values()])[:120]


def rows_of(page: str) -> Iterator[Row]:
    """All lines of all tables. A line with another number of cells than its head raises."""
    section = part = ""
    head: list[str] | None = None
    for line in page.splitlines():
        if line.startswith("## "):
            section, part, head = line[3:].strip(), "", None
        elif line.startswith("### "):
            part, head = line[4:].strip(), None
        elif not line.startswith("|"):
            head = None
        elif head is None:
            head = _cells(line)
        elif not set(line) <= set("|-"):
            yield Row(section, part, dict(zip(head, _cells(line), strict=True)))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def of(rows: Iterable[Row], section: str, part: str = "") -> list[Row]:
    return [row for row in rows if row.section == section and (not part or row.part == part)]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(rows_of(PAGE.read_text()))


# ---- what there is -------------------------------------------------------------------------------------------------


def generation(in_previous: bool, in_current: bool) -> str:
    if in_previous and in_current:
        return BOTH
    return "current" if in_current else "previous" if in_previous else "newer"


def proto() -> descriptor_pb2.FileDescriptorProto:
    found = descriptor_pb2.FileDescriptorProto()
    si.DESCRIPTOR.CopyToProto(found)
    return found


def expected_fields() -> dict[tuple[str, str], tuple[int, str]]:
    """(message, field) → number and generation: of the superset, and of both generations under its names."""
    found = {}
    for message in proto().message_type:
        for field in message.field:
            known = [field.number in g.messages.get(message.name, {}) for g in (PREVIOUS, CURRENT)]
            which = "own" if field.number >= OWN_FROM else generation(*known)
            found[message.name, field.name] = field.number, which
    for seed in (PREVIOUS, CURRENT):
        for name, fields in seed.messages.items():
            numbers = {number for (message, _), (number, _) in found.items() if message == name}
            assert numbers >= fields.keys(), f"{seed.name}: {name} lacks {fields.keys() - numbers}"
    return found


def expected_values() -> dict[tuple[str, str], tuple[int, str]]:
    """(enum, value) → number and generation."""
    file = proto()
    enums = {enum.name: enum for enum in file.enum_type}
    enums |= {f"{message.name}.{enum.name}": enum for message in file.message_type for enum in message.enum_type}
    found = {}
    for name, enum in enums.items():
        for value in enum.value:
            known = [value.number in g.enums.get(name, {}) for g in (PREVIOUS, CURRENT)]
            found[name, value.name] = value.number, generation(*known)
    for seed in (PREVIOUS, CURRENT):
        for name, values in seed.enums.items():
            for number, text in values.items():
                assert found[name, text][0] == number, f"{seed.name}: {name}.{text}"
    return found


def problems_of(
    rows: list[Row], section: str, column: str, expected: dict[tuple[str, str], tuple[int, str]]
) -> list[str]:
    """What is missing, unknown, double or otherwise than the interface has it."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    problems = []
    for row in of(rows, section):
        key = row.part, quoted(row.cells[column])[0]
        if key in found:
            problems.append(f"{key}: two rows")
        found[key] = int(row.cells["number"]), row.cells["in"]
    problems += [f"{key}: no row" for key in expected.keys() - found.keys()]
    problems += [f"{key}: not in the interface" for key in found.keys() - expected.keys()]
    both = found.keys() & expected.keys()
    return problems + [f"{key}: {found[key]}, not {expected[key]}" for key in both if found[key] != expected[key]]


def test_every_field_has_a_row_with_its_number_and_generation(rows: list[Row]) -> None:
    assert problems_of(rows, "Messages", "field", expected_fields()) == []


def test_every_enum_value_has_a_row_with_its_number_and_generation(rows: list[Row]) -> None:
    assert problems_of(rows, "Enum values", "value", expected_values()) == []


def test_every_message_has_a_heading_with_its_generation() -> None:
    text = PAGE.read_text()
    there = dict(re.findall(r"^### (\w+)\n\nIn: (\w+)\.", text, re.MULTILINE))
    messages = [message.name for message in proto().message_type]
    assert list(there) == messages
    assert there == {name: generation(name in PREVIOUS.messages, name in CURRENT.messages) for name in messages}


def test_every_call_has_a_row(rows: list[Row]) -> None:
    found = {}
    for row in of(rows, "Calls"):
        (service,), (call,) = quoted(row.cells["service"]), quoted(row.cells["call"])
        assert service == "si.v1.Scheduler"
        streams = [row.cells[side].startswith("stream of") for side in ("request", "response")]
        found[call] = (*quoted(row.cells["request"]), *quoted(row.cells["response"]), tuple(streams))
    assert found == SERVICE


def test_every_method_of_the_in_process_interfaces_has_a_row(rows: list[Row]) -> None:
    found: dict[str, dict[str, str]] = {}
    for row in of(rows, "In-process interfaces"):
        (interface,), (method,) = quoted(row.cells["interface"]), quoted(row.cells["method"])
        found.setdefault(interface, {})[method] = row.cells["in"]
    assert found == IN_PROCESS


def test_the_calls_and_fields_that_carry_them_are_there(rows: list[Row]) -> None:
    files = [si.DESCRIPTOR, callbacks_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR, metrics_pb2.DESCRIPTOR]
    calls = {
        f"{file.package}.{name}/{method.name}"
        for file in files
        for name, service in file.services_by_name.items()
        for method in service.methods
    }
    messages = {name: message for file in files for name, message in file.message_types_by_name.items()}
    for row in of(rows, "In-process interfaces"):
        for word in quoted(row.cells["call, and the field that carries it"]):
            message, _, field = word.partition(".")
            if "/" in word:
                assert word in calls, row
            elif message in messages:
                assert field in messages[message].fields_by_name, row
            else:
                assert word == "muster-shutdown", row


def test_every_reserved_number_has_a_row(rows: list[Row]) -> None:
    current, previous = (
        {
            (owner, number, text)
            for table in (seed.reserved, seed.reserved_values)
            for owner, numbers in table.items()
            for number, text in numbers.items()
        }
        for seed in (CURRENT, PREVIOUS)
    )
    expected = {key: generation(key in previous, key in current) for key in current | previous}
    found = {
        (*quoted(row.cells["in"]), int(row.cells["number"]), *quoted(row.cells["name"])): row.cells["reserved in"]
        for row in of(rows, "Reserved numbers")
    }
    assert found == expected


def test_every_constant_has_a_row_with_its_value_and_generation(rows: list[Row]) -> None:
    expected = {
        name: (value, generation(name in PREVIOUS_CONSTANTS, name in CURRENT_CONSTANTS))
        for name, value in {**PREVIOUS_CONSTANTS, **CURRENT_CONSTANTS}.items()
    }
    found = {}
    for row in of(rows, "Constants"):
        (name,), (value,) = quoted(row.cells["name"]), quoted(row.cells["value"])
        assert getattr(muster_si.constants, python_name(name)) == value
        found[name] = value, row.cells["in"]
    assert found == expected


# ---- whether it is true --------------------------------------------------------------------------------------------


def place(text: str) -> Any:
    """``module:symbol`` without the leading ``muster_``. Raises ImportError, AttributeError."""
    module, _, symbol = text.partition(":")
    found: Any = importlib.import_module(f"muster_{module}")
    for part in symbol.split(".") if symbol else ():
        found = getattr(found, part)
    return found


@cache
def names_of_tests(path: Path) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


@cache
def scenarios_in(path: Path) -> frozenset[str]:
    """Names of the scenarios of a file."""
    names = re.findall(r"^(?:-|\s+) *name: (.+)$", path.read_text(), re.MULTILINE)
    return frozenset(name.strip().strip("'\"") for name in names)


def test_problem(text: str) -> str:
    file, _, name = re.match(r"([^:]+)(::|: )?(.*)", text).groups()  # type: ignore[union-attr]
    path = TESTS / file
    if not path.is_file():
        return f"{text}: no such file"
    there = names_of_tests(path) if path.suffix == ".py" else scenarios_in(path)
    return "" if name in there else f"{text}: not in the file"


test_problem.__test__ = False  # type: ignore[attr-defined]


def name_of(row: Row) -> str:
    columns = ("field", "name", "value", "call", "method")
    return next(quoted(row.cells[column])[0] for column in columns if column in row.cells)


def with_places(rows: list[Row]) -> list[Row]:
    found = [row for row in rows if "where" in row.cells]
    assert found
    return found


def test_every_place_in_the_code_is_there(rows: list[Row]) -> None:
    problems = []
    for row in with_places(rows):
        for text in quoted(row.cells["where"]):
            try:
                place(text)
            except (ImportError, AttributeError) as error:
                problems.append(f"{row}: {text}: {error}")
    assert problems == []


def test_every_test_and_scenario_is_there(rows: list[Row]) -> None:
    problems = [test_problem(text) for row in with_places(rows) for text in quoted(row.cells["tests"])]
    assert [problem for problem in problems if problem] == []


def test_a_row_without_place_or_test_has_its_reason(rows: list[Row]) -> None:
    without = set()
    for row in with_places(rows):
        note = row.cells.get("note", row.cells.get("effect in Muster", ""))
        # A constant that nobody looks at is kept with its neighbours, which a test shows.
        if not quoted(row.cells["tests"]) or (not quoted(row.cells["where"]) and row.section != "Constants"):
            assert note, row
            without.add(name_of(row))
    assert without == NOT_SENT


def test_a_module_that_uses_a_constant_imports_it(rows: list[Row]) -> None:
    for row in of(rows, "Constants"):
        name = python_name(name_of(row))
        for text in quoted(row.cells["where"]):
            module = importlib.import_module(f"muster_{text.partition(':')[0]}")
            made_of = {
                each
                for each, value in vars(muster_si.constants).items()
                if each.isupper() and getattr(muster_si.constants, name) in value
            }
            assert made_of & vars(module).keys() or name == "ALLOC_TYPE_DEFAULT", row


def test_links_lead_somewhere() -> None:
    text = PAGE.read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (PAGE.parent / target).exists(), target


# ---- whether it would be noticed ---------------------------------------------------------------------------------


def changed(rows: list[Row], name: str, **cells: str) -> list[Row]:
    made = [row._replace(cells={**row.cells, **cells}) if name_of(row) == name else row for row in rows]
    assert made != rows
    return made


def test_each_kind_of_mistake_is_noticed(rows: list[Row]) -> None:
    fields = expected_fields()
    without = [row for row in rows if name_of(row) != "maxAllocations"]
    assert problems_of(without, "Messages", "field", fields) == ["('AllocationAsk', 'maxAllocations'): no row"]
    double = [*rows, next(row for row in rows if name_of(row) == "maxAllocations")]
    assert problems_of(double, "Messages", "field", fields) == ["('AllocationAsk', 'maxAllocations'): two rows"]
    renumbered = problems_of(changed(rows, "maxAllocations", number="6"), "Messages", "field", fields)
    assert renumbered == ["('AllocationAsk', 'maxAllocations'): (6, 'previous'), not (5, 'previous')"]
    elsewhere = problems_of(changed(rows, "maxAllocations", **{"in": BOTH}), "Messages", "field", fields)
    assert len(elsewhere) == 1
    unknown = problems_of(changed(rows, "maxAllocations", field="`most`"), "Messages", "field", fields)
    assert any("not in the interface" in problem for problem in unknown)
    for text in ("scheduler.core.nowhere:Thing", "scheduler.core.scheduler:SchedulerCore._nothing"):
        with pytest.raises((ImportError, AttributeError)):
            place(text)
    assert test_problem("unit/nowhere.py::test_x") == "unit/nowhere.py::test_x: no such file"
    assert "not in the file" in test_problem("contract/test_si_proto.py::test_of_nothing")
    assert "not in the file" in test_problem("scenario/core/2-17-foreign.yaml: a scenario that nobody wrote")
    assert test_problem("scenario/core/2-17-foreign.yaml: a foreign allocation takes room on its node") == ""
    with pytest.raises(ValueError, match="zip"):
        list(rows_of("## x\n| a | b |\n|---|---|\n| 1 |\n"))
