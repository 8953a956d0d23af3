"""YuniKorn's health check through the gateway: the view's checks of the recorded state, and one for each part.

The view's answer may be missing: then the parts say so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from muster_rest.shapes.health import Grade, PartHealthDao, SystemHealthDao
from muster_rest.shapes.measures import HealthCheckDao, HealthDao
from muster_rest.system_health import Part
from muster_runtime.go_json import go_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OK, _UNAVAILABLE = 200, 503
# The checks of a large state take the view about a second.
_VIEW_S = 10.0
_NOTHING = "nothing found"  # the view's words
_DESCRIPTIONS: Mapping[str, str] = {
    "gateway": "The gateway serves",
    "disk": "The disk has room",
    "log": "The log answers and takes records",
    "scheduler": "A scheduler decides for every partition of the log",
    "requests": "No request waits for long",
    "view": "The view shows the present state",
    "publisher": "The event publisher publishes and exports each event",
    "usage": "Usage is derived",
    "certificates": "No certificate has ended",
    "external": "The schedulers reach every external source",
}


@dataclass(slots=True)
class Captured:
    """A whole answer of a target."""

    start: Message = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    @property
    def status(self) -> int:
        status: int = self.start.get("status", _UNAVAILABLE)
        return status

    async def send(self, message: Message) -> None:
        """Takes a message of the target."""
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.body += message.get("body", b"")


async def captured(target: ASGIApp, scope: Scope, receive: Receive) -> Captured:
    """Returns a target's answer, not compressed."""
    answer = Captured()
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"accept-encoding"]
    await target({**scope, "headers": headers}, receive, answer.send)
    return answer


async def answer_healthcheck(view: ASGIApp, state: SystemHealthDao, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a request for the health check. A view that does not answer is not waited for: its part says so."""
    answer = Captured()
    if not any(part.part == Part.VIEW and part.grade is Grade.FAILED for part in state.parts):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_VIEW_S):
                answer = await captured(view, scope, receive)
    if answer.status not in (_OK, _UNAVAILABLE):  # an RM that is not known
        await send(answer.start)
        await send({"type": "http.response.body", "body": bytes(answer.body), "more_body": False})
        return
    checks = msgspec.json.decode(answer.body, type=HealthDao).health_checks if answer.status == _OK else []
    checks += [_check(part) for part in state.parts]
    body = go_json(HealthDao(healthy=all(check.succeeded for check in checks), health_checks=checks)) + b"\n"
    headers = [
        (b"content-type", b"application/json; charset=UTF-8"),
        (b"content-length", str(len(body)).encode()),
        (b"access-control-allow-origin", b"*"),
    ]
    await send({"type": "http.response.start", "status": _OK, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body, "more_body": False})


def _check(part: PartHealthDao) -> HealthCheckDao:
    diagnosis = "; ".join([f"{part.grade}: {part.sentence}", *part.others]) if part.grade is not Grade.OK else _NOTHING
    return HealthCheckDao(
        name=part.part.capitalize(),
        succeeded=part.grade is not Grade.FAILED,
        description=_DESCRIPTIONS.get(part.part, part.part),
        diagnosis_message=f"{diagnosis} ({part.remedy})" if part.remedy else diagnosis,
    )
