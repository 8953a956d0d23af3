"""`muster admin` and `muster explain`: requests, output as text and as JSON, exit codes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from muster_cli.main import run
from muster_proto.muster.v1 import admin_pb2 as pb
from unit.client.admin_gateway import AdminGateway, running
from unit.client.test_admin_calls import MANAGER

Code = grpc.StatusCode
ONE = pb.ListResourceManagersResponse(resource_managers=[MANAGER])


@pytest.fixture
def gateway() -> Iterator[AdminGateway]:
    with running() as it:
        it.answers["ListResourceManagers"] = ONE
        yield it


@pytest.fixture
def muster(gateway: AdminGateway, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command against the gateway; return its exit code, its output and its errors."""

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run([*arguments, "--gateway", gateway.address])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


def asked(gateway: AdminGateway) -> list[tuple[str, Any]]:
    return [each for each in gateway.called if each[0] != "ListResourceManagers"]


# ---- which RM -------------------------------------------------------------------------------------------------------


def test_the_only_rm_is_meant(gateway: AdminGateway, muster: Any) -> None:
    gateway.answers["PauseResourceManager"] = pb.ResourceManagerAnswer(changed=True)
    assert muster("admin", "pause")[:2] == (0, "rm is paused: Muster schedules nothing for it.\n")
    assert asked(gateway) == [("PauseResourceManager", pb.PauseResourceManagerRequest(rm_id="rm"))]


def test_a_named_rm_is_not_looked_for(gateway: AdminGateway, muster: Any) -> None:
    gateway.answers["ResumeResourceManager"] = pb.ResourceManagerAnswer()
    assert muster("admin", "resume", "--rm", "other")[:2] == (0, "other is not paused.\n")
    assert gateway.called == [("ResumeResourceManager", pb.ResumeResourceManagerRequest(rm_id="other"))]


@pytest.mark.parametrize("command", [("admin", "pause"), ("admin", "dump"), ("explain", "node", "n")])
def test_of_several_one_must_be_named_and_of_none_there_is_nothing_to_say(
    gateway: AdminGateway, muster: Any, command: tuple[str, ...]
) -> None:
    several = [pb.ResourceManager(rm_id=name) for name in ("a", "b")]
    gateway.answers["ListResourceManagers"] = pb.ListResourceManagersResponse(resource_managers=several)
    code, out, err = muster(*command)
    assert (code, out) == (2, "")
    assert err == "muster: --rm: 2 resource managers are registered, expected one of a, b\n"
    gateway.answers["ListResourceManagers"] = pb.ListResourceManagersResponse()
    assert muster(*command) == (1, "", "muster: no resource manager is registered\n")
    assert asked(gateway) == []


@pytest.mark.parametrize(
    "command", [("admin", "rms"), ("admin", "dump"), ("explain", "node", "n"), ("config", "apply")]
)
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--timeout-s", "0"), "--timeout-s: must be a number above 0, at most 2,592,000, got '0'"),
        (("--timeout-s=-1",), "--timeout-s: must be a number above 0, at most 2,592,000, got '-1'"),
        (("--timeout-s", "nan"), "--timeout-s: must be a number above 0, at most 2,592,000, got 'nan'"),
        (("--gateway", ""), "--gateway '': expected the gRPC address of a gateway, host:port"),
    ],
)
def test_flags_that_no_call_can_be_made_with(
    gateway: AdminGateway,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    flags: tuple[str, ...],
    said: str,
) -> None:
    more = (__file__,) if command == ("config", "apply") else ()
    whom = () if "--gateway" in flags else ("--gateway", gateway.address)
    assert run([*command, *more, *whom, *flags]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"muster: {said}\n")
    assert gateway.called == []


# ---- admin ----------------------------------------------------------------------------------------------------------


def test_rms_are_listed(gateway: AdminGateway, muster: Any) -> None:
    code, out, _ = muster("admin", "rms")
    assert code == 0
    for word in ("rm", "DISCONNECTED", "all streams closed", "yes: racks", "node", "previous", "3 times"):
        assert word in out
    assert "extra configuration" not in out
    code, out, _ = muster("admin", "rms", "--rm", "rm")
    assert "extra configuration c" in out
    assert "at g, number 4 of its kind, sent up to response 5" in out
    code, out, _ = muster("admin", "rms", "--json")
    (found,) = json.loads(out)
    assert (found["rm_id"], found["streams"][0]["sent_sequence"], found["callbacks"]) == ("rm", 5, ["events"])
    gateway.answers["ListResourceManagers"] = pb.ListResourceManagersResponse()
    assert muster("admin", "rms")[:2] == (0, "No resource manager is registered.\n")
    assert muster("admin", "rms", "--json")[:2] == (0, "[]\n")


