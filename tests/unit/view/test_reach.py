"""An identity sees its own RMs and partitions only; others do not exist for it. The tests go through all routes."""

from __future__ import annotations

import re

import httpx
import pytest
from muster_rest.route import Route
from muster_rest.view_routes import VIEW
from muster_runtime.identity import Right
from muster_runtime.read_scope import ReadScope
from unit.view.recorded import Bench, client_of

MINE = dict(ReadScope((("mi*", "*"),)).header())
PART = dict(ReadScope((("mine", "gpu"),)).header())
NONE = dict(ReadScope((("absent", "*"),)).header())
SAMPLES = {"partition": "default", "queue": "root", "state": "active", "profile": "cmdline", "user": "u", "group": "g"}
# Parameters of endpoints about an RM: they take its id, or need the right to read one.
ROUTES = [
    route
    for route in VIEW
    if route.right in (Right.READ, Right.OPERATE)
    and not route.moved_to
    and any(each.name == "rm" for each in route.parameters)
]
# Without a named RM, these answer for all RMs.
OF_ALL = {"/ws/v1/scheduler/healthcheck", "/ws/v1/metrics"}


def _path(route: Route) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: SAMPLES.get(name[1], "x"), route.path)


def test_every_endpoint_about_rms_can_name_one() -> None:
    others = {route.path for route in VIEW if route.right is Right.READ} - {route.path for route in ROUTES}
    assert others == {"/ws/v1/validate-conf"}, "validate-conf reads its body only"


async def _asked(client: httpx.AsyncClient, route: Route, headers: dict[bytes, bytes], rm: str = "") -> httpx.Response:
    return await client.request(
        route.method,
        _path(route),
        params={"rm": rm} if rm else {},
        headers={name.decode(): value.decode() for name, value in headers.items()},
        content=b"[]" if route.method == "POST" else None,
    )


async def test_no_endpoint_shows_another_rm(bench: Bench) -> None:
    mine, theirs = bench.rm("mine"), bench.rm("theirs")
    await bench.write(mine, theirs)
    async with bench.view() as view, client_of(view) as client:
        for route in ROUTES:
            named = await _asked(client, route, MINE, "theirs")
            # (400: the sample value is no valid name of such an object.)
            assert named.status_code in (400, 404), route.path
            unknown = await _asked(client, route, MINE, "unheard-of")
            assert named.status_code == unknown.status_code
            assert named.text == unknown.text.replace("unheard-of", "theirs"), "another's RM looks like an unknown one"
            own = await _asked(client, route, MINE)
            assert "theirs" not in own.text, route.path
            everything = await _asked(client, route, {})
            if route.path in OF_ALL:
                assert (own.status_code, everything.status_code) == (200, 200), route.path
            elif route.path != "/ws/v1/resource-managers":
                assert everything.status_code == 400, "two RMs: one must be named"
                assert (await _asked(client, route, MINE, "mine")).text == own.text or own.status_code == 200
        listed = (await client.get("/ws/v1/resource-managers", headers=_text(MINE))).json()
        assert [each["rmID"] for each in listed] == ["mine"]
        assert (await client.get("/ws/v1/resource-managers", headers=_text(NONE))).json() == []
        clusters = (await client.get("/ws/v1/clusters", headers=_text(MINE))).json()
        assert len(clusters) == 1
        metrics = (await client.get("/ws/v1/metrics", headers=_text(NONE))).text
        assert "root" not in metrics


async def test_a_part_of_an_rm_shows_that_part_only(bench: Bench) -> None:
    await bench.write(bench.rm("mine"))
    async with bench.view() as view, client_of(view) as client:

        async def status(path: str, headers: dict[bytes, bytes] = PART) -> int:
            return (await client.get(path, headers=_text(headers))).status_code

        assert (await client.get("/ws/v1/partitions", headers=_text(PART))).json() == []
        assert await status("/ws/v1/partition/default/queues") == 404
        assert await status("/ws/v1/partition/default/nodes") == 404
        assert await status("/ws/v1/metrics/snapshot?partition=default") == 404
        assert await status("/ws/v1/explain/queue/root") == 404
        assert await status("/ws/v1/explain/queue/root?partition=default") == 404
        for whole in ("/ws/v1/config", "/ws/v1/explain/pending", "/ws/v1/history/apps", "/debug/fullstatedump"):
            assert await status(whole) == 403, "it has no partition"
        default = dict(ReadScope((("mine", "default"),)).header())
        for path in ("/ws/v1/partition/default/queues", "/ws/v1/explain/queue/root", "/ws/v1/metrics/snapshot"):
            assert await status(path, default) == 200
        assert await status("/ws/v1/config", default) == 403


@pytest.mark.parametrize("text", [b"", b",", b"/", b"mine"])
async def test_a_header_that_says_nothing_shows_nothing(bench: Bench, text: bytes) -> None:
    await bench.write(bench.rm("mine"))
    async with bench.view() as view, client_of(view) as client:
        found = await client.get("/ws/v1/partitions", headers={"x-muster-reach": text.decode()})
        assert found.json() == []


def _text(headers: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers.items()}
