"""The informer for files: incomplete writes, directories, and paths that are no files."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest
from contract.informer_rigs import DEADLINE_S, context, told
from muster_core.external.errors import SourceSaysNonsense, SourceUnavailable
from muster_informers.contract import ChangeType, ListWatch
from muster_informers.sources import file
from muster_informers.sources.file import make_informer


def source_of(base: Path, **options: object) -> ListWatch:
    return make_informer({"poll_s": 0.01, "settle_s": 0.01, **options}, context(base))


async def ids_of(source: ListWatch) -> list[object]:
    return [document["id"] for document in (await source.list()).documents]


async def test_a_file_that_is_being_written_is_taken_when_it_rests(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("- id: a\n- id: b\n")
    source = source_of(tmp_path, path="hosts.yaml", settle_s=0.3)
    listing = await source.list()
    changes = asyncio.create_task(told(source, listing.cursor))
    await asyncio.sleep(0)
    with path.open("w") as writing:
        for name in ("a", "b", "c"):
            writing.write(f"- id: {name}\n")
            writing.flush()
            await asyncio.sleep(0.05)
            assert not changes.done()
    assert await changes == [(ChangeType.ADDED, "c")]


async def test_a_file_that_never_rests_is_away(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("[]\n")

    async def write() -> None:
        while True:
            with path.open("a") as opened:
                opened.write("#\n")
            await asyncio.sleep(0.002)

    writing = asyncio.create_task(write())
    with pytest.raises(SourceUnavailable, match=r"keeps changing for 0\.05 s"):
        await source_of(tmp_path, path="hosts.yaml", settle_s=0.05).list()
    writing.cancel()


async def test_the_same_size_at_the_same_time_is_seen_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_stat = file._as_stat
    monkeypatch.setattr(file, "_as_stat", lambda *given: as_stat(*given)._replace(changed_ns=(0, 0)))
    path = tmp_path / "hosts.json"
    path.write_text('[{"id": "a"}]')
    source = source_of(tmp_path, path="hosts.json", reread_s=0.05)
    listing = await source.list()
    path.write_text('[{"id": "b"}]')
    assert await told(source, listing.cursor) == [(ChangeType.DELETED, "a"), (ChangeType.ADDED, "b")]


async def test_touching_a_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text('[{"id": "a", "version": 1}]')
    source = source_of(tmp_path, path="hosts.json")
    cursor = (await source.list()).cursor
    async with aclosing(source.watch(cursor)) as watch:  # type: ignore[type-var]
        for text in ('[{"version": 1, "id": "a"}]', '[ {"id": "a", "version": 1} ]\n'):
            path.write_text(text)
            for _ in range(3):
                assert not await anext(watch)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("hosts.json", "", SourceSaysNonsense),
        ("hosts.json", '[{"id": "a"}', SourceSaysNonsense),
        ("hosts.json", "x" * 101, SourceSaysNonsense),
        ("other.json", "[]", SourceUnavailable),
    ],
)
async def test_files_that_are_not_taken(name: str, text: str, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(error, match=r"hosts\.json"):
        await source_of(tmp_path, path="hosts.json", max_bytes=100).list()


async def test_a_path_that_is_not_a_file_blocks_nothing(tmp_path: Path) -> None:
    (tmp_path / "directory.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("directory.json", "pipe.json"):
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(SourceUnavailable, match="not a file"):
                await source_of(tmp_path, path=name).list()
    with pytest.raises(SourceUnavailable, match="none of its files is an inventory"):
        await source_of(tmp_path, directory=".").list()


async def test_a_directory_is_one_inventory(tmp_path: Path) -> None:
    place = tmp_path / "hosts.d"
    source = source_of(tmp_path, directory="hosts.d")
    with pytest.raises(SourceUnavailable, match="No such file"):
        await source.list()
    place.mkdir()
    with pytest.raises(SourceUnavailable, match="none of its files is an inventory"):
        await source.list()
    (place / "b.yml").write_text("- id: b\n")
    (place / "a.ndjson").write_text('{"id": "a"}\n')
    (place / ".hidden.json").write_text("nonsense")
    (place / "README.md").write_text("nonsense")
    listing = await source.list()
    assert [document["id"] for document in listing.documents] == ["a", "b"]
    # 1. a new file, 2. an invalid file makes the listing invalid, 3. a removed file
    (place / "c.json").write_text('{"pools": [{"id": "tool"}]}')
    assert await told(source, listing.cursor) == [(ChangeType.ADDED, "tool")]
    (place / "c.json").write_text('{"pools": ')
    with pytest.raises(SourceSaysNonsense, match=r"c\.json, line 1"):
        await source.list()
    (place / "c.json").write_text("[]")
    listing = await source.list()
    (place / "b.yml").unlink()
    assert await told(source, listing.cursor) == [(ChangeType.DELETED, "b")]


async def test_a_directory_can_be_narrowed_to_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a.hosts").write_text("- id: a\n")
    (tmp_path / "b.json").write_text("nonsense")
    assert await ids_of(source_of(tmp_path, directory=".", pattern="*.hosts")) == ["a"]


async def test_a_link_can_be_moved_to_another_directory(tmp_path: Path) -> None:
    for version, name in (("v1", "a"), ("v2", "b")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "hosts.yaml").write_text(f"- id: {name}\n")
    (tmp_path / "data").symlink_to("v1")
    (tmp_path / "hosts.yaml").symlink_to("data/hosts.yaml")
    source = source_of(tmp_path, path="hosts.yaml")
    cursor = (await source.list()).cursor
    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").rename(tmp_path / "data")
    assert await told(source, cursor) == [(ChangeType.DELETED, "a"), (ChangeType.ADDED, "b")]
