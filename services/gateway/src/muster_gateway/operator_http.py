"""POST /ws/v1/operate/…: operators' actions for the page, and GET /ws/v1/whoami: the caller's identity and rights.

An action is the call of muster.v1.Admin: the same checks, the same record for the scheduler, the same audit entry.

A browser adds some credentials by itself (a client certificate, Basic, an address on the loopback), also to requests
of another host's page. Three checks refuse such a request, and each would suffice in a browser of today: the header
``X-Muster-Operate``, which another host's page cannot send without a preflight that no answer here allows;
``Sec-Fetch-Site``; and ``Origin``, which must name the address of this front (decision 0234).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

import grpc
import msgspec
from muster_rest.shapes.operate import ConfiguredDao, OperatedDao, ProblemDao, WhoamiDao
from muster_runtime.caller import current
from muster_runtime.go_json import error_body
from muster_runtime.identity import Identity, Right
from muster_runtime.secrets import MASK
from muster_si.positions import POSITION_HEADER
from starlette.types import Receive, Scope, Send

from muster_gateway import admin_codec
from muster_gateway.codec import ConfigurationAnswer, encode_configuration_answer
from muster_gateway.errors import CrossSiteRequest, GatewayError, InvalidRequest, quote

HEADER = b"x-muster-operate"
_JSON = b"application/json; charset=UTF-8"
_POSITION = POSITION_HEADER.lower().encode()
# The part of a record's size that a text leaves to the RM's id and the message around both.
_AROUND_BYTES = 2_048
# REST masks secrets. A text that was edited from its answer must not put the mask in a secret's place. (In a comment
# the mask does no harm.)
_MASKED = re.compile(rf"^[^#\n]*{re.escape(MASK)}", re.MULTILINE)
_TEXTS = ("rm", "node", "application", "partition", "reason")
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.UNAVAILABLE: 503,
}


class AdminOperations(Protocol):
    """The calls of muster.v1.Admin that the page has; bytes in and out, as over gRPC. They raise GatewayError."""

    async def pause(self, raw: bytes) -> bytes: ...

    async def resume(self, raw: bytes) -> bytes: ...

    async def forget(self, raw: bytes) -> bytes: ...

    async def drain_node(self, raw: bytes) -> bytes: ...

    async def end_application(self, raw: bytes) -> bytes: ...

    async def validate_configuration(self, raw: bytes) -> bytes: ...

    async def update_configuration(self, raw: bytes) -> ConfigurationAnswer: ...


class OperatorHttp:
    """Answers the actions' routes: an ASGI application.

    :param record_bytes_max: a record of the log.
    """

    def __init__(self, admin: AdminOperations, *, record_bytes_max: int) -> None:
        self._admin = admin
        self._text_bytes_max = max(record_bytes_max - _AROUND_BYTES, 0)
        self._actions: dict[str, Callable[[dict[str, str]], Awaitable[OperatedDao]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "drain": self._drain,
            "undrain": self._undrain,
            "forget": self._forget,
            "end-application": self._end,
        }
        self._configurations: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "validate": self._admin.validate_configuration,
            "configure": self._configure,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # (No header lets pages of other hosts read the answers, unlike those of YuniKorn's interface.)
        try:
            status, body = 200, await self._operate(scope, receive)
            position = current().position
        except GatewayError as error:
            status = _STATUSES.get(error.code, 500)
            body, position = error_body(status, str(error)), ""
        headers = [(b"content-type", _JSON), (b"content-length", str(len(body)).encode())]
        if position:
            headers.append((_POSITION, position.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _operate(self, scope: Scope, receive: Receive) -> bytes:
        """Carries out an action; returns its result as JSON. Raises GatewayError."""
        refuse_other_pages(scope["headers"])
        name = scope["path"].rpartition("/")[2]
        parameters = _query(scope.get("query_string", b""))
        if name in self._configurations:
            text = await self._text(receive)
            raw = await self._configurations[name](admin_codec.make_configuration(parameters["rm"], text))
            return msgspec.json.encode(_configured(raw))
        return msgspec.json.encode(await self._actions[name](parameters))

    async def _text(self, receive: Receive) -> str:
        """Returns a queue configuration from the body. Raises InvalidRequest."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message["type"] == "http.request" and message.get("more_body", False)
            if len(body) > self._text_bytes_max:
                raise InvalidRequest(f"the body is too large, expected a text of at most {self._text_bytes_max} bytes")
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the body is not UTF-8: byte {error.start}") from None
        if not text.strip():
            # (The interface takes it as Muster's default.)
            raise InvalidRequest("the body is empty, expected a queue configuration")
        if masked := _MASKED.search(text):
            line = text.count("\n", 0, masked.start()) + 1
            raise InvalidRequest(f"line {line}: the value is masked ({MASK}), expected the true one")
        return text

    async def _configure(self, raw: bytes) -> bytes:
        return encode_configuration_answer(await self._admin.update_configuration(raw))

    async def _pause(self, parameters: dict[str, str]) -> OperatedDao:
        return _changed(await self._admin.pause(admin_codec.make_pause(parameters["rm"], parameters["reason"])))

    async def _resume(self, parameters: dict[str, str]) -> OperatedDao:
        return _changed(await self._admin.resume(admin_codec.make_resume(parameters["rm"])))

    async def _drain(self, parameters: dict[str, str]) -> OperatedDao:
        return await self._schedulable(parameters, schedulable=False)

    async def _undrain(self, parameters: dict[str, str]) -> OperatedDao:
        return await self._schedulable(parameters, schedulable=True)

    async def _schedulable(self, parameters: dict[str, str], *, schedulable: bool) -> OperatedDao:
        raw = admin_codec.make_drain(
            parameters["rm"], parameters["partition"], parameters["node"], schedulable=schedulable
        )
        changed, allocations = admin_codec.decode_drained(await self._admin.drain_node(raw))
        return _operated(changed, allocations)

    async def _forget(self, parameters: dict[str, str]) -> OperatedDao:
        changed, allocations = admin_codec.decode_forgotten(
            await self._admin.forget(admin_codec.make_forget(parameters["rm"]))
        )
        return _operated(changed, allocations)

    async def _end(self, parameters: dict[str, str]) -> OperatedDao:
        raw = admin_codec.make_end(
            parameters["rm"], parameters["partition"], parameters["application"], parameters["reason"]
        )
        changed, allocations, state = admin_codec.decode_ended(await self._admin.end_application(raw))
        description = f"Application {parameters['application']} is {state}."
        return _operated(changed, allocations, description)


