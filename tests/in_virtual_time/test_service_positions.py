"""Positions as text, and reads that wait for them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from muster_runtime.positions import PositionSettings, PositionWaits, ReadRefused, seconds, wait_of
from muster_si.positions import (
    NO_STAMP,
    TEXT_MAX,
    BadPosition,
    Position,
    Positions,
    Stamp,
    log_digest,
    newest,
)
from virtual.plugin import advance

HERE, ELSEWHERE = log_digest("here"), log_digest("elsewhere")


def at(before: int, step: int = 0, *, partition: int = 0, log: bytes = HERE) -> str:
    return Position(log, {partition: Stamp(before, step)}).text()


# ---- the text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_text_is_read_as_it_was_written(seed: int) -> None:
    rng = random.Random(seed)
    stamps = {
        rng.randrange(4096): Stamp(rng.randrange(2 ** rng.randrange(1, 63)), rng.randrange(2 ** rng.randrange(1, 40)))
        for _ in range(rng.randrange(1, 40))
    }
    text = Position(HERE, stamps).text()
    assert Position.parse(text) == Position(HERE, stamps)
    assert len(text) <= TEXT_MAX
    assert text.replace("-", "").replace("_", "").isalnum()
    assert text.isascii()


@pytest.mark.parametrize("seed", range(20))
def test_a_text_with_another_character_is_no_position(seed: int) -> None:
    rng = random.Random(seed)
    text = at(rng.randrange(10**6), rng.randrange(10**3), partition=rng.randrange(32))
    where = rng.randrange(len(text) - 1)
    other = rng.choice([each for each in "ABCabc012-_ ~" if each != text[where]])
    with pytest.raises(BadPosition, match="must be a position that Muster gave, got "):
        Position.parse(text[:where] + other + text[where + 1 :])


@pytest.mark.parametrize("text", ["", "x", "AAAA", "=" * 8, "é" * 8, "A" * (TEXT_MAX + 1), at(7)[:-2], at(7) + at(8)])
def test_other_texts_are_no_positions(text: str) -> None:
    with pytest.raises(BadPosition, match="got "):
        Position.parse(text)


def test_the_newest_position_includes_both() -> None:
    both = Position.parse(newest(at(7, 2), at(5, partition=3)))
    assert both.stamps == {0: (7, 2), 3: (5, 0)}
    assert newest(at(7, 2), at(7, 1)) == newest(at(7, 1), at(7, 2)) == at(7, 2)
    assert newest("", at(1)) == newest(at(1), "") == at(1)
    assert newest(at(9), at(1, log=ELSEWHERE)) == at(1, log=ELSEWHERE)  # the other log is the present one
    assert newest("?", at(1)) == at(1)


def test_a_position_of_very_many_partitions_keeps_the_newest_ones() -> None:
    kept = ""
    for partition in range(500):
        kept = newest(kept, at(2**62, 2**40, partition=partition))
    assert len(kept) <= TEXT_MAX
    assert 499 in Position.parse(kept).stamps


def test_an_answer_without_a_stamp_has_no_position() -> None:
    of_partition = Positions(HERE, 3)
    assert of_partition.text(NO_STAMP) == ""
    assert of_partition.text(Stamp(0, 1)) == at(0, 1, partition=3)
    assert of_partition.text(NO_STAMP) == ""


# ---- reads that wait -----------------------------------------------------------------------------------------------


class Partition:
    """A log partition that the test shows."""

    def __init__(self) -> None:
        self.stamp = NO_STAMP
        self._moved = asyncio.Event()

    def includes(self, stamp: Stamp) -> bool:
        return self.stamp >= stamp

    async def wait_included(self, stamp: Stamp) -> None:
        while not self.includes(stamp):
            await self._moved.wait()

    def show(self, before: int, step: int = 0) -> None:
        self.stamp = Stamp(before, step)
        self._moved.set()
        self._moved = asyncio.Event()


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.partitions = [Partition(), Partition()]
        self.ends = [100, 100]
        self.asked = 0
        self.waits = PositionWaits(
            "the view", PositionSettings(**settings), self.partitions, self._identity, self._end_of
        )

    async def _identity(self) -> str:
        return "here"

    async def _end_of(self, partition: int) -> int:
        self.asked += 1
        return self.ends[partition]


async def test_what_is_shown_needs_no_wait() -> None:
    bench = Bench()
    bench.partitions[0].show(7, 1)
    await bench.waits.wait(at(7, 1), 0, "ann")
    await bench.waits.wait(at(7, 0), 0, "ann")
    assert bench.waits.waiting == bench.asked == 0


async def test_a_read_waits_for_each_partition_of_its_positions() -> None:
    bench = Bench()
    bench.partitions[0].show(9)
    after = f"{at(7)}, {at(3, partition=1)}"
    read = asyncio.create_task(bench.waits.wait(after, 60, "ann"))
    await advance()
    assert bench.waits.waiting == 1
    bench.partitions[1].show(2)
    await asyncio.sleep(0)
    assert not read.done()
    bench.partitions[1].show(3)
    await read
    assert bench.waits.waiting == 0


async def test_a_read_that_waits_in_vain_says_how_far_behind_it_is() -> None:
    bench = Bench()
    bench.partitions[0].show(5)
    with pytest.raises(
        ReadRefused, match="the view has not reached Muster-After in 0 s: it is 2 requests behind"
    ) as no:
        await bench.waits.wait(at(7), 0, "ann")
    assert no.value.status == 503
    with pytest.raises(ReadRefused, match="it lacks what was decided since the last request"):
        await bench.waits.wait(at(5, 1), 0, "ann")
    with pytest.raises(ReadRefused, match=r"in 0\.01 s"):  # the setting bounds what the client allows
        await Bench(wait_max_s=0.01).waits.wait(at(7), 1e9, "ann")
    with pytest.raises(ReadRefused, match=r"in 0\.01 s"):
        await Bench(wait_s=0.01).waits.wait(at(7), None, "ann")


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ("nonsense", "Muster-After: must be a position that Muster gave, got 'nonsense'"),
        (at(1, log=ELSEWHERE), "Muster-After: must be a position of this Muster's log, got one of another log"),
        (at(1, partition=2), "got one of another log"),
        (at(101), r"Muster-After: must be a position up to the log's end, got one of the future \(1 requests behind"),
    ],
)
async def test_a_position_that_is_none_is_refused(after: str, why: str) -> None:
    with pytest.raises(ReadRefused, match=why) as no:
        await Bench().waits.wait(after, 60, "ann")
    assert no.value.status == 400


async def test_stamps_of_a_copied_log_may_be_behind_its_end() -> None:
    """What is shown is never of the future, whatever the offsets of the requests are."""
    bench = Bench()
    bench.partitions[0].show(500, 3)
    with pytest.raises(ReadRefused) as no:
        await bench.waits.wait(at(500, 4), 0, "ann")
    assert no.value.status == 503


async def test_the_waiting_reads_of_a_caller_and_of_all_are_bounded() -> None:
    bench = Bench(waiting_per_caller_max=2, waiting_max=3)
    reads = [asyncio.create_task(bench.waits.wait(at(7), 60, caller)) for caller in ("ann", "ann", "bob")]
    await advance()
    assert bench.waits.waiting == 3
    with pytest.raises(ReadRefused, match="2 reads of this caller wait for a position already: try again") as no:
        await bench.waits.wait(at(7), 60, "ann")
    assert (no.value.status, no.value.is_over_limit) == (503, True)
    with pytest.raises(ReadRefused, match="3 reads wait for a position already"):
        await bench.waits.wait(at(7), 60, "carl")
    await bench.waits.wait(at(0), 60, "ann")  # what need not wait has no place
    reads.pop().cancel()
    await advance()
    assert bench.waits.waiting == 2
    reads.append(asyncio.create_task(bench.waits.wait(at(7), 60, "carl")))
    await advance()
    assert bench.waits.waiting == 3
    bench.partitions[0].show(7)
    await asyncio.gather(*reads)
    assert bench.waits.waiting == 0


def test_how_long_a_client_waits() -> None:
    assert (seconds(""), seconds("0"), seconds("2.5")) == (None, 0, 2.5)
    for text in ("-1", "x", "nan", "inf"):
        with pytest.raises(ReadRefused, match=f"Muster-Wait: must be a number of seconds from 0, got '{text}'"):
            seconds(text)
    assert wait_of("", None) is None
    assert wait_of("3", None) == 3
    assert wait_of("", 10.0) == pytest.approx(9.8)  # the answer comes before the call's own end
    assert wait_of("3", 1.0) == pytest.approx(0.9)
    assert wait_of("", -1.0) == 0


# ---- over HTTP -----------------------------------------------------------------------------------------------------


class Asked:
    """A request for the waits, and its answer."""

    def __init__(self, method: str = "GET", **headers: str) -> None:
        self.scope = {
            "type": "http",
            "method": method,
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "client": ("10.0.0.1", 1),
        }
        self.left = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def authorize_cached(self, bench: Bench) -> bool:
        return await bench.waits.admit_http(self.scope, self.receive, self.send)


async def test_a_request_without_a_position_costs_nothing() -> None:
    assert await Asked().authorize_cached(Bench())


async def test_a_request_is_refused_with_its_status_and_a_hint() -> None:
    late = Asked(muster_after=at(7), muster_wait="0")
    assert not await late.authorize_cached(Bench())
    start, body = late.sent
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert b"7 requests behind" in body["body"]
    wrong = Asked(muster_after="?")
    assert not await wrong.authorize_cached(Bench())
    assert wrong.sent[0]["status"] == 400
    assert b"retry-after" not in dict(wrong.sent[0]["headers"])


async def test_the_place_of_a_client_that_leaves_is_free() -> None:
    bench, asked = Bench(), Asked(muster_after=at(7), muster_wait="60")
    read = asyncio.create_task(asked.authorize_cached(bench))
    await advance()
    assert bench.waits.waiting == 1
    asked.left.set()
    assert not await read
    assert (bench.waits.waiting, asked.sent) == (0, [])


async def test_callers_behind_a_gateway_are_counted_apart() -> None:
    bench = Bench(waiting_per_caller_max=1)
    waiting = {"muster_after": at(7), "muster_wait": "60"}
    asked = [
        Asked(**waiting, x_muster_identity="ann", x_forwarded_for="10.0.0.8"),
        Asked(**waiting, x_muster_identity="bob", x_forwarded_for="10.0.0.8"),
        Asked(**waiting, x_muster_identity="ann", x_forwarded_for="10.0.0.9"),
    ]
    reads = [asyncio.create_task(each.authorize_cached(bench)) for each in asked]
    await advance()
    assert bench.waits.waiting == 3
    again = Asked(**waiting, x_muster_identity="ann", x_forwarded_for="10.0.0.8")
    assert not await again.authorize_cached(bench)
    assert again.sent[0]["status"] == 503
    bench.partitions[0].show(7)
    assert await asyncio.gather(*reads) == [True, True, True]
