"""Muster with its compiled core (libs/compiled), which `make test-compiled` makes and installs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest
from simulation.manager import CALLBACKS, GANGS

ROOT = Path(__file__).parents[2]
# libs/compiled/hatch_build.py has the reason of each.
PLAIN = {"config.queue_config", "external.validation", "external.model", "invariants", "preemption.rule"}
# Of the path of an ask outside of the core.
PASSED = (
    "muster_bus.topics",
    "muster_bus.backends.blocks",
    "muster_gateway.admission",
    "muster_gateway.codec",
    "muster_scheduler.emit",
    "muster_scheduler.event_wire",
    "muster_scheduler.ingest",
    "muster_scheduler.machine",
    "muster_state.encoding",
    "muster_state.state_codec",
    "muster_state.protobuf_wire",
)
FORMS = {"plain": "0", "compiled": "1"}
LIVES, STEPS = 3, 60
pytestmark = pytest.mark.skipif(find_spec("muster_compiled") is None, reason="`make test-compiled` compiles first")


def run(form: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT / "tests",
        env={**os.environ, "MUSTER_COMPILED": form},
        check=True,
        capture_output=True,
        text=True,
        timeout=280,
    )
    return done.stdout


def test_every_part_of_the_core_is_compiled_or_named_with_its_reason() -> None:
    listed = (
        "import json, pkgutil, importlib, muster_core\n"
        "names = [m.name for m in pkgutil.walk_packages(muster_core.__path__, 'muster_core.') if not m.ispkg]\n"
        "print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))\n"
    )
    files = json.loads(run("1", "-c", listed))
    plain = {name for name, file in files.items() if not file.endswith(EXTENSION_SUFFIXES[0])}
    assert plain == {f"muster_core.{name}" for name in PLAIN}
    assert len(files) > 90


def test_what_every_ask_passes_is_compiled() -> None:
    listed = f"import json, importlib\nprint(json.dumps([importlib.import_module(n).__file__ for n in {PASSED}]))\n"
    assert {Path(file).suffixes[-1] for file in json.loads(run("1", "-c", listed))} == {".so"}


def test_what_is_built_is_not_built_again() -> None:
    python, script = Path(sys.executable), ROOT / "libs/compiled/compiler.py"
    for where in ("installed", "build/compiled/wheel"):
        done = subprocess.run(
            [python, script, "--is-built", where], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout == "yes\n", where


@pytest.mark.parametrize(("variable", "form"), [("0", "plain"), ("1", "compiled"), ("", "compiled")])
def test_version_tells_which_form_runs(variable: str, form: str) -> None:
    found = json.loads(run(variable, "-m", "muster_cli", "version", "--json"))
    assert found["form"] == form
    assert found.get("not_compiled_because") == ("MUSTER_COMPILED is 0" if form == "plain" else None)


@pytest.mark.timeout(600)
# (The lives with sources replace a part of the core.)
@pytest.mark.parametrize("features", ["", GANGS, CALLBACKS], ids=lambda features: features or "any")
def test_both_forms_lead_the_same_lives_to_the_byte(features: str) -> None:
    arguments = ["-m", "simulation", "--lines", "--with", features, "--seeds", str(LIVES), "--steps", str(STEPS)]
    plain, compiled = ([json.loads(line) for line in run(form, *arguments).splitlines()] for form in FORMS.values())
    assert [each["failed"] for each in plain[:-1]] == [""] * LIVES
    assert compiled == plain


@pytest.mark.timeout(600)
def test_a_whole_muster_lives_the_same_in_both_forms_to_the_byte() -> None:
    code = "from virtual.play import play, stormy; played = play(stormy(11, 60.0)); print(played.asks, played.digest)"
    plain, compiled = (run(form, "-c", code) for form in FORMS.values())
    assert int(plain.split()[0]) > 50
    assert compiled == plain
