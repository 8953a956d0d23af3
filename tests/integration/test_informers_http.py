"""The informer for HTTP: answers of servers, and their effects."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from contract.informer_rigs import DEADLINE_S, HttpServer, Reply, Request, context, told
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from manual_clock import ManualClock
from muster_core.external.errors import CursorExpired, SourceError, SourceSaysNonsense, SourceUnavailable
from muster_informers.contract import ChangeType, InformerContext, ListWatch
from muster_informers.sources.http import HttpSource, OfferHttpSource, make_informer

HOSTS = b'[{"id": "a"}, {"id": "b"}]'
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = HttpServer(lambda _: Reply(headers=JSON, body=HOSTS))
    await server.open()
    yield server
    await server.close()


@pytest.fixture
async def other() -> AsyncIterator[HttpServer]:
    server = HttpServer(lambda _: Reply(headers=JSON, body=HOSTS))
    await server.open()
    yield server
    await server.close()


Make = Callable[..., HttpSource]


@pytest.fixture
async def make(server: HttpServer, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[ListWatch] = []

    def one(**options: object) -> HttpSource:
        source = make_informer({"url": f"{server.url}/hosts", "poll_s": 0.01, **options}, context(tmp_path))
        made.append(source)
        return source

    yield one
    for source in made:
        await source.close()


async def ids_of(source: ListWatch) -> list[object]:
    async with asyncio.timeout(DEADLINE_S):
        return [document["id"] for document in (await source.list()).documents]


async def beats(source: ListWatch, cursor: str, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S), aclosing(source.watch(cursor)) as watch:  # type: ignore[type-var]
        for _ in range(count):
            assert not await anext(watch)


async def test_an_etag_saves_the_answer_and_a_listing_asks_for_all_of_it(server: HttpServer, make: Make) -> None:
    def answer(request: Request) -> Reply:
        return (
            Reply(304) if request.headers.get("if-none-match") == '"1"' else Reply(200, {**JSON, "ETag": '"1"'}, HOSTS)
        )

    server.answer = answer
    source = make()
    cursor = (await source.list()).cursor
    await beats(source, cursor, 2)
    assert await ids_of(source) == ["a", "b"]
    assert [request.headers.get("if-none-match") for request in server.requests] == [None, '"1"', '"1"', None]


async def test_content_decides_whatever_a_server_says_of_it(server: HttpServer, make: Make) -> None:
    """A new ETag for the same content is no change, and an old date does not hide one."""
    versions = iter(range(100))
    body = HOSTS

    def answer(_: Request) -> Reply:
        date = "Mon, 01 Jan 1990 00:00:00 GMT"
        return Reply(headers={**JSON, "ETag": f'"{next(versions)}"', "Last-Modified": date, "Date": date}, body=body)

    server.answer = answer
    source = make()
    cursor = (await source.list()).cursor
    await beats(source, cursor, 3)
    body = b'[{"id": "b"}, {"id": "a"}]'  # the same in another order
    await beats(source, cursor, 2)
    body = b'[{"id": "b"}]'
    assert await told(source, cursor) == [(ChangeType.DELETED, "a")]


@pytest.mark.parametrize(
    ("media_type", "path", "body"),
    [
        ("application/vnd.hosts+json; charset=utf-8", "/hosts", HOSTS),
        ("", "/hosts", HOSTS),
        ("text/plain", "/hosts.yaml", b"- id: a\n- id: b\n"),
        ("application/yaml", "/hosts", b"- id: a\n- id: b\n"),
        ("application/x-ndjson", "/hosts", b'{"id": "a"}\n{"id": "b"}\n'),
    ],
)
async def test_forms_of_answers(server: HttpServer, make: Make, media_type: str, path: str, body: bytes) -> None:
    server.answer = lambda _: Reply(headers={"Content-Type": media_type} if media_type else {}, body=body)
    assert await ids_of(make(url=server.url + path)) == ["a", "b"]


PACKED = gzip.compress(HOSTS)
BOMB = gzip.compress(b" " * 50_000_000)


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (Reply(200, JSON, b""), SourceSaysNonsense, "empty"),
        (Reply(200, JSON, HOSTS[:-3]), SourceSaysNonsense, "line 1, column"),
        (Reply(200, JSON, HOSTS, cut=9), SourceUnavailable, "RemoteProtocolError"),
        (Reply(200, JSON, HOSTS, cut=9, has_length=False), SourceSaysNonsense, "line 1, column"),
        (Reply(200, {"Content-Type": "text/html"}, b"<p>Log in"), SourceSaysNonsense, "'text/html', expected JSON"),
        (
            Reply(200, {"Content-Type": "text/yaml"}, b"[]\n", has_length=False),
            SourceSaysNonsense,
            "without Content-Length",
        ),
        (Reply(200, {**JSON, "Content-Encoding": "br"}, HOSTS), SourceSaysNonsense, "'br', expected gzip or none"),
        (Reply(200, {**JSON, "Content-Encoding": "gzip"}, HOSTS), SourceSaysNonsense, "not gzip"),
        (Reply(200, {**JSON, "Content-Encoding": "gzip"}, PACKED[:-5]), SourceSaysNonsense, "cut off"),
        (Reply(200, {**JSON, "Content-Encoding": "gzip"}, BOMB), SourceSaysNonsense, "more than 1000 bytes"),
        (Reply(200, JSON, b" " * 1001), SourceSaysNonsense, "more than 1000 bytes"),
        (Reply(204), SourceSaysNonsense, "status 204, expected 200"),
        (Reply(206, JSON, HOSTS), SourceSaysNonsense, "status 206, expected 200"),
        (Reply(304), SourceUnavailable, "status 304"),
        (Reply(401, JSON, b"[]"), SourceUnavailable, "status 401"),
        (Reply(404, JSON, b"[]"), SourceUnavailable, "status 404"),
        (Reply(503), SourceUnavailable, "status 503"),
        (Reply(302, {"Location": "ftp://h/x"}), SourceUnavailable, "redirected (302), but not to a URL"),
        (Reply(307, {"Location": "/hosts"}), SourceUnavailable, "more than 5 redirects"),
    ],
)
async def test_answers_that_are_not_taken(
    server: HttpServer, make: Make, reply: Reply, error: type[SourceError], said: str
) -> None:
    source = make(max_bytes=1000, url=f"{server.url}/hosts?key=hunter2")
    cursor = (await source.list()).cursor
    server.answer = lambda _: reply
    for attempt in (source.list(), told(source, cursor)):
        with pytest.raises(error) as caught:
            await attempt
        assert said in str(caught.value)
        assert "hunter2" not in str(caught.value)
    server.answer = lambda _: Reply(headers=JSON, body=HOSTS)
    assert await ids_of(source) == ["a", "b"]


async def test_a_source_that_answers_too_slowly_is_unavailable(make: Make) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):  # it answers a byte at a time
            writer.write(b" ")
            await asyncio.sleep(0.02)
        writer.close()

    slow = await asyncio.start_server(never, "127.0.0.1", 0)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(SourceUnavailable, match=r"no answer in 0\.2 s"):
            await make(url=f"http://127.0.0.1:{slow.sockets[0].getsockname()[1]}/", timeout_s=0.2).list()
    slow.close()


# ---- credentials ----------------------------------------------------------------------------------------------------


async def test_credentials_go_to_the_configured_host_only(
    server: HttpServer, other: HttpServer, make: Make, tmp_path: Path
) -> None:
    server.answer = lambda _: Reply(302, {"Location": f"{other.url}/there"})
    assert await ids_of(make(token="hunter2")) == ["a", "b"]
    assert [request.headers.get("authorization") for request in server.requests] == ["Bearer hunter2"]
    assert [request.headers.get("authorization") for request in other.requests] == [None]
    other.answer = lambda _: Reply(302, {"Location": f"{server.url}/back"})
    server.answer = lambda request: (
        Reply(headers=JSON, body=HOSTS) if request.path == "/back" else Reply(302, {"Location": f"{other.url}/there"})
    )
    assert await ids_of(make(username="u", password="päss")) == ["a", "b"]
    assert server.requests[-1].headers["authorization"] == "Basic dTpww6Rzcw=="
    assert other.requests[-1].headers.get("authorization") is None


async def test_a_token_in_a_file_is_read_for_each_request(server: HttpServer, make: Make, tmp_path: Path) -> None:
    source = make(token_file="token")
    with pytest.raises(SourceUnavailable, match="token_file"):
        await source.list()
    (tmp_path / "token").write_text("hun ter2")
    with pytest.raises(SourceUnavailable, match="expected a token") as caught:
        await source.list()
    assert "ter2" not in str(caught.value)
    for token in ("one", "two"):
        (tmp_path / "token").write_text(f"{token}\n")
        await source.list()
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer one", "Bearer two"]


async def test_offers_are_given_back_until_the_server_says_so(server: HttpServer, make: Make) -> None:
    source = make(give_back_url=f"{server.url}/offers", token="hunter2")
    assert isinstance(source, OfferHttpSource)
    server.answer = lambda _: Reply(409)
    with pytest.raises(SourceUnavailable, match="status 409, expected 2xx"):
        await source.give_back(["o-1", "o-2"])
    server.answer = lambda _: Reply(204)
    await source.give_back(["o-1", "o-2"])
    request = server.requests[-1]
    assert (request.method, request.path, request.headers["authorization"]) == ("POST", "/offers", "Bearer hunter2")
    assert json.loads(request.body) == {"kind": "offer", "op": "give_back", "ids": ["o-1", "o-2"]}
    await source.close()
    with pytest.raises(SourceUnavailable):
        await source.give_back(["o-1"])


async def test_certificates(server: HttpServer, make: Make, tmp_path: Path) -> None:
    secure = certified(tmp_path)
    safe = HttpServer(lambda _: Reply(headers=JSON, body=HOSTS))
    await safe.open(secure)
    url = safe.url.replace("http:", "https:")
    with pytest.raises(SourceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await make(url=url).list()
    assert await ids_of(make(url=url, ca_file="ca.pem")) == ["a", "b"]
    assert await ids_of(make(url=url, verify=False)) == ["a", "b"]
    with pytest.raises(SourceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await make(url=url.replace("127.0.0.1", "localhost"), ca_file="ca.pem").list()  # for another name
    safe.answer = lambda _: Reply(302, {"Location": f"{server.url}/plain"})
    with pytest.raises(SourceUnavailable, match="from https to http"):
        await make(url=url, ca_file="ca.pem").list()
    assert not server.requests
    await safe.close()


def certified(directory: Path) -> ssl.SSLContext:
    """A server's TLS context with a self-signed certificate for 127.0.0.1, which is also in ca.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hosts")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (directory / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(directory / "ca.pem", directory / "key.pem")
    return secure


