"""The mutation tool, on small modules whose mutants are known (sample/)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mutation import equivalent
from mutation.__main__ import drawn, of_changed
from mutation.applying import NotApplicable, applied
from mutation.forks import cpu_limit, in_forks
from mutation.mutants import BODY, Mutant, mutants_of, named, path_of
from mutation.sample import fitting, naming

FITTING, NAMING = "mutation.sample.fitting", "mutation.sample.naming"
TESTS = Path(__file__).resolve().parents[1]


def _texts(module: str, function: str) -> list[tuple[str, str, str]]:
    return [(each.operator, each.before, each.after) for each in mutants_of(module) if each.function == function]


def test_each_place_of_a_function_has_its_mutants() -> None:
    assert _texts(FITTING, "fits") == [
        ("return", "return wanted <= free", "return True"),
        ("return", "return wanted <= free", "return False"),
        ("compare", "wanted <= free", "wanted < free"),
        ("compare", "wanted <= free", "wanted > free"),
    ]
    assert _texts(FITTING, "steps_to") == [
        ("body", BODY, "return 0"),
        ("constant", "0", "1"),
        ("loop", "while at < end:", "while False:"),
        ("compare", "at < end", "at <= end"),
        ("compare", "at < end", "at >= end"),
        ("arithmetic", "at += 1", "at -= 1"),
        ("statement", "at += 1", "pass"),
        ("constant", "1", "2"),
    ]


def test_a_mutant_names_its_place() -> None:
    found = named(FITTING, "fits", "wanted <= free", "wanted < free")
    assert str(found) == "tests/mutation/sample/fitting.py:LINE: fits: compare: wanted <= free → wanted < free".replace(
        "LINE", str(found.line)
    )
    assert (TESTS.parent / path_of(FITTING)).read_text().splitlines()[found.line - 1] == "    return wanted <= free"


def test_a_mutant_that_is_not_there_any_more_is_said_with_those_that_are() -> None:
    with pytest.raises(LookupError, match="wanted <= free → wanted < free"):
        named(FITTING, "fits", "wanted == free", "wanted != free")
    with pytest.raises(LookupError, match="no such function"):
        named(FITTING, "fitted", "wanted <= free", "wanted < free")


@pytest.mark.parametrize(
    ("function", "before", "after"),
    [("Named.empty", "not self._name", "self._name"), ("Named.larger", "one > other", "one <= other")],
)
def test_it_is_in_place_for_whoever_has_the_function_and_then_it_is_not(function: str, before: str, after: str) -> None:
    larger = naming.Named.larger

    def found() -> tuple[bool, bool]:
        return bool(naming.Named("").empty), larger(2, 1)

    assert found() == (True, True)
    with applied(named(NAMING, function, before, after)):
        assert found() == (function != "Named.empty", function != "Named.larger")
    assert found() == (True, True)


def test_a_decorated_function_is_exchanged_within_its_decorator() -> None:
    names: list[str] = []
    with applied(named(NAMING, "opened", "names.append('open')", "pass")), naming.opened(names):
        assert names == []
    with naming.opened(names):
        assert names == ["open"]


def test_what_is_not_where_its_name_says_is_not_applicable() -> None:
    found = named(FITTING, "fits", "wanted <= free", "wanted < free")
    elsewhere = Mutant(found.module, "fitted", found.first_line, found.line, "compare", "", "", found.number)
    with pytest.raises(NotApplicable), applied(elsewhere):
        pass
    assert fitting.fits(2, 2)


def test_a_smaller_sample_is_the_beginning_of_a_larger_one() -> None:
    mutants = mutants_of(FITTING) + mutants_of(NAMING)
    assert drawn(mutants, 7, 5) == drawn(mutants, 7, 0)[:5]
    assert sorted(drawn(mutants, 7, 0), key=mutants.index) == list(mutants)
    assert drawn(mutants, 7, 0) != drawn(mutants, 8, 0)


def test_of_changed_files_those_at_changed_lines_are_first() -> None:
    mutants = mutants_of(FITTING) + mutants_of(NAMING)
    line = named(FITTING, "fits", "wanted <= free", "wanted < free").line
    found = of_changed(mutants, {path_of(FITTING): {line}}, 1)
    assert {each.module for each in found} == {FITTING}
    assert len(found) == len(mutants_of(FITTING))
    assert [each.line == line for each in found] == sorted((each.line == line for each in found), reverse=True)


def test_what_is_held_for_equivalent_is_still_there() -> None:
    for module, function, before, after, reason in equivalent.EQUIVALENT:
        assert equivalent.is_equivalent(named(module, function, before, after))
        assert reason


def test_a_process_that_sleeps_is_ended_and_one_that_works_is_not() -> None:
    def works(_: Path) -> str:
        until = time.process_time() + 1.0
        while time.process_time() < until:
            pass
        return "worked"

    def sleeps(_: Path) -> None:
        threading.Event().wait()

    found = {number: (given, how) for number, given, how in in_forks([works, sleeps], 2, asleep_s=10.0)}
    assert found == {0: ("worked", ""), 1: (None, "ended by SIGKILL")}


def test_an_error_of_a_piece_and_one_that_uses_too_much_are_told() -> None:
    def fails(_: Path) -> None:
        raise LookupError("no such piece")

    def loops(_: Path) -> None:
        cpu_limit(0.1)
        while True:
            pass

    found = {number: (given, how) for number, given, how in in_forks([fails, loops], 1)}
    assert found == {0: (None, "LookupError: no such piece"), 1: (None, "ended by SIGVTALRM")}


def _run(folder: Path, *words: str, **environment: str) -> tuple[int, str, dict[str, Any]]:
    found = folder / "mutation.json"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "mutation", "--package", "mutation.sample", "--limit-s", "0.5"),
            *("--json", str(found), "--tests", str(TESTS / "mutation/sample/checks.py"), *words),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS), **environment},
    )
    return ran.returncode, ran.stdout + ran.stderr, json.loads(found.read_text()) if found.exists() else {}


def test_a_run_that_notices_all_ends_with_0_and_an_endless_loop_is_noticed(tmp_path: Path) -> None:
    status, text, told = _run(tmp_path, "--seed", "1", "--file", "fitting")
    fates = {(each["before"], each["after"]): each["fate"] for each in told["mutants"]}
    assert set(fates.values()) == {"killed", "timed out"}, text
    assert fates["at += 1", "pass"] == "timed out"
    assert fates["wanted <= free", "wanted < free"] == "killed"
    assert status == 0, text


def test_survivors_are_listed_and_end_it_with_1(tmp_path: Path) -> None:
    status, text, told = _run(tmp_path, "--seed", "1", "--file", "naming")
    left = {(each["function"], each["after"]) for each in told["mutants"] if each["fate"] == "survived"}
    assert left == {("Named.larger", "one >= other")}, text
    untested = {each["function"] for each in told["mutants"] if each["fate"] == "untested"}
    assert untested == {"Named.untested", "opened"}
    assert "Named.larger: compare: one > other → one >= other" in text
    by = {each["after"]: each["by"] for each in told["mutants"] if each["function"] == "Named.larger"}
    assert by["one <= other"].endswith("test_only_far_from_the_boundary")
    assert status == 1, text


def test_where_tests_fail_without_a_mutant_nothing_is_said(tmp_path: Path) -> None:
    status, text, told = _run(tmp_path, "--seed", "1", "--file", "fitting", BROKEN_SAMPLE="1")
    assert "without a mutant: " in text
    assert "test_the_environment_may_break_it" in text
    assert (status, told) == (2, {})


def test_what_is_not_reached_in_time_is_counted(tmp_path: Path) -> None:
    status, text, told = _run(tmp_path, "--seed", "1", "--file", "fitting", "--minutes", "0")
    assert told["counts"] == {"not reached": len(mutants_of(FITTING))}, text
    assert status == 0
