"""`muster top`: output of one snapshot and of several, and its end."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from muster_cli.main import run
from muster_cli.top_screen import ScreenSize, amount, bar, duration, fullest, percent, screen
from muster_client.health_client import Grade, PartHealth, SystemHealth
from muster_proto.muster.v1 import metrics_pb2 as pb
from muster_runtime.terminal import Screen
from unit.client.metrics_gateway import AT_NS, GIB, SECOND_NS, MetricsGateway, running, snapshot

Code = grpc.StatusCode
OK, DEGRADED, FAILED = Grade.OK, Grade.DEGRADED, Grade.FAILED
PATIENCE_S = 60.0
GONE = (Code.UNAVAILABLE, "this gateway is stopping")
ONCE = """\
muster top  rm-1  2024-01-02 03:04:05 UTC  the figures are 12 records, 0.5 s behind
nodes         4 (1 draining)
applications  3 Accepted, 12 Running
allocations   600, 7 asks pending, 2 reservations
so far        950 allocated, 50 reported, 400 ended
ended         390 released by the RM, 7 dropped when it registered again, 3 released by Muster
releases      3 preempted, 0 timed out, 0 replaced
rejected      9 asks
last minute   213 allocations/s, ask to allocation p50 4 ms, p99 2.5 s

cluster                   allocated  capacity  pending
memory   █████████░  97%      250Gi     256Gi        0
vcore    ██░░░░░░░░  25%         16        64       70

pending, by reason  asks
QUEUE_MAX              5
NO_NODE_HAS_ROOM       2

queue           running  fullest of its max                memory   vcore
root                 12  █████████░  97%     256Gi memory   250Gi  16 +70
  a (Draining)    12/20  ████████░░  80%     20 vcore       250Gi  16 +70
  b                   0  -                                      -       -

fullest nodes                   allocations  free memory  free vcore
n1             █████████░  98%          300       2048Mi          23  draining
n2             ░░░░░░░░░░   0%            0            -          32

