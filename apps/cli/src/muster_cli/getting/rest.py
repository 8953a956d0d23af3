"""Asks a gateway's REST. It loads little: the standard library, no client."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from muster_runtime.access import Access

from muster_cli.errors import CommandError, UsageError
from muster_cli.reach import check_reachable, no_answer

_NOT_FOUND, _UNAVAILABLE = 404, 503
_BAD_REQUEST = 400


@dataclass(frozen=True, slots=True)
class Rest:
    """A gateway's HTTP address.

    :param http: host:port, or an URL. Without a scheme, the access decides between http and https.
    :param rm: the RM's id; "": the default one.
    """

    http: str
    rm: str
    access: Access
    timeout_s: float
    _context: list[ssl.SSLContext] = field(default_factory=list)

    def get(self, path: str, **query: str) -> Any:
        """Returns the JSON that a path of ``/ws/v1`` answers.

        Raises UsageError if the gateway calls the request wrong, CommandError if it does not answer or refuses.
        """
        base = self._base()
        asked = {name: value for name, value in {"rm": self.rm, **query}.items() if value}
        url = f"{base}/ws/v1/{path}" + (f"?{urllib.parse.urlencode(asked)}" if asked else "")
        check_reachable(base)
        request = urllib.request.Request(url)  # noqa: S310 - the scheme is checked
        for name, value in self.access.headers().items():
            request.add_unredirected_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s, context=self._tls(base)) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            reason = _reason(error.read().decode(errors="replace")) or str(error.reason)
            wrong = error.code in (_BAD_REQUEST, _NOT_FOUND)
            raise (UsageError if wrong else CommandError)(f"{base}: {reason} (HTTP {error.code})") from None
        except ValueError as error:
            raise CommandError(f"{base}: not an answer of Muster: {error}") from None
        except OSError as error:
            raise CommandError(no_answer(base, getattr(error, "reason", None) or error)) from None

    def _base(self) -> str:
        scheme, separator, place = self.http.strip().rstrip("/").partition("://")
        if not separator:
            scheme, place = "https" if self.access.uses_tls else "http", scheme
        if scheme not in ("http", "https") or not place:
            raise UsageError(f"--http {self.http!r}: expected host:port, http://host:port or https://host:port")
        return f"{scheme}://{place}"

    def _tls(self, base: str) -> ssl.SSLContext | None:
        if not base.startswith("https:"):
            return None
        if not self._context:
            self._context.append(self.access.context())
        return self._context[0]


def quoted(name: str) -> str:
    """Returns a name as one part of a path."""
    return urllib.parse.quote(name, safe="")


def _reason(body: str) -> str:
    """Returns the text of an error: YuniKorn's JSON has it as its message."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.strip()
    if isinstance(found, dict):
        return str(next((value for name, value in found.items() if name.lower() == "message"), body))
    return body.strip()
