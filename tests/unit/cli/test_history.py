"""`muster history` on made-up events, for cases that a short real run does not show."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from moto.server import ThreadedMotoServer
from muster_cli.history import unexported_events, usage
from muster_cli.history.app_timeline import read
from muster_cli.history.app_timeline_view import screen
from muster_cli.history.duckdb_store import open_history
from muster_cli.history.output import format_duration, format_quantity
from muster_cli.history.source import HistoryLocation
from muster_cli.history.time_axis import Axis
from muster_cli.history.unexported_events import schema
from muster_cli.main import run
from muster_event_publisher.history.file_stores import store_from_location
from muster_runtime.terminal import Screen
from pyarrow import Table
from pyarrow import parquet as pq
from pyarrow.fs import S3FileSystem

INSTANCE = "one"
S = 1_000_000_000
Event = tuple[str, str, str, str, str, dict[str, int]]
CORE = {"vcore": 1_000}


class Told:
    """Events in order, a second apart by default."""

    def __init__(self, rm: str = "rm", instance: str = INSTANCE, first_id: int = 0) -> None:
        self.rm, self.instance, self.first_id = rm, instance, first_id
        self.rows: list[dict[str, Any]] = []
        self.now_ns = 1_000 * S

    def say(
        self,
        what: str,
        object_id: str,
        reference_id: str = "",
        resource: dict[str, int] | None = None,
        message: str = "",
        *,
        after_s: float = 1.0,
    ) -> None:
        """``what``: type, change and detail."""
        kind, change, detail = what.split()
        self.now_ns += round(after_s * S)
        self.rows.append(
            {
                "rm": self.rm, "instance": self.instance, "id": self.first_id + len(self.rows),
                "timestamp_ns": self.now_ns, "type": kind, "type_number": 0, "change_type": change,
                "change_type_number": 0, "change_detail": detail, "change_detail_number": 0, "object_id": object_id,
                "reference_id": reference_id, "message": message, "resource": list((resource or {}).items()),
            }
        )  # fmt: skip

    def submit(self, app: str, queue: str = "root.a") -> None:
        self.say("APP ADD DETAILS_NONE", app)
        self.say("APP SET APP_NEW", app, after_s=0)
        self.say("QUEUE ADD QUEUE_APP", queue, app, after_s=0)

    def begin(self, app: str, key: str, node: str, resource: dict[str, int] = CORE, *, after_s: float = 1.0) -> None:
        self.say("APP ADD APP_ALLOC", app, key, resource, after_s=after_s)
        self.say("NODE ADD NODE_ALLOC", node, key, resource, after_s=0)

    def end(
        self, app: str, key: str, node: str, detail: str = "ALLOC_CANCEL", message: str = "",
        resource: dict[str, int] = CORE,
    ) -> None:  # fmt: skip
        self.say(f"APP REMOVE {detail}", app, key, resource, message)
        self.say("NODE REMOVE NODE_ALLOC", node, key, resource, after_s=0)


def write(folder: Path, rows: Sequence[dict[str, Any]], start: int, end: int, generation: int = 1) -> Path:
    """A file as the publisher writes it, of the events at these positions."""
    file = folder / f"{generation:06}" / "p0" / f"{start:020}-{end:020}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(Table.from_pylist(list(rows), schema=schema()), file)
    return file


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Rows of an answer, from the history in ``tmp_path`` (or of ``place``)."""

    def asked(sql: str, place: str = "", *more: str) -> Any:
        capsys.readouterr()
        code = run(["history", sql, "--json", "--history", place or str(tmp_path), *more])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return asked


ALLOCATIONS = "select allocation_key as key, node, seconds, ended, begin_id, end_id from allocations order by all"


