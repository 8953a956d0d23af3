"""The page at /: plain HTML, CSS and ES modules, as stored in ``files`` (docs/page.md).

The files hold no data of any cluster, so everybody may get them. The page's script asks for its data from the reader's
browser, over the REST interface, with the reader's token.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

_FILES = Path(__file__).with_name("files")
_INDEX = "index.html"
# For smaller files, compression saves no packet.
_GZIP_BYTES_MIN = 1_400

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# The browser may run, load and ask only the page's own files. Anybody can choose names of applications and users. With
# trusted types, the browser refuses to parse any text as HTML, even if the page tried by mistake.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # The browser asks each time; the answer is full only after an upgrade. Old scripts would not fit a new REST
    # interface.
    (b"cache-control", b"no-cache"),
    (b"vary", b"accept-encoding"),
)


class PageAnswer(NamedTuple):
    """The answer for one file."""

    status: int
    content_type: str
    body: bytes
    headers: list[tuple[bytes, bytes]]


class _File(NamedTuple):
    content_type: str
    body: bytes
    packed: bytes
    etag: bytes


class Page:
    """The files by path, read once: ``/`` and ``/favicon.ico``, and ``/page/NAME`` for all others.

    The constructor raises OSError if they cannot be read, because the installation is incomplete.
    """

    def __init__(self) -> None:
        names = sorted(path.name for path in _FILES.iterdir() if path.suffix in _TYPES)
        self._files = {f"/page/{name}": _read(_FILES / name) for name in names}
        self._files["/"] = self._files.pop(f"/page/{_INDEX}")
        self._files["/favicon.ico"] = self._files["/page/icon.svg"]

    @property
    def paths(self) -> list[str]:
        """Returns all paths."""
        return list(self._files)

    def answer(self, path: str, headers: list[tuple[bytes, bytes]]) -> PageAnswer | None:
        """Returns the answer to a GET; None: there is no such file.

        :param headers: the request's, names in lower case.
        """
        file = self._files.get(path)
        if file is None:
            return None
        request_headers = dict(headers)
        etags = [tag.strip().removeprefix(b"W/") for tag in request_headers.get(b"if-none-match", b"").split(b",")]
        about = [*_HEADERS, (b"etag", file.etag)]
        if file.etag in etags:
            return PageAnswer(304, file.content_type, b"", about)
        if file.packed and b"gzip" in request_headers.get(b"accept-encoding", b""):
            return PageAnswer(200, file.content_type, file.packed, [*about, (b"content-encoding", b"gzip")])
        return PageAnswer(200, file.content_type, file.body, about)


def _read(path: Path) -> _File:
    body = path.read_bytes()
    packed = gzip.compress(body, mtime=0) if len(body) >= _GZIP_BYTES_MIN else b""
    return _File(_TYPES[path.suffix], body, packed, b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode())
