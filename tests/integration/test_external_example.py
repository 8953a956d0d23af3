"""The example plugin as a user has it: installed as a package, run, with its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "external"
RUN_TIMEOUT_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * RUN_TIMEOUT_S)]


def run(*command: str, installed: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)} if installed else dict(os.environ)
    command = (sys.executable, *command)
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and install the package into a directory, outside of this Python's environment; return the directory."""
    place = tmp_path_factory.mktemp("installed")
    how = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--target", str(place))
    done = run("-m", "pip", "install", *how, str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    return place


def test_no_host_is_over_committed(installed: Path) -> None:
    done = run(str(EXAMPLE / "run.py"), installed=installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[0] for line in done.stdout.splitlines() if line[:2] in ("1.", "2.", "3.", "4.")] == list("1234")
    assert "db-2 (2 cores) starts on " in done.stdout
    assert "host-3 (maintenance)" in done.stdout
    assert done.stdout.endswith("all as promised: at no time was a host asked for more than it has\n")


def test_without_the_informer_hosts_are_over_committed(installed: Path) -> None:
    done = run(str(EXAMPLE / "run.py"), "--blind", installed=installed)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "and is asked for more: hypervisor " in done.stderr


def test_its_own_tests(installed: Path) -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE), installed=installed)
    assert done.returncode == 0, done.stdout + done.stderr
