"""docs/admin.md has every call, status and command, and every part of a dump."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from muster_cli.main import admin_app, explain_app
from muster_gateway import errors
from muster_proto.muster.v1 import admin_pb2

DOC = (Path(__file__).parents[3] / "docs/admin.md").read_text(encoding="utf-8")
HEADINGS = " ".join(line for line in DOC.splitlines() if line.startswith("## "))
METHODS = [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods]


@pytest.mark.parametrize("method", METHODS)
def test_every_call_has_a_heading(method: str) -> None:
    assert f"`{method}`" in HEADINGS


def test_every_status_that_a_call_may_end_with_is_in_the_table() -> None:
    raised = [
        errors.InvalidRequest, errors.NotFound, errors.PreconditionFailed, errors.NotRegistered, errors.RmStopped,
        errors.OverLimit, errors.LogDown, errors.SchedulerTimeout, errors.SessionStoreDown, errors.ViewUnavailable,
        errors.GatewayStopping,
    ]  # fmt: skip
    listed = set(re.findall(r"^\| `([A-Z_]+)` \|", DOC, re.MULTILINE))
    assert {error.code.name for error in raised} == listed


@pytest.mark.parametrize("command", [name for name in admin_app if name[0] != "-"])
def test_every_command_of_admin_is_shown(command: str) -> None:
    assert f"$ muster admin {command}" in DOC


@pytest.mark.parametrize("command", [name for name in explain_app if name[0] != "-"])
def test_every_command_of_explain_is_shown(command: str) -> None:
    assert f"$ muster explain {command}" in DOC
