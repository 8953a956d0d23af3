"""GET /ws/v1/audit: the audit trail in pages, with the filters of muster.v1.Audit, for the role admin only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec
import pytest
from integration.gateway_rig import Rig
from muster_bus.damage import DamagedParts
from muster_bus.log import OutRecord
from muster_client.audit_client import AuditClient, AuditQuery
from muster_gateway.audit_codec import AuditAttempt, AuditResult, encode_entry
from muster_gateway.audit_pages import AuditPages
from muster_gateway.audit_reader import AuditLogReader
from muster_gateway.service import Gateway
from muster_rest.shapes.audit import AuditPageDao
from waiting import eventually

OPS, READER = "ops-token-0123456789", "reader-token-0123456789"
TOKENS = {"ops": {"role": "admin", "token": OPS}, "reader": {"role": "read", "token": READER}}
SECOND = 1_000_000_000
ENTRIES = 25

Ask = Callable[..., Any]


@pytest.fixture
async def gateway(world: Rig) -> Gateway:
    """A gateway whose log has entries of three RMs, one a second."""
    writer = await world.log.writer("test")
    try:
        for number in range(ENTRIES):
            rm_id = f"rm-{number % 3}"
            attempt = AuditAttempt(
                "ann", "token", "10.0.0.1", "grpc", "/a/B", "pause", rm_id, AuditResult(1 + number % 2), "why"
            )
            value = encode_entry(attempt, f"test/{number}", "test", (1_000 + number) * SECOND)
            await writer.append(OutRecord(world.topics.audit, world.topics.partition_of(rm_id), rm_id.encode(), value))
    finally:
        await writer.close()
    return await world.gateway(tokens=TOKENS, http_address="127.0.0.1:0")


@pytest.fixture
async def ask(gateway: Gateway) -> AsyncIterator[Ask]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.http_port}") as session:

        async def asked(token: str = OPS, method: str = "GET", **query: Any) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {token}"}
            parameters = {name.rstrip("_"): str(value) for name, value in query.items()}
            async with session.request(method, "/ws/v1/audit", params=parameters, headers=headers) as answer:
                return answer.status, await answer.json() if method == "GET" else await answer.read()

        yield asked


def numbers(page: Any) -> list[str]:
    return [each["id"] for each in page["entries"] if each["gatewayId"] == "test"]


async def test_pages_have_each_entry_once_in_the_order_of_time(ask: Ask) -> None:
    found: list[str] = []
    after, more = "", True
    while more:
        status, page = await ask(identity="ann", limit=4, after=after)
        assert status == 200
        msgspec.convert(page, AuditPageDao)
        found += numbers(page)
        assert len(page["entries"]) <= 4
        after, more = page["next"], page["more"]
    assert found == [f"test/{number}" for number in range(ENTRIES)]
    # what comes later is behind the last page
    await ask(READER)

    async def later() -> Any:
        _, page = await ask(after=after)
        return next((each for each in page["entries"] if each["identity"] == "reader"), None)

    refused = await eventually(later, "the refused attempt is on the log")
    assert (refused["method"], refused["result"], refused["door"]) == ("GET /ws/v1/audit", "refused", "http")


async def test_the_filters_are_those_of_grpc(gateway: Gateway, ask: Ask) -> None:
    queries = [
        ({"rm": "rm-1"}, AuditQuery(rm_id="rm-1")),
        ({"identity": "ann"}, AuditQuery(identity="ann")),
        ({"identity": "bob"}, AuditQuery(identity="bob")),
        ({"action": "pause", "result": "refused"}, AuditQuery(action="pause", result="refused")),
        ({"rm": "rm-2", "from_": 1_010, "to": 1_020}, AuditQuery("rm-2", "", "", "", 1_010 * SECOND, 1_020 * SECOND)),
    ]
    async with AuditClient(f"127.0.0.1:{gateway.grpc_port}", metadata=(("authorization", f"Bearer {OPS}"),)) as client:
        for query, wanted in queries:
            _, page = await ask(**query, limit=1_000)
            same = [each["id"] async for batch in client.read(wanted) for each in batch if each["gateway_id"] == "test"]
            assert numbers(page) == same, query
    _, page = await ask(from_="1970-01-01T00:16:44+00:00", to="1970-01-01T01:16:46+01:00")
    assert numbers(page) == ["test/4", "test/5"]


async def test_it_is_for_admins_and_is_audited(ask: Ask) -> None:
    assert (await ask(READER))[0] == 403
    assert (await ask("wrong-token-0123456789"))[0] == 401
    assert (await ask(method="HEAD"))[0] == 200
    assert (await ask(method="POST"))[0] == 405

    async def audited() -> bool:
        _, page = await ask(identity="ops")
        found = {(each["method"], each["action"], each["result"]) for each in page["entries"]}
        return ("HEAD /ws/v1/audit", "admin", "accepted") in found

    await eventually(audited, "the read is on the log")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("result", "maybe", "result 'maybe': expected one of accepted, refused, failed"),
        ("limit", "0", "limit '0': expected a number from 1 to 1,000"),
        ("limit", "1001", "expected a number from 1 to 1,000"),
        ("limit", "x", "expected a number from 1 to 1,000"),
        ("after", "1.2.3.4.5.6.7", "after '1.2.3.4.5.6.7': expected the next of a page"),
        ("after", "-1.0", "expected the next of a page"),
        ("from", "yesterday", "from 'yesterday': expected seconds since 1970 or RFC 3339"),
        ("to", "2026-01-31T08:00:00", "expected seconds since 1970 or RFC 3339"),
        ("to", "-1", "expected seconds since 1970 or RFC 3339"),
        ("to", "9e999999", "expected seconds since 1970 or RFC 3339"),
        ("to", "nan", "expected seconds since 1970 or RFC 3339"),
    ],
)
async def test_a_wrong_parameter_is_named(ask: Ask, name: str, value: str, said: str) -> None:
    status, answer = await ask(**{name: value})
    assert status == 400
    assert said in answer["message"]


async def test_a_page_looks_at_so_many_entries(gateway: Gateway, world: Rig) -> None:
    pages = AuditPages(AuditLogReader(world.log, world.topics, DamagedParts("they are not shown")), examined_max=10)
    found: list[str] = []
    after, looked, more = "", 0, True
    while more:
        page = msgspec.json.decode(await pages.answer(f"rm=rm-1&after={after}".encode()))
        found += numbers(page)
        after, more, looked = page["next"], page["more"], looked + 1
    assert looked == 3, "25 entries, ten for each page"
    assert found == [f"test/{number}" for number in range(1, ENTRIES, 3)]


async def test_few_read_it_at_a_time(gateway: Gateway, ask: Ask) -> None:
    trail = gateway._trail
    trail._reads = 8
    status, answer = await ask()
    assert status == 503
    assert "8 calls read the audit trail" in answer["message"]
    trail._reads = 0
    results = await asyncio.gather(*(ask(limit=1) for _ in range(6)))
    assert {status for status, _ in results} == {200}
    assert trail._reads == 0
