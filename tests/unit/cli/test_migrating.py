"""What `muster migrate` says of history and usage, which are not on the log: judged from the new Muster's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from muster_cli.errors import UsageError
from muster_cli.migrate import history_and_usage_lines
from muster_cli.settings import MusterSettings, embedded_defaults, load

KAFKA = {"backend": "kafka"}


def settings(**sections: Any) -> MusterSettings:
    return MusterSettings.model_validate({"log": KAFKA, **sections})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data" / "history").mkdir(parents=True)
    return tmp_path / "data"


def test_without_a_store_history_ends_and_the_remedy_is_named(data: Path) -> None:
    history, usage = history_and_usage_lines(data, settings())
    assert history.startswith("history: none configured (publisher.sinks): ")
    assert history.endswith(f"set publisher.sinks.parquet.location to {data / 'history'}")
    assert usage.startswith("usage: start `muster derive`")


def test_the_old_folder_goes_on(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    for location in (str(data / "history"), "data/history"):
        history, _ = history_and_usage_lines(data, settings(publisher={"sinks": {"parquet": {"location": location}}}))
        assert history == f"history: goes on in parquet ({location})"


def test_another_store_leaves_the_old_folder(data: Path) -> None:
    secret = "postgresql://muster:hidden@db/muster"
    there = settings(publisher={"sinks": {"parquet": {"location": "/srv/new"}}, "postgres_dsn": secret})
    history, _ = history_and_usage_lines(data, there)
    assert history.startswith("history: postgres, parquet (/srv/new); the old one stays in ")
    assert "hidden" not in history
    assert history_and_usage_lines(None, there)[0] == "history: postgres, parquet (/srv/new)"


def test_a_data_directory_has_its_own(data: Path, tmp_path: Path) -> None:
    there = load(None, [], defaults=embedded_defaults(tmp_path / "new"), environment={}).values
    history, usage = history_and_usage_lines(data, there)
    assert f"parquet ({tmp_path / 'new' / 'history'})" in history
    assert f"the old one stays in {data / 'history'}" in history
    assert usage == "usage: made by muster up"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"log": {**KAFKA, "derived_topics": False}}, "usage: none (log.derived_topics is false)"),
        ({}, "usage: start `muster derive`: it makes usage from the events that were copied, and from new ones"),
    ],
)
def test_usage(sections: dict[str, Any], said: str) -> None:
    assert history_and_usage_lines(None, settings(**sections))[1] == said


def test_a_store_that_cannot_be_used_is_named_before_anything_is_copied(data: Path) -> None:
    with pytest.raises(UsageError, match="both name a store"):
        history_and_usage_lines(
            data, settings(publisher={"parquet_dir": "/a", "sinks": {"parquet": {"location": "/b"}}})
        )
