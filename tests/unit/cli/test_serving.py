"""The data directory of `muster up`, and the limits that a process sets before it serves."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from muster_cli.bootstrap import data_lines
from muster_cli.settings import embedded_defaults, load

IN = Path("/in")
USUAL = "data   /in   log.db, sessions.db, history/**/*.parquet"
LESS = "data   /in   log.db, sessions.db"


@pytest.mark.parametrize(
    ("toml", "lines"),
    [
        ("", [USUAL]),
        ("[publisher.sinks.parquet]\nroll_s = 5", [USUAL]),
        ("[publisher]\nparquet_dir = '/out'", [LESS, "history   parquet in /out"]),
        ("[publisher.sinks.parquet]\nlocation = 's3://bucket/a?endpoint=http://h:1'", [LESS, "history   parquet"]),
        (
            "[log]\nsqlite_path = '/out/log.db'\n[gateway]\nsessions_url = 'redis://:s3cret@host/0'",
            ["data   /in   history/**/*.parquet"],
        ),
        (
            "publisher = {postgres_dsn = 'postgresql://u:s3cret@h', sinks.mine = {kind = 'jsonl', location = '/out'}}",
            [USUAL, "history   postgres, mine (jsonl) in /out"],
        ),
    ],
)
def test_the_banner_names_what_is_there_and_no_secrets(toml: str, lines: list[str], tmp_path: Path) -> None:
    file = tmp_path / "muster.toml"
    file.write_text(toml)
    settings = load(file, (), defaults=embedded_defaults(IN), environment={}).values
    assert data_lines(settings, IN) == lines


@pytest.mark.parametrize(("soft", "hard", "then"), [(256, 512, 512), (256, 256, 256)])
def test_it_takes_as_many_files_as_it_may(soft: int, hard: int, then: int) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= hard
    script = (
        "import resource; from muster_cli.bootstrap import _raise_open_file_limit\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); _raise_open_file_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == str((then, hard))
