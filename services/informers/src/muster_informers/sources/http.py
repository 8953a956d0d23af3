"""An informer for inventories behind a URL, requested every ``poll_s``: JSON, NDJSON or YAML (document_parsing.py),
perhaps in pages.

An answer holds all objects, perhaps in pages (``Link: <…>; rel="next"``, RFC 8288). The source finds changes by
comparing content: an ETag only saves reading (If-None-Match, RFC 9110 section 13.1.2); Last-Modified and Date decide
nothing.

Pages are not read at one moment. An object that moves to another page between two requests can be missed, so an object
of a paged answer is gone only when two consecutive readings do not have it.

===========================================  ===================================================================
what is answered                             what becomes of it
===========================================  ===================================================================
200                                          compared by content, page by page
304                                          the source lives; it has nothing new
nothing in time, refused, broken off         SourceUnavailable: nothing of it counts as gone
401, 403, 404, 410, 5xx, any other           the same
429, 5xx with Retry-After                    the same; asked again after that time, at most ``retry_after_max_s``
redirect                                     followed, ``max_redirects`` times, never from https to http; credentials
                                             go to the configured host and port only
too large, HTML, no JSON, 0 bytes, cut off   SourceSaysNonsense: nothing of it is taken
===========================================  ===================================================================
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

import httpx
from muster_bus.clock import Clock, day_ns
from muster_core.external.errors import CursorExpired, SourceSaysNonsense, SourceUnavailable
from pydantic import Field, SecretStr, field_validator, model_validator

from muster_informers.contract import Delta, InformerContext, Listing, Options
from muster_informers.sources.document_parsing import Format, read_documents
from muster_informers.sources.error_text import text_of, without_secrets
from muster_informers.sources.listing_diff import (
    Contents,
    DocumentDigest,
    Key,
    contents_of,
    cursor_of,
    differences,
    digest_of,
    merged,
)
from muster_informers.sources.options import (
    Bytes,
    InformerOptions,
    Seconds,
    options_as,
    revealed,
    wrong,
)

_MEDIA_TYPES: dict[str, Format] = {
    "application/json": "json",
    "text/json": "json",
    "application/x-ndjson": "ndjson",
    "application/ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "application/x-jsonlines": "ndjson",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
    "text/x-yaml": "yaml",
}
# Unspecific media types: the path's suffix decides, else the text is JSON.
_SAYS_NOTHING = frozenset({"", "text/plain", "application/octet-stream"})
_ENDINGS: dict[str, Format] = {".ndjson": "ndjson", ".jsonl": "ndjson", ".yaml": "yaml", ".yml": "yaml"}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# The shortest wait after Retry-After: even after "0" or a past date the source does not ask at once.
_RETRY_AFTER_MIN_S = 0.5
# An idle connection is closed before servers close it: a request on a connection that the server has just closed fails.
_IDLE_CONNECTION_S = 2.0
_CHUNK_BYTES = 1 << 16

Origin = tuple[str, str, int | None]


class HttpOptions(InformerOptions):
    """The options of an informer of the kind ``http``."""

    url: str = Field(description="http:// or https:// address of the whole inventory, without credentials")
    poll_s: Seconds = Field(5.0, description="time between two requests; less than `stale_after_s`")
    timeout_s: Seconds = Field(10.0, description="longest wait for one complete answer")
    format: Literal["auto", "json", "ndjson", "yaml"] = Field(
        "auto", description="format of answers; auto: by their Content-Type"
    )
    max_bytes: Bytes = Field(64 << 20, description="largest answer, all pages together, unpacked")
    max_pages: int = Field(1000, ge=1, le=100_000, description="most pages of one answer")
    max_redirects: int = Field(5, ge=0, le=20, description="most redirects of one request")
    retry_after_max_s: Seconds = Field(60.0, description="longest delay that Retry-After can demand")
    token: SecretStr | None = Field(None, description="bearer token")
    token_file: str = Field("", description="or a file with the token, read for each request")
    username: str = Field("", description="user of basic authentication")
    password: SecretStr | None = Field(None, description="password of that user")
    verify: bool = Field(True, description="whether to verify the server's certificate")
    ca_file: str = Field("", description="PEM file of trusted CAs; default: the system's")
    client_cert_file: str = Field("", description="PEM file of the client's certificate")
    client_key_file: str = Field("", description="PEM file of the client's key; default: the certificate's file")
    give_back_url: str = Field("", description="where returned offers are posted, with the same credentials")

    @field_validator("url", "give_back_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        try:
            url = httpx.URL(value)
        except (httpx.InvalidURL, ValueError):
            url = httpx.URL()
        if value and (url.scheme not in ("http", "https") or not url.host or url.fragment):
            raise ValueError("expected an http:// or https:// URL with a host")
        if url.userinfo:
            raise ValueError("expected no credentials in the URL; use username and password")
        return value

    @field_validator("token")
    @classmethod
    def _is_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _is_header_text(value.get_secret_value()):
            raise ValueError("expected a token of visible ASCII characters")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> HttpOptions:
        if not self.url:
            raise ValueError("url is empty; expected an http:// or https:// URL")
        ways = [bool(self.token), bool(self.token_file), bool(self.username)]
        if sum(ways) > 1:
            raise ValueError("expected only one of token, token_file and username")
        if self.password is not None and not self.username:
            raise ValueError("password without username; expected both or none")
        if ":" in self.username:
            raise ValueError("username has a ':', expected none (RFC 7617)")
        if self.client_key_file and not self.client_cert_file:
            raise ValueError("client_key_file without client_cert_file; expected both, or the certificate alone")
        return self


def make_informer(options: Options, context: InformerContext) -> HttpSource:
    """The factory of ``muster.informers``."""
    source_options = options_as(HttpOptions, options, context)
    secure = _ssl_context(source_options, context)
    kind = OfferHttpSource if source_options.give_back_url else HttpSource
    return kind(source_options, context, secure)


class _Page(NamedTuple):
    """The kept state of a page."""

    etag: str
    digest: bytes
    contents: Contents
    next_url: str


class _HttpReply(NamedTuple):
    """The answer to one request. ``body`` None: unchanged (304)."""

    url: httpx.URL
    headers: httpx.Headers
    body: bytes | None


class _PageSet(NamedTuple):
    """All pages, and the documents of the changed ones."""

    pages: dict[str, _Page]
    documents: list[DocumentDigest]


class HttpSource:
    """See :class:`muster_informers.contract.ListWatch`."""

    def __init__(self, options: HttpOptions, context: InformerContext, secure: ssl.SSLContext) -> None:
        self._options = options
        self._clock: Clock = context.clock
        self._base = Path(context.base)
        self._url = httpx.URL(options.url)
        self._secure = secure
        # by method, so that the end of a watch does not cut off the return of offers
        self._open: dict[str, httpx.AsyncHTTPTransport] = {}
        self._is_closed = False
        self._last_request_s = 0.0
        self._not_before_s = 0.0
        self._pages: dict[str, _Page] = {}  # by URL, in their order
        self._missing_once: frozenset[Key] = frozenset()  # absent in the last reading, and still counted
        self._contents: Contents = {}
        self._cursor = ""

    async def list(self) -> Listing:
        reading = await self._read({})
        documents = reading.documents
        contents: Contents = merged(page.contents for page in reading.pages.values())
        missed: frozenset[Key] = frozenset()
        if len(reading.pages) > 1:
            again = await self._read(reading.pages)
            now = merged(page.contents for page in again.pages.values())
            missed = frozenset(contents.keys() - now.keys())
            now.update((key, content) for key, content in contents.items() if key in missed)
            documents_by_digest = {
                (document.key, document.digest): document for document in (*documents, *again.documents)
            }
            documents = [documents_by_digest[key, digest] for key, digests in now.items() for digest in digests]
            contents, reading = now, again
        self._pages, self._missing_once = reading.pages, missed
        self._contents, self._cursor = contents, cursor_of(contents)
        return Listing([document.document for document in documents], self._cursor)

    async def watch(self, cursor: str) -> AsyncIterator[Sequence[Delta]]:
        if not cursor or cursor != self._cursor:
            raise CursorExpired(f"{self._display_url(self._url)}: the last reported content is not known any more")
        try:
            while True:
                # The least time between two requests, also when a failed watch begins again.
                await asyncio.sleep(self._last_request_s + self._options.poll_s - self._clock.monotonic())
                yield await self._changes()
        finally:
            await self._disconnect("GET")

    async def close(self) -> None:
        self._is_closed = True
        for method in list(self._open):
            await self._disconnect(method)

    async def _disconnect(self, method: str) -> None:
        if transport := self._open.pop(method, None):
            await transport.aclose()

    async def _changes(self) -> Sequence[Delta]:
        reading = await self._read(self._pages)
        as_before = all(page is self._pages.get(url) for url, page in reading.pages.items())
        if as_before and len(reading.pages) == len(self._pages) and not self._missing_once:
            return ()
        before, self._cursor = self._cursor, ""  # unless the rest succeeds, only a listing helps
        now = merged(page.contents for page in reading.pages.values())
        missed: frozenset[Key] = frozenset()
        if len(reading.pages) > 1 or len(self._pages) > 1:
            missed = frozenset(self._contents.keys() - now.keys() - self._missing_once)
            now.update((key, content) for key, content in self._contents.items() if key in missed)
        after = cursor_of(now)
        deltas = differences(self._contents, now, reading.documents, (before, after))
        self._pages, self._missing_once = reading.pages, missed
        self._contents, self._cursor = now, after
        return deltas

    # ---- pages ------------------------------------------------------------------------------------------------------

    async def _read(self, cached_pages: dict[str, _Page]) -> _PageSet:
        """Reads all pages, one after the other; known pages are requested with their ETag."""
        pages: dict[str, _Page] = {}
        documents: list[DocumentDigest] = []
        remaining_bytes = self._options.max_bytes
        url = str(self._url)
        while url:
            if url in pages:
                raise SourceSaysNonsense(f"{self._display_url(url)}: the link to the next page leads back to this one")
            if len(pages) == self._options.max_pages:
                raise SourceSaysNonsense(f"{self._display_url(url)}: more than {len(pages)} pages (max_pages)")
            before = cached_pages.get(url)
            answer = await self._get(httpx.URL(url), before.etag if before is not None else "", remaining_bytes)
            if answer.body is None:
                if before is None:
                    raise SourceSaysNonsense(f"{self._display_url(url)}: 304 Not Modified without an earlier answer")
                page = before
            else:
                remaining_bytes -= len(answer.body)
                page, new = await self._page(answer, before)
                documents += new
            pages[url], url = page, page.next_url
        return _PageSet(pages, documents)

    async def _page(self, answer: _HttpReply, before: _Page | None) -> tuple[_Page, Sequence[DocumentDigest]]:
        """An answer's page and its documents; no documents if it has not changed."""
        body = answer.body or b""
        digest = blake2b(body, digest_size=16).digest()
        etag, next_url = answer.headers.get("etag", ""), self._next_url(answer)
        if before is not None and before.digest == digest:
            if (before.etag, before.next_url) != (etag, next_url):
                before = before._replace(etag=etag, next_url=next_url)
            return before, ()
        form, where = self._format(answer), self._display_url(answer.url)
        # Long texts must not block the event loop.
        documents = await asyncio.to_thread(
            lambda: [digest_of(document) for document in read_documents(body, form, where)]
        )
        return _Page(etag, digest, contents_of(documents), next_url), documents

    def _next_url(self, answer: _HttpReply) -> str:
        """The URL of the next page; "": there is none. Raises SourceSaysNonsense: it is on another host."""
        links = _links(answer.headers)
        if "next" not in links:
            return ""
        try:
            url = answer.url.join(links["next"])
        except (httpx.InvalidURL, ValueError):
            raise SourceSaysNonsense(
                f"{self._display_url(answer.url)}: the link to the next page is not a URL"
            ) from None
        if _origin(url) not in (_origin(answer.url), _origin(self._url)):
            raise SourceSaysNonsense(
                f"{self._display_url(answer.url)}: the next page is at {self._display_url(url)}, expected the same host"
            )
        return str(url.copy_with(fragment=None))

    def _format(self, answer: _HttpReply) -> Format:
        """Raises SourceSaysNonsense: the encoding is unknown, or the end of the data is missing."""
        media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        form: Format | None
        if self._options.format != "auto":
            form = self._options.format
        elif media_type in _SAYS_NOTHING:
            form = _ENDINGS.get(Path(answer.url.path).suffix.lower(), "json")
        elif media_type.endswith(("+json", "+yaml")):
            form = "json" if media_type.endswith("+json") else "yaml"
        else:
            form = _MEDIA_TYPES.get(media_type)
        if form is None:
            raise SourceSaysNonsense(
                f"{self._display_url(answer.url)}: Content-Type {media_type!r}, expected JSON, NDJSON or YAML (or set "
                "format)"
            )
        has_end = "content-length" in answer.headers or "transfer-encoding" in answer.headers
        if form != "json" and not has_end:
            raise SourceSaysNonsense(
                f"{self._display_url(answer.url)}: {form} without Content-Length: it may have been cut off"
            )
        return form

    # ---- one request ------------------------------------------------------------------------------------------------

    async def _get(self, url: httpx.URL, etag: str, max_bytes: int) -> _HttpReply:
        """Asks once: 1 wait if the server asked for it, 2 send, 3 follow redirects, 4 judge the status, 5 read."""
        headers = {"Accept": "application/json, application/x-ndjson, application/yaml;q=0.9, */*;q=0.1"}
        if etag:
            headers["If-None-Match"] = etag
        wait_s = self._not_before_s - self._clock.monotonic()
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, self._options.retry_after_max_s))  # 1
        self._last_request_s = self._clock.monotonic()
        for _ in range(self._options.max_redirects + 1):
            try:
                async with asyncio.timeout(self._options.timeout_s):
                    response = await self._send("GET", url, headers)  # 2
                    try:
                        if response.status_code in _REDIRECTS:
                            url = self._redirected(url, response)  # 3
                            continue
                        if response.status_code == 304 and etag:
                            return _HttpReply(url, response.headers, None)
                        self._check_response(url, response)  # 4
                        return _HttpReply(url, response.headers, await self._body(url, response, max_bytes))  # 5
                    finally:
                        await response.aclose()
            except TimeoutError:
                raise SourceUnavailable(
                    f"{self._display_url(url)}: no answer in {self._options.timeout_s:g} s"
                ) from None
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                raise SourceUnavailable(f"{self._display_url(url)}: {text_of(error)}") from None
        raise SourceUnavailable(
            f"{self._display_url(url)}: more than {self._options.max_redirects} redirects (max_redirects)"
        )

    async def _send(
        self, method: str, url: httpx.URL, headers: dict[str, str], body: bytes | None = None
    ) -> httpx.Response:
        """It uses the transport directly: an httpx client would log addresses, keep cookies, and read proxies and
        passwords from the environment.
        """
        if self._is_closed:
            raise SourceUnavailable("it is closed")
        if (transport := self._open.get(method)) is None:
            transport = self._open[method] = httpx.AsyncHTTPTransport(
                verify=self._secure, limits=httpx.Limits(keepalive_expiry=_IDLE_CONNECTION_S)
            )
        sent = {"User-Agent": "muster", "Accept-Encoding": "gzip", **headers, **await self._credentials(url)}
        timeout = httpx.Timeout(self._options.timeout_s).as_dict()
        request = httpx.Request(method, url, headers=sent, content=body, extensions={"timeout": timeout})
        return await transport.handle_async_request(request)

    async def _credentials(self, url: httpx.URL) -> dict[str, str]:
        """The credentials for the configured hosts; none for others. Raises SourceUnavailable."""
        options = self._options
        if _origin(url) not in {_origin(self._url), *self._other_origins()}:
            return {}
        if options.username:
            pair = f"{options.username}:{revealed(options.password) or ''}".encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        token = revealed(options.token)
        if options.token_file:
            path = self._base / options.token_file
            try:
                token = (await asyncio.to_thread(path.read_text)).strip()
            except (OSError, ValueError) as error:
                raise SourceUnavailable(f"token_file {path}: {type(error).__name__}") from None
            if not _is_header_text(token):
                raise SourceUnavailable(f"token_file {path}: expected a token of visible ASCII characters")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _other_origins(self) -> Sequence[Origin]:
        return ()

    def _redirected(self, url: httpx.URL, response: httpx.Response) -> httpx.URL:
        try:
            target = url.join(response.headers.get("location", ""))
        except (httpx.InvalidURL, ValueError):
            target = httpx.URL()
        if target.scheme not in ("http", "https") or not target.host:
            raise SourceUnavailable(f"{self._display_url(url)}: redirected ({response.status_code}), but not to a URL")
        if url.scheme == "https" and target.scheme == "http":
            raise SourceUnavailable(f"{self._display_url(url)}: redirected from https to http, which is not followed")
        return target

    def _check_response(self, url: httpx.URL, response: httpx.Response) -> None:
        """Raises SourceUnavailable, and notes the time of the next request; SourceSaysNonsense."""
        status = response.status_code
        if status == 200:
            return
        if 200 <= status < 300:
            raise SourceSaysNonsense(f"{self._display_url(url)}: status {status}, expected 200 with everything")
        wait_s = self._retry_after_s(response)
        if wait_s is None:
            raise SourceUnavailable(f"{self._display_url(url)}: status {status}")
        self._not_before_s = self._clock.monotonic() + wait_s
        raise SourceUnavailable(f"{self._display_url(url)}: status {status}, asked again in {wait_s:g} s (Retry-After)")

    def _retry_after_s(self, response: httpx.Response) -> float | None:
        """The wait of Retry-After, bounded on both sides. A date in it is compared with the server's own Date."""
        header = response.headers.get("retry-after")
        if header is None:
            return None
        if header.strip().isdecimal():
            wait_s = float(header[:10])
        else:
            try:
                retry_at_s = parsedate_to_datetime(header).timestamp()
                date = response.headers.get("date")
                wait_s = retry_at_s - (parsedate_to_datetime(date).timestamp() if date else day_ns(self._clock) / 1e9)
            except (ValueError, OverflowError):
                return None
        most_s = self._options.retry_after_max_s
        return min(max(wait_s, _RETRY_AFTER_MIN_S), most_s)

    async def _body(self, url: httpx.URL, response: httpx.Response, max_bytes: int) -> bytes:
        """The whole body, unpacked. Memory holds at most the limit and one chunk."""
        coding = response.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", "gzip", "x-gzip", ""):
            raise SourceSaysNonsense(f"{self._display_url(url)}: Content-Encoding {coding!r}, expected gzip or none")
        unpack = _Gzip() if coding.endswith("gzip") else None
        body = bytearray()
        try:
            async for chunk in response.stream:  # type: ignore[union-attr]
                for piece in unpack.pieces(chunk) if unpack is not None else (chunk,):
                    body += piece
                    if len(body) > max_bytes:
                        raise SourceSaysNonsense(
                            f"{self._display_url(url)}: more than {self._options.max_bytes} bytes (max_bytes)"
                        )
        except zlib.error:
            raise SourceSaysNonsense(f"{self._display_url(url)}: the answer is not gzip, unlike its header") from None
        if unpack is not None and not unpack.is_whole:
            raise SourceSaysNonsense(f"{self._display_url(url)}: the packed answer was cut off")
        return bytes(body)

    def _display_url(self, url: httpx.URL | str) -> str:
        return without_secrets(str(url))