process  cpu  memory    up  streams
gateway    -   200Mi  1h1m        3
"""


@pytest.fixture
def gateway() -> Iterator[MetricsGateway]:
    with running() as gateway:
        yield gateway


def top(gateway: MetricsGateway, *arguments: str) -> int:
    return run(["top", "--gateway", gateway.address, *arguments])


def test_once(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert top(gateway, "--once") == 0
    assert capsys.readouterr().out == ONCE
    (request, _) = gateway.asked[0]
    assert request == pb.MetricsRequest(nodes_max=10)


def test_into_a_pipe_there_are_no_control_characters(
    gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answers = [snapshot(), snapshot(1)]
    top(gateway)
    out = capsys.readouterr().out
    assert not [sign for sign in out if unicodedata.category(sign) == "Cc" and sign != "\n"]


def test_rates_are_those_between_two_snapshots(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    later = {"allocated": 3_400, "ended": 400, "decisions": 600, "deciding_us": 1_500_000, "asks_rejected": 11}
    gateway.answers = [snapshot(), snapshot(2, **later)]
    assert top(gateway) == 0
    first, second = capsys.readouterr().out.split("\n\nmuster top")
    assert "(+" not in first
    assert "so far        3,400 allocated (+1,225/s), 50 reported, 400 ended" in second
    assert "rejected      11 asks (+1/s)" in second
    assert "last minute   213 allocations/s, ask to allocation p50 4 ms, p99 2.5 s; deciding 25% of the time" in second
    assert "gateway  50%   200Mi  1h1m        3" in second


def test_counts_that_began_anew_have_no_rate(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.answers = [snapshot(), snapshot(1, allocated=5, decisions=1, deciding_us=10)]
    top(gateway)
    assert "so far        5 allocated, 50 reported, 400 ended" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recent", "said"),
    [
        ({}, "no allocation"),
        ({"allocations": 3, "per_second": 0.05}, "0.05 allocations/s"),  # of a scheduler that does not count waits yet
        (
            {"allocations": 90_000, "per_second": 1_500.4, "wait_p50_ms": 0.4, "wait_p99_ms": 3_700_000},
            "1,500 allocations/s, ask to allocation p50 under 1 ms, p99 1h1m",
        ),
    ],
)
def test_the_last_minute_in_words(
    gateway: MetricsGateway, capsys: pytest.CaptureFixture[str], recent: dict[str, Any], said: str
) -> None:
    answer = snapshot()
    answer.scheduler.recent.CopyFrom(pb.RecentAllocations(**recent))
    gateway.answers = [answer]
    top(gateway, "--once")
    assert f"last minute   {said}\n" in capsys.readouterr().out


def test_a_gateway_that_does_not_know_the_last_minute_shows_none(
    gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = snapshot()
    answer.scheduler.ClearField("recent")
    gateway.answers = [answer]
    top(gateway, "--once")
    assert "last minute" not in capsys.readouterr().out


def test_questions_are_shown_when_there_were_any(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.answers = [snapshot(0, questions=10, questions_refused=3, questions_unanswered=1)]
    top(gateway, "--once")
    assert "questions to the RM  10 asked, 3 answered no, 1 unanswered" in capsys.readouterr().out


def test_json_lines(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.answers = [snapshot(), snapshot(1)]
    assert top(gateway, "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["taken_ns"] for line in lines] == [snapshot().taken_ns, snapshot(1).taken_ns]
    assert lines[0]["scheduler"]["tally"]["allocated"] == 950
    assert lines[0]["queues"][1]["path"] == "root.a"
    assert top(gateway, "--json", "--once") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_query_has_the_flags(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    top(gateway, "--rm", "rm-1", "--queue", "root.a", "--partition", "p", "--nodes", "3", "--interval", "0.5", "--json")
    what = pb.MetricsRequest(rm_id="rm-1", queue="root.a", partition="p", nodes_max=3)
    assert gateway.asked[0][0] == pb.WatchMetricsRequest(what=what, interval_ms=500)


def test_one_queue_is_shown_with_its_whole_path(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    answer = snapshot()
    del answer.queues[0], answer.queues[1]
    answer.queues.add(path="root.a.deep", state="Active")
    gateway.answers = [answer]
    top(gateway, "--once", "--queue", "root.a")
    out = capsys.readouterr().out
    assert "\nroot.a (Draining) " in out
    assert "\n  deep " in out


def test_many_queues_are_cut_and_counted(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    answer = snapshot()
    answer.queues.extend(pb.QueueMetrics(path=f"root.q{number}", state="Active") for number in range(1_000))
    gateway.answers = [answer]
    top(gateway, "--once")
    out = capsys.readouterr().out
    assert "\nand 963 more\n" in out
    assert "q36 " in out
    assert "q37 " not in out


def test_names_are_no_markup(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    answer = snapshot()
    answer.rm_id = "[bold]rm[/]"
    answer.nodes[0].node_id = "[red]n1"
    answer.scheduler.capacity["[x]/gpu"] = 8
    gateway.answers = [answer]
    assert top(gateway, "--once") == 0
    out = capsys.readouterr().out
    assert "[bold]rm[/]" in out
    assert "[red]n1" in out
    assert "[x]/gpu" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--interval", "0.05"), "muster: --interval: must be a number from 0.1 to 86,400, got '0.05'\n"),
        (("--nodes", "0"), "muster: --nodes: must be a whole number from 1 to 1,000,000, got '0'\n"),
    ],
)
def test_invalid_flags_are_refused(
    gateway: MetricsGateway, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert top(gateway, *arguments) == 2
    assert capsys.readouterr().err == message
    assert not gateway.asked


def test_an_address_without_a_gateway_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--gateway", "", "--once"]) == 2
    assert capsys.readouterr().err == "muster: --gateway '': expected the gRPC address of a gateway, host:port\n"


@pytest.mark.parametrize("once", [True, False])
def test_of_several_rms_one_must_be_named(
    gateway: MetricsGateway, capsys: pytest.CaptureFixture[str], *, once: bool
) -> None:
    several = 'Several resource managers are registered, name one with "rm": a, b'
    gateway.answers = [(Code.INVALID_ARGUMENT, several)]
    assert top(gateway, *(["--once"] if once else [])) == 2
    assert capsys.readouterr().err == f"muster: {gateway.address}: {several} (INVALID_ARGUMENT)\n"


@pytest.mark.parametrize("once", [True, False])
def test_a_refusal_is_one_clear_line(
    gateway: MetricsGateway, capsys: pytest.CaptureFixture[str], *, once: bool
) -> None:
    gateway.answers = [(Code.NOT_FOUND, "Resource manager not found: 'nope'")]
    assert top(gateway, "--rm", "nope", *(["--once"] if once else [])) == 2
    assert capsys.readouterr().err == f"muster: {gateway.address}: Resource manager not found: 'nope' (NOT_FOUND)\n"


def _parts(*parts: tuple[str, Grade.ValueType, str, str]) -> SystemHealth:
    """A state in which each part has not worked for 75 s: part, grade, sentence, remedy."""
    found = [
        PartHealth(part=part, grade=grade, since_ns=AT_NS - 75 * SECOND_NS, sentence=sentence, remedy=remedy)
        for part, grade, sentence, remedy in parts
    ]
    worst = found[0]
    return SystemHealth(
        grade=worst.grade, part=worst.part, since_ns=worst.since_ns, sentence=worst.sentence, remedy=worst.remedy,
        checked_ns=AT_NS, parts=found,
    )  # fmt: skip


NOBODY = ("scheduler", FAILED, "no scheduler has answered for partition 3 for 75 s", "start one: muster scheduler")


def test_the_worst_part_is_above_the_figures(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.state = _parts(NOBODY, ("view", DEGRADED, "it lags", ""), ("log", OK, "it answers", ""))
    assert top(gateway, "--once") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == [
        "Muster  failed  scheduler for 75 s: no scheduler has answered for partition 3 for 75 s",
        "        start one: muster scheduler",
        "        also: view (degraded)",
    ]
    assert lines[4].startswith("nodes ")
    gateway.state = SystemHealth(grade=OK, sentence="all parts work", checked_ns=AT_NS)
    top(gateway, "--once")
    assert capsys.readouterr().out.splitlines()[1] == "Muster  ok  all parts work"
    gateway.state = SystemHealth(grade=FAILED)  # for a caller that may read nothing
    top(gateway, "--once")
    assert capsys.readouterr().out.splitlines()[1] == "Muster  failed"


def test_json_has_the_state_of_the_whole(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.state = _parts(NOBODY)
    top(gateway, "--once", "--json")
    health = json.loads(capsys.readouterr().out)["health"]
    assert (health["grade"], health["parts"][0]["remedy"]) == ("failed", "start one: muster scheduler")
    gateway.state = None
    top(gateway, "--once", "--json")
    assert json.loads(capsys.readouterr().out)["health"] is None


@pytest.mark.parametrize("once", [True, False])
def test_without_figures_the_state_is_shown(
    gateway: MetricsGateway, capsys: pytest.CaptureFixture[str], *, once: bool
) -> None:
    gateway.state = _parts(("view", FAILED, "the view has not answered for 75 s", "start it: muster view"))
    gateway.answers = [(Code.UNAVAILABLE, "the view is not reachable: try again")]
    assert top(gateway, *(["--once"] if once else [])) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("Muster  failed  view for 75 s: the view has not answered for 75 s\n")
    assert "start it: muster view" in captured.out
    assert "the view is not reachable" in captured.err


def test_figures_of_a_view_that_failed_are_not_waited_for(gateway: MetricsGateway) -> None:
    for state in (_parts(NOBODY, ("view", FAILED, "it has not answered", "start it")), _parts(NOBODY)):
        gateway.state = state
        top(gateway, "--once")
    short_s, usual_s = gateway.patience_s
    assert short_s < 3 < usual_s


def test_a_gateway_that_goes_away_is_the_part_that_failed(
    gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.state, gateway.answers = GONE, [GONE]
    assert top(gateway, "--once") == 1
    said = capsys.readouterr().out
    assert said.startswith("Muster  failed  gateway")
    assert f"{gateway.address} does not answer (UNAVAILABLE)" in said
    assert "start it, or repair the connection to it" in said


def test_into_a_pipe_it_ends_with_the_gateway(gateway: MetricsGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.answers = [snapshot(), GONE]
    assert top(gateway, "--json") == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert captured.err == f"muster: {gateway.address}: no answer: this gateway is stopping (UNAVAILABLE)\n"


# ---- on a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """`muster top` in a process of its own, on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._here, there = pty.openpty()
        termios.tcsetwinsize(there, (50, 120))
        command = [sys.executable, "-c", "from muster_cli.main import main; main()", "top", *arguments]
        # (The environment of the tests may have another terminal's size.)
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment = {**inherited, "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment)
        os.close(there)
        self.seen = b""

    def wait_for(self, text: bytes) -> None:
        until = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < until, f"{text!r} was not shown: {self.seen[-2000:]!r}"
            if select.select([self._here], [], [], 0.1)[0]:
                self.seen += self._read()

    def interrupt(self) -> int:
        """Send Ctrl-C, read the rest of the output, return the exit code."""
        self.process.send_signal(signal.SIGINT)
        while more := self._read():
            self.seen += more
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bytes:
        try:
            return os.read(self._here, 1 << 16)
        except OSError:  # the other end is closed
            return b""

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._here)


