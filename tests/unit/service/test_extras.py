"""Extras: which packages they have, and what is said without them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from muster_runtime import optional_packages
from muster_runtime.optional_packages import EXTRAS, ExtraMissing, is_extra, require, with_install_hint
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT = tomllib.loads((ROOT / "libs/client/pyproject.toml").read_text())["project"]
# Distribution → import packages, where the names differ.
PACKAGES = {"faust-streaming": {"faust", "mode"}}


def test_the_table_is_that_of_pyproject() -> None:
    tables = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name not in ("all", "dev")}
    packages = {
        (package, extra)
        for extra, lines in tables.items()
        for name in (Requirement(line).name for line in lines)
        if name != "muster"
        for package in PACKAGES.get(name, {name})
    }
    assert packages == set(EXTRAS.items())
    [everything] = map(Requirement, PROJECT["optional-dependencies"]["all"])
    assert everything.extras == set(tables)


def test_both_distributions_have_one_version() -> None:
    assert CLIENT["version"] == PROJECT["version"]
    assert f"muster-client=={PROJECT['version']}" in PROJECT["dependencies"]
    assert set(CLIENT["dependencies"]) <= set(PROJECT["dependencies"])


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE"])
def test_the_client_has_the_same_terms(name: str) -> None:
    """A copy: a source distribution has no files from outside of its folder."""
    assert (ROOT / "libs/client" / name).read_text() == (ROOT / name).read_text()


def test_what_is_installed_is_required_silently() -> None:
    for package in EXTRAS:
        require(package, "a test")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_packages, "_is_there", lambda name: False)
    with pytest.raises(
        ExtraMissing, match=r"^log.backend = kafka needs the package aiokafka, which .* 'muster\[kafka\]'$"
    ):
        require("aiokafka", "log.backend = kafka")
    found = ModuleNotFoundError("No module named 'asyncpg'", name="asyncpg.pool")
    assert is_extra(found)
    assert with_install_hint(found).endswith("pip install 'muster[postgres]'")


def test_other_modules_are_no_extras() -> None:
    other = ModuleNotFoundError("No module named 'acme'", name="acme")
    assert not is_extra(other)
    assert with_install_hint(other) == "No module named 'acme'"


def test_the_base_needs_no_extra() -> None:
    """All that `muster up` loads, in a process in which the extras' packages cannot be imported."""
    program = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(EXTRAS)}))
import muster_cli.main, muster_cli.bootstrap, muster_cli.followers_child, muster_cli.history.duckdb_store
import muster_gateway.service, muster_scheduler.service, muster_informers.process, muster_bus.backends.sqlite
import muster_replay.demo
"""
    subprocess.run([sys.executable, "-c", program], check=True)