class OfferHttpSource(HttpSource):
    """Also an :class:`muster_informers.contract.OfferTaker`."""

    def _other_origins(self) -> Sequence[Origin]:
        return (_origin(httpx.URL(self._options.give_back_url)),)

    async def give_back(self, offer_ids: Sequence[str]) -> None:
        url = httpx.URL(self._options.give_back_url)
        body = json.dumps({"kind": "offer", "op": "give_back", "ids": list(offer_ids)}).encode()
        try:
            async with asyncio.timeout(self._options.timeout_s):
                response = await self._send("POST", url, {"Content-Type": "application/json"}, body)
                await response.aclose()
        except TimeoutError:
            raise SourceUnavailable(f"{self._display_url(url)}: no answer in {self._options.timeout_s:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise SourceUnavailable(f"{self._display_url(url)}: {text_of(error)}") from None
        if not 200 <= response.status_code < 300:
            raise SourceUnavailable(f"{self._display_url(url)}: status {response.status_code}, expected 2xx")


class _Gzip:
    """Unpacks in pieces of bounded size, because a small answer can stand for a very large one."""

    def __init__(self) -> None:
        self._inside = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yields the unpacked pieces. Raises zlib.error."""
        while chunk:
            if self._inside.eof:  # consecutive packed texts form one text
                self._inside = zlib.decompressobj(zlib.MAX_WBITS | 16)
            yield self._inside.decompress(chunk, _CHUNK_BYTES)
            chunk = self._inside.unused_data if self._inside.eof else self._inside.unconsumed_tail

    @property
    def is_whole(self) -> bool:
        return self._inside.eof


def _ssl_context(options: HttpOptions, context: InformerContext) -> ssl.SSLContext:
    """Returns the TLS context. Raises InformerSettingsWrong if one of its files cannot be used."""
    base = Path(context.base)
    secure = ssl.create_default_context()
    if options.ca_file:
        try:
            secure = ssl.create_default_context(cafile=base / options.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise wrong(context, "ca_file", f"{options.ca_file!r}: {text_of(error)}; expected a PEM file") from None
    if not options.verify:
        secure.check_hostname = False
        secure.verify_mode = ssl.CERT_NONE
    if options.client_cert_file:
        key = base / options.client_key_file if options.client_key_file else None
        try:
            secure.load_cert_chain(base / options.client_cert_file, key, password="")
        except (OSError, ssl.SSLError) as error:
            raise wrong(
                context, "client_cert_file", f"{options.client_cert_file!r}: {text_of(error)}; expected PEM files"
            ) from None
    return secure


def _origin(url: httpx.URL) -> Origin:
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    return url.scheme, url.host.lower(), port


def _is_header_text(text: str) -> bool:
    return bool(text) and all("!" <= character <= "~" for character in text)


def _links(headers: httpx.Headers) -> dict[str, str]:
    """Returns relation → target of all Link headers; the first of each relation."""
    response = httpx.Response(200, headers=headers)
    links: dict[str, str] = {}
    for link in response.links.values():
        for relation in link.get("rel", "").lower().split():
            links.setdefault(relation, link.get("url", ""))
    return links
