"""The table of docs/rest.md, row by row: each path answers with a status that stands there, and what it says it is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import NamedTuple

import httpx

TABLE = Path(__file__).parents[2] / "docs" / "rest.md"
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
}
TYPES = {
    "JSON": "application/json",
    "JSON lines": "application/json",
    "YAML": "application/x-yaml",
    "HTML": "text/html",
    "Prometheus": "text/plain",
    "text": "text/plain",
    "text as JSON": "application/json",
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
# Those of each process at its own port; the gateway's are tested below, too.
OWN = ("/health",)


class TableRow(NamedTuple):
    """One row, as written."""

    method: str
    path: str
    answer: str
    parameters: tuple[str, ...]
    statuses: frozenset[int]
    role: str


def table() -> list[TableRow]:
    """All rows."""
    found = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 6 and cells[0] in ("GET", "POST", "PUT"):
            method, path, answer, parameters, statuses, role = cells[:6]
            found.append(
                TableRow(
                    method,
                    path.strip("`"),
                    answer,
                    tuple(re.findall(r"`([^`]+)`", parameters)),
                    frozenset(map(int, statuses.split(","))),
                    role,
                )
            )
    assert len(found) > 50, "the table of docs/rest.md is read as it is written"
    return found


async def ask_every_row(client: httpx.AsyncClient) -> None:
    """Asks each row once as an admin, and where it takes ``rm`` with the RM's name and with one that nobody has.

    :param client: of a gateway, with one RM that is called rm.
    """
    for row in table():
        path = _path(row)
        status, content_type = await _ask(client, row, path)
        where = f"{row.method} {row.path}: {status} {content_type}"
        assert status in row.statuses, where
        if row.path in NOT_FOUND:
            assert status == 404, where
            continue
        assert status in (200, 301), where
        if row.path not in OWN:
            assert content_type.startswith(TYPES[row.answer]), where
        if "rm" in row.parameters:
            more = "&" if "?" in path else "?"
            assert (await _ask(client, row, f"{path}{more}rm=rm"))[0] == status, where
            if status != 301:
                assert (await _ask(client, row, f"{path}{more}rm=none"))[0] == 404, where


async def ask_every_row_of_several(client: httpx.AsyncClient) -> None:
    """With several RMs: each row that says so refuses with 400, and lists them; with ``rm`` it answers.

    :param client: of a gateway, with the RMs rm and other.
    """
    for row in table():
        if "rm" not in row.parameters or 400 not in row.statuses:
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


def _path(row: TableRow) -> str:
    path = re.sub(r"{(\w+)}", lambda match: GIVEN[match[1]], row.path)
    return f"{path}?{QUERIES[row.path]}" if row.path in QUERIES else path


async def _ask(client: httpx.AsyncClient, row: TableRow, path: str) -> tuple[int, str]:
    # (A stream does not end: its beginning is asked for.)
    async with client.stream(row.method, path, content=BODIES.get(row.path)) as answer:
        return answer.status_code, answer.headers.get("content-type", "")