def test_each_way_of_ending_and_what_runs(tmp_path: Path, ask: Callable[..., Any]) -> None:
    told = Told()
    told.submit("app")
    details = ("ALLOC_CANCEL", "ALLOC_PREEMPT", "ALLOC_TIMEOUT", "ALLOC_REPLACED", "ALLOC_NODEREMOVED")
    for detail in details:
        told.begin("app", detail, "n1")
        told.end("app", detail, "n1", detail)
    told.begin("app", "runs", "n1")
    write(tmp_path, told.rows, 0, len(told.rows))
    found = {row["key"]: (row["ended"], row["seconds"]) for row in ask(ALLOCATIONS)}
    words = ("released", "preempted", "timed out", "replaced", "node removed")
    assert found == {**{detail: (word, 1.0) for detail, word in zip(details, words, strict=True)}, "runs": (None, None)}
    (app,) = ask("select running, preempted, resource_seconds from applications")
    assert app == {"running": 1, "preempted": 1, "resource_seconds": {"vcore": 5_000.0}}


def test_allocations_end_with_their_application(tmp_path: Path, ask: Callable[..., Any]) -> None:
    """(An RM with many objects registers again: an application's end stands for the ends of its allocations.)"""
    told = Told()
    for life in ("first", "second"):
        told.submit("app")
        told.begin("app", life, "n1")
        if life == "first":
            told.say("APP REMOVE DETAILS_NONE", "app", message="registered again")
    write(tmp_path, told.rows, 0, len(told.rows))
    assert [(row["key"], row["ended"], row["seconds"], row["end_id"]) for row in ask(ALLOCATIONS)] == [
        ("first", "dropped", 1.0, 5),
        ("second", None, None, None),
    ]
    assert ask("select arg_max(used, id) as used from queue_usage where queue = 'root'") == [{"used": 1_000}]
    # This ends the life, too, in every state.
    lives = "select life, state, finished_time is not null as over, message from applications order by all"
    assert ask(lives) == [
        {"life": 1, "state": "Removed", "over": True, "message": "registered again"},
        {"life": 2, "state": "New", "over": False, "message": ""},
    ]
    with open_history(HistoryLocation(store_from_location(str(tmp_path)), None, "", "")) as history:
        first = read(history, "app", 1)
    assert (first.state, first.finished, first.until_ns - first.begin_ns) == ("Removed", True, 2 * S)
    with open_history(HistoryLocation(store_from_location(str(tmp_path)), None, "", "")) as history:
        assert not read(history, "app", 2).finished


def test_the_life_of_an_application_has_its_owner_and_its_end(tmp_path: Path, ask: Callable[..., Any]) -> None:
    told = Told()
    for app, user in (("one", "ann"), ("two", "bob")):
        told.submit(app)
        told.say("USERGROUP SET UG_APP_LINK", f"friends-of-{user}", app, after_s=0)
        told.begin(app, f"of-{app}", "n1")
        told.say("USERGROUP ADD UG_USER_RESOURCE", user, "root.a", CORE, after_s=0)
    told.submit("none")
    told.end("one", "of-one", "n1")
    told.say("APP SET APP_COMPLETED", "one")
    told.say("APP REMOVE DETAILS_NONE", "one", after_s=0)
    told.say("USERGROUP REMOVE UG_APP_LINK", "friends-of-ann", "one", after_s=0)
    told.say("APP SET APP_EXPIRED", "one", after_s=3 * 86_400)
    write(tmp_path, told.rows, 0, len(told.rows))
    found = ask("select application as app, user_name, user_group, state from applications order by all")
    assert found == [
        {"app": "none", "user_name": None, "user_group": None, "state": "New"},
        {"app": "one", "user_name": "ann", "user_group": "friends-of-ann", "state": "Completed"},
        {"app": "two", "user_name": "bob", "user_group": "friends-of-bob", "state": "New"},
    ]
    with open_history(HistoryLocation(store_from_location(str(tmp_path)), None, "", "")) as history:
        life = read(history, "one")
    assert (life.finished, life.until_ns - life.begin_ns) == (True, 6 * S), "the removed record is no part of its life"