def test_names_are_not_interpreted_as_markup(gateway: AdminGateway, muster: Any) -> None:
    odd = pb.ResourceManager(rm_id="[red]rm[/]", held=True, held_reason="[b]", extra_config={"[/x]": "[y"})
    gateway.answers["ListResourceManagers"] = pb.ListResourceManagersResponse(resource_managers=[odd])
    code, out, _ = muster("admin", "rms", "--rm", "x")
    assert code == 0
    for text in ("[red]rm[/]", "[b]", "[/x]", "[y"):
        assert text in out


def test_pause_and_resume(gateway: AdminGateway, muster: Any) -> None:
    gateway.answers["PauseResourceManager"] = pb.ResourceManagerAnswer()
    gateway.answers["ResumeResourceManager"] = pb.ResourceManagerAnswer(changed=True)
    assert muster("admin", "pause", "--reason", "new racks")[:2] == (0, "rm is paused already.\n")
    assert muster("admin", "resume")[:2] == (0, "rm is resumed.\n")
    code, out, _ = muster("admin", "resume", "--json")
    nothing = {"state": "", "since_ns": 0, "description": ""}
    assert (code, json.loads(out)) == (0, {"rm_id": "rm", "changed": True, **nothing})
    gateway.answers["ResumeResourceManager"] = pb.ResourceManagerAnswer(
        changed=True, state="DISCONNECTED", description="Start it."
    )
    assert muster("admin", "resume")[1] == "rm is no longer paused, but DISCONNECTED. Start it.\n"
    away = pb.ResourceManagerAnswer(changed=True, state="DISCONNECTED", description="Start it. An operator paused it.")
    gateway.answers["PauseResourceManager"] = away
    assert muster("admin", "pause")[1] == "rm is paused. Start it. An operator paused it.\n"
    assert asked(gateway)[0] == ("PauseResourceManager", pb.PauseResourceManagerRequest(rm_id="rm", reason="new racks"))


@pytest.mark.parametrize(
    ("command", "answer", "said"),
    [
        (
            "drain",
            pb.DrainNodeResponse(changed=True, allocations=2),
            "n is drained, 2 allocations on it.",
        ),
        ("drain", pb.DrainNodeResponse(allocations=1), "n is drained already, 1 allocation on it."),
        ("undrain", pb.DrainNodeResponse(changed=True), "n is schedulable again, 0 allocations on it."),
        ("undrain", pb.DrainNodeResponse(), "n is schedulable already, 0 allocations on it."),
    ],
)
def test_drain(gateway: AdminGateway, muster: Any, command: str, answer: Any, said: str) -> None:
    gateway.answers["DrainNode"] = answer
    assert muster("admin", command, "n", "--partition", "p")[:2] == (0, f"{said}\n")
    wanted = pb.DrainNodeRequest(rm_id="rm", partition="p", node_id="n", schedulable=command == "undrain")
    assert asked(gateway) == [("DrainNode", wanted)]
    shown = json.loads(muster("admin", command, "n", "--json")[1])
    assert shown == {"node_id": "n", "changed": answer.changed, "allocations": answer.allocations}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            pb.EndApplicationResponse(changed=True, state="Failing", allocations=1),
            "x is Failing: its resource manager ends 1 allocation.",
        ),
        (
            pb.EndApplicationResponse(state="Failing", allocations=2),
            "x is Failing already: its resource manager ends 2 allocations.",
        ),
        (pb.EndApplicationResponse(changed=True, state="Failed"), "x is Failed."),
    ],
)
def test_end_application(gateway: AdminGateway, muster: Any, answer: Any, said: str) -> None:
    gateway.answers["EndApplication"] = answer
    told = muster("admin", "end-application", "x", "--partition", "p", "--reason", "stuck")
    assert told[:2] == (0, f"{said}\n")
    wanted = pb.EndApplicationRequest(rm_id="rm", partition="p", application_id="x", reason="stuck")
    assert asked(gateway) == [("EndApplication", wanted)]
    shown = json.loads(muster("admin", "end-application", "x", "--json")[1])
    assert shown == {
        "application_id": "x",
        "changed": answer.changed,
        "state": answer.state,
        "allocations": answer.allocations,
    }


