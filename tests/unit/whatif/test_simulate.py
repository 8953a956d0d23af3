"""``muster simulate``: a matrix on several processes, kept results, a table, JSON and an HTML report."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from muster_cli import simulating
from muster_cli.errors import UsageError
from muster_whatif import matrix
from muster_whatif.comparison import Cell, duration, shown
from muster_whatif.figures import jain, percentile
from muster_whatif.matrix import Point, run
from muster_whatif.scenario import Scenario
from muster_whatif.sources import Source

SMALL = "generate:tasks=60,nodes=2,cores=8,load=1.5"
ONE_QUEUE = "partitions: [{name: default, queues: [{name: root, submitacl: '*', queues: [{name: queue-1}]}]}]"


def simulate(source: str = SMALL, **wanted: object) -> int:
    chosen: dict[str, object] = {
        "seeds": 1,
        "tick_s": 0.0,
        "until_s": None,
        "processes": 1,
        "keep": None,
        "json_file": None,
        "html_file": None,
    }
    return simulating.simulate(
        Source(source), wanted.pop("configs", []), wanted.pop("changes", []), **{**chosen, **wanted}
    )  # type: ignore[arg-type]


def points(*configs: str) -> list[Point]:
    return [Point(Source(SMALL), Scenario(f"s{number}", config)) for number, config in enumerate(configs)]


def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    config = Source(SMALL).read().config
    told: list[int] = []
    assert run(points(config, ONE_QUEUE), processes=2, progress=told.append) == run(
        points(config, ONE_QUEUE), processes=1
    )
    assert told, "the bar moved"


def test_finished_plays_are_kept_until_something_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Source(SMALL).read().config
    first = run(points(config), keep=tmp_path)
    played: list[Point] = []
    real: Callable[..., object] = matrix._played
    monkeypatch.setattr(matrix, "_played", lambda point, progress: (played.append(point), real(point, progress))[1])
    assert run(points(config), keep=tmp_path) == first
    assert not played
    run(points(config, ONE_QUEUE), keep=tmp_path)
    assert [point.scenario.config for point in played] == [ONE_QUEUE]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_table_json_and_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "<other>.yaml"
    config.write_text(ONE_QUEUE)
    files = {"json_file": tmp_path / "f.json", "html_file": tmp_path / "f.html"}
    assert simulate(configs=[config], changes=["+1:node"], seeds=2, **files) == 0
    out = capsys.readouterr().out
    for words in ("as it is", "+1:node", "<other>", "wait, 95 %", "vcore in use", "±", "refused"):
        assert words in out
    told = json.loads((tmp_path / "f.json").read_text())
    assert [each["scenario"] for each in told["plays"]] == ["as it is", "+1:node", "<other>", "<other>, +1:node"]
    assert told["plays"][0]["seeds"][0]["all"]["tasks"] == 60
    assert told["plays"][2]["seeds"][0]["all"]["refused"] > 0, "its queues are not there"
    html = (tmp_path / "f.html").read_text()
    tags = Tags()
    tags.feed(html)
    assert not tags.open
    assert tags.seen.count("svg") == 2
    assert tags.seen.count("polyline") == 8
    assert "<other>" not in html
    assert "http" not in html.replace("http-equiv", ""), "it loads nothing"


def test_json_alone_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(json_file=Path("-"))
    assert json.loads(capsys.readouterr().out)["plays"][0]["scenario"] == "as it is"


@pytest.mark.parametrize(
    ("source", "wanted", "message"),
    [
        (SMALL, {"changes": ["+1:gpu"]}, "no machine of kind 'gpu'"),
        ("nowhere", {}, "nowhere: expected a folder"),
        ("examples/openb", {"seeds": 2}, "--seeds: a trace is always the same"),
        (SMALL, {"configs": [Path("missing.yaml")]}, "missing.yaml: cannot be read"),
    ],
)
def test_what_cannot_be_played_is_said_before_anything_is(source: str, wanted: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulate(source, **wanted)


def test_figures_are_shown_in_their_units() -> None:
    assert [duration(each) for each in (0.04, 59.9, 60, 3_725, 90_000)] == [
        "0.0 s",
        "59.9 s",
        "1 min 0 s",
        "1 h 2 min",
        "1 d 1 h",
    ]
    assert shown(Cell(None, None), "s") == "-"
    assert shown(Cell(0.5, 0.01), "%") == "50.0 % ± 1.0 %"
    assert shown(Cell(12, 0.0), "") == "12"
    assert (percentile([], 50), percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 95)) == (None, 2, 4)
    assert jain([1, 1, 1, 1]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