def test_an_application_that_is_sent_again_is_not_rejected(tmp_path: Path, ask: Callable[..., Any]) -> None:
    """Its submission is rejected, like that of an ended or unknown id."""
    told = Told()
    told.submit("app")
    told.say("APP SET APP_ACCEPTED", "app")
    told.say("APP REMOVE APP_REJECT", "app", message="it existed already")  # 2 s after its begin
    told.say("APP SET APP_RUNNING", "app")
    told.say("APP REMOVE APP_REJECT", "app", message="it existed already")
    write(tmp_path, told.rows, 0, len(told.rows))
    applications = (
        "select application as app, life, state, finished_time is not null as over, message from applications"
        " order by app, life"
    )
    assert ask(applications) == [{"app": "app", "life": 1, "state": "Running", "over": False, "message": ""}]
    running = len(told.rows)
    told.say("APP SET APP_COMPLETED", "app")
    told.say("APP REMOVE DETAILS_NONE", "app", after_s=0)
    for _ in range(2):
        told.say("APP REMOVE APP_REJECT", "app", message="no such queue")
    told.submit("app")
    told.say("APP REMOVE APP_REJECT", "never", message="no such queue")
    write(tmp_path, told.rows[running:], running, len(told.rows))
    rejected = {"state": "Rejected", "over": True, "message": "no such queue"}
    assert ask(applications) == [
        {"app": "app", "life": 1, "state": "Completed", "over": True, "message": ""},
        *({"app": "app", "life": life, **rejected} for life in (2, 3)),
        {"app": "app", "life": 4, "state": "New", "over": False, "message": ""},
        {"app": "never", "life": 0, **rejected},
    ]
    with open_history(HistoryLocation(store_from_location(str(tmp_path)), None, "", "")) as history:
        first = read(history, "app", 1)
    with open_history(HistoryLocation(store_from_location(str(tmp_path)), None, "", "")) as history:
        second = read(history, "app", 2)
    assert [each.state for each in first.states] == ["New", "Accepted", "Running", "Completed"]
    assert [each.message for each in first.happenings if each.what == "sent again, rejected"] == [
        "it existed already",
        "it existed already",
    ]
    assert ([each.state for each in second.states], second.finished) == (["Rejected"], True)


def test_asks_with_repeats_share_a_key(tmp_path: Path, ask: Callable[..., Any]) -> None:
    told = Told()
    told.submit("app")
    for node in ("n1", "n1", "n2"):
        told.begin("app", "k", node)
    told.end("app", "k", "n2")
    told.end("app", "k", "n1")
    told.begin("app", "k", "n2")
    write(tmp_path, told.rows, 0, len(told.rows))
    found = [(row["node"], row["seconds"], row["ended"]) for row in ask(ALLOCATIONS)]
    assert sorted(found, key=str) == sorted(
        [("n1", 4.0, "released"), ("n1", None, None), ("n2", 1.0, "released"), ("n2", None, None)], key=str
    )
    (used,) = ask("select arg_max(used, id) as used from queue_usage where queue = 'root'")
    assert used == {"used": 2_000}


def test_two_applications_may_use_one_key_at_a_time(tmp_path: Path, ask: Callable[..., Any]) -> None:
    told = Told()
    for app in ("a", "b"):
        told.submit(app)
        told.begin(app, "k", f"node-of-{app}")
    told.end("a", "k", "node-of-a")
    write(tmp_path, told.rows, 0, len(told.rows))
    rows = ask("select application as app, node, ended, seconds from allocations order by all")
    assert rows == [
        {"app": "a", "node": "node-of-a", "ended": "released", "seconds": 3.0},
        {"app": "b", "node": "node-of-b", "ended": None, "seconds": None},
    ]


@pytest.mark.parametrize("again", [False, True])
def test_an_end_whose_begin_is_older_than_the_history(tmp_path: Path, ask: Callable[..., Any], again: bool) -> None:
    told = Told(first_id=500)
    told.end("app", "k", "n1")
    if again:
        told.begin("app", "k", "n1")
        told.end("app", "k", "n1")
    write(tmp_path, told.rows, 0, len(told.rows))
    found = ask(ALLOCATIONS)
    assert [(row["begin_id"], row["end_id"], row["seconds"]) for row in found] == [
        *([(502, 504, 1.0)] if again else []),
        (None, 500, None),
    ]
    assert ask("select life, submitted_time, queue from applications") == [
        {"life": 0, "submitted_time": None, "queue": None}
    ]


