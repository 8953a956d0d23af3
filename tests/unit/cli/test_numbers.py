"""Every number of every command has a range; what is outside of it is one line and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from cyclopts import App, Parameter
from muster_cli.main import app, run
from muster_cli.numbers import Range


class Number(NamedTuple):
    """A number that the parser knows.

    :ivar given: the command, and what it needs beside the number.
    """

    given: tuple[str, ...]
    name: str
    is_operand: bool
    range: Range | None


def _commands(of: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    for name in of:
        if not name.startswith("-"):
            yield from _commands(of[name], (*path, name))
    if of.default_command is not None:
        yield path, of


def _numbers() -> Iterator[Number]:
    for path, command in _commands(app):
        found = command.assemble_argument_collection(default_parameter=Parameter(negative=()))
        shown = [each for each in found if each.names and each.names[0] != "*"]
        for each in shown:
            if not {int, float}.isdisjoint((each.hint, *get_args(each.hint))):
                others = [part for other in shown if other is not each and other.required for part in _filled(other)]
                range_ = each.parameter.converter if isinstance(each.parameter.converter, Range) else None
                yield Number((*path, *others), each.names[0], bool(each.field_info.is_positional), range_)


def _filled(other: Any) -> list[str]:
    value = next((str(each) for each in get_args(other.hint) if isinstance(each, str)), "x")
    return [value] if other.field_info.is_positional else [other.names[0], value]


NUMBERS = list(_numbers())
IDS = [f"{' '.join(each.given[:2])} {each.name}" for each in NUMBERS]


def _with(number: Number, text: str, *, joined: bool = False) -> list[str]:
    if number.is_operand:
        return [*number.given, text]
    return [*number.given, f"{number.name}={text}"] if joined else [*number.given, number.name, text]


def test_the_parser_has_them_all() -> None:
    assert {
        "replay-trace --chunk",
        "simulate --tick-s",
        "what-if --tick-s",
        "top --interval",
        "events batch --count",
    } <= {f"{' '.join(part for part in each.given if part != 'x')} {each.name}" for each in NUMBERS}
    assert len(NUMBERS) > 40


@pytest.mark.parametrize("number", NUMBERS, ids=IDS)
def test_each_has_a_range(number: Number) -> None:
    range_ = number.range
    assert range_ is not None, "give it a type of muster_cli.numbers"
    assert range_.least < range_.most
    bad = ["-1", "nan", "-inf", "9" * 5_000, "three", "", "1_0", "--x", "0x1p3", "\u0661", str(int(range_.most) + 1)]
    bad += ["2.5", "1e3"] if range_.whole else ["1e999"]
    bad += ["0", "-0.0"] if range_.least > 0 or range_.above else []
    return_of = _returned(number, bad)
    assert {text: code for text, (code, _) in return_of.items() if code != 2} == {}
    name = "PARTITIONS" if number.is_operand else number.name
    for text, (_, said) in return_of.items():
        assert said.startswith(f"muster: {name}: must be {range_}, got '"), (text, said)
        assert said.count("\n") == 1
        assert len(said) < 160


def _returned(number: Number, texts: list[str]) -> dict[str, tuple[int, str]]:
    found = {}
    for text in texts:
        for joined in (False, True) if text == "-1" else (False,):
            with pytest.MonkeyPatch.context() as patch:
                said: list[str] = []
                patch.setattr("muster_cli.main.print_lines", lambda line, said=said, **_: said.append(f"{line}\n"))
                try:
                    code = run(_with(number, text, joined=joined))
                except SystemExit as error:
                    code = int(error.code or 0)
                found[f"{text}{' joined' if joined else ''}"] = code, "".join(said)
    return found


@pytest.mark.parametrize("number", NUMBERS, ids=IDS)
def test_the_ends_of_each_range_are_taken(number: Number) -> None:
    range_ = number.range
    assert range_ is not None
    least = range_.most / 2 if range_.above else range_.least
    for value in (int(range_.least), int(range_.most)) if range_.whole else (least, range_.most):
        _, bound, _ = app.parse_args(_with(number, str(value)), exit_on_error=False, print_error=False)
        assert str(float(value)) in str(_floats(bound.arguments)), value


def _floats(value: object) -> list[float]:
    if isinstance(value, dict):
        return [each for part in value.values() for each in _floats(part)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [float(value)]
    slots = getattr(value, "__slots__", ())
    return [each for name in slots for each in _floats(getattr(value, name))]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "generate:tasks=3,nodes=2", "--nodes", "-0:node"], "--nodes: must be +COUNT:KIND or -COUNT:KIND"),
        (["simulate", "generate:tasks=3,nodes=2", "--nodes", f"+{'8' * 5_000}:node"], "--nodes: must be +COUNT:KIND"),
        (["simulate", "generate:tasks=3,nodes=2", "--nodes", "+1000001:node"], "--nodes: must be +COUNT:KIND"),
        (["simulate", "generate:tasks=3,nodes=2", "--nodes", "-1e1:node"], "--nodes: must be +COUNT:KIND"),
        (["simulate", "generate:tasks=3,load=nan"], "generate: load: must be a number from 0.001 to 1,000, got 'nan'"),
        (["simulate", "generate:tasks=3,load=inf"], "generate: load: must be a number from 0.001 to 1,000, got 'inf'"),
        (["simulate", "generate:tasks=3,spread=1e9"], "generate: spread: must be a number from 0 to 5, got '1e9'"),
        (["simulate", f"generate:tasks={'7' * 5_000}"], "generate: tasks: must be a whole number from 1 to 10,000,000"),
        (["simulate", "generate:nodes=0"], "generate: nodes: must be a whole number from 1 to 1,000,000, got '0'"),
        (["simulate", "generate:seed=-4"], "generate: seed: must be a whole number from 0 to"),
        (["events", "batch", "--since", f"{'6' * 400}d"], "--since: must be a time as"),
        (["events", "watch", "--since", "36501d"], "--since: must be a time as"),
        (["audit", "--until", "4000000000000s"], "--until: must be a time as"),
    ],
)
def test_numbers_within_a_text_have_a_range(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"muster: {said}")
    assert len(told) < 200


def test_machines_can_be_taken_away(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """``-2:node`` is a value, not an option."""
    file = tmp_path / "figures.json"
    arguments = ["simulate", "generate:tasks=4,nodes=5,seed=2", "--nodes", "-2:node", "--json", str(file)]
    assert run([*arguments, "--processes", "1"]) == 0
    assert '"-2:node"' in file.read_text()
    capsys.readouterr()
