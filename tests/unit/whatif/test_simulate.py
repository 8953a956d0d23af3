"""``muster simulate``: a matrix on several processes, kept results, a table, JSON and an HTML report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from muster_cli import simulate as simulating
from muster_cli.errors import UsageError
from muster_whatif import matrix
from muster_whatif.comparison import Cell, duration, shown
from muster_whatif.matrix import ExperimentPoint, run
from muster_whatif.scenario import Scenario
from muster_whatif.simulation import TaskOutcome, play
from muster_whatif.stats import jain, percentile
from muster_whatif.workload_source import WorkloadSource
from unit.whatif.recount import wait_reached_by

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
        WorkloadSource(source), wanted.pop("configs", []), wanted.pop("changes", []), **{**chosen, **wanted}
    )  # type: ignore[arg-type]


def points(*configs: str) -> list[ExperimentPoint]:
    return [
        ExperimentPoint(WorkloadSource(SMALL), Scenario(f"s{number}", config)) for number, config in enumerate(configs)
    ]


def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    config = WorkloadSource(SMALL).read().config
    told: list[int] = []
    assert run(points(config, ONE_QUEUE), processes=2, progress=told.append) == run(
        points(config, ONE_QUEUE), processes=1
    )
    assert told, "the bar moved"


def test_finished_plays_are_kept_until_something_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = WorkloadSource(SMALL).read().config
    first = run(points(config), keep=tmp_path)
    played: list[ExperimentPoint] = []
    real: Callable[..., object] = matrix._played
    monkeypatch.setattr(matrix, "_played", lambda point, progress: (played.append(point), real(point, progress))[1])
    assert run(points(config), keep=tmp_path) == first
    assert not played
    run(points(config, ONE_QUEUE), keep=tmp_path)
    assert [point.scenario.config for point in played] == [ONE_QUEUE]


def test_a_run_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    three = points(WorkloadSource(SMALL).read().config, ONE_QUEUE, ONE_QUEUE.replace("queue-1", "queue-2"))
    ended: list[int] = []

    def interrupt_the_second(over: int) -> None:
        ended.append(over)
        if len(ended) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(three, processes=1, keep=tmp_path, progress=interrupt_the_second)
    assert [file.name for file in tmp_path.iterdir()] == [f"{three[0].key()}.json"]
    (tmp_path / f"{three[1].key()}.part").write_text("{")  # as a kill while a result is written leaves it
    again: list[int] = []
    assert run(three, processes=1, keep=tmp_path, progress=again.append) == run(three, processes=1)
    assert again == [60, 60], "the first one was not played again"


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


class Cells(HTMLParser):
    """The figures of a report's table: by group and name, the texts of the scenarios."""

    def __init__(self) -> None:
        super().__init__()
        self.figures: dict[tuple[str, str], list[str]] = {}
        self._group, self._row, self._tag = "", list[str](), ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._tag = tag
        if tag == "tr":
            self._row = []

    def handle_data(self, data: str) -> None:
        if self._tag in ("td", "th"):
            self._row.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag != "tr":
            return
        if len(self._row) == 1:
            self._group = self._row[0]
        elif self._row:
            self.figures[self._group, self._row[0]] = self._row[1:]


def counted(lives: Sequence[TaskOutcome]) -> dict[str, str]:
    """The waits of these tasks, counted naively."""
    found = [wait_reached_by(lives, percent) for percent in (50, 95, 100)]
    half, most, longest = ("-" if each is None else duration(max(each, 0.0)) for each in found)  # (rounding: -1e-14 s)
    never = sum(1 for life in lives if life.first_started_s is None and not life.rejected)
    return {
        "wait, half of the tasks": half,
        "wait, 95 %": most,
        "wait, longest": longest,
        "never started": str(never),
        "refused": str(sum(1 for life in lives if life.rejected)),
        "preemptions": str(sum(life.preempted for life in lives)),
    }


@pytest.mark.parametrize("config", ["", ONE_QUEUE])
def test_every_number_of_the_report_is_what_a_naive_recount_finds(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second configuration lacks all queues but one, so most tasks are refused."""
    other = tmp_path / "other.yaml"
    loaded = WorkloadSource(SMALL).read()
    other.write_text(config or loaded.config)
    assert simulate(configs=[other], html_file=tmp_path / "f.html") == 0
    cells = Cells()
    cells.feed((tmp_path / "f.html").read_text())
    seen = {key: texts[1] for key, texts in cells.figures.items() if key[1] != "as it is"}
    played = play(loaded, Scenario("other", other.read_text()))
    lives = list(played.lives.values())
    wanted = {("", name): text for name, text in counted(lives).items()}
    wanted["", "tasks"] = str(len(lives))
    groups: dict[str, list[TaskOutcome]] = {}
    for life in lives:
        for kind, name in (("queue", life.task.queue), ("user", life.task.user), ("priority", str(life.task.priority))):
            groups.setdefault(f"{kind} {name}", []).append(life)
    kinds = Counter(group.split()[0] for group in groups)
    for group, own in groups.items():
        if kinds[group.split()[0]] > 1:
            wanted.update({(group, name): text for name, text in counted(own).items()})
    first_s, arrived_s = min(life.task.arrives_s for life in lives), max(life.task.arrives_s for life in lives)
    ran = [life for life in lives if life.started_s is not None and life.ended_s is not None]
    for resource in {name for machine in loaded.machines for name in machine.quantities}:
        used = sum(
            life.task.quantities.get(resource, 0) * max(min(life.ended_s or 0, arrived_s) - (life.started_s or 0), 0.0)
            for life in ran
        )
        capacity = sum(machine.quantities[resource] for machine in loaded.machines)
        wanted["", f"{resource} in use"] = f"{100 * used / (capacity * (arrived_s - first_s)):.1f} %"
    wanted["", "makespan"] = duration(max(life.ended_s or 0 for life in ran) - first_s)
    by_user = [
        sum(
            life.task.quantities["vcore"] * ((life.ended_s or 0) - (life.started_s or 0))
            for life in ran
            if life.task.user == user
        )
        for user in {life.task.user for life in lives}
    ]
    wanted["", "fairness of users (Jain)"] = f"{sum(by_user) ** 2 / (len(by_user) * sum(x**2 for x in by_user)):.3f}"
    absent = {key for key in wanted if key not in seen}
    assert seen == {key: text for key, text in wanted.items() if key not in absent}
    assert all(wanted[key] in ("0", "-") for key in absent), "a row of zeros of both scenarios is left out"
    printed = " ".join(capsys.readouterr().out.split())
    for name in ("tasks", "wait, 95 %", "vcore in use", "makespan"):
        assert f"{name} │ {cells.figures['', name][0]} │ {wanted['', name]} │" in printed


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
