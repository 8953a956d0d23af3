"""`muster admin` and `muster explain` against a `muster up`, which is killed while an RM is paused."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from muster_cli.main import run
from muster_client import Callbacks, RmClient, application, ask, node
from muster_core.model.demand import DURATION_TAG
from muster_replay.local_process import muster_command
from up import Up
from waiting import eventually

PATIENCE_S = 60.0
ANY_TIME = re.compile(r"Ask k3 of application x will start in about .*; in 8 of 10 cases between .* from now\.")
QUEUES = """\
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - {name: a, resources: {max: {vcore: 3}}}
"""


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Up]:
    one = Up(tmp_path)
    await one.start()
    yield one
    one.process.kill()


def muster(up: Up, *arguments: str) -> tuple[int, str]:
    """Runs a command in a thread of this process: forty processes would need half a minute of a core."""
    said = io.StringIO()
    with (
        ThreadPoolExecutor(1) as thread,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        code = thread.submit(run, [*arguments, "--gateway", up.grpc]).result()
    return code, said.getvalue()


def muster_process(up: Up, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        muster_command(*arguments, "--gateway", up.grpc), capture_output=True, text=True, timeout=360, check=False
    )
    return done.returncode, done.stdout + done.stderr


def explained(up: Up, *about: str) -> dict[str, Any]:
    """The view's explanation; {}: not known yet."""
    code, said = muster(up, "explain", *about, "--json")
    found: dict[str, Any] = json.loads(said) if code == 0 else {}
    return found


@pytest.mark.usefixtures("logs_as_before")
@pytest.mark.timeout(600)
async def test_a_pause_outlives_a_kill_and_ends_when_an_operator_says_so(up: Up, tmp_path: Path) -> None:
    told: list[str] = []
    accepted: list[str] = []
    callbacks = Callbacks(
        on_allocated=lambda new: told.extend(item.allocationKey for item in new),
        on_application=lambda new, _, __: accepted.extend(item.applicationID for item in new),
    )
    async with RmClient(up.grpc, "my-cluster", config=QUEUES, callbacks=callbacks) as rm:
        await rm.register()
        await rm.send_nodes([node("node-1", {"vcore": 8000})])
        await rm.send_applications([application("x", "root.a")])
        await eventually(lambda: accepted == ["x"], "the application is accepted", PATIENCE_S)
        await rm.send_asks([ask("k1", "x", {"vcore": 2000}, tags={DURATION_TAG: "7200000"})])
        await eventually(lambda: told == ["k1"], "what fits is allocated", PATIENCE_S)
        assert muster_process(up, "admin", "pause", "--reason", "new racks") == (
            0, "my-cluster is paused: Muster schedules nothing for it.\n",
        )  # fmt: skip
        await rm.send_asks([ask("k2", "x", {"vcore": 1000})])
        held = lambda: explained(up, "ask", "x", "k2").get("reason") == "RM_HELD"  # noqa: E731
        await eventually(held, "the pause is the reason", PATIENCE_S)
        up.process.kill()
        await up.start()
        await eventually(held, "it still is", PATIENCE_S)
        assert "yes: new racks" in muster(up, "admin", "rms")[1]
        assert told == ["k1"]
        back = lambda: "RUNNING" in muster(up, "admin", "rms")[1]  # noqa: E731
        await eventually(back, "its streams are open again (else a resume says that they are not)", PATIENCE_S)
        assert muster(up, "admin", "resume") == (0, "my-cluster is resumed.\n")
        await eventually(lambda: told == ["k1", "k2"], "decided again", PATIENCE_S)

        assert muster(up, "admin", "drain", "node-1") == (0, "node-1 is drained, 2 allocations on it.\n")
        up.process.kill()
        await up.start()
        drained = lambda: explained(up, "node", "node-1").get("schedulable") is False  # noqa: E731
        await eventually(drained, "it is drained still", PATIENCE_S)
        assert muster(up, "admin", "undrain", "node-1")[0] == 0

        # The audit trail, of the gateway and of the file beside the running Muster
        code, said = muster(up, "audit", "--rm", "my-cluster", "--json")
        trail = [json.loads(line) for line in said.splitlines()]
        done = [(each["action"], each["result"], each["identity"]) for each in trail if each["request_offset"] >= 0]
        assert done == [
            (action, "accepted", "loopback") for action in ("register", "pause", "resume", "drain", "undrain")
        ]
        assert trail[done.index(("pause", "accepted", "loopback"))]["objects"] == {"why": "new racks"}
        # (The file is read, whatever the address is.)
        (line,) = muster(up, "audit", "--data-dir", str(up.data), "--action", "drain", "--json")[1].splitlines()
        assert json.loads(line) == next(each for each in trail if each["action"] == "drain")
        code, said = muster(up, "audit", "--action", "list", "--last", "1")
        assert (code, "loopback (loopback)" in said) == (0, True)
        assert muster(up, "audit", "--result", "maybe")[0] == 2
        # An RM that nobody knows is no RM without entries.
        for place in ((), ("--data-dir", str(up.data))):
            assert muster(up, "audit", *place, "--rm", "nope")[0] == 2
            code, said = muster(up, "audit", *place, "--rm", "my-cluster", "--identity", "nobody-else")
            assert (code, said.strip()) == (0, "No audit entry fits.")

        larger = tmp_path / "larger.yaml"
        larger.write_text(QUEUES.replace("vcore: 3", "vcore: 5"))
        code, said = muster(up, "admin", "validate", str(larger))
        assert (code, said.splitlines()[0]) == (0, "[default] root.a resources.max.vcore: 3 -> 5")
        code, said = muster(up, "explain", "queue", "root.a")
        assert (code, said) == (
            0,
            (
                "Queue root.a uses 3 cores of its max of 3 cores, and has no pending asks. "
                "It has no guarantee of its own. No vcore is left in its headroom.\n"
            ),
        )
        code, said = muster_process(up, "explain", "queue", "root.b")
        assert (code, said) == (
            2,
            (
                f"muster: {up.grpc}: queue 'root.b' in partition 'default': Queue not found; "
                "the history has none of this name either (NOT_FOUND)\n"
            ),
        )
        file = tmp_path / "dump.json"
        assert muster(up, "admin", "dump", "--output", str(file))[0] == 0
        dump = json.loads(file.read_text())
        assert [each["applicationID"] for each in dump["applications"]] == ["x"]
        assert dump["config"] == QUEUES

        # When will it run? From the command to a process beside the view. k1 has declared two hours.
        await rm.send_asks([ask("k3", "x", {"vcore": 1000})])
        full = lambda: explained(up, "ask", "x", "k3").get("reason") == "QUEUE_MAX"  # noqa: E731
        await eventually(full, "it waits for k1 or k2", PATIENCE_S)
        when = ("explain", "ask", "x", "k3", "--when", "--timeout-s", "300")
        code, said = muster_process(up, *when)
        assert code == 0
        assert ANY_TIME.match(" ".join(said.split())), said
        found = json.loads(muster(up, *when, "--json")[1])
        assert (found["state"], found["declared"], found["unknown"]) == ("ESTIMATED", 1, 1)
        assert rm.missing_sequences() == []
