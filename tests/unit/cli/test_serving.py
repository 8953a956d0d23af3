"""What `muster up` says of its data."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster_cli.serving import data_lines
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
