"""`muster what-if` on made-up events: the workload is what happened, and the play is held against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from muster_cli.main import run
from unit.cli.test_history import Told, write

CONFIG = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: a}, {name: b}]}]}]"
TWO = {"vcore": 2_000}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "was.yaml"
    file.write_text(CONFIG)
    return file


def told(*, nodes: int = 1) -> Told:
    """A node of two cores. k1 runs for 10 s, k2 waits for it and still runs, k3 never runs, k4 was withdrawn."""
    made = Told()
    for number in range(nodes):
        made.say("NODE ADD DETAILS_NONE", f"n{number}", "", TWO)
    made.submit("x")
    made.say("APP ADD APP_REQUEST", "x", "k1", TWO)
    made.begin("x", "k1", "n0", TWO, after_s=0)
    for key in ("k2", "k3", "k4"):
        made.say("APP ADD APP_REQUEST", "x", key, TWO, after_s=1)
    made.say("APP REMOVE REQUEST_CANCEL", "x", "k4", TWO, after_s=1)
    made.say("APP REMOVE ALLOC_CANCEL", "x", "k1", TWO, after_s=6)
    made.say("NODE REMOVE NODE_ALLOC", "n0", "k1", TWO, after_s=0)
    made.begin("x", "k2", "n0", TWO, after_s=0)
    made.say("APP SET APP_RUNNING", "x", after_s=30)
    return made


def played(tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    code = run(["what-if", "--history", str(tmp_path / "history"), "--json", "-", *more])
    said = capsys.readouterr()
    assert code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_what_was_in_force_repeats_what_happened(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = told().rows
    write(tmp_path / "history", rows, 0, len(rows))
    found = played(tmp_path, capsys, "--as-it-was", str(config))
    assert "played as it was, 2 of 2 tasks start within 1 s of when they did" in found["facts"]
    assert "1 asks that were withdrawn before they ran are left out" in found["facts"]
    (figures,) = found["plays"][0]["seeds"]
    assert (figures["all"]["tasks"], figures["all"]["never"], figures["all"]["max_s"]) == (3, 1, 9.0)


def test_more_machines_and_another_configuration(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = told().rows
    write(tmp_path / "history", rows, 0, len(rows))
    other = tmp_path / "other.yaml"
    other.write_text(CONFIG.replace("{name: a}", "{name: a, resources: {max: {vcore: 1}}}"))
    found = played(
        tmp_path, capsys, "--as-it-was", str(config), "--config", str(other), "--nodes", "+2:size-1",
        "--save", str(tmp_path / "x.workload.json"),
    )  # fmt: skip
    waits = {each["scenario"]: each["seeds"][0]["all"] for each in found["plays"]}
    assert waits["was, +2:size-1"]["max_s"] == 0
    assert waits["other"]["never"] == 3, "its queue is too small"
    capsys.readouterr()
    assert run(["simulate", str(tmp_path / "x.workload.json"), "--config", str(config), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["workload"] == "history of rm"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--as-it-was or --config: expected at least one"),
        (["--config", "{config}", "--save", "x.json"], "expected a name that ends with .workload.json"),
        (["--config", "{config}", "--nodes", "+1:large"], "no machine of kind 'large', expected one of size-1"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    rows = told().rows
    write(tmp_path / "history", rows, 0, len(rows))
    given = [each.format(config=config) for each in arguments]
    assert run(["what-if", "--history", str(tmp_path / "history"), *given]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_history_of_two_rms_needs_a_choice(tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = told(), told()
    second.rm = "other"
    rows = [*first.rows, *({**row, "rm": "other"} for row in second.rows)]
    write(tmp_path / "history", rows, 0, len(rows))
    assert run(["what-if", "--history", str(tmp_path / "history"), "--config", str(config)]) == 1
    assert "name one with --rm" in capsys.readouterr().err.replace("\n", " ")
    assert played(tmp_path, capsys, "--config", str(config), "--rm", "rm")["workload"] == "history of rm"
