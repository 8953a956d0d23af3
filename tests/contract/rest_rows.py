"""Each route answers through the gateway with one of its statuses, as what it says, and in its shape."""

from __future__ import annotations

import asyncio
import re

import httpx
from contract import openapi
from muster_rest.parameters import RM
from muster_rest.route import Media, Route
from muster_rest.route_table import through_the_gateway

# What stands for a parameter of a path, in the life of e2e/test_rest_forms.py.
GIVEN = {
    "partition": "default",
    "queue": "root.limited",
    "application": "second",
    "state": "active",
    "node": "n1",
    "user": "ann",
    "group": "ann",
    "profile": "cmdline",
    "level": "info",
    "key": "second-1",
    "allocation": "second-1",
    "source": "nobody",
    "file": "app.js",
}
TYPES = {
    Media.JSON: "application/json",
    Media.JSON_LINES: "application/json",
    Media.YAML: "application/x-yaml",
    Media.HTML: "text/html",
    Media.PROMETHEUS: "text/plain",
    Media.TEXT: "text/plain",
    Media.TEXT_AS_JSON: "application/json",
}
QUERIES = {"/ws/v1/usage": "kind=queue"}
BODIES = {"/ws/v1/object-states": b'[{"kind":"node","id":"n1"},{"kind":"node","id":"?"}]'}
# What this life does not have, with why.
NOT_FOUND = {
    "/ws/v1/external/{source}": "nobody but the RM speaks",
    "/ws/v1/explain/preemption/{application}/{key}": "this one was not preempted",
    "/ws/v1/explain/preemption/{allocation}": "likewise",
    "/ws/v1/partition/{partition}/usage/group/{group}": "no limit names this group",
}
# They would change the life: tests/integration/test_gateway_operate_pages.py.
ACTIONS = "/ws/v1/operate/"
# Of an RM that nobody knows they list nothing: the answer is what the process has, not what an RM has.
LISTS = ("/ws/v1/events/streams",)


async def ask_every_row(client: httpx.AsyncClient) -> None:
    """Asks each route once as an admin, and where it takes ``rm`` with the RM's name and with one that nobody has.

    :param client: of a gateway, with one RM that is called rm.
    """
    for row in through_the_gateway():
        if row.path.startswith(ACTIONS):
            continue
        path = _path(row)
        status, content_type = await _ask(client, row, path)
        where = f"{row.method} {row.path}: {status} {content_type}"
        assert status in row.statuses, where
        if row.path in NOT_FOUND:
            assert status == 404, where
            continue
        assert status in (200, 301), where
        if status == 200:
            assert content_type.startswith(TYPES.get(row.media, "")), where
        if RM in row.parameters:
            more = "&" if "?" in path else "?"
            assert (await _ask(client, row, f"{path}{more}rm=rm"))[0] == status, where
            if status != 301:
                unknown = 200 if row.path in LISTS else 404
                assert (await _ask(client, row, f"{path}{more}rm=none"))[0] == unknown, where


async def ask_every_row_of_several(client: httpx.AsyncClient) -> None:
    """With several RMs: each row that says so refuses with 400, and lists them; with ``rm`` it answers.

    :param client: of a gateway, with the RMs rm and other.
    """
    for row in through_the_gateway():
        if RM not in row.parameters or 400 not in row.statuses:
            continue
        answer = await client.request(row.method, _path(row), content=BODIES.get(row.path))
        for _ in range(100):  # (each service hears of the other RM in its own time)
            if answer.status_code == 400:
                break
            await asyncio.sleep(0.1)
            answer = await client.request(row.method, _path(row), content=BODIES.get(row.path))
        assert answer.status_code == 400, (row.path, answer.text)
        listed = answer.json()["message"].replace('"rm"', "")
        assert {"other", "rm"} <= set(re.findall(r"\w+", listed)), (row.path, listed)


def _path(row: Route) -> str:
    path = re.sub(r"{(\w+)}", lambda match: GIVEN[match[1]], row.path)
    return f"{path}?{QUERIES[row.path]}" if row.path in QUERIES else path


async def _ask(client: httpx.AsyncClient, row: Route, path: str) -> tuple[int, str]:
    # (A stream does not end: its beginning is asked for.)
    async with client.stream(row.method, path, content=BODIES.get(row.path)) as answer:
        if row.media is Media.JSON:
            openapi.conforms(row.method, row.path, answer.status_code, await answer.aread())
        return answer.status_code, answer.headers.get("content-type", "")