@pytest.fixture
def terminal(gateway: MetricsGateway) -> Iterator[Terminal]:
    gateway.answers = [snapshot(), GONE]
    terminal = Terminal("--gateway", gateway.address)
    yield terminal
    terminal.end()


def test_on_a_terminal_it_takes_the_screen_waits_for_the_gateway_and_gives_the_screen_back(
    gateway: MetricsGateway, terminal: Terminal
) -> None:
    terminal.wait_for(b"fullest nodes")
    terminal.wait_for(b"(UNAVAILABLE): trying again")
    gateway.answers = [snapshot(0, preempted=4_711), GONE]
    terminal.wait_for(b"4,711 preempted")
    assert terminal.interrupt() == 130
    taken, given_back = b"\x1b[?1049h", b"\x1b[?1049l"
    assert terminal.seen.count(taken) == terminal.seen.count(given_back) == 1
    assert b"Traceback" not in terminal.seen


# ---- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("vcore", 0, "0"),
        ("vcore", 500, "0.5"),
        ("vcore", 16_000, "16"),
        ("vcore", 16_250, "16.2"),
        ("vcore", 125_514_000, "126k"),
        ("memory", 512, "512"),
        ("memory", 1 << 20, "1024Ki"),
        ("memory", 100 * GIB, "100Gi"),
        ("memory", -3 * GIB, "-3072Mi"),
        ("ephemeral-storage", 20 << 40, "20Ti"),
        ("pods", 110, "110"),
        ("nvidia.com/gpu", 123_456_789, "123M"),
        ("pods", (1 << 63) - 1, "9223P"),
    ],
)
def test_amounts_are_short(name: str, value: int, text: str) -> None:
    assert amount(name, value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (61, "1m1s"), (3_700, "1h1m"), (90_000, "1d1h")]
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("used", "limit", "share"), [(0, 0, 0), (5, 0, 100), (0, 5, 0), (1, 3, 33), (7, 2, 350), (-1, 2, 0)]
)
def test_shares(used: int, limit: int, share: int) -> None:
    assert percent(used, limit) == share