# ---- when to ask again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "0"}, 0.5),
        ({"Retry-After": "99999999999999999999"}, 60),
        # the date counts from the server's own clock, 30 years behind ours
        ({"Retry-After": "Mon, 01 Jan 1990 00:00:09 GMT", "Date": "Mon, 01 Jan 1990 00:00:00 GMT"}, 9),
        ({"Retry-After": "Mon, 01 Jan 1990 00:00:09 GMT"}, 0.5),
        ({"Retry-After": "Fri, 01 Jan 2999 00:00:00 GMT"}, 60),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
async def test_retry_after_is_kept_to_within_bounds(
    server: HttpServer, headers: dict[str, str], wait_s: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    clock = ManualClock()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    options = {"url": server.url, "retry_after_max_s": 60}
    source = make_informer(options, InformerContext("hosts", clock))
    server.answer = lambda _: Reply(503, headers)
    with pytest.raises(SourceUnavailable, match="status 503"):
        await source.list()
    server.answer = lambda _: Reply(headers=JSON, body=HOSTS)
    with monkeypatch.context() as patch:
        patch.setattr("muster_informers.sources.http.asyncio.sleep", sleep)
        assert len((await source.list()).documents) == 2
    await source.close()
    assert slept == ([] if wait_s is None else [wait_s])


# ---- pages ----------------------------------------------------------------------------------------------------------


class Pages:
    """A server of pages with two objects each."""

    def __init__(self, server: HttpServer, *names: str) -> None:
        self.names = list(names)
        self.before_page: Callable[[int], None] = lambda page: None
        self.link = '<?page={}>; rel="next"'
        server.answer = self.answer

    def answer(self, request: Request) -> Reply:
        page = int(request.path.partition("page=")[2] or 0)
        self.before_page(page)
        some = self.names[2 * page : 2 * page + 2]
        headers = dict(JSON)
        if len(self.names) > 2 * page + 2:
            headers["Link"] = self.link.format(page + 1)
        return Reply(headers=headers, body=json.dumps([{"id": name} for name in some]).encode())


async def test_an_object_that_slips_between_two_pages_is_not_gone(server: HttpServer, make: Make) -> None:
    pages = Pages(server, "a", "b", "c", "d", "e")
    source = make()

    def slip(page: int) -> None:
        if page == 1 and "a" in pages.names:
            pages.names.remove("a")  # later objects move up: c was on page 1 and is on page 0 now

    pages.before_page = slip
    listing = await source.list()
    assert sorted(str(document["id"]) for document in listing.documents) == ["a", "b", "c", "d", "e"]
    pages.before_page = lambda page: None
    assert await told(source, listing.cursor) == [(ChangeType.DELETED, "a")]

    def slip_again(page: int) -> None:
        if page == 1 and "b" in pages.names:
            pages.names.remove("b")

    pages.before_page = slip_again
    found: list[Any] = []
    async with asyncio.timeout(DEADLINE_S), aclosing(source.watch((await source.list()).cursor)) as watch:  # type: ignore[type-var]
        while not found:
            found += await anext(watch)
    assert [(delta.type, delta.document["id"]) for delta in found] == [(ChangeType.DELETED, "b")]


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ('<http://127.0.0.1:1/hosts?page={}>; rel="next"', "expected the same host"),
        ('<?page=0>; rel="next"', "more than 3 pages"),
        ('</hosts>; rel="next"', "leads back"),
    ],
)
async def test_pages_that_lead_away_or_nowhere_are_nonsense(
    server: HttpServer, make: Make, link: str, said: str
) -> None:
    pages = Pages(server, *"abcdefghi")
    pages.link = link
    if "page=0" in link:  # another page without end
        pages.link, count = '<?{0}&page=0>; rel="next"', iter(range(100))
        pages.answer = lambda _: Reply(headers={**JSON, "Link": f'<?n={next(count)}>; rel="next"'}, body=HOSTS)  # type: ignore[method-assign]
        server.answer = pages.answer
    with pytest.raises(SourceSaysNonsense, match=said):
        await make(max_pages=3).list()