def test_a_change_of_size_is_two_rows_that_add_up(tmp_path: Path, ask: Callable[..., Any]) -> None:
    told = Told()
    told.submit("app")
    told.begin("app", "k", "n1")
    told.end("app", "k", "n1", "ALLOC_REPLACED")
    told.begin("app", "k", "n1", {"vcore": 3_000}, after_s=0)
    told.end("app", "k", "n1", resource={"vcore": 3_000})
    write(tmp_path, told.rows, 0, len(told.rows))
    rows = ask("select ended, seconds, resource from allocations order by begin_id")
    assert rows == [
        {"ended": "changed", "seconds": 1.0, "resource": {"vcore": 1_000}},
        {"ended": "released", "seconds": 1.0, "resource": {"vcore": 3_000}},
    ]
    (app,) = ask("select allocations, resource_seconds from applications")
    assert app == {"allocations": 1, "resource_seconds": {"vcore": 4_000.0}}
    assert ask("select used from queue_usage where queue = 'root.a' order by id") == [
        {"used": used} for used in (1_000, 0, 3_000, 0)
    ]


def test_a_placeholder_and_its_replacement(tmp_path: Path, ask: Callable[..., Any]) -> None:
    told = Told()
    told.submit("gang")
    told.begin("gang", "room", "n1")
    told.end("gang", "room", "n1", "ALLOC_REPLACED", "replaced by worker")
    told.begin("gang", "worker", "n1", after_s=0)
    write(tmp_path, told.rows, 0, len(told.rows))
    rows = ask("select allocation_key as key, ended, replaced_by, replaces from allocations order by begin_id")
    assert rows == [
        {"key": "room", "ended": "replaced", "replaced_by": "worker", "replaces": None},
        {"key": "worker", "ended": None, "replaced_by": None, "replaces": "room"},
    ]


# ---- a running Muster ------------------------------------------------------------------------------------------------


