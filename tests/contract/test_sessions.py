"""One contract, three stores of sessions: the words of muster_gateway.sessions.contract, tested on each; and on the one
in memory as a process of a simulation reaches it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from manual_clock import ManualClock
from muster_gateway.errors import SessionStoreDown
from muster_gateway.rm_lifecycle import RmLifecycleState
from muster_gateway.sessions import make_sessions
from muster_gateway.sessions import redis as redis_sessions
from muster_gateway.sessions.codec import from_json, to_json
from muster_gateway.sessions.contract import NOWHERE, Advance, Cursor, Seat, Session, SessionStore
from muster_gateway.sessions.memory import MemorySessions
from muster_gateway.settings import GatewaySettings
from muster_gateway.stream_kind import StreamKind
from pydantic import SecretStr
from redis.asyncio import Redis
from structlog.testing import capture_logs
from virtual.sessions import SessionsOfProcess

ALLOCATION, NODE, CALLBACK = StreamKind.ALLOCATION, StreamKind.NODE, StreamKind.CALLBACK


class Undisturbed:
    """See ``virtual.sessions.StoreFaults``: a turn of the loop, and no fault."""

    sessions_answer = True

    async def sessions_turn(self, *, writes: bool) -> None:
        await asyncio.sleep(0)


@dataclass
class Place:
    """A store, a second door to the same content, and time."""

    store: SessionStore
    again: Callable[[], Awaitable[SessionStore]]
    pass_time: Callable[[float], Awaitable[None]]


@pytest.fixture(params=["memory", "virtual", "sqlite", pytest.param("redis", marks=pytest.mark.redis)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    clock = ManualClock()
    url = {"memory": "memory:", "virtual": "memory:", "sqlite": f"sqlite://{tmp_path}/deep/sessions.db"}.get(
        request.param
    )
    if url is None:
        url = request.getfixturevalue("redis_url")
        # (A thousand steps at once take longer than two seconds on a busy machine.)
        request.getfixturevalue("monkeypatch").setattr(redis_sessions, "_TIMEOUT_S", 60.0)
    settings = GatewaySettings(sessions_url=SecretStr(url), sessions_prefix=f"test[{uuid.uuid4().hex}]:")
    opened: list[SessionStore] = []
    shared = MemorySessions(clock)

    async def open_store() -> SessionStore:
        if request.param == "memory" and opened:
            return opened[0]
        if request.param == "virtual":
            store: SessionStore = SessionsOfProcess(shared, Undisturbed())
        else:
            store = make_sessions(settings, clock)
        await store.start()
        opened.append(store)
        return store

    async def pass_time(seconds: float) -> None:
        clock.advance(seconds)
        if request.param == "redis":
            await _age(url, settings.sessions_prefix, seconds)

    yield Place(await open_store(), open_store, pass_time)
    for store in opened:
        await store.close()


async def _age(url: str, prefix: str, seconds: float) -> None:
    """Takes that much of their time from the leases. (Redis has a clock of its own, which no busy machine stops.)"""
    async with Redis.from_url(url, decode_responses=True) as redis:
        for key in [key async for key in redis.scan_iter(match="*lease:*") if key.startswith(prefix)]:
            left_ms = await redis.pttl(key)
            assert left_ms > 0, f"{key} does not end"
            await redis.pexpire(key, max(0, left_ms - round(seconds * 1000)))


def a_session(rm_id: str = "rm", **changes: object) -> Session:
    fields: dict[str, object] = {
        "rm_id": rm_id,
        "version": 0,
        "state": RmLifecycleState.RUNNING,
        "since_ns": 17,
        "state_reason": "registered",
        "announced": RmLifecycleState.INIT,
        "registered_at": Cursor(3, 40, 2),
    }
    return Session(**{**fields, **changes})  # type: ignore[arg-type]


async def test_a_stored_session_has_the_next_version(place: Place) -> None:
    session = a_session("rm/ä%", seats={ALLOCATION: Seat("gw", 4), NODE: Seat("", 1)}, state_reason='it\'s "so"\n')
    assert await place.store.get("rm/ä%") is None
    assert await place.store.compare_and_set(session)
    assert await place.store.get("rm/ä%") == replace(session, version=1)
    assert await (await place.again()).get("rm/ä%") == replace(session, version=1)


async def test_a_callback_streams_seat_cursor_and_owed_note_are_kept(place: Place) -> None:
    session = a_session(seats={CALLBACK: Seat("gw", 2)}, callbacks_announced=True)
    assert await place.store.compare_and_set(session)
    assert await place.store.advance([Advance("rm", CALLBACK, 2, Cursor(5, 50, 4))]) == [True]
    again = await place.again()
    stored = await again.get("rm")
    assert stored == replace(session, version=1)
    assert not stored.callbacks_owed
    assert await again.cursors("rm") == {CALLBACK: Cursor(5, 50, 4)}
    # its end raises the epoch: the cursor stays, and nobody moves it
    left = stored.vacated(CALLBACK)
    assert (left.seats[CALLBACK], left.callbacks_owed) == (Seat("", 3), True)
    assert await place.store.compare_and_set(left)
    assert await place.store.advance([Advance("rm", CALLBACK, 2, Cursor(6, 60, 5))]) == [False]
    assert await again.cursors("rm") == {CALLBACK: Cursor(5, 50, 4)}


def test_the_seats_of_other_streams_keep_their_epoch_when_they_are_vacated() -> None:
    seats = {ALLOCATION: Seat("gw", 4), NODE: Seat("gw", 1), CALLBACK: Seat("gw", 7)}
    left = a_session(seats=seats).vacated(ALLOCATION, CALLBACK)
    assert left.seats == {ALLOCATION: Seat("", 4), NODE: Seat("gw", 1), CALLBACK: Seat("", 8)}


async def test_all_lists_every_session_once(place: Place) -> None:
    for rm_id in ("b", "a", "c"):
        assert await place.store.compare_and_set(a_session(rm_id))
    assert await place.store.compare_and_set(a_session("a", version=1))
    assert sorted(session.rm_id for session in await place.store.all()) == ["a", "b", "c"]


async def test_of_two_writers_with_one_version_one_wins(place: Place) -> None:
    other = await place.again()
    assert await place.store.compare_and_set(a_session())
    mine = a_session(version=1, state=RmLifecycleState.DISCONNECTED, state_reason="mine")
    yours = a_session(version=1, state=RmLifecycleState.STOPPED, state_reason="yours")
    outcomes = await asyncio.gather(place.store.compare_and_set(mine), other.compare_and_set(yours))
    assert sorted(outcomes) == [False, True]
    stored = await place.store.get("rm")
    assert stored == replace(mine if outcomes[0] else yours, version=2)


async def test_version_zero_means_there_must_be_none(place: Place) -> None:
    assert await place.store.compare_and_set(a_session())
    assert not await place.store.compare_and_set(a_session(state=RmLifecycleState.STOPPED))
    assert not await place.store.compare_and_set(a_session("unknown", version=1))
    assert (await place.store.get("rm")) == a_session(version=1)
    assert await place.store.get("unknown") is None


async def test_a_cursor_moves_for_the_seats_epoch_only(place: Place) -> None:
    await place.store.compare_and_set(a_session(seats={ALLOCATION: Seat("gw", 2), NODE: Seat("gw", 1)}))
    moved = await place.store.advance(
        [
            Advance("rm", ALLOCATION, 2, Cursor(7, 70, 6)),
            Advance("rm", NODE, 2, Cursor(8, 80, 7)),
            Advance("unknown", NODE, 1, Cursor(9, 90, 8)),
            Advance("rm", StreamKind.APPLICATION, 0, Cursor(9, 90, 8)),
        ]
    )
    assert moved == [True, False, False, False]
    assert await place.store.cursors("rm") == {ALLOCATION: Cursor(7, 70, 6)}
    assert await place.store.cursors("unknown") == {}


async def test_a_raised_epoch_stops_the_old_holder_but_keeps_the_cursor(place: Place) -> None:
    await place.store.compare_and_set(a_session(seats={ALLOCATION: Seat("gw1", 1)}))
    assert await place.store.advance([Advance("rm", ALLOCATION, 1, Cursor(5, 50, 4))]) == [True]
    await place.store.compare_and_set(a_session(version=1, seats={ALLOCATION: Seat("gw2", 2)}))
    assert await place.store.advance([Advance("rm", ALLOCATION, 1, Cursor(6, 60, 5))]) == [False]
    assert await (await place.again()).cursors("rm") == {ALLOCATION: Cursor(5, 50, 4)}
    assert await place.store.advance([Advance("rm", ALLOCATION, 2, NOWHERE)]) == [True]
    assert await place.store.cursors("rm") == {ALLOCATION: NOWHERE}


async def test_no_moves_are_no_work(place: Place) -> None:
    assert await place.store.advance([]) == []


async def test_a_lease_lives_as_long_as_it_is_renewed(place: Place) -> None:
    await place.store.renew_lease("gw*1", 200)
    await place.store.renew_lease("gw2", 3_000)
    assert await place.store.live_gateways() == {"gw*1", "gw2"}
    await place.pass_time(120)
    await place.store.renew_lease("gw*1", 200)
    await place.pass_time(120)
    assert await (await place.again()).live_gateways() == {"gw*1", "gw2"}
    await place.pass_time(120)
    assert await place.store.live_gateways() == {"gw2"}
    await place.store.drop_lease("gw2")
    await place.store.drop_lease("never there")
    assert await place.store.live_gateways() == frozenset()


async def test_the_name_of_the_first_complete_fill_stays(place: Place) -> None:
    store = place.store
    await store.begin_fill("one")
    await store.begin_fill("two")
    assert await store.filled() == ""
    assert await store.end_fill("two")
    assert await store.end_fill("one")
    assert await store.filled() == "two"
    assert await (await place.again()).filled() == "two"
    assert not await store.end_fill("one"), "it has ended"


async def test_a_fill_is_in_vain_when_the_store_is_cleared_meanwhile(place: Place) -> None:
    store = place.store
    await store.begin_fill("one")
    await store.clear()
    assert not await store.end_fill("one")
    assert await store.filled() == ""


async def test_the_logs_mark_is_kept_and_the_last_one_counts(place: Place) -> None:
    assert await place.store.log_mark() == ""
    await place.store.store_log_mark("one")
    await place.store.store_log_mark("two")
    assert await place.store.log_mark() == "two"
    assert await (await place.again()).log_mark() == "two"


async def test_a_cleared_store_has_nothing_but_leases(place: Place) -> None:
    store = place.store
    await store.compare_and_set(a_session(seats={ALLOCATION: Seat("gw", 1)}))
    assert await store.advance([Advance("rm", ALLOCATION, 1, Cursor(1, 2, 1))]) == [True]
    await store.begin_fill("one")
    await store.end_fill("one")
    await store.store_log_mark("one")
    await store.renew_lease("gw", 30.0)
    await store.clear()
    assert await store.all() == []
    assert await store.get("rm") is None
    assert await store.cursors("rm") == {}
    assert (await store.filled(), await store.log_mark()) == ("", "")
    assert await store.live_gateways() == {"gw"}
    assert await store.compare_and_set(a_session())


async def test_a_store_that_answers_is_healthy(place: Place) -> None:
    assert await place.store.healthy()


def test_gateways_of_two_versions_read_what_the_other_writes() -> None:
    seats = {ALLOCATION: Seat("g1", 2), NODE: Seat("", 3), CALLBACK: Seat("g2", 4)}
    session = a_session(seats=seats, callbacks_announced=True)
    text = to_json(session)
    assert from_json(text, 0) == session
    written = json.loads(text)
    assert set(written["seats"]) == {"1", "3"}, "an older one knows the streams of SI only"
    # What an older one writes, and what a newer one may.
    del written["more_seats"], written["callbacks_told"]
    assert from_json(json.dumps(written), 0) == replace(
        session, seats={ALLOCATION: seats[ALLOCATION], NODE: seats[NODE]}, callbacks_announced=False
    )
    written["more_seats"], written["something"] = {"4": ["g2", 4], "5": ["g3", 1]}, 7
    assert from_json(json.dumps(written), 0).seats == seats


async def test_a_thousand_steps_at_once_all_get_their_turn(place: Place) -> None:
    names = [f"rm-{number}" for number in range(1_000)]
    done = await asyncio.gather(*(place.store.compare_and_set(a_session(name)) for name in names))
    assert all(done)
    found = await asyncio.gather(*(place.store.get(name) for name in names))
    assert [session.rm_id for session in found if session is not None] == names


async def test_a_redis_that_is_away_says_so_without_its_password() -> None:
    settings = GatewaySettings(sessions_url=SecretStr("redis://:hunter2@127.0.0.1:1/0"))
    store = make_sessions(settings, ManualClock())
    with pytest.raises(SessionStoreDown) as caught:
        await store.start()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(settings)
    assert not await store.healthy()
    await store.close()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://:hunter2@host/", "scheme 'mysql', expected memory, sqlite, redis or rediss"),
        ("hunter2", "scheme '', expected memory, sqlite, redis or rediss"),
        ("redis://:hunter2@host:port/0", "expected host:port"),
        ("redis://:hunter2@[host/0", "expected host:port"),
        ("sqlite:", "expected sqlite:///path"),
    ],
)
def test_a_wrong_address_is_refused_without_being_shown(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        GatewaySettings(sessions_url=SecretStr(url))
    assert "hunter2" not in str(caught.value)


# ---- a damaged file ------------------------------------------------------------------------------------------------


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all " * 500)


def torn(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)


def wrong_words(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE session SET content = '{\"rm\": 1}'")
    connection.close()


@pytest.mark.parametrize("spoil", [garbage, torn, wrong_words])
async def test_a_damaged_file_is_set_aside_and_the_store_begins_anew(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "sessions.db"
    settings = GatewaySettings(sessions_url=SecretStr(f"sqlite://{path}"))
    store = make_sessions(settings, ManualClock())
    await store.start()
    await store.compare_and_set(a_session())
    await store.begin_fill("one")
    await store.end_fill("one")
    await store.close()
    spoil(path)
    damaged = path.read_bytes()
    store = make_sessions(settings, ManualClock())
    with capture_logs() as lines:
        await store.start()
    assert [line["log_level"] for line in lines if "set aside" in line["event"]] == ["warning"]
    (aside,) = tmp_path.glob("sessions.db.damaged-2024*")  # noqa: ASYNC240 - a test
    assert aside.read_bytes() == damaged
    assert not await store.filled(), "the gateway fills it from the log"
    assert await store.compare_and_set(a_session())
    await store.close()
