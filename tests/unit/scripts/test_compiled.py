"""scripts/compiled where no C compiler is (docs/decisions/0252)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# What the script calls before it looks for a compiler.
PROGRAMS = ("bash", "dirname")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has no compiler."""
    for name in PROGRAMS:
        found = next(place for place in map(Path, ("/bin", "/usr/bin")) if (place / name).exists())
        (tmp_path / name).symlink_to(found / name)
    return {"PATH": str(tmp_path)}


def compiled(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = ["scripts/compiled", *options, sys.prefix]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_an_installation_goes_on_without_a_compiler_and_says_so(bare: dict[str, str]) -> None:
    run = compiled(bare, "--where-possible")
    assert run.returncode == 0
    assert run.stdout.startswith("==> Muster runs as Python source here: no C compiler: ")
    assert run.stderr == ""


def test_who_asks_for_the_compiled_form_gets_an_error_without_a_compiler(bare: dict[str, str]) -> None:
    run = compiled(bare)
    assert run.returncode == 1
    assert run.stderr.startswith("no C compiler: ")
