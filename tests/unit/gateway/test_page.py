"""The page's files as the front serves them: all files exist, and only the page's own scripts may run."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from muster_gateway.authentication import Authenticator
from muster_gateway.http_front import HttpFront
from muster_gateway.page import CONTENT_SECURITY_POLICY, Page
from muster_gateway.settings import GatewaySettings, Token
from muster_rest.shapes.health import SystemHealthDao
from muster_rest.system_health import unreachable
from pydantic import SecretStr
from starlette.types import Receive, Scope, Send

PATHS = Page().paths
TOKENS = {"ops": Token(role="read", token=SecretStr("a-token-of-16-characters"))}


async def _nobody(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError(f"{scope['path']} is none of a service's")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client without a token, of a front that wants one."""

    async def live() -> bool:
        return True

    async def fine() -> tuple[bool, list[str]]:
        return True, []

    async def well() -> SystemHealthDao:
        return unreachable("it is a test's", "", 0)

    front = HttpFront(_nobody, _nobody, Authenticator(GatewaySettings(tokens=TOKENS)), live, fine, well)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://localhost") as one:
        yield one


@pytest.mark.parametrize("path", PATHS)
async def test_each_file_is_there_for_everybody(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path, headers={"accept-encoding": "identity"})
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    packed = await client.get(path, headers={"accept-encoding": "gzip"})
    assert packed.content == answer.content
    assert ("content-encoding" in packed.headers) == (len(answer.content) >= 1_400)
    known = await client.get(path, headers={"if-none-match": f'"other", W/{answer.headers["etag"]}'})
    assert (known.status_code, known.content) == (304, b"")
    assert (await client.head(path)).content == b""
    posted = await client.post(path, headers={"authorization": "Bearer a-token-of-16-characters"})
    assert posted.status_code == 403


def test_the_types_are_those_that_a_browser_runs() -> None:
    page = Page()
    types = {path: page.answer(path, []) for path in ("/", "/page/app.js", "/page/style.css", "/favicon.ico")}
    assert [answer and answer.content_type.partition(";")[0] for answer in types.values()] == [
        "text/html",
        "text/javascript",
        "text/css",
        "image/svg+xml",
    ]


async def test_a_missing_file_is_404(client: httpx.AsyncClient) -> None:
    for path in ("/page/nothing.js", "/page/", "/page/__init__.py", "/page/%2e%2e/__init__.py", "/page/index.html"):
        answer = await client.get(path)
        assert (answer.status_code, answer.text) == (404, "404 page not found\n"), path


def test_the_policy_lets_nothing_in() -> None:
    sources = dict(one.partition(" ")[::2] for one in CONTENT_SECURITY_POLICY.split("; "))
    assert sources.pop("require-trusted-types-for") == "'script'"
    assert sources.pop("trusted-types") == "'none'"
    assert sources["default-src"] == "'none'"
    assert set(sources.values()) == {"'none'", "'self'"}


def _texts() -> dict[str, str]:
    page = Page()
    answers = {path: page.answer(path, []) for path in PATHS}
    return {path: answer.body.decode() for path, answer in answers.items() if answer is not None}


def test_the_files_keep_the_policy_and_name_each_other_only() -> None:
    texts = _texts()
    html = texts["/"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", html)
    assert all('src="' in script for script in re.findall(r"<script[^>]*>", html))
    named = re.findall(r'(?:src|href)="(/[^"]*)"', html)
    for path, text in texts.items():
        named += [f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', text)]
        # (The name of the SVG namespace is never requested.)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
    assert len(named) > 20
    assert set(named) <= set(PATHS)
