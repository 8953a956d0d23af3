"""The commands of the page work as they are typed, one after the other in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
_BLOCK = re.compile(r"(?:^    .*\n)+", re.MULTILINE)


def test_the_commands_of_the_page_work_as_typed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "what-if.md").read_text(encoding="utf-8")
    blocks = [found[0].replace("\n    ", "\n")[4:] for found in _BLOCK.finditer(page)]
    wanted = [block for block in blocks if "muster simulate" in block]
    assert len(wanted) == 4
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in wanted:
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", block],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    assert (tmp_path / "report.html").stat().st_size > 1_000


def test_a_folder_without_a_queue_file_has_open_queues(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.mkdir()
    for name in ("nodes.csv.gz", "pods.csv.gz"):
        (trace / name).symlink_to(ROOT / "examples" / "openb" / name)
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "muster_cli", "simulate", str(trace), "--json", str(figures), "--tick-s", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "root.openb.be" in figures.read_text()
