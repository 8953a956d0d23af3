"""`muster get`: what it asks of REST, which items it chooses, and how it prints them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import pytest
from muster_cli.get.resource_kinds import BY_NAME, Column
from muster_cli.get.row_filters import condition, sort
from muster_cli.main import run
from ruamel.yaml import YAML

GIB = 1 << 30
NODES = [
    {
        "nodeID": "n1",
        "schedulable": True,
        "allocations": [{}, {}],
        "allocated": {"vcore": 2_000, "memory": 4 * GIB},
        "capacity": {"vcore": 8_000, "memory": 64 * GIB, "nvidia.com/gpu": 2},
    },
    {
        "nodeID": "n2",
        "schedulable": False,
        "allocations": [],
        "allocated": {},
        "capacity": {"vcore": 16_000, "memory": 64 * GIB},
        "rackName": "[bold]r1",
    },
]
QUEUES = {
    "queuename": "root",
    "status": "Active",
    "runningApps": 1,
    "maxResource": {"vcore": 24_000},
    "children": [
        {"queuename": "root.a", "status": "Active", "isLeaf": True, "allocatedResource": {"vcore": 2_000}},
        {"queuename": "root.b", "status": "Draining", "isLeaf": True},
    ],
}
APPLICATION = {
    "applicationID": "app-1",
    "queueName": "root.a",
    "user": "ann",
    "applicationState": "Running",
    "usedResource": {"vcore": 2_000},
    "requests": [{}],
    "stateLog": [{"time": 1, "applicationState": "New"}],
    "allocations": [
        {
            "allocationKey": "k1",
            "applicationId": "app-1",
            "nodeId": "n1",
            "priority": "7",
            "resource": {"vcore": 1_000},
            "bindTime": 1,
        }
    ],
}
PENDING = {
    "partition": "default",
    "applicationID": "app-1",
    "allocationKey": "k2",
    "queue": "root.a",
    "count": 3,
    "priority": -(1 << 31),
    "reason": "NODE_ROOM",
    "waitingSince": 1,
    "resource": {"vcore": 9_000},
}
ANSWERS: dict[str, Any] = {
    "/ws/v1/resource-managers": [
        {
            "rmID": "rm",
            "life": "RUNNING",
            "counts": {"nodes": 2, "applications": 1, "asks": 380, "allocations": 7_772, "queues": 3, "users": 1},
            "quotas": [
                {"name": "asks", "used": 380, "limit": 0, "reached": False},
                {"name": "allocations", "used": 8_152, "limit": 10_000, "reached": False},
            ],
        }
    ],
    "/ws/v1/partition/default/nodes": NODES,
    "/ws/v1/partition/default/queues": QUEUES,
    "/ws/v1/partition/default/applications/active": [APPLICATION],
    "/ws/v1/partition/default/applications/completed": [],
    "/ws/v1/partition/default/applications/rejected": [{**APPLICATION, "applicationID": "app-0"}],
    "/ws/v1/partition/default/usage/users": [
        {
            "userName": "ann",
            "queues": {
                "queuePath": "root",
                "resourceUsage": {"vcore": 2_000},
                "maxResources": {"vcore": 4_000},
                "runningApplications": ["app-1"],
            },
        }
    ],
    "/ws/v1/partition/default/usage/groups": [],
    "/ws/v1/explain/pending": {"pending": [PENDING, {**PENDING, "partition": "gpu"}]},
}


ENDED = {
    "application": [
        {"name": "carla-3", "state": "Completed", "queueName": "root.a", "user": "carla", "begin": 1, "end": 3},
        {"name": "app-1", "state": "Running", "begin": 1, "end": 0},
        {"name": "app-0", "state": "Rejected", "begin": 2, "end": 2},
    ],
    "node": [{"name": "n9", "state": "Removed", "begin": 1, "end": 5, "resource": {"vcore": 4_000}}],
    "queue": [],
}


def ended(query: str) -> dict[str, Any]:
    """What the history has: two answers if no name is given."""
    asked = dict(parse_qsl(query))
    lives = ENDED[asked["kind"]]
    if "name" in asked:
        return {"ended": [each for each in lives if each["name"] == asked["name"]], "next": "", "note": ""}
    if asked.get("before") != "2-1":
        return {"ended": lives[:1], "next": "2-1", "note": ""}
    return {"ended": lives[1:], "next": "", "note": ""}


class Front(BaseHTTPRequestHandler):
    """Answers what ANSWERS and ENDED have; otherwise 404 in YuniKorn's form."""

    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.asked.append((path, query))
        found = ended(query) if path == "/ws/v1/ended" else ANSWERS.get(path)
        body = json.dumps({"status_code": 404, "message": "Partition not found"} if found is None else found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def front() -> Iterator[str]:
    Front.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def get(front: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `muster get`; gives its exit code, its lines and what it complained of."""
    Front.asked.clear()

    def command(*arguments: str) -> tuple[int, list[str], str]:
        code = run(["get", *arguments, "--http", front])
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err

    return command


def test_nodes_have_a_column_for_each_usual_resource_type(get: Any) -> None:
    code, lines, _ = get("nodes")
    assert code == 0
    assert [line.split() for line in lines] == [
        ["node", "schedulable", "allocations", "vcore", "memory", "gpu"],
        ["n1", "yes", "2", "2/8", "4096Mi/64Gi", "0/2"],
        ["n2", "no", "0", "0/16", "0/64Gi", "-"],
    ]


def test_queues_are_listed_flat(get: Any) -> None:
    assert get("queues", "-o", "name")[1] == ["root", "root.a", "root.b"]
    assert get("queues", "--where", "status=Drain*", "-o", "name")[1] == ["root.b"]
    assert get("queues", "--where", "vcore>=2000", "-o", "name")[1] == ["root.a"]


def test_items_are_named(get: Any) -> None:
    assert get("nodes", "n2", "-o", "name")[:2] == (0, ["n2"])
    code, lines, complaint = get("nodes", "n2", "n3", "-o", "name")
    assert (code, lines) == (2, ["n2"])
    assert complaint == "muster: nodes: 'n3' is not there\n"


def test_applications_are_the_active_ones_unless_a_state_is_named(get: Any) -> None:
    assert get("applications", "-o", "name")[1] == ["app-1"]
    code, _, complaint = get("asks", "--state", "all")
    assert code == 2
    assert "--state 'all': expected one of active, completed, rejected, all, of applications" in complaint


def test_what_ended_is_listed_from_the_history(get: Any) -> None:
    # (What the view has, and what never ended, is not listed twice.)
    assert get("applications", "--state", "all", "-o", "name")[1] == ["app-1", "app-0", "carla-3"]
    assert get("nodes", "--state", "all", "-o", "name")[1] == ["n1", "n2", "n9"]
    assert get("nodes", "-o", "name")[1] == ["n1", "n2"]
    _, lines, _ = get("applications", "--state", "all", "--where", "user=carla", "--columns", "application,state,queue")
    assert [line.split() for line in lines][1:] == [["carla-3", "Completed", "root.a"]]
    assert "ended" in get("applications", "--state", "all")[1][0].split()
    assert "ended" not in get("applications")[1][0].split()


def test_an_item_that_is_named_is_found_in_the_history(get: Any) -> None:
    code, lines, complaint = get("applications", "carla-3", "-o", "name")
    assert (code, lines) == (0, ["carla-3"])
    assert complaint == "muster: applications: carla-3 has ended; this is from the history\n"
    assert get("nodes", "n9", "n1", "-o", "name")[:2] == (0, ["n1", "n9"])


def test_a_silent_history_is_said_and_the_rest_is_listed(get: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ended", lambda _query: None)
    code, lines, complaint = get("nodes", "--state", "all", "-o", "name")
    assert (code, lines) == (0, ["n1", "n2"])
    assert complaint.startswith("muster: what ended is not shown: ")


def test_an_allocation_has_its_queue_and_its_user(get: Any) -> None:
    _, lines, _ = get("allocations", "k1", "--columns", "allocation,queue,user,priority,vcore")
    assert [line.split() for line in lines][1:] == [["k1", "root.a", "ann", "7", "1"]]


def test_asks_are_those_of_the_partition(get: Any) -> None:
    _, lines, _ = get("asks", "--columns", "ask,count,priority,reason")
    assert [line.split() for line in lines][1:] == [["k2", "3", "-", "NODE_ROOM"]]
    assert get("asks", "app-1/k2", "-o", "name")[1] == ["app-1/k2"]


def test_rms_show_counts_and_the_use_of_quotas_apart(get: Any) -> None:
    _, lines, _ = get("rms", "--columns", "rm,asks,allocations,asks-quota,allocations-quota")
    assert [line.split() for line in lines] == [
        ["rm", "asks", "allocations", "asks", "quota", "allocations", "quota"],
        ["rm", "380", "7,772", "380", "8,152/10,000"],
    ]
    assert "quota" not in get("rms")[1][0].lower()


@pytest.mark.parametrize("kind", sorted(BY_NAME))
def test_each_kind_has_all_forms(get: Any, kind: str) -> None:
    items = json.loads("\n".join(get(kind, "-o", "json")[1]))
    assert YAML(typ="safe").load("\n".join(get(kind, "-o", "yaml")[1])) == items
    assert len(get(kind, "-o", "name")[1]) == len(items)
    code, lines, complaint = get(kind, "-o", "wide")
    assert code == 0
    assert len(lines) == (len(items) + 1 if items else 0)
    assert items or complaint == f"no {kind}\n"


def test_text_from_elsewhere_is_no_markup(get: Any) -> None:
    assert "[bold]r1" in get("nodes", "-o", "wide")[1][2]


def test_the_rm_goes_into_the_query(get: Any) -> None:
    get("nodes", "--rm", "a b&c")
    assert Front.asked == [("/ws/v1/partition/default/nodes", "rm=a+b%26c")]


def test_the_environment_says_where(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HTTP", f"http://{front}")
    monkeypatch.setenv("MUSTER_RM", "rm-7")
    Front.asked.clear()
    assert run(["get", "users"]) == 0
    assert Front.asked == [("/ws/v1/partition/default/usage/users", "rm=rm-7")]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nodes", "--partition", "gpu"), 2, "Partition not found (HTTP 404)"),
        (("nodes", "--where", "size>1"), 2, "--where: unknown column 'size', expected one of node, schedulable"),
        (("nodes", "--where", "vcore>much"), 2, "--where 'vcore>much': must be a number from"),
        (("nodes", "--where", "vcore"), 2, "--where 'vcore': expected COLUMN=TEXT"),
        (("nodes", "--sort", "size"), 2, "--sort: unknown column 'size'"),
        (("nodes", "--columns", "node,"), 2, "--columns: unknown column ''"),
        (("nodes", "--interval", "0"), 2, "--interval: must be a number from 0.1 to 86,400, got '0'"),
        (("nodes", "--timeout-s", "0"), 2, "--timeout-s: must be a number above 0, at most 2,592,000, got '0'"),
    ],
)
def test_what_is_wrong_is_named(get: Any, arguments: tuple[str, ...], code: int, said: str) -> None:
    found, lines, complaint = get(*arguments)
    assert (found, lines) == (code, [])
    assert said in complaint


def test_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["get", "nodes", "--http", "127.0.0.1:1"]) == 1
    assert (
        "nothing answers at http://127.0.0.1:1: is `muster up` running? (Connection refused)" in capsys.readouterr().err
    )


# ---- columns ---------------------------------------------------------------------------------------------------------

COLUMNS = (Column("name", lambda item: item["name"]), Column("size", lambda item: item.get("size")))
ITEMS = [{"name": "b", "size": 1}, {"name": "a", "size": 10}, {"name": "c"}, {"name": "d", "size": 1}]


@pytest.mark.parametrize(
    ("by", "names"), [("name", "abcd"), ("-name", "dcba"), ("size", "bdac"), ("-size,-name", "adbc"), ("", "bacd")]
)
def test_items_are_sorted_by_columns(by: str, names: str) -> None:
    assert "".join(item["name"] for item in sort(ITEMS, by, COLUMNS)) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [("name=a", "a"), ("name != a", "bcd"), ("name=[ab]", "ba"), ("size>1", "a"), ("size<=1", "bd"), ("size!=1", "ac")],
)
def test_conditions_choose_items(text: str, names: str) -> None:
    chosen = condition(text, COLUMNS)
    assert "".join(item["name"] for item in ITEMS if chosen.matches(item)) == names