def test_validate(gateway: AdminGateway, muster: Any, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("partitions: []\n")
    gateway.answers["ValidateConfiguration"] = pb.UpdateConfigurationResponse(accepted=True, changes=["one [x]"])
    code, out, _ = muster("admin", "validate", str(file))
    assert (code, out) == (0, f"one [x]\n{file} would be accepted for rm: 1 change; nothing is changed now\n")
    error = pb.ConfigurationProblem(severity=pb.ConfigurationProblem.ERROR, path="a", line=2, column=3, message="bad")
    gateway.answers["ValidateConfiguration"] = pb.UpdateConfigurationResponse(problems=[error])
    code, out, _ = muster("admin", "validate", str(file))
    assert code == 1
    assert out == f"error {file}:2:3: a: bad\n{file} would be refused for rm; nothing is changed now\n"
    code, out, _ = muster("admin", "validate", str(file), "--json")
    assert code == 1
    assert json.loads(out)["problems"] == [{"severity": "error", "path": "a", "line": 2, "column": 3, "message": "bad"}]
    file.write_text(" \n")
    code, _, err = muster("admin", "validate", str(file))
    assert (code, err) == (2, f"muster: {file}: is empty, expected a queue configuration\n")
    assert muster("admin", "validate", str(tmp_path / "absent"))[0] == 2


def test_a_dump_goes_to_standard_output_or_to_a_file(
    gateway: AdminGateway, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    gateway.answers["DumpState"] = [pb.DumpStateResponse(json=piece) for piece in (b'{"a"', b":1}\n")]
    file = tmp_path / "dump.json"
    assert run(["admin", "dump", "--output", str(file), "--gateway", gateway.address]) == 0
    assert file.read_bytes() == b'{"a":1}\n'
    assert capfdbinary.readouterr().out.decode() == f"{file}: 8 bytes\n"
    assert run(["admin", "dump", "--output", "-", "--gateway", gateway.address]) == 0
    assert run(["admin", "dump", "--gateway", gateway.address]) == 0
    assert capfdbinary.readouterr().out == b'{"a":1}\n' * 2


def test_a_dump_that_breaks_off_leaves_no_file(gateway: AdminGateway, muster: Any, tmp_path: Path) -> None:
    gateway.answers["DumpState"] = [pb.DumpStateResponse(json=b"{"), (Code.UNAVAILABLE, "the view broke off")]
    file = tmp_path / "dump.json"
    code, _, err = muster("admin", "dump", "--output", str(file))
    assert (code, err) == (1, f"muster: {gateway.address}: no answer: the view broke off (UNAVAILABLE)\n")
    assert list(tmp_path.iterdir()) == []
    code, _, err = muster("admin", "dump", "--output", str(tmp_path / "no" / "dump.json"))
    assert code == 2
    assert "No such file or directory" in err


# ---- explain --------------------------------------------------------------------------------------------------------

ASK = pb.AskId(application_id="x", allocation_key="k")


@pytest.mark.parametrize(
    ("command", "about"),
    [
        (("ask", "x", "k"), {"ask": ASK}),
        (("application", "x"), {"application_id": "x"}),
        (("queue", "root.a"), {"queue": "root.a"}),
        (("node", "n"), {"node_id": "n"}),
        (("preemption", "x", "k"), {"preemption": ASK}),
        (("preemption", "k"), {"preemption": pb.AskId(allocation_key="k")}),
    ],
)
def test_explain(gateway: AdminGateway, muster: Any, command: tuple[str, ...], about: dict[str, Any]) -> None:
    explained = pb.ExplainResponse(json=b'{"counts":{"QUEUE_MAX":1200}}', sentences=["One [x].", "Two."])
    gateway.answers["Explain"] = explained
    code, out, _ = muster("explain", *command, "--partition", "p")
    assert code == 0
    assert out.startswith("One [x].\nTwo.\n")
    assert "QUEUE_MAX" in out
    assert "1,200" in out
    assert asked(gateway) == [("Explain", pb.ExplainRequest(rm_id="rm", partition="p", **about))]
    code, out, _ = muster("explain", *command, "--json")
    assert (code, json.loads(out)) == (0, {"counts": {"QUEUE_MAX": 1200}})
    gateway.answers["Explain"] = (Code.NOT_FOUND, "Queue not found")
    code, out, err = muster("explain", *command)
    assert (code, out, err) == (2, "", f"muster: {gateway.address}: Queue not found (NOT_FOUND)\n")


def test_asks_with_one_reason_are_one_line(gateway: AdminGateway, muster: Any) -> None:
    lines = ["It is running.", *(f"k{number}: No room." for number in range(40)), "g1: No [GPU].", "g2: No [GPU]."]
    gateway.answers["Explain"] = pb.ExplainResponse(json=b"{}", sentences=lines)
    _, out, _ = muster("explain", "application", "x")
    assert out.splitlines() == ["It is running.", "k0, k1, k2 and 37 more: No room.", "g1, g2: No [GPU]."]


def test_a_queue_begins_with_its_summary(gateway: AdminGateway, muster: Any) -> None:
    value = json.dumps({"sentence": "Queue root.a uses 3 cores of its max of 3 cores."}).encode()
    gateway.answers["Explain"] = pb.ExplainResponse(json=value, sentences=["It has its guarantee."])
    _, out, _ = muster("explain", "queue", "root.a")
    assert out.splitlines() == ["Queue root.a uses 3 cores of its max of 3 cores.", "It has its guarantee."]


FIRST_NS = 1_700_000_000_000_000_000  # 2023-11-14 22:13:20 UTC


def reason(code: str, since_s: int, **more: Any) -> dict[str, Any]:
    since_ns = FIRST_NS + since_s * 1_000_000_000
    return {"reason": code, "resourceType": "", "limitQueue": "", "who": "", "since": since_ns, **more}


ASK_HISTORY = {
    **reason("USER_LIMIT", 690, resourceType="vcore", limitQueue="root.a", who="ann"),
    "at": FIRST_NS + 870_500_000_000,
    "waitingSince": FIRST_NS,
    "history": [reason("NO_NODES", 0, until=FIRST_NS + 600_000_000_000)],
}
QUEUE_HISTORY = {
    "at": ASK_HISTORY["at"],
    "asks": {"USER_LIMIT": 2},
    "history": [
        reason("NO_NODES", 0, until=FIRST_NS + 600_000_000_000, asks=0),
        reason("USER_LIMIT", 690, resourceType="vcore", limitQueue="root.a", who="ann", until=0, asks=2),
    ],
}


@pytest.mark.parametrize("value", [ASK_HISTORY, QUEUE_HISTORY])
def test_earlier_reasons_are_shown_with_their_times(gateway: AdminGateway, muster: Any, value: dict[str, Any]) -> None:
    gateway.answers["Explain"] = pb.ExplainResponse(json=json.dumps(value).encode(), sentences=["One."])
    code, out, _ = muster("explain", "ask", "x", "k")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "2023-" in line]
    assert (code, rows) == (
        0,
        [
            ["2023-11-14 22:13:20", "0:10:00", "NO_NODES", ""],
            ["2023-11-14 22:24:50", "0:03:00", "USER_LIMIT vcore root.a ann", "now"],
        ],
    )


def test_an_ask_with_a_single_reason_is_shown_with_its_time(gateway: AdminGateway, muster: Any) -> None:
    value = json.dumps({**ASK_HISTORY, "history": []}).encode()
    gateway.answers["Explain"] = pb.ExplainResponse(json=value, sentences=["One."])
    assert muster("explain", "ask", "x", "k")[1].count("2023-") == 1


@pytest.mark.parametrize(
    ("code", "details", "exit_code"),
    [
        (grpc.StatusCode.NOT_FOUND, "queue 'root.x': Queue not found", 2),
        (grpc.StatusCode.FAILED_PRECONDITION, "rmID 'x' is not registered: call RegisterResourceManager first", 2),
        (grpc.StatusCode.FAILED_PRECONDITION, "rm is RUNNING", 1),
        (grpc.StatusCode.PERMISSION_DENIED, "no", 1),
    ],
)
def test_a_name_that_muster_does_not_know_is_a_wrong_call(
    gateway: AdminGateway, muster: Any, code: grpc.StatusCode, details: str, exit_code: int
) -> None:
    gateway.answers["Explain"] = (code, details)
    found, _, err = muster("explain", "queue", "root.x")
    assert found == exit_code
    assert details in err


# ---- no gateway, wrong calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [("admin", "rms"), ("admin", "pause"), ("admin", "dump"), ("explain", "queue", "root")]
)
def test_an_unreachable_gateway_is_reported(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        assert run([*command, "--gateway", address, "--timeout-s", "5"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"muster: nothing answers at {address}: ")


@pytest.mark.parametrize(
    "command",
    [("audit", "--gateway"), ("events", "batch", "--gateway"), ("history", "queues", "--history", "{empty}", "--http")],
    ids=lambda command: command[0],
)
def test_a_server_that_is_silent_is_waited_for_as_long_as_the_flag_says(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        words = [word.replace("{empty}", str(tmp_path)) for word in command]
        assert run([*words, address, "--timeout-s", "0.3"]) == 1
        assert "no answer" in capsys.readouterr().err
        assert run([*words, address, "--timeout-s", "0"]) == 2
        assert "--timeout-s: must be a number above 0, at most 2,592,000, got '0'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("admin", "drain"), ("explain", "ask", "x"), ("admin", "halt"), ("explain", "rm")])
def test_a_wrong_call_is_explained(command: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(list(command))
    assert ended.value.code
