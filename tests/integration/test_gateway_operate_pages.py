"""POST /ws/v1/operate/…: rights, requests of other hosts' pages, bad input; and GET /ws/v1/whoami."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from integration.gateway_rig import Rig
from muster_gateway.service import Gateway
from muster_rest.gateway_routes import GATEWAY

OPS, READER = "ops-token-0123456789", "reader-token-0123456789"
TOKENS = {"ops": {"role": "admin", "token": OPS}, "reader": {"role": "read", "token": READER}}
OURS = {"X-Muster-Operate": "test"}
PATHS = [route.path for route in GATEWAY if route.handler == "front.operate"]

CONFIGURATIONS = [path for path in PATHS if path.endswith(("/validate", "/configure"))]

Ask = Callable[..., Any]


@pytest.fixture
async def gateway(world: Rig) -> Gateway:
    return await world.gateway(tokens=TOKENS, http_address="127.0.0.1:0")


@pytest.fixture
async def ask(gateway: Gateway) -> AsyncIterator[Ask]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.http_port}") as session:

        async def asked(
            path: str, headers: dict[str, str], token: str = OPS, method: str = "POST", body: bytes = b"", **query: str
        ) -> Any:
            sent = {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}
            async with session.request(method, path, params=query, headers=sent, data=body) as answer:
                text = await answer.text()
                return answer.status, text, answer.headers

        yield asked


async def test_pages_of_other_hosts_are_refused(gateway: Gateway, ask: Ask) -> None:
    port = gateway.http_port
    own, other = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    # A request of the page itself, and one of a program, come to the call: the RM is unknown.
    good: list[dict[str, str]] = [OURS, {**OURS, "Origin": own, "Sec-Fetch-Site": "same-origin"}]
    # Each sign of another page is enough for a refusal.
    bad = [
        {},
        {"Content-Type": "application/json"},
        {"Origin": own, "Sec-Fetch-Site": "same-origin"},
        {**OURS, "Sec-Fetch-Site": "cross-site"},
        {**OURS, "Sec-Fetch-Site": "same-site"},
        {**OURS, "Origin": other},
        {**OURS, "Origin": "null"},
        {**OURS, "Origin": "http://evil.example"},
        {**OURS, "Origin": "http://["},
    ]
    for path in PATHS:
        # (To forget an RM that is not known is a question to the scheduler. There is none here.)
        for headers in good if not path.endswith("/forget") else ():
            query = {"rm": "nobody", "node": "n", "application": "x"}
            status, text, _ = await ask(path, headers, body=b"partitions: []", **query)
            assert status in (404, 409), (path, text)
        for headers in bad:
            status, text, answer = await ask(path, headers, rm="nobody", node="n")
            assert (status, "access-control-allow-origin" in answer) == (403, False), (path, headers, text)
        # No preflight allows another host's page to send the header.
        asked = {"Origin": other, "Access-Control-Request-Method": "POST"}
        status, _, answer = await ask(path, asked, token="", method="OPTIONS")
        assert status == 405
        assert not [name for name in answer if name.lower().startswith("access-control-")]
        assert (await ask(path, OURS, method="GET", rm="nobody"))[0] == 405


async def test_only_operators_may(ask: Ask) -> None:
    for path in PATHS:
        assert (await ask(path, OURS, READER, rm="nobody", node="n"))[0] == 403
        assert (await ask(path, OURS, "wrong-token-0123456789", rm="nobody"))[0] == 401
        assert (await ask(path, OURS, "", rm="nobody"))[0] == 401


async def test_bad_input_names_the_field(ask: Ask) -> None:
    for query, said in (({}, "rm_id"), ({"rm": "x", "nodes": "n"}, "nodes"), ({"rm": "x"}, "node_id")):
        status, text, _ = await ask("/ws/v1/operate/drain", OURS, **query)
        assert status == 400, text
        assert said in text
    status, text, _ = await ask("/ws/v1/operate/end-application", OURS, rm="x")
    assert (status, "application_id" in text) == (400, True)


async def test_a_configuration_is_the_body(ask: Ask) -> None:
    """(tests/page/test_actions.py applies one.)"""
    masked = b"# the mask *** may be here\npartitions: []\nqueues: {my.token: '***'}\n"
    bad = (
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b"partitions: \xff", "not UTF-8: byte 12"),
        (masked, "line 3: the value is masked"),
        (b"#" * (1 << 20), "too large"),
    )
    for path in CONFIGURATIONS:
        for body, said in bad:
            status, text, _ = await ask(path, OURS, rm="nobody", body=body)
            assert (status, said in text) == (400, True), (body[:40], text)
        status, text, _ = await ask(path, OURS, rm="nobody", body=masked.replace(b"'***'", b"x"))
        assert status == 409, text


async def test_whoami_tells_callers_about_themselves(ask: Ask) -> None:
    async def told(token: str, **query: str) -> tuple[int, str]:
        status, text, _ = await ask("/ws/v1/whoami", {}, token, "GET", **query)
        return status, text

    assert '"identity":"ops","proof":"token","role":"admin"' in (await told(OPS))[1]
    assert '"mayOperate":true,"mayConfigure":true' in (await told(OPS, rm="any"))[1]
    assert '"mayOperate":false' in (await told(OPS))[1]
    assert '"identity":"reader","proof":"token","role":"read"' in (await told(READER, rm="any"))[1]
    assert '"mayOperate":false,"mayConfigure":false' in (await told(READER, rm="any"))[1]
    assert '"identity":"nobody"' in (await told(""))[1]
    assert (await told(OPS, x="y"))[0] == 400
