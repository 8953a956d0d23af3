"""The wheel of the compiled form, in an empty environment beside that of Muster."""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from dist.test_dist import ROOT, Installed, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("muster_compiled") is None, reason="`make test-compiled` compiles first"),
]


def test_beside_muster_it_is_what_runs(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    subprocess.run([ROOT / "scripts/dist", dist], check=True, capture_output=True, env=environment())
    [wheel] = (ROOT / "build/compiled/wheel").glob("*.whl")
    (dist / wheel.name).write_bytes(wheel.read_bytes())
    muster = Installed(tmp_path / "environment", dist, "muster-compiled")
    assert json.loads(muster.run("muster", "version", "--json").stdout)["form"] == "compiled"
    muster.run("python", "-m", "pip", "check")
    shown = muster.run("muster", "demo", "--data-dir", tmp_path / "data").stdout
    assert "Every task is accounted for exactly once." in shown
