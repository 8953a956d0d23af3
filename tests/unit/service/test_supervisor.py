"""Messages to systemd."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from muster_runtime.systemd import READY, STOPPING, notify


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_supervisor_hears_each_state(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(tmp_path / "notify") if kind == "path" else f"@muster-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(name.replace("@", "\0"))
        heard.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify(READY)
        notify(STOPPING)
        assert [heard.recv(100), heard.recv(100)] == [b"READY=1", b"STOPPING=1"]


@pytest.mark.parametrize("name", ["", "relative", "/nowhere/at/all"])
def test_without_a_supervisor_nothing_happens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    notify(READY)
