"""The default settings of commands, and the precedence of a user's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster_cli.settings import MusterSettings, embedded_defaults, load
from muster_cli.settings_loader import ResolvedSettings
from muster_event_publisher.errors import InvalidSinkSettings
from muster_event_publisher.history.registry import configured_stores


def _loaded(directory: Path, toml: str) -> ResolvedSettings[MusterSettings]:
    file = directory / "muster.toml"
    file.write_text(toml)
    return load(file, (), defaults=embedded_defaults(directory), environment={})


def test_a_table_of_the_parquet_store_goes_over_what_muster_up_has(tmp_path: Path) -> None:
    settings = _loaded(tmp_path, "[publisher.sinks.parquet]\nroll_s = 5\n").values
    assert configured_stores(settings.publisher) == {
        "parquet": ("parquet", {"location": str(tmp_path / "history"), "roll_s": 5}),
    }
    settings = _loaded(tmp_path, '[publisher.sinks.parquet]\nlocation = "/elsewhere"\n').values
    assert configured_stores(settings.publisher) == {"parquet": ("parquet", {"location": "/elsewhere"})}


def test_stores_of_other_names_stand_beside_it(tmp_path: Path) -> None:
    settings = _loaded(tmp_path, '[publisher.sinks.archive]\nkind = "parquet"\nlocation = "/elsewhere"\n').values
    wanted = configured_stores(settings.publisher)
    assert [(name, options["location"]) for name, (_, options) in wanted.items()] == [
        ("parquet", str(tmp_path / "history")),
        ("archive", "/elsewhere"),
    ]


def test_a_folder_that_the_user_named_twice_is_an_error(tmp_path: Path) -> None:
    settings = _loaded(tmp_path, '[publisher]\nparquet_dir = "/a"\n[publisher.sinks.parquet]\nlocation = "/b"\n').values
    with pytest.raises(InvalidSinkSettings, match="both name a store 'parquet'"):
        configured_stores(settings.publisher)