async def test_only_changed_pages_are_read_again(server: HttpServer, make: Make) -> None:
    pages = Pages(server, *"abcdef")
    plain, answered = pages.answer, list[int]()

    def answer(request: Request) -> Reply:
        reply = plain(request)
        etag = f'"{hash(reply.body)}"'
        if request.headers.get("if-none-match") == etag:
            return Reply(304)  # without a link, too
        answered.append(200)
        return reply._replace(headers={**reply.headers, "ETag": etag})

    server.answer = answer
    source = make()
    cursor = (await source.list()).cursor
    await beats(source, cursor, 2)
    pages.names[2] = "x"
    found: list[Any] = []
    async with asyncio.timeout(DEADLINE_S), aclosing(source.watch(cursor)) as watch:  # type: ignore[type-var]
        while len(found) < 2:
            found += await anext(watch)
    assert [(delta.type, delta.document["id"]) for delta in found] == [
        (ChangeType.ADDED, "x"),
        (ChangeType.DELETED, "c"),
    ]
    assert answered.count(200) == 3 + 1  # the listing's pages, and the one that changed


async def test_one_object_with_two_contents_is_shown_by_a_listing(server: HttpServer, make: Make) -> None:
    source = make()
    cursor = (await source.list()).cursor
    server.answer = lambda _: Reply(headers=JSON, body=b'[{"id": "a"}, {"id": "a", "version": 2}]')
    with pytest.raises(CursorExpired, match="node a is there twice"):
        await told(source, cursor)
    listing = await source.list()
    assert list(listing.documents) == [{"id": "a"}, {"id": "a", "version": 2}]
    await beats(source, listing.cursor, 2)
