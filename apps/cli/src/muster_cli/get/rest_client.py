"""Asks a gateway's REST. It loads little: the standard library, no client."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from muster_client.access import Access

from muster_cli.errors import CommandError, UsageError
from muster_cli.probe import open_url
from muster_cli.reachability import check_reachable, no_answer

NO_QUERY: Mapping[str, str] = MappingProxyType({})


class RestClient:
    """A gateway's REST.

    :param http: host:port, or an URL. Without a scheme, the access decides between http and https.
    :param rm: the RM's id; "": the default one.

    The constructor raises UsageError for an address that is none, CommandError if nothing listens there.
    """

    def __init__(self, http: str, rm: str, access: Access, timeout_s: float) -> None:
        self._base, self._rm, self._access, self._timeout_s = _base(http, access), rm, access, timeout_s
        self._tls = access.context() if self._base.startswith("https:") else None
        check_reachable(self._base)

    def get(self, path: str, query: Mapping[str, str] = NO_QUERY) -> Any:
        """Returns the JSON that a path of ``/ws/v1`` answers. Parameters that are "" are left out.

        Raises UsageError if the gateway calls the request wrong, CommandError if it does not answer or refuses.
        """
        parameters = {name: value for name, value in {"rm": self._rm, **query}.items() if value}
        url = f"{self._base}/ws/v1/{path}" + (f"?{urllib.parse.urlencode(parameters)}" if parameters else "")
        try:
            with open_url(url, self._timeout_s, self._access, self._tls) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            reason = _reason(error.read().decode(errors="replace")) or str(error.reason)
            wrong = error.code in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)
            raise (UsageError if wrong else CommandError)(f"{self._base}: {reason} (HTTP {error.code})") from None
        except ValueError as error:
            raise CommandError(f"{self._base}: not an answer of Muster: {error}") from None
        except OSError as error:
            raise CommandError(no_answer(self._base, getattr(error, "reason", None) or error)) from None


def _base(http: str, access: Access) -> str:
    scheme, separator, authority = http.strip().rstrip("/").partition("://")
    if not separator:
        scheme, authority = "https" if access.uses_tls else "http", scheme
    if scheme not in ("http", "https") or not authority:
        raise UsageError(f"--http {http!r}: expected host:port, http://host:port or https://host:port")
    return f"{scheme}://{authority}"


def quoted(name: str) -> str:
    """Returns a name as one part of a path."""
    return urllib.parse.quote(name, safe="")


def _reason(body: str) -> str:
    """Returns the text of an error: YuniKorn's JSON has it as its message."""
    try:
        document = json.loads(body)
    except ValueError:
        return body.strip()
    if isinstance(document, dict):
        return str(next((value for name, value in document.items() if name.lower() == "message"), body))
    return body.strip()
