"""Every command and program of the tutorials runs as their pages say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import duckdb
import pytest
from muster_replay.local_process import free_ports
from snippets import ROOT, Reader, blocks, matches

TUTORIALS = ROOT / "docs" / "tutorials"
# Those that need more than a folder have a test of their own.
OWN = {"index.md", "from-laptop-to-kafka.md", "plugin.md"}
PAGES = sorted(path.name for path in TUTORIALS.glob("*.md") if path.name not in OWN)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Callable[..., Reader]]:
    readers = []

    def make(**environment: str) -> Reader:
        readers.append(Reader(tmp_path, environment))
        return readers[-1]

    yield make
    for each in readers:
        each.close()


@pytest.mark.parametrize("page", PAGES)
async def test_a_tutorial_runs_as_written(page: str, reader: Callable[..., Reader]) -> None:
    assert await reader().read((TUTORIALS / page).read_text(encoding="utf-8")) > 1


async def test_the_plugin_is_installed_and_runs(tmp_path: Path, reader: Callable[..., Reader]) -> None:
    # (Into a folder of its own, and without downloads: Muster and the builder are here.)
    there = tmp_path / "installed"
    pip = {"PIP_TARGET": str(there), "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
    one = reader(PYTHONPATH=str(there), PIP_DISABLE_PIP_VERSION_CHECK="1", **pip)
    assert await one.read((TUTORIALS / "plugin.md").read_text(encoding="utf-8")) > 1


@pytest.mark.kafka
async def test_the_cluster_moves_to_kafka(kafka_bootstrap: str, tmp_path: Path, reader: Callable[..., Reader]) -> None:
    scheduler, publisher, publisher_grpc, view, derive = (f"127.0.0.1:{port}" for port in free_ports(5))
    text = (TUTORIALS / "from-laptop-to-kafka.md").read_text(encoding="utf-8")
    address = 'kafka_bootstrap_servers = "127.0.0.1:9092"'
    assert text.count(address) == 1
    here = f'kafka_bootstrap_servers = "{kafka_bootstrap}"\ntopic_prefix = "tutorial-{uuid4().hex[:8]}."'
    one = reader(
        MUSTER_SCHEDULER__HTTP_ADDRESS=scheduler,
        MUSTER_PUBLISHER__HTTP_ADDRESS=publisher,
        MUSTER_PUBLISHER__GRPC_ADDRESS=publisher_grpc,
        MUSTER_VIEW__HTTP_ADDRESS=view,
        MUSTER_DERIVE__HTTP_ADDRESS=derive,
        MUSTER_VIEW__PUBLISHER_URL=f"http://{publisher}",
        MUSTER_GATEWAY__VIEW_URL=f"http://{view}",
        MUSTER_GATEWAY__PUBLISHER_URL=f"http://{publisher}",
        MUSTER_GATEWAY__PUBLISHER_GRPC_URL=f"grpc://{publisher_grpc}",
    )
    # (The servers start in another folder than the page's reader.)
    location = 'location = "data/history"'
    assert text.count(location) == 1
    history = tmp_path / "data" / "history"
    text = text.replace(address, here).replace(location, f'location = "{history}"')
    # (With one event in memory, what ended before is answered from there.)
    text = text.replace("[publisher.sinks.parquet]", "[publisher]\nring_capacity = 1\n\n[publisher.sinks.parquet]")
    assert await one.read(text) > 1
    # The new Muster goes on in the old one's history, and writes nothing again.
    stored, once, ended = duckdb.sql(
        "SELECT count(*), count(DISTINCT (rm, instance, id)), count(*) FILTER (object_id = 'old') "
        f"FROM read_parquet('{history}/**/*.parquet')"
    ).fetchall()[0]
    assert stored == once
    assert ended


@pytest.mark.parametrize("page", [*PAGES, "from-laptop-to-kafka.md", "plugin.md"])
def test_a_tutorial_shows_no_command_that_is_not_run(page: str) -> None:
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    assert text.count("```") == 2 * sum(block.language != "stop" for block in blocks(text)), "a fence is not read"
    unread = [block for block in blocks(text) if block.language not in {"sh", "stop", "mermaid"} and not block.title]
    assert unread == []


def test_an_output_may_leave_out_what_differs() -> None:
    assert matches("a…\n…\nz\n", "abc\n1\n2\nz  \n")
    assert matches("a…\n…\nz\n", "a\nz\n")
    assert not matches("a\nz\n", "a\n1\nz\n")
    assert not matches("a…\n…\nz\n", "abc\n1\n")
    assert not matches("a.c\n", "abc\n")


async def test_the_reader_sees_a_command_that_fails_or_prints_something_else(reader: Callable[..., Reader]) -> None:
    with pytest.raises(AssertionError, match="line 1"):
        await reader().read("```sh\nfalse; true | cat\n```\n")
    with pytest.raises(AssertionError, match="expected\na\n"):
        await reader().read('```sh\necho b\n```\n\n```text title="output"\na\n```\n')