def _operated(changed: bool, allocations: int, description: str = "") -> OperatedDao:
    position = current().position
    return OperatedDao(changed=changed, allocations=allocations, description=description, position=position)


def _configured(raw: bytes) -> ConfiguredDao:
    accepted, problems, changes = admin_codec.decode_configured(raw)
    shown_problems = [
        ProblemDao(severity=severity, path=path, line=line, column=column, message=message)
        for severity, path, line, column, message in problems
    ]
    return ConfiguredDao(accepted=accepted, problems=shown_problems, changes=changes, position=current().position)


def whoami(identity: Identity, query: bytes, *, tokens: bool) -> bytes:
    """Returns a caller as JSON. Raises InvalidRequest.

    :param tokens: the gateway takes tokens.
    """
    rights = identity.rights
    rm_id = _query(query)["rm"]
    return msgspec.json.encode(
        WhoamiDao(
            identity=identity.name,
            proof=str(identity.proof),
            role=str(identity.role),
            act_as=list(rights.act),
            operates=list(rights.operate),
            may_operate=bool(rm_id) and rights.may(Right.OPERATE, rm_id),
            may_configure=bool(rm_id) and rights.may(Right.CONFIGURE, rm_id),
            tokens=tokens,
        )
    )


def refuse_other_pages(headers: list[tuple[bytes, bytes]]) -> None:
    """Raises CrossSiteRequest if a browser may have sent the request for another host's page.

    :param headers: names in lower case.
    """
    if not any(name == HEADER for name, _ in headers):
        raise CrossSiteRequest(f"the header {HEADER.decode()} is missing, expected it with any value")
    for name, value in headers:
        if name == b"sec-fetch-site" and value.lower() not in (b"same-origin", b"none"):
            raise CrossSiteRequest("it is a request of another host's page")
        if name == b"origin" and not _own(value, [host for key, host in headers if key == b"host"]):
            raise CrossSiteRequest("it is a request of another host's page: the headers Origin and Host differ")


def _own(origin: bytes, hosts: list[bytes]) -> bool:
    try:
        named = urlsplit(origin.decode("latin-1")).netloc.lower()
    except ValueError:
        return False
    return bool(named) and [host.decode("latin-1").lower() for host in hosts] == [named]


def _query(query: bytes) -> dict[str, str]:
    """Returns the parameters, "" for missing ones. Raises InvalidRequest."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidRequest("the query is not UTF-8 in percent encoding") from None
    parameters = dict(reversed(pairs))  # the first one counts, as for the right
    for name in parameters:
        if name not in _TEXTS:
            raise InvalidRequest(f"parameter {quote(name)}: expected {', '.join(_TEXTS)}")
    return {name: parameters.get(name, "") for name in _TEXTS}


def _changed(raw: bytes) -> OperatedDao:
    changed, description = admin_codec.decode_changed(raw)
    return _operated(changed, 0, description)
