"""The number of partitions: what the settings name, what the log has, or the default of a new log."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from muster_bus.clock import SystemClock
from muster_bus.log_factory import make_log
from muster_bus.settings import LogSettings
from muster_cli.existing_log import with_existing_partitions
from muster_cli.main import run


@pytest.mark.parametrize(("backend", "expected"), [("kafka", 32), ("sqlite", 4), ("memory", 4)])
def test_the_default_of_a_new_log(backend: str, expected: int) -> None:
    settings = LogSettings.model_validate({"backend": backend})
    assert settings.partitions == expected
    assert settings.topics().partitions == expected


async def made(settings: LogSettings) -> None:
    log = make_log(settings, SystemClock())
    await log.start()
    await log.close()


async def test_an_embedded_log_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    absent = LogSettings(sqlite_path=path)
    assert await with_existing_partitions(absent, SystemClock()) is absent
    await made(LogSettings(sqlite_path=path, partitions=3))
    present = await with_existing_partitions(absent, SystemClock())
    assert present.partitions == 3
    await made(present)
    named = LogSettings(sqlite_path=path, partitions=5)
    assert await with_existing_partitions(named, SystemClock()) is named, "opening it says that the numbers differ"


async def test_what_is_no_log_is_left_to_opening_it(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_text("no log")
    settings = LogSettings(sqlite_path=path)
    assert await with_existing_partitions(settings, SystemClock()) is settings


@pytest.mark.kafka
async def test_topics_on_kafka_keep_their_number(kafka_bootstrap: str) -> None:
    place = {
        "backend": "kafka",
        "kafka_bootstrap_servers": kafka_bootstrap,
        "topic_prefix": f"t{secrets.token_hex(4)}.",
        "derived_topics": False,
    }
    absent = LogSettings.model_validate(place)
    assert (await with_existing_partitions(absent, SystemClock())).partitions == 32
    await made(LogSettings.model_validate({**place, "partitions": 3}))
    present = await with_existing_partitions(absent, SystemClock())
    assert present.partitions == 3
    await made(present)


@pytest.mark.kafka
def test_topics_of_another_number_need_no_setting(
    kafka_bootstrap: str, capsys: pytest.CaptureFixture[str], logs_as_before: None
) -> None:
    place = [
        *("--set", "log.backend=kafka", "--set", f"log.kafka_bootstrap_servers={kafka_bootstrap}"),
        *("--set", f"log.topic_prefix=t{secrets.token_hex(4)}.", "--set", "log.derived_topics=false"),
    ]
    assert run(["topics", "create", *place, "--set", "log.partitions=3"]) == 0
    for command in ("verify", "create"):
        assert run(["topics", command, *place]) == 0
    assert "si.state.v1: 3 partitions" in capsys.readouterr().out
    assert run(["topics", "verify", *place, "--set", "log.partitions=4"]) == 1
    assert "has 3 partitions, configured are 4" in capsys.readouterr().err