def test_the_fullest_type_is_that_of_the_largest_share() -> None:
    assert fullest({"vcore": 1, "memory": 3}, {"vcore": 2, "memory": 5}) == ("memory", 60)
    assert fullest({"memory": 3}, {"vcore": 2}) == ("vcore", 0)
    assert fullest({"memory": 3}, {}) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, ".......... "), (1, "#......... "), (99, "#########. "), (100, "########## "), (300, "########## ")],
)
def test_a_bar_shows_something_as_something_and_only_full_as_full(value: int, text: str) -> None:
    assert bar(value, ScreenSize(1, 1, plain=True)).plain == f"{text}{value:>3}%"


def test_a_narrow_screen_keeps_gpus_and_cuts_nothing() -> None:
    types = {"vcore": 64_000, "memory": 256 * GIB, "nvidia.com/gpu": 8, "pods": 110, "ephemeral-storage": 1 << 40}
    used = {"vcore": 16_000, "memory": GIB, "nvidia.com/gpu": 7, "pods": 0}
    queue = pb.QueueMetrics(path="root", state="Active", max=types, allocated=used, pending={"nvidia.com/gpu": 40})
    node = pb.NodeMetrics(node_id="n1", schedulable=True, capacity=types, allocated=used, available=types)
    now = snapshot()
    del now.queues[:], now.nodes[:]
    now.queues.append(queue)
    now.nodes.append(node)
    printed = io.StringIO()
    Screen(width=80, file=printed).print(screen(now, None, ScreenSize(5, 5, types=3, narrow=True)))
    lines = printed.getvalue().splitlines()
    (heads,) = [line.split() for line in lines if line.startswith("queue")]
    assert heads == ["queue", "running", "of", "its", "max", "memory", "gpu", "vcore"]
    (row,) = [line.split() for line in lines if line.startswith("root")]
    assert row == ["root", "0", "87%", "gpu", "1024Mi", "7", "+40", "16"]
    assert any(line.split() == ["n1", "0%", "0", "256Gi", "8", "64"] for line in lines)
    assert not any("…" in line for line in lines if line.startswith(("queue", "root", "fullest", "n1")))