@pytest.fixture
def front() -> Iterator[str]:
    """A front with two RMs: "empty" has no events, and "removed" is removed once its first two were read. Below /many
    it has one RM with more and more events.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            query = parse_qs(address.query)
            answer: Any = None
            if address.path == "/many/ws/v1/resource-managers":
                answer = [{"rmID": "many"}]
            elif address.path.startswith("/many/"):
                events = [{"type": 3, "objectID": f"n{number}", "timestampNano": number} for number in (1, 2)]
                answer = {"InstanceUUID": INSTANCE, "EventRecords": events}
            elif address.path == "/ws/v1/resource-managers":
                answer = [{"rmID": "empty"}, {"rmID": "removed"}]
            elif query["rm"] == ["removed"] and query["start"] == ["0"]:
                events = [{"type": 3, "objectID": f"n{number}", "timestampNano": number} for number in (1, 2)]
                answer = {"InstanceUUID": INSTANCE, "EventRecords": events}
            body = json.dumps(answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_rm_that_is_removed_while_its_events_are_read_is_named(front: str) -> None:
    with open_history(HistoryLocation(None, None, "", front)) as history:
        _, *gaps = history.freshness()
        (count,) = history.connection.execute("SELECT count(*) FROM events").fetchone() or (None,)
    assert count == 2
    assert gaps == ["The events of removed from 2 on are missing: the RM was removed meanwhile."]


def test_events_over_the_limit_are_named(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unexported_events, "EVENTS_MAX", 2)
    with open_history(HistoryLocation(None, None, "", f"{front}/many")) as history:
        _, *gaps = history.freshness()
    assert gaps == ["The events of many from 2 on are missing: 2 are read at most."]


# ---- files -----------------------------------------------------------------------------------------------------------


def many(count: int) -> list[dict[str, Any]]:
    told = Told()
    for number in range(count):
        told.say("NODE ADD DETAILS_NONE", f"n{number}")
    return told.rows


IDS = "select count(*) as n, count(distinct id) as ids, max(id) as last from events"


@pytest.mark.parametrize("spans", [[(0, 10), (10, 30)], [(0, 10), (0, 30)], [(0, 20), (10, 30)], [(0, 30), (10, 20)]])
def test_an_event_in_two_files_counts_once(
    tmp_path: Path, ask: Callable[..., Any], spans: list[tuple[int, int]]
) -> None:
    rows = many(30)
    for start, end in spans:
        write(tmp_path, rows[start:end], start, end)
    assert ask(IDS) == [{"n": 30, "ids": 30, "last": 29}]


def test_files_of_the_first_layout_and_of_this_one(tmp_path: Path, ask: Callable[..., Any]) -> None:
    rows = many(30)
    for name, part in {"rm~one~p0~x.parquet": rows[:20], "000000/p0/rm~one~p0~y.parquet": rows[:10]}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(Table.from_pylist(part, schema=schema()), file)
    write(tmp_path, rows[10:], 10, 30)
    (tmp_path / "notes.txt").write_text("not mine")
    assert ask(IDS) == [{"n": 30, "ids": 30, "last": 29}]


def test_a_gap_is_said_aloud(tmp_path: Path, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    rows = many(30)
    write(tmp_path, rows[:10], 0, 10)
    write(tmp_path, rows[12:], 12, 30)
    assert run(["history", "select 1", "--history", str(tmp_path)]) == 0
    assert "2 events of rm between 0 and 29 are missing (instance one)" in capsys.readouterr().err


def test_only_one_rm_is_looked_at(tmp_path: Path, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    one, other = Told("one"), Told("other")
    for told in (one, other):
        told.submit("app")
    write(tmp_path, one.rows + other.rows, 0, 6)
    assert ask("select distinct rm from events", "", "--rm", "other") == [{"rm": "other"}]
    assert run(["history", "app", "app", "--history", str(tmp_path)]) == 2
    assert "--rm: app is an application of 2 RMs, expected one of one, other" in capsys.readouterr().err
    assert run(["history", "usage", "--queue", "root.a", "--history", str(tmp_path)]) == 2
    assert "--rm: the history is of 2 RMs" in capsys.readouterr().err
    assert run(["history", "app", "app", "--history", str(tmp_path), "--rm", "one"]) == 0


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A store that speaks S3, on loopback, with one bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "any")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        store = S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True)
        store.create_dir("bucket")
        yield f"http://{host}:{port}"
    server.stop()


def test_a_history_in_s3(tmp_path: Path, s3: str, ask: Callable[..., Any]) -> None:
    location = f"s3://bucket/history?{urlencode({'endpoint': s3, 'region': 'us-east-1'})}"
    told = Told()
    told.submit("app")
    told.begin("app", "k", "n1")
    told.end("app", "k", "n1")
    file = write(tmp_path, told.rows, 0, len(told.rows))
    store_from_location(location).write(str(file.relative_to(tmp_path)), [file.read_bytes()])
    assert ask(ALLOCATIONS, location) == [
        {"key": "k", "node": "n1", "seconds": 1.0, "ended": "released", "begin_id": 3, "end_id": 5}
    ]
    assert ask("select resource['vcore'] as vcore from events where id = 3", location) == [{"vcore": 1_000}]


# ---- words and bars --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.0004, "0 s"), (0.25, "250 ms"), (1, "1.0 s"), (59.94, "59.9 s"), (60, "1 min"),
        (61, "1 min 1 s"), (3_600, "1 h"), (3_661, "1 h 1 min"), (86_400, "1 d"), (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


def test_quantities_are_in_the_units_of_their_type() -> None:
    assert format_quantity("vcore", 1_500) == "1.5"
    assert format_quantity("vcore", 5) == "5m"
    assert [format_quantity("vcore", value) for value in (250, 1_250, 4_000, 12_005)] == ["250m", "1.25", "4", "12.005"]
    # Sums and averages have only significant digits.
    assert [format_quantity("vcore", value) for value in (0, 33.333, 999.7, 1_234.5)] == ["0", "33.3m", "1", "1.2"]
    assert format_quantity("vcore", 2_345_678) == "2346"
    assert format_quantity("memory", 2**34) == "16Gi"


def test_bars_never_show_something_as_nothing() -> None:
    axis = Axis(0, 100 * S, 10, plain=True)
    assert axis.bar(0, 100 * S, "").plain == "##########"
    assert axis.bar(50 * S, 50 * S, "").plain == "     #"
    assert axis.bar(50 * S, None, "", since_ns=20 * S).plain == "  ...####>"
    assert axis.bar(0, 30 * S, "", cut=True).plain == "<###"
    assert axis.running([(0, 40 * S), (30 * S, None)]) == [1, 1, 1, 2, 2, 1, 1, 1, 1, 1]
    assert axis.heights([0, 1, 1000], "").plain == " .#"


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("count", [3, 3_000])
def test_a_life_keeps_to_the_width(tmp_path: Path, width: int, count: int) -> None:
    told = Told()
    told.submit("app")
    for number in range(count):
        told.say("APP ADD APP_REQUEST", "app", f"task-{number}", CORE)
    for number in range(count):
        told.begin("app", f"task-{number}", f"node-{number % 50}")
    for number in range(0, count, 2):
        told.end("app", f"task-{number}", f"node-{number % 50}", "ALLOC_PREEMPT", "for somebody else")
    write(tmp_path, told.rows, 0, len(told.rows))
    with open_history(HistoryLocation(store_from_location(str(tmp_path)), None, "", "")) as history:
        life = read(history, "app")
    out = Screen(width=width, file=io.StringIO(), force_terminal=False)
    with out.capture() as captured:
        out.print(screen(life, width, 40, plain=True))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert max(map(len, lines)) <= width
    assert len(lines) < 60, "the output is bounded"
    assert any(f"{count:,} asks" in line for line in lines)
    preempted = [line for line in lines if "preempted" in line]
    assert preempted
    assert all(any(sign in line for line in lines) for sign in ("#", "."))


def test_a_changed_request_is_one_and_what_was_reported_was_not_asked_for(tmp_path: Path) -> None:
    told = Told()
    told.submit("app")
    told.say("APP ADD APP_REQUEST", "app", "k", {"vcore": 5000})
    told.say("APP REMOVE APP_REQUEST", "app", "k", {"vcore": 5000}, "the request changed")
    told.say("APP ADD APP_REQUEST", "app", "k", {"vcore": 3000})
    told.say("APP ADD APP_REQUEST", "app", "theirs", CORE, "reported as an allocation")
    told.begin("app", "theirs", "node")
    write(tmp_path, told.rows, 0, len(told.rows))
    with open_history(HistoryLocation(store_from_location(str(tmp_path)), None, "", "")) as history:
        (asks,) = history.connection.execute("SELECT asks FROM applications").fetchone() or (None,)
        life = read(history, "app")
    assert (asks, life.asks) == (1, 1)
    assert [(each.key, each.resource, each.ended) for each in life.waiting] == [("k", {"vcore": 3000}, "")]
    assert [(each.key, each.asked_ns) for each in life.allocations] == [("theirs", None)]


@pytest.mark.parametrize(
    ("queues", "depth"),
    [
        (["root.a", "root.b.c"], 2),
        (["root.only.a", "root.only.b"], 3),
        (["root.only.a.b", "root.only.a.c.d"], 4),
        (["root.only"], 2),
        (["root.only.leaf"], 3),
        ([], 2),
    ],
)
def test_a_queue_is_drawn_by_the_first_queues_of_which_there_are_several(queues: list[str], depth: int) -> None:
    import duckdb

    rows = [["other", "root.z"], *(["rm", queue] for queue in queues)]
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA parts; CREATE TABLE parts.used (rm VARCHAR, queue VARCHAR)")
        connection.executemany("INSERT INTO parts.used VALUES (?, ?)", rows)
        assert usage._depth_of_parts(connection, "root", "rm") == depth
