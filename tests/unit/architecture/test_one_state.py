"""The state of the whole is graded in one module and computed in one place; no reader computes one of its own."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GRADES = "libs/rest/src/muster_rest/system_health.py"
MONITOR = "services/gateway/src/muster_gateway/health_monitor.py"
# Builds the same state again from a gRPC message, for ``muster health`` and ``muster top``.
MESSAGE = "apps/cli/src/muster_cli/health_text.py"
# Who may call or build what.
ALLOWED = {
    "system_health": {MONITOR},
    "unreachable": {"apps/cli/src/muster_cli/followers_front.py", "apps/cli/src/muster_cli/health.py", MESSAGE},
    "SystemHealthDao": {GRADES, MESSAGE},
    "PartHealthDao": {GRADES, MESSAGE},
    "HealthFacts": {MONITOR},
    "LogFacts": {MONITOR},
    "DiskFacts": {MONITOR},
    "CertificateFacts": {"services/gateway/src/muster_gateway/access/certificate_ends.py"},
    "OwnerFacts": {
        "services/gateway/src/muster_gateway/scheduler_reports.py",
        "services/scheduler/src/muster_scheduler/owned.py",
    },
}
# Its thresholds are nobody else's.
THRESHOLDS = {"SILENT_S", "BLIP_S", "PATIENCE_S", "WAITING_DEGRADED_S", "WAITING_FAILED_S", "CERTIFICATE_S"}


@cache
def _sources() -> dict[str, ast.Module]:
    names = {*ALLOWED, *THRESHOLDS}
    texts = {path: path.read_text() for path in sorted(ROOT.glob("*/*/src/muster_*/**/*.py"))}
    return {
        str(path.relative_to(ROOT)): ast.parse(text) for path, text in texts.items() if any(n in text for n in names)
    }


def _called(tree: ast.Module) -> set[str]:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {each.id for each in calls if isinstance(each, ast.Name)}
    return names | {each.attr for each in calls if isinstance(each, ast.Attribute)}


def _imported(tree: ast.Module) -> set[str]:
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name for each in froms if each.module == "muster_rest.system_health" for alias in each.names}


def test_no_reader_computes_a_state_of_its_own() -> None:
    wrong = [
        f"{path}: {name}"
        for path, tree in _sources().items()
        for name in sorted((_called(tree) & ALLOWED.keys()) | (_imported(tree) & THRESHOLDS))
        if path not in ALLOWED.get(name, set())
    ]
    assert not wrong, "the state of the whole is computed in muster_gateway.health_monitor alone"


def test_every_place_that_is_allowed_is_there() -> None:
    called = {path: _called(tree) for path, tree in _sources().items()}
    unused = [f"{path}: {name}" for name, paths in ALLOWED.items() for path in paths if name not in called[path]]
    assert not unused, "remove it from ALLOWED"
