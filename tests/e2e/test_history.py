"""`muster history` on the history of a Muster, while it runs and afterwards."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from e2e.gang_rig import Muster, Rm, muster_here
from muster_cli.history import views
from muster_cli.main import run
from muster_client import ask
from muster_proto.si.v1 import si_pb2 as si
from muster_replay.local_process import muster_command
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "history.md"
RM = "hist"
WIDE = 120  # allocations of one application: more than are shown one by one
QUEUES = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: a
            resources: {guaranteed: {vcore: "2"}, max: {vcore: "8"}}
          - name: b
"""
COMMAND_TIMEOUT_S = 180


@dataclass
class Lived:
    """What a Muster lived through.

    :ivar events: as REST gave them at the end; the place of each is its id.
    :ivar running: what commands printed while it ran: (exit code, standard output, standard error).
    """

    directory: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    instance: str = ""
    running: dict[str, tuple[int, str, str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    found = Lived(tmp_path_factory.mktemp("lived"))
    asyncio.run(_live(found))
    return found


async def _live(found: Lived) -> None:
    async with (
        muster_here(found.directory, ["publisher.parquet_roll_records=50"]) as muster,
        Rm(muster.gateway, muster.http, RM, QUEUES) as rm,
    ):
        rm.confirms = True
        await rm.nodes(n1=4_000, n2=4_000, n3=1_000)
        # three tasks that end one after the other
        await rm.application("short", "root.a")
        await rm.client.send_asks([ask(f"s{number}", "short", {"vcore": 1_000}) for number in range(3)])
        await eventually(lambda: {"s0", "s1", "s2"} <= set(rm.runs), "three run")
        muster.clock.forward(60)
        await rm.ends("s0")
        muster.clock.forward(3_600)
        await rm.ends("s1", "s2")
        muster.clock.forward(31)  # Completing is over
        await rm.hears("application", "short", "Completed")
        # a gang whose placeholder makes room, and whose other one is not needed
        await rm.application("gang", "root.b", 2_000, style="Soft", timeout_ms=60_000)
        await rm.placeholders("gang", 2, 1_000)
        await eventually(lambda: len(rm.runs) == 2, "both placeholders run")
        await rm.real("gang", "real", 1_000)
        await rm.hears("new", "real")
        muster.clock.forward(61)
        await eventually(lambda: set(rm.runs) == {"real"}, "the other one's time is up")
        # many, of which a node takes one away
        await rm.application("wide", "root.a")
        await rm.client.send_asks([ask(f"w{number:03}", "wide", {"vcore": 10}) for number in range(WIDE)])
        await eventually(lambda: len(rm.runs) == 1 + WIDE, "all of them run")
        muster.clock.forward(600)
        gone = [name for name, held in rm.runs.items() if held.nodeID == "n3"]
        assert gone
        await rm.node_action("n3", si.NodeInfo.DECOMISSION)
        await eventually(lambda: not any(name in rm.runs for name in gone), "those of n3 are gone")
        # one more life of the first, which waits for room that there is not; and one that is not let in
        await rm.application("short", "root.a")
        await rm.client.send_asks([ask("huge", "short", {"vcore": 5_000})])
        await rm.application("lost", "root.nowhere")
        await rm.barrier()
        await eventually(lambda: _all_events(rm), "the events")
        await _ask_while_it_runs(found, muster)
        batch = await eventually(lambda: _all_events(rm), "the events")
        found.events, found.instance = batch["EventRecords"], batch["InstanceUUID"]


async def test_rest_has_the_events_of_several_rms(tmp_path: Path) -> None:
    async with (
        muster_here(tmp_path) as muster,
        Rm(muster.gateway, muster.http, "rm-1", QUEUES) as one,
        Rm(muster.gateway, muster.http, "rm/2", QUEUES) as two,
    ):
        for number, rm in enumerate((one, two), start=1):
            await rm.nodes(**{f"node-of-{number}": 4_000})
            await eventually(lambda: _has_event(rm, f"node-of-{number}"), "the node is an event")  # noqa: B023
        command = [
            "history", "--history", str(tmp_path / "nothing"), "--http", muster.http, "--json",
            "select rm, object_id as node from events where type = 'NODE' order by all",
        ]  # fmt: skip
        done = await asyncio.to_thread(
            subprocess.run, muster_command(*command), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"rm": "rm-1", "node": "node-of-1"}, {"rm": "rm/2", "node": "node-of-2"}]


async def _has_event(rm: Rm, about: str) -> bool:
    batch = await rm.get("/ws/v1/events/batch", count="10000") or {}
    return about in [event.get("objectID") for event in batch.get("EventRecords") or []]


async def _all_events(rm: Rm) -> Any:
    batch = await rm.get("/ws/v1/events/batch", count="10000") or {}
    details = [event.get("eventChangeDetail") for event in batch.get("EventRecords") or []]
    return batch if 202 in details else None  # the last of all: APP_REJECT


async def _ask_while_it_runs(found: Lived, muster: Muster) -> None:
    data = ["--data-dir", str(found.directory)]
    empty = str(found.directory)  # no Parquet file right there: only what REST has
    for name, arguments in {
        "log": ["history", *data, "--json", "select count(*) as n, max(id) as last from events"],
        "rest": [
            "history", "--history", f"{empty}/nothing", "--http", muster.http, "--json",
            "select count(*) as n, max(id) as last from events",
        ],
        "app": ["history", "app", "wide", *data],
    }.items():  # fmt: skip
        done = await asyncio.to_thread(
            subprocess.run, muster_command(*arguments), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        )
        found.running[name] = (done.returncode, done.stdout, done.stderr)


@pytest.fixture
def history(lived: Lived, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Runs `muster history …` on what was lived; gives (exit code, standard output, standard error)."""

    def ask_it(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["history", *arguments, "--data-dir", str(lived.directory)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return ask_it  # type: ignore[return-value]


def rows(history: Any, sql: str) -> list[dict[str, Any]]:
    code, out, err = history(sql, "--json")
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out)
    return found


# ---- the truth: from REST's events, by other means than the views ----------------------------------------------------

APP, NODE, QUEUE, ADD, SET, REMOVE = 2, 3, 4, 2, 1, 3


def quantities(event: dict[str, Any]) -> dict[str, int]:
    return {name: each.get("value", 0) for name, each in event["resource"].get("resources", {}).items()}


def true_allocations(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """(Every key is used once here.)"""
    found: dict[str, dict[str, Any]] = {}
    ended = {500: "released", 501: "preempted", 502: "timed out", 503: "replaced", 504: "node removed"}
    for event_id, event in enumerate(events):
        key, detail = event.get("referenceID", ""), event.get("eventChangeDetail", 0)
        match event.get("type"), event.get("eventChangeType"), detail:
            case 2, 2, 200:
                found[key] = {
                    "key": key, "application": event["objectID"], "begin": event_id, "at": event["timestampNano"],
                    "resource": quantities(event), "end": None, "ended": None, "seconds": None,
                }  # fmt: skip
            case 3, 2, 303:
                found[key]["node"] = event["objectID"]
            case 2, 3, detail if detail in ended:
                held = found[key]
                held |= {"end": event_id, "ended": ended[detail]}
                held["seconds"] = (event["timestampNano"] - held["at"]) / 1e9
    return list(found.values())


# ---- SQL -------------------------------------------------------------------------------------------------------------


def test_the_history_has_each_event_once_while_muster_runs_and_after_it(lived: Lived, history: Any) -> None:
    expected = {"n": len(lived.events), "last": len(lived.events) - 1}
    for way in ("log", "rest"):
        code, out, err = lived.running[way]
        assert code == 0, err
        assert json.loads(out) == [expected], way
        assert "not exported yet" in err
    assert rows(history, "select count(*) as n, max(id) as last from events") == [expected]
    code, _, err = history("select 1")
    assert (code, "0 not exported yet" in err) == (0, True), "after a stop everything is in Parquet files"


def test_events_are_what_rest_says(lived: Lived, history: Any) -> None:
    found = rows(history, "select * from events order by id")
    assert {row["instance"] for row in found} == {lived.instance}
    assert {row["rm"] for row in found} == {RM}
    for row, event in zip(found, lived.events, strict=True):
        assert row["type_number"] == event.get("type", 0)
        assert row["change_type_number"] == event.get("eventChangeType", 0)
        assert row["change_detail_number"] == event.get("eventChangeDetail", 0)
        assert (row["object_id"], row["reference_id"]) == (event.get("objectID", ""), event.get("referenceID", ""))
        assert (row["timestamp_ns"], row["message"]) == (event["timestampNano"], event.get("message", ""))
        assert row["resource"] == quantities(event)


def test_allocations_are_the_pairs_of_begins_and_ends(lived: Lived, history: Any) -> None:
    truth = true_allocations(lived.events)
    assert Counter(held["ended"] for held in truth).keys() >= {"released", "replaced", "timed out", "node removed"}
    found = {row["allocation_key"]: row for row in rows(history, "select * from allocations")}
    assert found.keys() == {held["key"] for held in truth}
    for held in truth:
        row = found[held["key"]]
        assert (row["application"], row["node"], row["resource"]) == (
            held["application"],
            held["node"],
            held["resource"],
        )
        assert (row["begin_id"], row["end_id"], row["ended"]) == (held["begin"], held["end"], held["ended"])
        assert row["seconds"] == (None if held["seconds"] is None else pytest.approx(held["seconds"], abs=1e-9))
    made_room = [row for row in found.values() if row["replaced_by"]]
    assert [row["replaced_by"] for row in made_room] == ["real"]
    assert found["real"]["replaces"] == made_room[0]["allocation_key"]
    assert {row["queue"] for row in found.values() if row["application"] == "wide"} == {"root.a"}


def test_applications_have_a_row_for_each_life(lived: Lived, history: Any) -> None:
    found = {(row["application"], row["life"]): row for row in rows(history, "select * from applications")}
    assert {name for name, _ in found} == {"short", "gang", "wide", "lost"}
    first, second = found["short", 1], found["short", 2]
    assert (first["state"], first["asks"], first["allocations"], first["running"]) == ("Completed", 3, 3, 0)
    assert first["submitted_time"] <= first["started_time"] <= first["finished_time"] <= second["submitted_time"]
    assert (second["state"], second["asks"], second["allocations"]) == ("Accepted", 1, 0)
    used = sum(
        held["seconds"] * held["resource"]["vcore"]
        for held in true_allocations(lived.events)
        if held["application"] == "short"
    )
    assert first["resource_seconds"] == {"vcore": pytest.approx(used)}
    assert used >= 1_000 * (60 + 2 * 3_660)
    lost = [row for (name, _), row in found.items() if name == "lost"]
    assert [row["state"] for row in lost] == ["Rejected"]
    assert "root.nowhere" in lost[0]["message"] or lost[0]["message"]


def test_usage_of_a_queue_holds_all_that_is_below_it(lived: Lived, history: Any) -> None:
    last = {
        (row["queue"], row["resource_type"]): row["used"]
        for row in rows(history, "select queue, resource_type, arg_max(used, id) as used from queue_usage group by all")
    }
    truth: dict[str, int] = defaultdict(int)
    for held in true_allocations(lived.events):
        if held["end"] is None:
            truth["root.b" if held["application"] == "gang" else "root.a"] += held["resource"]["vcore"]
    assert last == {
        ("root", "vcore"): truth["root.a"] + truth["root.b"],
        ("root.a", "vcore"): truth["root.a"],
        ("root.b", "vcore"): truth["root.b"],
    }
    assert truth["root.b"] == 1_000


def test_the_timeline_of_a_node_ends_with_what_is_on_it(lived: Lived, history: Any) -> None:
    found = rows(history, "select node, what, allocations from node_timeline order by id")
    there = Counter(held["node"] for held in true_allocations(lived.events) if held["end"] is None)
    for node in ("n1", "n2", "n3"):
        mine = [row for row in found if row["node"] == node]
        assert mine[0]["what"] == "added"
        assert mine[-1]["allocations"] == there[node]
    assert [row["what"] for row in found if row["node"] == "n3"][-1] == "removed"


def test_the_pages_statements_can_be_asked(history: Any) -> None:
    block = PAGE.read_text().split("\n## Reading")[1].split("```sql\n")[1].split("```")[0]
    statements = [each for each in block.split("\n\n") if each.strip()]
    assert len(statements) == 5
    for statement in statements:
        code, _, err = history(statement, "--csv")
        assert code == 0, f"{statement}\n{err}"


def test_the_page_names_every_column_of_every_view(history: Any) -> None:
    reading = PAGE.read_text().split("\n## Reading")[1]
    for view in views.VIEWS:
        (row,) = [line for line in reading.splitlines() if line.startswith(f"| `{view}` |")]
        named = {name for name in re.findall(r"`(\w+)`", row) if name != view}
        found = {each["column_name"] for each in rows(history, f"describe {view}")} - {"rm", "instance"}
        assert named >= found
        assert named - found <= set(views.VIEWS)


@pytest.mark.parametrize("command", ["queues", "nodes"])
def test_queues_and_nodes_are_listed(lived: Lived, history: Any, command: str) -> None:
    code, out, err = history(command, "--json")
    assert code == 0, err
    truth = true_allocations(lived.events)
    found = json.loads(out)
    if command == "queues":
        assert {(row["queue"], row["allocations"]) for row in found} == {
            ("root", len(truth)),
            ("root.a", sum(held["application"] != "gang" for held in truth)),
            ("root.b", sum(held["application"] == "gang" for held in truth)),
        }
    else:
        began = Counter(held["node"] for held in truth)
        assert {row["node"]: row["allocations"] for row in found} == {name: began[name] for name in ("n1", "n2", "n3")}
        assert [row["node"] for row in found if row["removed"]] == ["n3"]
    assert history(command)[0] == 0


def test_wrong_sql_is_said_with_its_place(history: Any) -> None:
    code, out, err = history("select count(*)\nfrom event")
    assert (code, out) == (1, "")
    assert "line 2, column 6: Table with name event does not exist" in err
    assert "There are: events, allocations, applications" in err
    code, _, err = history("select nothing from events")
    assert (code, "line 1, column 8" in err) == (1, True)
    for statement, said in (
        ("drop view events", "not DROP"),
        ("select 1; select 2", "one SQL statement, not 2"),
        ("", "one SQL statement, not 0"),
        ("copy (select 1) to '/tmp/x'", "--allow-files"),
    ):
        code, _, err = history(statement)
        assert (code, said in err) == (2, True), err


def test_no_other_file_is_reached_unless_it_is_asked_for(history: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    code, _, err = history(f"select * from read_csv('{other}')")
    assert (code, "--allow-files" in err) == (1, True)
    code, out, _ = history(f"select * from read_csv('{other}')", "--csv", "--allow-files")
    assert (code, out) == (0, "a,b\n1,2\n")
    code, _, err = history("set enable_external_access = true")
    assert code == 2


def test_forms_and_limits(lived: Lived, history: Any) -> None:
    code, out, err = history("select id, resource from events order by id", "--limit", "2")
    assert code == 0
    assert f"2 of {len(lived.events):,} rows" in err
    assert out.count("\n") == 6  # a frame, a head, and two rows
    code, out, err = history("select id, resource from events order by id", "--csv")
    assert [int(row["id"]) for row in csv.DictReader(io.StringIO(out))] == list(range(len(lived.events)))
    assert "rows" not in err
    assert history("select 1", "--csv", "--json")[0] == 2
    assert history("select 1", "--limit=-1")[0] == 2
    code, out, _ = history("select * from allocations where application = 'gang'")
    assert "replaced_by    │ real" in out, "too wide for a table: one below the other"


# ---- an application's life -------------------------------------------------------------------------------------------


def test_a_life_shows_each_allocation(history: Any) -> None:
    code, out, _ = history("app", "short", "--life", "1")
    assert code == 0
    assert "1 of 2 under this id" in out
    lines = out.splitlines()
    states = [
        line.split()[0]
        for line in lines
        if line.split() and line.split()[0] in ("New", "Accepted", "Running", "Completing", "Completed")
    ]
    assert states == ["New", "Accepted", "Running", "Completing", "Completed"]
    bars = {line.split()[0]: line.count("#") for line in lines if line.startswith("s")}
    assert bars.keys() == {"state", "s0", "s1", "s2"}
    assert bars["s0"] < bars["s1"] == bars["s2"]
    assert all("released" in line for line in lines if line.startswith(("s0", "s1", "s2")))
    code, out, _ = history("app", "short")
    assert "Accepted" in out
    assert "huge" in out
    assert "pending" in out


def test_a_gangs_life_names_each_placeholder_and_its_replacement(history: Any) -> None:
    code, out, _ = history("app", "gang")
    assert code == 0
    assert "was replaced by real" in out
    assert "timed out" in out


def test_a_life_with_many_allocations_is_shown_together(lived: Lived, history: Any) -> None:
    code, out, err = lived.running["app"]
    assert code == 0, err
    truth = [held for held in true_allocations(lived.events) if held["application"] == "wide"]
    ended = Counter(held["ended"] or "runs" for held in truth)
    assert f"{WIDE} allocations" in out
    assert f"at most {WIDE} at a time" in out
    for how, count in ended.items():
        assert any(line.split()[: len(how.split()) + 1] == [*how.split(), str(count)] for line in out.splitlines()), how
    assert len(out.splitlines()) < 40
    assert max(map(len, out.splitlines())) <= 160
    _, one_by_one, _ = history("app", "wide", "--rows", str(WIDE))
    assert sum(line.startswith("w") for line in one_by_one.splitlines()) >= WIDE


def test_a_life_as_json_has_everything(lived: Lived, history: Any) -> None:
    code, out, _ = history("app", "wide", "--json")
    found = json.loads(out)
    truth = {held["key"]: held for held in true_allocations(lived.events) if held["application"] == "wide"}
    assert code == 0
    assert {held["key"] for held in found["allocations"]} == truth.keys()
    assert all(held["begin_ns"] == truth[held["key"]]["at"] for held in found["allocations"])
    assert (found["state"], found["queue"], found["asks"]) == ("Running", "root.a", WIDE)


def test_an_unknown_application_gets_near_names(history: Any) -> None:
    code, _, err = history("app", "shor")
    assert (code, "near to it: short" in err) == (1, True)
    code, _, err = history("app", "short", "--life", "3")
    assert (code, "--life: must be from 1 to 2" in err) == (2, True)
    code, _, err = history("app", "short", "--rm", "other")
    assert (code, "--rm other: no events of it; known are hist" in err) == (1, True)


# ---- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "applications"),
    [
        (["--queue", "root"], {"short", "gang", "wide"}),
        (["--queue", "root.a"], {"short", "wide"}),
        (["--app", "gang"], {"gang"}),
    ],
)
def test_usage_in_windows_adds_up(lived: Lived, history: Any, subject: list[str], applications: set[str]) -> None:
    end_ns = max(event["timestampNano"] for event in lived.events)
    truth = sum(
        held["resource"]["vcore"] * (held["seconds"] if held["end"] else (end_ns - held["at"]) / 1e9)
        for held in true_allocations(lived.events)
        if held["application"] in applications
    )
    for window in ([], ["--window", "7min"]):
        code, out, err = history("usage", *subject, "--json", *window)
        assert code == 0, err
        found = json.loads(out)
        assert sum(row["resource_seconds"] for row in found) == pytest.approx(truth, rel=1e-6)
        assert all(row["average"] <= row["peak"] for row in found)
    code, out, _ = history("usage", *subject)
    assert (code, "as much as vcore" in out) == (0, True)


def test_usage_of_a_user_is_that_of_his_applications(lived: Lived, history: Any) -> None:
    code, out, err = history("usage", "--user", "ann", "--json")
    assert code == 0, err
    _, all_of_root, _ = history("usage", "--queue", "root", "--json")
    sums = [sum(row["resource_seconds"] for row in json.loads(text)) for text in (out, all_of_root)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-6)


@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_usage_is_drawn(history: Any, tmp_path: Path, suffix: str, begin: bytes) -> None:
    file = tmp_path / f"usage.{suffix}"
    code, _, err = history("usage", "--queue", "root.a", "--plot", str(file))
    assert code == 0, err
    assert file.read_bytes().startswith(begin)
    assert list(tmp_path.iterdir()) == [file]
    if suffix == "svg":
        text = file.read_text()
        for words in ("queue root.a, RM hist", "guaranteed", "max", "vcore", "cores", "time (UTC)"):
            assert words in text, words
        history("usage", "--queue", "root.a", "--plot", str(file))
        assert file.read_text() == text, "the same history gives the same picture"


@pytest.mark.parametrize(
    ("by", "areas"),
    [("queue", {"root.a", "root.b"}), ("user", {"ann"}), ("application", {"short", "gang", "wide"})],
)
def test_usage_of_a_queue_is_drawn_by_its_parts(history: Any, tmp_path: Path, by: str, areas: set[str]) -> None:
    file = tmp_path / "usage.svg"
    code, out, err = history("usage", "--queue", "root", "--by", by, "--plot", str(file), "--json")
    assert code == 0, err
    assert all(f">{area}<" in file.read_text() for area in areas)
    _, of_queues, _ = history("usage", "--queue", "root", "--json")
    sums = [sum(row["resource_seconds"] for row in json.loads(text)) for text in (out, of_queues)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-6), "the parts are all of it"


def test_usage_refuses_what_it_cannot_read(history: Any, tmp_path: Path) -> None:
    for arguments, code, said in (
        (["--queue", "root.c"], 1, "has no queue 'root.c'; near to it: root"),
        (["--user", "nobody"], 1, "has no user 'nobody'; near to it: ann"),
        ([], 2, "exactly one of --queue, --user, --group and --app"),
        (["--queue", "root", "--user", "ann"], 2, "exactly one of"),
        (["--user", "ann", "--by", "application"], 2, "--by application: expected --queue"),
        (["--queue", "root", "--window", "soon"], 2, "--window: must be a duration from 1ms to 100 years"),
        (["--queue", "root", "--window", "0.0000001ms"], 2, "--window: must be a duration from 1ms to 100 years"),
        (["--queue", "root", "--window", f"{'3' * 400}d"], 2, "--window: must be a duration from 1ms to 100 years"),
        (["--queue", "root", "--from", f"{'4' * 400}d"], 2, "--from: must be a duration from 1ms to 100 years"),
        (["--queue", "root", "--from", "yesterday"], 2, "--from 'yesterday': expected a time"),
        (["--queue", "root", "--window", "1ms"], 2, "more than 10,000 windows"),
        (["--queue", "root", "--plot", str(tmp_path / "a.gif")], 2, "ends with .png"),
        (["--queue", "root", "--plot", str(tmp_path / "no" / "a.png")], 2, "does not exist"),
    ):
        got, out, err = history("usage", *arguments)
        assert (got, out) == (code, ""), err
        assert said in err
    assert list(tmp_path.iterdir()) == []


# ---- no history ------------------------------------------------------------------------------------------------------


def test_without_a_history_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_HTTP", "127.0.0.1:1")  # where no Muster of another test is
    for arguments, code, said in (
        ([], 2, "there is nothing to read: expected --data-dir"),
        (["--data-dir", str(tmp_path)], 1, "no history yet: there are no events in"),
        (["--data-dir", str(tmp_path / "absent")], 2, "the directory does not exist"),
        (["--history", str(tmp_path)], 1, "no history yet: there are no events in"),
        (["--history", "ftp://x/y"], 2, "expected a folder or s3://bucket/prefix"),
        (["--history", str(tmp_path), "--data-dir", str(tmp_path)], 2, "expected one of them"),
        (["--history", str(tmp_path), "--http", "127.0.0.1:1"], 1, "--http http://127.0.0.1:1: "),
        (["--history", str(tmp_path), "--http", "ftp://x"], 2, "--http 'ftp://x': expected host:port"),
    ):
        assert run(["history", "select 1", *arguments]) == code, arguments
        assert said in capsys.readouterr().err


def test_a_damaged_file_is_named(lived: Lived, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "000001" / "p0").mkdir(parents=True)
    broken = tmp_path / "000001" / "p0" / f"{0:020}-{5:020}.parquet"
    broken.write_bytes(b"no Parquet at all")
    assert run(["history", "select 1", "--history", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
